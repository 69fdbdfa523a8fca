"""The default model: Moonshine base if its package is installed and the call asks for English."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from ort_examples import find_published, write_package

import asr
from asr import families
from asr.cli import main
from asr.errors import UserError
from asr.families import FAMILIES, find_default_model
from asr.moonshine import installed
from asr.moonshine.family import ORT_FILES
from asr.serve.serve_command import add_arguments, load_models
from asr.serve.service import ServeConfig

Install = Callable[[], Path]


@pytest.fixture(scope="module")
def published() -> Path:
    return find_published("base")


@pytest.fixture(autouse=True)
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """There is no network and no package with weights until this is called, which writes the package's files."""

    def find_none(name: str) -> Distribution:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installed, "distribution", find_none)
    monkeypatch.delenv("ASR_MODEL", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))

    def write() -> Path:
        folder, about = write_package(tmp_path / "site")
        monkeypatch.setattr(installed, "distribution", {"moonshine-cpp": Distribution.at(about)}.__getitem__)
        return folder

    return write


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, "moonshine-base"),
        ({"language": None, "task": None, "prompt": None}, "moonshine-base"),
        ({"language": "English"}, "moonshine-base"),
        ({"language": "de"}, "whisper-base"),
        ({"language": "nonsense"}, "whisper-base"),
        ({"language": "en", "task": "translate"}, "whisper-base"),
        ({"prompt": "Ms Lovelace"}, "whisper-base"),
    ],
)
def test_the_first_family_that_takes_the_call(install: Install, asked: dict[str, Any], found: str) -> None:
    assert find_default_model(**asked) == "whisper-base"
    install()
    assert find_default_model(**asked) == found


def test_the_environment_comes_first(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install()
    monkeypatch.setenv("ASR_MODEL", "turbo")
    assert find_default_model(language="de") == find_default_model() == "turbo"


def test_without_families(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "find_families", list)
    monkeypatch.setattr(families, "find_spec", lambda name: None)
    message = rf"expected --model MODEL.*asr\.{FAMILIES[0]} and asr\.{FAMILIES[1]}"
    with pytest.raises(UserError, match=message):
        find_default_model()


def test_transcribe_says_which_model(
    install: Install, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so before it reads the files, which hold no weights here."""
    folder = install()
    caplog.set_level(logging.INFO)
    soundfile.write(tmp_path / "a.wav", np.zeros(16_000), 16_000)
    command = ["transcribe", str(tmp_path / "a.wav")]
    hint = "model: moonshine-base (English only); --language CODE or --model whisper-base for other languages"
    for words, first, error in (
        ([], hint, f"{folder / ORT_FILES[0]}: not the file that was published"),
        (["--language", "de"], "model: whisper-base (multilingual)", "openai/whisper-base: no such file"),
        (
            ["--model", "moonshine-base", "--language", "de"],
            "",
            "language = 'de': Moonshine knows English only",
        ),
        (["--model", "moonshine-base"], "", "not the file that was published"),
    ):
        caplog.clear()
        assert main([*command, *words]) == 2
        logged = [record.message for record in caplog.records if record.message.startswith("model: ")]
        assert logged == [first][: bool(first)]
        assert error in capsys.readouterr().err


def test_python_and_server(
    install: Install, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UserError, match="openai/whisper-base: no such file"):
        asr.load_model()
    install()
    caplog.set_level(logging.INFO)
    with pytest.raises(UserError, match="not the file that was published"):
        asr.load_model()
    assert "moonshine-base (English only); --model whisper-base for other languages" in caplog.text
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(UserError, match="not the file that was published"):
        load_models(parser.parse_args([]), ServeConfig())


def test_the_published_model(
    published: Path, install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It loads and transcribes without a network, without being named and without importing the package."""
    folder = install()
    for name in ORT_FILES:
        (folder / name).write_bytes((published / name).read_bytes())
    installed.check_installed.cache_clear()
    soundfile.write(tmp_path / "a.wav", np.zeros(16_000), 16_000)
    assert main(["transcribe", str(tmp_path / "a.wav")]) == 0
    assert not any(name.startswith("moonshine") for name in sys.modules)
