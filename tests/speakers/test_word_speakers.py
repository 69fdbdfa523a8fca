"""asr/speakers/word_speakers.py: each word gets one speaker, and no word is lost."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

from hypothesis import given, strategies as st

from asr.speakers.word_speakers import FAR_SECONDS, PAUSE_COST, SWITCH_COST, assign_speakers, label_speakers
from asr.transcripts.transcript import Segment, Transcript, Word
from asr.transcripts.writers import format_transcript


def make_turns(*turns: tuple[float, float, str]) -> list[Any]:
    return [SimpleNamespace(start=start, end=end, speaker=speaker) for start, end, speaker in turns]


seconds = st.integers(0, 40).map(lambda quarter: quarter / 4)
some_turns = st.lists(st.tuples(seconds, st.floats(0.1, 3), st.sampled_from("ab")), max_size=5)


@given(some_turns, st.lists(st.tuples(seconds, st.sampled_from(["one", "two."])), min_size=1, max_size=6))
def test_no_sequence_of_speakers_is_cheaper(spans: list[Any], said: list[tuple[float, str]]) -> None:
    """As found by trying all."""
    turns: list[Any] = []
    for start, length, speaker in sorted(spans):  # a speaker's own turns do not overlap
        if all(turn.end <= start for turn in turns if turn.speaker == speaker):
            turns += make_turns((start, start + length, speaker))
    words = [Word(text, start, start + 0.25, 1.0) for start, text in sorted(said)]

    def measure(speakers: tuple[str, ...]) -> float:
        cost = 0.0
        for word, name in zip(words, speakers, strict=True):
            own = [turn for turn in turns if turn.speaker == name]
            shared = sum(max(0, min(word.end, turn.end) - max(word.start, turn.start)) for turn in own)
            far = min(max(turn.start - word.end, word.start - turn.end, 0) for turn in own)
            cost += 1 - shared / 0.25 + min(far, FAR_SECONDS) / FAR_SECONDS
        for (word, later), (name, other) in zip(
            itertools.pairwise(words), itertools.pairwise(speakers), strict=True
        ):
            is_end = later.start - word.end >= 0.3 or word.text.endswith(".")
            cost += 0 if name == other else PAUSE_COST if is_end else SWITCH_COST
        return cost

    found, names = assign_speakers(words, turns), sorted({turn.speaker for turn in turns})
    costs = [measure(own) for own in itertools.product(names, repeat=len(words))]
    assert abs(measure(tuple(found)) - min(costs)) < 1e-6 if turns else found == []


def test_segments_end_where_the_speaker_changes() -> None:
    texts = ("yes", "no.", "why", "not")
    words = [Word(text, second, second + 0.5, 1.0) for second, text in enumerate(texts)]
    segments = (Segment(0, 4, "yes no. why not", tuple(words)), Segment(4, 6, "", warnings=("loop",)))
    bare = Segment(6, 8, "ah so", confidence=0.5)  # no times of words
    turns = make_turns((0, 1.9, "SPEAKER_00"), (1.9, 3.6, "<Ann>"), (3.4, 7, "SPEAKER_00"), (7, 8, "<Ann>"))
    told = label_speakers(Transcript("a", "a.wav", 8.0, (*segments, bare)), turns)
    assert told.words == tuple(words) and told.text == "yes no. why not ah so"
    parts = ["SPEAKER_00: yes no.", "<Ann>: why not", "SPEAKER_00: ah", "<Ann>: so"]
    assert format_transcript("txt", told).splitlines() == parts
    assert [(one.start, one.end) for one in told.segments if one.text][1:] == [(2, 3.5), (6, 7), (7, 8)]
    assert any(one.warnings == ("loop",) for one in told.segments)
    assert "<v &lt;Ann&gt;>why" in format_transcript("vtt", told)
    assert " <Ann> 2.000 3.500 <NA> why not\n" in format_transcript("stm", told)
    first, *_ = label_speakers(Transcript("a", "a.wav", 8.0, segments[:1]), turns).segments
    timed = Transcript("a", "a.wav", 8.0, (first,))
    assert format_transcript("ctm", timed).splitlines()[0] == "a 1 0.000 0.500 yes 1.0000 lex SPEAKER_00"
    assert '"speaker": "SPEAKER_00",' in format_transcript("json", timed)
    untold = Transcript("a", "a.wav", 8.0, segments)
    assert label_speakers(untold, []) == untold
