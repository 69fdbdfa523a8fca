"""Vote on words: as NIST's ROVER, whatever the majority says wins, and files are matched with care."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from asr.cli import main
from asr.errors import UserError
from asr.scoring import count_word_errors
from asr.scoring.nist import combine, combine_files
from asr.transcripts import read_transcripts

AN4 = Path(__file__).resolve().parents[2] / "recipes/an4/results/test.jsonl.gz"

# What `rover -s -m meth1 -a 1 -c 0` of NIST's SCTK 2.4.10 makes of them.
BY_ROVER = [
    (("the cat sat", "the cat sat", "the bat sat"), "the cat sat"),
    (("a cat sat on the mat", "the cat sat on a mat", "the cat sat on the hat"), "the cat sat on the mat"),
    (("go home now please", "go home please", "go home please"), "go home please"),
    (("one two three four", "two three four", "one two three"), "one two three four"),
    (("one two three", "one two", "one two three four"), "one two three"),
    (("six seven eight nine", "six eleven eight nine", "six seven ate nine"), "six seven eight nine"),
    (("what is the time", "what the time is", "what is time"), "what is the time"),
    (("enter nine nine six", "enter nine six", "enter nine nine nine six"), "enter nine nine six"),
    (
        ("i see the sea", "i see sea the", "eye see the sea", "i sea the sea", "i see the see"),
        "i see the sea",
    ),
    (("rub out a b c", "rub out b c", "rub out a b", "rub out a b c d", "rubout a b c"), "rub out a b c"),
    (("zero zero one", "zero one", "zero zero one", "zero zero zero one", "zero one one"), "zero zero one"),
    # Ties: an inserted word against no word, slots without words, the order of moves, rounding.
    (("d", "d a", "b"), "d a"),
    (("a", "a a", "a b"), "a"),
    (("b", "d d", "d"), "d"),
    (("a a", "a", "c"), "a a"),
    (("b a", "d", "b", "b"), "b"),
    (("a c", "d", "a"), "a c"),
    (("d b", "b d", "c"), "b d"),
    (("c", "c c a", "d", "a", "c"), "c a"),
    (("c a", "c", "a d", "a"), "c"),
    (("b b c c", "c", "a"), "c c"),
]
texts = st.lists(st.sampled_from("abc"), max_size=6).map(" ".join)


@pytest.mark.parametrize(("said", "elected"), BY_ROVER)
def test_votes_as_nist_rover(said: tuple[str, ...], elected: str) -> None:
    assert combine(said) == elected


@pytest.mark.skipif(shutil.which("sctk") is None, reason="rover is missing; apt-get install sctk")
@pytest.mark.parametrize("num_systems", [3, 5])
def test_200_random_sets_are_combined_as_by_nist_rover(tmp_path: Path, num_systems: int) -> None:
    generator = random.Random(num_systems)
    sets = [
        [" ".join(generator.choices("abcd", k=generator.randint(1, 12))) for _ in range(num_systems)]
        for _ in range(200)
    ]
    command = ["sctk", "rover", "-s", "-m", "meth1", "-a", "1", "-c", "0", "-o", "out.ctm"]
    for system, said in enumerate(zip(*sets, ["a b"] * num_systems, strict=True)):
        # rover cuts utterances at common pauses; here there are none, and all end at the same time.
        words = [
            f"{number:03} 1 {0.9 if left == 1 else 0.5 - left / 100:.2f} 0.01 {word}\n"
            for number, text in enumerate(said)
            for left, word in zip(range(len(text.split()), 0, -1), text.split(), strict=True)
        ]
        (tmp_path / f"{system}.ctm").write_text("".join(words))
        command += ["-h", f"{system}.ctm", "ctm"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    elected: dict[str, list[str]] = {}
    for line in (tmp_path / "out.ctm").read_text().splitlines():
        elected.setdefault(line.split()[0], []).append(line.split()[4])
    for number, said in enumerate(sets):
        assert combine(said) == " ".join(elected.get(f"{number:03}", [])), said


@given(texts, st.lists(texts, max_size=2), st.integers(0, 4))
def test_the_text_of_a_majority_wins_wherever_it_stands(text: str, others: list[str], place: int) -> None:
    said = others[:place] + [text] * (len(others) + 1) + others[place:]
    assert combine(said) == text


def test_the_published_systems_of_an4_are_combined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["transformer.joint+language_model", "ctc_lstm.ctc_beam+ngrams", "conformer.joint+ngrams"]
    paths = [f"{AN4}#{name}+speeds" for name in names]
    assert main(["combine", *paths, "--output", str(tmp_path / "combined.jsonl")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'combined.jsonl'}\n"
    combined = read_transcripts(tmp_path / "combined.jsonl", "hypothesis").entries
    published = read_transcripts(f"{AN4}#combination", "hypothesis").entries
    assert {id: e.text for id, e in combined.items()} == {id: e.text for id, e in published.items()}
    references = read_transcripts(AN4).entries
    pairs = [(entry.text or "", combined[id].text or "") for id, entry in references.items()]
    assert count_word_errors(pairs).errors == 37
    assert main(["combine", *paths]) == 0
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == list(combined)


def write(folder: Path, name: str, said: dict[str, str]) -> str:
    lines = [json.dumps({"id": id, "text": text}) + "\n" for id, text in said.items()]
    (folder / name).write_text("".join(lines))
    return str(folder / name)


def test_a_missing_utterance_has_a_vote_less_and_is_told(tmp_path: Path) -> None:
    first = write(tmp_path, "first.jsonl", {"u1": "a b", "u2": "c"})
    second = write(tmp_path, "second.jsonl", {"u1": "a d", "u9": "x"})
    third = write(tmp_path, "third.jsonl", {"u1": "a d", "u2": "e"})
    combined, notes = combine_files([first, second, third])
    assert combined == {"u1": "a d", "u2": "c"}
    assert len(notes) == 2
    assert "second.jsonl: 1 of 2 utterances are missing and have a vote less: u2" in notes[0]
    assert "1 ids are not in" in notes[1] and "u9" in notes[1]


def test_systems_that_write_the_same_words_otherwise_are_noted(tmp_path: Path) -> None:
    texts = {"u1": "the cat sat", "u2": "on a mat"}
    paths = [write(tmp_path, name, texts) for name in ("first.jsonl", "second.jsonl")]
    capitals = write(tmp_path, "third.jsonl", {id: text.upper() for id, text in texts.items()})
    _, notes = combine_files([*paths, capitals])
    assert notes == [
        f"{capitals}: differs from {paths[0]} mostly in case or punctuation, so the same word counts as two; "
        "write both alike first"
    ]


def test_what_cannot_be_combined_is_refused(tmp_path: Path) -> None:
    first, second, other = (
        write(tmp_path, name, {id: "a"})
        for name, id in (("1.jsonl", "u"), ("2.jsonl", "u"), ("3.jsonl", "v"))
    )
    with pytest.raises(UserError, match="2 files; expected 3"):
        combine_files([first, second])
    with pytest.raises(UserError, match="given twice"):
        combine_files([first, second, first])
    with pytest.raises(UserError, match="has no utterance of"):
        combine_files([first, second, other])
