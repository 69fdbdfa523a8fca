"""Commands side by side, each in a process of its own; each line that they say comes behind their name."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

from asr.errors import UserError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Command:
    """A program with its arguments, and the names of the commands that must have succeeded before."""

    arguments: Sequence[str]
    after: tuple[str, ...] = ()


def run_side_by_side(commands: Mapping[str, Command], limit: int) -> dict[str, str]:
    """Run all, at most `limit` at once; returns why those failed that did. None of them stops another.

    When this process is interrupted (Ctrl-C, SIGTERM) or dies, the standard input of each ends: by
    `end_with_standard_input` it stops in order. The interruption goes on its way once all have stopped.
    """
    waiting = dict(commands)
    running: dict[str, _Process] = {}
    ended: queue.SimpleQueue[str] = queue.SimpleQueue()
    faults: dict[str, str] = {}
    with _termination_as_exit():
        try:
            while waiting or running:
                blocking = {*waiting, *running, *faults}
                ready = [
                    name for name, command in waiting.items() if not blocking.intersection(command.after)
                ]
                for name in ready[: limit - len(running)]:
                    running[name] = _Process(name, waiting.pop(name).arguments, ended)
                if not running:
                    break
                name = ended.get()
                if status := running.pop(name).wait():
                    faults[name] = f"exit status {status}" if status > 0 else f"killed by signal {-status}"
        finally:
            for process in running.values():
                process.hang_up()
            for process in running.values():
                process.wait()
    return faults | dict.fromkeys(waiting, "it needs one that failed")


class _Process:
    """One that runs. It puts its name into `ended` when it has said its last."""

    def __init__(self, name: str, arguments: Sequence[str], ended: queue.SimpleQueue[str]) -> None:
        try:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise UserError(f"{name}: cannot start a process for it ({error.strerror})") from None
        self._listener = threading.Thread(target=self._listen, args=(name, ended), daemon=True)
        self._listener.start()

    def _listen(self, name: str, ended: queue.SimpleQueue[str]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            logger.info("%s | %s", name, line.decode("utf-8", "replace").rstrip())
        ended.put(name)

    def hang_up(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self) -> int:
        """The exit status, once all that it says has been written."""
        self._listener.join()
        return self._process.wait()


@contextlib.contextmanager
def _termination_as_exit() -> Iterator[None]:
    """SIGTERM raises SystemExit(143), so that what runs can be ended in order."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_with_standard_input() -> None:
    """For the processes themselves: they get SIGTERM when the caller hangs up, and hear no Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the caller answers it

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def count_cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
