"""asr/streaming: words become final once, in order, none lost or doubled; what may change is marked so."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.errors import UserError
from asr.transcription.joining import Recognized, make_segment
from asr.transcription.segmentation import AudioSegment, SegmentationConfig
from asr.transcription.speech_detection import measure_energies
from asr.transcription.streaming import (
    LiveText,
    LiveTranscriber,
    StreamingConfig,
    decode_pcm,
    transcribe_live,
)
from asr.transcripts.transcript import Word

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
        text = " ".join(word.text for word in words)
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
@settings(max_examples=15, deadline=None)
def test_each_word_is_final_once_and_in_order(gaps: list[float], chunk: int) -> None:
    levels = [-6.0 - 3 * (index % 5) for index in range(len(gaps))]
    texts = listen(speak(levels, gaps), chunk)
    final = [word for text in texts for word in text.words]
    assert len(final) == len(levels)
    assert all(before.end <= after.start for before, after in itertools.pairwise(final))
    ended = [word for text in texts if text.segment is not None for word in text.segment.words]
    assert ended == final, "the segments hold the same words"


def test_words_come_before_the_segment_ends_when_two_decodings_agree() -> None:
    texts = listen(speak([-6, -9, -12, -6, -9], [0.2] * 4 + [1.0]), RATE // 10)
    early = [word for text in texts if text.segment is None for word in text.words]
    assert len(early) >= 3
    assert all(text.seconds - word.end < 1.3 for text in texts for word in text.words)


def test_what_changes_from_decoding_to_decoding_is_not_final() -> None:
    seen: list[int] = []

    def stutter(words: list[Word], segment: AudioSegment) -> list[Word]:
        seen.append(len(seen))
        return [Word(f"{word.text}#{len(seen)}", word.start, word.end, 0.5) for word in words]

    texts = listen(speak([-6, -9, -12, -6, -9], [0.2] * 4 + [1.0]), RATE // 10, Listener(stutter))
    early = [word for text in texts if text.segment is None for word in text.words]
    assert early == [] and any(text.tentative for text in texts)
    (ended,) = [text for text in texts if text.segment is not None]
    assert len(ended.words) == 5 and ended.tentative == ()


@pytest.mark.parametrize("first", [0.0, 0.1, 0.2, 0.3])
def test_a_word_at_a_cut_is_taken_from_the_segment_that_has_it_whole(first: float) -> None:
    """Speech without a pause is cut, and both segments have what is around the cut."""
    cuts: list[float] = []

    def speak_on(words: list[Word], segment: AudioSegment) -> list[Word]:
        if segment.cut_after is not None:
            cuts.append(segment.cut_after)
        starts = [start for start in first + 0.4 * np.arange(40) if segment.start <= start < segment.end]
        return [
            Word(
                f"w{start:.1f}" if start + 0.4 <= segment.end else "half",
                start,
                min(start + 0.4, segment.end),
                0.5,
            )
            for start in starts
        ]

    noise_S = np.random.default_rng(0).choice([-0.3, 0.3], 12 * RATE).astype(np.float32)
    silence_S = np.zeros(RATE, np.float32)
    texts = listen(np.concatenate([silence_S, noise_S, silence_S]), RATE // 10, Listener(speak_on))
    assert len(cuts) >= 2
    final = [word for text in texts for word in text.words if word.start < cuts[-1]]
    assert [word.text for word in final] == [f"w{word.start:.1f}" for word in final]
    assert len(final) > 15 and np.allclose(np.diff([word.start for word in final]), 0.4)


@pytest.mark.parametrize(("language", "separator"), [(None, " "), ("en", " "), ("ja", "")])
def test_words_are_joined_as_in_the_language_that_is_heard(language: str | None, separator: str) -> None:
    texts = listen(speak([-6, -9, -12], [0.2, 0.2, 1.0]), RATE // 10, Listener(language=language))
    assert {text.separator for text in texts} == {separator} and len(texts) > 1
    (ended,) = [text.segment for text in texts if text.segment is not None]
    assert len(ended.words) == 3 and ended.text == separator.join(word.text for word in ended.words)


def test_memory_does_not_grow() -> None:
    transcriber = LiveTranscriber(Listener(), config=StreamingConfig(step_seconds=5.0))  # type: ignore[arg-type]
    for _ in range(60):
        transcriber.push(speak([-6], [0.4]))
    assert transcriber._segmenter._audio.nbytes < 4 * RATE * 8


def test_raw_samples_may_come_in_any_pieces() -> None:
    samples = np.array([0, 1, -1, 32767, -32768], "<i2")
    content = samples.tobytes()
    for size in (1, 2, 3, 10):
        pieces = [content[first : first + size] for first in range(0, len(content), size)]
        assert np.array_equal(np.concatenate(list(decode_pcm(pieces))), samples.astype(np.float32) / 32768)


def test_other_sample_rates_are_resampled_on_the_way() -> None:
    audio_S = np.repeat(speak([-6, -9], [0.8, 0.8]), 2)
    transcriber = LiveTranscriber(Listener())  # type: ignore[arg-type]
    texts = list(transcribe_live(np.array_split(audio_S, 40), transcriber, 2 * RATE))
    words = [word for text in texts for word in text.words]
    assert [word.start for word in words] == pytest.approx([1.0, 2.1], abs=0.03)


def test_chunks_that_are_no_samples_are_refused() -> None:
    transcriber = LiveTranscriber(Listener())  # type: ignore[arg-type]
    for chunk in (np.zeros(10, np.int16), np.zeros((5, 2)), np.array([np.nan])):
        with pytest.raises(UserError, match="expected finite mono samples"):
            transcriber.push(chunk)
