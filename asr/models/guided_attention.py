"""Guided attention: a penalty or a prior teaches cross-attention where to attend, or a window limits it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import pydantic
import torch
from torch import Tensor

from asr.config import Config
from asr.features.front_end import speech_spans
from asr.models.decoders import AnyDecoder, CTCPrefixes, DecoderLoss, Encoded, TeacherForcing
from asr.models.layers import length_mask
from asr.models.losses import Targets

# B batch, W texts (or beams) per utterance, U tokens, N attention rows (tokens and the end), T encoded steps,
# V vocabulary, H heads, C candidate tokens per beam

SIGMA = 0.2  # tolerance of the penalty, relative to the length of the utterance
PRIOR_WIDTH = 0.08  # initial standard deviation of the prior, relative to the length of the speech
MIN_DEVIATION = 0.5  # smallest standard deviation of the prior, in steps
WINDOW_FLOOR = 1e-8  # factor far from the window; not 0, because CTC may give all steps probability 0


class AttentionLossConfig(Config):
    """A penalty on attention that strays from the diagonal: 1 - exp(-(distance / T)^2 / (2 sigma^2)).

    On the diagonal, the tokens are spread evenly over the speech.
    """

    weight: float = pydantic.Field(default=1.0, gt=0)
    """Initial weight of the penalty in the loss; a token's penalty is between 0 and 1. Together with CTC, 0.1
    may help the decoder as much as 1, at less cost for the CTC head: recipes/fsdd/guided_attention.md."""
    half_life: int | None = pydantic.Field(default=None, gt=0)
    """Number of updates in which the weight decays exponentially to half; null: it is constant."""

    def weight_at(self, step: int) -> float:
        return self.weight if self.half_life is None else self.weight * 0.5 ** (step / self.half_life)


class AttentionPriorConfig(Config):
    """A Gaussian around each token's position on the diagonal, multiplied with attention in training.

    The decoder attends to roughly the right steps from the first update on. The Gaussian then widens until it
    is flat, and decoding never uses it: recipes/guided_attention.md.
    """

    end_updates: int = pydantic.Field(default=500, gt=0)
    """Number of updates after which there is no prior. Its width is 8 % of the length of the speech in the
    first fifth of them; then it is divided by a factor that falls linearly from 1 to 0."""

    def width_at(self, step: int) -> float | None:
        """Return the width after `step` updates; None if the prior has ended."""
        if step >= self.end_updates:
            return None
        ratio = (self.end_updates - step) / (self.end_updates - self.end_updates // 5)
        return PRIOR_WIDTH / min(1.0, ratio)


class AttentionWindowConfig(Config):
    """A soft window on cross-attention around the position of the next token, in all layers and heads.

    It applies in training and in all searches. Also limit the tokens that the decoder sees (`decoder.window`)
    and the steps that the encoder sees (`encoder.window`), so that they do not learn the training lengths.
    """

    follows: Literal["ctc", "itself"] = "ctc"
    """ctc: the window is where the CTC head expects the next token. itself: the decoder tracks its position,
    and learns from the cross-entropy how far to move right with each token; combine it with a prior."""
    width: float = pydantic.Field(default=2.0, gt=0)
    """Standard deviation of the window, in encoded steps."""
    ctc_threshold: float = pydantic.Field(default=1.0, gt=0)
    """Threshold of the CTC loss per token, for `follows: ctc`. In training, only utterances below it have the
    window; the attention of others is free, or has the prior."""


class GuidedAttentionConfig(Config):
    """Guides cross-attention along the recording. Parts may be combined freely."""

    loss: AttentionLossConfig | None = None
    """Guided attention loss in training, which penalizes attention off the diagonal; null: none."""
    prior: AttentionPriorConfig | None = None
    """Annealed diagonal prior, which keeps attention near the diagonal in the first updates; null: none."""
    window: AttentionWindowConfig | None = None
    """Limits attention to where the next token is, in training and decoding; null: no limit."""


@dataclass(frozen=True)
class GuidedBatch:
    """The parts of a batch that guided attention needs."""

    targets: Targets
    encoded: Encoded
    ctc_BTV: Tensor | None
    ctc_loss_B: Tensor | None
    audio: tuple[Tensor, Tensor, Tensor | None]
    """Features, their lengths, and the span of speech in frames, or None if it was not computed."""
    step: int | None  # number of updates so far; None: not in training

    def find_diagonal(self, factor: int) -> tuple[Tensor, Tensor]:
        """Return start and end of the speech (B, 2) and row times (B, N), in steps of `factor` frames."""
        features_BTF, lengths_B, spans_B2 = self.audio
        if spans_B2 is None:
            spans_B2 = speech_spans(features_BTF, lengths_B)
        spans_B2, num_rows = spans_B2 / factor, self.targets.tokens_BU.size(1) + 1
        return spans_B2, diagonal_times(spans_B2, self.targets.num_rows_B, num_rows)


class GuidedAttention:
    """Guides a decoder's attention as configured, with biases on its scores and an additional loss."""

    def __init__(self, config: GuidedAttentionConfig, subsampling_factor: int) -> None:
        self.loss, self.prior = config.loss, config.prior
        follows_ctc = config.window is not None and config.window.follows == "ctc"
        self.window = config.window if follows_ctc else None  # with `itself`, the decoder has the window
        self._factor = subsampling_factor

    def find_bias(self, batch: GuidedBatch) -> Tensor | None:
        """Return the bias (B, N, T) that is added to the attention scores; None if there is none."""
        bias_BNT, step = None, batch.step
        if self.prior is not None and step is not None and (width := self.prior.width_at(step)) is not None:
            spans_B2, times_BN = batch.find_diagonal(self._factor)
            bias_BNT = prior_bias(times_BN, spans_B2, batch.encoded[0].size(1), width)
        if self.window is None:
            return bias_BNT
        assert batch.ctc_BTV is not None and batch.ctc_loss_B is not None
        is_guided_B = torch.ones_like(batch.encoded[1], dtype=torch.bool)
        if step is not None:
            # The loss is 0 if there are too few steps for the tokens and therefore no alignment.
            loss_B, lengths_B = batch.ctc_loss_B.detach(), batch.targets.lengths_B
            is_guided_B = (loss_B > 0) & (loss_B < self.window.ctc_threshold * lengths_B)
        if not is_guided_B.any():
            return bias_BNT
        texts = (batch.encoded[1], batch.targets.tokens_BU[:, None])
        window_BNT = ctc_window_bias(batch.ctc_BTV.detach(), *texts, self.window.width)
        others_BNT = torch.zeros_like(window_BNT) if bias_BNT is None else bias_BNT
        return torch.where(is_guided_B[:, None, None], window_BNT, others_BNT)

    def compute_loss(
        self, decoder: AnyDecoder, batch: GuidedBatch, label_smoothing: float
    ) -> tuple[DecoderLoss, Tensor | float]:
        """Return the decoder's loss with these biases and, in training, the weighted penalty."""
        forcing = TeacherForcing(label_smoothing, self.find_bias(batch))
        if self.loss is None or batch.step is None:
            return decoder.compute_loss(batch.targets, batch.encoded, {}, forcing), 0.0
        all_heads = dict.fromkeys(range(decoder.num_layers), tuple(range(decoder.num_heads)))
        decoder_loss = decoder.compute_loss(batch.targets, batch.encoded, all_heads, forcing)
        weights_BHNT = torch.cat(list(decoder_loss.weights.values()), dim=1)
        _, times_BN = batch.find_diagonal(self._factor)
        rows = (times_BN[:, : weights_BHNT.size(2)], decoder_loss.num_rows_B, batch.encoded[1])
        penalty = guided_attention_loss(weights_BHNT, *rows)
        parts = decoder_loss.parts | {"guided_attention": penalty}
        return replace(decoder_loss, parts=parts), self.loss.weight_at(batch.step) * penalty


