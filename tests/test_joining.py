"""asr/joining: no word is lost or doubled where two segments overlap."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from asr.errors import UserError
from asr.transcription.joining import End, Recognized, Recording, assemble, join_segments, join_words
from asr.transcripts.transcript import Segment, Transcript, Word


def words_at(*starts: float, length: float = 0.3, shift: float = 0.0) -> list[Word]:
    return [Word(f"w{start}", start + shift, start + shift + length, 0.9) for start in starts]


@given(
    gaps=st.lists(st.floats(0.0, 0.5), min_size=20, max_size=20),
    lengths=st.lists(st.floats(0.08, 0.6), min_size=20, max_size=20),
    names=st.lists(st.sampled_from("AB"), min_size=20, max_size=20),
    cut=st.floats(3.0, 5.0),
    shift=st.floats(-0.03, 0.03),
)
@settings(deadline=None)
def test_two_views_of_the_same_words_become_one(
    gaps: list[float], lengths: list[float], names: list[str], cut: float, shift: float
) -> None:
    """Each side hears whole words up to 1 s past the cut, at times that differ by up to 30 ms."""
    words, time = [], 0.0
    for gap, length, name in zip(gaps, lengths, names, strict=True):
        words.append(Word(name, time + gap, time + gap + length, 0.9))
        time += gap + length
    before = [word for word in words if word.end < cut + 1]
    after = [Word(w.text, w.start + shift, w.end + shift, 0.8) for w in words if w.start > cut - 1]
    left, right = join_words(before, after, cut)
    assert [word.text for word in [*left, *right]] == names


def test_a_word_cut_in_two_at_the_edge_of_the_other_view_is_kept_once() -> None:
    before = [*words_at(1.0, 2.0, 3.0), Word("w3.8 bro", 3.8, 4.0, 0.2)]  # its end is not heard here
    after = [Word("ken", 2.1, 2.2, 0.1), *words_at(3.0, 3.8, 5.0)]
    left, right = join_words(before, after, 3.1)
    assert [word.text for word in [*left, *right]] == ["w1.0", "w2.0", "w3.0", "w3.8", "w5.0"]


def test_without_agreement_each_side_keeps_its_own() -> None:
    left, right = join_words(words_at(1.0, 2.0), [Word("x", 1.2, 1.3, 0.5), Word("y", 2.2, 2.6, 0.5)], 1.8)
    assert [word.text for word in left] == ["w1.0"] and [word.text for word in right] == ["y"]


def recognize(words: list[Word], cut_before: float | None, cut_after: float | None) -> Recognized:
    text = " ".join(word.text for word in words)
    segment = Segment(words[0].start, words[-1].end, text, tuple(words), 0.9, "joint")
    return Recognized(segment, cut_before, cut_after)


def test_segments_keep_text_and_times_of_their_words() -> None:
    found = [
        recognize(words_at(1.0, 2.0, 3.0), None, 2.6),
        recognize(words_at(2.0, 3.0, 4.0, shift=0.02), 2.6, None),
        recognize(words_at(6.0), None, None),
    ]
    joined = join_segments(found, " ")
    assert [segment.text for segment in joined] in (
        ["w1.0 w2.0", "w3.0 w4.0", "w6.0"],
        ["w1.0 w2.0 w3.0", "w4.0", "w6.0"],
    )
    for segment in joined:
        assert segment.text == " ".join(word.text for word in segment.words)
        assert (segment.start, segment.end) == (segment.words[0].start, segment.words[-1].end)


def test_recordings_that_break_off_say_so() -> None:
    recording = Recording(
        "a/b.wav", 1, {0: recognize(words_at(1.0), None, None)}, End(2.5, UserError("cut short"))
    )
    transcript = assemble(recording, " ")
    assert isinstance(transcript, Transcript)
    assert (transcript.id, transcript.audio, transcript.duration) == ("b", "a/b.wav", 2.5)
    assert transcript.text == "w1.0" and transcript.warnings == ("cut short",)
    error = UserError("no audio")
    assert assemble(Recording("c.wav", end=End(0.0, error)), " ") is error
