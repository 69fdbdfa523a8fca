"""asr/decoding/checks: what is wrong is found and named, what is right is left alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jiwer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.decoding.checks import (
    ChecksConfig,
    Evidence,
    Heard,
    count_repeats,
    edit_distance,
    find_faults,
    is_agreed,
    is_speech,
)
from asr.transcripts.transcript import measure_compression

CONFIG = ChecksConfig()
TOKENS = tuple(range(10, 22))
STEPS = tuple(range(0, 48, 4))  # a token each 0.16 s


def hear(tokens: Sequence[int] = TOKENS, steps: Sequence[int] = STEPS, probability: float = 0.95) -> Heard:
    return Heard(tokens, steps, " ".join(map(str, tokens)), math.log(probability) if tokens else -math.inf)


def make_evidence(**changes: Any) -> Evidence:
    fields: dict[str, Any] = {
        "tokens": TOKENS,
        "text": "a text of plain words",
        "seconds": 2.0,
        "seconds_per_step": 0.04,
        "attended_steps": (*STEPS, 30.0),  # at its end the decoder may look anywhere
        "log_probability": -2.0,
        "heard": hear(),
    }
    return Evidence(**(fields | changes))


def test_good_results_have_no_faults() -> None:
    assert find_faults(make_evidence(), CONFIG) == []
    assert find_faults(make_evidence(heard=None), CONFIG) == []
    assert find_faults(make_evidence(attended_steps=(), log_probability=math.nan), CONFIG) == []
    assert find_faults(make_evidence(tokens=(), text="", heard=hear(())), CONFIG) == []


LOOP = (10, 11, 12) * 5
FAULTS = {
    "attention jumps back by 0.9 s": {"attended_steps": (*STEPS[:-1], STEPS[-2] - 22.0, 50.0)},
    "attention stays at one place": {"attended_steps": (*STEPS[:4], *[16.0] * 8, 50.0)},
    "attention skips 1.6 s": {"attended_steps": (*STEPS[:1], *[46.0 + 0.5 * i for i in range(11)], 50.0)},
    "the same 5 times in a row": {"tokens": LOOP, "heard": hear(LOOP[:9], STEPS[:9])},
    "the text repeats itself": {"text": "thank you " * 20},
    "the CTC head hears '90 91": {"heard": hear(tuple(range(90, 102)))},
    "the decoder itself doubts it": {"log_probability": -20.0},
    "60 tokens a second": {"seconds": 0.2},
    "nothing was written where the CTC head hears": {"tokens": (), "text": "", "attended_steps": (3.0,)},
}


@pytest.mark.parametrize("message", FAULTS)
def test_each_fault_is_found_and_can_be_switched_off(message: str) -> None:
    evidence = make_evidence(**FAULTS[message])
    assert any(fault.startswith(message) for fault in find_faults(evidence, CONFIG))
    assert find_faults(evidence, ChecksConfig.off()) == []


def test_skips_are_between_tokens_that_attention_looked_at() -> None:
    def find(heard_at: Sequence[int], attended: Sequence[float]) -> list[str]:
        heard = hear(TOKENS[: len(heard_at)], heard_at)
        faults = find_faults(make_evidence(heard=heard, attended_steps=tuple(attended)), CONFIG)
        return [fault for fault in faults if fault.startswith("attention skips")]

    assert find((10, 60), (5.0, 70.0, 71.0)) == ["attention skips 2.0 s in which the CTC head hears speech"]
    assert find((10, 60), (5.0, 65.0, 71.0)) and find((10, 60), (80.0, 81.0, 82.0)), (
        "also before and behind all"
    )
    assert find((10, 60), (5.0, 35.0, 71.0)) == [], "a token between halves the stretch"
    assert find((10,), (5.0, 70.0, 71.0)) == [], "a single token takes no time"
    assert find((10, 60), (71.0,)) == [], "without a token nothing was looked at"


def test_what_ctc_heard_as_often_is_no_loop() -> None:
    assert find_faults(make_evidence(tokens=LOOP[:12], heard=hear(LOOP[:12])), CONFIG) == []
    heard = Heard(TOKENS, STEPS, "thank you " * 20, -0.1)
    assert find_faults(make_evidence(text="thank you " * 20, heard=heard), CONFIG) == []
    (fault,) = find_faults(make_evidence(text="thank you " * 36, heard=heard), CONFIG)
    assert fault.startswith("the text repeats itself: it compresses ")


def test_a_limit_may_be_reached_but_not_passed() -> None:
    def jumps_back(limit: float, steps: Sequence[float]) -> bool:
        evidence = make_evidence(attended_steps=(*steps, 50.0), seconds_per_step=0.25)
        faults = find_faults(evidence, ChecksConfig(max_backward_seconds=limit))
        return any(fault.startswith("attention jumps back") for fault in faults)

    assert not jumps_back(1.0, (*STEPS, STEPS[-1] - 4.0)) and jumps_back(1.0, (*STEPS, STEPS[-1] - 5.0))


@pytest.mark.parametrize(
    ("heard", "expected"),
    [(hear(), True), (hear(probability=0.4), False), (hear(()), False), (None, True)],
)
def test_speech_is_what_the_ctc_head_hears_clearly(heard: Heard | None, expected: bool) -> None:
    assert is_speech(heard, CONFIG) is expected
    assert is_speech(heard, ChecksConfig.off())


def test_two_heads_that_disagree_must_be_sure() -> None:
    other = tuple(range(90, 102))
    assert is_agreed(make_evidence(heard=hear(probability=0.6)), CONFIG)
    assert is_agreed(make_evidence(heard=hear(other, probability=0.9)), CONFIG)
    assert not is_agreed(make_evidence(heard=hear(other, probability=0.6)), CONFIG)
    assert is_agreed(make_evidence(heard=hear(other, probability=0.6)), ChecksConfig.off())
    assert is_agreed(make_evidence(heard=None), CONFIG)
    assert is_agreed(make_evidence(tokens=(), heard=hear(())), CONFIG)  # that there is nothing


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_edit_distance_is_that_of_jiwer(first: list[int], second: list[int]) -> None:
    counts = jiwer.process_words(" ".join(map(str, second)), " ".join(map(str, first)))
    expected = counts.substitutions + counts.deletions + counts.insertions
    assert edit_distance(first, second) == edit_distance(second, first) == expected


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


def test_compression_ratio_is_high_for_repetition_only() -> None:
    assert measure_compression("thank you " * 20) > 5
    assert (
        measure_compression("the quick brown fox jumps over the lazy dog, and then goes home to sleep") < 1.2
    )
    assert measure_compression("") == 0
