"""Segmentation: speech is found, noise and music are not, and cuts lose nothing however long the recording is."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import soxr
import torch
from hypothesis import example, given, settings, strategies as st
from silero_vad import load_silero_vad

from asr.audio import (
    SILENCE_DB,
    AudioSegment,
    SegmentationConfig,
    Segmenter,
    SileroDetector,
    SileroModel,
    load_silero,
    measure_energies,
    silero,
)
from asr.recipe import synthesize

RATE = 8_000
CONFIG = SegmentationConfig(max_seconds=4.0).with_rules(min_share=0.25)

pytestmark = pytest.mark.usefixtures("loud_is_speech")


def speak(seconds: float, seed: int = 0) -> np.ndarray:
    """Make syllables: noise that rises and falls four times a second, like speech."""
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
    for uncut_seconds, expected in ((6.5, [(0.0, 6.5)]), (6.4, [(1.7, 3.3), (4.2, 5.8)])):
        segmenter = Segmenter(RATE, CONFIG, uncut_seconds=uncut_seconds)
        found = [
            segment
            for first in range(0, len(audio_S), RATE)
            for segment in segmenter.push(audio_S[first : first + RATE])
        ]
        found += segmenter.finish()
        spans = [(segment.start, segment.end) for segment in found]
        assert np.array(spans) == pytest.approx(np.array(expected), abs=0.1)
    assert not push_all([hush(5).astype(np.float32)], CONFIG)


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
    config = CONFIG.with_rules(max_seconds=20.0, max_pause_seconds=3.0)
    audio_S = np.concatenate(
        [hush(2), speak(1.5), hush(1), speak(0.8), hush(0.3), speak(0.8), hush(4), speak(1)]
    )
    first, second = split(audio_S, config)
    assert [time for stretch in first.speech for time in stretch] == pytest.approx(
        [2, 3.5, 4.5, 6.4], abs=0.1
    )
    assert second.speech[0] == pytest.approx((10.4, 11.4), abs=0.1) and len(second.speech) == 1


@pytest.mark.parametrize("level", [0.0, 1e-4, 0.01, 0.3])
def test_silence_and_steady_noise_are_no_speech(level: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silero, "load_silero", SileroModel)
    noise_S = level * np.random.default_rng(0).standard_normal(20 * RATE)
    assert split(noise_S) == []


@given(
    lengths=st.lists(st.tuples(st.floats(0.3, 6.0), st.floats(0.05, 2.0)), min_size=1, max_size=6),
    block=st.integers(100, 3 * RATE),
)
@example(lengths=[(4.0, 1.0), (1.0, 1.0), (1.0, 1.0), (5.0, 2.0)], block=10667)
@example(lengths=[(3.9375, 1.0), (1.0, 1.0), (1.0, 1.0), (5.0, 2.0)], block=10667)
@settings(max_examples=8)
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
    for segment, other in zip(found, split(audio_S), strict=True):  # whatever the sizes of the blocks
        assert segment.start == other.start and np.array_equal(segment.audio_S, other.audio_S)


def test_cuts_at_the_quietest_place_where_nobody_pauses() -> None:
    audio_S = np.concatenate([hush(1), np.clip(speak(8) + 0.1 * np.sign(speak(8, 3)), -1, 1), hush(1)])
    dip = round(3.1 * RATE)  # shorter than a pause
    audio_S[dip : dip + round(0.1 * RATE)] *= 0.05
    first, second, *_ = split(audio_S)
    assert first.cut_after == second.cut_before == pytest.approx(3.15, abs=0.06)


@pytest.mark.parametrize(
    ("pieces", "end"),
    [
        ([1.5, -0.54, 1.5], 2.77),  # a pause shorter than two paddings is shared in halves
        ([2.5, -0.3, 2.5], 3.65),  # a short pause is cut where a segment gets too long
        ([1.5, -0.25, 0.7, -0.4, 3.0], 3.65),  # and of several the longest
        ([1.5, -0.4, 0.7, -0.25, 3.0], 2.7),
    ],
)
def test_cuts_in_pauses_without_overlap(pieces: list[float], end: float) -> None:
    parts = [speak(seconds) if seconds > 0 else hush(-seconds) for seconds in pieces]
    first, second, *_ = split(np.concatenate([hush(1), *parts, hush(1)]))
    assert first.cut_after is None and second.cut_before is None
    assert [first.end, second.start] == pytest.approx([end] * 2, abs=0.04)


def test_short_recording_is_not_judged_unless_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silero, "load_silero", SileroModel)
    noise_S = 0.1 * np.random.default_rng(0).standard_normal(RATE)
    (found,) = split(noise_S)
    assert len(found.audio_S) == RATE
    assert split(np.zeros(RATE)) == [] and split(np.zeros(0)) == []
    assert [len(split(speak(seconds))) for seconds in (0.04, 0.06)] == [0, 1], "a word is longer"


def test_memory_does_not_grow() -> None:
    """Memory holds only a segment and the lookahead, both in silence and in endless speech."""
    for minute in (hush(60), speak(60)):
        segmenter = Segmenter(RATE, CONFIG)
        for _ in range(3):
            for first in range(0, len(minute), RATE):
                segmenter.push(minute[first : first + RATE].astype(np.float32))
        kept = segmenter._audio.nbytes / (4 * RATE)
        assert kept < CONFIG.max_seconds + 12


def test_live_the_segment_that_is_spoken_can_be_seen() -> None:
    segmenter = Segmenter(RATE, CONFIG, is_live=True)
    segmenter.push(hush(3).astype(np.float32))
    assert segmenter.current() is None
    segmenter.push(speak(1).astype(np.float32))
    current = segmenter.current()
    assert current is not None
    assert current.start == pytest.approx(3 - CONFIG.padding_seconds, abs=0.1)
    assert current.end == pytest.approx(4.0, abs=0.01)
    (ended,) = segmenter.push(hush(1).astype(np.float32))
    assert ended.start == current.start and segmenter.current() is None


def test_a_long_recording_in_one_segment_is_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is recomputed with each block; otherwise an hour would take a minute, three hours nine."""
    copied, concatenate = [0], np.concatenate

    def count(parts: list[np.ndarray], *args: Any, **kwargs: Any) -> np.ndarray:
        joined = concatenate(parts, *args, **kwargs)
        copied[0] += joined.size
        return joined

    monkeypatch.setattr(np, "concatenate", count)
    blocks = [np.full(RATE, 0.1, np.float32)] * 300
    (segment,) = push_all(blocks, SegmentationConfig(method="none"))
    assert len(segment.audio_S) == 300 * RATE and copied[0] < 10 * len(segment.audio_S)


