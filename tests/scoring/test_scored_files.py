"""Files scored from Python and from the command line: one reader, one result, the same notes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jiwer
import pytest

import asr
from asr.cli import main
from asr.errors import UserError
from asr.scoring import compare, score_systems


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("ref.trn").write_text("The cat sat (s1-a)\nFive dollars (s1-b)\nyes (s2-c)\n")
    Path("hyp.trn").write_text("yes (s2-c)\nthe cat sat (s1-a)\n$5 (s1-b)\n")
    return tmp_path


@pytest.mark.parametrize("reference", [Path("ref.trn"), "ref.trn", "trn:ref.trn"])
def test_two_paths_are_read(folder: Path, reference: str | Path) -> None:
    found = asr.score_files(reference, "hyp.trn")
    assert found.ids == ("s1-a", "s1-b", "s2-c")
    assert (found.counts.reference_length, found.counts.errors) == (6, 3)


def test_texts_are_no_paths(folder: Path) -> None:
    assert asr.score(["ref.trn"], ["hyp.trn"]).counts.substitutions == 1  # lists hold texts
    for names in (("ref.trn", "hip.trn"), ("yes", "yes"), ("yes", Path("hyp.trn"))):
        with pytest.raises(UserError, match=r"(hip.trn|yes): cannot read the file"):
            asr.score_files(*names)
    wrong: Any
    for wrong in (("reff.trn", "hypp.trn"), (["a"], "hyp.trn"), (Path("ref.trn"), ["a"])):
        with pytest.raises(UserError, match=r"got '(reff|hyp|ref)\.trn'\. Expected a list .* score_files\("):
            asr.score(*wrong)


def test_a_score_shows_its_rates() -> None:
    found = asr.score(["a b c", "d"], ["a b x", "d"])
    assert repr(found) == "Score(WER 25.00 %, 1 error in 4 words)"
    assert (found.wer, found.cer) == (0.25, pytest.approx(1 / 6))
    letters = asr.score(["a b c", "d"], ["a b x", "d"], unit="characters")
    assert letters.cer == found.cer == letters.error_rate and math.isnan(letters.wer)


def test_normalize_from_python_is_that_of_the_command_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = {"none": 3, "basic": 2, "english": 0}
    for name, count in errors.items():
        found = asr.score_files("ref.trn", "hyp.trn", normalize=name)  # type: ignore[arg-type]
        assert found.counts.errors == count
        assert main(["score", "ref.trn", "hyp.trn", "--normalize", name, "--json", "--show", "3"]) == 0
        system = json.loads(capsys.readouterr().out)["systems"][0]
        described = json.loads(json.dumps(found.to_dict(3), allow_nan=False))
        assert {**system, **described} == system and described["worst"] == system["worst"]
        assert main(["score", "ref.trn", "hyp.trn", "--normalize", name]) == 0
        assert f"normalize: {name}," in capsys.readouterr().out
    assert asr.score(["a-b"], ["a b"], normalize=lambda text: text.replace("-", " ")).counts.errors == 0
    with pytest.raises(UserError, match="alternatives in braces"):
        asr.score(["{ a / b }"], ["a"], normalize="basic", align="sclite")


def score_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["score", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_several_files_of_references(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Texts without ids, as translations are given out: line N belongs to line N."""
    sacrebleu = pytest.importorskip("sacrebleu")
    references = [
        ["the cat sat on the mat", "good morning to all", "yes"],
        ["a cat was on the mat", "good morning everybody", "yes sir"],
        ["there is a cat", "morning all of you", "right"],
    ]
    heard = ["a cat sat on the mat", "good morning all of you", "yes right"]
    for number, lines in enumerate(references):
        Path(f"ref.{number}").write_text("\n".join(lines) + "\n")
    Path("hyp.txt").write_text("\n".join(heard) + "\n")
    files = ("plain:ref.0,plain:ref.1,plain:ref.2", "plain:hyp.txt")
    record = score_json(capsys, *files, "--bleu")
    each = [
        [jiwer.process_words(text, own) for text in texts]
        for own, *texts in zip(heard, *references, strict=True)
    ]
    errors = [[one.substitutions + one.deletions + one.insertions for one in row] for row in each]
    assert record["systems"][0]["errors"] == sum(map(min, errors)) < sum(row[0] for row in errors)
    assert record["systems"][0]["bleu"] == pytest.approx(sacrebleu.corpus_bleu(heard, references).score)
    assert (
        record["references"] == "up to 3 of an utterance, compared with the one that gives the fewest errors"
    )
    assert main(["score", *files, "--html", "page.html"]) == 0
    for text in (capsys.readouterr().out, Path("page.html").read_text()):
        assert f"references: {record['references']}" in text


def test_references_in_the_fields_of_a_manifest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"id": "s1-a", "text": "a dog", "extras": {"reference_3": "x", "reference_2": "the cat sat"}},
        {"id": "s1-b", "text": "$5", "reference_2": None},
        {"id": "s2-c", "text": "yes"},
    ]
    Path("ref.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = score_json(capsys, "ref.jsonl", "hyp.trn")
    assert record["systems"][0]["errors"] == 0 and record["references"].startswith("up to 3 of")
    assert any("reference_3: 2 of 3 utterances have no text; their other" in note for note in record["notes"])
    # Another file; ids, in another order and not all of them.
    Path("more.trn").write_text("of course (s2-c)\nelsewhere (s9-z)\n")
    Path("hyp.trn").write_text("of course (s2-c)\nthe cat sat (s1-a)\nfive (s1-b)\n")
    record = score_json(capsys, "ref.jsonl,more.trn", "hyp.trn")
    assert record["systems"][0]["errors"] == 1
    assert any(note.startswith("more.trn: 1 ids are not in ref.jsonl") for note in record["notes"])


def test_references_that_cannot_be_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.trn").write_text("no (x-1)\n")
    Path("all.stm").write_text("a 1 s1 0 1 yes\n")
    for arguments, message in (
        (("ref.trn,other.trn", "hyp.trn"), "other.trn has no utterance of ref.trn"),
        (("ref.trn,none.trn", "hyp.trn"), "none.trn: cannot read the file"),
        (
            ("all.stm,all.stm", "all.stm", "--align", "cpwer"),
            "cpwer: expected words or mixed units, align jiwer, and a single reference",
        ),
    ):
        assert main(["score", *arguments]) == 2
        assert message in capsys.readouterr().err
    first, second = (asr.score({"a": "x"}, {"a": "x"}, alternatives={"a": [text]}) for text in ("y", "z"))
    with pytest.raises(UserError, match="same references in both"):
        compare(first, second)


def test_systems_in_the_columns_of_one_table(folder: Path) -> None:
    lines = [{"id": "a", "text": "x y", "one": "x", "two": "x y"}, {"id": "b", "text": "z", "one": "z"}]
    Path("table.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, systems, notes = score_systems("table.jsonl", ["one", "table.jsonl#two"])
    assert [(system.name, system.score.counts.errors) for system in systems] == [("one", 1), ("two", 1)]
    assert any("1 of 2 utterances have no hypothesis" in note for note in notes)
    with pytest.raises(UserError, match="three: cannot read"):
        score_systems("table.jsonl", ["three"])
