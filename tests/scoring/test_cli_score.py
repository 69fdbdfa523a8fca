"""`asr score`: every option has its effect, tables and JSON agree, and nothing odd passes in silence."""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from asr.cli import score_command as command
from asr.errors import UserError

REFERENCE = [
    {"id": "u1", "text": "the cat sat on the mat", "speaker": "ann", "extras": {"room": "hall"}},
    {"id": "u2", "text": "hello world", "speaker": "bob", "extras": {"room": "lab"}},
    {"id": "u3", "text": "one two three", "speaker": "ann", "extras": {"room": "hall"}},
    {"id": "u4", "text": "good morning to you all", "speaker": "bob"},
]
FIRST = {
    "u1": "the cat sat on a mat mat",
    "u2": "hello",
    "u3": "one two three",
    "u4": "good morning to you all",
}
SECOND = {"u1": "a cat", "u2": "hello world", "u3": "one", "u4": "good evening"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ref.jsonl").write_text("".join(json.dumps(record) + "\n" for record in REFERENCE))
    (tmp_path / "one.trn").write_text("".join(f"{text} ({id})\n" for id, text in FIRST.items()))
    (tmp_path / "two.txt").write_text("".join(f"{id} {text}\n" for id, text in reversed(SECOND.items())))
    return tmp_path


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_the_table_agrees_with_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = run_json(capsys, "ref.jsonl", "one.trn", "two.txt", "--by", "speaker")
    assert run("ref.jsonl", "one.trn", "two.txt", "--by", "speaker") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "ref.jsonl (jsonl) against one.trn (trn), two.txt (kaldi)" in lines[0]
    assert lines[1] == "metric: wer, unit: words, normalize: none, align: levenshtein"
    assert "no interval: 2 speakers, at least 3 are needed" in record["notes"]
    rows = {line.split()[0]: line.split()[1:] for line in reversed(lines) if line.strip()}
    for system in record["systems"]:
        shown = rows[system["name"]]
        names = ("utterances", "reference_length", "correct", "substitutions", "deletions", "insertions")
        assert shown[:6] == [str(system[name]) for name in names]
        rates = [system["error_rate"], system["character_error_rate"]]
        assert shown[6:8] == [f"{100 * rate:.2f}" for rate in rates]
    assert rows["ann"][:6] == ["2", "9", "8", "1", "0", "1"]
    assert record["systems"][0]["by"]["speaker"]["ann"]["correct"] == 8
    assert record["comparisons"][0]["summary"] in lines


def test_several_systems_are_compared_in_pairs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a").mkdir()
    (folder / "a" / "one.trn").write_text((folder / "one.trn").read_text())
    record = run_json(capsys, "ref.jsonl", "one.trn", "two.txt", "a/one.trn")
    assert [system["name"] for system in record["systems"]] == ["one", "two", "a/one"]
    assert len(record["comparisons"]) == 3
    difference = record["systems"][0]["error_rate"] - record["systems"][1]["error_rate"]
    assert record["comparisons"][0]["difference"] == pytest.approx(difference)
    assert record["comparisons"][1]["verdict"] == "undecided"  # the same hypotheses


def test_by_any_field(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by = run_json(capsys, "ref.jsonl", "one.trn", "--by", "room")["systems"][0]["by"]
    assert {name: group["utterances"] for name, group in by["room"].items()} == {
        "(unknown)": 1,
        "hall": 2,
        "lab": 1,
    }


def test_errors_and_worst_utterances_are_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ref.jsonl", "one.trn", "--show", "1") == 0
    out = capsys.readouterr().out
    assert "confusions, 1 of 1\n      1  the -> " in out and "deletions, 1 of 1\n      1  world" in out
    assert "utterances with most errors, 1 of 2" in out
    assert "u1, ann: 2 errors in 6\n  REF:  the cat sat on " in out
    assert "confusions" not in (run("ref.jsonl", "one.trn", "--show", "0"), capsys.readouterr().out)[1]


def test_what_is_odd_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "part.trn").write_text("the cat sat on the mat (u1)\nwhat is this (v9)\n")
    notes = run_json(capsys, "ref.jsonl", "part.trn")["notes"]
    assert any("3 of 4 utterances have no hypothesis" in note and "u2, u3, u4" in note for note in notes)
    assert any("1 IDs are not in ref.jsonl and are left out: v9" in note for note in notes)
    assert all(note in caplog.text for note in notes)
    record = run_json(capsys, "ref.jsonl", "part.trn")["systems"][0]
    assert (record["missing_hypotheses"], record["deletions"]) == (3, 10)
    (folder / "r.trn").write_text(" (u1)\n... (u2)\na (u3)\n")
    (folder / "h.trn").write_text("x (u1)\n (u2)\na (u3)\n")
    notes = run_json(capsys, "r.trn", "h.trn", "--normalize", "basic")["notes"]
    assert any("1 references are empty; all words" in note for note in notes)


def test_speakers_of_a_part_do_not_count(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "r.jsonl").write_text('{"id": "u1", "text": "a", "speaker": "x"}\n{"id": "u2", "text": "b"}\n')
    (folder / "h.trn").write_text("a (u1)\nc (u2)\n")
    record = run_json(capsys, "r.jsonl", "h.trn", "--by", "speaker")
    assert any("1 of 2 utterances have no speaker" in note for note in record["notes"])
    assert record["systems"][0]["resampled_by"] == "utterance"
    assert set(record["systems"][0]["by"]["speaker"]) == {"x", "(unknown)"}


def test_files_are_written(folder: Path) -> None:
    assert run("ref.jsonl", "one.trn", "--html", "page.html", "--by", "room") == 0
    assert '["room",' in (folder / "page.html").read_text().replace("\n", "")


def test_rates_at_the_ends(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "r.trn").write_text(" (u1)\n")
    (folder / "h.trn").write_text("x (u1)\n")
    assert run_json(capsys, "r.trn", "h.trn")["systems"][0]["error_rate"] is None  # infinite
    (folder / "r.txt").write_text("".join(f"u_{number} one two\n" for number in range(30)))
    (folder / "h.txt").write_text("".join(f"u_{number}\n" for number in range(30)))
    system = run_json(capsys, "r.txt", "h.txt")["systems"][0]
    assert (system["error_rate"], system["deletions"], system["interval"]) == (1.0, 60, [1.0, 1.0])


def test_wrong_use_ends_with_a_message_and_without_a_traceback(folder: Path, caplog: Any) -> None:
    for arguments, message in (
        (("ref.jsonl", "one.trn", "--by", "gender"), r"--by gender: .*it has speaker, room"),
        (("ref.jsonl", "one.trn", "trn:one.trn"), "given twice"),
        (("ref.jsonl", "nothing.trn"), "cannot read the file"),
    ):
        with pytest.raises(UserError, match=message):
            run(*arguments)
    for arguments in (("ref.jsonl",), ("ref.jsonl", "one.trn", "--show", "-1")):
        with pytest.raises(SystemExit):
            run(*arguments)


def test_help_names_at_most_ten_options_and_loads_little(folder: Path) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    options = parser._optionals._group_actions  # with --help, without the group of speaker turns
    assert len(options) <= 11
    script = "import sys, asr.cli.score_command; print([m for m in ('numpy', 'torch', 'rapidfuzz') if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_million_utterances_in_another_order(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logging.disable(logging.CRITICAL)
    count = 1_000_000
    with open("r.txt", "w") as ours, open("h.txt", "w") as theirs:
        for number in range(count):
            ours.write(f"u{number:07d} one two {number}\n")
            theirs.write(f"u{count - 1 - number:07d} one too {count - 1 - number}\n")
    started = time.process_time()
    record = run_json(capsys, "r.txt", "h.txt")["systems"][0]
    logging.disable(logging.NOTSET)
    assert (record["utterances"], record["substitutions"], record["correct"]) == (count, count, 2 * count)
    assert time.process_time() - started < 120


def test_old_values_name_the_new_ones(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        ("--align jiwer", "argument --align: jiwer is now --align levenshtein"),
        ("--align tcpwer", "argument --align: tcpwer is now --metric tcpwer"),
        ("--unit characters", "argument --unit: characters is now --metric cer"),
    ):
        with pytest.raises(SystemExit):
            run("ref.jsonl", "one.trn", *words.split())
        assert message in capsys.readouterr().err


def test_metric_cer_counts_characters(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, letters = (run_json(capsys, "ref.jsonl", "one.trn", "--metric", name) for name in ("wer", "cer"))
    assert (letters["metric"], letters["unit"]) == ("cer", "characters")
    assert letters["systems"][0]["error_rate"] == words["systems"][0]["character_error_rate"]
    with pytest.raises(UserError, match="--metric cer counts characters; leave out --unit mixed"):
        run("ref.jsonl", "one.trn", "--metric", "cer", "--unit", "mixed")
