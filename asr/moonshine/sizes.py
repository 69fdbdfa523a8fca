"""Sizes of Moonshine models, and the settings of their parts in models that are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import pydantic

from asr.config import Config, DecoderConfig, EncoderConfig
from asr.errors import UserError

if TYPE_CHECKING:
    from asr.system.run_config import RunConfig

FRAME_SAMPLES = 64  # of a frame of features: the stride of the first convolution
FRAMES_PER_STEP = 6
HEADS, TURNED = 8, 32  # of each layer, and the dimensions of a head that positions turn, in every size
EXPANSION = 4  # of the feed-forward blocks


class MoonshineSizes(pydantic.BaseModel):
    """Sizes of a Moonshine model, a fact of its files. The limits guard against damaged ones."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    dim: int = pydantic.Field(ge=HEADS * TURNED, le=8192, multiple_of=2 * HEADS)
    """Width of encoder and decoder."""
    layers: int = pydantic.Field(gt=0, le=200)
    """Number of layers of each of them."""
    vocab_size: int = pydantic.Field(gt=0, le=200_000)


class MoonshinePart(Config):
    """Encoder or decoder of Moonshine, in a model that is trained."""

    from_start: ClassVar[tuple[str, ...]] = ("sizes",)
    """Settings that are those of `start_from` where they are null."""

    type: Literal["moonshine"] = "moonshine"
    sizes: MoonshineSizes | None = None
    """Sizes of the Moonshine model of `start_from`, noted when training starts: leave this out."""

    def require_sizes(self) -> MoonshineSizes:
        if self.sizes is None:
            raise UserError("an encoder or decoder of type moonshine needs a Moonshine model to start_from")
        return self.sizes


class MoonshineEncoderConfig(MoonshinePart, EncoderConfig):
    """Moonshine's encoder in a model that is trained. Features are those of features.type: samples."""


class MoonshineDecoderConfig(MoonshinePart, DecoderConfig):
    """Moonshine's decoder in a model that is trained."""

    @property
    def cross_attention(self) -> tuple[int, int]:
        """Layers and heads; those of the largest model as long as the sizes are not known."""
        return (8 if self.sizes is None else self.sizes.layers), HEADS


def check_run(run: RunConfig) -> None:
    """Refuse, as a ValueError, the settings of a run that do not go with Moonshine's parts."""
    encoder, decoder = (getattr(run.model, part, None) for part in ("encoder", "decoder"))
    uses_it = isinstance(encoder, MoonshinePart) or isinstance(decoder, MoonshinePart)
    if run.start_from is None and (uses_it or run.tokenizer.type == "moonshine"):
        raise ValueError(
            "an encoder, decoder or tokenizer of type moonshine takes sizes and weights from a Moonshine "
            "model: set start_from: moonshine-base, or the path of one"
        )
    if isinstance(encoder, MoonshinePart) and run.features.type != "samples":
        raise ValueError("model.encoder.type = moonshine reads samples; set features: {type: samples}")
