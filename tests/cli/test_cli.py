"""The command line as a whole: help, exit codes, messages without tracebacks."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from asr import __version__
from asr.cli import COMMANDS, GROUPS, main
from asr.system.run_config import RunConfig

ROOT = Path(__file__).resolve().parents[2]
CONFS = sorted((ROOT / "conf").rglob("*.yaml"))


def run_asr(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "asr", *words]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, **options)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_ends_without_a_traceback() -> None:
    with open("/dev/full", "w") as full:
        done = run_asr("--version", stdout=full)
    assert done.returncode == 1
    assert done.stderr == "asr: cannot write the output (No space left on device); make room\n"


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    versions = rf"asr {re.escape(__version__)} \(Python [0-9.]+, torch [0-9.]+.*\)\n"
    assert re.fullmatch(versions, capsys.readouterr().out)
    assert main([]) == 0
    shown = capsys.readouterr().out
    for title, commands in GROUPS.items():
        part = shown.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in part.splitlines()] == list(commands)


def test_no_help_loads_heavy_packages() -> None:
    """What makes `asr --help` quick, told without a clock."""
    script = (
        "import contextlib, sys\nfrom asr.cli import COMMANDS, main\nfor name in ['', *COMMANDS]:\n"
        "    with contextlib.suppress(SystemExit):\n        main([*filter(None, [name]), '--help'])\n"
        "    assert not {'torch', 'numpy', 'pydantic', 'matplotlib', 'yaml'} & set(sys.modules), name\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert all(f"usage: asr {name} " in done.stdout for name in COMMANDS)


# --- settings by --set --------------------------------------------------------------------------

WITH_SETTINGS = {  # what each such command also needs, and a setting that it has
    "transcribe": (["a.wav", "--model", "MODEL"], "decoding.beam=3"),
    "evaluate": (["MODEL", "test.jsonl"], "decoding.beam=3"),
    "train": (["CONF"], "train.steps=3"),
    "ngram": (["CONF"], "train.steps=3"),
    "pronounce": (["CONF"], "train.steps=3"),
    "info": (["CONF"], "train.steps=3"),
    "serve": ([], "batch_size=4"),
    "recipe": (["run", "yesno"], "train.steps=3"),
}


@pytest.mark.parametrize("command", WITH_SETTINGS)
def test_a_misspelled_setting_names_the_nearest(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"MODEL": str(ROOT / "recipes/an4/pretrained"), "CONF": str(CONFS[0])}
    words, setting = WITH_SETTINGS[command]
    monkeypatch.chdir(tmp_path)
    for name in ("a.wav", "test.jsonl"):
        Path(name).touch()
    words = [command, *(places.get(word, word) for word in words)]
    if command == "recipe":
        words += ["--corpus-dir", str(tmp_path), "--output-dir", str(tmp_path / "out"), "--stage", "train"]
    name, _, value = setting.partition("=")
    assert main([*words, "--set", f"{name[:-1]}={value}"]) == 2
    assert f"did you mean {name}?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("transcrib a.wav", "'transcrib'; did you mean transcribe?\n"),
        ("transcribe a.wav --format jsn", "'jsn'; did you mean json?\n"),
        ("xyz a.wav", "'xyz' (choose from "),
        ("transcribe a.wav --lang en", "unrecognized arguments: --lang en; `asr transcribe --help`"),
        ("evaluate a b --lexicon=w.txt", "unrecognized arguments: --lexicon=w.txt; it is now --words"),
        ("pronounce a --lexicon=w.txt", "--lexicon=w.txt; `asr pronounce --help`"),
        ("train", "the following arguments are required: CONFIG\n"),
    ],
)
def test_wrong_options_are_named(words: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(shlex.split(words))
    assert stopped.value.code == 2
    assert hint in capsys.readouterr().err


def test_settings_by_position_and_by_set_are_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for words in (
        ["seed=17", "train.steps=9"],
        ["--set", "seed=17", "--set", "train.steps=9"],
        ["seed=17", "--set=train.steps=9"],
        ["--set=train.steps=9", "seed=17"],
    ):
        assert main(["info", str(CONFS[0]), *words]) == 0
        shown.append(capsys.readouterr().out)
    assert "seed: 17\n    " in shown[0] and "train.steps: 9\n" in shown[0]
    assert len(set(shown)) == 1


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ("help score", "usage: asr score"),
        ("help manifest stats", "usage: asr manifest stats"),
        ("recipe", "usage: asr recipe [-h] [-q] [-v] list|show|run|study"),
        ("manifest", "usage: asr manifest [-h] [-q] [-v] ACTION"),
    ],
)
def test_help_of_a_command(words: str, usage: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words.split())
    assert stopped.value.code == 0 and capsys.readouterr().out.startswith(usage)


def test_quiet_stands_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It stands before the command, behind it, or behind its action."""
    monkeypatch.setenv("TQDM_DISABLE", "0")  # what it was comes back
    (tmp_path / "empty.csv").write_text("audio,duration,text\n")
    convert = f"manifest convert {tmp_path}/empty.csv {tmp_path}/out.jsonl"
    for words in (f"-q {convert}", convert.replace(" ", " -q ", 1), f"{convert} --quiet", convert):
        caplog.set_level("INFO")
        caplog.clear()
        main(words.split())
        assert "has no utterance" in caplog.text and ("is read as csv" in caplog.text) == (words == convert)


