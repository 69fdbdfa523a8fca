"""Guided attention."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
import torch
from torch import Tensor
from torch.nn import functional as F

from asr.config import Config
from asr.models.layers import length_mask
from asr.text.units import BLANK_ID


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


class AttentionClockConfig(Config):
    """A soft window on cross-attention that moves on with each token, in all layers and heads.

    The decoder knows how likely it is to stand at each step. With each token it moves to the right, by
    distances that are learned, and to steps where that token ends, which is learned too, by the cross-entropy
    alone. Part of the model: training and all searches have it. In the first updates a prior
    (`attention_prior`) shows it the way: recipes/guided_attention.md.
    """

    width: float = pydantic.Field(default=2.0, gt=0)
    """Standard deviation of the window, in encoded steps."""
    reach: int = pydantic.Field(default=64, gt=1)
    """It moves by fewer encoded steps than this from token to token; after a longer pause it has to find its
    place anew."""


# B utterances, W beams of each, C candidate tokens of each beam, T encoded steps, V vocabulary

# A probability of e^-10000 is none; as a number, unlike -inf, it can be added up and subtracted again.
NEVER = -1e4


def mask_padding(log_probabilities_BTV: Tensor, lengths_B: Tensor) -> Tensor:
    """A copy whose padding says blank with certainty, which changes no text."""
    is_padding_BT = ~length_mask(lengths_B, log_probabilities_BTV.size(1))
    scores_BTV = log_probabilities_BTV.float().masked_fill(is_padding_BT[..., None], -torch.inf)
    scores_BTV[:, :, BLANK_ID] = scores_BTV[:, :, BLANK_ID].masked_fill(is_padding_BT, 0.0)
    return scores_BTV


class CTCPrefixes:
    """The running prefixes of a batch and their forward variables (Watanabe et al. 2017).

    Kept are, for each t, the log-probabilities of all alignments of the first t steps that spell exactly the
    prefix, and of those that end in blank. Their recursions over the steps are linear, n[t] = p[t] (n[t-1] +
    f[t-1]), and so solved by cumulative sums: with A the cumulative sum of log p, log n[t] = A[t] +
    logcumsumexp(log f[s-1] - A[s-1]) up to t. In float64, since A reaches thousands.
    """

    def __init__(self, log_probabilities_BTV: Tensor, lengths_B: Tensor) -> None:
        scores_BTV = mask_padding(log_probabilities_BTV, lengths_B).clamp(min=NEVER)
        self._scores_BVT = scores_BTV.transpose(1, 2).contiguous()  # the steps of a token lie together
        self._probabilities_BVT: Tensor | None = None
        self._last_step_B11 = (lengths_B - 1).clamp(min=0)[:, None, None]
        blanks_BT = self._scores_BVT[:, BLANK_ID].double()
        self._blanks_before_B1T = _sums_before(blanks_BT)[:, None, :-1]
        self._blanks_B1T = blanks_BT.cumsum(-1)[:, None]
        self._ends_in_blank = _sums_before(blanks_BT)[:, None]  # (B, W, T + 1), as is the next
        self._ends = self._ends_in_blank  # in a token or in blank
        self._last_BW = torch.full_like(lengths_B[:, None], -1)
        self._last_steps_BWT = torch.zeros_like(scores_BTV[:, None, :, 0])  # log-probabilities of the last

    def end_scores(self) -> Tensor:
        """(B, W): log-probability that the prefix is the whole text."""
        return self._ends[:, :, -1]

    def next_token_times(self) -> Tensor:
        """(B, W, T): probability that the next token, whichever it is, begins at each step, given the prefix.

        What may follow a path does not depend on how it goes on, so no step after t has a say. The last step
        has the probability that nothing follows, too; and all of it where there is no path, too few steps.
        """
        most_BW1 = self._ends.amax(-1, keepdim=True).clamp(min=NEVER * self._ends.size(-1))
        ends_BWT, in_blank_BWT = (
            (part - most_BW1).float().exp() for part in (self._ends, self._ends_in_blank)
        )
        others_B1T = 1 - self._scores_BVT[:, None, BLANK_ID].exp()
        repeats_BWT = (ends_BWT - in_blank_BWT)[:, :, :-1] * self._last_steps_BWT.exp()  # of the same token
        begins_BWT = (ends_BWT[:, :, :-1] * others_B1T - repeats_BWT).clamp(min=0)
        last_BW1 = self._last_step_B11.expand(-1, begins_BWT.size(1), -1)
        begins_BWT.scatter_add_(2, last_BW1, ends_BWT[:, :, -1:])
        is_lost_BW1 = most_BW1 < NEVER / 2
        begins_BWT = begins_BWT.masked_fill(is_lost_BW1, 0).scatter_add(2, last_BW1, is_lost_BW1.float())
        return begins_BWT / begins_BWT.sum(-1, keepdim=True).clamp(min=1e-30)

    def candidate_scores(self, candidates_BWC: Tensor) -> Tensor:
        """(B, W, C): log-probability that the text begins with the prefix and then the candidate."""
        before_BWT = self._ends[:, :, :-1]
        most_BW1 = before_BWT.amax(-1, keepdim=True).clamp(min=NEVER * before_BWT.size(-1))
        paths_BWCT = (before_BWT - most_BW1).float()[:, :, None] + self._steps_of(candidates_BWC)
        scores_BWC = most_BW1 + _log_sum(paths_BWCT).double()
        # The same token again needs a blank in between; one candidate of a beam at most is its last token.
        is_repeat_BWC = candidates_BWC == self._last_BW[..., None]
        paths_BWT = (self._ends_in_blank[:, :, :-1] - most_BW1).float() + self._last_steps_BWT
        return torch.where(is_repeat_BWC, most_BW1 + _log_sum(paths_BWT)[..., None], scores_BWC)

    def all_scores(self) -> Tensor:
        """(B, W, V), as `candidate_scores` of every token, but roughly: to choose the candidates by.

        One product of matrices: blanks between repeats are not asked for, and what is less likely than e^-80
        is as unlikely as that.
        """
        if self._probabilities_BVT is None:
            self._probabilities_BVT = self._scores_BVT.exp()
        before_BWT = self._ends[:, :, :-1]
        most_BW1 = before_BWT.amax(-1, keepdim=True).clamp(min=100 * NEVER)
        shares_BWT = (before_BWT - most_BW1).float().clamp(min=-80).exp()
        return (shares_BWT @ self._probabilities_BVT.mT).clamp(min=1e-35).log() + most_BW1.float()

    def advance(self, parents_BW: Tensor, tokens_BW: Tensor) -> None:
        """New beams: each is the prefix of its parent (a beam of before) and one more token."""
        index_BWT = parents_BW[..., None].expand(-1, -1, self._ends.size(-1))
        in_blank, all_ends = self._ends_in_blank.gather(1, index_BWT), self._ends.gather(1, index_BWT)
        is_repeat_BW1 = (tokens_BW == self._last_BW.gather(1, parents_BW))[..., None]
        before_BWT = torch.where(is_repeat_BW1, in_blank, all_ends)[:, :, :-1]

        self._last_steps_BWT = self._steps_of(tokens_BW)
        sums_BWT = _sums_before(self._last_steps_BWT.double())
        in_token_BWT = sums_BWT[..., 1:] + _log_sums(before_BWT - sums_BWT[..., :-1])
        none_BW1 = torch.full_like(in_token_BWT[..., :1], -torch.inf)
        in_token = torch.cat([none_BW1, in_token_BWT], dim=-1)
        in_blank_BWT = self._blanks_B1T + _log_sums(in_token[..., :-1] - self._blanks_before_B1T)
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

    def _steps_of(self, tokens: Tensor) -> Tensor:
        """(B, ..., T): the log-probabilities of each token at each step."""
        batch, vocabulary, num_steps = self._scores_BVT.shape
        first_row = torch.arange(batch, device=tokens.device).view(-1, *(1 for _ in tokens.shape[1:]))
        rows = (tokens + first_row * vocabulary).flatten()
        return self._scores_BVT.view(-1, num_steps).index_select(0, rows).view(*tokens.shape, num_steps)


def _log_sum(scores: Tensor) -> Tensor:
    """logsumexp over the last dimension, in place.

    Not PyTorch's own: terms too small for a float32 (below e^-87) make its exponential ten times slower.
    """
    most = scores.amax(-1, keepdim=True)
    scores = scores.sub_(most.clamp(min=100 * NEVER)).clamp_(min=-80)  # all may be -inf: none is subtracted
    return scores.exp_().sum(-1).log_().add_(most[..., 0])


def _log_sums(scores: Tensor) -> Tensor:
    """logcumsumexp over the last dimension by doubling strides: few passes, each of them quick."""
    stride, length = 1, scores.size(-1)
    while stride < length:
        sums = torch.logaddexp(scores[..., stride:], scores[..., :-stride])
        scores = torch.cat([scores[..., :stride], sums], dim=-1)
        stride *= 2
    return scores


def _sums_before(scores: Tensor) -> Tensor:
    """Cumulative sums with a 0 in front: (..., T) to (..., T + 1)."""
    return torch.nn.functional.pad(scores.cumsum(-1), (1, 0))


# B utterances, W texts (or beams) of each, U tokens, N = U + 1 with the end, T encoded steps, V vocabulary

ELSEWHERE = 1e-8  # attention far from the window; not 0, which CTC might be sure of at no step


class AttentionGuideConfig(Config):
    """A soft window on cross-attention around the step where CTC has the next token, in all layers and heads.

    Part of the model: whatever asks the decoder keeps to it, so that it never has to find its place, however
    long the recording is. Let the decoder see few tokens back, too (`decoder.window`), and the encoder few
    steps (`encoder.window`), lest these know the lengths of training: recipes/guided_attention.md.
    """

    width: float = pydantic.Field(default=2.0, gt=0)
    """Standard deviation of the window, in encoded steps."""
    ctc_threshold: float = pydantic.Field(default=1.0, gt=0)
    """In training, an utterance has the window as soon as its CTC loss per token is below this. Until then
    its attention is free, or has the prior."""


class AttentionGuide:
    """A Gaussian of `width` steps around where CTC has the next token, for each text; nothing to train."""

    def __init__(self, width: float, num_steps: int, device: torch.device) -> None:
        steps_T = torch.arange(num_steps, device=device)
        self._window_TT = torch.exp(-(((steps_T - steps_T[:, None]) / width) ** 2) / 2)

    def compute_bias(self, times: Tensor) -> Tensor:
        """(..., T), to be added to the scores, from the probability of each step to have the next token."""
        return (times @ self._window_TT + ELSEWHERE).log()


def guide_texts(ctc_BTV: Tensor, lengths_B: Tensor, tokens_BWU: Tensor, width: float) -> Tensor:
    """(R, N, T), added to the scores of cross-attention before each token of these R = B x W texts."""
    times_BWNT = follow_texts(ctc_BTV, lengths_B, tokens_BWU)
    return AttentionGuide(width, ctc_BTV.size(1), ctc_BTV.device).compute_bias(times_BWNT).flatten(0, 1)


@torch.no_grad()
def follow_texts(ctc_BTV: Tensor, lengths_B: Tensor, tokens_BWU: Tensor) -> Tensor:
    """(B, W, N, T): `CTCPrefixes.next_token_times` before each token of these texts and after the last."""
    prefixes = CTCPrefixes(ctc_BTV, lengths_B)
    times = [prefixes.next_token_times().expand(-1, tokens_BWU.size(1), -1)]
    parents_BW = torch.zeros(tokens_BWU.shape[:2], dtype=torch.long, device=tokens_BWU.device)
    for tokens_BW in tokens_BWU.unbind(2):
        prefixes.advance(parents_BW, tokens_BW)
        times.append(prefixes.next_token_times())
        parents_BW = torch.arange(tokens_BW.size(1), device=tokens_BW.device).expand_as(parents_BW)
    return torch.stack(times, dim=2)
