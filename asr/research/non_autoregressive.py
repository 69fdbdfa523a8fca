"""Non-autoregressive decoders: all tokens at once, by a predicted length or by masks (CTC)."""

from __future__ import annotations

from typing import ClassVar, Literal, cast

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.models.decoders import (
    AnyDecoder,
    DecoderLayer,
    DecoderLayersConfig,
    DecoderLoss,
    Encoded,
    TeacherForcing,
    Weights,
    WeightsOf,
    score_tokens,
)
from asr.models.layers import Dropout, EncoderKV, Positions, length_mask
from asr.models.losses import IGNORED, Targets

# B utterances, R rows (B, or several texts of each utterance side by side), T encoded steps, U tokens or
# queries, N tokens and the end, D dimension, V vocabulary, H heads


class NonAutoregressiveDecoderConfig(DecoderLayersConfig):
    """Layers of a decoder that does not wait for the token before."""

    reads_tokens: ClassVar[bool] = False

    @pydantic.model_validator(mode="after")
    def _check_positions(self) -> NonAutoregressiveDecoderConfig:
        if self.positions != "sinusoid":
            raise ValueError(
                f"positions = {self.positions}: tokens that are not known yet differ by positions alone; "
                "choose sinusoid"
            )
        return self


class LengthDecoderConfig(NonAutoregressiveDecoderConfig):
    """The number of tokens is predicted first; then as many queries predict one token each."""

    type: Literal["parallel_length"] = "parallel_length"


class MaskDecoderConfig(NonAutoregressiveDecoderConfig):
    """Fills gaps: learns tokens that are masked, and decodes those of which CTC is unsure (Mask-CTC)."""

    needs_ctc: ClassVar[bool] = True

    type: Literal["mask_ctc"] = "mask_ctc"


class NonAutoregressiveDecoder(AnyDecoder):
    """Layers in which all positions see each other, from what stands at each of them to its token."""

    kind = "parallel"

    def __init__(self, config: NonAutoregressiveDecoderConfig, memory_dim: int, vocab_size: int) -> None:
        super().__init__()
        self.dim, self.num_layers, self.num_heads = config.dim, config.num_layers, config.num_heads
        self.positions = Positions(config.dim)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(DecoderLayer(config, memory_dim) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.dim)
        self.output = nn.Linear(config.dim, vocab_size)

    def precompute_kv(self, encoded_BTD: Tensor, encoded_lengths_B: Tensor) -> list[EncoderKV]:
        """Keys and values of each layer, computed once for all passes."""
        mask_BT = length_mask(encoded_lengths_B.clamp(min=1), encoded_BTD.size(1))
        layers = cast(list[DecoderLayer], self.layers)
        return [layer.cross_attention.precompute_kv(encoded_BTD, mask_BT) for layer in layers]

    def _run(
        self, x_RUD: Tensor, counts_R: Tensor, kv: list[EncoderKV], weights_of: WeightsOf
    ) -> tuple[Tensor, Weights]:
        """States of the positions, of which each row has `counts_R`, and the requested attention weights."""
        x_RUD = self.dropout(self.positions(x_RUD))
        mask_RU = length_mask(counts_R.clamp(min=1), x_RUD.size(1))
        all_weights: Weights = {}
        for index, (layer, memory) in enumerate(zip(self.layers, kv, strict=True)):
            x_RUD, weights_RHUT = layer(x_RUD, memory, None, weights_of.get(index, ()), mask_RU)
            if weights_RHUT is not None:
                all_weights[index] = weights_RHUT
        return self.norm(x_RUD), all_weights


# --- with a length predictor --------------------------------------------------------------------


