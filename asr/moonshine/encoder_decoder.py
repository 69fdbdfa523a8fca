"""Moonshine's encoder and decoder, built from our Transformer layers.

Its first convolutions read samples, so audio may have any length, and computation grows with it.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.models.decoders import DecoderLayer, TransformerDecoder, TransformerDecoderConfig, WeightsOf
from asr.models.encoders import Encoder, EncoderLayer, TransformerEncoderConfig
from asr.models.layers import Dropout, FeedForward, Rotary, length_mask
from asr.moonshine.sizes import (
    EXPANSION,
    FRAME_SAMPLES,
    FRAMES_PER_STEP,
    HEADS,
    TURNED,
    MoonshineDecoderConfig,
    MoonshineEncoderConfig,
)

# B batch, T frames or steps, C channels, K kernel, U tokens, D dimension, V vocabulary

FIRST_KERNEL = 2 * FRAME_SAMPLES - 1  # samples
KERNELS, STRIDES = (7, 3), (3, 2)  # of the other two convolutions, in steps of the previous one
MIN_FRAMES = 14  # fewest frames that give a step
TOKENS_PER_SECOND, MIN_TOKENS = 6.5, 6  # speech has up to 5 tokens a second; a word's start needs a few more
LAYER: dict[str, Any] = {"num_heads": HEADS, "dropout": 0.0, "positions": "rotary"}
STEP_SECONDS = FRAMES_PER_STEP * FRAME_SAMPLES / 16_000

# The heads that follow the words best, in tiny (6 layers) and base (8): they locate the boundary between two
# joined clips with a mean error of 0.15 and 0.13 s.
ALIGNING_HEADS: dict[int, WeightsOf] = {6: {4: (0,)}, 8: {3: (5,), 4: (1,)}}


class MoonshineEncoder(Encoder):
    """Three convolutions, the first over samples and normalized over the utterance, then Transformer layers.

    Frames past an utterance's length have no effect.
    """

    subsampling_factor = FRAMES_PER_STEP

    def __init__(self, config: MoonshineEncoderConfig, num_features: int) -> None:
        super().__init__()
        sizes = config.require_sizes()
        dim = self.output_dim = sizes.dim
        layer = TransformerEncoderConfig(dim=dim, feed_forward_dim=EXPANSION * dim, **LAYER)
        self.convolution_1 = nn.Linear(FIRST_KERNEL, dim, bias=False)
        self.group_norm = nn.GroupNorm(1, dim)
        self.convolution_2 = nn.Linear(KERNELS[0] * dim, 2 * dim)
        self.convolution_3 = nn.Linear(KERNELS[1] * 2 * dim, dim)
        self.dropout = Dropout(0.0)  # a CTC head uses its probability, too
        self.layers = nn.ModuleList(EncoderLayer(layer) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(dim)
        for one in cast(list[EncoderLayer], self.layers):
            one.attention.rotary = Rotary(dim // HEADS, TURNED)

    def forward(self, features_BTF: Tensor, feature_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        features_BTF = F.pad(features_BTF, (0, 0, 0, max(0, MIN_FRAMES - features_BTF.size(1))))
        windows_BTK = features_BTF.flatten(1).unfold(1, FIRST_KERNEL, FRAME_SAMPLES)
        lengths_B = (feature_lengths_B - 1).clamp(min=0)
        x_BTC = self._norm_all(torch.tanh(self.convolution_1(windows_BTK)), lengths_B)
        for convolution, kernel, stride in zip(
            (self.convolution_2, self.convolution_3), KERNELS, STRIDES, strict=True
        ):
            x_BTC = F.gelu(convolution(cut_windows(x_BTC, kernel, stride)))
            lengths_B = ((lengths_B - kernel) // stride + 1).clamp(min=0)
        mask_BT = length_mask(lengths_B.clamp(min=1), x_BTC.size(1))
        for layer in self.layers:
            x_BTC = layer(x_BTC, mask_BT)
        return self.norm(x_BTC), lengths_B

    def _norm_all(self, x_BTC: Tensor, lengths_B: Tensor) -> Tensor:
        """Apply group norm over all channels and steps except padding, which would change the result."""
        mask_BT1 = length_mask(lengths_B, x_BTC.size(1))[..., None]
        count_B11 = (lengths_B.clamp(min=1) * x_BTC.size(2))[:, None, None]
        mean_B11 = (x_BTC * mask_BT1).sum((1, 2), keepdim=True) / count_B11
        x_BTC = (x_BTC - mean_B11) * mask_BT1
        variance_B11 = x_BTC.square().sum((1, 2), keepdim=True) / count_B11
        norm = self.group_norm
        return x_BTC * (variance_B11 + norm.eps).rsqrt() * norm.weight + norm.bias


def cut_windows(x_BTC: Tensor, kernel: int, stride: int) -> Tensor:
    """Return the windows (B, windows, K x C) that a convolution over time multiplies."""
    channels = x_BTC.size(2)
    return x_BTC.flatten(1).unfold(1, kernel * channels, stride * channels)


class MoonshineDecoder(TransformerDecoder):
    """Our decoder with gated feed-forward, unscaled embeddings, and an output tied to the embeddings."""

    def __init__(self, config: MoonshineDecoderConfig, memory_dim: int, vocab_size: int) -> None:
        sizes = config.require_sizes()
        dim, wide = sizes.dim, EXPANSION * sizes.dim
        layers = TransformerDecoderConfig(dim=dim, num_layers=sizes.layers, feed_forward_dim=wide, **LAYER)
        super().__init__(layers, memory_dim, vocab_size)
        for layer in cast(list[DecoderLayer], self.layers):
            layer.self_attention.rotary = Rotary(dim // HEADS, TURNED)
            layer.feed_forward = FeedForward(dim, wide, 0.0, gate)
            layer.feed_forward.expand = nn.Linear(dim, 2 * wide)
        self.scale = 1.0
        self.output = nn.Linear(dim, vocab_size, bias=False)
        self.tie()

    def tie(self) -> None:
        self.output.weight = self.embedding.weight

    def limit_tokens(self, encoded_lengths_B: Tensor, most_in_a_step: int) -> Tensor:
        limits_B = (encoded_lengths_B * (STEP_SECONDS * TOKENS_PER_SECOND)).long()
        return limits_B.clamp(min=MIN_TOKENS)

    @property
    def last_heads(self) -> WeightsOf:
        """The heads from which word times are computed."""
        return ALIGNING_HEADS.get(self.num_layers, super().last_heads)


def gate(x_BUD: Tensor) -> Tensor:
    value_BUD, gate_BUD = x_BUD.chunk(2, dim=-1)
    return F.silu(gate_BUD) * value_BUD


ENCODERS = {MoonshineEncoderConfig: MoonshineEncoder}
DECODERS = {MoonshineDecoderConfig: MoonshineDecoder}