# --- detectors --------------------------------------------------------------------------------------


def test_energy_is_in_db_of_full_scale() -> None:
    """Pre-emphasis by 0.97 multiplies a sine's power by |1 - 0.97 exp(-iw)|^2, its mean square by a half."""
    rate, hertz, level = 16_000, 1000, 0.5
    sine_S = level * np.sin(2 * np.pi * hertz * np.arange(rate) / rate)
    gain = abs(1 - 0.97 * np.exp(-2j * np.pi * hertz / rate)) ** 2
    energies_T = measure_energies(sine_S, rate)
    assert energies_T.shape == (100,)
    assert energies_T[1:] == pytest.approx(10 * np.log10(level**2 / 2 * gain), abs=0.01)
    assert (measure_energies(np.zeros(rate), rate) == SILENCE_DB).all()
    assert len(measure_energies(np.ones(10 * 11_025), 11_025)) == 1000


class Scripted:
    """Stand-in for the model: the mean of a chunk is its probability."""

    def __init__(self, rate: int) -> None:
        self.chunk_samples = rate * 32 // 1000

    def __call__(self, chunks_CS: np.ndarray, state: None) -> tuple[np.ndarray, None]:
        return chunks_CS.mean(1), None


def detect(levels: list[float], seconds: list[float], rate: int = 8_000, **rules: float) -> np.ndarray:
    """Return the speech frames for a model that outputs these probabilities."""
    detector = SileroDetector(rate, SegmentationConfig().with_rules(**rules).speech_threshold)
    samples = np.repeat(levels, [round(one * rate) for one in seconds]).astype(np.float32)
    flags = np.concatenate([*map(detector.push, np.array_split(samples, 17)), detector.finish()])
    assert len(flags) == round(100 * sum(seconds))
    return flags.nonzero()[0]


