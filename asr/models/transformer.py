"""Transformer encoder, and the autoregressive Transformer decoder whose cross-attention can be guided."""

from __future__ import annotations

from typing import Literal, cast

import pydantic
from torch import Tensor, nn

from asr.config import Config
from asr.models.attention import CrossAttention, KeyValueCache, Memory, SelfAttention, Window
from asr.models.decoder import Decoder, DecoderConfig, DecoderState, Weights, WeightsOf
from asr.models.encoder import LayeredEncoder, LayeredEncoderConfig
from asr.models.layers import Activation, Dropout, FeedForward, length_mask
from asr.models.positions import PositionConfig, Positions

# B batch, T steps of the encoder, U steps of the decoder, F features, D dimension, V vocabulary, H heads


class AttentionConfig(Config):
    """Layers of self-attention and feed-forward."""

    dim: int = pydantic.Field(default=256, gt=0)
    """Width of the layers; that of encoder and decoder may differ."""
    num_layers: int = pydantic.Field(default=6, gt=0)
    num_heads: int = pydantic.Field(default=4, gt=0)
    feed_forward_dim: int = pydantic.Field(default=1024, gt=0)
    """Width inside the feed-forward blocks."""
    activation: Activation = "gelu"
    dropout: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Of embeddings, of the output of each block and inside the feed-forward blocks."""
    positions: PositionConfig = PositionConfig()
    """How the model knows where a step or a token stands."""

    @pydantic.model_validator(mode="after")
    def _check_heads(self) -> AttentionConfig:
        dim, num_heads, positions = self.dim, self.num_heads, self.positions.type
        if dim % num_heads:
            raise ValueError(f"dim = {dim} is no multiple of num_heads = {num_heads}")
        if positions == "rotary" and dim // num_heads % 2:
            raise ValueError(
                f"rotary positions turn pairs: dim / num_heads = {dim // num_heads} must be even"
            )
        if positions in ("sinusoid", "fourier") and dim % 2:
            raise ValueError(f"{positions} positions are pairs of sine and cosine: dim = {dim} must be even")
        return self

    @property
    def attention_window(self) -> Window | None:
        return None

    def build_attention(self) -> SelfAttention:
        is_rotary = self.positions.type == "rotary"
        return SelfAttention(self.dim, self.num_heads, rotary=is_rotary, window=self.attention_window)


class AttentionEncoderConfig(AttentionConfig, LayeredEncoderConfig):
    """Subsampling, then layers of self-attention and feed-forward, and what else is between."""

    num_layers: int = pydantic.Field(default=12, gt=0)
    window: tuple[pydantic.NonNegativeInt, pydantic.NonNegativeInt] | None = None
    """Steps to the left and right that a step attends to; all of them if null."""

    @property
    def attention_window(self) -> Window | None:
        return None if self.window is None else Window(*self.window)


class TransformerEncoderConfig(AttentionEncoderConfig):
    """Subsampling, then layers of self-attention and feed-forward."""

    type: Literal["transformer"] = "transformer"
    norm: Literal["pre", "post"] = "pre"
    """Layer norm before each block (trains without fuss) or after it (as in the first Transformer)."""


class DecoderLayersConfig(AttentionConfig, DecoderConfig):
    """Layers of self-attention, cross-attention and feed-forward."""

    norm: Literal["pre", "post"] = "pre"
    """Layer norm before each block or after it."""

    @property
    def cross_attention(self) -> tuple[int, int]:
        return self.num_layers, self.num_heads


class TransformerDecoderConfig(DecoderLayersConfig):
    """Layers of causal self-attention, cross-attention and feed-forward over the tokens so far."""

    type: Literal["transformer"] = "transformer"
    window: pydantic.PositiveInt | None = None
    """Past tokens that a token attends to; all of them if null."""

    @property
    def attention_window(self) -> Window | None:
        return None if self.window is None else Window(self.window, 0)


class Block(nn.Module):
    """The residual path around a part of a layer: norm first or last, dropout before the sum."""

    def __init__(self, dim: int, norm: Literal["pre", "post"], dropout: float) -> None:
        super().__init__()
        self.is_pre_norm = norm == "pre"
        self.norm = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def before(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.is_pre_norm else x

    def after(self, x: Tensor, update: Tensor) -> Tensor:
        x = x + self.dropout(update)
        return x if self.is_pre_norm else self.norm(x)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward; of a language model too, where it is causal."""

    def __init__(self, config: AttentionConfig, norm: Literal["pre", "post"]) -> None:
        super().__init__()
        self.attention = config.build_attention()
        self.feed_forward = FeedForward(
            config.dim, config.feed_forward_dim, config.activation, config.dropout
        )
        self.attention_block = Block(config.dim, norm, config.dropout)
        self.feed_forward_block = Block(config.dim, norm, config.dropout)

    def forward(
        self,
        x_BTD: Tensor,
        mask_BT: Tensor | None = None,
        *,
        causal: bool = False,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        block = self.attention_block
        update = self.attention(block.before(x_BTD), mask_BT, causal=causal, cache=cache)
        x_BTD = block.after(x_BTD, update)
        block = self.feed_forward_block
        return block.after(x_BTD, self.feed_forward(block.before(x_BTD)))


class TransformerEncoder(LayeredEncoder):
    """Layers of self-attention and feed-forward."""

    def __init__(self, config: TransformerEncoderConfig, num_features: int) -> None:
        layers = (EncoderLayer(config, config.norm) for _ in range(config.num_layers))
        norm = nn.LayerNorm(config.dim) if config.norm == "pre" else nn.Identity()
        super().__init__(config, num_features, layers, norm, config.positions)


class DecoderLayer(nn.Module):
    """Self-attention over the tokens, cross-attention to the encoded steps, feed-forward."""

    def __init__(self, config: DecoderLayersConfig, memory_dim: int) -> None:
        super().__init__()
        self.self_attention = config.build_attention()
        self.cross_attention = CrossAttention(config.dim, config.num_heads, memory_dim)
        self.feed_forward = FeedForward(
            config.dim, config.feed_forward_dim, config.activation, config.dropout
        )
        self.self_attention_block = Block(config.dim, config.norm, config.dropout)
        self.cross_attention_block = Block(config.dim, config.norm, config.dropout)
        self.feed_forward_block = Block(config.dim, config.norm, config.dropout)

    def forward(
        self,
        x_BUD: Tensor,
        memory: Memory,
        cache: KeyValueCache | None,
        weights_of: tuple[int, ...],
        all_of_BU: Tensor | None = None,
        bias_BUT: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Causal, unless `all_of_BU` says which tokens there are: then each of them sees all the others."""
        block = self.self_attention_block
        is_causal = all_of_BU is None
        update = self.self_attention(block.before(x_BUD), all_of_BU, causal=is_causal, cache=cache)
        x_BUD = block.after(x_BUD, update)
        block = self.cross_attention_block
        attended, weights_BHUT = self.cross_attention(block.before(x_BUD), memory, weights_of, bias_BUT)
        x_BUD = block.after(x_BUD, attended)
        block = self.feed_forward_block
        return block.after(x_BUD, self.feed_forward(block.before(x_BUD))), weights_BHUT


class TransformerDecoderState(DecoderState):
    """The memory of each layer, of utterances, and the keys and values so far, of beams."""

    def __init__(self, memories: list[Memory]) -> None:
        self.memories = memories
        self.caches = [KeyValueCache() for _ in memories]

    @property
    def num_tokens(self) -> int:
        """Tokens whose keys and values are kept."""
        return len(self.caches[0]) if self.caches else 0

    def forget_tokens(self) -> None:
        self.caches = []

    def select_utterances(self, utterances_B: Tensor) -> None:
        self.memories = [memory.select(utterances_B) for memory in self.memories]

    def select_beams(self, rows_R: Tensor) -> None:
        for cache in self.caches:
            cache.select(rows_R)


class TransformerDecoder(Decoder):
    """Scores of the next token, by layers of causal self-attention and cross-attention."""

    def __init__(self, config: TransformerDecoderConfig, memory_dim: int, vocab_size: int) -> None:
        super().__init__()
        self.num_layers, self.num_heads = config.num_layers, config.num_heads
        self.embedding = nn.Embedding(vocab_size, config.dim)
        nn.init.normal_(self.embedding.weight, std=config.dim**-0.5)
        self.scale = config.dim**0.5  # embeddings then have the size of the position codes
        self.positions = Positions(config.positions, config.dim)
        if config.positions.type == "learned":
            self.max_tokens = config.positions.span - 1  # the start has a position too
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(DecoderLayer(config, memory_dim) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.dim) if config.norm == "pre" else nn.Identity()
        self.output = nn.Linear(config.dim, vocab_size)

    def start(self, encoded_BTD: Tensor, encoded_lengths_B: Tensor) -> TransformerDecoderState:
        mask_BT = length_mask(encoded_lengths_B.clamp(min=1), encoded_BTD.size(1))
        layers = cast(list[DecoderLayer], self.layers)
        return TransformerDecoderState(
            [layer.cross_attention.remember(encoded_BTD, mask_BT) for layer in layers]
        )

    def step(
        self,
        tokens_BU: Tensor,
        state: DecoderState,
        weights_of: WeightsOf | None = None,
        bias_BUT: Tensor | None = None,
    ) -> tuple[Tensor, Weights]:
        """Scores after the new tokens alone; those before are in the state."""
        assert isinstance(state, TransformerDecoderState)
        x_BUD, weights = self.attend(tokens_BU, state, weights_of or {}, bias_BUT=bias_BUT)
        return self.output(x_BUD), weights

    def attend(
        self,
        tokens_BU: Tensor,
        state: TransformerDecoderState,
        weights_of: WeightsOf,
        skip: int = 0,
        bias_BUT: Tensor | None = None,
    ) -> tuple[Tensor, Weights]:
        """Decoder states before the output layer, (B, U, D), of all new tokens but the first `skip`."""
        x_BUD = self.dropout(self.positions(self.embedding(tokens_BU) * self.scale, state.num_tokens))
        all_weights: Weights = {}
        for index, layer in enumerate(self.layers):
            cache = state.caches[index] if state.caches else None
            heads = weights_of.get(index, ())
            x_BUD, weights_BHUT = layer(x_BUD, state.memories[index], cache, heads, bias_BUT=bias_BUT)
            if weights_BHUT is not None:
                all_weights[index] = weights_BHUT[:, :, skip:]
        return self.norm(x_BUD[:, skip:]), all_weights
