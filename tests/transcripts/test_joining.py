"""Joining segments: no word is lost or duplicated where two segments overlap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from asr.audio import AudioSegment, Channels, Recording
from asr.errors import UserError
from asr.system.decoding_resources import DecodingResources
from asr.transcription.transcribe import Decoded, End, Recognizer, Request
from asr.transcripts.transcript import Segment, Transcript, Word, clip_words, join_words, merge_channels


def words_at(*starts: float, length: float = 0.3, shift: float = 0.0) -> list[Word]:
    return [Word(f"w{start}", start + shift, start + shift + length, 0.9) for start in starts]


@given(
    gaps=st.lists(st.floats(0.0, 0.5), min_size=20, max_size=20),
    lengths=st.lists(st.floats(0.08, 0.6), min_size=20, max_size=20),
    names=st.lists(st.sampled_from("AB"), min_size=20, max_size=20),
    cut=st.floats(3.0, 5.0),
    shift=st.floats(-0.03, 0.03),
)
def test_overlapping_words_are_kept_once(
    gaps: list[float], lengths: list[float], names: list[str], cut: float, shift: float
) -> None:
    """Each side has whole words up to 1 s past the cut, at times that differ by up to 30 ms."""
    words, time = [], 0.0
    for gap, length, name in zip(gaps, lengths, names, strict=True):
        words.append(Word(name, time + gap, time + gap + length, 0.9))
        time += gap + length
    before = [word for word in words if word.end < cut + 1]
    after = [Word(w.text, w.start + shift, w.end + shift, 0.8) for w in words if w.start > cut - 1]
    left, right = join_words(before, after, cut)
    assert [word.text for word in [*left, *right]] == names


def test_a_word_truncated_at_the_edge_of_one_segment_is_kept_once() -> None:
    before = [*words_at(1.0, 2.0, 3.0), Word("w3.8 bro", 3.8, 4.0, 0.2)]  # its end is outside of this segment
    after = [Word("ken", 2.1, 2.2, 0.1), *words_at(3.0, 3.8, 5.0)]
    left, right = join_words(before, after, 3.1)
    assert [word.text for word in [*left, *right]] == ["w1.0", "w2.0", "w3.0", "w3.8", "w5.0"]


def test_without_agreement_each_side_keeps_its_own() -> None:
    left, right = join_words(words_at(1.0, 2.0), [Word("x", 1.2, 1.3, 0.5), Word("y", 2.2, 2.6, 0.5)], 1.8)
    assert [word.text for word in left] == ["w1.0"] and [word.text for word in right] == ["y"]


class Joiner(Recognizer):
    """A fake model with known texts."""

    name, compute_type, resources = "known", "", DecodingResources()

    def __init__(self) -> None:
        self.decoder: Any = SimpleNamespace(separator_in=lambda language: " ")


def build_decoded(*found: tuple[list[Word], float | None, float | None], end: End) -> list[Decoded]:
    decoded: list[Decoded] = []
    for words, cut_before, cut_after in found:
        text = " ".join(word.text for word in words)
        segment = Segment(words[0].start, words[-1].end, text, tuple(words), 0.9, "joint")
        place = AudioSegment(words[0].start, np.zeros(0, np.float32), 100, cut_before, cut_after)
        decoded.append((replace(place, recording=end.recording), segment))
    return [*decoded, (end, None)]


def join(decoded: list[Decoded], channels: Channels = "mix") -> list[Segment | Transcript | UserError]:
    return [result for _, result in Joiner().join_recordings(iter(decoded), Request(channels=channels))]


def test_segments_keep_text_and_times_of_their_words() -> None:
    *joined, transcript = join(
        build_decoded(
            (words_at(1.0, 2.0, 3.0), None, 2.6),
            (words_at(2.0, 3.0, 4.0, shift=0.02), 2.6, None),
            (words_at(6.0), None, None),
            end=End(Recording("a.wav"), 7.0),
        )
    )
    assert isinstance(transcript, Transcript) and list(transcript.segments) == joined
    assert [segment.text for segment in transcript.segments] in (
        ["w1.0 w2.0", "w3.0 w4.0", "w6.0"],
        ["w1.0 w2.0 w3.0", "w4.0", "w6.0"],
    )
    for segment in transcript.segments:
        assert segment.text == " ".join(word.text for word in segment.words)
        assert (segment.start, segment.end) == (segment.words[0].start, segment.words[-1].end)


def test_a_segment_is_final_once_the_next_one_cannot_change_it() -> None:
    decoded = build_decoded(
        (words_at(1.0, 2.0, 3.0), None, 2.6),
        (words_at(2.0, 3.0, 4.0), 2.6, 4.5),
        (words_at(4.8), 4.5, None),
        (words_at(6.0), None, 7.0),
        end=End(Recording("a.wav"), 8.0),
    )
    taken: list[str] = []

    def take() -> Iterator[Decoded]:
        for number, one in enumerate(decoded):
            taken.append(f"took {number}")
            yield one

    for _, result in Joiner().join_recordings(take(), Request()):
        taken.append(result.text if isinstance(result, Segment) else "the end")
    expected = "took 0, took 1, w1.0 w2.0, took 2, w3.0 w4.0, w4.8, took 3, took 4, w6.0, the end"
    assert taken == expected.split(", ")


def test_truncated_recordings_have_a_warning() -> None:
    error = UserError("cut short")
    broken = build_decoded((words_at(1.0), None, None), end=End(Recording("a/b.wav"), 2.5, error))
    nothing = End(Recording("c.wav"), 0.0, UserError("no audio"))
    segment, transcript, problem = join([*broken, (nothing, None)])
    assert isinstance(transcript, Transcript) and isinstance(segment, Segment)
    assert (transcript.id, transcript.audio, transcript.duration) == ("b", "a/b.wav", 2.5)
    assert transcript.text == segment.text == "w1.0" and transcript.warnings == ("cut short",)
    assert problem is nothing.error


def build_place(*speech: tuple[float, float], end: float = 10.0) -> AudioSegment:
    return AudioSegment(0.0, np.zeros(round(end * 100), np.float32), 100, speech=speech)


def test_words_stay_inside_the_spans_of_speech() -> None:
    words = [Word("early", 0.0, 2.5, 0.9), Word("late", 2.5, 6.4, 0.9), Word("next", 6.4, 7.5, 0.9)]
    clipped = clip_words(words, build_place((2.0, 3.0), (6.5, 8.0)))
    times = [(word.start, word.end) for word in clipped]
    assert times == [(2.0, 2.5), (2.5, 3.0), (6.5, 7.5)]
    spoken = [Word("tail of the one before", 2.8, 6.7, 0.9), Word("just before speech", 5.0, 6.4, 0.9)]
    assert [word.start for word in clip_words(spoken[:1], build_place((2.0, 3.0), (6.5, 8.0)))] == [6.5]
    assert [word.start for word in clip_words(spoken[1:], build_place((2.0, 3.0), (6.5, 8.0)))] == [6.5]
    missed = [Word("missed by the VAD", 3.5, 5.0, 0.9)]
    assert clip_words(missed, build_place((2.0, 3.0), (6.5, 8.0))) == missed
    assert clip_words(words, build_place()) == words, "nobody looked where speech is"


@given(
    times=st.lists(st.floats(0.0, 10.0), max_size=60),
    speech=st.lists(st.floats(0.0, 10.0), max_size=6, unique=True),
    step=st.sampled_from([0.0, 0.02, 0.5]),
)
def test_clipped_words_are_in_order_and_have_a_duration(
    times: list[float], speech: list[float], step: float
) -> None:
    times = sorted(round(time / step) * step if step else time for time in times)
    words = [Word(str(start), start, end, 0.9) for start, end in pairwise(times)]
    edges = sorted(speech)
    clipped = clip_words(words, build_place(*zip(edges[::2], edges[1::2], strict=False)))
    assert [word.text for word in clipped] == [word.text for word in words]
    assert all(word.end - word.start > 0.019 for word in clipped)
    assert all(before.end <= after.start + 1e-9 for before, after in pairwise(clipped))
    assert all(word.start >= 0 and word.end <= 10 + 1e-9 for word in clipped)


def test_channels_become_speakers_in_the_order_of_time(caplog: pytest.LogCaptureFixture) -> None:
    def build(*starts: float, warning: str = "") -> Transcript:
        segments = tuple(Segment(start, start + 1, f"at {start}") for start in starts)
        return Transcript("a", "a.wav", 9.0, segments, warnings=(warning,) if warning else ())

    merged = merge_channels([build(1.0, 5.0, warning="cut short"), build(3.0, warning="cut short")])
    assert isinstance(merged, Transcript)
    assert [(one.start, one.speaker) for one in merged.segments] == [
        *[(1.0, "speaker1"), (3.0, "speaker2"), (5.0, "speaker1")]
    ]
    assert merged.warnings == ("cut short",) and merged.text == "at 1.0 at 3.0 at 5.0"
    error = UserError("no such file")
    assert merge_channels([build(1.0), error]) is error
    assert merge_channels([build(1.0), build(1.0)]) == build(1.0), "one voice on both"
    assert "all channels are identical" in caplog.text
