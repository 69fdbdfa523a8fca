"""Names, settings and training sections of Whisper, which every run and native model needs.

The family that `asr/families.py` finds is the package `asr.whisper`: it has these names, and imports those
for loading, converting and fine-tuning on first use.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import pydantic

from asr.config import Config, DecoderConfig, EncoderConfig
from asr.decoding.hypothesis import DecodingConfig
from asr.errors import UserError
from asr.whisper.sizes import FRAMES_PER_STEP, MAX_LAYERS, MAX_STEPS, Task, WhisperSizes

if TYPE_CHECKING:
    from asr.models.decoders import AnyDecoder
    from asr.models.encoders import Encoder
    from asr.system.run_config import RunConfig

log = logging.getLogger(__name__)

name = "Whisper"
section = "whisper"  # config section for transcription and evaluation, and type of the tokenizer
prefers_int8 = True  # with precision auto, on a CPU with instructions for it

# --- names ------------------------------------------------------------------------------------------

# Names as in openai-whisper and faster-whisper, with their names on the hub.
_SIZES = "tiny tiny.en base base.en small small.en medium medium.en large-v2 large-v3 large-v3-turbo"
_DISTILLED = "small.en medium.en large-v2 large-v3 large-v3.5"
MAX_SETTINGS_BYTES = 1_000_000  # read from a config.json to recognize Whisper's
NAMES = {size: f"openai/whisper-{size}" for size in _SIZES.split()}
NAMES |= {"large-v1": "openai/whisper-large", "large": NAMES["large-v3"], "turbo": NAMES["large-v3-turbo"]}
NAMES |= {f"distil-{size}": f"distil-whisper/distil-{size}" for size in _DISTILLED.split()}
model_names = tuple(NAMES)
PUBLISHERS = ("openai/whisper-", "distil-whisper/")  # other models on the hub are recognized by their files


def find_default(asked: Mapping[str, object]) -> str:
    """Return whisper-base, which supports all options."""
    log.info("model: whisper-base (multilingual)")
    return "whisper-base"


def find_hub_name(name: str) -> str | None:
    """Return a model's name on the hub; None if it cannot be a Whisper model's name."""
    if name in NAMES:
        return NAMES[name]
    if re.fullmatch(r"whisper-[\w.-]+", name):
        return f"openai/{name}"
    return name if re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", name) else None


class WhisperDecodingConfig(Config):
    """Settings for decoding with a Whisper model."""

    language: str | None = None
    """Spoken language: a code such as de, or its name. Null: the language that the model was fine-tuned on,
    else detected for each recording."""
    task: Task = "transcribe"
    """translate: translate into English. Word timestamps are then of little use."""
    prompt: str = ""
    """Text that the model treats as the preceding transcript; it guides names, spelling and style."""

    @pydantic.field_validator("language")
    @classmethod
    def _check_language(cls, language: str | None) -> str | None:
        from asr.whisper.language_names import find_language

        return None if language is None else find_language(language)


config_class = WhisperDecodingConfig
# Greedy; texts that the checks reject are sampled again at these temperatures.
decoding = DecodingConfig(beam=1, temperatures=(0.2, 0.4))

# --- parts of models to train -----------------------------------------------------------------------


class WhisperEncoderConfig(EncoderConfig):
    """Whisper's encoder in a model to train; needs features.convention: whisper."""

    from_start: ClassVar[tuple[str, ...]] = ("sizes",)
    """Settings that are copied from `start_from` if they are null."""

    type: Literal["whisper"] = "whisper"
    sizes: WhisperSizes | None = None
    """Sizes of the Whisper model in `start_from`, filled in when training starts; leave this out."""


class WhisperDecoderConfig(DecoderConfig):
    """Whisper's decoder in a model to train."""

    from_start: ClassVar[tuple[str, ...]] = ("sizes", "language")

    type: Literal["whisper"] = "whisper"
    sizes: WhisperSizes | None = None
    """Sizes of the Whisper model in `start_from`, filled in when training starts; leave this out."""
    language: str | None = None
    """Language of the texts, for a multilingual model: a code such as en, or its name."""

    @property
    def cross_attention(self) -> tuple[int, int]:
        """Number of layers and heads; the maximum if the sizes are unknown."""
        if self.sizes is None:
            return MAX_LAYERS, MAX_LAYERS
        return self.sizes.decoder_layers, self.sizes.decoder_heads


