"""Sections of a run's YAML for Whisper's encoder and decoder, and the checks of what goes with them."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import pydantic

from asr.config import Config
from asr.errors import UserError
from asr.models.decoder import AnyDecoder, DecoderConfig
from asr.models.encoder import Encoder, EncoderConfig

FRAMES_PER_STEP = 2
MAX_LAYERS = 200  # and heads
MAX_STEPS = 1500  # of 20 ms: 30 seconds


class WhisperConfig(Config):
    """Sizes of a Whisper model. The limits only keep a damaged file from asking for the moon."""

    type: Literal["whisper"] = "whisper"
    num_mels: Literal[80, 128]
    """Bands of the log-mel features: 128 in large-v3 and turbo, 80 in all others."""
    vocab_size: int = pydantic.Field(gt=0, le=200_000)
    """Tokens of text, of language and task, and of time."""
    dim: int = pydantic.Field(gt=0, le=8192)
    """Width of encoder and decoder."""
    encoder_layers: int = pydantic.Field(gt=0, le=MAX_LAYERS)
    encoder_heads: int = pydantic.Field(gt=0, le=MAX_LAYERS)
    decoder_layers: int = pydantic.Field(gt=0, le=MAX_LAYERS)
    decoder_heads: int = pydantic.Field(gt=0, le=MAX_LAYERS)
    max_steps: int = pydantic.Field(default=MAX_STEPS, gt=0, le=100_000)
    """Steps of 20 ms that the encoder has positions for: 30 seconds."""
    max_tokens: int = pydantic.Field(default=448, gt=0, le=100_000)
    """Tokens that the decoder has positions for, those of the prompt among them."""
    alignment_heads: tuple[tuple[int, int], ...] | None = None
    """Layer and head of the cross-attentions that follow the words; null where the checkpoint names none."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> WhisperConfig:
        for part, heads in (("encoder", self.encoder_heads), ("decoder", self.decoder_heads)):
            if self.dim % heads:
                raise ValueError(f"dim = {self.dim} is no multiple of {part}_heads = {heads}")
        if self.dim % 2:
            raise ValueError(f"dim = {self.dim}: positions are pairs of sine and cosine, so it must be even")
        for layer, head in self.alignment_heads or ():
            if not (0 <= layer < self.decoder_layers and 0 <= head < self.decoder_heads):
                raise ValueError(
                    f"alignment_heads: no head {head} of layer {layer} among "
                    f"{self.decoder_layers} layers of {self.decoder_heads} heads"
                )
        return self

    @property
    def is_multilingual(self) -> bool:
        """English-only models have one token of text less."""
        return self.vocab_size >= 51_865


