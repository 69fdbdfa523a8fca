"""Live: segments become final once, in order, no word lost or doubled; what may change is marked so."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from asr.audio import AudioSegment, SegmentationConfig, measure_energies
from asr.errors import UserError
from asr.transcription import (
    LiveText,
    LiveTranscriber,
    Recognized,
    StreamingConfig,
    make_segment,
    transcribe_live,
)
from asr.transcripts import Word

RATE = 8_000


class Listener:
    """In place of a recognizer: a word for each burst of sound that it hears, named after its loudness."""

    separator = " "
    segmentation = SegmentationConfig(method="energy", max_seconds=4.0, min_seconds=1.0, overlap_seconds=0.5)
    sample_rate = RATE

    def __init__(
        self,
        change: Callable[[list[Word], AudioSegment], list[Word]] | None = None,
        language: str | None = None,
    ) -> None:
        self.change, self.language = change, language

    def check_live(self, request: Any) -> None:
        """Anything goes."""

    def in_language(self, request: Any, language: str) -> Any:
        return replace(request, options=language)

    def tentatively(self, request: Any) -> Any:
        return replace(request, batch_size=1)

    def separator_in(self, language: str | None) -> str:
        return "" if language == "ja" else " "

    def recognize(self, segments: list[AudioSegment], request: Any) -> list[Recognized]:
        (segment,) = segments
        energies_T = measure_energies(segment.audio_S, RATE)
        is_loud = np.concatenate([[0], (energies_T > -45).astype(int), [0]])
        edges = np.flatnonzero(np.diff(is_loud))
        words = []
        for first, past in zip(edges[::2], edges[1::2], strict=True):
            level = round(float(np.median(energies_T[first:past])))
            words.append(Word(f"w{level}", segment.start + first / 100, segment.start + past / 100, 0.9))
        words = words if self.change is None else self.change(words, segment)
        text = self.separator_in(self.language).join(word.text for word in words)
        found = make_segment(segment, text, words, "joint", ())
        return [Recognized(found, segment.cut_before, segment.cut_after, self.language)]


def speak(levels: list[float], pauses: list[float]) -> np.ndarray:
    """For each level in dB a burst of 0.3 s, then a pause."""
    random = np.random.default_rng(0)
    pieces = [0.001 * random.standard_normal(RATE)]
    for level, pause in zip(levels, pauses, strict=True):
        pieces.append(10 ** (level / 20) * random.choice([-1.0, 1.0], round(0.3 * RATE)))
        pieces.append(0.001 * random.standard_normal(round(pause * RATE)))
    return np.concatenate(pieces).astype(np.float32)


def listen(audio_S: np.ndarray, chunk: int, listener: Listener | None = None) -> list[LiveText]:
    transcriber = LiveTranscriber(listener or Listener())  # type: ignore[arg-type]
    chunks = [audio_S[first : first + chunk] for first in range(0, len(audio_S), chunk)]
    return list(transcribe_live(chunks, transcriber, RATE))


@given(
    gaps=st.lists(st.floats(0.08, 1.5), min_size=1, max_size=8),
    chunk=st.integers(50, RATE),
)
@settings(max_examples=15)
def test_each_word_is_final_once_and_in_order(gaps: list[float], chunk: int) -> None:
    levels = [-6.0 - 3 * (index % 5) for index in range(len(gaps))]
    texts = listen(speak(levels, gaps), chunk)
    final = [word for text in texts if text.segment is not None for word in text.segment.words]
    assert len(final) == len(levels)
    assert all(before.end <= after.start for before, after in itertools.pairwise(final))


def test_words_are_shown_before_the_segment_ends_and_agreed_on_by_two_decodings() -> None:
    texts = listen(speak([-6, -9, -12, -6, -9], [0.2] * 4 + [1.0]), RATE // 10)
    running = [text for text in texts if text.segment is None]
    assert max(len(text.agreed) for text in running) >= 3
    for before, text in itertools.pairwise(running):
        assert [word.text for word in text.agreed][: len(before.agreed)] == [
            word.text for word in before.agreed
        ]
        both = {word.text for word in (*before.agreed, *before.tentative)}
        assert {word.text for word in text.agreed} <= both, "in the decoding before as well"
    visible = [(text.seconds, word) for text in running for word in (*text.agreed, *text.tentative)]
    first = {word.text: seconds - word.end for seconds, word in reversed(visible)}
    assert len(first) >= 3 and max(first.values()) < 0.7


def test_what_changes_from_decoding_to_decoding_is_not_agreed_on() -> None:
    seen: list[int] = []

    def stutter(words: list[Word], segment: AudioSegment) -> list[Word]:
        seen.append(len(seen))
        return [Word(f"{word.text}#{len(seen)}", word.start, word.end, 0.5) for word in words]

    texts = listen(speak([-6, -9, -12, -6, -9], [0.2] * 4 + [1.0]), RATE // 10, Listener(stutter))
    assert not any(text.agreed for text in texts) and any(text.tentative for text in texts)
    (ended,) = [text.segment for text in texts if text.segment is not None]
    assert len(ended.words) == 5


def test_the_text_of_a_whole_segment_is_final_whatever_was_agreed_on_before() -> None:
    def mishear(words: list[Word], segment: AudioSegment) -> list[Word]:
        """As long as the last word is missing, the first one is taken for another."""
        return (
            words if len(words) == 5 else [Word("wrong", w.start, w.end, 0.9) for w in words[:1]] + words[1:]
        )

    texts = listen(speak([-6, -9, -12, -6, -9], [0.2] * 4 + [1.0]), RATE // 10, Listener(mishear))
    assert any(text.agreed and text.agreed[0].text == "wrong" for text in texts)
    assert texts[-2].agreed[0].text == "wrong", "it stays until the end of the segment"
    (ended,) = [text.segment for text in texts if text.segment is not None]
    assert len(ended.words) == 5 and "wrong" not in ended.text


def test_when_late_only_whole_segments_are_decoded() -> None:
    audio_S = speak([-6, -9, -12, -6], [0.2, 1.0, 0.2, 1.0])
    decoded: list[float] = []

    def count(words: list[Word], segment: AudioSegment) -> list[Word]:
        decoded.append(segment.start)
        return words

    transcriber = LiveTranscriber(Listener(count))  # type: ignore[arg-type]
    chunks = np.array_split(audio_S, 40)
    texts = list(transcribe_live(chunks, transcriber, RATE, is_late=lambda: True))
    assert len(decoded) == 2 and all(text.segment is not None for text in texts)
    assert sum(len(text.segment.words) for text in texts if text.segment is not None) == 4


def test_a_pause_is_used_to_decode_the_segment_that_it_may_end() -> None:
    decoded: list[float] = []

    def count(words: list[Word], segment: AudioSegment) -> list[Word]:
        decoded.append(segment.end)
        return words

    texts = listen(speak([-6, -9, -12, -6], [0.2, 0.4, 0.2, 1.3]), RATE // 10, Listener(count))
    (ended,) = [text for text in texts if text.segment is not None]
    before = texts[texts.index(ended) - 1]
    assert before.seconds < ended.seconds - 0.15
    assert ended.segment is not None and len(ended.segment.words) == 4
    assert len(decoded) == len(texts) - 1, "none at the end of the pause"


def test_a_prepared_text_with_warnings_is_decoded_again_at_the_end() -> None:
    asked: list[int] = []

    class Doubtful(Listener):
        def recognize(self, segments: list[AudioSegment], request: Any) -> list[Recognized]:
            (found,) = super().recognize(segments, request)
            asked.append(request.batch_size)  # 1: tentatively
            return [replace(found, segment=replace(found.segment, warnings=("a loop",)))]

    texts = listen(speak([-6, -9], [0.2, 1.3]), RATE // 10, Doubtful())
    assert texts[-1].segment is not None and asked[-1] != 1 and set(asked[:-1]) == {1}


def test_what_came_before_an_error_is_decoded() -> None:
    def break_off() -> Iterator[np.ndarray]:
        yield speak([-6, -9], [0.2, 0.1])
        raise UserError("cannot be decoded any further")

    texts = []
    with pytest.raises(UserError, match="any further"):
        for text in transcribe_live(break_off(), LiveTranscriber(Listener()), RATE):  # type: ignore[arg-type]
            texts.append(text)
    assert texts[-1].segment is not None and len(texts[-1].segment.words) == 2


@pytest.mark.parametrize(("language", "separator"), [(None, " "), ("en", " "), ("ja", "")])
def test_words_are_joined_as_in_the_language_that_is_heard(language: str | None, separator: str) -> None:
    texts = listen(speak([-6, -9, -12], [0.2, 0.2, 1.0]), RATE // 10, Listener(language=language))
    assert {text.separator for text in texts} == {separator} and len(texts) > 1
    (ended,) = [text.segment for text in texts if text.segment is not None]
    assert len(ended.words) == 3 and ended.text == separator.join(word.text for word in ended.words)


def test_a_short_segment_has_the_language_of_the_speech_before() -> None:
    asked: list[tuple[float, str | None]] = []

    class Polyglot(Listener):
        def recognize(self, segments: list[AudioSegment], request: Any) -> list[Recognized]:
            asked.append((segments[0].start, request.options))
            self.language = request.options or ("de" if segments[0].start < 8 else "en")
            return super().recognize(segments, request)

    listen(speak([-6] * 16, [0.2, 0.2, 0.2, 1.0] * 4), RATE // 10, Polyglot())
    starts = sorted({start for start, _ in asked})
    assert len(starts) == 4
    of_segments = [[language for start, language in asked if start == own] for own in starts]
    assert set(of_segments[0]) == {None}
    # As it is spoken, the usual language; whole segments tell their own until enough was heard.
    assert all(set(own[:-1]) == {"de"} and own[-1] is None for own in of_segments[1:])


def test_memory_does_not_grow() -> None:
    transcriber = LiveTranscriber(Listener(), config=StreamingConfig(step_seconds=5.0))  # type: ignore[arg-type]
    for _ in range(60):
        transcriber.push(speak([-6], [0.4]))
    assert transcriber._segmenter._audio.nbytes < 4 * RATE * 8


def test_other_sample_rates_are_resampled_on_the_way() -> None:
    audio_S = np.repeat(speak([-6, -9], [0.8, 0.8]), 2)
    transcriber = LiveTranscriber(Listener())  # type: ignore[arg-type]
    texts = list(transcribe_live(np.array_split(audio_S, 40), transcriber, 2 * RATE))
    words = [word for text in texts if text.segment is not None for word in text.segment.words]
    assert [word.start for word in words] == pytest.approx([1.0, 2.1], abs=0.03)


def test_chunks_that_are_no_samples_are_refused() -> None:
    transcriber = LiveTranscriber(Listener())  # type: ignore[arg-type]
    for chunk in (np.zeros(10, np.int16), np.zeros((5, 2)), np.array([np.nan])):
        with pytest.raises(UserError, match="expected finite mono samples"):
            transcriber.push(chunk)
