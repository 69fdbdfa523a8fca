"""What can be exported, and what is said about the rest. None of it needs the extra `export`."""

from __future__ import annotations

from pathlib import Path

import pytest
from system_examples import save_talker

from asr.errors import UserError
from asr.export.plan import Plan, make_plan
from asr.system.system import load_system

CHUNK = ("model.encoder.positions=rotary", "model.encoder.chunk={}", "features.cmvn=running")
TRANSDUCER = "model.decoder={type: transducer, dim: 8}"
ICEFALL = ("features.num_mels=80", "features.convention=icefall")


def plan(
    folder: Path, *overrides: str, decoding: str = "auto", sherpa: bool = False, live: bool = False
) -> Plan:
    model = save_talker(folder / "model", *overrides, decoder="model.ctc_weight=0.3" in overrides)
    return make_plan("model", load_system(model), decoding, sherpa, live)


def test_the_best_head_is_exported_unless_another_is_named(tmp_path: Path) -> None:
    both = "model.ctc_weight=0.3"
    assert plan(tmp_path, both).kind == "attention"
    assert plan(tmp_path, both, decoding="ctc_greedy").kind == "ctc"
    assert plan(tmp_path, both, "features.num_mels=80", sherpa=True).kind == "ctc"
    assert plan(tmp_path, both, *CHUNK, live=True).kind == "ctc"
    assert plan(tmp_path, "model.ctc_weight=0.4", TRANSDUCER).kind == "transducer"


@pytest.mark.parametrize(
    ("overrides", "live", "name"),
    [
        (("features.num_mels=80",), False, "fire-red-asr-2-ctc"),
        (ICEFALL, False, "zipformer2_ctc"),
        ((*CHUNK, *ICEFALL), True, "zipformer2"),
        (("model.ctc_weight=0.4", TRANSDUCER, *ICEFALL), False, "conformer"),
    ],
)
def test_features_choose_the_type_of_sherpa_onnx(
    overrides: tuple[str, ...], live: bool, name: str, tmp_path: Path
) -> None:
    found = plan(tmp_path, *overrides, sherpa=True, live=live)
    assert found.sherpa is not None and found.sherpa.name == name


@pytest.mark.parametrize(
    ("overrides", "options", "message"),
    [
        ((), {"sherpa": True}, "train it with features.num_mels=80, or use --format onnx"),
        (("model.ctc_weight=0.4", TRANSDUCER, "features.num_mels=80"), {"sherpa": True}, "train it with features.convention=icefall, or"),
        (("features.num_mels=80", "model.encoder.subsampling.factor=2"), {"sherpa": True}, "model.encoder.subsampling.factor=4"),
        ((), {"live": True}, "--stream needs a model trained with model.encoder.chunk"),
        ((), {"decoding": "attention"}, "--decoding attention: with the other options, expected one of ctc_greedy"),
        (("model.ctc_weight=0.3",), {"decoding": "attention", "sherpa": True}, "; --format onnx may offer more"),
        (("model.encoder.window=[8, 0]",), {}, "expected transformer, conformer or lstm without window"),
    ],
)  # fmt: skip
def test_the_rest_is_refused_with_what_is_possible(
    overrides: tuple[str, ...], options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        plan(tmp_path, *overrides, **options)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_phones_are_no_words_for_sherpa_onnx() -> None:
    with pytest.raises(UserError, match="phones in place of words; use --format onnx"):
        make_plan("an4", load_system("recipes/an4/pretrained"), "ctc_greedy", True, False)