class WhisperEncoderConfig(EncoderConfig):
    """Whisper's encoder in a model that is trained. Frames are those of features.convention: whisper."""

    from_start: ClassVar[tuple[str, ...]] = ("sizes",)

    type: Literal["whisper"] = "whisper"
    sizes: WhisperConfig | None = None
    """Of the Whisper model that this is a part of; null: those of `start_from`."""
    dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Of the output of each block and inside the feed-forward blocks. Whisper itself was trained without."""


class WhisperDecoderConfig(DecoderConfig):
    """Whisper's decoder in a model that is trained."""

    from_start: ClassVar[tuple[str, ...]] = ("sizes", "language", "prompt")

    type: Literal["whisper"] = "whisper"
    sizes: WhisperConfig | None = None
    """Of the Whisper model that this is a part of; null: those of `start_from`."""
    language: str | None = None
    """Of the texts, for a model that knows many: a code such as en, or its English name."""
    prompt: tuple[pydantic.NonNegativeInt, ...] | None = None
    """Tokens that follow the start and stand before each text; null: those of `start_from` that say to
    transcribe this language without times, and none where tokenizer.type is not whisper."""
    dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Of the embeddings, the output of each block and inside the feed-forward blocks."""

    @property
    def cross_attention(self) -> tuple[int, int]:
        """Layers and heads; the most there may be as long as the sizes are not known."""
        if self.sizes is None:
            return MAX_LAYERS, MAX_LAYERS
        return self.sizes.decoder_layers, self.sizes.decoder_heads


def build_encoder(config: WhisperEncoderConfig, num_features: int) -> Encoder:
    from asr.whisper.encoder_decoder import WhisperEncoder

    sizes = _require_sizes(config)
    if num_features != sizes.num_mels:
        raise UserError(
            f"{num_features} features, but this encoder of Whisper reads {sizes.num_mels} mel bands; set "
            f"features.num_mels: {sizes.num_mels}"
        )
    return WhisperEncoder(sizes, config.dropout)


def build_decoder(config: WhisperDecoderConfig, memory_dim: int, vocab_size: int) -> AnyDecoder:
    from asr.whisper.encoder_decoder import WhisperDecoder

    sizes = _require_sizes(config)
    if memory_dim != sizes.dim:
        raise UserError(
            f"model.encoder makes steps of {memory_dim} dimensions, but this decoder of Whisper reads "
            f"{sizes.dim}; take the encoder of the same model (type: whisper)"
        )
    return WhisperDecoder(sizes, vocab_size, config.prompt or (), config.dropout)


def _require_sizes(config: WhisperEncoderConfig | WhisperDecoderConfig) -> WhisperConfig:
    if config.sizes is None:
        raise UserError(
            "an encoder or decoder of type whisper has no sizes yet: they come with the weights of "
            "start_from, when training starts"
        )
    return config.sizes


ENCODERS = {WhisperEncoderConfig: build_encoder}
DECODERS = {WhisperDecoderConfig: build_decoder}


# --- a run that has them ------------------------------------------------------------------------


def check_run(run: Any) -> None:
    """Refuse, as a ValueError, the settings of a `RunConfig` that do not go with Whisper's parts."""
    encoder, decoder = (getattr(run.model, name, None) for name in ("encoder", "decoder"))
    parts = [p for p in (encoder, decoder) if isinstance(p, WhisperEncoderConfig | WhisperDecoderConfig)]
    has_tokens = run.tokenizer.type == "whisper"
    if run.start_from is None and any(part.sizes is None for part in parts):
        raise ValueError(
            "an encoder or decoder of type whisper takes sizes and weights from a Whisper model: set "
            "start_from: openai/whisper-tiny, or the path of one"
        )
    if run.start_from is None and has_tokens:
        raise ValueError("tokenizer.type = whisper is that of a Whisper model: set start_from to one")
    if isinstance(decoder, WhisperDecoderConfig):
        decoder.refuse_idle(has_tokens, "tokenizer.type = whisper", "language")
    if isinstance(encoder, WhisperEncoderConfig):
        _check_audio(run, encoder)
    exposure = getattr(run.model, "exposure", None)
    if has_tokens and exposure is not None and exposure.corrupts:
        raise ValueError(
            "model.exposure: replace, drop and repeat compare all tokens with each other, and those of "
            "Whisper are too many; scheduled_sampling works"
        )


def _check_audio(run: Any, encoder: WhisperEncoderConfig) -> None:
    if run.features.convention != "whisper":
        raise ValueError(
            "model.encoder.type = whisper was trained on Whisper's features; set features.convention: whisper"
        )
    steps = MAX_STEPS if encoder.sizes is None else encoder.sizes.max_steps
    longest = steps * FRAMES_PER_STEP * run.features.shift_ms / 1000
    slowest = min(run.augment.speed, default=1.0)
    if run.batches.max_utterance_seconds / slowest > longest:
        raise ValueError(
            f"batches.max_utterance_seconds = {run.batches.max_utterance_seconds}, at the slowest "
            f"augment.speed, {slowest}, exceeds the {longest:g} seconds that Whisper hears at once; set it "
            f"to {int(longest * slowest)}"
        )
