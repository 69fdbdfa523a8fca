"""Files scored from Python and from the command line: one reader, one result, the same notes."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

import asr
from asr.cli import main
from asr.errors import UserError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("ref.trn").write_text("The cat sat (s1-a)\nFive dollars (s1-b)\nyes (s2-c)\n")
    Path("hyp.trn").write_text("yes (s2-c)\nthe cat sat (s1-a)\n$5 (s1-b)\n")
    return tmp_path


@pytest.mark.parametrize(
    ("reference", "hypothesis"),
    [
        (Path("ref.trn"), Path("hyp.trn")),
        ("ref.trn", "hyp.trn"),
        ("trn:ref.trn", "hyp.trn"),
        (Path("ref.trn"), "hyp.trn"),
    ],
)
def test_two_paths_are_read(folder: Path, reference: str | Path, hypothesis: str | Path) -> None:
    found = asr.score(reference, hypothesis)
    assert found.ids == ("s1-a", "s1-b", "s2-c")
    assert (found.counts.reference_length, found.counts.errors) == (6, 3)


def test_texts_are_no_paths(folder: Path) -> None:
    Path("yes").write_text("no\n")
    assert asr.score("yes", "yes").references == ("yes",)
    assert asr.score("ref.tsv", "hyp.tsv").counts.substitutions == 1
    assert asr.score(["ref.trn"], ["hyp.trn"]).counts.substitutions == 1  # lists hold texts
    with pytest.raises(UserError, match=r"'hip\.trn': no such file, and the other side is one"):
        asr.score("ref.trn", "hip.trn")
    with pytest.raises(UserError, match=r"hip\.trn: cannot read the file"):
        asr.score(Path("ref.trn"), Path("hip.trn"))
    with pytest.raises(UserError, match="ids, speakers or recordings besides files"):
        asr.score("ref.trn", "hyp.trn", ids=["1"])


def test_normalize_from_python_is_that_of_the_command_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = {"none": 3, "basic": 2, "english": 0}
    for name, count in errors.items():
        found = asr.score("ref.trn", "hyp.trn", normalize=name)  # type: ignore[arg-type]
        assert found.counts.errors == count
        assert main(["score", "ref.trn", "hyp.trn", "--normalize", name, "--json", "--show", "3"]) == 0
        system = json.loads(capsys.readouterr().out)["systems"][0]
        described = json.loads(json.dumps(found.to_dict(3), allow_nan=False))
        assert {**system, **described} == system and described["worst"] == system["worst"]
    assert asr.score(["a-b"], ["a b"], normalize=lambda text: text.replace("-", " ")).counts.errors == 0
    with pytest.raises(UserError, match="'klingon'; expected one of none, basic, english, or a function"):
        asr.score(["a"], ["a"], normalize="klingon")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="alternatives in braces would be read as words"):
        asr.score(["{ a / b }"], ["a"], normalize="basic", align="sclite")


def test_errors_of_case_alone_are_named(
    folder: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.WARNING):
        asr.score("ref.trn", "hyp.trn")
    assert "1 of 3 errors vanish when case is ignored (WER 33.33 %)" in caplog.text
    assert main(["score", "ref.trn", "hyp.trn"]) == 0
    # In upper case, as other errors are shown, both would be THE.
    assert "REF:  The cat sat\n  HYP:  the cat sat\n  Eval: S" in capsys.readouterr().out
    caplog.clear()
    main(["score", "ref.trn", "hyp.trn", "--align", "sclite"])
    assert "vanish" not in caplog.text


def test_alternatives_that_jiwer_does_not_know_are_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Path("ref.trn").write_text("The { cat / dog } sat (s1-a)\n")
    Path("hyp.trn").write_text("the dog sat (s1-a)\n")
    main(["score", "ref.trn", "hyp.trn"])
    assert "1 texts offer alternatives" in caplog.text
    assert asr.score("ref.trn", "hyp.trn", align="sclite").error_rate == 0
