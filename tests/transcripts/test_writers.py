"""Every format is read back by independent code: FFmpeg, json, csv, or the columns of the standard."""

from __future__ import annotations

import csv
import html
import io
import itertools
import json
import urllib.parse
from dataclasses import replace

import av
import pytest
from hypothesis import example, given, strategies as st

from asr.errors import UserError
from asr.transcripts.subtitles import SubtitlesConfig
from asr.transcripts.transcript import Segment, Transcript, Word
from asr.transcripts.writers import WRITERS, TranscriptStream, format_transcript


def make_segment(start: float, *texts: str, step: float = 0.5) -> Segment:
    words = tuple(
        Word(text, start + step * index, start + step * (index + 0.8), 0.5)
        for index, text in enumerate(texts)
    )
    return Segment(start, words[-1].end, " ".join(texts), words, 0.5, "joint")


MEETING = Transcript(
    "meeting",
    "talks/meeting.wav",
    10.0,
    (make_segment(0.25, "good", "morning"), replace(make_segment(3.0, "one", "more"), warnings=("loop",))),
)
SILENCE = Transcript("silence", "silence.wav", 4.0)

EXPECTED = {
    "txt": "good morning\none more\n",
    "srt": "1\n00:00:00,250 --> 00:00:01,250\ngood morning\n\n2\n00:00:03,000 --> 00:00:04,000\none more\n\n",
    "vtt": "WEBVTT\n\n00:00:00.250 --> 00:00:01.250\ngood morning\n\n00:00:03.000 --> 00:00:04.000\none more\n\n",
    "tsv": "id\tstart\tend\tconfidence\tspeaker\ttext\n"
    "meeting\t0.250\t1.150\t0.5000\t\tgood morning\nmeeting\t3.000\t3.900\t0.5000\t\tone more\n",
    "ctm": "meeting 1 0.250 0.400 good 0.5000\nmeeting 1 0.750 0.400 morning 0.5000\n"
    "meeting 1 3.000 0.400 one 0.5000\nmeeting 1 3.500 0.400 more 0.5000\n",
    "stm": "meeting 1 unknown 0.250 1.150 <NA> good morning\nmeeting 1 unknown 3.000 3.900 <NA> one more\n",
    "trn": "good morning one more (meeting)\n",
}
EXPECTED_OF_SILENCE = {"stm": "silence 1 unknown 0.000 4.000 <NA>\n", "trn": "(silence)\n"}


def test_json_contains_everything() -> None:
    record = json.loads(format_transcript("json", MEETING))
    assert (record["id"], record["audio"], record["duration"]) == ("meeting", "talks/meeting.wav", 10.0)
    found = [(one["start"], one["end"], one["decoding"], one["warnings"]) for one in record["segments"]]
    assert found == [(0.25, 1.15, "joint", []), (3.0, 3.9, "joint", ["loop"])]
    word = record["segments"][0]["words"][1]
    assert word == {"text": "morning", "start": 0.75, "end": 1.15, "confidence": 0.5}
    assert "speaker" not in record and "warnings" not in record
    told = json.loads(format_transcript("jsonl", replace(MEETING, warnings=("cut short",), speaker="Ann")))
    assert (told["warnings"], told["speaker"]) == (["cut short"], "Ann")


def test_jsonl_is_one_line() -> None:
    hostile = replace(MEETING, id="a\u2028b\x85c", segments=(Segment(0, 1, "x\n\u2029y"),))
    text = format_transcript("jsonl", hostile)
    assert len(text.splitlines()) == 1
    assert json.loads(text)["id"] == hostile.id and json.loads(text)["text"] == "x\n\u2029y"


def test_a_missing_confidence_is_null() -> None:
    segment = Segment(0, 1, "a", (Word("a", 0, 1, float("nan")),), float("nan"))
    transcript = Transcript("a", "a.wav", 1.0, (segment,))
    (described,) = transcript.to_dict()["segments"]
    assert described["confidence"] is None and described["words"][0]["confidence"] is None
    assert format_transcript("ctm", transcript) == "a 1 0.000 1.000 a\n"
    assert format_transcript("tsv", transcript).splitlines()[1] == "a\t0.000\t1.000\t\t\ta"