@pytest.mark.parametrize("rate", [8_000, 16_000])
def test_silero_probabilities_become_frames(monkeypatch: pytest.MonkeyPatch, rate: int) -> None:
    """The authors' rule: speech starts above 0.5 and ends below 0.35."""
    monkeypatch.setattr(silero, "load_silero", Scripted)
    assert detect([0, 1, 0], [0.96, 0.64, 0.5], rate).tolist() == list(range(96, 160))
    assert detect([0.4, 0.6, 0.4, 0.3, 0.4], [0.32] * 5, rate).tolist() == list(range(32, 96))
    assert not len(detect([0.4], [1.0], rate)), "a recording does not begin within speech"


def test_silero_has_a_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silero, "load_silero", Scripted)
    counts = [len(detect([0, 0.7, 0], [0.96, 0.64, 0.5], speech_threshold=level)) for level in (0.3, 0.9)]
    assert counts == [64, 0]


def test_other_rates_are_resampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silero, "load_silero", Scripted)
    found = detect([0, 1, 0], [0.96, 0.64, 0.5], 22_050).tolist()
    assert found == list(range(found[0], found[-1] + 1))
    assert (found[0], found[-1]) == pytest.approx((96, 160), abs=4)


# --- the model of silero-vad -----------------------------------------------------------------------


def pronounce(rate: int) -> np.ndarray:
    """Chunks of words with faint noise around."""
    pytest.importorskip("espeakng_loader")
    words, own_rate = synthesize("one two three, four five six seven")
    spoken = soxr.resample(words, own_rate, rate).astype(np.float32)
    audio = 1e-3 * np.random.default_rng(0).standard_normal(len(spoken) + 2 * rate).astype(np.float32)
    audio[rate:-rate] += spoken
    chunk = rate * 32 // 1000
    return audio[: len(audio) // chunk * chunk].reshape(-1, chunk)


def play(seconds: float, rate: int) -> np.ndarray:
    """Chords of decaying overtones, four a second, and a drum."""
    rng = np.random.default_rng(1)
    times = np.arange(rate // 4) / rate
    notes = []
    for _ in range(round(4 * seconds)):
        roots = 110 * 2 ** (rng.choice([0, 3, 5, 7, 10], 3) / 12)
        chord = sum(np.sin(2 * np.pi * root * k * times) / k for root in roots for k in range(1, 6))
        drum = rng.standard_normal(len(times)) * np.exp(-40 * times)
        notes.append((0.05 * chord * np.exp(-4 * times) + 0.05 * drum).astype(np.float32))
    audio = np.concatenate(notes)
    chunk = rate * 32 // 1000
    return audio[: len(audio) // chunk * chunk].reshape(-1, chunk)


@pytest.mark.parametrize("rate", [8_000, 16_000])
def test_probabilities_are_those_of_the_package(rate: int) -> None:
    chunks_CS = np.concatenate([pronounce(rate), play(1.0, rate)])
    theirs = load_silero_vad()
    with torch.inference_mode():
        expected = [float(theirs(torch.from_numpy(chunk)[None], rate)) for chunk in chunks_CS]
    model = load_silero(rate)
    state, found = None, []
    for part in np.split(chunks_CS, [0, 1, 2, 40]):
        probabilities, state = model(part, state)
        found.append(probabilities)
    assert np.concatenate(found) == pytest.approx(np.array(expected), abs=1e-4)
    assert max(expected) > 0.9


def test_the_number_of_threads_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package sets it to one when it is imported."""
    for name in [name for name in sys.modules if name.startswith("silero_vad")]:
        monkeypatch.delitem(sys.modules, name)
    torch.set_num_threads(2)
    SileroModel(16_000)
    assert torch.get_num_threads() == 2
