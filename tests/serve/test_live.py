"""Live transcription: pipes never block the recorder; segments are final once and in order; output formats."""

from __future__ import annotations

import io
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, BinaryIO, cast

import numpy as np
import pytest
import scipy
import soundfile
from audio_formats import FORMATS, SOUND
from hostile_audio import RATE
from hypothesis import given, settings, strategies as st

from asr.audio import AudioSegment, SegmentationConfig, measure_energies, read, resample
from asr.errors import UserError
from asr.serve import live
from asr.serve.live import (
    CLEAR_LINE,
    LiveText,
    LiveTranscriber,
    PipeReader,
    read_live,
    transcribe_live,
    write_live,
)
from asr.transcripts.transcript import Segment, Word, make_segment

LIVE_RATE = 8_000


class Listener:
    """A fake recognizer that returns a word for each burst of sound, named after its loudness."""

    separator = " "
    segmentation = SegmentationConfig(max_seconds=4.0)
    sample_rate = LIVE_RATE

    def __init__(self, change: Callable[..., list[Word]] | None = None, language: str | None = None) -> None:
        self.change, self.language = change, language

    def change_request(self, request: Any, language: str | None, is_partial: bool) -> Any:
        batch_size = 1 if is_partial else request.batch_size
        return replace(request, batch_size=batch_size, options=language or request.options)

    @property
    def decoder(self) -> Any:
        return self

    def separator_in(self, language: str | None) -> str:
        return "" if language == "ja" else " "

    def recognize(self, segments: list[AudioSegment], request: Any) -> list[Segment]:
        (segment,) = segments
        energies_T = measure_energies(segment.audio_S, LIVE_RATE)
        is_loud = np.concatenate([[0], (energies_T > -45).astype(int), [0]])
        edges = np.flatnonzero(np.diff(is_loud))
        words = []
        for first, past in zip(edges[::2], edges[1::2], strict=True):
            level = round(float(np.median(energies_T[first:past])))
            words.append(Word(f"w{level}", segment.start + first / 100, segment.start + past / 100, 0.9))
        words = words if self.change is None else self.change(words, segment)
        text = self.separator_in(self.language).join(word.text for word in words)
        found = make_segment(segment, text, words, "joint", ())
        return [replace(found, language=self.language)]


def speak(levels: list[float], pauses: list[float]) -> np.ndarray:
    """A burst of 0.3 s for each level in dB, followed by a pause."""
    random = np.random.default_rng(0)
    pieces = [0.001 * random.standard_normal(LIVE_RATE)]
    for level, pause in zip(levels, pauses, strict=True):
        pieces.append(10 ** (level / 20) * random.choice([-1.0, 1.0], round(0.3 * LIVE_RATE)))
        pieces.append(0.001 * random.standard_normal(round(pause * LIVE_RATE)))
    return np.concatenate(pieces).astype(np.float32)


def listen(audio_S: np.ndarray, chunk: int, listener: Listener | None = None) -> list[LiveText]:
    transcriber = LiveTranscriber(listener or Listener())  # type: ignore[arg-type]
    chunks = [audio_S[first : first + chunk] for first in range(0, len(audio_S), chunk)]
    return list(transcribe_live(chunks, transcriber, LIVE_RATE))


@given(gaps=st.lists(st.floats(0.08, 1.5), min_size=1, max_size=8), chunk=st.integers(50, LIVE_RATE))
@settings(max_examples=15)
def test_each_word_is_final_once_and_in_order(gaps: list[float], chunk: int) -> None:
    levels = [-6.0 - 3 * (index % 5) for index in range(len(gaps))]
    texts = listen(speak(levels, gaps), chunk)
    final = [word for text in texts if text.segment is not None for word in text.segment.words]
    assert len(final) == len(levels)
    assert all(before.end <= after.start for before, after in itertools.pairwise(final))


