"""Decoders: losses, autoregressive steps, the Transformer decoder, and CTC prefix scores."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from asr.config import DecoderConfig, Size, choose_by_type
from asr.models.encoders import AttentionConfig, Block
from asr.models.layers import (
    CrossAttention,
    Dropout,
    EncoderKV,
    KeyValueCache,
    Positions,
    Window,
    find_more_kinds,
    length_mask,
)
from asr.models.losses import Targets, cross_entropy
from asr.text.tokenizer import BLANK_ID

# B utterances, R rows (B, or the beams of all utterances, grouped by utterance), T encoded steps,
# U tokens, N tokens and the end, D dimension of the encoder, V vocabulary, H heads

WeightsOf = dict[int, tuple[int, ...]]  # layer to the heads whose attention weights are requested
Weights = dict[int, Tensor]  # layer to attention weights (R, H, U, T)
Encoded = tuple[Tensor, Tensor]  # encoded_BTD and encoded_lengths_B


@dataclass(frozen=True)
class TeacherForcing:
    """Settings of a decoder's loss."""

    label_smoothing: float
    attention_bias_BNT: Tensor | None = None  # added to the scores of cross-attention


@dataclass(frozen=True)
class DecoderLoss:
    """Loss of the reference tokens, summed over a batch."""

    loss: Tensor
    parts: dict[str, Tensor]  # parts of the loss, by the names in `reported`
    weights: Weights
    num_rows_B: Tensor
    """Attention rows of each utterance: one for each token and, with some decoders, one for the end."""


class AnyDecoder(nn.Module, abc.ABC):
    """Base class of decoders, which turn encoded steps into tokens.

    Built from its config, the dimension of the encoded steps, and the vocabulary size.
    """

    kind: ClassVar[str]
    """Kind of decoding methods that apply to it: attention, parallel ..."""
    reported: ClassVar[tuple[str, ...]] = ("cross_entropy",)
    """Names of the parts of its loss."""
    num_layers: int
    """Number of layers that attend to the encoded steps."""
    num_heads: int
    """Number of heads of each of these layers; 0 if there is no attention."""

    @abc.abstractmethod
    def compute_loss(
        self, targets: Targets, encoded: Encoded, weights_of: WeightsOf, forcing: TeacherForcing
    ) -> DecoderLoss:
        """Compute the loss of a batch, and the requested attention weights."""

    @abc.abstractmethod
    def score_reference(
        self, targets: Targets, encoded: Encoded, weights_of: WeightsOf
    ) -> tuple[Tensor, Weights]:
        """Return teacher-forced scores (B, U or N, V) and the requested attention weights."""

    def limit_tokens(self, encoded_lengths_B: Tensor, most_in_a_step: int) -> Tensor:
        """Return the maximum number of tokens, given the maximum per encoded step."""
        return encoded_lengths_B * most_in_a_step

    @property
    def last_heads(self) -> WeightsOf:
        """All heads of the last layer; empty without attention."""
        return {self.num_layers - 1: tuple(range(self.num_heads))} if self.num_heads else {}


def score_tokens(
    scores_BNV: Tensor, targets_BN: Tensor, weights: Weights, num_rows_B: Tensor, forcing: TeacherForcing
) -> DecoderLoss:
    """Compute the cross-entropy of all targets that are not IGNORED."""
    loss = cross_entropy(scores_BNV, targets_BN, forcing.label_smoothing)
    num_correct = (scores_BNV.argmax(-1) == targets_BN).sum()
    return DecoderLoss(loss, {"cross_entropy": loss, "correct": num_correct}, weights, num_rows_B)


class DecoderState(abc.ABC):
    """State that decoding carries from token to token.

    Keys and values of encoded steps have a row per utterance; tokens have a row per beam.
    """

    def disable_cache(self) -> None:  # noqa: B027
        """Do not cache keys and values, because the tokens to come are complete texts."""

    @abc.abstractmethod
    def select_utterances(self, utterances_B: Tensor) -> None:
        """Keep the encoder keys and values of these utterances; the beams are unchanged."""

    @abc.abstractmethod
    def select_beams(self, rows_R: Tensor) -> None:
        """Keep these beams; the encoder keys and values are unchanged."""


