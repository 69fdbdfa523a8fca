"""asr/decoding/hypothesis.py: what is wrong is found and named, what is right is left alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asr.config import build_config
from asr.decoding.hypothesis import (
    ChecksConfig,
    CtcText,
    Evidence,
    Hypothesis,
    count_repeats,
    find_problems,
    is_agreed,
    is_speech,
)
from asr.transcription.arguments import EvaluationSettings, TranscriptionSettings

CONFIG = ChecksConfig()
TOKENS = tuple(range(10, 22))
STEPS = tuple(range(0, 48, 4))  # a token each 0.16 s


def by_ctc(
    tokens: Sequence[int] = TOKENS, steps: Sequence[int] = STEPS, probability: float = 0.95
) -> CtcText:
    return CtcText(tokens, steps, " ".join(map(str, tokens)), math.log(probability) if tokens else -math.inf)


PATH = by_ctc()


def make_evidence(
    text: str = "a text of plain words", seconds: float = 2.0, ctc: CtcText | None = PATH, **changes: Any
) -> Evidence:
    """At its end the decoder may look anywhere."""
    found = Hypothesis(TOKENS, 0.0, log_probability=-2.0, attended_steps=(*STEPS, 30.0))
    return Evidence(replace(found, **changes), text, seconds, 0.04, ctc)


def test_good_results_have_no_problems() -> None:
    assert find_problems(make_evidence(), CONFIG) == []
    assert find_problems(make_evidence(ctc=None), CONFIG) == []
    assert find_problems(make_evidence(attended_steps=(), log_probability=math.nan), CONFIG) == []
    assert find_problems(make_evidence(tokens=(), text="", ctc=by_ctc(())), CONFIG) == []
    still = (*STEPS[:4], *[16.0] * 6, *STEPS[-2:], 50.0)
    assert find_problems(make_evidence(attended_steps=still), CONFIG) == [], "six tokens may share a frame"


LOOP = (10, 11, 12) * 5
PROBLEMS = {
    "attention jumps back by 0.9 s": {"attended_steps": (*STEPS[:-1], STEPS[-2] - 22.0, 50.0)},
    "attention stays at one frame": {"attended_steps": (*STEPS[:4], *[16.0] * 7, 50.0)},
    "attention skips 1.6 s": {"attended_steps": (*STEPS[:1], *[46.0 + 0.5 * i for i in range(11)], 50.0)},
    "the same 5 times in a row": {"tokens": LOOP, "ctc": by_ctc(LOOP[:9], STEPS[:9])},
    "the text repeats itself": {"text": "thank you " * 20},
    "CTC's best path is '90 91": {"ctc": by_ctc(tuple(range(90, 102)))},
    "the decoder finds it unlikely": {"log_probability": -20.0},
    "60 tokens a second": {"seconds": 0.2},
    "no text, but CTC's best path is": {"tokens": (), "text": "", "attended_steps": (3.0,)},
}


@pytest.mark.parametrize("message", PROBLEMS)
def test_each_problem_is_found_and_can_be_switched_off(message: str) -> None:
    evidence = make_evidence(**PROBLEMS[message])
    assert any(problem.startswith(message) for problem in find_problems(evidence, CONFIG))
    assert find_problems(evidence, ChecksConfig.off()) == []


def test_where_attention_looked_is_of_no_matter_if_ctc_confirms_the_text() -> None:
    path = replace(by_ctc(), path_log_probability=-3.0)
    for message, changes in PROBLEMS.items():
        confirmed = make_evidence(**{"ctc": path, "ctc_log_probability": -7.9} | changes)
        unlikely = make_evidence(**{"ctc": path, "ctc_log_probability": -8.1} | changes)
        is_of_attention = message.startswith("attention")
        assert any(problem.startswith(message) for problem in find_problems(unlikely, CONFIG))
        problems = find_problems(confirmed, CONFIG)
        assert any(problem.startswith(message) for problem in problems) != is_of_attention


def test_skips_are_between_tokens_that_attention_looked_at() -> None:
    def find(ctc_steps: Sequence[int], attended: Sequence[float]) -> list[str]:
        ctc = by_ctc(TOKENS[: len(ctc_steps)], ctc_steps)
        problems = find_problems(make_evidence(ctc=ctc, attended_steps=tuple(attended)), CONFIG)
        return [problem for problem in problems if problem.startswith("attention skips")]

    assert find((10, 60), (5.0, 70.0, 71.0)) == ["attention skips 2.0 s in which CTC finds speech"]
    for before_or_behind_all in (5.0, 65.0, 71.0), (80.0, 81.0, 82.0):
        assert find((10, 60), before_or_behind_all)
    assert find((10, 60), (5.0, 35.0, 71.0)) == [], "a token between halves the stretch"
    assert find((10,), (5.0, 70.0, 71.0)) == [], "a single token takes no time"
    assert find((10, 60), (71.0,)) == [], "without a token nothing was looked at"


def test_what_ctc_has_as_often_is_no_loop() -> None:
    assert find_problems(make_evidence(tokens=LOOP[:12], ctc=by_ctc(LOOP[:12])), CONFIG) == []
    ctc = CtcText(TOKENS, STEPS, "thank you " * 20, -0.1)
    assert find_problems(make_evidence(text="thank you " * 20, ctc=ctc), CONFIG) == []
    (problem,) = find_problems(make_evidence(text="thank you " * 36, ctc=ctc), CONFIG)
    assert problem.startswith("the text repeats itself: it compresses ")


@pytest.mark.parametrize(
    ("ctc", "expected"),
    [(by_ctc(), True), (by_ctc(probability=0.4), False), (by_ctc(()), False), (None, True)],
)
def test_speech_is_where_ctc_is_sure(ctc: CtcText | None, expected: bool) -> None:
    assert is_speech(ctc) is expected


def test_two_heads_that_disagree_must_be_sure() -> None:
    other = tuple(range(90, 102))
    assert is_agreed(make_evidence(ctc=by_ctc(probability=0.6)))
    assert is_agreed(make_evidence(ctc=by_ctc(other, probability=0.9)))
    assert not is_agreed(make_evidence(ctc=by_ctc(other, probability=0.6)))
    assert is_agreed(make_evidence(ctc=None))
    assert is_agreed(make_evidence(tokens=(), ctc=by_ctc(())))  # that there is nothing


@pytest.mark.parametrize(
    ("pairs", "described"),
    [
        ([], "on"),
        (["checks=on"], "on"),
        (["checks=off"], "off"),
        (["checks.max_compression=9"], "on, max_compression 9.0"),
    ],
)
def test_one_setting_switches_all_checks(pairs: list[str], described: str) -> None:
    """By the same key for transcribing and evaluating."""
    for settings in (TranscriptionSettings, EvaluationSettings):
        checks = build_config(settings, pairs).checks
        assert checks.describe() == described and checks.enabled == (described != "off")
        assert (checks == ChecksConfig.off()) == (described == "off")


@given(st.lists(st.integers(0, 1), max_size=10))
def test_repeats_are_those_of_brute_force(tokens: list[int]) -> None:
    expected = 1
    for period in range(1, len(tokens) + 1):
        for start in range(len(tokens)):
            unit, times = tokens[start : start + period], 1
            while len(unit) == period and tokens[start + times * period :][:period] == unit:
                times += 1
            expected = max(expected, times)
    assert count_repeats(tokens) == expected