def test_a_word_that_starts_after_a_cut_belongs_to_the_next_segment() -> None:
    """The previous segment has the overlap too, but only a part of the words there."""

    def tear(words: list[Word], segment: AudioSegment) -> list[Word]:
        cut = segment.cut_after
        return [
            replace(word, text="torn") if cut is not None and word.middle >= cut else word for word in words
        ]

    texts = listen(speak([-6, -9, -12, -15] * 8, [0.08] * 32), LIVE_RATE // 10, Listener(tear))
    ended = [text.segment for text in texts if text.segment is not None]
    final = [word for segment in ended for word in segment.words]
    assert len(ended) > 2 and len(final) == 32 and "torn" not in {word.text for word in final}


def test_words_are_shown_early_once_two_decodings_agree() -> None:
    texts = listen(speak([-6, -9, -12, -6, -9], [0.2] * 4 + [1.0]), LIVE_RATE // 10)
    running = [text for text in texts if text.segment is None]
    assert max(len(text.stable) for text in running) >= 3
    for before, text in itertools.pairwise(running):
        stayed = text.stable[: len(before.stable)]
        assert [word.text for word in stayed] == [word.text for word in before.stable]
        both = {word.text for word in (*before.stable, *before.partial)}
        assert {word.text for word in text.stable} <= both, "in the decoding before as well"
    visible = [(text.seconds, word) for text in running for word in (*text.stable, *text.partial)]
    first = {word.text: seconds - word.end for seconds, word in reversed(visible)}
    assert len(first) >= 3 and max(first.values()) < 0.7


def test_the_text_of_a_whole_segment_overrides_stable_words() -> None:
    def mishear(words: list[Word], segment: AudioSegment) -> list[Word]:
        """As long as the last word is missing, the first one is misrecognized."""
        wrong = [Word("wrong", word.start, word.end, 0.9) for word in words[:1]]
        return words if len(words) == 5 else wrong + words[1:]

    texts = listen(speak([-6, -9, -12, -6, -9], [0.2] * 4 + [1.0]), LIVE_RATE // 10, Listener(mishear))
    assert texts[-2].stable[0].text == "wrong", "it stays until the end of the segment"
    (ended,) = [text.segment for text in texts if text.segment is not None]
    assert len(ended.words) == 5 and "wrong" not in ended.text


def test_only_whole_segments_are_decoded_when_late() -> None:
    transcriber = LiveTranscriber(Listener())  # type: ignore[arg-type]
    chunks = np.array_split(speak([-6, -9, -12, -6], [0.2, 1.0, 0.2, 1.0]), 40)
    texts = list(transcribe_live(chunks, transcriber, LIVE_RATE, is_late=lambda: True))
    assert [len(text.segment.words) for text in texts if text.segment is not None] == [2, 2]
    assert len(texts) == 2


def test_a_segment_is_decoded_during_the_pause_that_may_end_it() -> None:
    decoded: list[float] = []

    def count(words: list[Word], segment: AudioSegment) -> list[Word]:
        decoded.append(segment.end)
        return words

    texts = listen(speak([-6, -9, -12, -6], [0.2, 0.4, 0.2, 1.3]), LIVE_RATE // 10, Listener(count))
    (ended,) = [text for text in texts if text.segment is not None]
    before = texts[texts.index(ended) - 1]
    assert before.seconds < ended.seconds - 0.15
    assert ended.segment is not None and len(ended.segment.words) == 4
    assert len(decoded) == len(texts) - 1, "none at the end of the pause"


def test_a_prepared_text_with_warnings_is_decoded_again_at_the_end() -> None:
    asked: list[int] = []

    class Doubtful(Listener):
        def recognize(self, segments: list[AudioSegment], request: Any) -> list[Segment]:
            (found,) = super().recognize(segments, request)
            asked.append(request.batch_size)  # 1: partial
            return [replace(found, warnings=("a loop",))]

    texts = listen(speak([-6, -9], [0.2, 1.3]), LIVE_RATE // 10, Doubtful())
    assert texts[-1].segment is not None and asked[-1] != 1 and set(asked[:-1]) == {1}


def test_audio_before_an_error_is_decoded() -> None:
    def break_off() -> Iterator[np.ndarray]:
        yield speak([-6, -9], [0.2, 0.1])
        raise UserError("decoding failed")

    texts = []
    with pytest.raises(UserError, match="decoding failed"):
        for text in transcribe_live(break_off(), LiveTranscriber(Listener()), LIVE_RATE):  # type: ignore[arg-type]
            texts.append(text)
    assert texts[-1].segment is not None and len(texts[-1].segment.words) == 2


def test_words_are_joined_as_in_the_detected_language() -> None:
    texts = listen(speak([-6, -9, -12], [0.2, 0.2, 1.0]), LIVE_RATE // 10, Listener(language="ja"))
    assert {text.separator for text in texts} == {""} and len(texts) > 1
    (ended,) = [text.segment for text in texts if text.segment is not None]
    assert len(ended.words) == 3 and ended.text == "".join(word.text for word in ended.words)


def test_a_short_segment_has_the_language_of_earlier_speech() -> None:
    asked: list[tuple[float, str | None]] = []

    class Polyglot(Listener):
        def recognize(self, segments: list[AudioSegment], request: Any) -> list[Segment]:
            asked.append((segments[0].start, request.options))
            self.language = request.options or ("de" if segments[0].start < 8 else "en")
            return super().recognize(segments, request)

    listen(speak([-6] * 16, [0.2, 0.2, 0.2, 1.0] * 4), LIVE_RATE // 10, Polyglot())
    starts = sorted({start for start, _ in asked})
    assert len(starts) == 4
    of_segments = [[language for start, language in asked if start == own] for own in starts]
    assert set(of_segments[0]) == {None}
    # Partial texts use the main language; whole segments detect theirs until there is enough speech.
    assert all(set(own[:-1]) == {"de"} and own[-1] is None for own in of_segments[1:])


def test_memory_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "STEP_SECONDS", 5.0)
    transcriber = LiveTranscriber(Listener())  # type: ignore[arg-type]
    for _ in range(60):
        transcriber.push(speak([-6], [0.4]))
    assert transcriber._segmenter._audio.nbytes < 4 * LIVE_RATE * 8


# --- writing ----------------------------------------------------------------------------------------

ONE, TWO, SIX = Word("one", 0.0, 0.4, 0.9), Word("two", 0.5, 0.8, 0.8), Word("six", 2.0, 2.5, 0.7)
KINDS = ("final", "stable", "partial")
TEXTS = [
    LiveText((), (ONE,), 0.5),
    LiveText((ONE,), (TWO,), 1.0),
    LiveText((ONE,), (TWO,), 1.5),
    LiveText((), (), 2.0, Segment(0.0, 0.8, "one two", (ONE, TWO), warnings=("odd",))),
    LiveText((), (), 2.2, Segment(2.0, 2.2, "")),
    LiveText((), (SIX,), 3.0),
    LiveText((), (), 3.5, Segment(2.0, 2.5, "six", (SIX,))),
]


def test_a_line_for_each_segment_once_it_is_final() -> None:
    out = io.StringIO()
    write_live(TEXTS, out, False)
    assert out.getvalue() == "one two\nsix\n"


def test_a_terminal_shows_what_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    monkeypatch.setenv("COLUMNS", "6")
    write_live(TEXTS[:4], out, False)
    expected = ["one", "e two", "e two", "one two\n"]  # the end of a text that is too wide
    assert out.getvalue() == "".join(CLEAR_LINE + line for line in expected)


def test_json_has_a_line_for_each_change() -> None:
    out = io.StringIO()
    write_live(TEXTS, out, True, lambda: 1.234)
    records = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [record["seconds"] for record in records] == [0.5, 1.0, 2.0, 2.2, 3.0, 3.5]  # nothing new at 1.5
    assert [record["text"] for record in records] == ["one", "one two", "one two", "", "six", "six"]
    kinds = {kind: [[word["text"] for word in record[kind]] for record in records] for kind in KINDS}
    assert kinds["stable"] == [[], ["one"], [], [], [], []]
    assert kinds["partial"] == [["one"], ["two"], [], [], ["six"], []]
    assert kinds["final"] == [[], [], ["one", "two"], [], [], ["six"]]
    assert [record["segment_ends"] for record in records] == [False, False, True, True, False, True]
    assert records[2]["warnings"] == ["odd"] and records[0]["delay"] == 1.23
    assert records[2]["final"][0] == {"text": "one", "start": 0.0, "end": 0.4, "confidence": 0.9}


def test_falling_behind_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, pipe = [100.0], PipeReader(io.BytesIO())
    pipe.arrived = 100.0
    monkeypatch.setattr("asr.serve.live.time.monotonic", lambda: now[0])
    for seconds in (0.1, 3.5, 9.0, 2.0, 0.5, 4.0):
        now[0] = pipe.arrived + seconds
        assert pipe.delay() == pytest.approx(seconds)
    assert [said[:29] for said in caplog.messages] == [f"decoding is {n} s behind the " for n in (3.5, 4.0)]


# --- pipes ------------------------------------------------------------------------------------------


def read_all(content: bytes, channel: int | None = None) -> np.ndarray:
    pieces, rate = read_live(PipeReader(io.BytesIO(content)), channel)
    return resample(np.concatenate(list(pieces)), rate, RATE)


def test_a_recorder_does_not_wait_for_decoding() -> None:
    """Far more than a pipe can hold is written while nobody reads."""
    reading, writing = os.pipe()
    content = os.urandom(1 << 20)
    with open(reading, "rb") as source, open(writing, "wb") as sink:
        pipe = PipeReader(source)
        writer = threading.Thread(target=lambda: (sink.write(content), sink.close()))
        begin = time.monotonic()
        writer.start()
        writer.join(10)
        assert not writer.is_alive()
        found = b"".join(iter(lambda: pipe.read(1000), b""))
        assert found == content and begin <= pipe.arrived <= time.monotonic()
        assert not pipe.is_late and pipe.read(1000) == b""


def test_the_pipe_blocks_only_when_hours_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_CHUNKS", 10)
    content = os.urandom(1 << 20)
    source = io.BytesIO(content)
    pipe = PipeReader(source)
    time.sleep(0.1)
    assert source.tell() <= 12 * live.CHUNK_BYTES
    assert b"".join(iter(lambda: pipe.read(1 << 15), b"")) == content, "and nothing is lost"


def test_a_pipe_error_is_reported_after_earlier_audio() -> None:
    class Broken(io.RawIOBase):
        def __init__(self) -> None:
            self.pieces: list[Any] = [b"abc", None, OSError(5, "Input/output error")]

        def read(self, size: int = -1) -> Any:
            piece = self.pieces.pop(0)
            if isinstance(piece, OSError):
                raise piece
            return piece

    pipe = PipeReader(cast(BinaryIO, Broken()))
    assert pipe.read(100) == b"abc"
    with pytest.raises(UserError, match="standard input: cannot be read"):
        pipe.read(100)


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_decodes_the_same_through_a_pipe_as_from_disk(name: str, tmp_path: Any) -> None:
    (tmp_path / "sound").write_bytes(FORMATS[name].data)
    if name in ("rifx", "caf", "caf ALAC", "m4a", "m4a ALAC", "wavpack"):
        with pytest.raises(UserError, match=r"(cannot be decoded|decoding failed) .* path"):
            read_all(FORMATS[name].data)
        return
    expected, found = read(tmp_path / "sound", RATE), read_all(FORMATS[name].data)
    # Decoders that know the whole file drop the padding that the encoder added at its edges.
    assert abs(len(found) - len(expected)) <= 0.13 * RATE
    similar = scipy.signal.correlate(found, expected, method="fft").max()
    assert similar > 0.95 * np.linalg.norm(found) * np.linalg.norm(expected)


def test_audio_is_decoded_before_the_end_of_the_file() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as source, open(writing, "wb") as sink:
        content = FORMATS["mp3"].data
        sink.write(content[: len(content) // 2])
        sink.flush()
        pieces, _ = read_live(PipeReader(source))
        assert len(next(pieces)) > 0, "the other half has not been written yet"
        sink.write(content[len(content) // 2 :])
        sink.close()
        assert sum(map(len, pieces)) > 2.5 * RATE


def test_channels_of_a_stream(tmp_path: Any) -> None:
    left, right = SOUND, np.roll(SOUND, RATE)
    soundfile.write(tmp_path / "a.wav", np.stack([left, right], axis=1), RATE)
    content = (tmp_path / "a.wav").read_bytes()
    np.testing.assert_allclose(read_all(content, channel=1), right, atol=1e-4)
    np.testing.assert_allclose(read_all(content), (left + right) / 2, atol=1e-4)
    with pytest.raises(UserError, match="has 2"):
        read_all(content, channel=2)


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 8000, b"RIFF" + b"\0" * 5000, b"OggS", b"\0\0\0\x1cftypM4A " + b"\xff" * 9000]
)
def test_undecodable_input_is_reported(content: bytes) -> None:
    with pytest.raises(UserError, match=r"^standard input: "):
        read_all(content)
