"""What many tests need: a corpus of tones in place of words, and a run that trains on it in seconds.

What is heavy is imported where it is used: the process that hands out the tests reads this file first, and
the others wait for it.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from asr.system.run_config import RunConfig


# Some tests use the examples of another package.
sys.path += [str(folder) for folder in Path(__file__).parent.iterdir() if folder.is_dir()]

# A busy machine is slow; that is no problem of what is tested.
settings.register_profile("asr", deadline=None, max_examples=25)
settings.load_profile("asr")

# A thread that has nothing to do sleeps, where tests ask for two, and leaves its core to other tests.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A shell has its background jobs ignore Ctrl-C, and what a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # looking for garbage takes 40 % of the collection of tests, which makes none


def pytest_collection_finish() -> None:
    # pytest would join and leave each of PyTorch's 45 loggers that do not propagate, six times a test.
    for logger in logging.root.manager.loggerDict.values():
        logger.propagate = True  # type: ignore[union-attr]
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    gc.freeze()  # pytest looks for garbage five times at the end


@pytest.fixture(autouse=True)
def restored_log_level() -> Iterator[None]:
    """A command with -v changes the level of the whole process."""
    yield
    logging.getLogger("asr").setLevel(logging.NOTSET)


@pytest.fixture
def restored_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give each test its own thread settings, independent of what a command chose before."""
    import torch

    from asr import threads

    monkeypatch.setattr(threads, "_side_by_side", None)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty folder. pytest's own would first list the folders of all other tests."""
    return Path(tempfile.mkdtemp("", f"{request.node.originalname}-", tmp_path_factory.getbasetemp()))


@pytest.fixture(scope="session")
def tones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.jsonl (48 utterances) and dev.jsonl (5)."""
    from tone_examples import write_tones

    return write_tones(tmp_path_factory.mktemp("tones"))


@pytest.fixture
def tiny_run(tones: Path, tmp_path: Path) -> Callable[..., RunConfig]:
    """Builds the config of a tiny run; arguments are overrides such as "train.steps=3"."""
    from tone_examples import TINY_RUN

    from asr.system.run_config import RunConfig

    def build(*overrides: str) -> RunConfig:
        path = tmp_path / "run.yaml"
        path.write_text(TINY_RUN.format(folder=tmp_path, tones=tones))
        return RunConfig.load(path, overrides)

    return build


@pytest.fixture(scope="module")
def loud_is_speech() -> Iterator[None]:
    """Stand-in for the speech detector: everything above -50 dB is speech."""
    import numpy as np

    class Loudness:
        def __init__(self, rate: int) -> None:
            self.chunk_samples = rate * 32 // 1000

        def __call__(self, chunks_CS: np.ndarray, state: None) -> tuple[np.ndarray, None]:
            return (np.square(chunks_CS).mean(1) > 1e-5).astype(np.float32), None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asr.audio.silero.load_silero", Loudness)
        yield


@pytest.fixture(scope="session")
def torchaudio() -> ModuleType:
    """torchaudio as a reference. Its last release, 2.11, does not load with a PyTorch without CUDA."""
    try:
        import torchaudio
    except (ImportError, OSError, RuntimeError) as error:
        pytest.skip(f"torchaudio: {error}")
    return torchaudio


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """No test cuts the power, which is all that this waiting is for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda file: None)
        patch.setattr("soundfile.SoundFile.flush", lambda self: None)
        yield


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tests run in two processes on two cores, and more threads than cores would wait for each other."""
    import torch

    torch.set_num_threads(1)
