"""The names that people bring from other toolkits lead to ours."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from asr.config import build_config, describe_choices
from asr.errors import UserError
from asr.foreign_names import FOREIGN_NAMES
from asr.system.run_config import RunConfig
from asr.transcription.settings import (
    EvaluationSettings,
    ReadyEvaluationSettings,
    TranscriptionSettings,
)

CONF = Path(__file__).resolve().parents[1] / "conf" / "digits" / "transformer.yaml"


def suggested(key: str) -> str:
    with pytest.raises(UserError) as caught:
        RunConfig.load(CONF, [f"{key}=1"])
    (found,) = re.findall(r"did you mean ([\w.]+)\?", str(caught.value))
    return found


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("lr", "optim.learning_rate"),
        ("train.lr", "optim.learning_rate"),
        ("optim.lr", "optim.learning_rate"),
        ("learning_rate", "optim.learning_rate"),
        ("train.learning_rate", "optim.learning_rate"),
        ("epochs", "train.steps"),
        ("train.max_epochs", "train.steps"),
        ("num_train_epochs", "train.steps"),
        ("batch_size", "batches.max_utterances"),
        ("train.batch_size", "batches.max_utterances"),
        ("batches.batch_bins", "batches.max_seconds"),
        ("features.n_mels", "features.num_mels"),
        ("num_mels", "features.num_mels"),
        ("features.fs", "features.sample_rate"),
        ("warmup", "optim.warmup_steps"),
        ("train.warmup_steps", "optim.warmup_steps"),
        ("vocab_size", "tokenizer.vocab_size"),
        ("model.vocab_size", "tokenizer.vocab_size"),
        ("tokenizer.nbpe", "tokenizer.vocab_size"),
        ("train.accum_grad", "train.accumulate"),
        ("max_grad_norm", "train.clip_norm"),
        ("ngpu", "train.device"),
        ("optimizer", "optim"),
        ("specaug", "augment.spec_augment"),
        ("model.encoder.attention_heads", "model.encoder.num_heads"),
        ("model.decoder.attention_heads", "model.decoder.num_heads"),
        ("model.decoder.n_layers", "model.decoder.num_layers"),
        ("model.encoder.linear-units", "model.encoder.feed_forward_dim"),
        ("model.mtlalpha", "model.ctc_weight"),
        ("train_manifest", "data.train"),
        ("data.valid", "data.dev"),
        ("save_folder", "output_dir"),
        ("train.step", "train.steps"),
    ],
)
def test_the_key_that_is_meant(key: str, ours: str) -> None:
    assert suggested(key) == ours


def test_what_the_key_means_is_told() -> None:
    with pytest.raises(UserError, match=r"did you mean train.steps\? \(Updates in all\)"):
        RunConfig.load(CONF, ["epochs=10"])
    with pytest.raises(UserError, match=r"did you mean decoding.beam\?"):
        build_config(TranscriptionSettings, ["beam_size=5"])


def test_every_name_leads_somewhere() -> None:
    overrides = [f"{name}=1" for name in FOREIGN_NAMES]
    led: set[str] = set()
    for load in (partial(RunConfig.load, CONF), partial(build_config, TranscriptionSettings)):
        with pytest.raises(UserError) as caught:
            load(overrides)
        led |= set(re.findall(r"unknown key (\w+) .*did you mean", str(caught.value)))
    assert set(FOREIGN_NAMES) == led


@pytest.mark.parametrize(
    "settings", [RunConfig, TranscriptionSettings, EvaluationSettings, ReadyEvaluationSettings]
)
def test_the_example_in_an_error_is_a_setting(settings: type) -> None:
    def load(overrides: list[str]) -> object:
        return RunConfig.load(CONF, overrides) if settings is RunConfig else build_config(settings, overrides)

    with pytest.raises(UserError, match="for example") as caught:
        load(["what"])
    example = str(caught.value).rpartition("for example ")[2]
    load([example])


def test_info_knows_the_choices_of_every_choice() -> None:
    choices = describe_choices(RunConfig)
    assert choices["optim.schedule"] == ["inverse_sqrt", "cosine", "tri_stage", "constant"]
    assert choices["model.encoder.type"][:3] == ["transformer", "conformer", "lstm"]
    assert {"type: transformer", "type: mask_ctc", "null"} <= set(choices["model.decoder"])
    assert (
        choices["model.guided_attention"][0].startswith("a section of weight")
        and "null" in choices["model.guided_attention"]
    )
    assert "nfkc" in choices["text.training"] and "labels" in choices["tokenizer.type"]
