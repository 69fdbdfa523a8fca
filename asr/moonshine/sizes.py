"""Sizes of Moonshine models, and config sections of their encoder and decoder for training."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import pydantic

from asr.config import Config, DecoderConfig, EncoderConfig
from asr.errors import UserError

if TYPE_CHECKING:
    from asr.system.run_config import RunConfig

FRAME_SAMPLES = 64  # samples per feature frame: the stride of the first convolution
FRAMES_PER_STEP = 6
HEADS, TURNED = 8, 32  # heads per layer, and dimensions per head that rotary positions rotate, in every size
EXPANSION = 4  # width of the feed-forward blocks, relative to the model


class MoonshineSizes(pydantic.BaseModel):
    """Sizes of a Moonshine model, read from its files. The limits guard against damaged files."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    dim: int = pydantic.Field(ge=HEADS * TURNED, le=8192, multiple_of=2 * HEADS)
    """Width of encoder and decoder."""
    layers: int = pydantic.Field(gt=0, le=200)
    """Number of layers in each of them."""
    vocab_size: int = pydantic.Field(gt=0, le=200_000)


class MoonshinePart(Config):
    """Moonshine's encoder or decoder in a model to train."""

    from_start: ClassVar[tuple[str, ...]] = ("sizes",)
    """Settings that are copied from `start_from` if they are null."""

    type: Literal["moonshine"] = "moonshine"
    sizes: MoonshineSizes | None = None
    """Sizes of the Moonshine model in `start_from`, filled in when training starts; leave this out."""

    def require_sizes(self) -> MoonshineSizes:
        if self.sizes is None:
            raise UserError("an encoder or decoder of type moonshine needs a Moonshine model to start_from")
        return self.sizes


class MoonshineEncoderConfig(MoonshinePart, EncoderConfig):
    """Moonshine's encoder in a model to train; needs features.type: samples."""


class MoonshineDecoderConfig(MoonshinePart, DecoderConfig):
    """Moonshine's decoder in a model to train."""

    @property
    def cross_attention(self) -> tuple[int, int]:
        """Number of layers and heads; the largest model's if the sizes are unknown."""
        return (8 if self.sizes is None else self.sizes.layers), HEADS


def check_run(run: RunConfig) -> None:
    """Raise a ValueError for settings of a run that do not fit Moonshine's parts."""
    encoder, decoder = (getattr(run.model, part, None) for part in ("encoder", "decoder"))
    uses_it = isinstance(encoder, MoonshinePart) or isinstance(decoder, MoonshinePart)
    if run.start_from is None and (uses_it or run.tokenizer.type == "moonshine"):
        raise ValueError(
            "an encoder, decoder or tokenizer of type moonshine takes sizes and weights from a Moonshine "
            "model: set start_from: moonshine-base, or the path of one"
        )
    if isinstance(encoder, MoonshinePart) and run.features.type != "samples":
        raise ValueError("model.encoder.type = moonshine reads samples; set features: {type: samples}")
