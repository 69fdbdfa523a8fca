"""Non-autoregressive decoders, which predict all tokens at once: by length, or by masks (Mask-CTC)."""

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
    """Layers of a decoder that does not depend on the previous token."""

    reads_tokens: ClassVar[bool] = False

    @pydantic.model_validator(mode="after")
    def _check_positions(self) -> NonAutoregressiveDecoderConfig:
        if self.positions != "sinusoid":
            raise ValueError(
                f"positions = {self.positions}: only their positions distinguish tokens that are not known "
                "yet; choose sinusoid"
            )
        return self


class LengthDecoderConfig(NonAutoregressiveDecoderConfig):
    """First predicts the number of tokens, and then each token with a query of its own."""

    type: Literal["parallel_length"] = "parallel_length"


class MaskDecoderConfig(NonAutoregressiveDecoderConfig):
    """Fills gaps (Mask-CTC): trained on masked tokens, it decodes the tokens of which CTC is unsure."""

    needs_ctc: ClassVar[bool] = True

    type: Literal["mask_ctc"] = "mask_ctc"


class NonAutoregressiveDecoder(AnyDecoder):
    """Layers in which all positions attend to each other, and an output that predicts each token."""

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
        """Compute keys and values of each layer, once for all passes."""
        mask_BT = length_mask(encoded_lengths_B.clamp(min=1), encoded_BTD.size(1))
        layers = cast(list[DecoderLayer], self.layers)
        return [layer.cross_attention.precompute_kv(encoded_BTD, mask_BT) for layer in layers]

    def _run(
        self, x_RUD: Tensor, counts_R: Tensor, kv: list[EncoderKV], weights_of: WeightsOf
    ) -> tuple[Tensor, Weights]:
        """Return the states of `counts_R` positions in each row, and the requested attention weights."""
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
    """Predicts the number of tokens, as a logistic distribution around a sum over the encoded steps.

    A sum also counts correctly in recordings longer than those in training.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.count = nn.Linear(dim, 1)
        nn.init.constant_(self.count.bias, -2.0)  # about eight steps for each token at the start
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, encoded_BTD: Tensor, encoded_lengths_B: Tensor) -> Tensor:
        """Return (B,): the mean of the distribution."""
        per_step_BT = F.softplus(self.count(encoded_BTD).float()[..., 0])
        is_step_BT = length_mask(encoded_lengths_B, encoded_BTD.size(1))
        return per_step_BT.masked_fill(~is_step_BT, 0.0).sum(1)

    def log_probability(self, counts: Tensor, means: Tensor) -> Tensor:
        """Return the log-probability of each count, from half a token below it to half a token above."""
        rate = (-self.log_scale).exp()
        above, below = (counts + 0.5 - means) * rate, (counts - 0.5 - means) * rate
        # The log of sigmoid(above) - sigmoid(below), in a form that does not underflow. above - below = rate.
        return F.logsigmoid(above) + F.logsigmoid(-below) + torch.log(-torch.expm1(-rate))


class LengthDecoder(NonAutoregressiveDecoder):
    """Models p(length) * p(token 1 | length) * p(token 2 | length) * ..."""

    reported = ("cross_entropy", "length")

    def __init__(self, config: LengthDecoderConfig, memory_dim: int, vocab_size: int) -> None:
        super().__init__(config, memory_dim, vocab_size)
        self.length_predictor = LengthPredictor(memory_dim)

    def forward(
        self, counts_R: Tensor, max_count: int, kv: list[EncoderKV], weights_of: WeightsOf | None = None
    ) -> tuple[Tensor, Weights]:
        """Return (R, max_count, V) scores of texts with these lengths."""
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
        # A correct length counts like a correct end token.
        num_correct = decoder_loss.parts["correct"] + (means_B.round() == lengths_B).sum()
        parts = decoder_loss.parts | {"length": length_loss, "correct": num_correct}
        return DecoderLoss(decoder_loss.loss + length_loss, parts, weights, lengths_B)


# --- with gaps ----------------------------------------------------------------------------------


class MaskDecoder(NonAutoregressiveDecoder):
    """Predicts the tokens in gaps from the other tokens (Higuchi et al. 2020)."""

    def __init__(self, config: MaskDecoderConfig, memory_dim: int, vocab_size: int) -> None:
        super().__init__(config, memory_dim, vocab_size)
        self.mask_id = vocab_size  # an additional input token for gaps, which is never predicted
        self.embedding = nn.Embedding(vocab_size + 1, config.dim)
        nn.init.normal_(self.embedding.weight, std=config.dim**-0.5)
        self.scale = config.dim**0.5

    def forward(
        self, tokens_BU: Tensor, counts_B: Tensor, kv: list[EncoderKV], weights_of: WeightsOf | None = None
    ) -> tuple[Tensor, Weights]:
        """Return (B, U, V) scores of all tokens, given those that are not `mask_id`."""
        x_BUD = self.embedding(tokens_BU) * self.scale
        states_BUD, weights = self._run(x_BUD, counts_B, kv, weights_of or {})
        return self.output(states_BUD), weights

    def score_reference(
        self, targets: Targets, encoded: Encoded, weights_of: WeightsOf
    ) -> tuple[Tensor, Weights]:
        """Score the reference when every token is a gap."""
        gaps_BU = torch.full_like(targets.tokens_BU, self.mask_id)
        return self(gaps_BU, targets.lengths_B, self.precompute_kv(*encoded), weights_of)

    def compute_loss(
        self, targets: Targets, encoded: Encoded, weights_of: WeightsOf, forcing: TeacherForcing
    ) -> DecoderLoss:
        """Compute the loss with a random number of random gaps or, in evaluation, with only gaps."""
        targets_BU, lengths_B = _only_tokens(targets), targets.lengths_B
        is_gap_BU = targets_BU != IGNORED
        if self.training:
            is_gap_BU = draw_gaps(lengths_B, targets_BU.size(1))
        tokens_BU = targets.tokens_BU.masked_fill(is_gap_BU, self.mask_id)
        scores_BUV, weights = self(tokens_BU, lengths_B, self.precompute_kv(*encoded), weights_of)
        masked_targets_BU = targets_BU.masked_fill(~is_gap_BU, IGNORED)
        decoder_loss = score_tokens(scores_BUV, masked_targets_BU, weights, lengths_B, forcing)
        # The share of gaps that are filled correctly counts for the whole text.
        num_wrong_B = (is_gap_BU & (scores_BUV.argmax(-1) != targets_BU)).sum(1)
        ratio_B = 1 - num_wrong_B / is_gap_BU.sum(1).clamp(min=1)
        parts = decoder_loss.parts | {"correct": (targets.num_rows_B * ratio_B).sum()}
        return DecoderLoss(decoder_loss.loss, parts, weights, lengths_B)


def draw_gaps(lengths_B: Tensor, max_length: int) -> Tensor:
    """Return (B, U): a random mask of each text; the number of masked tokens is uniform in 1..U."""
    draws_BU = torch.rand(len(lengths_B), max_length, device=lengths_B.device)
    draws_BU = draws_BU.masked_fill(~length_mask(lengths_B, max_length), 2.0)
    ranks_BU = draws_BU.argsort(dim=1).argsort(dim=1)
    ratio_B = torch.rand(len(lengths_B), device=lengths_B.device)
    num_gaps_B = ((ratio_B * lengths_B).long() + 1).minimum(lengths_B)
    return ranks_BU < num_gaps_B[:, None]


def _only_tokens(targets: Targets) -> Tensor:
    """Return (B, U): the tokens without the end token."""
    is_token_BU = length_mask(targets.lengths_B, targets.tokens_BU.size(1))
    return targets.tokens_BU.masked_fill(~is_token_BU, IGNORED)
