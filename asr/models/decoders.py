"""Decoders: their loss, steps of autoregressive ones, and the Transformer decoder."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import pydantic
import torch
from torch import Tensor, nn

from asr.config import Config, choose_by_type
from asr.models.encoders import Block, PlacedAttentionConfig
from asr.models.layers import (
    CrossAttention,
    Dropout,
    KeyValueCache,
    Memory,
    Positions,
    Window,
    find_more_kinds,
    length_mask,
)
from asr.models.losses import Targets, cross_entropy

# B utterances, R rows (B, or the beams of all utterances, those of one side by side), T encoded steps,
# U tokens, N tokens and the end, D dimension of the encoder, V vocabulary, H heads

WeightsOf = dict[int, tuple[int, ...]]  # layer to those of its heads whose weights are wanted
Weights = dict[int, Tensor]  # of each of these layers, (R, H, U, T)
Encoded = tuple[Tensor, Tensor]  # encoded_BTD and encoded_lengths_B


@dataclass(frozen=True)
class TeacherForcing:
    """Settings of a decoder's loss."""

    label_smoothing: float
    attention_bias_BNT: Tensor | None = None
    """Added to the scores of cross-attention."""


@dataclass(frozen=True)
class DecoderLoss:
    """Loss of the reference tokens, summed over a batch."""

    loss: Tensor
    parts: dict[str, Tensor]
    """Parts of the loss, by the names in `SpeechModel.reported`."""
    weights: Weights
    num_rows_B: Tensor
    """Rows of the attention of each utterance, one for each token and, maybe, one for the end."""


class DecoderConfig(Config):
    """Section model.decoder; each kind of decoder has its `type`."""

    from_start: ClassVar[tuple[str, ...]] = ()
    """Settings that are those of `start_from` where they are null."""

    reads_tokens: ClassVar[bool] = True
    """It sees the tokens before the next one, and can be given a bias of its attention to each."""
    needs_ctc: ClassVar[bool] = False

    type: str

    @property
    def cross_attention(self) -> tuple[int, int]:
        """Layers that attend to the encoded steps, and heads of each; (0, 0): none does."""
        return 0, 0


class AnyDecoder(nn.Module, abc.ABC):
    """Decoder: encoded steps to tokens.

    Built from its config, the dimension of the encoded steps and the size of the vocabulary.
    """

    num_layers: int
    """Number of layers that attend to the encoded steps."""
    num_heads: int
    """Number of heads of each of these layers; 0 if there is no attention."""

    @abc.abstractmethod
    def compute_loss(
        self, targets: Targets, encoded: Encoded, weights_of: WeightsOf, forcing: TeacherForcing
    ) -> DecoderLoss:
        """The loss of a batch, and the attention that was asked for."""

    @abc.abstractmethod
    def score_reference(
        self, targets: Targets, encoded: Encoded, weights_of: WeightsOf
    ) -> tuple[Tensor, Weights]:
        """Teacher-forced scores of each token's place, (B, U or N, V), and the attention asked for."""

    @property
    def last_heads(self) -> WeightsOf:
        """All heads of the last layer; nothing without attention."""
        return {self.num_layers - 1: tuple(range(self.num_heads))} if self.num_heads else {}


def score_tokens(
    scores_BNV: Tensor, targets_BN: Tensor, weights: Weights, num_rows_B: Tensor, forcing: TeacherForcing
) -> DecoderLoss:
    """Cross-entropy of all targets that are not IGNORED."""
    loss = cross_entropy(scores_BNV, targets_BN, forcing.label_smoothing)
    num_correct = (scores_BNV.argmax(-1) == targets_BN).sum()
    return DecoderLoss(loss, {"cross_entropy": loss, "correct": num_correct}, weights, num_rows_B)


class DecoderState(abc.ABC):
    """State that decoding carries from token to token.

    What was made of the encoded steps has a row for each utterance, the tokens so far one for each beam.
    """

    def forget_tokens(self) -> None:  # noqa: B027
        """Keep nothing of the tokens that come: they are whole texts."""

    @abc.abstractmethod
    def select_utterances(self, utterances_B: Tensor) -> None:
        """Keep the memories of these utterances; the beams stay as they are."""

    @abc.abstractmethod
    def select_beams(self, rows_R: Tensor) -> None:
        """Keep these beams; the memories stay as they are."""


