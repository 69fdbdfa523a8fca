"""Input and output of a search: its settings, encoded audio and its best CTC path, ranked hypotheses."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import pydantic
import torch
from torch import Tensor
from torch.nn import functional as F

from asr.config import Config
from asr.decoding.methods import METHODS, Method
from asr.models import SpeechModel
from asr.models.layers import length_mask
from asr.text.units import BLANK_ID, UNK_ID

# B utterances, T encoded steps, D dimension, U tokens, V vocabulary


class DecodingConfig(Config):
    """Settings of the search for the best token sequence."""

    method: Method = "auto"
    """ctc_greedy: the likeliest token of each step. ctc_beam: the likeliest text under the CTC head.
    attention: under the decoder, token by token. joint: under both at once. rescoring: the texts of ctc_beam,
    ranked by both. parallel: by a non-autoregressive decoder, all tokens at once.
    auto: parallel, joint, attention or ctc_beam, by the heads that the model has."""
    beam: int = pydantic.Field(default=10, gt=0)
    """Hypotheses kept at each step; 1 is greedy. With parallel, lengths of the text that are tried, if the
    decoder predicts it."""
    nbest: int = pydantic.Field(default=1, gt=0)
    """Hypotheses to return for each utterance, at most; no more than beam."""
    ctc_weight: float = pydantic.Field(default=0.3, ge=0, le=1)
    """Share of CTC in the score with joint and rescoring; the rest is the decoder's."""
    language_model_weight: float = pydantic.Field(default=0.0, ge=0)
    """How much of a language model's log-probability is added."""
    length_bonus: float = 0.0
    """Added for each token: above 0 for longer texts, with a language model above all."""
    length_normalization: float = pydantic.Field(default=0.0, ge=0)
    """The score is divided by the number of tokens, the end among them, to this power; 1 makes it a mean."""
    end_margin: float | None = pydantic.Field(default=2.0, ge=0)
    """With attention: a text may end where the log-probability of the end is at most this far below that of
    the likeliest token; null: anywhere. Wide beams else prefer texts that end early, since these have fewer
    factors, and drop half of a long utterance. (With joint, CTC sees to that.)"""
    max_tokens: int | None = pydantic.Field(default=None, gt=0)
    """Of a text, unless its length follows from CTC's steps (so with attention, joint, parallel without
    gaps, CTC with a language model). null: one for each encoded step, which CTC never exceeds; without a CTC
    head one for every two frames of features; with parallel_end one for each query."""
    guide_width: float | None = pydantic.Field(default=None, gt=0)
    """With joint and attention: cross-attention keeps to a soft window around the encoded step where CTC has
    its next token (a Gaussian of this standard deviation in steps; 2, say). null: as in training, so that it
    looks everywhere unless the model has an attention_guide. For recordings longer than those of training:
    recipes/guided_attention.md."""
    mask_threshold: float = pydantic.Field(default=0.999, ge=0, le=1)
    """With parallel, for a decoder of type mask_ctc: tokens to which the CTC head gives less become gaps."""
    speeds: tuple[Annotated[float, pydantic.Field(ge=0.5, le=2)], ...] = (1.0,)
    """Tempo and pitch at which each utterance is decoded, such as [0.85, 1.0, 1.15]; the text with the fewest
    faults under `checks`, then the one that CTC, or without it the decoder, finds likeliest is taken. For
    voices higher or lower than those of training. Each speed costs as much as the first."""
    iterations: int = pydantic.Field(default=10, gt=0)
    """With parallel, for a decoder of type mask_ctc: passes in which the gaps are filled, at most."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> DecodingConfig:
        if not self.speeds or len(set(self.speeds)) < len(self.speeds):
            raise ValueError(f"speeds = {list(self.speeds)}: expected at least one, and each only once")
        self._refuse_what_the_method_ignores()
        if self.guide_width is not None and self.ctc_weight == 1:
            raise ValueError(
                f"guide_width = {self.guide_width} is about a decoder, which ctc_weight = 1 leaves out; "
                "lower it"
            )
        if self.nbest > self.beam:
            raise ValueError(
                f"nbest = {self.nbest}, but a beam of {self.beam} finds no more than that; "
                f"set beam to {self.nbest} or more"
            )
        return self

    def _refuse_what_the_method_ignores(self) -> None:
        """Refuse settings that the method has no use for; with auto, the model decides."""
        if self.method == "auto":
            return
        for setting in dict.fromkeys(name for method in METHODS.values() for name in method.settings):
            users = [name for name, method in METHODS.items() if setting in method.settings]
            others = [name for name in METHODS if name not in users]
            needs = f"method = {' or '.join(users)}"
            if len(others) < len(users):
                needs = f"another method than {' or '.join(others)}"
            self.refuse_idle(self.method in users, needs, setting)


@dataclass(frozen=True)
class Hypothesis:
    """One possible text of an utterance, and how likely it is."""

    tokens: tuple[int, ...]
    """Without start and end."""
    score: float
    """What it was ranked by; weights, bonus and normalisation are in it."""
    log_probability: float = math.nan
    """Of the tokens and the end under the decoder, summed; nan where it was not asked. Of mask_ctc: of the
    tokens that it filled in, and under the CTC head of the others."""
    ctc_log_probability: float = math.nan
    """Of the text under the CTC head, all alignments summed; nan where it was not asked."""
    attended_steps: tuple[float, ...] = ()
    """For each token and the end, the encoded step that the decoder's last layer looked at on average: where
    these jump back or stand still, the decoder repeats or invents. Empty where no decoder was asked, or one
    that does not attend."""

    @property
    def likelihood(self) -> float:
        """Log-probability without a language model, by which texts at different speeds are compared.

        CTC's before the decoder's, which takes a likely text for one that fits the audio.
        """
        return self.log_probability if math.isnan(self.ctc_log_probability) else self.ctc_log_probability


NBest = list[list[Hypothesis]]
"""Of each utterance, best first."""


@dataclass(frozen=True, eq=False)
class EncodedAudio:
    """A batch as the encoder leaves it. CTC's posteriors are computed once, when they are asked for."""

    model: SpeechModel
    encoded_BTD: Tensor
    lengths_B: Tensor

    @functools.cached_property
    def ctc_BTV(self) -> Tensor:
        """Log-probabilities of the CTC head."""
        return self.model.ctc_log_probabilities(self.encoded_BTD)

    @functools.cached_property
    def ctc_paths(self) -> BestPaths:
        return find_best_paths(self.ctc_BTV, self.lengths_B)

    def select(self, rows: Tensor) -> EncodedAudio:
        """Some of the utterances, without steps that are padding of all of them."""
        lengths = self.lengths_B[rows]
        longest = max(1, int(lengths.max()))
        if len(rows) == len(self.lengths_B) and longest == self.encoded_BTD.size(1):
            return self
        chosen = EncodedAudio(self.model, self.encoded_BTD[rows, :longest], lengths)
        if "ctc_BTV" in self.__dict__:
            chosen.__dict__["ctc_BTV"] = self.ctc_BTV[rows, :longest]
        return chosen