class Decoder(AnyDecoder):
    """Autoregressive decoder: scores the next token, given the tokens so far and the encoded steps."""

    kind = "attention"
    embedding: nn.Embedding
    output: nn.Linear
    max_tokens = 2**31 - 1
    """Maximum length of a text, for decoders with a limited number of positions."""

    @abc.abstractmethod
    def start(self, encoded_BTD: Tensor, encoded_lengths_B: Tensor) -> DecoderState:
        """Return the state before the first token, with one beam for each utterance."""

    def forward(
        self,
        tokens_RU: Tensor,
        encoded_BTD: Tensor,
        encoded_lengths_B: Tensor,
        weights_of: WeightsOf | None = None,
        bias_RUT: Tensor | None = None,
    ) -> tuple[Tensor, Weights]:
        """Return teacher-forced scores (R, U, V), and the attention weights of the requested heads.

        `bias_RUT` is added to the scores of cross-attention before their softmax.
        """
        state = self.start(encoded_BTD, encoded_lengths_B)
        state.disable_cache()
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
        """Return scores after each new token; earlier tokens are in the state."""

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


class DecoderLayersConfig(AttentionConfig, DecoderConfig):
    """Layers of self-attention, cross-attention and feed-forward."""

    @property
    def cross_attention(self) -> tuple[int, int]:
        return self.num_layers, self.num_heads


