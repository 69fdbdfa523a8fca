"""Encoders (Transformer, Conformer, LSTM), which turn features into encoded steps, and the steps' times."""

from __future__ import annotations

import abc
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.config import Config, Depth, EncoderConfig, Size, choose_by_type
from asr.errors import UserError
from asr.features.filters import FeaturesConfig, FrameTimes
from asr.models.layers import (
    Dropout,
    FeedForward,
    Kernel,
    KeyValueCache,
    Net,
    PositionKind,
    Positions,
    SelfAttention,
    Window,
    find_more_kinds,
    length_mask,
)

# B batch, T frames or steps, F features, C channels, D model dimension, K kernel


Steps = Annotated[int, pydantic.Field(ge=0, le=100_000)]


class SubsamplingConfig(Config):
    """Convolutions over time and frequency, from frames of 10 ms to fewer steps."""

    factor: Literal[1, 2, 4, 8] = 4
    """Number of frames per step: with 4, a step is 40 ms."""
    channels: Size = 32
    """Number of channels of each convolution."""


def subsampled_lengths(lengths: Tensor, factor: int) -> Tensor:
    """Return the number of steps for a number of frames; a partial step counts as a whole one."""
    return (lengths + factor - 1) // factor


class Subsampling(nn.Module):
    """Maps frames (B, T, F) to steps (B, ceil(T / factor), D); padding never affects a real step."""

    def __init__(self, config: SubsamplingConfig, num_features: int, dim: int) -> None:
        super().__init__()
        self.factor = config.factor
        self.convolutions = nn.ModuleList()
        width, channels = num_features, 1
        for _ in range(config.factor.bit_length() - 1):
            self.convolutions.append(nn.Conv2d(channels, config.channels, 3, stride=2, padding=1))
            width, channels = (width + 1) // 2, config.channels
        self.project = nn.Linear(width * channels, dim)
        # Without a norm, the outputs of new convolutions are about 0.1, and position codes would dominate.
        self.norm = nn.LayerNorm(dim)

    def forward(self, features_BTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        is_padding_BT = ~length_mask(lengths_B, features_BTF.size(1))
        x_BTF = features_BTF.masked_fill(is_padding_BT[..., None], 0.0)
        # Channels are last in memory; otherwise PyTorch on a CPU would rearrange every input and output.
        x_BTFC = x_BTF[..., None]
        batch = len(x_BTFC)
        if batch == 1 and not self.training:
            # For a batch of one, oneDNN uses other code with other rounding. Together with a copy of itself,
            # an utterance gives bit for bit the same result as in any batch.
            x_BTFC = x_BTFC.repeat(2, 1, 1, 1)
        x_BCTF = x_BTFC.permute(0, 3, 1, 2)
        for convolution in self.convolutions:
            lengths_B = subsampled_lengths(lengths_B, 2)
            x_BCTF = convolution(x_BCTF)
            # A convolution writes into the padding, where the next one would read it. In the backward pass
            # `relu_` blocks gradients at zeros.
            x_BCTF.detach().mul_(length_mask(lengths_B, x_BCTF.size(2))[:, None, :, None])
            x_BCTF = x_BCTF.relu_()
        if len(x_BCTF) > batch:  # a slice of everything would lose the memory format in the backward pass
            x_BCTF = x_BCTF[:batch]
        return self.norm(self.project(x_BCTF.permute(0, 2, 3, 1).flatten(2))), lengths_B


class LayeredEncoderConfig(EncoderConfig):
    """Subsampling, then layers."""

    dim: Size = 256
    """Width of the model; in a recurrent one, of each direction, and the output is twice as wide."""
    num_layers: Depth = 12
    dropout: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Dropout after each layer or block, and inside the feed-forward blocks."""
    subsampling: SubsamplingConfig = SubsamplingConfig()
    """Convolutions from frames to steps, before the first layer."""


class Encoder(nn.Module, abc.ABC):
    """Maps features (B, T, F) to encoded steps (B, ceil(T / subsampling_factor), output_dim)."""

    output_dim: int
    dropout: Dropout
    """Dropout of the encoder; a CTC head applies it to the output too."""
    subsampling: Subsampling

    @property
    def subsampling_factor(self) -> int:
        """Number of frames from one step to the next."""
        return self.subsampling.factor

    @abc.abstractmethod
    def forward(self, features_BTF: Tensor, feature_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the encoded steps and their lengths."""


def make_frame_times(features: FeaturesConfig, encoder: Encoder | None = None) -> FrameTimes:
    """Return the times of the encoder's steps, or of the features' frames without an encoder."""
    return features.time_steps(1 if encoder is None else encoder.subsampling_factor)


class AttentionConfig(Config):
    """Layers of self-attention and feed-forward."""

    dim: Size = 256
    """Width of the layers, which may differ between encoder and decoder."""
    num_layers: Depth = 6
    num_heads: Size = 4
    feed_forward_dim: Size = 1024
    """Width inside the feed-forward blocks."""
    dropout: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Dropout of embeddings, after each block, and inside the feed-forward blocks."""

    positions: PositionKind = "sinusoid"
    """Positional encoding of steps or tokens. sinusoid: as in "Attention Is All You Need"; rotary: queries
    and keys are rotated, so that attention depends on distances only."""

    @pydantic.model_validator(mode="after")
    def _check_sizes(self) -> AttentionConfig:
        if self.dim % self.num_heads:
            raise ValueError(f"dim = {self.dim} is not a multiple of num_heads = {self.num_heads}")
        paired = self.dim // self.num_heads if self.positions == "rotary" else self.dim
        if paired % 2 and self.positions != "none":
            raise ValueError(f"{self.positions} positions: dim = {self.dim} (of each head) must be even")
        return self

    @property
    def attention_window(self) -> Window | None:
        return None

    def build_attention(self) -> SelfAttention:
        is_rotary = self.positions == "rotary"
        return SelfAttention(self.dim, self.num_heads, rotary=is_rotary, window=self.attention_window)

    def build_feed_forward(self, activation: Callable[[Tensor], Tensor] = F.gelu) -> FeedForward:
        return FeedForward(self.dim, self.feed_forward_dim, self.dropout, activation)


class ChunkConfig(Config):
    """Training for live transcription: encoding chunk by chunk, each with some chunks before it."""

    steps: tuple[Size, Size] = (1, 25)
    """Fewest and most steps of a chunk; each training batch draws one size, and how many chunks before its
    own a step attends to. With subsampling.factor = 4, 1 to 25 steps are 40 ms to 1 s."""
    full: float = pydantic.Field(default=0.5, ge=0, le=1)
    """Share of the training batches that see whole utterances, as a file is transcribed."""
    live_steps: Size = 8
    """Steps of a chunk in live transcription, which delays the text by as much: 8 of 40 ms are 320 ms."""
    live_left: Steps = 64
    """Steps before its chunk that a step attends to in live transcription, rounded up to whole chunks."""
    convolution: Literal["chunk", "causal"] = "chunk"
    """Steps that the convolution of a Conformer sees. chunk: those after its own up to the end of the chunk,
    so that at full context it is the usual one; causal: none after its own, also at full context."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> ChunkConfig:
        if self.steps[0] > self.steps[1]:
            raise ValueError(f"steps = {list(self.steps)}: expected [fewest, most]")
        return self


class AttentionEncoderConfig(AttentionConfig, LayeredEncoderConfig):
    """Subsampling, then layers that contain self-attention and feed-forward."""

    num_layers: Depth = 12
    window: tuple[Steps, Steps] | None = None
    """Number of steps to the left and right that a step attends to; all steps if null."""
    chunk: ChunkConfig | None = None
    """Also train the encoder for live transcription; null: for whole recordings only."""

    @pydantic.model_validator(mode="after")
    def _check_chunk(self) -> AttentionEncoderConfig:
        if self.chunk is not None and self.window is not None:
            raise ValueError("chunk and window both limit what a step attends to; remove one")
        if self.chunk is not None and self.positions == "sinusoid":
            raise ValueError("chunk needs positions that have no end: set positions: rotary")
        return self

    @property
    def attention_window(self) -> Window | None:
        return self.window


class LayeredEncoder(Encoder):
    """Encoder whose layers take the padding mask: features (B, T, F) to steps (B, T / factor, D)."""

    layer: Callable[[Any], nn.Module]
    norm_class: type[nn.LayerNorm | nn.Identity] = nn.LayerNorm

    def __init__(self, config: AttentionEncoderConfig, num_features: int) -> None:
        super().__init__()
        self.output_dim = config.dim
        self.subsampling = Subsampling(config.subsampling, num_features, config.dim)
        self.positions = Positions(config.dim, config.positions)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(self.layer(config) for _ in range(config.num_layers))
        self.norm = self.norm_class(config.dim)

    def forward(self, features_BTF: Tensor, feature_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        x_BTD, lengths_B = self.subsampling(features_BTF, feature_lengths_B)
        return self.run_layers(x_BTD, length_mask(lengths_B.clamp(min=1), x_BTD.size(1))), lengths_B

    def run_layers(self, x_BTD: Tensor, mask: Any) -> Tensor:
        """`mask` is what the layers of this encoder take: of padding (B, T), or more."""
        x_BTD = self.dropout(self.positions(x_BTD))
        for layer in self.layers:
            x_BTD = layer(x_BTD, mask)
        return self.norm(x_BTD)


class TransformerEncoderConfig(AttentionEncoderConfig):
    """Subsampling, then layers of self-attention and feed-forward."""

    type: Literal["transformer"] = "transformer"

    @pydantic.model_validator(mode="after")
    def _check_convolution(self) -> TransformerEncoderConfig:
        if self.chunk is not None:
            self.chunk.refuse_idle(False, "a Conformer", "convolution")
        return self


class Block(nn.Module):
    """Norm and dropout around one part of a residual layer: x + dropout(part(norm(x)))."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.dim)
        self.dropout = Dropout(config.dropout)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward; also used, causally, in language models."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.attention = config.build_attention()
        self.feed_forward = config.build_feed_forward()
        self.attention_block = Block(config)
        self.feed_forward_block = Block(config)

    def forward(
        self,
        x_BTD: Tensor,
        mask_BT: Tensor | None = None,
        *,
        causal: bool = False,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        block = self.attention_block
        update = self.attention(block.norm(x_BTD), mask_BT, causal=causal, cache=cache)
        x_BTD = x_BTD + block.dropout(update)
        block = self.feed_forward_block
        return x_BTD + block.dropout(self.feed_forward(block.norm(x_BTD)))


class TransformerEncoder(LayeredEncoder):
    """Layers of self-attention and feed-forward."""

    layer = EncoderLayer


class ConformerEncoderConfig(AttentionEncoderConfig):
    """Subsampling, then layers of feed-forward, self-attention, convolution and feed-forward."""

    type: Literal["conformer"] = "conformer"
    kernel: Kernel = 15
    """Number of steps that the convolution covers; odd."""
    positions: PositionKind = "rotary"
    """Positional encoding; rotary is relative, as in the original Conformer."""


class DepthwiseConvolution(nn.Module):
    """One filter per channel, along time: (B, T, D) to (B, T, D), zero-padded at the ends.

    On a CPU this is a batched product with one banded matrix per channel. PyTorch's grouped convolution is
    several times slower there. Its channels-last 2-D convolution is fast, but compiles a kernel for each new
    length, which never ends for some small shapes (torch 2.11, bfloat16, 8 channels, 50 steps, kernel 15).
    """

    block = 32  # steps computed per product; with a kernel of 31, the band is then half full

    def __init__(self, dim: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.weight_DK = nn.Parameter(nn.init.uniform_(torch.empty(dim, kernel), -1, 1).mul_(kernel**-0.5))
        self.bias_D = nn.Parameter(torch.zeros(dim))

    def forward(self, x_BTD: Tensor, weight_DK: Tensor | None = None) -> Tensor:
        """`weight_DK`: other weights than its own."""
        weight_DK = (self.weight_DK if weight_DK is None else weight_DK).to(x_BTD.dtype)
        if x_BTD.device.type != "cpu":
            x_BDT = F.conv1d(x_BTD.mT, weight_DK[:, None], padding=self.kernel // 2, groups=len(weight_DK))
            return x_BDT.mT + self.bias_D.to(x_BTD.dtype)
        batch, length, dim = x_BTD.shape
        block = max(self.block, self.kernel)  # so that an output depends only on its block and the next
        num_blocks = -(-length // block)
        span, before = block + self.kernel - 1, self.kernel // 2
        # The kernel and `block` zeros, repeated and cut into rows one element shorter, shift by one per row.
        band = F.pad(weight_DK, (0, block)).repeat(1, block)[:, : block * span].view(dim, block, span)
        padded = F.pad(x_BTD.permute(2, 0, 1), (before, (num_blocks + 1) * block - before - length))
        blocks = padded.view(dim, batch, num_blocks + 1, block)
        # Not `unfold`, whose backward pass takes several times as long.
        spans = torch.cat([blocks[:, :, :-1], blocks[:, :, 1:, : self.kernel - 1]], dim=-1).flatten(1, 2)
        convolved = torch.bmm(spans, band.transpose(1, 2)).view(dim, batch, num_blocks * block)
        return convolved[:, :, :length].permute(1, 2, 0) + self.bias_D.to(x_BTD.dtype)


class ConvolutionModule(nn.Module):
    """Gate, depthwise convolution, norm, swish.

    The norm is over channels, not over the batch, so that a step does not depend on the rest of the batch.
    """

    def __init__(self, dim: int, kernel: int) -> None:
        super().__init__()
        self.expand = nn.Linear(dim, 2 * dim)
        self.depthwise = DepthwiseConvolution(dim, kernel)
        self.norm = nn.LayerNorm(dim)
        self.contract = nn.Linear(dim, dim)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        x_BTD = F.glu(self.expand(x_BTD), dim=-1)
        # Otherwise the convolution would carry padding into the last steps.
        x_BTD = x_BTD.masked_fill_(~mask_BT[..., None], 0.0)
        return self.contract(F.silu(self.norm(self.depthwise(x_BTD))))


class ConformerLayer(nn.Module):
    """Half feed-forward, self-attention, convolution, half feed-forward, norm (Gulati et al. 2020)."""

    def __init__(self, config: ConformerEncoderConfig) -> None:
        super().__init__()
        dim = config.dim
        self.first_norm = nn.LayerNorm(dim)
        self.first = config.build_feed_forward(F.silu)
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = config.build_attention()
        self.convolution_norm = nn.LayerNorm(dim)
        self.convolution = ConvolutionModule(dim, config.kernel)
        self.second_norm = nn.LayerNorm(dim)
        self.second = config.build_feed_forward(F.silu)
        self.norm = nn.LayerNorm(dim)
        self.dropout = Dropout(config.dropout)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        x_BTD = torch.add(x_BTD, self.dropout(self.first(self.first_norm(x_BTD))), alpha=0.5)
        x_BTD = x_BTD + self.dropout(self.attention(self.attention_norm(x_BTD), mask_BT))
        x_BTD = x_BTD + self.dropout(self.convolution(self.convolution_norm(x_BTD), mask_BT))
        x_BTD = torch.add(x_BTD, self.dropout(self.second(self.second_norm(x_BTD))), alpha=0.5)
        return self.norm(x_BTD)


class ConformerEncoder(LayeredEncoder):
    """Conformer: Transformer layers with a convolution between attention and feed-forward."""

    layer = ConformerLayer
    norm_class = nn.Identity


class LSTMEncoderConfig(LayeredEncoderConfig):
    """Layers of bidirectional LSTMs."""

    type: Literal["lstm"] = "lstm"
    num_layers: Depth = 4


class RecurrentEncoder(Encoder):
    """Encoder with bidirectional layers: features (B, T, F) to steps (B, T / factor, 2 * dim)."""

    def __init__(
        self, config: LayeredEncoderConfig, num_features: int, make: Callable[[int], nn.Module]
    ) -> None:
        """`make` builds one direction of a layer, given its input dimension."""
        super().__init__()
        self.output_dim = 2 * config.dim
        self.subsampling = Subsampling(config.subsampling, num_features, config.dim)
        self.dropout = Dropout(config.dropout)
        widths = [config.dim] + [self.output_dim] * (config.num_layers - 1)
        self.layers = nn.ModuleList(Bidirectional(make(width), make(width)) for width in widths)
        # Without norms, each layer's output is several times weaker than its input.
        self.norms = nn.ModuleList(nn.LayerNorm(self.output_dim) for _ in widths)

    def forward(self, features_BTF: Tensor, feature_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        x_BTD, lengths_B = self.subsampling(features_BTF, feature_lengths_B)
        x_BTD = self.dropout(x_BTD)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x_BTD = self.dropout(norm(layer(x_BTD, lengths_B)))
        return x_BTD, lengths_B


class LSTMEncoder(RecurrentEncoder):
    """Layers of bidirectional LSTMs."""

    def __init__(self, config: LSTMEncoderConfig, num_features: int) -> None:
        super().__init__(config, num_features, partial(nn.LSTM, hidden_size=config.dim, batch_first=True))


class Bidirectional(nn.Module):
    """One layer in both directions, each a module from x_BTD to (y_BTH, anything); padding has no effect.

    PyTorch's own, with packed sequences, takes four to ten times as long on a CPU.
    """

    def __init__(self, forwards: nn.Module, backwards: nn.Module) -> None:
        super().__init__()
        self.forwards = forwards
        self.backwards = backwards

    def forward(self, x_BTD: Tensor, lengths_B: Tensor) -> Tensor:
        # Each sequence is reversed within its own length, so that its padding stays at the end.
        steps_T = torch.arange(x_BTD.size(1), device=x_BTD.device)
        turned_BT1 = (lengths_B[:, None] - 1 - steps_T).remainder(x_BTD.size(1))[..., None]
        forwards_BTH, _ = self.forwards(x_BTD)
        backwards_BTH, _ = self.backwards(x_BTD.gather(1, turned_BT1.expand_as(x_BTD)))
        return torch.cat([forwards_BTH, backwards_BTH.gather(1, turned_BT1.expand_as(backwards_BTH))], dim=-1)


# Maps a config section to the class that it builds.
ENCODERS: dict[type[EncoderConfig], Callable[[Any, int], Encoder]] = {
    TransformerEncoderConfig: TransformerEncoder,
    ConformerEncoderConfig: ConformerEncoder,
    LSTMEncoderConfig: LSTMEncoder,
}

if TYPE_CHECKING:
    AnyEncoderConfig = EncoderConfig
else:
    AnyEncoderConfig = choose_by_type(ENCODERS, None, lambda: find_more_kinds("ENCODERS"))


def build_encoder(config: EncoderConfig, num_features: int) -> Encoder:
    build = ENCODERS.get(type(config)) or find_more_kinds("ENCODERS", type(config))[type(config)]
    if getattr(config, "chunk", None) is not None:
        if find_spec("asr.streaming") is None:
            raise UserError("model.encoder.chunk needs asr.streaming, which is not installed; remove it")
        build = import_module("asr.streaming.chunked_encoders").ENCODERS[type(config)]
    return build(config, num_features)


class EncoderModel(Net):
    """A model of audio, all of whose outputs are computed from the encoded features."""

    def __init__(self, config: EncoderConfig, num_features: int) -> None:
        super().__init__()
        self.encoder: Encoder = build_encoder(config, num_features)

    @property
    def subsampling_factor(self) -> int:
        return self.encoder.subsampling_factor