def _build_encoder(config: WhisperEncoderConfig, num_features: int) -> Encoder:
    from asr.whisper.encoder_decoder import WhisperEncoder

    return WhisperEncoder(_require_sizes(config))


def _build_decoder(config: WhisperDecoderConfig, memory_dim: int, vocab_size: int) -> AnyDecoder:
    from asr.whisper.encoder_decoder import WhisperDecoder

    sizes = _require_sizes(config)
    has_own_tokens = vocab_size == sizes.vocab_size
    prompt = find_prompt(vocab_size, config.language) if has_own_tokens else ()
    return WhisperDecoder(sizes, memory_dim, vocab_size, prompt)


def find_prompt(vocab_size: int, language: str | None) -> tuple[int, ...]:
    """Return the tokens between the start token and a text."""
    from asr.whisper.whisper_tokenizer import SpecialTokens

    try:
        return tuple(SpecialTokens(vocab_size).prompt(language)[1:])
    except UserError as error:
        raise UserError(f"model.decoder.language: {error}") from None


def _require_sizes(config: WhisperEncoderConfig | WhisperDecoderConfig) -> WhisperSizes:
    if config.sizes is None:
        raise UserError("an encoder or decoder of type whisper needs a Whisper model to start_from")
    return config.sizes


ENCODERS = {WhisperEncoderConfig: _build_encoder}
DECODERS = {WhisperDecoderConfig: _build_decoder}


def check_run(run: RunConfig) -> None:
    """Raise a ValueError for settings of a run that do not fit Whisper's parts."""
    encoder, decoder = (getattr(run.model, name, None) for name in ("encoder", "decoder"))
    has_tokens = run.tokenizer.type == "whisper"
    has_parts = isinstance(encoder, WhisperEncoderConfig) or isinstance(decoder, WhisperDecoderConfig)
    if run.start_from is None and (has_parts or has_tokens):
        raise ValueError(
            "an encoder, decoder or tokenizer of type whisper takes sizes and weights from a Whisper model: "
            "set start_from: openai/whisper-tiny, or the path of one"
        )
    if isinstance(decoder, WhisperDecoderConfig):
        decoder.refuse_idle(has_tokens, "tokenizer.type = whisper", "language")
    if not isinstance(encoder, WhisperEncoderConfig):
        return
    if run.features.convention != "whisper":
        raise ValueError(
            "model.encoder.type = whisper was trained on Whisper's features; set features.convention: whisper"
        )
    steps = MAX_STEPS if encoder.sizes is None else encoder.sizes.max_steps
    longest = steps * FRAMES_PER_STEP * run.features.shift_ms / 1000 * min(run.augment.speed, default=1.0)
    if run.batches.max_utterance_seconds > longest:
        raise ValueError(
            f"batches.max_utterance_seconds = {run.batches.max_utterance_seconds}, but at the slowest "
            f"augment.speed Whisper's encoder accepts {longest:g} seconds; set it to {int(longest)}"
        )


# --- models -----------------------------------------------------------------------------------------


def matches(source: str | Path, as_run: bool = False) -> bool:
    """Recognize a Whisper model by its name, its files, or a file's first bytes.

    Fine-tuned runs count too, except with `as_run`.
    """
    path = Path(source)
    try:
        if path.is_dir():
            if (path / "config.json").is_file():
                settings = (path / "config.json").open("rb").read(MAX_SETTINGS_BYTES)
                return b'"model_type"' not in settings or b'"whisper"' in settings
            return not as_run and find_run(path) is not None
        if path.exists():
            with open(path, "rb") as file:
                return file.read(4) in (b"PK\x03\x04", b"lmgg")  # torch.save, whisper.cpp
    except OSError:
        return False
    return (find_hub_name(str(source)) or "").startswith(PUBLISHERS)


def find_run(path: Path) -> Path | None:
    """Return the model folder of a run that fine-tuned a whole Whisper with its tokenizer; else None."""
    from asr.system.run_config import find_run_of

    return find_run_of(path, section, "tokenizer")
