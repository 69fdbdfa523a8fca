"""Losses: label-smoothed cross-entropy, CTC and its alignment; guided attention and the attention prior."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
import torch
from torch import Tensor
from torch.nn import functional as F

from asr.config import Config
from asr.models.layers import length_mask
from asr.text.units import BLANK_ID

# B batch, T encoded steps, U tokens, N rows of attention (tokens and the end), V vocabulary, H heads

IGNORED = -100  # as a target: this position does not count


class GuidedAttentionConfig(Config):
    """A penalty on attention that strays from a path: 1 - exp(-(distance / T)^2 / (2 sigma^2))."""

    weight: float = pydantic.Field(default=1.0, gt=0)
    """Of the penalty in the loss, at first. The penalty of a token lies between 0 and 1. Beside CTC, 0.1 may
    help the decoder as much as 1, and costs the CTC head less: recipes/fsdd/guided_attention.md."""
    sigma: float = pydantic.Field(default=0.2, gt=0)
    """Tolerance, as a share of the utterance's length (0.2 and 0.4 are usual in speech synthesis)."""
    path: Literal["diagonal", "ctc"] = "diagonal"
    """diagonal: tokens are spread evenly over the speech. ctc: each token's time in the alignment by the CTC
    head, as soon as that is good enough (ctc_threshold), and the diagonal until then."""
    ctc_threshold: float = pydantic.Field(default=1.0, gt=0)
    """With path ctc: an utterance follows its alignment once its CTC loss per token (nats) is below this."""
    trim_silence: bool = True
    """Run the diagonal from the first to the last loud frame, not through silence at the ends. What
    augment.spec_augment masks afterwards does not count."""
    layers: Annotated[tuple[int, ...], pydantic.Field(min_length=1)] | None = None
    """Decoder layers that are guided, from 0, or from the last as -1, -2; all if null."""
    heads: Annotated[tuple[pydantic.NonNegativeInt, ...], pydantic.Field(min_length=1)] | None = None
    """Heads that are guided in each of those layers; all if null."""
    schedule: Literal["constant", "linear", "exponential"] = "constant"
    """How the weight changes: linear falls to zero at `steps`; exponential halves every `half_life`."""
    half_life: int = pydantic.Field(default=1000, gt=0)
    """Updates until the weight of the exponential schedule is halved."""
    steps: int | None = pydantic.Field(default=None, gt=0)
    """Updates after which the penalty is off; needed by the linear schedule."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> GuidedAttentionConfig:
        if self.schedule == "linear" and self.steps is None:
            raise ValueError("schedule = linear falls to zero at `steps`, which is missing; add steps")
        self.refuse_idle(self.schedule == "exponential", "schedule = exponential", "half_life")
        self.refuse_idle(self.path == "ctc", "path = ctc", "ctc_threshold")
        return self

    def weight_at(self, step: int) -> float:
        if self.steps is not None and step >= self.steps:
            return 0.0
        if self.schedule == "linear":
            assert self.steps is not None
            return self.weight * (1 - step / self.steps)
        if self.schedule == "exponential":
            return self.weight * 0.5 ** (step / self.half_life)
        return self.weight


def cross_entropy(scores_BUV: Tensor, targets_BU: Tensor, label_smoothing: float) -> Tensor:
    """Sum over all targets but those that are IGNORED."""
    return F.cross_entropy(
        scores_BUV.flatten(0, 1).float(),
        targets_BU.flatten(),
        ignore_index=IGNORED,
        label_smoothing=label_smoothing,
        reduction="sum",
    )


def ctc_loss(
    log_probabilities_BTV: Tensor, lengths_B: Tensor, tokens_BU: Tensor, token_lengths_B: Tensor
) -> Tensor:
    """(B,) of each utterance; 0, not infinity, for one with too few steps for its tokens."""
    return F.ctc_loss(
        log_probabilities_BTV.transpose(0, 1).float(),
        tokens_BU,
        lengths_B,
        token_lengths_B,
        blank=BLANK_ID,
        reduction="none",
        zero_infinity=True,
    )


# --- guided attention ---------------------------------------------------------------------------


def diagonal_times(spans_B2: Tensor, num_rows_B: Tensor, max_rows: int) -> Tensor:
    """(B, N): row n of N at n / N of the way from the start to the end of the speech, in steps.

    Rows of padding are at the end: a prior far outside of the recording has no finite value in float16.
    """
    rows_N = torch.arange(max_rows, device=spans_B2.device)
    share_BN = (rows_N / num_rows_B[:, None]).clamp(max=1)
    start_B1, end_B1 = spans_B2[:, :1], spans_B2[:, 1:]
    return start_B1 + share_BN * (end_B1 - start_B1)


def guided_attention_loss(
    weights_BHNT: Tensor, times_BN: Tensor, num_rows_B: Tensor, lengths_B: Tensor, sigma: float
) -> Tensor:
    """The penalty that each row's attention meets on average, summed over the rows and averaged over heads.

    Only real rows and steps count, so that padding changes nothing; and as a row of attention sums to one,
    its penalty lies between 0 and 1 for short and long utterances alike.
    """
    penalty_BNT = 1 - _closeness(times_BN, lengths_B, weights_BHNT.size(-1), sigma)
    is_row_BN = length_mask(num_rows_B, weights_BHNT.size(2))
    is_step_BT = length_mask(lengths_B, weights_BHNT.size(3))
    valid_BNT = is_row_BN[:, :, None] & is_step_BT[:, None, :]
    return (weights_BHNT * (penalty_BNT * valid_BNT)[:, None]).sum() / weights_BHNT.size(1)


def _closeness(times_BN: Tensor, lengths_B: Tensor, num_steps: int, sigma: float) -> Tensor:
    """(B, N, T): exp(-((t - time of row n) / T)^2 / (2 sigma^2))."""
    steps_T = torch.arange(num_steps, device=times_BN.device)
    distance_BNT = (steps_T - times_BN[..., None]) / lengths_B.clamp(min=1)[:, None, None]
    return torch.exp(-(distance_BNT**2) / (2 * sigma**2))


def attention_measures(
    weights_BHNT: Tensor, times_BN: Tensor, num_rows_B: Tensor, lengths_B: Tensor
) -> dict[str, Tensor]:
    """Measure attention: its mean distance from the path as a share of T, how often it does not step back.

    Both are sums over rows, averaged over heads: divide by the number of rows.
    """
    steps_T = torch.arange(weights_BHNT.size(-1), device=weights_BHNT.device, dtype=weights_BHNT.dtype)
    centre_BHN = (weights_BHNT * steps_T).sum(-1)
    is_row_BN = length_mask(num_rows_B, weights_BHNT.size(2))
    share = (centre_BHN - times_BN[:, None]).abs() / lengths_B.clamp(min=1)[:, None, None]
    # One step back is the width of a frame, not a jump; the first row has nothing before it.
    forward_BHN = F.pad((centre_BHN.diff(dim=-1) >= -1).to(weights_BHNT.dtype), (1, 0), value=1.0)
    return {
        "attention_distance": (share * is_row_BN[:, None]).sum() / weights_BHNT.size(1),
        "attention_monotonic": (forward_BHN * is_row_BN[:, None]).sum() / weights_BHNT.size(1),
    }


@torch.no_grad()
def align_tokens(
    log_probabilities_BTV: Tensor, lengths_B: Tensor, tokens_BU: Tensor, token_lengths_B: Tensor
) -> tuple[Tensor, Tensor]:
    """First step and one past the last step of each token on the best path, each (B, U); 0 in the padding.

    Utterances with too few steps for their tokens have no path; theirs are spread evenly.
    """
    max_tokens = tokens_BU.size(1)
    is_token_BU = length_mask(token_lengths_B, max_tokens)
    states_BT = _best_path(log_probabilities_BTV, lengths_B, tokens_BU, token_lengths_B)
    state_BU = (2 * torch.arange(max_tokens, device=tokens_BU.device) + 1).repeat(len(tokens_BU), 1)
    first_BU = torch.searchsorted(states_BT, state_BU)
    past_BU = torch.searchsorted(states_BT, state_BU, right=True).clamp(max=lengths_B[:, None])

    is_repeat_BU = (tokens_BU[:, 1:] == tokens_BU[:, :-1]) & is_token_BU[:, 1:]
    has_path_B1 = (lengths_B >= token_lengths_B + is_repeat_BU.sum(1))[:, None]
    edges_N = torch.arange(max_tokens + 1, device=tokens_BU.device)
    edges_BN = lengths_B[:, None] * edges_N // token_lengths_B.clamp(min=1)[:, None]
    first_BU = torch.where(has_path_B1, first_BU, edges_BN[:, :-1])
    past_BU = torch.where(has_path_B1, past_BU, edges_BN[:, 1:])
    return first_BU * is_token_BU, past_BU * is_token_BU


def _best_path(
    log_probabilities_BTV: Tensor, lengths_B: Tensor, tokens_BU: Tensor, token_lengths_B: Tensor
) -> Tensor:
    """(B, T): the state of each step on the best path (Viterbi): 2u + 1 for token u, even for the blanks.

    A path stays in its state, steps to the next one, or skips the blank between two different tokens.
    """
    batch_size, num_steps, _ = log_probabilities_BTV.shape
    num_states = 2 * tokens_BU.size(1) + 1
    labels_BS = tokens_BU.new_full((batch_size, num_states), BLANK_ID)
    labels_BS[:, 1::2] = tokens_BU
    emissions_BTS = log_probabilities_BTV.float().gather(2, labels_BS[:, None].expand(-1, num_steps, -1))
    may_skip_BS = labels_BS != BLANK_ID
    may_skip_BS[:, 3::2] &= tokens_BU[:, 1:] != tokens_BU[:, :-1]
    skip_BS = torch.where(may_skip_BS, 0.0, -torch.inf)

    # Two columns on the left stand for what comes before the first state: all paths start in the second.
    scores_TBS = emissions_BTS.new_full((num_steps + 1, batch_size, 2 + num_states), -torch.inf)
    scores_TBS[0, :, 1] = 0
    stay_TBS, step_TBS = scores_TBS[:-1, :, 2:], scores_TBS[:-1, :, 1:-1]
    for t, emissions_BS in enumerate(emissions_BTS.unbind(1)):
        best_BS = torch.maximum(stay_TBS[t], step_TBS[t])
        best_BS = torch.maximum(best_BS, scores_TBS[t, :, :-2] + skip_BS)
        scores_TBS[t + 1, :, 2:] = best_BS + emissions_BS

    moves_TBS = (step_TBS > stay_TBS).byte()
    moves_TBS[scores_TBS[:-1, :, :-2] + skip_BS > torch.maximum(stay_TBS, step_TBS)] = 2
    moves_TBS *= length_mask(lengths_B, num_steps).T[:, :, None]  # past its end a path stays where it is
    last_B1 = 2 * token_lengths_B[:, None]
    final_BS = scores_TBS[lengths_B, torch.arange(batch_size, device=lengths_B.device)]
    ends_B2 = final_BS.gather(1, torch.cat([last_B1 + 1, last_B1 + 2], 1))  # the last token, the last blank
    state_B1 = (last_B1 - 1 + ends_B2.argmax(1, keepdim=True)).clamp(min=0)
    path = [state_B1]
    for moves_BS in reversed(moves_TBS[1:].unbind(0)):
        state_B1 = state_B1 - moves_BS.gather(1, state_B1)
        path.append(state_B1)
    return torch.cat(path[::-1], 1)


# --- attention prior --------------------------------------------------------------------------------

# B batch, N rows of attention (tokens and the end), T encoded steps

MIN_DEVIATION = 0.5  # steps


class AttentionPriorConfig(Config):
    """A Gaussian around each token's place on the diagonal, as a factor of attention in training.

    Its logarithm is added to the scores before the softmax, in all layers and heads: the decoder sees about
    the right steps from the first update on. It widens until it is flat, and decoding never has it. That
    teaches a decoder without CTC to attend, which a penalty does not: recipes/fsdd/guided_attention.md.
    """

    width: float = pydantic.Field(default=0.08, gt=0)
    """Standard deviation at first, as a share of the length of the speech."""
    keep_updates: int = pydantic.Field(default=100, ge=0)
    """Updates during which the width stays as it is."""
    end_updates: int = pydantic.Field(default=500, gt=0)
    """Updates after which there is no prior. Until then the width is divided by a factor that falls linearly
    from 1 to 0."""
    trim_silence: bool = True
    """Run the diagonal from the first to the last loud frame, not through silence at the ends."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> AttentionPriorConfig:
        if self.end_updates <= self.keep_updates:
            raise ValueError(
                f"end_updates = {self.end_updates} is not after keep_updates = {self.keep_updates}; raise it"
            )
        return self

    def width_at(self, step: int) -> float | None:
        """The width after so many updates; None: no prior any more."""
        if step >= self.end_updates:
            return None
        share = (self.end_updates - step) / (self.end_updates - self.keep_updates)
        return self.width / min(1.0, share)


def prior_bias(times_BN: Tensor, spans_B2: Tensor, num_steps: int, width: float) -> Tensor:
    """(B, N, T): -(t - time of row n)^2 / (2 (width * length of the speech)^2)."""
    deviation_B = (width * (spans_B2[:, 1] - spans_B2[:, 0])).clamp(min=MIN_DEVIATION)
    steps_T = torch.arange(num_steps, device=times_BN.device)
    distance_BNT = (steps_T - times_BN[..., None]) / deviation_B[:, None, None]
    return -(distance_BNT**2) / 2
