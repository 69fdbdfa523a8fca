"""Checks of decoded texts: repetition, skipped speech, invented text. Pure functions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pydantic
from rapidfuzz.distance import Levenshtein

from asr.config import Config
from asr.transcripts.transcript import measure_compression

# Attention decoders are free to look anywhere, so they may repeat, skip and invent; a CTC head cannot, since
# it reads each step once. The limits beyond which a decoded text is rejected:
MAX_BACKWARD_SECONDS = 0.6  # speech never runs back; heads look around by a few steps
MAX_STILL_TOKENS, STILL_SECONDS = 6, 0.1  # 60 tokens a second, where people speak 15 characters
MAX_REPEATS = 4  # of a sequence of tokens in a row, unless CTC's best path has as many
MAX_CTC_DISTANCE = 0.5  # edits per token of the longer text: with less than half shared, one is wrong
MAX_TOKENS_PER_SECOND = 40.0  # the fastest speakers reach 25 characters a second
# Geometric mean of CTC's probabilities of the tokens on its best path. Below the first, the audio is taken
# for no speech; below the second, if the decoder disagrees, for music or noise, of which each head makes a
# text of its own.
MIN_SPEECH_PROBABILITY, MIN_AGREED_PROBABILITY = 0.5, 0.75
# Nats by which CTC may find a text less likely than its own best path and still confirm it: 1 to 150.
# Chosen on FSDD's dev: from 2 to 6 nothing is lost at trained lengths, and in strings of twice the length,
# where attention loses its place, as few errors are left as without the rule.
CONFIRMED_NATS = 5.0


class ChecksConfig(Config):
    """Checks that reject a text for repetition, skipped speech or invention, and try another decoding.
    `checks=off`: the first text stands, whatever it is."""

    enabled: bool = True
    """Whether there are any."""
    max_compression: float | None = pydantic.Field(default=2.4, gt=1)
    """Bytes of the text over its compressed bytes: prose has 1 to 2, endless repetition more. null: no limit.
    The text of CTC's best path may compress as well."""
    min_log_probability: float | None = pydantic.Field(default=-1.0, lt=0)
    """Mean log-probability of a token under the decoder: at -1 it gives each one chance in three. null: no
    limit."""

    max_skipped_seconds: float | None = pydantic.Field(default=1.5, gt=0)
    """Seconds of speech on CTC's best path that attention may skip: three words or so. Whisper, 0.8: of
    speech between two pauses that has no word; each part of the segment is then decoded again by itself.
    null: no limit."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        if value in ("on", True):
            return {}
        return cls.off().model_dump() if value in ("off", False) else value

    @classmethod
    def off(cls) -> ChecksConfig:
        """No check and no fallback: for comparing decoding methods by themselves."""
        return cls(enabled=False, max_compression=None, min_log_probability=None, max_skipped_seconds=None)

    def describe(self) -> str:
        """on, off, or what was changed, to be printed with a result."""
        if not self.enabled:
            return "off"
        usual = ChecksConfig()
        changed = [name for name in type(self).model_fields if getattr(self, name) != getattr(usual, name)]
        return ", ".join(["on", *(f"{name} {getattr(self, name)}" for name in changed)])


@dataclass(frozen=True)
class CtcText:
    """Best path of the CTC head."""

    tokens: Sequence[int]
    steps: Sequence[int]
    """First step of each token."""
    text: str
    log_probability: float
    """Mean over its tokens."""
    path_log_probability: float = 0.0
    """Log-probability of the whole path, blanks included."""


@dataclass(frozen=True)
class Evidence:
    """Facts about one decoded segment that the checks look at."""

    tokens: Sequence[int]
    text: str
    seconds: float
    """Duration of the segment."""
    seconds_per_step: float
    attended_steps: Sequence[float] = ()
    """For each token and the end; empty without a decoder that attends."""
    log_probability: float = math.nan
    """Sum over all tokens and the end under the decoder; nan if it did not score them."""
    ctc: CtcText | None = None
    """None: the model has no CTC head."""
    ctc_log_probability: float = math.nan
    """Log-probability of the tokens under CTC, all alignments summed; nan if CTC did not score them."""


def find_faults(evidence: Evidence, config: ChecksConfig) -> list[str]:
    """List in words what is wrong with a hypothesis."""
    tokens, ctc = evidence.tokens, evidence.ctc
    if not config.enabled:
        return []
    if not tokens:
        return [f"no text, but CTC's best path is {ctc.text!r}"] if ctc is not None and ctc.tokens else []
    # If CTC finds the text about as likely as its best path, it skips and repeats nothing.
    is_confirmed = ctc is not None and (
        evidence.ctc_log_probability >= ctc.path_log_probability - CONFIRMED_NATS
    )
    faults = [] if is_confirmed else _find_faults_of_attention(evidence, config)
    repeats = count_repeats(tokens)
    if repeats > max(MAX_REPEATS, 1 if ctc is None else count_repeats(ctc.tokens)):
        faults.append(f"the same {repeats} times in a row")
    ratio = measure_compression(evidence.text)
    # A tenth more than CTC's may be chance, as a text that is longer compresses better.
    by_ctc = 0.0 if ctc is None else 1.1 * measure_compression(ctc.text)
    if config.max_compression is not None and ratio > max(config.max_compression, by_ctc):
        faults.append(f"the text repeats itself: it compresses {ratio:.1f} times")
    if is_far_from_ctc(evidence):
        assert ctc is not None
        faults.append(f"CTC's best path is {ctc.text!r}")
    limit, mean = config.min_log_probability, evidence.log_probability / (len(tokens) + 1)
    if limit is not None and mean < limit:  # nan is not
        faults.append(f"the decoder itself doubts it: mean log-probability {mean:.2f}")
    speed = len(tokens) / max(evidence.seconds, evidence.seconds_per_step)
    if speed > MAX_TOKENS_PER_SECOND:
        faults.append(f"{speed:.0f} tokens a second")
    return faults


def _find_faults_of_attention(evidence: Evidence, config: ChecksConfig) -> list[str]:
    """Attention that jumps back, stays at one place, or skips spans where CTC's best path has tokens."""
    steps = evidence.attended_steps[:-1]  # at the end it may look anywhere
    seconds, limit = evidence.seconds_per_step, config.max_skipped_seconds
    faults = []
    back = max(
        (farthest - step for farthest, step in zip(itertools.accumulate(steps, max), steps, strict=True)),
        default=0,
    )
    if back * seconds > MAX_BACKWARD_SECONDS:
        faults.append(f"attention jumps back by {back * seconds:.1f} s")
    runs = [steps[first : first + MAX_STILL_TOKENS + 1] for first in range(len(steps) - MAX_STILL_TOKENS)]
    if any((max(run) - min(run)) * seconds < STILL_SECONDS for run in runs):
        faults.append(f"attention stays at one place for more than {MAX_STILL_TOKENS} tokens")
    if steps and evidence.ctc is not None and limit is not None:
        looked = [-math.inf, *sorted(steps), math.inf]
        for before, after in itertools.pairwise(looked):
            inside = [step for step in evidence.ctc.steps if before < step < after]
            if inside and (inside[-1] - inside[0]) * seconds > limit:
                skipped = (inside[-1] - inside[0]) * seconds
                return [*faults, f"attention skips {skipped:.1f} s in which CTC finds speech"]
    return faults


