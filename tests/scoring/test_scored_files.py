"""Files scored from Python and from the command line: one reader, one result, the same notes."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

import jiwer
import pytest
from hypothesis import given, strategies as st

import asr
from asr.cli import main
from asr.errors import UserError
from asr.scoring.scored_files import match_transcripts, score_systems
from asr.scoring.significance import compare_scores
from asr.transcripts.readers import Entry, TranscriptFile


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
        with pytest.raises(UserError, match=r"(reff|hyp|ref)\.trn'?\)?\. Expected a list .* score_files\("):
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
    rule = "up to 3 of an utterance, compared with the one that gives the fewest errors"
    assert record["references"] == rule
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
    assert any(note.startswith("more.trn: 1 IDs are not in ref.jsonl") for note in record["notes"])


def test_references_that_cannot_be_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.trn").write_text("no (x-1)\n")
    Path("all.stm").write_text("a 1 s1 0 1 yes\n")
    for arguments, message in (
        (("ref.trn,other.trn", "hyp.trn"), "other.trn has no utterance of ref.trn"),
        (("ref.trn,none.trn", "hyp.trn"), "none.trn: cannot read the file"),
        (("all.stm,all.stm", "all.stm", "--metric", "cpwer"), "metric cpwer: expected a single reference"),
    ):
        assert main(["score", *arguments]) == 2
        assert message in capsys.readouterr().err
    first, second = (asr.score({"a": "x"}, {"a": "x"}, alternatives={"a": [text]}) for text in ("y", "z"))
    with pytest.raises(UserError, match="same references in both"):
        compare_scores(first, second)


def test_systems_in_the_columns_of_one_table(folder: Path) -> None:
    lines = [{"id": "a", "text": "x y", "one": "x", "two": "x y"}, {"id": "b", "text": "z", "one": "z"}]
    Path("table.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, systems, notes = score_systems("table.jsonl", ["one", "table.jsonl#two"])
    assert [(system.name, system.score.counts.errors) for system in systems] == [("one", 1), ("two", 1)]
    assert any("1 of 2 utterances have no hypothesis" in note for note in notes)
    with pytest.raises(UserError, match="three: cannot read"):
        score_systems("table.jsonl", ["three"])
    _, named, _ = score_systems("table.jsonl", ["first=one", "two"])
    assert [system.name for system in named] == ["first", "two"]
    assert named[0].score.hypotheses == systems[0].score.hypotheses


TEXTS = ["a b c"], ["a b x"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "word"}, "unit = 'word': expected words, characters, mixed; did you mean words?"),
        ({"unit": ["words"]}, 'unit = ["words"]: expected words, characters, mixed'),
        ({"align": "nist"}, "align = 'nist': expected levenshtein, sclite, sclite-D, sclite-F, sclite-FD"),
        ({"align": None}, "align = null: expected levenshtein"),
        ({"align": "jiwer"}, "align jiwer: this value has been renamed; expected align levenshtein"),
        ({"align": "cpwer"}, "align cpwer: this value has been renamed; expected metric cpwer"),
        (
            {"normalize": "englsh"},
            "normalize = 'englsh': expected none, basic, english; did you mean english?",
        ),
        ({"resamples": -1}, "resamples = -1: expected a whole number from 0"),
        ({"resamples": 1e3}, "resamples = 1000.0: expected a whole number"),
        ({"resamples": True}, "resamples = true: expected a whole number"),
        (
            {"align": "sclite-D", "normalize": "basic"},
            "align sclite-D: expected unit words and no normalization",
        ),
        (
            {"speakers": []},
            "speakers: 1 of 1 references have none, such as 1; expected one for each reference",
        ),
        ({"speakers": {"2": "ann"}}, "speakers: 1 of 1 references have none"),
        ({"speakers": [None]}, "speakers: 1 of 1 references have none"),
        ({"recordings": {}}, "recordings: 1 of 1 references have none"),
        ({"recordings": []}, "recordings: 1 of 1 references have none"),
        ({"speakers": [math.nan]}, "speakers: 1 of 1 references have none"),
        ({"speakers": ["ann", "bob"]}, "speakers: 2 for 1 references; expected one for each"),
        ({"speakers": "a"}, "speakers = 'a': expected a list, or a dict from ID"),
        ({"alternatives": ["a b x"]}, 'alternatives = ["a b x"]: expected a dict from ID to a list of texts'),
        ({"alternatives": {"1": "a b x"}}, "alternatives of 1: got 'a b x'. Expected a list of texts"),
    ],
)
def test_options_that_would_count_something_else(options: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        asr.score(*TEXTS, **options)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("references", "hypotheses", "message"),
    [
        ([math.nan], ["a b"], "references, 1: got NaN, float; expected a text"),
        (["a", None], ["a", "b"], "references, 2: got null, NoneType; expected a text"),
        (["a"], [["a"]], 'hypotheses, 1: got ["a"], list; expected a text, or None where it is missing'),
        ({"x": "a"}, {"x": b"a"}, "hypotheses, x: got 'a', bytes; expected a text, or None"),
        ([], [], "no references; expected one text or more"),
        (b"a b", ["a b"], "references: got 'a b'. Expected a list of texts"),
        (3, ["a b"], "references: got 3. Expected a list of texts"),
        ({"2": "b", "1": "a"}, ["b", "a"], "texts by ID on one side, a list on the other"),
        (["a"], {"1": "a"}, "texts by ID on one side, a list on the other"),
    ],
)
def test_what_is_no_text_is_not_scored(references: Any, hypotheses: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        asr.score(references, hypotheses)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "cp"}, "metric = 'cp': expected wer, cer, cpwer, tcpwer, orcwer"),
        ({"align": "sclte"}, "align = 'sclte': expected levenshtein, sclite"),
        ({"collar": math.nan}, "collar = NaN: expected seconds, 0 or more"),
        (
            {"metric": "cpwer", "align": "sclite"},
            "metric cpwer: expected words or mixed units, and align levenshtein",
        ),
        ({"metric": "cpwer", "unit": "characters"}, "metric cpwer: expected words or mixed units"),
    ],
)
def test_options_of_files_that_would_count_something_else(folder: Path, options: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        asr.score_files("ref.trn", "hyp.trn", **options)
    assert str(caught.value).startswith(message)


def test_comparing_from_python_is_what_the_command_prints(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("better.trn").write_text("yes (s2-c)\nThe cat sat (s1-a)\nFive dollars (s1-b)\n")
    assert main(["score", "ref.trn", "hyp.trn", "better.trn"]) == 0
    lines = capsys.readouterr().out.splitlines()
    compared = asr.compare("ref.trn", "hyp.trn", Path("better.trn"))
    assert str(compared) in lines and compared.names == ("hyp", "better")
    references, *systems = (
        [
            line.partition(" (")[0]
            for line in sorted(Path(name).read_text().splitlines(), key=lambda x: x[-3:])
        ]
        for name in ("ref.trn", "hyp.trn", "better.trn")
    )
    from_texts = asr.compare(references, *systems, names=("hyp", "better"))
    assert from_texts.to_dict() == compared.to_dict()
    assert asr.compare("ref.trn", "hyp.trn", "better.trn", normalize="basic").difference == pytest.approx(
        1 / 3
    )


def test_most_errors_are_case(folder: Path) -> None:
    def find_notes(**options: Any) -> list[str]:
        _, _, notes = score_systems("ref.jsonl", ["hyp.jsonl"], **options)
        return [note for note in notes if "case, punctuation" in note]

    def write(name: str, texts: list[str]) -> None:
        rows = (json.dumps({"id": str(number), "text": text}) for number, text in enumerate(texts))
        Path(name).write_text("\n".join(rows))

    write("ref.jsonl", ["the cat sat", "on a mat"] * 150)
    write("hyp.jsonl", ["The cat, sat.", "ON A HAT"] * 150)
    counted = "hyp.jsonl: 750 of 900 errors are case, punctuation or [tags], which --normalize basic removes"
    assert find_notes() == [counted]
    for options in {"normalize": "basic"}, {"normalize": "english"}, {"align": "sclite"}:
        assert find_notes(**options) == []
    write("hyp.jsonl", ["The hat sat", "on a hat"] * 150)  # one of three
    assert find_notes() == []
    write("hyp.jsonl", ["the cat sat", "on a mat"] * 149 + ["The cat sat.", "on A mat"])  # three in all
    assert find_notes() == []


def test_references_that_offer_alternatives_or_become_empty_are_noted(folder: Path) -> None:
    def find_notes(**options: Any) -> list[str]:
        return score_systems("marked.trn", ["heard.trn"], **options)[2]

    Path("marked.trn").write_text("{ gonna / going to } go (a)\n[noise] (b)\na (uh) c (c)\n")
    Path("heard.trn").write_text("gonna go (a)\n[noise] (b)\na c (c)\n")
    offered = "marked.trn: 1 references offer alternatives, { a / b }, all of which count as words; "
    assert find_notes() == [f"{offered}--align sclite chooses among them"]
    assert find_notes(align="sclite") == []
    assert "marked.trn: 1 references are empty after --normalize basic" in find_notes(normalize="basic")


def test_segments_with_other_times_are_not_matched_by_their_ids(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("ref.stm").write_text("a 1 ann 0 2 one two\na 1 ann 2 4 three\nb 1 bob 0 2 four\n")
    Path("same.stm").write_text("a 1 x 0 2 one two\na 1 x 9 10 five\nb 1 x 0 2 four\n")
    Path("other.stm").write_text("a 1 x 0 2 one two\na 1 x 2.1 4 three\nb 1 x 0 2 four\n")
    _, (system,), notes = score_systems("ref.stm", ["same.stm"])
    assert system.score.counts.deletions == 1 and any("1 IDs are not in ref.stm" in note for note in notes)
    assert main(["score", "ref.stm", "other.stm"]) == 2
    said = capsys.readouterr().err
    assert "other.stm: segments such as a-1-0002100-0004000 have other times than in ref.stm" in said
    assert "--metric cpwer" in said
    assert main(["score", "ref.stm", "other.stm", "--metric", "cpwer"]) == 0


spans = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), max_size=4)


@given(spans, spans)
def test_other_times_are_those_that_overlap(
    ours: list[tuple[int, int]], theirs: list[tuple[int, int]]
) -> None:
    """As in every pair of segments that are in one file only."""
    files = []
    for own in (ours, theirs):
        entries = {
            f"{start}-{length}": Entry("x", None, start, length, None, "a", "1") for start, length in own
        }
        files.append(
            TranscriptFile("a.stm", "stm", entries | {"both": Entry("x", None, 90, 1, None, "a", "1")})
        )
    overlap = any(
        max(first[0], second[0]) < min(sum(first), sum(second))
        for first, second in itertools.product({*ours} - {*theirs}, {*theirs} - {*ours})
    )
    with pytest.raises(UserError, match="other times") if overlap else contextlib.nullcontext():
        match_transcripts(*files)


def test_many_other_segments_are_not_compared_pair_by_pair() -> None:
    """A thousand on each side: ten calls for each, not a thousand. Ten thousand took minutes."""
    files = [
        TranscriptFile(
            "a.stm", "stm", {str(n): Entry("x", None, n, 1, None, "a") for n in range(first, 2_000, 2)}
        )
        for first in (0, 1)
    ]
    files[0].entries["both"] = files[1].entries["both"] = Entry("x", None, 5_000, 1, None, "a")
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        match_transcripts(*files)
    finally:
        sys.setprofile(None)
    assert calls < 10_000


def test_a_word_at_another_time_is_no_punctuation(folder: Path) -> None:
    turns = [(100 * n, 100 * n + 10) for n in range(10)]
    Path("ref.stm").write_text("".join(f"m 1 ann {a} {a + 30} one two three\n" for a, _ in turns))
    Path("hyp.stm").write_text("".join(f"m 1 x {b} {b + 30} one two three\n" for _, b in turns))
    _, (system,), notes = score_systems("ref.stm", ["hyp.stm"], metric="tcpwer", collar=0.0)
    assert any(text and "@" in text for text in system.score.hypotheses)
    assert not any("punctuation" in note for note in notes)


def test_systems_have_the_names_that_tell_them_apart(folder: Path) -> None:
    def find_names(*paths: str) -> list[str]:
        _, systems, _ = score_systems("ref.trn", list(paths))
        return [system.name for system in systems]

    for name in (
        "lstm/greedy.trn",
        "conformer/beam.trn",
        "conformer/greedy.trn",
        "more/lstm/greedy.trn",
        "runs/a/test/greedy.trn",
        "runs/b/test/beam.trn",
        "hyp.ctm",
        "a=b.trn",
    ):
        Path(name).parent.mkdir(exist_ok=True, parents=True)
        Path(name).write_text(Path("hyp.trn").read_text())
    assert find_names("lstm/greedy.trn", "conformer/beam.trn") == ["lstm/greedy", "conformer/beam"]
    assert find_names("conformer/greedy.trn", "conformer/beam.trn") == ["greedy", "beam"]
    assert find_names("hyp.trn", "lstm/greedy.trn") == ["hyp", "lstm/greedy"]
    assert find_names("lstm/greedy.trn", "more/lstm/greedy.trn") == ["lstm/greedy", "more/lstm/greedy"]
    assert find_names("runs/a/test/greedy.trn", "runs/b/test/beam.trn") == ["a/test/greedy", "b/test/beam"]
    assert find_names("hyp.trn", "hyp.ctm") == ["hyp.trn", "hyp.ctm"]
    assert find_names("old=lstm/greedy.trn", "new=trn:conformer/beam.trn") == ["old", "new"]
    assert find_names("old=lstm/greedy.trn", "conformer/beam.trn") == ["old", "conformer/beam"]
    assert find_names("a=b.trn") == ["a=b"]  # a file of that name
    with pytest.raises(UserError, match="two systems have the same name; give NAME=FILE"):
        find_names("x=lstm/greedy.trn", "x=conformer/beam.trn")


def test_speakers_of_nist_ids_and_fields_that_are_not_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["score", "ref.trn", "hyp.trn", "--by", "speaker", "--json"]) == 0
    by = json.loads(capsys.readouterr().out)["systems"][0]["by"]["speaker"]
    assert {name: row["utterances"] for name, row in by.items()} == {"s1": 2, "s2": 1}
    assert main(["score", "ref.trn", "hyp.trn", "--by", "room"]) == 2
    assert "no such field; its utterances have no field but id and text" in capsys.readouterr().err


def test_cells_between_semicolons(folder: Path) -> None:
    Path("ref.csv").write_text("id;text\na;one, two\nb;three\n")
    Path("hyp.csv").write_text("id;text\na;one, two\nb;four\n")
    found = asr.score_files("ref.csv", "hyp.csv")
    assert found.ids == ("a", "b") and found.counts.errors == 1
