"""Guided attention: where cross-attention is to look, taught by a penalty or a prior, or kept by a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pydantic
import torch
from torch import Tensor
from torch.nn import functional as F

from asr.config import Config
from asr.features.front_end import speech_spans
from asr.models.decoders import AnyDecoder, Decoder, DecoderLoss, Encoded, WeightsOf
from asr.models.layers import length_mask
from asr.models.losses import CTC, Targets
from asr.text.tokenizer import BLANK_ID

# B batch, W texts (or beams) of each, U tokens, N rows of attention (tokens and the end), T encoded steps,
# V vocabulary, H heads, C candidate tokens of each beam

PRIOR_WIDTH = 0.08  # standard deviation of the prior at first, as a share of the length of the speech
MIN_DEVIATION = 0.5  # steps
ELSEWHERE = 1e-8  # attention far from the window; not 0, which CTC might be sure of at no step


class AttentionLossConfig(Config):
    """A penalty on attention that strays from the diagonal: 1 - exp(-(distance / T)^2 / (2 sigma^2)).

    On the diagonal, the tokens are spread evenly over the speech.
    """

    weight: float = pydantic.Field(default=1.0, gt=0)
    """Initial weight of the penalty in the loss. The penalty of a token lies between 0 and 1. Beside CTC, 0.1
    may help the decoder as much as 1, and costs the CTC head less: recipes/fsdd/guided_attention.md."""
    sigma: float = pydantic.Field(default=0.2, gt=0)
    """Tolerance, as a share of the utterance's length (0.2 and 0.4 are usual in speech synthesis)."""
    half_life: int | None = pydantic.Field(default=None, gt=0)
    """Updates after which the weight is halved, exponentially; null: it stays."""

    def weight_at(self, step: int) -> float:
        return self.weight if self.half_life is None else self.weight * 0.5 ** (step / self.half_life)


class AttentionPriorConfig(Config):
    """A Gaussian around each token's place on the diagonal, as a factor of attention in training.

    Its logarithm is added to the scores before the softmax, in all layers and heads: the decoder sees about
    the right steps from the first update on. It widens until it is flat, and decoding never has it. That
    teaches a decoder without CTC to attend, which a penalty does not: recipes/fsdd/guided_attention.md.
    """

    keep_updates: int = pydantic.Field(default=100, ge=0)
    """Updates during which the width stays as it is, 8 % of the length of the speech."""
    end_updates: int = pydantic.Field(default=500, gt=0)
    """Updates after which there is no prior. Until then the width is divided by a factor that falls linearly
    from 1 to 0."""

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
        return PRIOR_WIDTH / min(1.0, share)


class AttentionWindowConfig(Config):
    """A soft window on cross-attention around the place of the next token, in all layers and heads.

    Part of the model: training and all searches have it, so that the decoder never has to find its place,
    however long the recording is. Let the decoder see few tokens back, too (`decoder.window`), and the
    encoder few steps (`encoder.window`), lest these know the lengths of training.
    See recipes/guided_attention.md.
    """

    follows: Literal["ctc", "itself"] = "ctc"
    """ctc: the place where the CTC head has the next token. itself: the decoder keeps track of its place, and
    moves to the right with each token by distances that the cross-entropy teaches; give it a prior."""
    width: float = pydantic.Field(default=2.0, gt=0)
    """Standard deviation of the window, in encoded steps."""
    ctc_threshold: float = pydantic.Field(default=1.0, gt=0)
    """CTC loss per token below which an utterance has the window in training, with follows: ctc. Until then
    its attention is free, or has the prior."""


