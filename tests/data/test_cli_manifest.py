"""`asr manifest`: each action, its exit status, what goes to which stream, and that every option has an effect."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from asr.cli import main
from asr.data import Utterance, read_manifest, write_manifest
from asr.text.tokenizer import Tokenizer, TokenizerConfig

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten speakers with one utterance of one second each, in all.jsonl of the current folder."""
    utterances = []
    for number in range(10):
        path = tmp_path / "audio" / f"{number}.wav"
        path.parent.mkdir(exist_ok=True)
        soundfile.write(path, 0.1 * np.sin(np.arange(8000)), 8000)
        names: dict[str, Any] = {"id": f"s{number}-u", "audio": str(path), "speaker": f"s{number}"}
        utterances.append(Utterance(**names, duration=1.0, text="ab ba", extras={"n": number}))
    write_manifest(tmp_path / "all.jsonl", utterances)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(corpus: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Run:
    """Return the status, standard output, and standard error with the log."""
    caplog.set_level(logging.INFO)

    def run_asr(*arguments: str) -> tuple[int, str, str]:
        status = main(["manifest", *arguments])
        captured, log = capsys.readouterr(), caplog.text
        caplog.clear()
        return status, captured.out, captured.err + log

    return run_asr


def append(path: Path, **fields: object) -> None:
    with open(path, "a") as file:
        file.write(json.dumps(fields) + "\n")


def test_validate_a_good_manifest(run: Run) -> None:
    for options, extent in ((), "--decode also finds"), (("--no-audio",), "audio was not checked"):
        status, out, _ = run("validate", "all.jsonl", *options)
        assert status == 0 and out.startswith("10 utterances, 0 with problems; ") and extent in out
    assert run("validate", "all.jsonl", "--decode")[:2] == (0, "10 utterances, 0 with problems\n")


def test_validate_lists_problems_in_order_of_the_lines(run: Run, corpus: Path) -> None:
    append(corpus / "all.jsonl", id="first", audio="audio/0.wav", duration=0.2)
    append(corpus / "all.jsonl", id="s0-u", audio="no.wav", duration=1)
    append(corpus / "all.jsonl", id="x")
    status, out, _ = run("validate", "all.jsonl")
    assert status == 1
    lines = out.splitlines()
    assert sorted(line.split() for line in lines[:4]) == [
        ["duplicate-id", "1"],
        ["missing-audio", "1"],
        ["unreadable-record", "1"],
        ["wrong-duration", "1"],
    ]
    assert [line.split(": ")[:3] for line in lines[4:-1]] == [
        ["all.jsonl:11", "first", "wrong-duration"],
        ["all.jsonl:12", "s0-u", "duplicate-id"],
        ["all.jsonl:12", "s0-u", "missing-audio"],
        ["all.jsonl:13", "x", "unreadable-record"],
    ]
    assert lines[-1].startswith("13 utterances, 3 with problems")


def test_validate_options(run: Run, corpus: Path) -> None:
    append(corpus / "missing.jsonl", id="a", audio="no.wav", duration=1.0)
    assert run("validate", "missing.jsonl")[0] == 1
    assert run("validate", "missing.jsonl", "--no-audio")[0] == 0
    Tokenizer.train(TokenizerConfig(), ["ab ba"]).save(corpus / "tokenizer.json")
    arguments = ("validate", "all.jsonl", "--tokenizer", "tokenizer.json")
    assert run(*arguments)[0] == 0
    assert "unknown-characters" in run(*arguments, "--text-rules", "uppercase")[1]


def test_stats(run: Run, corpus: Path) -> None:
    write_manifest(corpus / "none.jsonl", [])
    append(corpus / "all.jsonl", id="x", audio="x.wav", duration=7200.0, speaker="most", language="en")
    status, out, _ = run("stats", "all.jsonl", "none.jsonl")
    assert status == 0 and "none.jsonl\n  utterances  0" in out and "words       20" in out
    assert "50 % 1.00" in out and "100 % 7200.00" in out
    assert "hours by speakers, 11 in all\n    most " in out and "2.000\n" in out
    assert "hours by languages, 1 in all\n    en " in out


def test_split(run: Run, corpus: Path) -> None:
    shares = ("--parts", "train=0.8", "dev=0.1", "test=0.1")
    status, out, err = run("split", "all.jsonl", *shares, "--output-dir", "out")
    assert (status, out.splitlines()) == (
        0,
        ["out/train.jsonl: 8 utterances", "out/dev.jsonl: 1 utterances", "out/test.jsonl: 1 utterances"],
    )
    assert "all.jsonl: split by speaker" in err
    said = run("split", "all.jsonl", *shares, "--output-dir", "out", "--by", "utterance")[2]
    assert "split by utterance" in said


def test_convert_with_a_kind_by_name(run: Run, corpus: Path) -> None:
    append(corpus / "a.txt", audio_filepath="audio/0.wav", text="a")
    assert run("convert", "a.txt", "b.jsonl")[0] == 2
    assert run("convert", "a.txt", "b.jsonl", "--from", "nemo")[0] == 0
    assert next(read_manifest("b.jsonl")).text == "a"


@pytest.mark.parametrize("source", ["t.csv", "kaldi"])
def test_convert_leaves_out_what_cannot_be_read(run: Run, corpus: Path, source: str) -> None:
    (corpus / "t.csv").write_text("id,path,text\nlost,no.wav,a\ngood,audio/0.wav,b\n")
    (corpus / "kaldi").mkdir()
    (corpus / "kaldi" / "wav.scp").write_text("good audio/0.wav\nlost no.wav\n")
    status, out, err = run("convert", source, "out.jsonl")
    assert (status, out) == (1, "out.jsonl: 1 utterances\n")
    assert f"{source} is read as {source.removeprefix('t.')}" in err
    assert "left out: " in err and "1 utterances are left out" in err
    assert [utterance.id for utterance in read_manifest("out.jsonl")] == ["good"]


def test_convert_with_a_column_of_texts(run: Run, corpus: Path) -> None:
    (corpus / "t.csv").write_text("path,verse\naudio/0.wav,a\n")
    status, _, err = run("convert", "t.csv", "out.jsonl")
    assert status == 0 and "no utterance has a text; name it with --text-column: 'path', 'verse'" in err
    assert run("convert", "t.csv", "out.jsonl", "--text-column", "verse")[0] == 0
    assert next(read_manifest("out.jsonl")).text == "a"


def test_convert_reads_speakers_from_paths(run: Run, corpus: Path) -> None:
    for rule, expected in (("folder", {"audio"}), (r"/(\d)\.wav$", set("0123456789"))):
        assert run("convert", "all.jsonl", "out.jsonl", "--speaker-from", rule)[0] == 0
        assert {item.speaker for item in read_manifest("out.jsonl")} == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("validate no.jsonl", "no.jsonl: cannot read the file"),
        ("validate all.jsonl --text-rules nfc", "give --tokenizer as well"),
        ("validate all.jsonl --tokenizer all.jsonl --text-rules x", "'x'"),
        ("validate all.jsonl --tokenizer all.jsonl", "all.jsonl"),
        ("validate audio", "audio: contains no index.jsonl"),
        ("split all.jsonl --output-dir . --parts train", "--parts train"),
        ("split all.jsonl --output-dir . --parts a=0.5 a=0.5", "--parts a=0.5: expected NAME=SHARE, each name once"),
        ("split all.jsonl --output-dir . --parts a=2.0", "share '2.0'"),
        ("split all.jsonl --output-dir . --parts all=0.5 b=rest", "would overwrite the input"),
        ("convert all.jsonl b.jsonl --speaker-from (zebra)", "--speaker-from (zebra): does not match"),
        ("convert all.jsonl folder", "folder: expected the name of a manifest"),
        ("convert all.jsonl ./all.jsonl", "this is also the input"),
    ],
)  # fmt: skip
def test_wrong_use_is_refused(run: Run, corpus: Path, words: str, message: str) -> None:
    before = (corpus / "all.jsonl").read_bytes()
    status, out, err = run(*words.split())
    assert (status, out) == (2, "") and message in err
    assert (corpus / "all.jsonl").read_bytes() == before


def test_no_action_needs_torch(corpus: Path) -> None:
    script = "import sys; from asr.cli import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script, "manifest", "stats", "all.jsonl"], check=True, timeout=60)
