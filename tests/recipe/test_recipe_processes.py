"""Commands side by side: order, failures, what they say, and how they end with the one that started them."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from asr.recipe import Processes, Task, run_side_by_side


@dataclass(frozen=True)
class Program:
    arguments: Sequence[str]
    after: tuple[str, ...] = ()


def run_all(programs: dict[str, Program], limit: int) -> dict[str, str]:
    """Each as a task that has never been done."""
    processes = Processes()
    with tempfile.TemporaryDirectory() as folder:
        tasks = [
            Task(
                name=name,
                does="run",
                record=Path(folder, name),
                inputs=dict,
                outputs=list,
                run=partial(processes.run, name, program.arguments),
                after=program.after,
            )
            for name, program in programs.items()
        ]
        return run_side_by_side(tasks, limit, processes)


def say(*statements: str, after: tuple[str, ...] = ()) -> Program:
    return Program([sys.executable, "-S", "-c", "; ".join(["import os, sys, time", *statements])], after)


def wait_for(path: Path) -> str:
    return f'exec("while not os.path.exists({str(path)!r}): time.sleep(0.01)")'


def test_two_run_at_once_and_no_third(tmp_path: Path) -> None:
    """Each of the first two waits for the other; the third finds both ended."""
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    commands = {
        "one": say(f"open({str(one)!r}, 'w')", wait_for(two), f"os.rename({str(one)!r}, {str(three)!r})"),
        "two": say(f"open({str(two)!r}, 'w')", wait_for(three)),
        "three": say(f"sys.exit(not os.path.exists({str(three)!r}))"),
    }
    assert run_all(commands, 2) == {}


def test_what_needs_another_waits_and_nothing_waits_for_it(tmp_path: Path) -> None:
    made, other = tmp_path / "made", tmp_path / "other"
    commands = {
        "needs": say(f"sys.exit(not os.path.exists({str(made)!r}))", after=("makes", "what is not here")),
        "makes": say(wait_for(other), f"open({str(made)!r}, 'w')"),
        "other": say(f"open({str(other)!r}, 'w')"),
    }
    assert run_all(commands, 2) == {}


def test_a_failure_stops_only_what_needs_it(tmp_path: Path) -> None:
    commands = {
        "fails": say("sys.exit(2)"),
        "is killed": say("os.kill(os.getpid(), 9)"),
        "needs": say(f"open({str(tmp_path / 'needs')!r}, 'w')", after=("fails",)),
        "needs that": say("pass", after=("needs",)),
        "goes on": say("time.sleep(0.1)", f"open({str(tmp_path / 'on')!r}, 'w')"),
    }
    assert run_all(commands, 2) == {
        "fails": "exit status 2",
        "is killed": "killed by signal 9",
        "needs": "it needs one that failed",
        "needs that": "it needs one that failed",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["on"]


def test_each_line_has_its_name(caplog: pytest.LogCaptureFixture) -> None:
    command = say("print('out')", "sys.stdout.flush()", r"sys.stderr.buffer.write(b'gr\xc3\xbcn \xff')")
    with caplog.at_level(logging.INFO):
        assert run_all({"colour": command}, 4) == {}
    assert [line for line in caplog.messages if " | " in line] == ["colour | out", "colour | grün \ufffd"]


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    programs = {"one": say("pass"), "none": Program([str(tmp_path / "none")])}
    assert run_all(programs, 2) == {"none": "cannot start a process (No such file or directory)"}


OBEDIENT = """
import signal, sys, time
from asr.recipe import end_with_standard_input
def save(number, frame):
    time.sleep(0.3)  # as a training, which saves what it has
    open("saved", "w")
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
end_with_standard_input()
open("ready", "w")
time.sleep(30)
"""
CALLER = f"""
import signal, sys
from pathlib import Path
from asr.recipe import Processes, run_side_by_side
from asr.recipe import Task
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs in the background inherit that it is ignored
processes = Processes()
run = lambda: processes.run("obedient", [sys.executable, "-c", {OBEDIENT!r}])
task = Task("obedient", "run", Path("record"), dict, list, run)
run_side_by_side([task], 2, processes)
"""


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_all_end_in_order_with_their_caller(tmp_path: Path, number: signal.Signals) -> None:
    """A terminal sends Ctrl-C to all of them; the rest reaches the caller alone."""
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER], cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True
    )
    wait_until(tmp_path / "ready")
    os.killpg(caller.pid, number) if number == signal.SIGINT else caller.send_signal(number)
    status = caller.wait(timeout=20)
    if number == signal.SIGKILL:
        wait_until(tmp_path / "saved")
    assert (tmp_path / "saved").exists(), "the caller waits until they have saved"
    assert status == {signal.SIGTERM: 143}.get(number, -number)


def wait_until(path: Path) -> None:
    end = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_signals_are_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    threads = threading.active_count()
    assert run_all({"one": say("pass")}, 1) == {}
    assert signal.getsignal(signal.SIGTERM) == before and threading.active_count() == threads
