"""Defaults and orders that pages and help texts repeat agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from decoding_examples import build_talker

from asr.audio.segmentation import SegmentationConfig
from asr.cli import DECODING_METHODS, build_parser
from asr.config import document_setting
from asr.decoding.decode import METHODS as CORE, find_more_kinds, resolve_method
from asr.decoding.hypothesis import DecodingConfig
from asr.transcription.arguments import LANGUAGE_MODEL_WEIGHT
from asr.whisper.manners import MAX_PADDED

DOCS = Path(__file__).resolve().parent.parent / "docs"
DECODING, SEGMENTATION = DecodingConfig(), SegmentationConfig()
ON_PAGES = {
    "decoding.md": (
        f"`decoding.ctc_weight` ({DECODING.ctc_weight:g})",
        f"hypotheses kept ({DECODING.beam})",
        f"default is {LANGUAGE_MODEL_WEIGHT:g}",
        f"`decoding.hotword_boost` ({DECODING.hotword_boost:g})",
    )
}


def read_words(path: Path) -> str:
    return " ".join(path.read_text(encoding="utf-8").split())


@pytest.mark.parametrize("page", ON_PAGES)
def test_pages_have_the_defaults_of_the_code(page: str) -> None:
    missing = [text for text in ON_PAGES[page] if text not in read_words(DOCS / page)]
    assert not missing


def test_help_has_the_defaults_of_the_code() -> None:
    for command in ("transcribe", "evaluate"):
        (actions,) = (a for a in build_parser([command])._actions if a.dest == "command")
        helps = {a.dest: " ".join((a.help or "").split()) for a in actions.choices[command]._actions}  # type: ignore[union-attr,index]
        assert f"default: {DECODING.beam}," in helps["beam"]
        assert f"weight: {LANGUAGE_MODEL_WEIGHT:g}," in helps["language_model"]


def test_settings_name_the_values_that_a_model_or_an_option_changes() -> None:
    assert f"{LANGUAGE_MODEL_WEIGHT:g} if a language" in document_setting(
        DecodingConfig, "language_model_weight"
    )
    assert f"default is {MAX_PADDED:g}." in document_setting(SegmentationConfig, "max_seconds")


def test_the_order_of_auto_is_documented() -> None:
    """Each model takes the first method that it can, in the order that the page and the reference print."""
    names = ("transformer-hybrid", "transformer-attention", "mask-ctc", "transformer-ctc")
    order = [resolve_method(build_talker(name), "auto") for name in names]
    assert document_setting(DecodingConfig, "method").endswith(f"{', '.join(order)}.")
    assert ", ".join(f"`{name}`" for name in order) in read_words(DOCS / "decoding.md")
    methods = set(re.split(", | or ", DECODING_METHODS))
    assert methods == {"auto", *CORE, *find_more_kinds("METHODS")}
