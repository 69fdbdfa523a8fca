"""Decoding with Moonshine: cutting, precision, texts and word times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from asr.audio.segmentation import SegmentationConfig, SegmentPlan
from asr.config import Precision
from asr.decoding.decode import DecodedBatch, SpeechDecoder
from asr.decoding.hypothesis import EncodedAudio, Hypothesis, SearchRules, is_silence, join_encoded
from asr.features.filters import FrameTimes
from asr.models.precision import INT8_MAX, Int8Linear
from asr.models.speech_model import SpeechModel
from asr.moonshine.encoder_decoder import MIN_FRAMES, STEP_SECONDS
from asr.moonshine.sizes import FRAME_SAMPLES
from asr.text.tokenizer import EOS_ID, UNK_ID
from asr.transcripts.transcript import measure_compression

SILENCE = "You"  # what both sizes write for silence and noise
# Nobody speaks below this mean log-probability of a text, including the probability that there is a text.
NOTHING = -2.0
SECONDS_AT_ONCE = 15.0  # audio encoded at once on a CPU


class MoonshineRules(SearchRules):
    """Forces at least one token, because segments contain speech, but with some voices models write nothing.

    The probability of writing nothing serves as the probability that nobody speaks.
    """

    def forbid(self, scores_RV: Tensor, num_tokens: int) -> Tensor:
        if num_tokens > 0:
            return scores_RV
        return scores_RV.index_fill(1, torch.tensor(EOS_ID, device=scores_RV.device), -torch.inf)


class FineLinear(nn.Module):
    """A linear layer in 8 bits that multiplies the rounding error of its input in a second product.

    The inputs have outliers, and next to these, 8 bits are too coarse for the other values.
    """

    def __init__(self, linear: nn.Linear, few_rows: bool = False) -> None:
        super().__init__()
        self.linear = Int8Linear(linear.weight, few_rows=few_rows)
        self.bias_N = linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        scales = x.abs().amax(-1, keepdim=True).clamp_(min=1e-30).mul_(1 / INT8_MAX)
        rest = torch.addcmul(x, (x / scales).round_(), scales, value=-1)
        rounded, lost = self.linear(torch.stack([x, rest])).unbind()
        return rounded.add_(lost).add_(self.bias_N)


class MoonshineManners(SpeechDecoder):
    """Decoding with a Moonshine model, which knows only English and writes it with case and punctuation."""

    prefers_int8 = draws = True
    rules = MoonshineRules(first=UNK_ID + 1, no_speech=EOS_ID, notes_attention=False)
    language = "en"

    def __init__(self, system: Any, *given: Any) -> None:
        super().__init__(system, *given)
        self.frame_times = FrameTimes(MIN_FRAMES * FRAME_SAMPLES / 2 / self.sample_rate, STEP_SECONDS)

    @staticmethod
    def set_precision(model: SpeechModel, precision: Precision) -> None:
        """Use 8-bit layers, except for the first and last convolution, whose inputs differ most in size."""
        if not precision.startswith("int8"):
            return
        of_decoder = set() if model.decoder is None else set(model.decoder.modules())
        for module in [*model.modules()]:
            for name, linear in [*module.named_children()]:
                if not isinstance(linear, nn.Linear) or name in ("convolution_1", "convolution_3"):
                    continue
                few_rows = module in of_decoder and name != "project_memory"
                if name in ("output", "project_out", "contract"):  # their inputs have few outliers
                    setattr(module, name, Int8Linear(linear.weight, linear.bias, few_rows=few_rows))
                else:
                    setattr(module, name, FineLinear(linear, few_rows))

    def is_silence(self, best: Hypothesis) -> bool:
        """Return True also for "You", and for short texts that were far less likely than no text."""
        if self.checks.max_no_speech is not None and self.spell(best.tokens) == SILENCE:
            return True
        none = min(best.no_speech or 0.0, 1 - 1e-9)
        unforced = replace(best, log_probability=best.log_probability + math.log1p(-none))
        is_nothing = unforced.mean < NOTHING and is_silence(unforced, self.checks)
        return is_nothing or super().is_silence(best)

    def plan_segments(self, segmentation: SegmentationConfig, longest: float | None) -> SegmentPlan:
        """Also cut utterances that are longer than the length at which these models start to repeat."""
        limit = self.system.longest_seconds
        return SegmentPlan(segmentation.limited(limit), limit)

    def encode(self, audio: Sequence[np.ndarray], speed: float = 1.0) -> EncodedAudio:
        """Encode; on a CPU only a few seconds at once, because more do not fit its cache."""
        if self.device.type != "cpu":
            return super().encode(audio, speed)
        encode = super().encode
        longest = max(1, *map(len, audio))
        count = max(1, int(SECONDS_AT_ONCE * self.sample_rate) // longest)
        return join_encoded([encode(audio[i : i + count], speed) for i in range(0, len(audio), count)])

    def score_tokens(self, batch: DecodedBatch) -> list[tuple[float, int]]:
        """Return the scores of the search, without counting tokens that compression of the text removes.

        For languages other than English, these models write likely sentences that repeat.
        """
        spoken = [(one.likelihood, len(one.tokens) + 1, self.spell(one.tokens)) for _, one in batch.best]
        return [
            (score, round(count / max(1.0, measure_compression(text)))) if text else (0.0, 0)
            for score, count, text in spoken
        ]
