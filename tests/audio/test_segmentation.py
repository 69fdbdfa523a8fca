"""Segmentation: speech is found, noise is not, and cuts lose nothing however long the recording is."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from asr.audio import AudioSegment, SegmentationConfig, Segmenter
from asr.audio.segmentation import _find_pauses, _find_spans

RATE = 8_000
CONFIG = SegmentationConfig(method="energy", max_seconds=4.0, min_seconds=1.0, overlap_seconds=0.4)


def speak(seconds: float, seed: int = 0) -> np.ndarray:
    """Syllables: noise that swells and fades four times a second, as speech does."""
    random = np.random.default_rng(seed)
    time = np.arange(round(seconds * RATE)) / RATE
    return 0.2 * random.standard_normal(len(time)) * (0.55 + 0.45 * np.sin(2 * np.pi * 4 * time))


def hush(seconds: float, seed: int = 1) -> np.ndarray:
    return 0.001 * np.random.default_rng(seed).standard_normal(round(seconds * RATE))


def push_all(
    blocks: Iterable[np.ndarray], config: SegmentationConfig, offset: float = 0.0
) -> list[AudioSegment]:
    segmenter = Segmenter(RATE, config, offset)
    return [*(segment for block in blocks for segment in segmenter.push(block)), *segmenter.finish()]


def split(audio_S: np.ndarray, config: SegmentationConfig = CONFIG, block: int = RATE) -> list[AudioSegment]:
    audio_S = audio_S.astype(np.float32)
    blocks = [audio_S[first : first + block] for first in range(0, len(audio_S), block)]
    return push_all(blocks, config)


def test_a_recording_as_long_as_those_of_training_is_one_segment_with_its_silence() -> None:
    audio_S = np.concatenate([hush(2), speak(1), hush(1.5), speak(1), hush(1)]).astype(np.float32)
    for whole_seconds, expected in ((6.5, [(0.0, 6.5)]), (6.4, [(1.7, 3.3), (4.2, 5.8)])):
        segmenter = Segmenter(RATE, CONFIG, whole_seconds=whole_seconds)
        found = [
            segment
            for first in range(0, len(audio_S), RATE)
            for segment in segmenter.push(audio_S[first : first + RATE])
        ]
        found += segmenter.finish()
        spans = [(segment.start, segment.end) for segment in found]
        assert np.array(spans) == pytest.approx(np.array(expected), abs=0.1)
    assert not push_all([hush(5).astype(np.float32)], CONFIG)


def test_a_recording_too_short_for_a_word_has_no_segment() -> None:
    assert [len(split(speak(seconds))) for seconds in (0.01, 0.04, 0.06, 0.5)] == [0, 0, 1, 1]


def test_finds_what_is_spoken() -> None:
    audio_S = np.concatenate([hush(2), speak(1.5), hush(1), speak(2), hush(3)])
    found = split(audio_S)
    padding = CONFIG.padding_seconds
    assert [segment.start for segment in found] == pytest.approx([2 - padding, 4.5 - padding], abs=0.05)
    assert [segment.end for segment in found] == pytest.approx([3.5 + padding, 6.5 + padding], abs=0.05)
    for segment in found:
        first = round(segment.start * RATE)
        own = audio_S[first : first + len(segment.audio_S)].astype(np.float32)
        assert np.array_equal(segment.audio_S, own)


def test_stretches_of_speech_are_told() -> None:
    config = CONFIG.model_copy(update={"max_seconds": 20.0, "max_pause_seconds": 3.0})
    audio_S = np.concatenate(
        [hush(2), speak(1.5), hush(1), speak(0.8), hush(0.3), speak(0.8), hush(4), speak(1)]
    )
    first, second = split(audio_S, config)
    assert [time for stretch in first.speech for time in stretch] == pytest.approx(
        [2, 3.5, 4.5, 6.4], abs=0.1
    )
    assert second.speech[0] == pytest.approx((10.4, 11.4), abs=0.1) and len(second.speech) == 1


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 4))
def test_stretches_of_any_frames(frames: list[bool], min_pause: int) -> None:
    text = "".join("x" if frame else "." for frame in frames)
    words = re.finditer(rf"x(?:\.{{0,{min_pause - 1}}}x)*", text)
    assert _find_spans(np.array(frames, bool), min_pause) == [word.span() for word in words]


@given(st.integers(0, 5), st.lists(st.booleans(), max_size=30), st.integers(1, 4))
def test_pauses_of_any_frames(begin: int, frames: list[bool], min_frames: int) -> None:
    text = "." * begin + "x" + "".join("x" if frame else "." for frame in frames)
    pauses = re.compile(rf"(?<!\.)\.{{{min_frames},}}").finditer(text, begin)
    is_speech_T = np.array([letter == "x" for letter in text])
    assert _find_pauses(is_speech_T, begin, min_frames) == [pause.span() for pause in pauses]


@pytest.mark.parametrize("level", [0.0, 1e-4, 0.01, 0.3])
def test_silence_and_steady_noise_are_no_speech(level: float) -> None:
    noise_S = level * np.random.default_rng(0).standard_normal(60 * RATE)
    assert split(noise_S) == []


def test_noise_that_grows_is_followed() -> None:
    """The noise is measured around a frame, not once for the whole recording."""
    random = np.random.default_rng(0)
    level_S = np.exp(np.linspace(np.log(1e-3), np.log(1e-2), 120 * RATE))
    audio_S = level_S * random.standard_normal(len(level_S))
    audio_S[100 * RATE : 102 * RATE] += speak(2)
    (found,) = split(audio_S)
    assert found.start == pytest.approx(100 - CONFIG.padding_seconds, abs=0.1)


@given(
    lengths=st.lists(st.tuples(st.floats(0.3, 6.0), st.floats(0.05, 2.0)), min_size=1, max_size=6),
    block=st.integers(100, 3 * RATE),
)
@example(lengths=[(4.0, 1.0), (1.0, 1.0), (1.0, 1.0), (5.0, 2.0)], block=10667)
@example(lengths=[(3.9375, 1.0), (1.0, 1.0), (1.0, 1.0), (5.0, 2.0)], block=10667)
@settings(max_examples=15)
def test_all_speech_is_in_some_segment_and_none_is_too_long(
    lengths: list[tuple[float, float]], block: int
) -> None:
    pieces = [hush(0.5), *(part for on, off in lengths for part in (speak(on), hush(off)))]
    audio_S = np.concatenate(pieces)
    is_loud_S = np.concatenate([np.full(len(piece), index % 2 == 1) for index, piece in enumerate(pieces)])
    found = split(audio_S, block=block)
    covered_S = np.zeros(len(audio_S), int)
    for segment in found:
        first = round(segment.start * RATE)
        covered_S[first : first + len(segment.audio_S)] += 1
        assert segment.end - segment.start <= CONFIG.max_seconds + 0.01
    assert (covered_S[is_loud_S] > 0).mean() > 0.995
    for before, after in itertools.pairwise(found):
        if after.cut_before is None:
            assert after.start >= before.end - 0.011
        else:  # both sides go on past the cut by the overlap
            assert before.cut_after == after.cut_before
            assert before.end == pytest.approx(after.cut_before + CONFIG.overlap_seconds, abs=0.02)
            assert after.start == pytest.approx(after.cut_before - CONFIG.overlap_seconds, abs=0.02)
    assert len(found) == len(split(audio_S)), "the sizes of the blocks change the segments"
    for segment, other in zip(found, split(audio_S), strict=True):
        assert segment.start == other.start and np.array_equal(segment.audio_S, other.audio_S)


def test_cuts_at_the_quietest_place_where_nobody_pauses() -> None:
    audio_S = np.concatenate([hush(1), np.clip(speak(8) + 0.1 * np.sign(speak(8, 3)), -1, 1), hush(1)])
    dip = round(3.1 * RATE)  # shorter than a pause
    audio_S[dip : dip + round(0.1 * RATE)] *= 0.05
    first, second, *_ = split(audio_S)
    assert first.cut_after == second.cut_before == pytest.approx(3.15, abs=0.06)


def test_a_pause_shorter_than_two_paddings_is_shared_in_halves() -> None:
    audio_S = np.concatenate([hush(1), speak(1.5), hush(0.54), speak(1.5), hush(1)])
    first, second = split(audio_S)
    assert first.end == second.start == pytest.approx(2.77, abs=0.04)


def test_cuts_in_a_short_pause_without_overlap_when_it_must() -> None:
    audio_S = np.concatenate([hush(1), speak(2.5), hush(0.3), speak(2.5), hush(1)])
    first, second = split(audio_S)
    assert first.cut_after is None and second.cut_before is None
    assert first.end == pytest.approx(3.65, abs=0.03) and second.start == pytest.approx(3.65, abs=0.03)


@pytest.mark.parametrize(("pauses", "middle"), [((0.25, 0.4), 3.65), ((0.4, 0.25), 2.7)])
def test_cuts_in_the_longest_of_several_short_pauses(pauses: tuple[float, float], middle: float) -> None:
    early, late = pauses
    audio_S = np.concatenate([hush(1), speak(1.5), hush(early), speak(0.7), hush(late), speak(3), hush(1)])
    first, second, *_ = split(audio_S)
    assert [first.end, second.start] == pytest.approx([middle] * 2, abs=0.04)


def test_short_pauses_stay_inside_a_segment() -> None:
    assert len(split(np.concatenate([hush(1), speak(1), hush(0.3), speak(1), hush(1)]))) == 1


def test_short_recording_is_not_judged_unless_it_is_silent() -> None:
    noise_S = 0.1 * np.random.default_rng(0).standard_normal(RATE)
    (found,) = split(noise_S)
    assert len(found.audio_S) == RATE
    assert split(np.zeros(RATE)) == [] and split(np.zeros(0)) == []


def test_none_cuts_nothing() -> None:
    audio_S = np.concatenate([speak(9), hush(5), speak(1)])
    (found,) = split(audio_S, SegmentationConfig(method="none"))
    assert np.array_equal(found.audio_S, audio_S.astype(np.float32))
    assert split(np.zeros(0), SegmentationConfig(method="none")) == []


def test_times_count_from_the_offset() -> None:
    blocks = [np.concatenate([hush(1), speak(1), hush(2)]).astype(np.float32)]
    (found,) = push_all(blocks, CONFIG, offset=100.0)
    assert found.start == pytest.approx(101 - CONFIG.padding_seconds, abs=0.05)


def test_memory_does_not_grow() -> None:
    """Neither in silence nor in speech without end is more kept than a segment and what is looked ahead."""
    for minute in (hush(60), speak(60)):
        segmenter = Segmenter(RATE, CONFIG)
        for _ in range(3):
            for first in range(0, len(minute), RATE):
                segmenter.push(minute[first : first + RATE].astype(np.float32))
        kept = segmenter._audio.nbytes / (4 * RATE)
        assert kept < CONFIG.max_seconds + 12


def test_live_the_segment_that_is_spoken_can_be_seen() -> None:
    segmenter = Segmenter(RATE, CONFIG, ahead_seconds=0.0)
    segmenter.push(hush(3).astype(np.float32))
    assert segmenter.current() is None
    segmenter.push(speak(1).astype(np.float32))
    current = segmenter.current()
    assert current is not None
    assert current.start == pytest.approx(3 - CONFIG.padding_seconds, abs=0.1)
    assert current.end == pytest.approx(4.0, abs=0.01)
    (ended,) = segmenter.push(hush(1).astype(np.float32))
    assert ended.start == current.start and segmenter.current() is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"overlap_seconds": 8.0}, "overlap_seconds < min_seconds"),
        ({"min_seconds": 18.0}, "min_seconds < max_seconds"),
        ({"min_seconds": 15.0, "overlap_seconds": 3.0}, "min_seconds < max_seconds"),
        ({"min_pause_seconds": 0.9}, "min_pause_seconds = 0.9"),
    ],
)
def test_settings_that_contradict_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SegmentationConfig(**changes)  # type: ignore[arg-type]


@given(st.floats(0.5, 40.0))
def test_limited_settings_are_valid(max_seconds: float) -> None:
    limited = SegmentationConfig().limited(max_seconds)
    assert limited.max_seconds == min(max_seconds, SegmentationConfig().max_seconds)
    assert limited.overlap_seconds < limited.min_seconds < limited.max_seconds - 2 * limited.overlap_seconds


def test_a_long_recording_in_one_segment_is_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not anew with each block: an hour would take a minute, three hours nine."""
    copied, concatenate = [0], np.concatenate

    def count(parts: list[np.ndarray], *args: Any, **kwargs: Any) -> np.ndarray:
        joined = concatenate(parts, *args, **kwargs)
        copied[0] += joined.size
        return joined

    monkeypatch.setattr(np, "concatenate", count)
    blocks = [np.full(RATE, 0.1, np.float32)] * 300
    (segment,) = push_all(blocks, SegmentationConfig(method="none"))
    assert len(segment.audio_S) == 300 * RATE and copied[0] < 10 * len(segment.audio_S)
