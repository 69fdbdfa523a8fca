"""Small corpora in their publishers' layouts: audio of noise in any container, texts, recipes to try them with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.data import Utterance, read_manifest
from asr.errors import UserError
from asr.recipe import Recipe, load_recipe

RECIPES_DIR = Path(__file__).resolve().parents[1] / "recipes"
Corpus = tuple[Recipe, Path]


def write_audio(
    path: Path, seconds: float = 0.1, rate: int = 16_000, channels: int = 1, subtype: str = "PCM_16"
) -> None:
    """Noise as WAV, FLAC or, for any other suffix, NIST SPHERE; `subtype` may be ULAW or ALAW."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (round(seconds * rate), channels)
    samples = np.random.default_rng(list(path.name.encode())).integers(-2000, 2000, shape).astype(np.int16)
    container = {".wav": "WAV", ".flac": "FLAC"}.get(path.suffix.lower(), "NIST")
    soundfile.write(path, samples, rate, format=container, subtype=subtype)


def write_text(path: Path, *lines: str, encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))


def load(name: str, monkeypatch: pytest.MonkeyPatch, **constants: object) -> Recipe:
    """The recipe, with constants of its file replaced by those of a small corpus."""
    recipe = load_recipe(name, RECIPES_DIR)
    for key, value in constants.items():
        assert key in recipe.prepare.__globals__
        monkeypatch.setitem(recipe.prepare.__globals__, key, value)
    return recipe


def prepare(corpus: Corpus, output_dir: Path, given: str = ".") -> dict[str, dict[str, Utterance]]:
    """Utterances by id of each manifest that `prepare` writes."""
    recipe, root = corpus
    recipe.prepare(root / given, output_dir)
    return read_sets(output_dir)


def read_sets(output_dir: Path) -> dict[str, dict[str, Utterance]]:
    return {path.stem: {u.id: u for u in read_manifest(path)} for path in sorted(output_dir.glob("*.jsonl"))}


def texts(utterances: dict[str, Utterance]) -> dict[str, str | None]:
    return {id: utterance.text for id, utterance in utterances.items()}


def edit(name: str, old: str, new: str, encoding: str = "utf-8") -> Callable[[Path], None]:
    """Damage a text file of a corpus."""

    def apply(root: Path) -> None:
        text = (root / name).read_bytes().decode(encoding)
        assert old in text
        (root / name).write_bytes(text.replace(old, new).encode(encoding))

    return apply


def remove(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).unlink()


def rename(name: str, new: str) -> Callable[[Path], None]:
    return lambda root: (root / name).rename(root / new) and None


Damage = Callable[[Path], object]


def check_damage(
    corpus: Corpus, tmp_path: Path, damage: Damage, message: str, *, may_write: bool = False
) -> None:
    """Expect that a damaged corpus is refused; unless `may_write`, before anything is written."""
    recipe, root = corpus
    damage(root)
    with pytest.raises(UserError, match=message):
        recipe.prepare(root, tmp_path / "out")
    assert may_write or not (tmp_path / "out").exists()
