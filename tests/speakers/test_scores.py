"""Scores of speaker turns and meetings, as md-eval, pyannote.metrics and meeteval find them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from asr.cli import main
from asr.errors import UserError
from asr.scoring.scored_files import score_systems
from asr.speakers import meeting_scores
from asr.speakers.turn_scores import compare_turns, score_turns
from asr.speakers.turns import Turn, format_rttm, format_seglst


def make(lines: str) -> list[Turn]:
    rows = [line.split(maxsplit=4) for line in lines.split("|")]
    return [Turn(row[0], float(row[1]), float(row[2]), row[3], *row[4:]) for row in rows]


REFERENCE = make("m1 0 4 ann|m1 3 7.5 bob|m1 8 10 ann|m1 10 12 cyd|m2 1 5 ann|m3 2 3 dan")
HYPOTHESIS = make("m1 .2 3.4 x|m1 3.1 8.3 y|m1 8.3 12.5 x|m2 .5 2 x|m2 2 5.5 y|m2 2.5 3.5 z")
UEM = {"m1": [(0.0, 11.0)], "m2": [(0.0, 20.0)], "m3": [(0.0, 20.0)]}
# Speech, missed, false alarm and confusion as of md-eval -c 0, and md-eval -c 0.25 -1.
ALL = [[11.5, 0.9, 0.5, 1.3], [4.0, 0.0, 2.0, 1.0], [1.0, 1.0, 0.0, 0.0]]
FORGIVING = [[7.75, 0.0, 0.0, 0.8], [3.5, 0.0, 1.5, 0.75], [0.5, 0.5, 0.0, 0.0]]
JACCARD = [1.4698113207547172, 0.3333333333333333, 1.0]  # as of pyannote.metrics, sums over speakers
MEETING = make(
    "m 0 3 ann good morning to all of you|m 2.5 5 bob morning|m 6 8 ann let us begin|m 7.5 9 bob yes|"
    "m 20 24 cyd i am late|m 30 32 ann yes"
)
RECOGNIZED = make(
    "m .2 3.1 x good morning to all you|m 2.5 4.5 y good morning|m 6 9 x let us begin yes|"
    "m 19 24 y i am late|m 44 46 x yes|m 50 51 z hm|n 1 2 x oh"
)


def test_turns_as_by_md_eval_and_pyannote() -> None:
    assert score_turns(REFERENCE[:-1], make("m9 0 1 x")).recordings == ("m1", "m2"), "not of the hypothesis"
    score = score_turns(REFERENCE, HYPOTHESIS, uem=UEM)
    np.testing.assert_allclose(score.sums_MK[:, :4], ALL, atol=1e-9)
    np.testing.assert_allclose(score.sums_MK[:, 4], JACCARD, atol=1e-9)
    assert score.sums_MK[:, 5:].tolist() == [[3, 2], [1, 3], [1, 0]]
    assert score.error_rate == pytest.approx(6.7 / 16.5)
    assert score.jaccard_error_rate == pytest.approx(sum(JACCARD) / 5)
    forgiving = score_turns(REFERENCE, HYPOTHESIS, uem=UEM, collar=0.25, skip_overlap=True)
    np.testing.assert_allclose(forgiving.sums_MK[:, :4], FORGIVING, atol=1e-9)
    many = make("|".join(f"m {number} {number}.5 {number}" for number in range(6000)))
    with pytest.raises(UserError, match="m: 6,000 speakers in 6,000 turns"):
        score_turns([], many, uem={"m": [(0, 1)]})


def test_systems_are_compared_by_recording() -> None:
    refs = make("|".join(f"m{number} 0 10 a" for number in range(12)))
    good, bad = ([Turn(turn.recording, 0.0, end, "x") for turn in refs] for end in (9.5, 7.0))
    comparison = compare_turns(score_turns(refs, good), score_turns(refs, bad), ("good", "bad"))
    assert comparison.p == pytest.approx(2 / 2**12) and comparison.verdict == "better"
    assert comparison.bootstrap and comparison.bootstrap.resampled_by == "recording"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_asr_score_of_rttm(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, turns in (("ref", REFERENCE), ("a", HYPOTHESIS), ("b", [*REFERENCE, *make("m9 0 1 x")])):
        Path(f"{name}.rttm").write_text(format_rttm(turns))
    lines = [f"{name} 1 {start} {end}\n" for name, spans in UEM.items() for start, end in spans]
    Path("ref.uem").write_text("".join(lines))
    options = ["score", "ref.rttm", "a.rttm", "own=b.rttm", "--uem", "ref.uem"]
    assert main([*options, "--collar", "0.25", "--skip-overlap"]) == 0
    output = capsys.readouterr().out
    assert "uem: ref.uem, collar: 0.25, overlap: skipped" in output and "points DER" in output
    assert output.splitlines()[4].split()[:6] == ["a", "11.8", "4.26", "12.77", "13.19", "30.21"]
    assert main([*options, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["systems"][0]["recordings"]["m1"]["missed_seconds"] == pytest.approx(0.9)
    assert [system["name"] for system in record["systems"]] == ["a", "own"]
    assert record["notes"][0] == "a.rttm: no turns in 1 recordings: m3"
    assert record["notes"][1] == "b.rttm: 1 other recordings are skipped: m9"
    Path("a.trn").write_text("a b (m1)\n")
    Path("a.stm").write_text("m1 1 a 0 1 a b\n")
    Path("a.json").write_text(format_seglst(MEETING))
    for words, message in [
        ("ref.rttm a.rttm --collar -1", "--collar = '-1': expected a number of seconds"),
        ("ref.rttm a.rttm --by speaker", "ref.rttm: RTTM has no words. Expected --metric der, --uem"),
        ("a.trn a.trn --skip-overlap", "a.trn: not RTTM, which --metric der, --uem"),
        ("a.trn a.trn --metric tcpwer", "a.trn: utterances without times"),
        ("a.trn a.trn --metric orcwer", "a.trn: utterance m1 has no recording or no speaker"),
        ("a.stm a.stm --metric cpwer --align sclite", "metric cpwer: expected words or mixed units"),
        ("a.stm a.stm --metric der", "a.stm: not RTTM, which --metric der"),
        ("ref.rttm a.rttm --metric cpwer", "ref.rttm: RTTM has no words. Expected --metric der"),
        ("a.stm a.stm --metric cpwer --collar 1", "--collar: expected RTTM files, or --metric tcpwer"),
        ("a.json a.json", "expected `text`. Try --metric cpwer, which reads SegLST"),
    ]:
        assert main(["score", *words.split()]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(("metric", "errors"), [("cpwer", 6), ("tcpwer", 9), ("orcwer", 3)])
def test_as_meeteval(metric: str, errors: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, turns in (("ref", MEETING), ("hyp", RECOGNIZED), ("b", MEETING[:4])):
        Path(f"{name}.json").write_text(format_seglst(turns))
    assert main(["score", "ref.json", "hyp.json", "b.json", "--metric", metric, "--by", "speaker"]) == 0
    _, (system,), notes = score_systems("ref.json", ["hyp.json"], metric=metric)
    assert (system.score.counts.errors, system.score.counts.reference_length) == (errors, 15)
    assert system.score.resampled_by == "utterance"  # of a single recording
    assert any("1 IDs are not in ref.json and are left out: n:x" in note for note in notes)
    Path("empty.json").write_text(format_seglst(make("|".join(f"m 0 1 {speaker}" for speaker in range(70)))))
    _, (system,), _ = score_systems("ref.json", ["empty.json"], metric=metric)
    assert system.score.counts.deletions == 15 and not system.score.missing
    monkeypatch.setattr(meeting_scores, "MAX_TRACED", 1)
    states = (10 + 1) * (5 + 1) * (1 + 1) * (15 + 6)  # words of x, y and z, then of 6 utterances
    monkeypatch.setattr(meeting_scores, "MAX_ORC_STATES", states - 1)
    _, (system,), notes = score_systems("ref.json", ["hyp.json"], metric=metric)
    assert system.score.counts.errors == errors
    assert any("ORC-WER is from a local search" in note for note in notes) == (metric == "orcwer")


def test_words_of_a_ctm_go_to_turns(folder: Path) -> None:
    Path("ref.stm").write_text("m1 1 ann 0.0 2.0 a b\nm1 2 bob 1.0 3.0 c\nm1 1 ann 3.0 4.0 f\n")
    Path("hyp.ctm").write_text("m1 1 0.5 0.5 A\nm1 1 1.0 0.4 b\nm1 1 1.5 0.4 c\nm1 1 9.0 0.5 f\nm2 1 0 1 g\n")
    Path("hyp.rttm").write_text(format_rttm(make("m1 0 1.6 x|m1 1.2 3 y|m1 8 8.5 x")))
    _, (system,), _ = score_systems("ref.stm", ["hyp.ctm,hyp.rttm"], metric="cpwer", normalize="basic")
    assert system.score.hypotheses == ("a b", "c", "f")
