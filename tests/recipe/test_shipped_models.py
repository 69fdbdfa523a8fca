"""The trained models in recipes/*/pretrained: whole, small, with a card, and of files that nothing runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from corpus_examples import write_text
from system_examples import save_talker

from asr.audio.segmentation import make_recording
from asr.cli import main
from asr.errors import UserError
from asr.recipe import synthesize
from asr.system.decoding_resources import find_resources
from asr.system.system import load_any_system
from asr.transcription.transcribe import Request, load_recognizer

RECIPES_DIR = Path(__file__).resolve().parents[2] / "recipes"
MAX_BYTES = 12_000_000
SUFFIXES = {".safetensors", ".json", ".yaml", ".md", ".arpa", ".txt"}


def find_problems(folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    problems = [
        f"unexpected: {path.name}" for path in files if path.suffix not in SUFFIXES or path.is_symlink()
    ]
    if (size := sum(path.stat().st_size for path in files)) > MAX_BYTES:
        problems.append(f"{size:,} bytes")
    if not (folder / "README.md").is_file():
        problems.append("no card")
    if (folder / "training.safetensors").exists():
        problems.append("the state of a training")
    try:
        system = load_any_system(folder)
        find_resources(folder).load(system.tokenizer, system.text, torch.device("cpu"))
    except UserError as error:
        problems.append(str(error))
    return problems


@pytest.mark.parametrize(
    "folder", sorted(RECIPES_DIR.glob("*/pretrained")), ids=lambda folder: folder.parent.name
)
def test_what_ships_is_whole_small_and_safe(folder: Path) -> None:
    assert find_problems(folder) == []


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("weights.pt", b"", "unexpected: weights.pt"),
        ("large.json", bytes(MAX_BYTES), "bytes"),
        ("training.safetensors", b"", "the state of a training"),
        ("model.safetensors", b"", "damaged safetensors file"),
        ("decoding.yaml", b"words: words.txt", "decoding.yaml: words = words.txt"),
    ],
)
def test_an_error_would_be_found(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    folder = save_talker(tmp_path / "pretrained")
    assert find_problems(folder) == ["no card"]
    (folder / "README.md").touch()
    assert find_problems(folder) == []
    (folder / name).write_bytes(content)
    (found,) = find_problems(folder)
    assert problem in found


def test_the_model_of_an4_knows_what_it_was_not_trained_for() -> None:
    """At one speed, to be quick."""
    model = load_recognizer(RECIPES_DIR / "an4" / "pretrained", "cpu")
    decoding, language_model = model.default_decoding()
    once = decoding.model_copy(update={"speeds": (1.0,)})

    def warn(text: str) -> str:
        speech, rate = synthesize(text, "en-us+m3", rate=140)
        said = model.transcribe_recording(make_recording(speech, rate), Request(once, language_model))
        assert said.text
        return said.out_of_domain

    assert warn("We spent the whole afternoon looking for a quiet place to read.").startswith(
        "probably not what the model was trained for (English letters, numbers, dates and control words"
    )
    assert warn("twenty one") == ""


def test_show_names_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text(tmp_path / "yesno" / "recipe.py", (RECIPES_DIR / "yesno" / "recipe.py").read_text())
    arguments = ["recipe", "show", "yesno", "--recipes-dir", str(tmp_path)]
    assert main(arguments) == 0 and "model " not in capsys.readouterr().out
    folder = save_talker(tmp_path / "yesno" / "pretrained")
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert f"model     {folder}: asr transcribe FILE --model {folder}\n" in shown
