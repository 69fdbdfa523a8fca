"""docs/coming-from-whisper.md is true: theirs and ours are one command, or the error is the one shown."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from asr import cli
from asr.audio import reading as audio
from asr.cli import transcribe

PAGE = Path(__file__).parents[1] / "docs" / "coming-from-whisper.md"
ROWS = re.findall(r"^\| `([^`]+)` \| `(asr [^`]+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.M)
ERROR = re.compile(r"Error: `([^`]+)`")
AUDIO = re.compile(r"\S+\.(?:wav|mp3|flac)")


def parse(arguments: list[str]) -> argparse.Namespace:
    with pytest.MonkeyPatch.context() as patch:
        parsed: list[argparse.Namespace] = []
        patch.setattr(transcribe, "run", lambda args: parsed.append(args) or 0)
        assert cli.main(["transcribe", *arguments]) == 0
    return parsed[0]


def test_there_are_at_least_twenty() -> None:
    assert len(ROWS) >= 20 and sum("| `" in line for line in PAGE.read_text().splitlines()) == len(ROWS)


@pytest.mark.parametrize(("theirs", "ours", "outcome"), ROWS)
def test_theirs_is_ours(theirs: str, ours: str, outcome: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By what is parsed; sets of settings have no order, and a language has a code and a name."""
    expected = parse(shlex.split(ours)[2:])
    words = shlex.split(theirs)[1:]
    error = ERROR.search(outcome)
    if error is not None and "this model knows" not in outcome:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transcribe, "run", lambda args: pytest.fail("was understood"))
            assert cli.main(["transcribe", *words]) == 2
        assert error[1] in capsys.readouterr().err
        return
    found = parse(words)
    for args in (found, expected):
        args.set = sorted(args.set)
        args.language = {"Japanese": "ja"}.get(args.language, args.language)
        del args.run
    assert found == expected


def real_model(name: str) -> Path:
    path = Path(os.environ.get("ASR_WHISPER_MODELS", "none")) / name
    if not path.is_file():
        pytest.skip(f"no {name} in the folder that ASR_WHISPER_MODELS names")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("theirs", "ours", "outcome"), ROWS)
def test_commands_do_what_the_page_says(
    theirs: str,
    ours: str,
    outcome: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the weights of tiny for any name, those of base.en for files of whisper.cpp, and made speech."""
    from asr.data.speech_synthesis import synthesize

    tiny, base = real_model("ggml-tiny.bin"), real_model("ggml-base.en.bin")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("asr.whisper.loading._fetch", lambda name: base if name.endswith(".en") else tiny)
    monkeypatch.delenv("ASR_MODEL", raising=False)
    for name in AUDIO.findall(ours):
        Path(name).parent.mkdir(exist_ok=True)
        samples, rate = synthesize("The old man opened the window in the morning.")
        audio.write(Path(name).with_suffix(".wav"), samples, rate)
        if not name.endswith(".wav"):
            shutil.move(Path(name).with_suffix(".wav"), name)
    if model := re.search(r"models/\S+\.bin", ours):
        Path("models").mkdir()
        Path(model[0]).symlink_to(base)
    if "faster-whisper" in ours:
        convert_to_ctranslate2(tiny, tmp_path / "faster-whisper-tiny")
    error = ERROR.search(outcome)
    is_refused_by_model = "this model knows" in outcome
    if "--stream" not in ours:
        status = cli.main(["transcribe", *shlex.split(ours)[2:]])
        out = capsys.readouterr().out
        assert status == 2 if is_refused_by_model else status == 0
        assert is_refused_by_model or out.strip() or Path("subtitles/audio.srt").read_text()
    status = cli.main(["transcribe", *shlex.split(theirs)[1:]])
    shown = capsys.readouterr()
    if error is not None:
        assert status == 2 and error[1] in shown.err
    else:
        assert status == 0 and (shown.out == out or "--output_dir" in theirs)


def convert_to_ctranslate2(model: Path, folder: Path) -> None:
    pytest.importorskip(
        "ctranslate2", reason="pip install --no-deps ctranslate2 tokenizers to read such a folder"
    )
    tool = Path(__file__).parents[1] / "tools" / "convert_to_ctranslate2.py"
    subprocess.run([sys.executable, str(tool), str(model), str(folder)], check=True)