def stream(name: str, *transcripts: Transcript, several: bool = True) -> str:
    out = TranscriptStream(name, several=several)
    return "".join([*map(out.add, transcripts), out.end()])


def test_one_stream_for_several_recordings() -> None:
    txt = "talks/meeting.wav: good morning\ntalks/meeting.wav: one more\nsilence.wav:\n"
    assert stream("txt", MEETING, SILENCE) == txt
    assert stream("txt", MEETING, several=False) == EXPECTED["txt"]
    lines = stream("jsonl", MEETING, SILENCE).splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["meeting", "silence"]
    for recordings in ([], [MEETING], [MEETING, SILENCE]):
        expected = [json.loads(format_transcript("jsonl", transcript)) for transcript in recordings]
        assert json.loads(stream("json", *recordings)) == expected


@pytest.mark.parametrize("name", EXPECTED)
def test_content_of_each_format(name: str) -> None:
    """Tables grow row by row, and subtitles are for one recording."""
    of_silence = EXPECTED_OF_SILENCE.get(name, "")
    assert format_transcript(name, MEETING) == stream(name, MEETING, several=False) == EXPECTED[name]
    assert format_transcript(name, SILENCE) == (of_silence or WRITERS[name].header)
    if not WRITERS[name].holds_several:
        with pytest.raises(UserError, match="--output-dir"):
            stream(name, MEETING, SILENCE)
    elif name != "txt":
        assert stream(name, MEETING, SILENCE) == EXPECTED[name] + of_silence


def test_an_error_does_not_end_the_stream() -> None:
    out = TranscriptStream("ctm")
    with pytest.raises(UserError, match="ctm needs word times"):
        out.add(Transcript("a", "a.wav", 1.0, (Segment(0, 1, "a"),)))
    assert out.add(MEETING) + out.end() == EXPECTED["ctm"]


TEXTS = st.text(
    st.one_of(
        st.sampled_from(" \t\n\u2028<>&-;(){}@/|\"',é字क्षi\u0301\u200b\x00\x1b"),
        st.characters(blacklist_categories=("Cs",)),
    ),
    max_size=40,
)
SECONDS = st.floats(0, 360_000)


@st.composite
def transcripts(draw: st.DrawFn) -> Transcript:
    """Any text, words of zero duration, words that do not spell the text, and long pauses."""
    segments = []
    time = draw(st.floats(0, 400_000))
    for _ in range(draw(st.integers(0, 3))):
        text, start, words = draw(TEXTS), time, []
        for part in text.split() or draw(st.lists(TEXTS, max_size=1)):
            begin = time + draw(st.floats(0, 3))
            time = begin + draw(st.floats(0, 3))
            words.append(Word(part, begin, time, draw(st.floats(0, 1))))
        segments.append(Segment(start, time, text, tuple(words), 0.5))
    name = draw(st.one_of(st.just("a"), TEXTS))
    return Transcript(name, f"{name}.wav", time + draw(st.floats(0, 3)), tuple(segments))


def spoken(text: str) -> str:
    """The text without spaces and characters that do not print as one column."""
    return "".join(
        character
        for character in text
        if not character.isspace() and not (ord(character) < 32 or 127 <= ord(character) < 160)
    )


