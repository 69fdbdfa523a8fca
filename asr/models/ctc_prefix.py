"""CTC prefix scores of all beams and candidates at once: how likely a text begins with the prefix."""

from __future__ import annotations

import torch
from torch import Tensor

from asr.models.layers import length_mask
from asr.text.units import BLANK_ID

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
