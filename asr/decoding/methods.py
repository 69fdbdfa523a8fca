"""Table of the decoding methods: what each needs and uses. It loads no torch, for the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

AUTOREGRESSIVE, NON_AUTOREGRESSIVE = "autoregressive", "non-autoregressive"
_LENGTHS = ("length_bonus", "length_normalization", "max_tokens")


@dataclass(frozen=True)
class DecodingMethod:
    """A function from encoded audio to n-best lists, and the heads of a model that it needs."""

    function: str
    """Module of this package and the name of the function in it, as "beam.decode_jointly"."""
    needs_ctc: bool
    decoder: str = ""
    """Kind of decoder that it needs; "": none."""
    settings: tuple[str, ...] = ()
    """Those of DecodingConfig that not every method uses and this one does."""
    fuses_language_model: bool = True


# The cheapest first. A new method is a file with its function, and a line here.
METHODS = {
    "ctc_greedy": DecodingMethod("search.decode_by_ctc", needs_ctc=True, fuses_language_model=False),
    "parallel": DecodingMethod(
        "non_autoregressive_search.decode",
        needs_ctc=False,
        decoder=NON_AUTOREGRESSIVE,
        settings=("mask_threshold", "iterations", *_LENGTHS),
        fuses_language_model=False,
    ),
    "ctc_beam": DecodingMethod("ctc_beam.decode", needs_ctc=True, settings=_LENGTHS),
    "attention": DecodingMethod(
        "beam.decode_by_attention",
        needs_ctc=False,
        decoder=AUTOREGRESSIVE,
        settings=("end_margin", "guide_width", *_LENGTHS),
    ),
    "rescoring": DecodingMethod(
        "rescoring.decode", needs_ctc=True, decoder=AUTOREGRESSIVE, settings=("ctc_weight", *_LENGTHS)
    ),
    "joint": DecodingMethod(
        "beam.decode_jointly",
        needs_ctc=True,
        decoder=AUTOREGRESSIVE,
        settings=("ctc_weight", "guide_width", *_LENGTHS),
    ),
}
PREFERRED = ("joint", "attention", "parallel", "ctc_beam")  # by auto, the first that the model can do
METHOD_NAMES = ("auto", *METHODS)

if TYPE_CHECKING:
    Method = str
else:
    Method = Literal[METHOD_NAMES]  # so that a wrong name in a config is refused with those there are
