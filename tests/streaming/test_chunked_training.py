"""Training with chunks: resuming is exact, and what does not go together is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_examples import BuildRun, assert_equal_bits, run_until_killed

from asr.errors import UserError
from asr.families import find_checkpoints
from asr.system.system import load_system
from asr.train.loop import train

CHUNKED = (
    *("features.cmvn=running", "model.encoder.type=conformer", "model.encoder.kernel=5"),
    *("model.encoder.chunk={steps: [1, 5]}", "train.steps=6"),
)


def test_resuming_is_exact(tiny_run: BuildRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(tiny_run(f"output_dir={tmp_path}/whole", *CHUNKED))
    run_until_killed(monkeypatch, 4, lambda: train(tiny_run(*CHUNKED)))
    assert len(find_checkpoints(tmp_path / "run")) == 1
    assert_equal_bits(whole, train(tiny_run(*CHUNKED)))


def test_chunks_change_what_is_learned_and_begin_with_any_weights(tiny_run: BuildRun, tmp_path: Path) -> None:
    usual = (*(setting for setting in CHUNKED if "chunk" not in setting), f"output_dir={tmp_path}/usual")
    model = train(tiny_run(*usual))
    chunked = train(tiny_run(*CHUNKED, f"start_from={model}"))
    names = [set(load_system(folder).model.state_dict()) for folder in (model, chunked)]
    assert names[0] == names[1]
    with pytest.raises(AssertionError):
        assert_equal_bits(model, chunked)


def test_statistics_of_the_utterance_are_refused(tiny_run: BuildRun) -> None:
    for setting in ("features.cmvn=utterance", "features={convention: whisper}", "features={type: samples}"):
        with pytest.raises(UserError, match=r"set features\.cmvn: running"):
            tiny_run(*CHUNKED, setting)
