"""Sizes and tasks of Whisper models."""

from __future__ import annotations

from typing import Literal

import pydantic

Task = Literal["transcribe", "translate"]
FRAMES_PER_STEP = 2
SECONDS_PER_STEP = 0.02  # seconds per encoder step, and between timestamp tokens
MAX_LAYERS = 200  # limit on layers and on heads
MAX_STEPS = 1500  # steps of 20 ms in 30 seconds
FIRST_MULTILINGUAL = 51_865  # vocabulary size; English-only models have one text token fewer


class WhisperSizes(pydantic.BaseModel):
    """Sizes of a Whisper model, read from its checkpoint. The limits guard against damaged files."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    num_mels: Literal[80, 128]
    """Number of mel bands: 128 in large-v3 and turbo, 80 in all others."""
    vocab_size: int = pydantic.Field(gt=0, le=200_000)
    """Number of tokens for text, languages, tasks and times."""
    dim: int = pydantic.Field(gt=0, le=8192)
    """Width of encoder and decoder."""
    encoder_layers: int = pydantic.Field(gt=0, le=MAX_LAYERS)
    encoder_heads: int = pydantic.Field(gt=0, le=MAX_LAYERS)
    decoder_layers: int = pydantic.Field(gt=0, le=MAX_LAYERS)
    decoder_heads: int = pydantic.Field(gt=0, le=MAX_LAYERS)
    max_steps: int = pydantic.Field(default=MAX_STEPS, gt=0, le=100_000)
    """Number of encoder positions, in steps of 20 ms."""
    max_tokens: int = pydantic.Field(default=448, gt=0, le=100_000)
    """Number of decoder positions, including the prompt."""
    alignment_heads: tuple[tuple[int, int], ...] | None = None
    """Layer and head of each cross-attention that follows the words; null if the checkpoint names none."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> WhisperSizes:
        for part in ("encoder_heads", "decoder_heads"):
            if self.dim % getattr(self, part):
                raise ValueError(f"dim = {self.dim} is not a multiple of {part} = {getattr(self, part)}")
        for layer, head in self.alignment_heads or ():
            if not (0 <= layer < self.decoder_layers and 0 <= head < self.decoder_heads):
                raise ValueError(f"alignment_heads: the decoder has no head {head} of layer {layer}")
        return self

    @property
    def is_multilingual(self) -> bool:
        return self.vocab_size >= FIRST_MULTILINGUAL
