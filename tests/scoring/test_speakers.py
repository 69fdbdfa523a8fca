"""Several speakers at once: the assignment with the fewest errors, found by trying all of them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from rapidfuzz.distance import Levenshtein

from asr.cli import main
from asr.errors import UserError
from asr.scoring import assign_texts, score_systems

TEXTS = st.lists(st.sampled_from("abc"), max_size=4).map(" ".join)


@given(st.lists(TEXTS, min_size=1, max_size=4), st.data())
def test_no_assignment_has_fewer_errors(references: list[str], data: st.DataObject) -> None:
    hypotheses = data.draw(st.lists(TEXTS, max_size=len(references)))
    rows = assign_texts(references, hypotheses, str.split)
    assert len(set(rows)) == len(rows) == len(hypotheses)

    def errors(chosen: tuple[int, ...]) -> int:
        texts = dict(zip(chosen, hypotheses, strict=True))
        return sum(
            Levenshtein.distance(text.split(), texts.get(row, "").split())
            for row, text in enumerate(references)
        )

    options = itertools.permutations(range(len(references)), len(hypotheses))
    assert errors(tuple(rows)) == min(map(errors, options))


REFERENCE = """\
m1 1 ann 0.0 2.0 <NA> A b c
m1 2 bob 1.0 3.0 <NA> d e
m1 1 ann 3.0 4.0 <NA> f
m2 1 ann 0.0 1.0 <NA> g h
"""
HYPOTHESIS = """\
m1 1 x 0.0 4.0 <NA> d e e
m1 2 y 0.0 3.0 <NA> a b c f
m2 1 x 0.0 1.0 <NA> i
m2 2 y 0.0 1.0 <NA> g h
m3 1 x 0.0 1.0 <NA> z
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("ref.stm").write_text(REFERENCE)
    Path("hyp.stm").write_text(HYPOTHESIS)
    return tmp_path


def test_files_are_scored_by_recording_and_speaker(folder: Path) -> None:
    _, (system,), notes = score_systems("ref.stm", ["hyp.stm"], normalize="basic", speakers_at_once=True)
    score = system.score
    assert score.ids == ("m1:ann", "m1:bob", "m2:ann", "m2:(nobody)-1")
    assert score.hypotheses == ("a b c f", "d e e", "g h", "i")  # what is too much is inserted
    assert (score.counts.errors, score.counts.reference_length) == (2, 8)
    assert score.speakers == ("ann", "bob", "ann", "(nobody)")
    assert score.resampled_by == "recording"
    assert any("1 ids are not in ref.stm and are left out: m3:x" in note for note in notes)
    Path("one.stm").write_text("m1 1 x 0.0 4.0 <NA> d e\n")
    _, (system,), _ = score_systems("ref.stm", ["one.stm"], speakers_at_once=True)
    assert system.score.missing == ("m1:ann", "m2:ann")
    assert (system.score.counts.deletions, system.score.counts.errors) == (6, 6)


def test_from_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--align", "cpwer", "--normalize", "basic", "--by", "speaker")
    assert main(["score", "ref.stm", "hyp.stm", *options]) == 0
    output = capsys.readouterr().out
    assert "speakers_at_once: True, intervals by recording" in output and "(nobody)" in output
    Path("ref.trn").write_text("a b (m1)\n")
    assert main(["score", "ref.trn", "ref.trn", "--align", "cpwer"]) == 2
    assert "ref.trn: utterance m1 has no recording or no speaker" in capsys.readouterr().err
    with pytest.raises(UserError, match="several speakers at once: expected align jiwer"):
        score_systems("ref.stm", ["hyp.stm"], align="sclite", speakers_at_once=True)
