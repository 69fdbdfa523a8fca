"""Decoders of every type: what a config may ask for, and honest answers of those that do not attend."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from decoding_examples import build_decoder_of, build_talker, random_encoded, search
from model_examples import build_example, make_utterances

from asr.config import build_config
from asr.decoding import DecodedUtterance, DecodingConfig, DecodingSetup, EncodedAudio
from asr.errors import UserError
from asr.models import SpeechModelConfig, TransformerDecoderConfig
from asr.recipe import figures
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
    monkeypatch.setattr(figures, "find_model", lambda folder: folder)
    monkeypatch.setattr(figures, "load_system", lambda folder: SimpleNamespace(model=model))
    assert figures.draw_attention(tmp_path, [], tmp_path) == []


@pytest.mark.parametrize("name", ["attention-location", "intra-attention-decoder", "single-summary-hybrid"])
@torch.inference_mode()
def test_checks_and_falling_back_do_not_depend_on_the_batch(name: str) -> None:
    model = build_talker(name, 0, -3.0)
    encoded_BTD, lengths_B = random_encoded(model, [20, 9, 14])
    config = DecodingConfig(beam=4)

    decoder = build_decoder_of(model)

    def read(encoded_BTD: torch.Tensor, lengths_B: torch.Tensor) -> list[DecodedUtterance]:
        return decoder.decode(EncodedAudio(model, encoded_BTD, lengths_B), DecodingSetup(config))

    found = read(encoded_BTD, lengths_B)
    alone = [
        read(encoded_BTD[row : row + 1, :length], lengths_B[row : row + 1])[0]
        for row, length in enumerate(lengths_B.tolist())
    ]
    assert found == alone
    assert any(one.warnings for one in found)  # noise was decoded, and is rejected


DECODER_SETTINGS = ["model.encoder.type=lstm", "model.decoder.type=single_summary", "output_dir=run"]
DECODER_SETTINGS += ["data.train=train.jsonl", "data.dev=dev.jsonl"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["model.decoder.type=attention", "model.decoder.attention.location=4"],
            "kernel = 4 has no middle; take an odd number",
        ),
        (
            ["model.decoder.type=attention", "model.decoder.num_heads=4"],
            "unknown key model.decoder.num_heads",
        ),
        (["model.decoder.type=recurrent"], "model.decoder.type = 'recurrent': expected one of 'transformer'"),
    ],
)
def test_config_says_what_does_not_go_together(settings: list[str], message: str) -> None:
    build_config(RunConfig, DECODER_SETTINGS)
    with pytest.raises(UserError) as caught:
        build_config(RunConfig, [*DECODER_SETTINGS, *settings])
    assert message in str(caught.value)


def test_a_decoder_without_a_type_is_a_transformer() -> None:
    """As in the configs of before there were others."""
    tree = {"encoder": {"type": "lstm"}, "decoder": {"num_layers": 2}}
    config = SpeechModelConfig.model_validate_json(json.dumps(tree))
    assert config.decoder == TransformerDecoderConfig(num_layers=2)
