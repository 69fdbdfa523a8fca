"""Settings that would do nothing beside others are refused by name."""

from __future__ import annotations

import pytest

from asr.config import build_config
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