class GuidedAttentionConfig(Config):
    """How cross-attention is led along the recording. Each part may go with any other."""

    loss: AttentionLossConfig | None = None
    """Pushes attention to run from left to right, in training; null: no push."""
    prior: AttentionPriorConfig | None = None
    """Holds attention near the diagonal in the first updates, then lets go; null: none."""
    window: AttentionWindowConfig | None = None
    """Keeps attention to where the next token is, in training and decoding; null: it is free."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> GuidedAttentionConfig:
        if not self.model_fields_set:
            raise ValueError("guides nothing: give it a loss, a prior or a window, or set it to null")
        return self

    @property
    def needs_ctc(self) -> bool:
        """True if its window follows the CTC head."""
        return self.window is not None and self.window.follows == "ctc"


@dataclass(frozen=True)
class GuidedBatch:
    """A batch as guided attention sees it."""

    targets: Targets
    encoded: Encoded
    ctc: CTC | None
    audio: tuple[Tensor, Tensor, Tensor | None]
    """Features, their lengths, and in which frames speech lies, if that is known."""
    step: int | None
    """Number of updates so far; None: not in training."""

    def find_diagonal(self, factor: int, *, trim: bool = True) -> tuple[Tensor, Tensor]:
        """Start and end of the speech (B, 2), and the times of rows (B, N), in steps of `factor` frames."""
        features_BTF, lengths_B, spans_B2 = self.audio
        if not trim:
            spans_B2 = torch.stack([torch.zeros_like(lengths_B), lengths_B], dim=1)
        elif spans_B2 is None:
            spans_B2 = speech_spans(features_BTF, lengths_B)
        spans_B2, num_rows = spans_B2 / factor, self.targets.tokens_BU.size(1) + 1
        return spans_B2, diagonal_times(spans_B2, self.targets.num_rows_B, num_rows)


class GuidedAttention:
    """The parts of a model's config that lead its decoder: biases of attention, and a loss.

    Training and the searches ask it, and need not know which parts there are.
    """

    def __init__(self, config: GuidedAttentionConfig | None, subsampling_factor: int) -> None:
        config = config or GuidedAttentionConfig(loss=None)
        self.loss, self.prior, self._factor = config.loss, config.prior, subsampling_factor
        follows_ctc = config.window is not None and config.window.follows == "ctc"
        self.ctc_window = config.window if follows_ctc else None
        self.own_window = None if follows_ctc else config.window

    @property
    def ctc_width(self) -> float | None:
        """Width of the window that searches keep to where CTC has the next token; None: there is none."""
        return None if self.ctc_window is None else self.ctc_window.width

    def wrap(self, decoder: AnyDecoder, memory_dim: int, vocab_size: int) -> AnyDecoder:
        """The decoder; with a window that follows itself, this is a part of it."""
        if self.own_window is None:
            return decoder
        assert isinstance(decoder, Decoder)
        from asr.research.attention_clock import ClockedDecoder

        return ClockedDecoder(self.own_window.width, decoder, memory_dim, vocab_size)

    def find_bias(self, batch: GuidedBatch) -> Tensor | None:
        """(B, N, T), added to the scores of attention."""
        bias_BNT, step = None, batch.step
        if self.prior is not None and step is not None and (width := self.prior.width_at(step)) is not None:
            spans_B2, times_BN = batch.find_diagonal(self._factor)
            bias_BNT = prior_bias(times_BN, spans_B2, batch.encoded[0].size(1), width)
        if self.ctc_window is None:
            return bias_BNT
        assert batch.ctc is not None
        is_guided_B = torch.ones_like(batch.encoded[1], dtype=torch.bool)
        if step is not None:
            is_guided_B = batch.ctc.aligns(batch.targets, self.ctc_window.ctc_threshold)
        if not is_guided_B.any():
            return bias_BNT
        texts = (batch.encoded[1], batch.targets.tokens_BU[:, None])
        window_BNT = guide_texts(batch.ctc.log_probabilities_BTV.detach(), *texts, self.ctc_window.width)
        others_BNT = torch.zeros_like(window_BNT) if bias_BNT is None else bias_BNT
        return torch.where(is_guided_B[:, None, None], window_BNT, others_BNT)

    def watch(self, decoder: AnyDecoder, batch: GuidedBatch) -> WeightsOf:
        """The heads whose attention `measure` is to see: all for a penalty, else on dev the last layer's."""
        if self.loss is not None:
            return {layer: tuple(range(decoder.num_heads)) for layer in range(decoder.num_layers)}
        return decoder.last_heads if batch.step is None else {}

    def measure(
        self, decoder_loss: DecoderLoss, batch: GuidedBatch
    ) -> tuple[Tensor | float, dict[str, Tensor]]:
        """The weighted penalty, and measures of the attention watched."""
        if not decoder_loss.weights:
            return 0.0, {}
        weights_BHNT = torch.cat(list(decoder_loss.weights.values()), dim=1)
        _, times_BN = batch.find_diagonal(self._factor, trim=self.loss is not None)
        rows = (times_BN[:, : weights_BHNT.size(2)], decoder_loss.num_rows_B, batch.encoded[1])
        parts = attention_measures(weights_BHNT.detach(), *rows)
        if self.loss is None or batch.step is None:
            return 0.0, parts
        penalty = guided_attention_loss(weights_BHNT, *rows, self.loss.sigma)
        return self.loss.weight_at(batch.step) * penalty, parts | {"guided_attention": penalty}


# --- penalty and prior ------------------------------------------------------------------------------


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
    steps_T = torch.arange(weights_BHNT.size(-1), device=times_BN.device)
    distance_BNT = (steps_T - times_BN[..., None]) / lengths_B.clamp(min=1)[:, None, None]
    penalty_BNT = 1 - torch.exp(-(distance_BNT**2) / (2 * sigma**2))
    is_row_BN = length_mask(num_rows_B, weights_BHNT.size(2))
    is_step_BT = length_mask(lengths_B, weights_BHNT.size(3))
    valid_BNT = is_row_BN[:, :, None] & is_step_BT[:, None, :]
    return (weights_BHNT * (penalty_BNT * valid_BNT)[:, None]).sum() / weights_BHNT.size(1)


def attention_measures(
    weights_BHNT: Tensor, times_BN: Tensor, num_rows_B: Tensor, lengths_B: Tensor
) -> dict[str, Tensor]:
    """Measure attention: its mean distance from the diagonal, a share of T; how often it does not step back.

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


def prior_bias(times_BN: Tensor, spans_B2: Tensor, num_steps: int, width: float) -> Tensor:
    """(B, N, T): -(t - time of row n)^2 / (2 (width * length of the speech)^2)."""
    deviation_B = (width * (spans_B2[:, 1] - spans_B2[:, 0])).clamp(min=MIN_DEVIATION)
    steps_T = torch.arange(num_steps, device=times_BN.device)
    distance_BNT = (steps_T - times_BN[..., None]) / deviation_B[:, None, None]
    return -(distance_BNT**2) / 2


# --- prefixes by CTC ----------------------------------------------------------------------------------

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


# --- window -----------------------------------------------------------------------------------------


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
