"""Live text on its way out: lines, JSON, and the arithmetic of latency."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from asr.transcription.live_output import Latency, measure_latency, write_live
from asr.transcription.streaming import LiveText
from asr.transcripts.transcript import Segment, Word

ONE, TWO, SIX = Word("one", 0.0, 0.4, 0.9), Word("two", 0.5, 0.8, 0.8), Word("six", 2.0, 2.5, 0.7)
TEXTS = [
    LiveText((), (ONE,), 0.5),
    LiveText((ONE,), (TWO,), 1.0),
    LiveText((), (TWO,), 1.5),
    LiveText((TWO,), (), 2.0, Segment(0.0, 0.8, "one two", (ONE, TWO), warnings=("odd",))),
    LiveText((), (), 2.2, Segment(2.0, 2.2, "")),
    LiveText((SIX,), (), 3.0),
]


@pytest.mark.parametrize(("separator", "expected"), [(" ", "one two\nsix\n"), ("", "onetwo\nsix\n")])
def test_a_line_for_each_segment(separator: str, expected: str) -> None:
    out = io.StringIO()
    seen = []
    texts = [replace(text, separator=separator) for text in TEXTS]
    for text in write_live(texts, out):
        seen.append((text, out.getvalue()))
    assert [text for text, _ in seen] == texts and out.getvalue() == expected
    assert seen[1][1] == "one"  # not held back until the line is full


def test_json_has_what_is_new() -> None:
    out = io.StringIO()
    list(write_live(TEXTS, out, as_json=True))
    records = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [record["seconds"] for record in records] == [0.5, 1.0, 2.0, 2.2, 3.0]  # nothing new at 1.5
    assert [record["tentative"] for record in records] == ["one", "two", "", "", ""]
    assert [[word["text"] for word in record["final"]] for record in records] == [
        [],
        ["one"],
        ["two"],
        [],
        ["six"],
    ]
    assert [record["segment_ends"] for record in records] == [False, False, True, True, False]
    assert records[2]["warnings"] == ["odd"]
    assert records[1]["final"][0] == {"text": "one", "start": 0.0, "end": 0.4, "confidence": 0.9}


def test_tentative_words_are_joined_as_the_language_has_it() -> None:
    out = io.StringIO()
    list(write_live([LiveText((), (ONE, TWO), 1.0, separator="")], out, as_json=True))
    assert json.loads(out.getvalue())["tentative"] == "onetwo"


def test_latency_is_audio_and_computing_but_not_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    latency, clock = Latency(), [100.0]
    monkeypatch.setattr("asr.transcription.live_output.time.perf_counter", lambda: clock[0])

    def work() -> Iterator[LiveText]:
        for text in TEXTS:
            clock[0] += 0.5  # waits for audio
            latency.idle_seconds += 0.5
            clock[0] += 0.01  # computes
            yield text

    for _ in measure_latency(work(), latency):
        clock[0] += 0.25  # what becomes of the text is not counted
    assert latency.waits == pytest.approx([0.61, 1.21, 0.51])
    assert latency.computing_seconds == pytest.approx(0.06) and latency.audio_seconds == 3.0


def test_latency_in_words() -> None:
    latency = Latency([1.0] * 9 + [5.0], computing_seconds=2.0, audio_seconds=20.0)
    assert str(latency) == (
        "10 words in 20.0 s of audio; written 1.00 s (median) after they were spoken, nine in ten within 1.00 s; "
        "computing took 0.10 s for each second of audio"
    )
    assert str(Latency(audio_seconds=3.0)) == "no word in 3.0 s of audio"
