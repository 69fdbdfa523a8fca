"""Choose what to export: the head of the model, and the type of sherpa-onnx that computes its features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from asr.errors import UserError
from asr.models.decoders import TransformerDecoder
from asr.models.encoders import ConformerEncoderConfig, LSTMEncoderConfig, TransformerEncoderConfig
from asr.system.system import System

ENCODERS = (TransformerEncoderConfig, ConformerEncoderConfig, LSTMEncoderConfig)
METHODS = {"transducer": "transducer", "attention": "attention", "ctc": "ctc_greedy"}  # kind: decoding method


class SherpaType(NamedTuple):
    """A type of models of sherpa-onnx: its name in the metadata and in the constructor, and its features."""

    name: str
    constructor: str
    convention: str = ""
    scale: float = 1.0
    options: Mapping[str, str] = MappingProxyType({})
    """Arguments of the constructor whose options of the command line have other names."""


SHERPA_TYPES = {  # by kind, and whether it is live
    ("ctc", False): (
        SherpaType("fire-red-asr-2-ctc", "fire_red_asr_ctc", "kaldi", 32768.0, {"model": "fire-red-asr-ctc"}),
        SherpaType("zipformer2_ctc", "zipformer_ctc", "icefall", 1.0, {"model": "zipformer-ctc-model"}),
    ),
    ("ctc", True): (
        SherpaType("zipformer2", "zipformer2_ctc", "icefall", 1.0, {"model": "zipformer2-ctc-model"}),
    ),
    ("transducer", False): (SherpaType("conformer", "transducer", "icefall"),),
    ("transducer", True): (SherpaType("zipformer2", "transducer", "icefall"),),
}
WHISPER_OPTIONS = {part: f"whisper-{part}" for part in ("encoder", "decoder", "language")}
MOONSHINE_OPTIONS = {"encoder": "moonshine-encoder", "decoder": "moonshine-merged-decoder"}
FAMILY_TYPES = {  # by section
    "whisper": SherpaType("whisper", "whisper", options=WHISPER_OPTIONS),
    "moonshine": SherpaType("moonshine", "moonshine_v2", options=MOONSHINE_OPTIONS),
}
SHERPA_FEATURES = {
    "type": "log_mel",
    "sample_rate": 16_000,
    "window_ms": 25.0,
    "shift_ms": 10.0,
    "num_mels": 80,
}


@dataclass(frozen=True)
class Plan:
    """The head to export, whether chunk by chunk, and the type of sherpa-onnx, if any."""

    kind: str
    is_live: bool
    sherpa: SherpaType | None
    repeats: int = 1
    """Number of times that the encoder gives each step, as sherpa-onnx takes at most one token at a step."""

    @property
    def is_family(self) -> bool:
        """A whole model of a family, which sherpa-onnx alone decodes."""
        return self.kind in FAMILY_TYPES

    @property
    def scale(self) -> float:
        return 32768.0 if self.sherpa is None else self.sherpa.scale


def make_plan(source: str, system: System, decoding: str, for_sherpa: bool, is_live: bool) -> Plan:
    """Choose what to export; refuse what is impossible, and say what is possible."""
    encoder: Any = system.model.config.encoder
    if not isinstance(encoder, ENCODERS) or getattr(encoder, "window", None) is not None:
        raise UserError(
            f"{source}: model.encoder.type = {encoder.type}; expected transformer, conformer or lstm without "
            "window, which can be exported"
        )
    if is_live and getattr(encoder, "chunk", None) is None:
        raise UserError(f"{source}: --stream needs a model trained with model.encoder.chunk; leave it out")
    kinds = find_kinds(system, for_sherpa, is_live)
    methods = [METHODS[kind] for kind in kinds]
    if decoding not in ("auto", *methods) or not methods:
        raise UserError(
            f"{source}: --decoding {decoding}: with the other options, expected one of "
            f"{', '.join(methods) or 'none'}" + "; --format onnx may offer more" * for_sherpa
        )
    kind = kinds[0 if decoding == "auto" else methods.index(decoding)]
    return Plan(kind, is_live, find_sherpa_type(source, system, kind, is_live) if for_sherpa else None)


def find_kinds(system: System, for_sherpa: bool, is_live: bool) -> list[str]:
    """List the heads that the graphs can have, the best first."""
    decoder: Any = system.model.decoder
    config: Any = system.model.config.decoder
    if decoder is not None and decoder.kind == "transducer":
        has_form = not for_sherpa or (config.predictor == "stateless" and not decoder.durations)
        own = ["transducer"] * has_form
    else:
        is_plain = type(decoder) is TransformerDecoder and config.window is None
        is_guided = system.model.window_width is not None  # by CTC, which a graph of the decoder does not see
        own = ["attention"] * (is_plain and not is_guided and not for_sherpa and not is_live)
    return own + ["ctc"] * (system.model.ctc_head is not None)


def find_sherpa_type(source: str, system: System, kind: str, is_live: bool) -> SherpaType:
    """Find the type that computes the features of the model."""
    types, features = SHERPA_TYPES[kind, is_live], system.config.features
    fitting = [one for one in types if one.convention == features.convention]
    wrong = [] if fitting else [f"features.convention={types[-1].convention}"]
    wrong += [
        f"features.{key}={value}" for key, value in SHERPA_FEATURES.items() if getattr(features, key) != value
    ]
    wrong += ["model.encoder.subsampling.factor=4"] * (system.model.subsampling_factor != 4)
    if wrong:
        raise UserError(
            f"{source}: sherpa-onnx computes other features than this model was trained with; train it with "
            f"{' '.join(wrong)}, or use --format onnx"
        )
    if system.tokenizer.type == "phones":
        raise UserError(f"{source}: sherpa-onnx would write phones in place of words; use --format onnx")
    return fitting[0]