class Decoder(AnyDecoder):
    """Scores of the next token from the tokens so far and the encoded steps."""

    embedding: nn.Embedding
    output: nn.Linear
    max_tokens = 2**31 - 1
    """Longest text, where its positions come to an end."""

    @abc.abstractmethod
    def start(self, encoded_BTD: Tensor, encoded_lengths_B: Tensor) -> DecoderState:
        """The state before the first token, with one beam for each utterance."""

    def forward(
        self,
        tokens_RU: Tensor,
        encoded_BTD: Tensor,
        encoded_lengths_B: Tensor,
        weights_of: WeightsOf | None = None,
        bias_RUT: Tensor | None = None,
    ) -> tuple[Tensor, Weights]:
        """Teacher forcing: (R, U, V) scores, and the attention of the heads named for each layer.

        `bias_RUT` is added to the scores of cross-attention before their softmax.
        """
        state = self.start(encoded_BTD, encoded_lengths_B)
        state.forget_tokens()
        if len(tokens_RU) > len(encoded_BTD):
            rows_B = torch.arange(len(encoded_BTD), device=encoded_BTD.device)
            state.select_beams(rows_B.repeat_interleave(len(tokens_RU) // len(encoded_BTD)))
        return self.step(tokens_RU, state, weights_of, bias_RUT)

    @abc.abstractmethod
    def step(
        self,
        tokens_RU: Tensor,
        state: DecoderState,
        weights_of: WeightsOf | None = None,
        bias_RUT: Tensor | None = None,
    ) -> tuple[Tensor, Weights]:
        """Scores after the new tokens alone; those before are in the state."""

    def score_reference(
        self, targets: Targets, encoded: Encoded, weights_of: WeightsOf
    ) -> tuple[Tensor, Weights]:
        inputs_BN, _ = targets.for_decoder()
        scores_BNV, weights = self(inputs_BN, *encoded, weights_of)
        return scores_BNV, weights

    def compute_loss(
        self, targets: Targets, encoded: Encoded, weights_of: WeightsOf, forcing: TeacherForcing
    ) -> DecoderLoss:
        inputs_BN, targets_BN = targets.for_decoder()
        scores_BNV, weights = self(inputs_BN, *encoded, weights_of, forcing.attention_bias_BNT)
        return score_tokens(scores_BNV, targets_BN, weights, targets.num_rows_B, forcing)


class DecoderLayersConfig(PlacedAttentionConfig, DecoderConfig):
    """Layers of self-attention, cross-attention and feed-forward."""

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
        return None if self.window is None else (self.window, 0)


class DecoderLayer(nn.Module):
    """Self-attention over the tokens, cross-attention to the encoded steps, feed-forward."""

    def __init__(self, config: DecoderLayersConfig, memory_dim: int) -> None:
        super().__init__()
        self.self_attention = config.build_attention()
        self.cross_attention = CrossAttention(config.dim, config.num_heads, memory_dim)
        self.feed_forward = config.build_feed_forward()
        self.self_attention_block = Block(config)
        self.cross_attention_block = Block(config)
        self.feed_forward_block = Block(config)

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
        update = self.self_attention(block.norm(x_BUD), all_of_BU, causal=is_causal, cache=cache)
        x_BUD = x_BUD + block.dropout(update)
        block = self.cross_attention_block
        attended, weights_BHUT = self.cross_attention(block.norm(x_BUD), memory, weights_of, bias_BUT)
        x_BUD = x_BUD + block.dropout(attended)
        block = self.feed_forward_block
        return x_BUD + block.dropout(self.feed_forward(block.norm(x_BUD))), weights_BHUT


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
        self.norm = nn.LayerNorm(config.dim)
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


# From the section of a config to its class.
DECODERS: dict[type[DecoderConfig], Callable[[Any, int, int], AnyDecoder]] = {
    TransformerDecoderConfig: TransformerDecoder,
}

if TYPE_CHECKING:
    AnyDecoderConfig = DecoderConfig
else:
    AnyDecoderConfig = choose_by_type(DECODERS, "transformer", lambda: find_more_kinds("DECODERS"))


def build_decoder(config: DecoderConfig, memory_dim: int, vocab_size: int) -> AnyDecoder:
    build = DECODERS.get(type(config)) or find_more_kinds("DECODERS")[type(config)]
    return build(config, memory_dim, vocab_size)