# --- penalty and prior ------------------------------------------------------------------------------


def diagonal_times(spans_B2: Tensor, num_rows_B: Tensor, max_rows: int) -> Tensor:
    """Return row times (B, N) in steps: row n is at n / N of the way from start to end of the speech.

    Padding rows are at the end, because a prior far outside the recording is not finite in float16.
    """
    rows_N = torch.arange(max_rows, device=spans_B2.device)
    ratio_BN = (rows_N / num_rows_B[:, None]).clamp(max=1)
    start_B1, end_B1 = spans_B2[:, :1], spans_B2[:, 1:]
    return start_B1 + ratio_BN * (end_B1 - start_B1)


def guided_attention_loss(
    weights_BHNT: Tensor, times_BN: Tensor, num_rows_B: Tensor, lengths_B: Tensor
) -> Tensor:
    """Return the penalty, weighted by each row's attention, summed over rows and averaged over heads.

    Only real rows and steps count, so padding has no effect. An attention row sums to one, so its penalty is
    between 0 and 1 for both short and long utterances.
    """
    steps_T = torch.arange(weights_BHNT.size(-1), device=times_BN.device)
    distance_BNT = (steps_T - times_BN[..., None]) / lengths_B.clamp(min=1)[:, None, None]
    penalty_BNT = 1 - torch.exp(-(distance_BNT**2) / (2 * SIGMA**2))
    is_row_BN = length_mask(num_rows_B, weights_BHNT.size(2))
    is_step_BT = length_mask(lengths_B, weights_BHNT.size(3))
    valid_BNT = is_row_BN[:, :, None] & is_step_BT[:, None, :]
    return (weights_BHNT * (penalty_BNT * valid_BNT)[:, None]).sum() / weights_BHNT.size(1)


