"""Cues: their width, lines and times, and that no text is lost."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from asr.transcripts.subtitles import Cue, SubtitlesConfig, build_cues, measure_width
from asr.transcripts.transcript import Segment, Word

TEXT = (
    "it was a bright cold day in April, and the clocks were striking thirteen. Winston Smith slipped quickly"
)


def make_segment(
    text: str, start: float = 0.0, word_seconds: float = 0.4, speaker: str | None = None
) -> Segment:
    words = tuple(
        Word(word, start + word_seconds * index, start + word_seconds * (index + 1), 1.0)
        for index, word in enumerate(text.split())
    )
    return Segment(start, words[-1].end, text, words, diarized=speaker)


def cut(segment: Segment, duration: float = 100.0, **settings: int) -> list[Cue]:
    return build_cues([segment], duration, SubtitlesConfig(**settings))


def lines(cues: list[Cue]) -> list[str]:
    return [line for cue in cues for line in cue.lines]


@pytest.mark.parametrize("line_width", [12, 20, 42, 80])
def test_line_width(line_width: int) -> None:
    cues = cut(make_segment(TEXT), line_width=line_width)
    assert max(map(len, lines(cues))) <= line_width
    assert " ".join(lines(cues)) == TEXT
    # Lines are as long as possible: no two lines of a cue would fit on one.
    assert all(len(" ".join(cue.lines)) > line_width for cue in cues if len(cue.lines) > 1)


def test_max_seconds() -> None:
    longest = max(cue.end_ms - cue.start_ms for cue in cut(make_segment(TEXT, word_seconds=1.0)))
    assert 6000 <= longest <= 7000
    (cue,) = cut(Segment(1.0, 31.0, "oh", (Word("oh", 1.0, 31.0, 1.0),)))
    assert cue == Cue(1000, 8000, ("oh",))


def test_min_seconds() -> None:
    """A short cue stays for a second, unless the next one or the end comes earlier."""
    word = make_segment("no", 1.0, 0.2)
    assert cut(word) == [Cue(1000, 2000, ("no",))]
    assert cut(word, duration=1.3) == [Cue(1000, 1300, ("no",))]
    both = build_cues([word, make_segment("yes", 1.5, 0.2)], 10.0, SubtitlesConfig())
    assert both == [Cue(1000, 1500, ("no",)), Cue(1500, 2500, ("yes",))]


@pytest.mark.parametrize(
    "end", ["yes.", "no.", "yes!", "yes.”", "(yes.)", "the U.S.", "so do I.", "etc.", "是。"]
)
def test_cues_end_where_sentences_do(end: str) -> None:
    cues = cut(make_segment(f"we say {end} Then we go on and on, you see."), line_width=20, max_lines=2)
    assert cues[0].lines[-1].endswith(end)


def test_a_pause_ends_a_cue() -> None:
    words = (Word("one", 0, 0.5, 1), Word("two", 2.5, 3.0, 1))
    assert lines(cut(Segment(0, 3, "one two", words))) == ["one", "two"]
    near = (Word("one", 0, 0.5, 1), Word("two", 0.6, 1.0, 1))
    assert lines(cut(Segment(0, 1, "one two", near))) == ["one two"]


def test_lines_are_balanced() -> None:
    (cue,) = cut(make_segment("a rather long line and a word", word_seconds=0.2), line_width=24)
    assert cue.lines == ("a rather long", "line and a word")


def test_wide_characters_take_two_columns() -> None:
    text = "今日は良い天気です明日も晴れるでしょう"
    cues = cut(Segment(0, 9.5, text, (Word(text, 0, 9.5, 1.0),)), line_width=10)
    assert "".join(lines(cues)) == text
    assert max(map(len, lines(cues))) == 5
    # One word of 19 characters in 9.5 s, whose cues have time in proportion to their characters.
    assert [cue.end_ms - cue.start_ms for cue in cues] == [500 * len("".join(cue.lines)) for cue in cues]


def test_words_without_spaces_between() -> None:
    words = tuple(Word(character, index, index + 1, 1.0) for index, character in enumerate("今日は良い"))
    assert lines(cut(Segment(0, 5, "今日は良い", words))) == ["今日は良い"]


def test_accents_stay_with_their_letters() -> None:
    text = "e\u0301" * 20
    assert measure_width(text) == 20
    shown = lines(cut(make_segment(text, word_seconds=5), line_width=8))
    assert "".join(shown) == text and not any(line.startswith("\u0301") for line in shown)


@pytest.mark.parametrize("words", [(), (Word("other", 0, 1, 1.0),), (Word("one", 0, 1, 1.0),)])
def test_without_fitting_words_time_is_shared_by_characters(words: tuple[Word, ...]) -> None:
    cues = cut(Segment(0, 9, "one two", words), line_width=8, max_lines=1)
    assert cues == [Cue(0, 4500, ("one",)), Cue(4500, 9000, ("two",))]


def test_overlapping_segments_follow_each_other() -> None:
    cues = build_cues([make_segment("b", 1.0, 5), make_segment("a", 0.0, 5)], 9.0, SubtitlesConfig())
    assert cues == [Cue(0, 5000, ("a",)), Cue(5000, 6000, ("b",))]


def test_the_label_of_a_speaker_takes_space() -> None:
    cues = cut(make_segment(TEXT, speaker="SPEAKER_00"))
    assert {cue.label for cue in cues} == {"SPEAKER_00: "}
    assert max(len(f"{cue.label}{cue.lines[0]}") for cue in cues) <= 42
    assert " ".join(lines(cues)) == TEXT
    (cue,) = cut(make_segment("good morning", speaker="Her Majesty the Queen of a Far Country"))
    assert cue.label == "Her Majesty the Queen of …: "
    assert cue.speaker == "Her Majesty the Queen of a Far Country"
    assert cue.lines == ("good morning",)


def test_simultaneous_speakers_are_shown_in_turn() -> None:
    """The first cue ends as soon as it could be read, after 40 ms per column and at least 0.5 s."""
    ann = make_segment("I have been there for years", 0.0, 0.5, "Ann")  # 27 columns
    assert [(cue.start_ms, cue.end_ms) for cue in show(ann, make_segment("yes", 2.0, 0.2, "Bob"))] == [
        (0, 2000),
        (2000, 3000),
    ]
    at_once = show(ann, make_segment("no no no no no no", 0.0, 0.5, "Bob"))
    assert [(cue.label, cue.start_ms, cue.end_ms) for cue in at_once] == [
        ("Ann: ", 0, 1080),
        ("Bob: ", 1080, 3000),
    ]
    late = show(ann, make_segment("yes", 0.1, 0.2, "Bob"))
    assert [(cue.start_ms, cue.end_ms) for cue in late] == [(0, 1080), (1080, 1580)]


def show(*segments: Segment) -> list[Cue]:
    return build_cues(segments, 10.0, SubtitlesConfig())


@given(
    words=st.lists(st.text("ab字é.", min_size=1, max_size=30), min_size=1, max_size=60),
    gaps=st.lists(st.floats(0, 2), min_size=60, max_size=60),
    width=st.integers(8, 50),
    max_lines=st.integers(1, 3),
    speakers=st.lists(st.sampled_from([None, "Ann", "字" * 20, "é" * 50]), min_size=3, max_size=3),
)
def test_cues_keep_the_limits(
    words: list[str], gaps: list[float], width: int, max_lines: int, speakers: list[str | None]
) -> None:
    time, timed = 0.0, []
    for word, gap in zip(words, gaps, strict=False):
        timed.append(Word(word, time + gap / 2, time + gap, 1.0))
        time += gap
    segment = Segment(0, time, " ".join(words), tuple(timed))
    segments = [replace(segment, diarized=speaker) for speaker in speakers]  # all speak simultaneously
    cues = build_cues(segments, 100.0, SubtitlesConfig(line_width=width, max_lines=max_lines))
    assert sorted("".join(lines(cues)).replace(" ", "")) == sorted(3 * "".join(words))
    for cue in cues:
        assert 0 < cue.end_ms - cue.start_ms <= 7000
        shown = [cue.label + cue.lines[0], *cue.lines[1:]]
        assert len(shown) <= max_lines and max(map(measure_width, shown)) <= width
    assert all(first.end_ms <= second.start_ms for first, second in itertools.pairwise(cues))