LONG = "a" * 300  # no file system has such a name


@pytest.mark.parametrize(
    "words",
    [
        f"transcribe {LONG}.wav --model x",
        f"transcribe in.wav --model {LONG}",
        f"info {LONG}",
        f"convert {LONG} out",
        f"manifest stats {LONG}",
        f"recipe list --recipes-dir {LONG}",
    ],
)
def test_a_name_that_is_too_long(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.wav").touch()
    assert main(words.split()) == 2
    assert re.match(f"asr: {LONG}[^ ]*: .*check the path\n$", capsys.readouterr().err)


@pytest.mark.parametrize("conf", CONFS, ids=lambda path: str(path.relative_to(ROOT / "conf")))
def test_info_explains_every_setting(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(conf), "--json"]) == 0
    settings = json.loads(capsys.readouterr().out)
    assert settings["output_dir"]["value"]
    undocumented = [key for key, setting in settings.items() if not setting["help"] and not obvious(key)]
    assert not undocumented


def obvious(key: str) -> bool:
    """Names that a sentence would only repeat."""
    return key.rpartition(".")[2] in {"type", "num_layers", "num_heads", "activation"}


def test_info_of_a_trained_model(
    tiny_run: Callable[..., RunConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from asr.train.loop import train

    train(tiny_run("train.steps=2"))
    assert main(["info", str(tmp_path / "run"), "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    model = described["model"]
    weights = load_file(tmp_path / "run" / "model" / "model.safetensors")
    count = sum(tensor.numel() for name, tensor in weights.items() if name.startswith("model."))
    assert model["parameters"] == sum(model["parameters of"].values()) == count
    assert model["updates"] == 2 and model["scores on dev"]["wer"] >= 0
    assert described["settings"]["train.steps"]["value"] == 2
    assert main(["info", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert f"parameters        {count}\n" in shown
    assert f'"wer": "{100 * model["scores on dev"]["wer"]:.4g} %"' in shown


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["score", "ref.trn", "hyp.trn", "--show", "200", "--html", "report.html"],
        pytest.param(["score", "ref.trn", "hyp.trn", "--json"], marks=pytest.mark.slow),
        pytest.param(["recipe", "list"], marks=pytest.mark.slow),
    ],
)
def test_a_closed_pipe_ends_quietly_and_files_are_written(words: list[str], tmp_path: Path) -> None:
    for name in ("ref.trn", "hyp.trn"):  # much text, more than waits in a buffer
        (tmp_path / name).write_text("".join(f"{name} said {n} (u{n})\n" for n in range(200)))
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as closed:
        found = run_asr(*words, cwd=tmp_path, stdout=closed)
    assert "Error" not in found.stderr and "Traceback" not in found.stderr
    # Newer Pythons' argparse sees to its own output.
    assert found.returncode in ((0, 141) if words == ["--help"] else (141,))
    assert (tmp_path / "report.html").exists() == ("--html" in words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["align", "runs/a", "in.jsonl", "--output", "./in.jsonl"], "./in.jsonl: this is also the input"),
        (["evaluate", "nowhere", "in.jsonl", "--output-dir", "in.jsonl"], "cannot create this folder"),
        (["evaluate", "nowhere", "in.jsonl"], "nowhere: no model found"),
        (["evaluate", "openai/whisper-x", "in.jsonl", "--device", "gpu"], "device gpu: expected auto, cpu"),
        (["info", "basee"], "basee: no model found; did you mean base?"),
        (
            ["train", "CONF", "model.encoder={type: lstn}"],
            "lstm, whisper, moonshine, intra_attention; did you mean lstm?",
        ),
        (["manifest", "validate", "in.jsonl", "--tokenizer", "t", "--text-rules", "lowercse"], "'lowercse'"),
        (["recipe", "run", "digits", "--only", "lstm", "--output-dir", "x"], "did you mean ctc_lstm?"),
        (["transcribe", "in.jsonl", "--model", "turbo", "--words", "no.txt"], "no.txt: no such file"),
    ],
)
def test_wrong_input_is_told_before_the_work(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text("")
    conf = str(ROOT / "conf/digits/ctc_lstm.yaml")
    assert main([conf if word == "CONF" else word for word in words]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
