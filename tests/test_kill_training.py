"""tools/kill_training.py finds problems: it fails on three that are put into the package, and passes without them.

A problem is code that each of its processes runs when Python starts, before anything else.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tone_examples import TINY_RUN

ROOT = Path(__file__).resolve().parent.parent
SETUP = "import asr.train.loop as loop\nstart, save = loop.start_or_resume, loop.save\n"
RESUME = """
def resume(*given):
    learner, state = start(*given)
    {}
    return learner, state
loop.start_or_resume = resume
"""
# Name of a problem -> its code, and what the tool prints of it.
PROBLEMS = {
    "none": ("", "3 kills"),
    "forgets its place": (RESUME.format("state.batches_done = 0"), "the end differs"),
    "forgets the optimizer": (RESUME.format("learner.optimizer.state.clear()"), "the end differs"),
    "saves seldom": (
        "loop.save = lambda *given: given[3].step % 60 or save(*given)\n",
        "more than twice train.save_every",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
def test_kill_training(problem: str, tones: Path, tmp_path: Path) -> None:
    code, message = PROBLEMS[problem]
    (tmp_path / "sitecustomize.py").write_text(SETUP + code if code else "")
    (tmp_path / "run.yaml").write_text(TINY_RUN.format(folder=tmp_path, tones=tones))
    command = [sys.executable, str(ROOT / "tools" / "kill_training.py"), str(tmp_path / "run.yaml")]
    command += ["train.steps=300", "train.save_every=10", "train.validate_every=300", "train.log_every=1"]
    path = os.pathsep.join([str(tmp_path), str(ROOT), *sys.path[1:]])
    done = subprocess.run(
        [*command, "--kills", "3", "--output-dir", str(tmp_path / "kill")],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert message in done.stdout + done.stderr, done.stdout + done.stderr
    assert bool(done.returncode) == bool(code), done.stdout + done.stderr
