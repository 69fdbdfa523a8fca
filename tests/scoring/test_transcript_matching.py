"""Each hypothesis comes to its reference; what is missing, unknown, or written otherwise is said."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from asr.errors import UserError
from asr.scoring.scored_files import describe_reference, find_ids, match_transcripts
from asr.transcripts.readers import Entry, TranscriptFile, read_transcripts


def match(folder: Path, reference: str, hypothesis: str) -> tuple[dict[str, Entry], list[str]]:
    (folder / "ref").write_text(reference)
    (folder / "hyp").write_text(hypothesis)
    ours = read_transcripts(folder / "ref")
    return match_transcripts(ours, read_transcripts(folder / "hyp", "hypothesis", ours.entries))


def texts(matched: tuple[dict[str, Entry], list[str]]) -> dict[str, str | None]:
    return {id: entry.text for id, entry in matched[0].items()}


def test_missing_and_unknown_ids_are_said(tmp_path: Path) -> None:
    reference = "".join(f"a (u{n})\n" for n in range(6))
    matched = match(tmp_path, reference, "u1 x\nv1 y\nv2 z\n")
    assert texts(matched) == {"u1": "x"}
    missing, unknown = matched[1]
    assert "5 of 6 utterances have no hypothesis" in missing and "deletions: u0, u2, u3, ..." in missing
    assert "2 IDs are not in" in unknown and unknown.endswith("v1, v2")


def test_null_is_missing_and_a_null_reference_is_not_scored(tmp_path: Path) -> None:
    reference = '{"id": "u1", "text": "a"}\n{"id": "u2", "text": null}\n{"id": "u3", "text": ""}\n'
    matched = match(
        tmp_path,
        reference,
        '{"id": "u1", "text": null}\n{"id": "u2", "text": "x"}\n{"id": "u3", "text": ""}\n',
    )
    assert texts(matched) == {"u3": ""}
    assert any("1 of 2 utterances have no hypothesis" in note and note.endswith("u1") for note in matched[1])
    unwritten, empty = describe_reference(read_transcripts(tmp_path / "ref"))
    assert "1 utterances have no text and are not scored: u2" in unwritten
    assert "1 references are empty" in empty and empty.endswith("insertions: u3")


@pytest.mark.parametrize(
    ("reference", "hypothesis", "message"),
    [
        (
            "a (u1)\n",
            "b (v1)\n",
            r"no utterance of .*ref. Its first IDs are v1 \(read as trn\), .* reference u1",
        ),
        ("a b\nc d\n", "a b\n", r"hyp has 1 utterances, .* 2; .*line N"),
        ("a (u1)\nb (u2)\n", "just words\n", "hyp has 1 utterances"),
    ],
)
def test_another_corpus_is_an_error(reference: str, hypothesis: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        match(tmp_path, reference, hypothesis)


def test_plain_text_goes_by_order(tmp_path: Path) -> None:
    matched = match(tmp_path, "a b (u1)\nc d (u2)\n", "A\nC\n")
    assert texts(matched) == {"u1": "A", "u2": "C"}
    assert any("utterance N" in note for note in matched[1])
    assert texts(match(tmp_path, "a b\nc d\n", "A\n\n")) == {"1": "A", "2": ""}


STM = """rec1 1 spkA 0.00 2.00 hello big world
rec1 1 spkB 3.00 5.00 good morning
rec1 1 spkA 6.00 8.00 IGNORE_TIME_SEGMENT_IN_SCORING
rec1 1 spkA 8.00 9.00 the end
rec2 1 spkC 0.00 9.00 missing words
"""
# In and between segments, across their borders, in the ignored one, after the last.
CTM = "".join(
    f"rec1 1 {start} 0.3 {word}\n"
    for start, word in (
        (0.1, "hello"), (0.6, "word"), (1.83, "inside"), (1.87, "outside"), (2.3, "gap"), (3.1, "good"),
        (5.5, "gaptwo"), (6.5, "ignored"), (7.9, "the"), (8.5, "end"), (9.5, "after"),
    )
)  # fmt: skip


def test_words_go_to_segments_by_the_middle_of_their_time(tmp_path: Path) -> None:
    matched = match(tmp_path, STM, CTM)
    assert [entry.text for entry in matched[0].values()] == [
        "hello word inside", "outside gap good", "the end after",
    ]  # fmt: skip
    assert any(note.endswith("rec2-1-0000000-0009000") for note in matched[1])


@pytest.mark.skipif(shutil.which("sctk") is None, reason="sclite is missing; apt-get install sctk")
def test_words_go_where_sclite_puts_them(tmp_path: Path) -> None:
    generator = random.Random(1)
    words = sorted((round(generator.uniform(0, 12), 3), f"w{number}") for number in range(60))
    ctm = "".join(f"rec1 1 {start} 0.2 {word}\n" for start, word in words)
    matched = match(tmp_path, STM, ctm)
    command = ["sctk", "sclite", "-r", "ref", "stm", "-h", "hyp", "ctm", "-o", "sgml", "stdout"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    theirs = {}
    for part in answer.split("<PATH ")[1:]:
        start = part.split('file="')[1].split('"')[0] + " " + part.split('R_T1="')[1].split('"')[0]
        aligned = part.split(">\n")[1].split("\n</PATH")[0].split(":")
        theirs[start] = [word for token in aligned if (word := token.split(",")[2].strip('"'))]
    ours = {
        f"rec1 {float(id.split('-')[2]) / 1000:.3f}": (entry.text or "").split()
        for id, entry in matched[0].items()
    }
    assert ours == {start: found for start, found in theirs.items() if start in ours}
    assert len(ours) == 3


def test_a_channel_by_another_name_and_a_manifest_of_parts(tmp_path: Path) -> None:
    assert len(match(tmp_path, STM, CTM.replace("rec1 1", "rec1 A"))[0]) == 3
    manifest = '{"id": "p1", "audio": "x/rec1.wav", "start": 0, "duration": 2, "text": "a"}\n'
    matched = match(tmp_path, manifest, CTM)
    assert texts(matched) == {"p1": " ".join(line.split()[4] for line in CTM.splitlines())}


def find(folder: Path, *contents: str) -> list[TranscriptFile]:
    """The files after their ids were looked for; the first is the reference. A prefix stands before |."""
    files = []
    for number, content in enumerate(contents):
        prefix, _, text = content.rpartition("|")
        (folder / f"f{number}").write_text(text)
        role = "hypothesis" if number else "reference"
        files.append(read_transcripts(f"{prefix}{folder / f'f{number}'}", role))
    reference, hypotheses = find_ids(files[0], files[1:])
    return [reference, *hypotheses]


@pytest.mark.parametrize(
    "contents",
    [
        ("020300065 LUCY NEEDS\n020300069 NO\n", "020300069 NO\n020300065 LUCY\n"),  # as in speechocean762
        ("7 LUCY NEEDS\n9 NO\n", "LUCY (7)\nNO (9)\n"),
        ("LUCY NEEDS (lucy)\nNO (no)\n", "lucy LUCY\nno\n"),
        ("lucy LUCY\nno NO\n", '{"id": "no", "text": "NO"}\n{"id": "lucy", "text": "LUCY"}\n'),
    ],
)
def test_ids_are_recognized_by_those_of_the_other_file(contents: tuple[str, ...], tmp_path: Path) -> None:
    sides = find(tmp_path, *contents)
    assert sides[0].entries.keys() == sides[1].entries.keys() and "plain" not in {
        side.format for side in sides
    }
    first = next(iter(sides[0].entries))
    assert [(side.entries[first].text or "").split()[0] for side in sides] == ["LUCY", "LUCY"]


@pytest.mark.parametrize(
    ("contents", "doubtful"),
    [
        (("1 LUCY\n2 NO\n", "1 LUCY\n2 YES\n"), "f1"),
        (("LUCY (u1)\nNO (u2)\n", "1 LUCY\n2 YES\n"), "f1"),
        (("1 LUCY\n2 NO\n", "LUCY (u1)\nNO (u2)\n"), "f0"),
        (("ann hi\nbob no\ncarl yes\n", "bob no\nann hi\ncarl yes\n"), "f1"),
    ],
)
def test_lines_are_not_paired_by_number_where_both_files_may_have_ids(
    contents: tuple[str, ...], doubtful: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=rf"{doubtful}: each line starts with another word.*kaldi:.*plain:"):
        find(tmp_path, *contents)
    kinds = ("plain:|", "plain:|" if "(" not in contents[1] else "")
    if "(" not in contents[0]:
        said = [file.format for file in find(tmp_path, kinds[0] + contents[0], kinds[1] + contents[1])]
        assert said[0] == "plain"
        said = [file.format for file in find(tmp_path, "kaldi:|" + contents[0], contents[1])]
        assert said[0] == "kaldi"


@pytest.mark.parametrize(
    "contents",
    [
        ("1 2 3\n2 4\n1 1\n", "1 2 3\n2 4\n1 1\n"),  # spoken digits: a first word comes twice
        ("hello you\ngood morning\nbye\n", "hello you\ngood morning\nbye\n"),  # recognized without an error
        ("one two\nthree\n", "1 2\n3\n"),
    ],
)
def test_plain_text_stays_plain(contents: tuple[str, ...], tmp_path: Path) -> None:
    assert [file.format for file in find(tmp_path, *contents)] == ["plain", "plain"]
