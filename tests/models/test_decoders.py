"""Decoders of every type: what a config may ask for, and honest answers of those that do not attend."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from decoding_examples import build_talker, random_encoded, search
from model_examples import build_example, make_utterances

from asr.config import build_config
from asr.decoding import DecodingConfig
from asr.errors import UserError
from asr.models import SpeechModelConfig, TransformerDecoderConfig
from asr.recipe import report
from asr.system import RunConfig

# --- without attention --------------------------------------------------------------------------


@torch.inference_mode()
def test_without_attention_no_steps_are_attended_to() -> None:
    without, attending = build_talker("single-summary-hybrid", 0, -2.0), build_talker("attention-location")
    for method, beam in itertools.product(("attention", "joint", "rescoring"), (1, 4)):
        config = DecodingConfig(method=method, beam=beam)
        for hypotheses in search(without, *random_encoded(without, [9, 6]), config):
            assert hypotheses[0].attended_steps == ()
            assert math.isfinite(hypotheses[0].log_probability)
        for hypotheses in search(attending, *random_encoded(attending, [9, 6]), config):
            assert len(hypotheses[0].attended_steps) == len(hypotheses[0].tokens) + 1


@torch.no_grad()
def test_without_attention_none_is_measured() -> None:
    batch = make_utterances([60, 40], [3, 2])
    parts = build_example("single-summary")(*batch).parts
    assert parts.keys() == {"cross_entropy", "correct"}
    assert "attention_distance" in build_example("attention-additive")(*batch).parts


def test_without_attention_none_is_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = build_example("single-summary")
    monkeypatch.setattr(report, "find_model", lambda folder: folder)
    monkeypatch.setattr(report, "load_system", lambda folder: SimpleNamespace(model=model))
    assert report.draw_attention(tmp_path, [], tmp_path) == []


DECODER_SETTINGS = ["model.encoder.type=lstm", "model.decoder.type=single_summary", "output_dir=run"]
DECODER_SETTINGS += ["data.train=train.jsonl", "data.dev=dev.jsonl"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.plot_every=5", "train.plot_every"),
        ("model.decoder={type: attention, attention: {location: 4}}", "kernel = 4"),
        ("model.decoder={type: attention, num_heads: 4}", "unknown key model.decoder.num_heads"),
        ("model.decoder.type=recurrent", "model.decoder.type = 'recurrent': expected one of 'transformer'"),
    ],
)
def test_config_says_what_does_not_go_together(setting: str, message: str) -> None:
    build_config(RunConfig, DECODER_SETTINGS)
    with pytest.raises(UserError, match=message):
        build_config(RunConfig, [*DECODER_SETTINGS, setting])


def test_a_decoder_without_a_type_is_a_transformer() -> None:
    """As in the configs of before there were others."""
    tree = {"encoder": {"type": "lstm"}, "decoder": {"num_layers": 2}}
    config = SpeechModelConfig.model_validate_json(json.dumps(tree))
    assert config.decoder == TransformerDecoderConfig(num_layers=2)