class LengthPredictor(nn.Module):
    """Predict how many tokens there are: a logistic distribution around a sum over the encoded steps.

    A sum, as it counts as well in recordings longer than those of training.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.count = nn.Linear(dim, 1)
        nn.init.constant_(self.count.bias, -2.0)  # some eight steps for a token, at first
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, encoded_BTD: Tensor, encoded_lengths_B: Tensor) -> Tensor:
        """(B,): the mean of the distribution."""
        per_step_BT = F.softplus(self.count(encoded_BTD).float()[..., 0])
        is_step_BT = length_mask(encoded_lengths_B, encoded_BTD.size(1))
        return per_step_BT.masked_fill(~is_step_BT, 0.0).sum(1)

    def log_probability(self, counts: Tensor, means: Tensor) -> Tensor:
        """Log-probability of each count: of what lies between a half below and a half above it."""
        rate = (-self.log_scale).exp()
        above, below = (counts + 0.5 - means) * rate, (counts - 0.5 - means) * rate
        # sigmoid(above) - sigmoid(below), of which neither may vanish: above - below is the rate.
        return F.logsigmoid(above) + F.logsigmoid(-below) + torch.log(-torch.expm1(-rate))


class LengthDecoder(NonAutoregressiveDecoder):
    """p(length) * p(token 1 | length) * p(token 2 | length) * ..."""

    reported = ("cross_entropy", "length")

    def __init__(self, config: LengthDecoderConfig, memory_dim: int, vocab_size: int) -> None:
        super().__init__(config, memory_dim, vocab_size)
        self.length_predictor = LengthPredictor(memory_dim)

    def forward(
        self, counts_R: Tensor, max_count: int, kv: list[EncoderKV], weights_of: WeightsOf | None = None
    ) -> tuple[Tensor, Weights]:
        """(R, max_count, V) scores of texts of these lengths."""
        x_RUD = self.output.weight.new_zeros(len(counts_R), max_count, self.dim)
        states_RUD, weights = self._run(x_RUD, counts_R, kv, weights_of or {})
        return self.output(states_RUD), weights

    def score_reference(
        self, targets: Targets, encoded: Encoded, weights_of: WeightsOf
    ) -> tuple[Tensor, Weights]:
        kv = self.precompute_kv(*encoded)
        return self(targets.lengths_B, targets.tokens_BU.size(1), kv, weights_of)

    def compute_loss(
        self, targets: Targets, encoded: Encoded, weights_of: WeightsOf, forcing: TeacherForcing
    ) -> DecoderLoss:
        scores_BUV, weights = self.score_reference(targets, encoded, weights_of)
        lengths_B = targets.lengths_B
        decoder_loss = score_tokens(scores_BUV, _only_tokens(targets), weights, lengths_B, forcing)
        means_B = self.length_predictor(*encoded)
        length_loss = -self.length_predictor.log_probability(lengths_B, means_B).sum()
        # A right length is as good as a right end.
        num_correct = decoder_loss.parts["correct"] + (means_B.round() == lengths_B).sum()
        parts = decoder_loss.parts | {"length": length_loss, "correct": num_correct}
        return DecoderLoss(decoder_loss.loss + length_loss, parts, weights, lengths_B)


# --- with gaps ----------------------------------------------------------------------------------


class MaskDecoder(NonAutoregressiveDecoder):
    """Tokens and gaps to the tokens in the gaps (Higuchi et al. 2020)."""

    def __init__(self, config: MaskDecoderConfig, memory_dim: int, vocab_size: int) -> None:
        super().__init__(config, memory_dim, vocab_size)
        self.mask_id = vocab_size  # one more than the tokens: a gap is read and never predicted
        self.embedding = nn.Embedding(vocab_size + 1, config.dim)
        nn.init.normal_(self.embedding.weight, std=config.dim**-0.5)
        self.scale = config.dim**0.5

    def forward(
        self, tokens_BU: Tensor, counts_B: Tensor, kv: list[EncoderKV], weights_of: WeightsOf | None = None
    ) -> tuple[Tensor, Weights]:
        """(B, U, V) scores of all tokens, from those that are not `mask_id`."""
        x_BUD = self.embedding(tokens_BU) * self.scale
        states_BUD, weights = self._run(x_BUD, counts_B, kv, weights_of or {})
        return self.output(states_BUD), weights

    def score_reference(
        self, targets: Targets, encoded: Encoded, weights_of: WeightsOf
    ) -> tuple[Tensor, Weights]:
        """Score the reference from nothing but gaps."""
        gaps_BU = torch.full_like(targets.tokens_BU, self.mask_id)
        return self(gaps_BU, targets.lengths_B, self.precompute_kv(*encoded), weights_of)

    def compute_loss(
        self, targets: Targets, encoded: Encoded, weights_of: WeightsOf, forcing: TeacherForcing
    ) -> DecoderLoss:
        """Compute the loss with a random number of random gaps; in evaluation, of nothing but gaps."""
        targets_BU, lengths_B = _only_tokens(targets), targets.lengths_B
        is_gap_BU = targets_BU != IGNORED
        if self.training:
            is_gap_BU = draw_gaps(lengths_B, targets_BU.size(1))
        tokens_BU = targets.tokens_BU.masked_fill(is_gap_BU, self.mask_id)
        scores_BUV, weights = self(tokens_BU, lengths_B, self.precompute_kv(*encoded), weights_of)
        masked_targets_BU = targets_BU.masked_fill(~is_gap_BU, IGNORED)
        decoder_loss = score_tokens(scores_BUV, masked_targets_BU, weights, lengths_B, forcing)
        # The ratio of gaps that are filled correctly, for the whole text.
        num_wrong_B = (is_gap_BU & (scores_BUV.argmax(-1) != targets_BU)).sum(1)
        ratio_B = 1 - num_wrong_B / is_gap_BU.sum(1).clamp(min=1)
        parts = decoder_loss.parts | {"correct": (targets.num_rows_B * ratio_B).sum()}
        return DecoderLoss(decoder_loss.loss, parts, weights, lengths_B)


def draw_gaps(lengths_B: Tensor, max_length: int) -> Tensor:
    """(B, U): Random mask of each text; the number of masked tokens is uniform in 1..U."""
    draws_BU = torch.rand(len(lengths_B), max_length, device=lengths_B.device)
    draws_BU = draws_BU.masked_fill(~length_mask(lengths_B, max_length), 2.0)
    ranks_BU = draws_BU.argsort(dim=1).argsort(dim=1)
    ratio_B = torch.rand(len(lengths_B), device=lengths_B.device)
    num_gaps_B = ((ratio_B * lengths_B).long() + 1).minimum(lengths_B)
    return ranks_BU < num_gaps_B[:, None]


def _only_tokens(targets: Targets) -> Tensor:
    """(B, U): the tokens, without an end."""
    is_token_BU = length_mask(targets.lengths_B, targets.tokens_BU.size(1))
    return targets.tokens_BU.masked_fill(~is_token_BU, IGNORED)
