"""The harnesses find faults: each fails on three that are put into the package, and passes without them.

A fault is code that each process of a harness runs when Python starts, before anything else.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile
from hostile_audio import make_speechlike
from system_examples import save_talker
from tone_examples import TINY_RUN

ROOT = Path(__file__).resolve().parent.parent
# Name of a fault -> its code, and what the harness prints of it.
TRAINING = {
    "none": ("", "3 kills"),
    "forgets its place": (
        "def resume(*given):\n"
        "    learner, state = start(*given)\n"
        "    state.batches_done = 0\n"
        "    return learner, state\n"
        "loop.start_or_resume = resume",
        "the end differs",
    ),
    "forgets the optimizer": (
        "def resume(*given):\n"
        "    learner, state = start(*given)\n"
        "    learner.optimizer.state.clear()\n"
        "    return learner, state\n"
        "loop.start_or_resume = resume",
        "the end differs",
    ),
    "saves seldom": (
        "loop.save = lambda *given: given[3].step % 60 or save(*given)",
        "more than train.save_every",
    ),
}
READ = "reading.read_blocks = lambda *given, on_damage, **rest: "
DAMAGED_AUDIO = {
    "cuts: none": ("", "left: 0"),
    "cuts: refuses damage": (READ + "read(*given, **rest)", "WRONG"),
    "cuts: stops early": (
        READ + "itertools.islice(read(*given, on_damage=on_damage, block_seconds=10, **rest), 1)",
        "WRONG",
    ),
    "cuts: adds silence": (READ + "[*read(*given, on_damage=on_damage, **rest), np.zeros(16_000)]", "WRONG"),
    "mutations: none": ("", "damaged, told"),
    "mutations: ends the process": (READ + "read(*given, on_damage=lambda _: os.abort(), **rest)", "crash"),
    "mutations: hangs": (READ + "read(*given, on_damage=lambda _: all(itertools.count(1)), **rest)", "hang"),
    "mutations: takes memory": (READ + "read(*given, on_damage=lambda _: b'1' * 10**9, **rest)", "took"),
}
TRANSCRIPTION = {
    "none": ("", "outputs equal"),
    "does all again": ("Folder.is_done = lambda *given: False", "finished twice, or not at all"),
    "leaves one out when resumed": (
        "def find(folder, *given, **rest):\n"
        "    todo, faults = work(folder, *given, **rest)\n"
        "    return todo[bool(folder._newest) :], faults\n"
        "work = Folder.find_work; Folder.find_work = find",
        "finished twice, or not at all",
    ),
    "gives up a unit whose worker died": (
        "def plan(size):\n"
        "    outcome = yield list(range(size))\n"
        "    return [{'error': outcome}] * size if isinstance(outcome, str) else outcome\n"
        "ray_pool._plan = plan",
        "finished twice, or not at all",
    ),
}

pytestmark = pytest.mark.slow


def check(setup: str, fault: tuple[str, str], folder: Path, *words: str) -> None:
    """Run a harness with a fault; it says so and fails, or passes without one."""
    code, message = fault
    (folder / "sitecustomize.py").write_text(f"{setup}\n{code}\n" if code else "")
    path = os.pathsep.join([str(folder), str(ROOT), *sys.path[1:]])
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / words[0]), *words[1:]],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert message in done.stdout + done.stderr, done.stdout + done.stderr
    assert bool(done.returncode) == bool(code), done.stdout + done.stderr


@pytest.mark.parametrize("fault", TRAINING)
def test_kill_training(fault: str, tones: Path, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TINY_RUN.format(folder=tmp_path, tones=tones))
    settings = ["train.steps=300", "train.save_every=10", "train.validate_every=300", "train.log_every=1"]
    check(
        "import asr.train.loop as loop\nstart, save = loop.start_or_resume, loop.save",
        *(TRAINING[fault], tmp_path, "kill_training.py", str(tmp_path / "run.yaml"), *settings),
        *("--kills", "3", "--output-dir", str(tmp_path / "kill")),
    )


@pytest.mark.parametrize("fault", DAMAGED_AUDIO)
def test_check_damaged_audio(fault: str, tmp_path: Path) -> None:
    mode = fault.partition(":")[0]
    check(
        "import itertools, os\nimport numpy as np\n"
        "import asr.audio.reading as reading\nread = reading.read_blocks",
        *(DAMAGED_AUDIO[fault], tmp_path, "check_damaged_audio.py", mode, "--folder", str(tmp_path)),
        *("--count", "40"),
    )


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and 60 recordings of 20 seconds."""
    folder = tmp_path_factory.mktemp("recordings")
    save_talker(folder / "model")
    (folder / "audio").mkdir()
    for number in range(60):
        soundfile.write(folder / "audio" / f"{number}.wav", make_speechlike(20.0, seed=number), 16_000)
    return folder


@pytest.mark.parametrize("fault", TRANSCRIPTION)
def test_kill_transcription(fault: str, recordings: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    check(
        "import asr.scale.ray_pool as ray_pool\nfrom asr.scale.output_folder import OutputFolder as Folder",
        *(TRANSCRIPTION[fault], tmp_path, "kill_transcription.py", str(recordings / "audio")),
        *("--model", str(recordings / "model"), "--kills", "4", "--unit-minutes", "1"),
        *("--output-dir", str(tmp_path / "out")),
    )