def read_by_ffmpeg(text: str, name: str) -> list[tuple[int, int, str]]:
    """(start, end, text) of each cue, as read by FFmpeg."""
    cues = []
    with av.open(io.BytesIO(text.encode()), format={"srt": "srt", "vtt": "webvtt"}[name]) as file:
        for packet in file.demux(file.streams.subtitles[0]):
            if packet.pts is not None:
                scale = int(1000 * packet.time_base * 10**6)
                times = [time * scale // 10**6 for time in (packet.pts, packet.pts + packet.duration)]
                cues.append((*times, bytes(packet).decode()))
    return cues


@pytest.mark.parametrize("name", ["srt", "vtt"])
@given(transcript=transcripts())
@example(transcript=Transcript("a", "a", 9e5, (make_segment(360_000.0, "a", "-->", "<b>", "&amp;", "5"),)))
def test_subtitles_are_read_by_ffmpeg(name: str, transcript: Transcript) -> None:
    written = format_transcript(name, transcript)
    said = "".join(spoken(segment.text) for segment in transcript.segments)
    if not said:
        assert "-->" not in written
        return
    cues = read_by_ffmpeg(written, name)
    shown = "".join(spoken(html.unescape(text) if name == "vtt" else text) for _, _, text in cues)
    assert shown == (said if name == "vtt" else said.replace("-->", "→"))
    for start, end, text in cues:
        assert 0 < end - start <= 7000
        assert len(text.split("\n")) <= SubtitlesConfig().max_lines
    for (_, end, _), (start, _, _) in itertools.pairwise(cues):
        assert end <= start


@given(transcript=transcripts())
def test_json_is_read_back(transcript: Transcript) -> None:
    for name in ("json", "jsonl"):
        record = json.loads(format_transcript(name, transcript))
        assert (record["id"], record["text"]) == (transcript.id, transcript.text)
        assert record["duration"] == pytest.approx(transcript.duration, abs=0.000501)
        for described, segment in zip(record["segments"], transcript.segments, strict=True):
            assert described["text"] == segment.text
            assert [word["text"] for word in described["words"]] == [word.text for word in segment.words]
            for word, own in zip(described["words"], segment.words, strict=True):
                # Expected times come from Python's formatting, which rounds exactly.
                assert f"{word['start']:.3f} {word['end']:.3f}" == f"{own.start:.3f} {own.end:.3f}"


@given(transcript=transcripts())
def test_tsv_is_read_by_csv(transcript: Transcript) -> None:
    text = format_transcript("tsv", transcript)
    header, *rows = csv.reader(io.StringIO(text), "excel-tab", quoting=csv.QUOTE_NONE)
    said = [segment for segment in transcript.segments if spoken(segment.text)]
    assert len(rows) == len(said)
    for row, segment in zip(rows, said, strict=True):
        record = dict(zip(header, row, strict=True))
        assert spoken(record["text"]) == spoken(segment.text)
        assert (record["start"], record["end"]) == (f"{segment.start:.3f}", f"{segment.end:.3f}")


@given(transcript=transcripts())
def test_nist_columns(transcript: Transcript) -> None:
    """Columns are separated by white space, and escapes such as %20 are decoded as in a URL."""
    said = [segment for segment in transcript.segments if spoken(segment.text)]
    rows = [line.split(" ") for line in format_transcript("stm", transcript).splitlines()]
    assert [spoken("".join(row[6:])) for row in rows] == [spoken(s.text) for s in said] or not said
    for row in rows:
        assert read_id(row[0]) == transcript.id and row[1] == "1" and row[5] == "<NA>"
        assert float(row[3]) <= float(row[4])
    (trn,) = format_transcript("trn", transcript).splitlines()
    text, _, name = trn.rpartition("(")
    assert spoken(text) == spoken(transcript.text)
    assert name.endswith(")") and read_id(name[:-1]) == transcript.id
    for row, word in zip(
        (line.split(" ") for line in format_transcript("ctm", transcript).splitlines()),
        (word for segment in said for word in segment.words),
        strict=True,
    ):
        assert len(row) == 6 and read_id(row[0]) == transcript.id
        assert row[2] == f"{word.start:.3f}"
        assert round(1000 * (float(row[2]) + float(row[3]))) == round(1000 * float(f"{word.end:.3f}"))


def read_id(column: str) -> str:
    return "" if column == "%" else urllib.parse.unquote(column)


def test_everything_can_be_encoded() -> None:
    """In Python, a file name that is not UTF-8 contains lone surrogates."""
    transcript = replace(MEETING, id="a\udcff", audio="a\udcff.wav")
    for name in WRITERS:
        format_transcript(name, transcript).encode()
    stream("txt", transcript).encode()
    assert json.loads(format_transcript("json", transcript))["id"] == "a\udcff"


@pytest.mark.parametrize(("seconds", "shown"), [(0.0005, "0.001"), (0.0025, "0.003"), (0.0055, "0.005")])
def test_times_are_rounded_once(seconds: float, shown: str) -> None:
    """0.0025 is stored as a little more; a thousand times that would be exactly 2.5, which rounds to 2."""
    transcript = Transcript("a", "a.wav", 9.0, (Segment(seconds, 5.0, "a"),))
    assert format_transcript("tsv", transcript).splitlines()[1].split("\t")[1] == shown == f"{seconds:.3f}"


@pytest.mark.parametrize("name", list(WRITERS))
@pytest.mark.parametrize("several", [True, False])
def test_segments_one_by_one_make_the_same_text(name: str, several: bool) -> None:
    if several and not WRITERS[name].holds_several:
        return
    given = [MEETING, SILENCE] if several else [MEETING]
    whole, by_segment = TranscriptStream(name, several=several), TranscriptStream(name, several=several)
    expected = "".join(whole.add(transcript) for transcript in given) + whole.end()
    early, text = [], ""
    for transcript in given:
        for segment in transcript.segments:
            early.append(by_segment.add_segment(transcript.id, transcript.audio, segment))
            text += early[-1]
        text += by_segment.add(transcript)
    assert text + by_segment.end() == expected
    assert any(early) == (name in ("txt", "tsv", "stm"))


CALL = Transcript(
    "call",
    "call.wav",
    9.0,
    (
        replace(make_segment(1.0, "hello", "there", step=1.0), channel=1),
        replace(make_segment(1.5, "yes"), channel=2),
        replace(make_segment(4.0, "bye"), channel=1),
    ),
)
EXPECTED_OF_CALL = {
    "txt": "speaker1: hello there\nspeaker2: yes\nspeaker1: bye\n",
    "srt": "1\n00:00:01,000 --> 00:00:01,500\nspeaker1: hello there\n\n"
    "2\n00:00:01,500 --> 00:00:02,500\nspeaker2: yes\n\n3\n00:00:04,000 --> 00:00:05,000\nspeaker1: bye\n\n",
    "vtt": "WEBVTT\n\n00:00:01.000 --> 00:00:01.500\n<v speaker1>hello there\n\n"
    "00:00:01.500 --> 00:00:02.500\n<v speaker2>yes\n\n00:00:04.000 --> 00:00:05.000\n<v speaker1>bye\n\n",
    "ctm": "call 1 1.000 0.800 hello 0.5000\ncall 1 2.000 0.800 there 0.5000\n"
    "call 2 1.500 0.400 yes 0.5000\ncall 1 4.000 0.400 bye 0.5000\n",
    "stm": "call 1 speaker1 1.000 2.800 <NA> hello there\ncall 2 speaker2 1.500 1.900 <NA> yes\n"
    "call 1 speaker1 4.000 4.400 <NA> bye\n",
    "trn": "hello there bye (call-1)\nyes (call-2)\n",
}


@pytest.mark.parametrize("name", ["jsonl", *EXPECTED_OF_CALL])
def test_channels_are_speakers_in_every_format(name: str) -> None:
    """Someone who interrupts has a separate cue at that time."""
    written = format_transcript(name, CALL)
    if name == "jsonl":
        found = [(one["speaker"], one["channel"]) for one in json.loads(written)["segments"]]
        assert found == [("speaker1", 1), ("speaker2", 2), ("speaker1", 1)]
    else:
        assert written == EXPECTED_OF_CALL[name]
