"""What the tests of training share: a training that is cut off, and what a run leaves behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from asr.batches.builder import Batch
from asr.models.speech_model import SpeechModel
from asr.system.run_config import RunConfig
from asr.text.tokenizer import Tokenizer
from asr.train.distributed import Process
from asr.train.learner import Learner
from asr.train.preparation import prepare_system

TinyRun = Callable[..., RunConfig]  # what the fixture tiny_run is
BuildRun = TinyRun


class Killed(BaseException):
    """Simulates SIGKILL, which nothing catches."""


def run_until_killed(monkeypatch: pytest.MonkeyPatch, at_step: int, run: Callable[[], object]) -> None:
    original = Learner.update

    def update(self: Learner, batches: Sequence[Batch], step: int) -> Any:
        if step == at_step:
            raise Killed
        return original(self, batches, step)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Learner, "update", update)
        run()


def assert_equal_bits(first: Path, second: Path) -> None:
    """The tensors of two safetensors files, or of two models by their folders."""
    ours, theirs = (
        load_file(path / "model.safetensors" if path.is_dir() else path) for path in (first, second)
    )
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


def read_log(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def start_runs_from(source: Path, text: str, tones: Path, folder: Path) -> BuildRun:
    """Build configs of runs that start from a copy of a model, in the folder by its name there."""
    shutil.copytree(source, folder / source.name)

    def build(*overrides: str) -> RunConfig:
        path = folder / "run.yaml"
        path.write_text(text.format(folder=folder, tones=tones))
        return RunConfig.load(path, overrides)

    return build


def prepare_speech(config: RunConfig) -> tuple[SpeechModel, Tokenizer]:
    torch.manual_seed(0)
    system = prepare_system(config, Process(0, 1, torch.device("cpu")))
    assert isinstance(system.model, SpeechModel)
    return system.model, system.tokenizer