class TransformerDecoderConfig(DecoderLayersConfig):
    """Layers of causal self-attention, cross-attention and feed-forward over the tokens so far."""

    type: Literal["transformer"] = "transformer"
    window: Size | None = None
    """Number of past tokens that a token attends to; all of them if null."""

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
        memory: EncoderKV,
        cache: KeyValueCache | None,
        weights_of: tuple[int, ...],
        all_of_BU: Tensor | None = None,
        bias_BUT: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend causally, unless `all_of_BU` marks the real tokens; each then attends to all others."""
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
    """Keys and values of each layer: of the encoder by utterance, and of the tokens so far by beam."""

    def __init__(self, memories: list[EncoderKV]) -> None:
        self.memories = memories
        self.caches = [KeyValueCache() for _ in memories]

    @property
    def num_tokens(self) -> int:
        """Number of tokens whose keys and values are cached."""
        return self.caches[0].length if self.caches else 0

    def disable_cache(self) -> None:
        self.caches = []

    def select_utterances(self, utterances_B: Tensor) -> None:
        for layer, memory in enumerate(self.memories):  # one by one, so that memory does not double
            self.memories[layer] = memory.select(utterances_B)

    def select_beams(self, rows_R: Tensor) -> None:
        for cache in self.caches:
            cache.select(rows_R)


class TransformerDecoder(Decoder):
    """Transformer decoder with layers of causal self-attention and cross-attention."""

    def __init__(self, config: TransformerDecoderConfig, memory_dim: int, vocab_size: int) -> None:
        super().__init__()
        self.num_layers, self.num_heads = config.num_layers, config.num_heads
        self.embedding = nn.Embedding(vocab_size, config.dim)
        nn.init.normal_(self.embedding.weight, std=config.dim**-0.5)
        self.scale = config.dim**0.5  # brings embeddings to the scale of the position codes
        self.positions: nn.Module = Positions(config.dim, config.positions)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(DecoderLayer(config, memory_dim) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.dim)
        self.output = nn.Linear(config.dim, vocab_size)

    def start(self, encoded_BTD: Tensor, encoded_lengths_B: Tensor) -> TransformerDecoderState:
        mask_BT = length_mask(encoded_lengths_B.clamp(min=1), encoded_BTD.size(1))
        layers = cast(list[DecoderLayer], self.layers)
        projected = (layer.cross_attention.precompute_kv(encoded_BTD, mask_BT) for layer in layers)
        # Contiguous, because each decoding step reads them again, head by head.
        return TransformerDecoderState(
            [
                EncoderKV(kv.keys_BHSK.contiguous(), kv.values_BHSK.contiguous(), kv.bias_BS)
                for kv in projected
            ]
        )

    def step(
        self,
        tokens_BU: Tensor,
        state: DecoderState,
        weights_of: WeightsOf | None = None,
        bias_BUT: Tensor | None = None,
    ) -> tuple[Tensor, Weights]:
        """Return scores after each new token; earlier tokens are in the state."""
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
        """Return decoder states before the output layer (B, U, D) of all new tokens but the first `skip`."""
        x_BUD = self.dropout(self.positions(self.embedding(tokens_BU) * self.scale, state.num_tokens))
        all_weights: Weights = {}
        for index, layer in enumerate(self.layers):
            cache = state.caches[index] if state.caches else None
            heads = weights_of.get(index, ())
            x_BUD, weights_BHUT = layer(x_BUD, state.memories[index], cache, heads, bias_BUT=bias_BUT)
            if weights_BHUT is not None:
                all_weights[index] = weights_BHUT[:, :, skip:]
        return self.norm(x_BUD[:, skip:]), all_weights


# --- CTC prefix scores ----------------------------------------------------------------------------

# T steps, W texts (or beams) of each utterance, C candidate tokens of each

# Stands in for log(0); unlike -inf, it can be added and subtracted again.
LOG_ZERO = -1e4


def mask_padding(log_probabilities_BTV: Tensor, lengths_B: Tensor) -> Tensor:
    """Return a copy whose padding is blank with probability 1, which does not change the text."""
    is_padding_BT = ~length_mask(lengths_B, log_probabilities_BTV.size(1))
    scores_BTV = log_probabilities_BTV.float().masked_fill(is_padding_BT[..., None], -torch.inf)
    scores_BTV[:, :, BLANK_ID] = scores_BTV[:, :, BLANK_ID].masked_fill(is_padding_BT, 0.0)
    return scores_BTV


class CTCPrefixes:
    """The active prefixes of a batch and their forward variables (Watanabe et al. 2017).

    For each t, it stores the log-probabilities of all alignments of the first t steps that spell exactly the
    prefix, and of those among them that end in blank. The recursion over steps is linear, n[t] = p[t] (n[t-1]
    + f[t-1]), so cumulative sums solve it: with A the cumulative sum of log p, log n[t] = A[t] +
    logcumsumexp(log f[s-1] - A[s-1]) up to t. This is in float64, because A reaches thousands.
    """

    def __init__(self, log_probabilities_BTV: Tensor, lengths_B: Tensor) -> None:
        scores_BTV = mask_padding(log_probabilities_BTV, lengths_B).clamp(min=LOG_ZERO)
        self._scores_BVT = scores_BTV.transpose(1, 2).contiguous()  # the steps of a token are contiguous
        self._probabilities_BVT: Tensor | None = None
        self._last_step_B11 = (lengths_B - 1).clamp(min=0)[:, None, None]
        blanks_BT = self._scores_BVT[:, BLANK_ID].double()
        self._blanks_before_B1T = _sums_before(blanks_BT)[:, None, :-1]
        self._blanks_B1T = blanks_BT.cumsum(-1)[:, None]
        self._ends_in_blank = _sums_before(blanks_BT)[:, None]  # (B, W, T + 1)
        self._ends = self._ends_in_blank  # (B, W, T + 1), ending in a token or in blank
        self._last_BW = torch.full_like(lengths_B[:, None], -1)
        self._last_steps_BWT = torch.zeros_like(scores_BTV[:, None, :, 0])  # log-probabilities of _last_BW

    def end_scores(self) -> Tensor:
        """Return log-probabilities (B, W) that the prefix is the complete text."""
        return self._ends[:, :, -1]

    def next_token_times(self) -> Tensor:
        """Return the posterior (B, W, T) of the step at which the next token, whatever it is, starts.

        Only steps up to t matter, because what may follow a path does not depend on how it continues. The
        last step also holds the probability that no token follows, and all of the probability if there are
        too few steps for the prefix.
        """
        most_BW1 = self._ends.amax(-1, keepdim=True).clamp(min=LOG_ZERO * self._ends.size(-1))
        ends_BWT, in_blank_BWT = (
            (part - most_BW1).float().exp() for part in (self._ends, self._ends_in_blank)
        )
        others_B1T = 1 - self._scores_BVT[:, None, BLANK_ID].exp()
        repeats_BWT = (ends_BWT - in_blank_BWT)[:, :, :-1] * self._last_steps_BWT.exp()  # token continues
        starts_BWT = (ends_BWT[:, :, :-1] * others_B1T - repeats_BWT).clamp(min=0)
        last_BW1 = self._last_step_B11.expand(-1, starts_BWT.size(1), -1)
        starts_BWT.scatter_add_(2, last_BW1, ends_BWT[:, :, -1:])
        no_path_BW1 = most_BW1 < LOG_ZERO / 2
        starts_BWT = starts_BWT.masked_fill(no_path_BW1, 0).scatter_add(2, last_BW1, no_path_BW1.float())
        return starts_BWT / starts_BWT.sum(-1, keepdim=True).clamp(min=1e-30)

    def candidate_scores(self, candidates_BWC: Tensor) -> Tensor:
        """Return log-probabilities (B, W, C) that the text starts with the prefix and the candidate."""
        before_BWT = self._ends[:, :, :-1]
        most_BW1 = before_BWT.amax(-1, keepdim=True).clamp(min=LOG_ZERO * before_BWT.size(-1))
        paths_BWCT = (before_BWT - most_BW1).float()[:, :, None] + self._token_scores(candidates_BWC)
        scores_BWC = most_BW1 + _log_sum(paths_BWCT).double()
        # A repeated token needs a blank in between; at most one candidate per beam is its last token.
        is_repeat_BWC = candidates_BWC == self._last_BW[..., None]
        paths_BWT = (self._ends_in_blank[:, :, :-1] - most_BW1).float() + self._last_steps_BWT
        return torch.where(is_repeat_BWC, most_BW1 + _log_sum(paths_BWT)[..., None], scores_BWC)

    def all_scores(self) -> Tensor:
        """Return approximate `candidate_scores` of all tokens (B, W, V), to choose candidates.

        This is a single matrix product: it does not require blanks between repeats, and it raises
        probabilities below e^-80 to that value.
        """
        if self._probabilities_BVT is None:
            self._probabilities_BVT = self._scores_BVT.exp()
        before_BWT = self._ends[:, :, :-1]
        most_BW1 = before_BWT.amax(-1, keepdim=True).clamp(min=100 * LOG_ZERO)
        weights_BWT = (before_BWT - most_BW1).float().clamp(min=-80).exp()
        return (weights_BWT @ self._probabilities_BVT.mT).clamp(min=1e-35).log() + most_BW1.float()

    def advance(self, parents_BW: Tensor, tokens_BW: Tensor) -> None:
        """Replace the beams: each new one is the prefix of its parent (an earlier beam) plus one token."""
        index_BWT = parents_BW[..., None].expand(-1, -1, self._ends.size(-1))
        in_blank, all_ends = self._ends_in_blank.gather(1, index_BWT), self._ends.gather(1, index_BWT)
        is_repeat_BW1 = (tokens_BW == self._last_BW.gather(1, parents_BW))[..., None]
        before_BWT = torch.where(is_repeat_BW1, in_blank, all_ends)[:, :, :-1]

        self._last_steps_BWT = self._token_scores(tokens_BW)
        sums_BWT = _sums_before(self._last_steps_BWT.double())
        in_token_BWT = sums_BWT[..., 1:] + (before_BWT - sums_BWT[..., :-1]).logcumsumexp(-1)
        none_BW1 = torch.full_like(in_token_BWT[..., :1], -torch.inf)
        in_token = torch.cat([none_BW1, in_token_BWT], dim=-1)
        in_blank_BWT = self._blanks_B1T + (in_token[..., :-1] - self._blanks_before_B1T).logcumsumexp(-1)
        self._ends_in_blank = torch.cat([none_BW1, in_blank_BWT], dim=-1)
        self._ends = torch.logaddexp(in_token, self._ends_in_blank)
        self._last_BW = tokens_BW

    def select_utterances(self, utterances_B: Tensor) -> None:
        """Keep these utterances with all their beams."""
        self._scores_BVT = self._scores_BVT[utterances_B]
        self._last_step_B11 = self._last_step_B11[utterances_B]
        if self._probabilities_BVT is not None:
            self._probabilities_BVT = self._probabilities_BVT[utterances_B]
        self._blanks_before_B1T = self._blanks_before_B1T[utterances_B]
        self._blanks_B1T = self._blanks_B1T[utterances_B]
        self._ends_in_blank, self._ends = self._ends_in_blank[utterances_B], self._ends[utterances_B]
        self._last_BW, self._last_steps_BWT = self._last_BW[utterances_B], self._last_steps_BWT[utterances_B]

    def _token_scores(self, tokens: Tensor) -> Tensor:
        """Return the log-probabilities (B, ..., T) of each token at each step."""
        batch, vocabulary, num_steps = self._scores_BVT.shape
        first_row = torch.arange(batch, device=tokens.device).view(-1, *(1 for _ in tokens.shape[1:]))
        rows = (tokens + first_row * vocabulary).flatten()
        return self._scores_BVT.view(-1, num_steps).index_select(0, rows).view(*tokens.shape, num_steps)


def _log_sum(scores: Tensor) -> Tensor:
    """Compute logsumexp over the last dimension, in place.

    PyTorch's own is ten times slower if terms underflow a float32 (below e^-87).
    """
    most = scores.amax(-1, keepdim=True)
    scores = scores.sub_(most.clamp(min=100 * LOG_ZERO)).clamp_(min=-80)  # never subtract -inf
    return scores.exp_().sum(-1).log_().add_(most[..., 0])


def _sums_before(scores: Tensor) -> Tensor:
    """Return cumulative sums with a leading 0: (..., T) to (..., T + 1)."""
    return torch.nn.functional.pad(scores.cumsum(-1), (1, 0))


# Maps a config section to the class that it builds.
DECODERS: dict[type[DecoderConfig], Callable[[Any, int, int], AnyDecoder]] = {
    TransformerDecoderConfig: TransformerDecoder
}

if TYPE_CHECKING:
    AnyDecoderConfig = DecoderConfig
else:
    AnyDecoderConfig = choose_by_type(DECODERS, "transformer", lambda: find_more_kinds("DECODERS"))


def build_decoder(config: DecoderConfig, memory_dim: int, vocab_size: int) -> AnyDecoder:
    build = DECODERS.get(type(config)) or find_more_kinds("DECODERS", type(config))[type(config)]
    return build(config, memory_dim, vocab_size)
