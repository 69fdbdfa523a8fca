"""Run tasks side by side, and programs whose output is logged behind their names.

`python -m asr.recipe.processes CONF` is such a program: it trains one run of a recipe.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from graphlib import TopologicalSorter
from types import FrameType

from asr.errors import UserError
from asr.recipe.tasks import Task, run_task

logger = logging.getLogger(__name__)


class Processes:
    """The programs that run now.

    When this process is interrupted or dies, the standard input of each ends: by `end_with_standard_input`
    a program then stops in order.
    """

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._is_over = False

    def run(self, name: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Run a program to its end; one that fails is an error."""
        pipe = subprocess.PIPE
        variables = os.environ | (environment or {})
        try:
            process = subprocess.Popen(
                arguments, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, env=variables
            )
        except OSError as error:
            raise UserError(f"cannot start a process ({error.strerror})") from None
        self._running[name] = process
        if self._is_over:  # since a moment ago
            self.hang_up()
        assert process.stdout is not None
        with process:
            for line in process.stdout:
                logger.info("%s | %s", name, line.decode("utf-8", "replace").rstrip())
            status = process.wait()
            del self._running[name]
        if status:
            raise UserError(f"exit status {status}" if status > 0 else f"killed by signal {-status}")

    def hang_up(self) -> None:
        """End the standard input of all, also of those that start from now on."""
        self._is_over = True
        for process in list(self._running.values()):
            assert process.stdin is not None
            process.stdin.close()


def run_side_by_side(tasks: Sequence[Task], limit: int, processes: Processes) -> dict[str, str]:
    """Run all, at most `limit` at once; return the errors of those that failed. None of them stops another.

    After an interruption (Ctrl-C, SIGTERM) the processes of the tasks end in order before this one.
    """
    named = {task.name: task for task in tasks}
    order = TopologicalSorter({name: named.keys() & task.after for name, task in named.items()})
    order.prepare()
    running: dict[Future[None], str] = {}
    faults: dict[str, str] = {}
    with _termination_as_exit(), ThreadPoolExecutor(limit) as pool:
        try:
            while order.is_active():
                running |= {pool.submit(run_task, named[name]): name for name in order.get_ready()}
                if not running:  # all that are left need one that failed
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    name = named.pop(running.pop(future)).name
                    try:
                        future.result()
                        order.done(name)
                    except UserError as error:
                        faults[name] = str(error)
        finally:
            processes.hang_up()
            pool.shutdown(cancel_futures=True)
    return faults | dict.fromkeys(named, "it needs one that failed")


@contextlib.contextmanager
def _termination_as_exit() -> Iterator[None]:
    """Let SIGTERM raise SystemExit(143), so that what runs can be ended in order."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_with_standard_input() -> None:
    """Send this program SIGTERM when its caller hangs up, and ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the caller answers it

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def count_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main(conf: str) -> int:
    """Train; return the exit status, as that of `asr`."""
    end_with_standard_input()
    from asr.system.run_config import RunConfig
    from asr.train.loop import train_and_draw

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    try:
        train_and_draw(RunConfig.load(conf))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