def prior_bias(times_BN: Tensor, spans_B2: Tensor, num_steps: int, width: float) -> Tensor:
    """Return the bias (B, N, T): -(t - time of row n)^2 / (2 (width * length of the speech)^2)."""
    deviation_B = (width * (spans_B2[:, 1] - spans_B2[:, 0])).clamp(min=MIN_DEVIATION)
    steps_T = torch.arange(num_steps, device=times_BN.device)
    distance_BNT = (steps_T - times_BN[..., None]) / deviation_B[:, None, None]
    return -(distance_BNT**2) / 2


# --- window -----------------------------------------------------------------------------------------


class GaussianWindow:
    """A Gaussian window of `width` steps around the position of the next token, without parameters."""

    def __init__(self, width: float, num_steps: int, device: torch.device) -> None:
        steps_T = torch.arange(num_steps, device=device)
        self._window_TT = torch.exp(-(((steps_T - steps_T[:, None]) / width) ** 2) / 2)

    def compute_bias(self, times: Tensor) -> Tensor:
        """Return the bias (..., T) on attention scores, given the posterior of the next token's position."""
        return (times @ self._window_TT + WINDOW_FLOOR).log()


def ctc_window_bias(ctc_BTV: Tensor, lengths_B: Tensor, tokens_BWU: Tensor, width: float) -> Tensor:
    """Return the cross-attention bias (R, N, T) before each token of these R = B x W texts."""
    times_BWNT = ctc_token_times(ctc_BTV, lengths_B, tokens_BWU)
    return GaussianWindow(width, ctc_BTV.size(1), ctc_BTV.device).compute_bias(times_BWNT).flatten(0, 1)


@torch.no_grad()
def ctc_token_times(ctc_BTV: Tensor, lengths_B: Tensor, tokens_BWU: Tensor) -> Tensor:
    """Return `CTCPrefixes.next_token_times` (B, W, N, T) before each token and after the last."""
    prefixes = CTCPrefixes(ctc_BTV, lengths_B)
    times = [prefixes.next_token_times().expand(-1, tokens_BWU.size(1), -1)]
    parents_BW = torch.zeros(tokens_BWU.shape[:2], dtype=torch.long, device=tokens_BWU.device)
    for tokens_BW in tokens_BWU.unbind(2):
        prefixes.advance(parents_BW, tokens_BW)
        times.append(prefixes.next_token_times())
        parents_BW = torch.arange(tokens_BW.size(1), device=tokens_BW.device).expand_as(parents_BW)
    return torch.stack(times, dim=2)
