"""Checks of decoded texts: repetition, skipped speech, invented text. Pure functions.

Attention decoders are free to look anywhere, so they may repeat, skip and invent; a CTC head cannot, since it
reads each step once. Each check looks at what the decoder did and says in words what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pydantic
from rapidfuzz.distance import Levenshtein

from asr.config import Config
from asr.transcripts.transcript import measure_compression

# Nats by which CTC may find a text less likely than its own best path and still confirm it: 1 to 150.
# Chosen on FSDD's dev: from 2 to 6 nothing is lost at trained lengths, and in strings of twice the length,
# where attention loses its place, as few errors are left as without the rule.
_CONFIRMED_NATS = 5.0


class ChecksConfig(Config):
    """Limits beyond which a decoded text is rejected and another decoding is tried. null switches one check
    off; `checks=off` switches off all, and what was decoded first stands. Where attention looked is no matter
    if joint decoding found a text that is about as likely under CTC as its best path."""

    max_backward_seconds: float | None = pydantic.Field(default=0.6, gt=0)
    """Attention may jump back by so much. Speech never runs back; heads look around by a few steps."""
    max_still_tokens: int | None = pydantic.Field(default=6, gt=1)
    """Tokens in a row for which attention may stay within still_seconds. No one speaks so fast."""
    still_seconds: float = pydantic.Field(default=0.1, gt=0)
    """See max_still_tokens: 6 tokens in 0.1 s are 60 a second, where people speak 15 characters."""
    max_skipped_seconds: float | None = pydantic.Field(default=1.5, gt=0)
    """Of speech on CTC's best path that attention may skip: three words or so. Whisper, 0.8: of speech
    between two pauses that has no word. Each part of the segment is then decoded again by itself."""
    max_repeats: int | None = pydantic.Field(default=4, gt=1)
    """Times that a sequence of tokens may follow itself, unless it does so as often on CTC's best path."""
    max_compression: float | None = pydantic.Field(default=2.4, gt=1)
    """Bytes of the text over its compressed bytes: prose has 1 to 2, endless repetition more.
    Not where the text of CTC's best path compresses as well."""
    max_ctc_distance: float | None = pydantic.Field(default=0.5, gt=0)
    """Edits between the tokens and CTC's best path, per token of the longer one. Where less than half is
    shared, one of the two is wrong."""
    min_log_probability: float | None = pydantic.Field(default=-1.0, lt=0)
    """Mean of a token's log-probability under the decoder: at -1 it gives each one chance in three."""
    max_tokens_per_second: float | None = pydantic.Field(default=40.0, gt=0)
    """Of speech. The fastest speakers reach 25 characters a second."""
    min_speech_probability: float | None = pydantic.Field(default=0.5, gt=0, lt=1)
    """Geometric mean of CTC's probabilities of the tokens on its best path. Below, the audio is taken for no
    speech, and the text is dropped."""
    min_agreed_probability: float | None = pydantic.Field(default=0.75, gt=0, lt=1)
    """The same where the decoder, asked as well, disagrees by more than max_ctc_distance: music and
    noise give each head a text of its own."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        if value in ("on", True):
            return {}
        return dict.fromkeys(_limits()) if value in ("off", False) else value

    @classmethod
    def off(cls) -> ChecksConfig:
        """No check and no fallback: for comparing decoding methods by themselves."""
        off: Any = dict.fromkeys(_limits())
        return cls(**off)

    @property
    def are_on(self) -> bool:
        return any(getattr(self, name) is not None for name in _limits())

    def describe(self) -> str:
        """on, off, or what was changed, to be printed with a result."""
        if not self.are_on:
            return "off"
        usual = ChecksConfig()
        changed = [name for name in type(self).model_fields if getattr(self, name) != getattr(usual, name)]
        return ", ".join(["on", *(f"{name} {getattr(self, name)}" for name in changed)])


def _limits() -> list[str]:
    return [name for name in ChecksConfig.model_fields if name.startswith(("max_", "min_"))]


@dataclass(frozen=True)
class Evidence:
    """Facts about one decoded segment that the checks look at."""

    tokens: Sequence[int]
    text: str
    seconds: float
    """Of the segment."""
    seconds_per_step: float
    attended_steps: Sequence[float] = ()
    """For each token and the end; empty where no decoder was asked, or one that does not attend."""
    log_probability: float = math.nan
    """Of all tokens and the end under the decoder; nan where it was not asked."""
    ctc: CtcText | None = None
    """None: the model has no CTC head."""
    ctc_log_probability: float = math.nan
    """Of the tokens under CTC, all alignments together; nan where the search did not ask for it."""

    @property
    def is_confirmed(self) -> bool:
        """True if CTC finds the text about as likely as its best path: then it skips and repeats nothing,
        wherever attention looked."""
        return self.ctc is not None and (
            self.ctc_log_probability >= self.ctc.path_log_probability - _CONFIRMED_NATS
        )


@dataclass(frozen=True)
class CtcText:
    """Best path of the CTC head."""

    tokens: Sequence[int]
    steps: Sequence[int]
    """When each token begins."""
    text: str
    log_probability: float
    """Mean over its tokens."""
    path_log_probability: float = 0.0
    """Of the whole path, blanks too."""


def find_faults(evidence: Evidence, config: ChecksConfig) -> list[str]:
    """List what is wrong with a hypothesis, in words; nothing is good."""
    if not evidence.tokens:
        return _find_missing(evidence, config)
    checks = [_find_repeats, _find_compression, _find_distance]
    if not evidence.is_confirmed:
        checks = [_find_jumps, _find_still, _find_skips, *checks]
    faults = [fault for check in checks if (fault := check(evidence, config))]
    limit, mean = config.min_log_probability, evidence.log_probability / (len(evidence.tokens) + 1)
    if limit is not None and mean < limit:  # nan is not
        faults.append(f"the decoder itself doubts it: mean log-probability {mean:.2f}")
    speed = len(evidence.tokens) / max(evidence.seconds, evidence.seconds_per_step)
    if config.max_tokens_per_second is not None and speed > config.max_tokens_per_second:
        faults.append(f"{speed:.0f} tokens a second")
    return faults


def is_speech(ctc: CtcText | None, config: ChecksConfig) -> bool:
    """Check that CTC's best path has tokens that are likely. Without a CTC head nobody can tell: yes."""
    limit = config.min_speech_probability
    return ctc is None or limit is None or ctc.log_probability >= math.log(limit)