def join_encoded(parts: Sequence[EncodedAudio]) -> EncodedAudio:
    """The utterances of all parts, one part after the other, padded to the longest."""
    if len(parts) == 1:
        return parts[0]
    longest = max(part.encoded_BTD.size(1) for part in parts)

    def join(tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([F.pad(x_BTN, (0, 0, 0, longest - x_BTN.size(1))) for x_BTN in tensors])

    joined = EncodedAudio(
        parts[0].model,
        join([part.encoded_BTD for part in parts]),
        torch.cat([part.lengths_B for part in parts]),
    )
    if all("ctc_BTV" in part.__dict__ for part in parts):
        joined.__dict__["ctc_BTV"] = join([part.ctc_BTV for part in parts])
    return joined


@dataclass(frozen=True)
class BestPaths:
    """Tokens on the best CTC path of each utterance of a batch."""

    tokens_BU: Tensor
    steps_BU: Tensor
    """First step of each token."""
    log_probabilities_BU: Tensor
    """Highest of the steps of the token."""
    counts_B: Tensor
    path_log_probability_B: Tensor
    """Of the whole path, blanks and repeats too."""

    def texts(self) -> list[list[int]]:
        rows = zip(self.tokens_BU.tolist(), self.counts_B.tolist(), strict=True)
        return [tokens[:count] for tokens, count in rows]


def find_best_paths(log_probabilities_BTV: Tensor, lengths_B: Tensor) -> BestPaths:
    best_BT, path_BT = log_probabilities_BTV.max(-1)
    is_first_BT = torch.ones_like(path_BT, dtype=torch.bool)
    is_first_BT[:, 1:] = path_BT[:, 1:] != path_BT[:, :-1]
    is_token_BT = (path_BT != BLANK_ID) & length_mask(lengths_B, path_BT.size(1))
    # Each step goes to the place of its token; blanks and padding to one behind all.
    places_BT = (is_first_BT & is_token_BT).cumsum(1) - 1
    counts_B = (is_first_BT & is_token_BT).sum(1)
    longest = int(counts_B.max()) if len(counts_B) else 0
    places_BT = places_BT.masked_fill(~is_token_BT, longest)
    empty = (len(path_BT), longest + 1)
    steps_BT = torch.arange(path_BT.size(1), device=path_BT.device).expand_as(path_BT)
    tokens_BU = path_BT.new_full(empty, UNK_ID).scatter(1, places_BT, path_BT)
    steps_BU = path_BT.new_full(empty, path_BT.size(1)).scatter_reduce(1, places_BT, steps_BT, "amin")
    peaks_BU = best_BT.new_full(empty, -torch.inf).scatter_reduce(1, places_BT, best_BT, "amax")
    path_B = best_BT.masked_fill(~length_mask(lengths_B, path_BT.size(1)), 0.0).sum(1)
    return BestPaths(tokens_BU[:, :-1], steps_BU[:, :-1], peaks_BU[:, :-1], counts_B, path_B)
