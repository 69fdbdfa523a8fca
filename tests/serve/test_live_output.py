"""Live text on its way out: lines, a terminal, JSON, and latency as someone who listens has it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from asr.transcription import CLEAR_LINE, Latency, LiveText, write_live
from asr.transcripts import Segment, Word

ONE, TWO, SIX = Word("one", 0.0, 0.4, 0.9), Word("two", 0.5, 0.8, 0.8), Word("six", 2.0, 2.5, 0.7)
KINDS = ("final", "agreed", "tentative")
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
    out, seen = io.StringIO(), []
    for text in write_live(TEXTS, out):
        seen.append((text, out.getvalue()))
    assert [text for text, _ in seen] == TEXTS and out.getvalue() == "one two\nsix\n"
    assert [shown for _, shown in seen] == [
        "",
        "",
        "",
        "one two\n",
        "one two\n",
        "one two\n",
        "one two\nsix\n",
    ]


def test_a_terminal_shows_what_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    monkeypatch.setenv("COLUMNS", "6")
    list(write_live(TEXTS[:4], out))
    expected = ["one", "e two", "e two", "one two\n"]  # the end of what is too wide
    assert out.getvalue() == "".join(CLEAR_LINE + line for line in expected)


def test_json_has_what_is_new() -> None:
    out, latency = io.StringIO(), Latency(behind_seconds=1.234)
    list(write_live(TEXTS, out, as_json=True, latency=latency))
    records = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [record["seconds"] for record in records] == [0.5, 1.0, 2.0, 2.2, 3.0, 3.5]  # nothing new at 1.5
    assert [record["text"] for record in records] == ["one", "one two", "one two", "", "six", "six"]
    kinds = {kind: [[word["text"] for word in record[kind]] for record in records] for kind in KINDS}
    assert kinds["agreed"] == [[], ["one"], [], [], [], []]
    assert kinds["tentative"] == [["one"], ["two"], [], [], ["six"], []]
    assert kinds["final"] == [[], [], ["one", "two"], [], [], ["six"]]
    assert [record["segment_ends"] for record in records] == [False, False, True, True, False, True]
    assert records[2]["warnings"] == ["odd"] and records[0]["behind"] == 1.23
    assert records[2]["final"][0] == {"text": "one", "start": 0.0, "end": 0.4, "confidence": 0.9}


def test_words_are_joined_as_the_language_has_it() -> None:
    out = io.StringIO()
    list(write_live([LiveText((ONE, TWO), (ONE, TWO), 1.0, separator="")], out, as_json=True))
    assert json.loads(out.getvalue())["text"] == "onetwoonetwo"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("asr.transcription.live_output.time.monotonic", lambda: now[0])
    return now


def test_latency_counts_the_time_in_the_pipe(clock: list[float]) -> None:
    """Half a second of audio comes each half second; decoding is slow, so that it waits more and more."""
    pipe, latency = SimpleNamespace(arrived=0.0), Latency()
    pieces = latency.watch([np.zeros(50)] * 7, 100, pipe)  # type: ignore[arg-type]

    def decode() -> Iterator[LiveText]:
        for number, text in enumerate(TEXTS):
            pipe.arrived = 100.5 + 0.5 * number
            next(pieces)
            clock[0] = pipe.arrived + 0.3 * number
            yield replace(text, seconds=0.5 + 0.5 * number)

    for _ in latency.measure(decode()):
        clock[0] += 0.25
    # one came at 100.5, is first shown then, and is final at 102.9; two came at 101, is shown at 101.3.
    assert latency.shown == pytest.approx([0.0, 0.3, 104.5 - 102.5])
    assert latency.final == pytest.approx([2.4, 1.9, 105.3 - 102.5])
    assert latency.audio_seconds == 3.5


def test_falling_behind_is_said_once_and_so_is_catching_up(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    pipe, latency = SimpleNamespace(arrived=100.0), Latency()
    pieces = latency.watch([np.zeros(50)] * 6, 100, pipe)  # type: ignore[arg-type]
    for delay in (0.1, 3.5, 9.0, 2.0, 0.5, 0.2):
        clock[0] = pipe.arrived + delay
        next(pieces)
        assert latency.behind_seconds == pytest.approx(delay)
    assert [message[:29] for message in caplog.messages] == [
        "decoding is 3.5 s behind the ",
        "decoding has caught up with t",
    ]
    assert latency.most_behind == pytest.approx(9.0)


def test_latency_in_words() -> None:
    latency = Latency(final=[1.0] * 9 + [5.0], shown=[0.5] * 9, audio_seconds=20.0, most_behind=2.0)
    assert str(latency) == (
        "10 words in 20.0 s of audio; first shown 0.50 s (median; nine in ten within 0.50 s), final 1.00 s (median; "
        "nine in ten within 1.00 s) after they had come; decoding was at most 2.00 s behind"
    )
    waits = [0.9, 0.1, 0.8, 0.2, 0.7, 0.3, 0.6, 0.4, 0.5, 1.0]
    assert "first shown 0.55 s (median; nine in ten within 0.90 s)" in str(Latency(final=waits, shown=waits))
    assert str(Latency(audio_seconds=3.0)) == "no word in 3.0 s of audio"


def test_memory_of_arrivals_does_not_grow() -> None:
    latency, pipe = Latency(), SimpleNamespace(arrived=0.0)
    pieces = latency.watch([np.zeros(50)] * 1000, 100, pipe)  # type: ignore[arg-type]
    for number, _ in enumerate(pieces):
        word = Word("a", number / 2, number / 2 + 0.4, 0.9)
        text = LiveText((), (), number / 2 + 0.5, Segment(word.start, word.end, "a", (word,)))
        list(latency.measure([text]))
    assert len(latency.final) == 1000 and len(latency._ends) < 10