def is_agreed(evidence: Evidence, config: ChecksConfig) -> bool:
    """Check that the decoder confirms CTC's best path, or that this is likely enough alone."""
    ctc, limit = evidence.ctc, config.min_agreed_probability
    if ctc is None or limit is None or ctc.log_probability >= math.log(limit):
        return True
    return not _find_distance(evidence, config)


# --- single checks: what is wrong, or "" --------------------------------------------------------


def _find_missing(evidence: Evidence, config: ChecksConfig) -> list[str]:
    ctc, limit = evidence.ctc, config.max_ctc_distance
    if ctc is None or not ctc.tokens or limit is None or limit >= 1:
        return []
    return [f"no text, but CTC's best path is {ctc.text!r}"]


def _find_jumps(evidence: Evidence, config: ChecksConfig) -> str:
    if config.max_backward_seconds is None:
        return ""
    farthest, back = -math.inf, 0.0
    for step in evidence.attended_steps[:-1]:  # at the end there is nothing left to look at
        farthest = max(farthest, step)
        back = max(back, (farthest - step) * evidence.seconds_per_step)
    return f"attention jumps back by {back:.1f} s" if back > config.max_backward_seconds else ""


def _find_still(evidence: Evidence, config: ChecksConfig) -> str:
    steps, limit = evidence.attended_steps[:-1], config.max_still_tokens
    if limit is None:
        return ""
    for first in range(len(steps) - limit):
        run = steps[first : first + limit + 1]
        if (max(run) - min(run)) * evidence.seconds_per_step < config.still_seconds:
            return f"attention stays at one place for more than {limit} tokens"
    return ""


def _find_skips(evidence: Evidence, config: ChecksConfig) -> str:
    """Spans that attention skips although CTC's best path has tokens there."""
    limit, ctc = config.max_skipped_seconds, evidence.ctc
    if limit is None or ctc is None or not ctc.tokens or not evidence.attended_steps[:-1]:
        return ""
    looked = sorted(evidence.attended_steps[:-1])
    for before, after in zip([-math.inf, *looked], [*looked, math.inf], strict=True):
        inside = [step for step in ctc.steps if before < step < after]
        if len(inside) < 2:
            continue
        seconds = (inside[-1] - inside[0]) * evidence.seconds_per_step
        if seconds > limit:
            return f"attention skips {seconds:.1f} s in which CTC finds speech"
    return ""


def _find_repeats(evidence: Evidence, config: ChecksConfig) -> str:
    if config.max_repeats is None:
        return ""
    times = count_repeats(evidence.tokens)
    by_ctc = 1 if evidence.ctc is None else count_repeats(evidence.ctc.tokens)
    return f"the same {times} times in a row" if times > max(config.max_repeats, by_ctc) else ""


def count_repeats(tokens: Sequence[int], max_period: int = 60) -> int:
    """Count how often a sequence of at most `max_period` tokens repeats in a row, at most; 1 if none does."""
    most = 1
    for period in range(1, min(max_period, len(tokens) // 2) + 1):
        run = 0
        for position in range(period, len(tokens)):
            run = run + 1 if tokens[position] == tokens[position - period] else 0
            most = max(most, run // period + 1)
    return most


def _find_compression(evidence: Evidence, config: ChecksConfig) -> str:
    if config.max_compression is None:
        return ""
    ratio = measure_compression(evidence.text)
    by_ctc = 0.0 if evidence.ctc is None else measure_compression(evidence.ctc.text)
    # A tenth more than CTC's may be chance, as a text that is longer compresses better.
    too_much = ratio > max(config.max_compression, 1.1 * by_ctc)
    return f"the text repeats itself: it compresses {ratio:.1f} times" if too_much else ""


def _find_distance(evidence: Evidence, config: ChecksConfig) -> str:
    limit, ctc = config.max_ctc_distance, evidence.ctc
    if limit is None or ctc is None:
        return ""
    longer = max(len(evidence.tokens), len(ctc.tokens), 1)
    distance = Levenshtein.distance(evidence.tokens, ctc.tokens) / longer
    return f"CTC's best path is {ctc.text!r}" if distance > limit else ""
