"""Settings that would do nothing beside others are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from asr.config import build_config
from asr.decoding import DecodingConfig
from asr.errors import UserError
from asr.system import RunConfig

DATA = ["output_dir=run", "data.train=a.jsonl", "data.dev=b.jsonl"]
HYBRID = ["model.encoder={type: transformer}", "model.decoder={}"]
CTC = ["model.encoder={type: lstm}", "model.ctc_weight=1.0", "model.decoder=null"]
LABEL = [
    *("model={type: recording_label, label: speaker, encoder: {type: lstm}}", "train.select_by=loss"),
    "tokenizer.type=labels",
]


@pytest.mark.parametrize(
    ("base", "override", "message"),
    [
        (CTC, "model.label_smoothing=0.2", "label_smoothing = 0.2 .* a decoder"),
        (HYBRID, "features.num_ceps=20", "num_ceps = 20 .* mfcc"),
    ],
)
def test_what_does_nothing_is_refused_by_name(base: list[str], override: str, message: str) -> None:
    build_config(RunConfig, [*DATA, *base])
    with pytest.raises(UserError, match=message):
        build_config(RunConfig, [*DATA, *base, override])


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("attention", {"ctc_weight": 0.5}),
        ("rescoring", {"guide_width": 3.0}),
        ("ctc_greedy", {"length_bonus": 1.0}),
    ],
)
def test_decoding_refuses_what_the_method_ignores(method: Any, setting: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"{next(iter(setting))} = "):
        DecodingConfig(method=method, **setting)
    DecodingConfig(**setting)