def count_repeats(tokens: Sequence[int], max_period: int = 60) -> int:
    """Count how often a sequence of at most `max_period` tokens repeats in a row, at most; 1 if none does."""
    most = 1
    for period in range(1, min(max_period, len(tokens) // 2) + 1):
        run = 0
        for position in range(period, len(tokens)):
            run = run + 1 if tokens[position] == tokens[position - period] else 0
            most = max(most, run // period + 1)
    return most


def is_far_from_ctc(evidence: Evidence) -> bool:
    if evidence.ctc is None:
        return False
    longer = max(len(evidence.tokens), len(evidence.ctc.tokens), 1)
    return Levenshtein.distance(evidence.tokens, evidence.ctc.tokens) / longer > MAX_CTC_DISTANCE


def is_speech(ctc: CtcText | None) -> bool:
    """Check that CTC's best path has tokens that are likely. Without a CTC head this is unknown: yes."""
    return ctc is None or ctc.log_probability >= math.log(MIN_SPEECH_PROBABILITY)


def is_agreed(evidence: Evidence) -> bool:
    """Check that the decoder confirms CTC's best path, or that this is likely enough alone."""
    ctc = evidence.ctc
    is_likely = ctc is None or ctc.log_probability >= math.log(MIN_AGREED_PROBABILITY)
    return is_likely or not is_far_from_ctc(evidence)
