"""Small corpora in their publishers' layouts: audio of noise in any container, texts, recipes to try them with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import soundfile
import yaml

from asr.data import Utterance, read_manifest
from asr.errors import UserError
from asr.recipe import Recipe, load_recipe

RECIPES_DIR = Path(__file__).resolve().parents[1] / "recipes"
Corpus = tuple[Recipe, Path]


def write_audio(
    path: Path, seconds: float = 0.1, rate: int = 16_000, channels: int = 1, subtype: str = "PCM_16"
) -> None:
    """Noise as WAV, FLAC or, for any other suffix, NIST SPHERE; `subtype` may be ULAW, ALAW or HEADERLESS."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (round(seconds * rate), channels)
    samples = np.random.default_rng(list(path.name.encode())).integers(-2000, 2000, shape).astype(np.int16)
    if subtype == "HEADERLESS":
        path.write_bytes(samples.astype(">i2").tobytes())
        return
    container = {".wav": "WAV", ".flac": "FLAC"}.get(path.suffix.lower(), "NIST")
    soundfile.write(path, samples, rate, format=container, subtype=subtype)


def write_text(path: Path, *lines: str, encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))


LAYOUTS = yaml.load(
    Path(__file__).with_name("corpora.yaml").read_text(encoding="utf-8"),
    getattr(yaml, "CSafeLoader", yaml.SafeLoader),
)


def make_corpus(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """Write a corpus of corpora.yaml below `root`, and load its recipe with the constants there."""
    layout = LAYOUTS[name]
    for pattern, form in layout["audio"].items():
        for path, _ in expand(pattern):
            write_audio(root / path, *form)
    for pattern, content in layout["files"].items():
        for path, chosen in expand(pattern):
            encoding = layout.get("encoding", {}).get(Path(path).suffix, "utf-8")
            lines = fill(content, chosen).removesuffix("\n").split("\n")
            ends = layout.get("newline", "\n").removesuffix("\n")
            write_text(root / path, *(f"{line}{ends}" for line in lines), encoding=encoding)
    recipe = load(name, monkeypatch, **layout.get("constants", {}))
    small = partial(recipe.prepare, **layout["arguments"]) if "arguments" in layout else recipe.prepare
    return recipe.model_copy(update={"prepare": small}), root


def expand(pattern: str, *chosen: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Paths of a pattern such as {a,b}/@1.wav, each with what was chosen; @1 is the first choice."""
    before, brace, rest = pattern.partition("{")
    if not brace:
        yield fill(pattern, chosen), chosen
        return
    choices, _, after = rest.partition("}")
    for choice in choices.split(","):
        yield from expand(f"{before}{choice}{after}", *chosen, choice)


def fill(text: str, chosen: tuple[str, ...]) -> str:
    for number, choice in enumerate(chosen, 1):
        text = text.replace(f"@{number}", choice)
    return text


def load(name: str, monkeypatch: pytest.MonkeyPatch, **constants: object) -> Recipe:
    """The recipe, with the constants in its file replaced to fit a small corpus."""
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


AUDIO = {".wav", ".flac", ".sph", ".wv1", ".wv2"}


def damage_in_turn(root: Path, aside: Path) -> Iterator[str]:
    """Of each kind of file of a corpus one is missing, empty or cut off, and each folder at the top is away.

    Between two damages the corpus is whole.
    """
    kinds = {
        re.sub(r"\d+", "#", str(path.parent)) + path.suffix: path
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
    for path in kinds.values():
        name, content = path.relative_to(root), path.read_bytes()
        path.rename(aside)
        yield f"{name} missing"
        path.write_bytes(b"")
        yield f"{name} empty"
        if path.suffix.lower() not in AUDIO:
            path.write_bytes(content[: len(content) // 2])
            yield f"{name} cut off"
        aside.replace(path)
    for path in sorted(root.iterdir()):
        path.rename(root / "elsewhere")
        yield f"{path.name} renamed"
        (root / "elsewhere").rename(path)


@mock.patch("asr.recipe.corpora.delay_and_sum", lambda channels_CS, rate: channels_CS[0])
def check_damages(corpus: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged corpus is refused, or the log says what it lacks, or it gives what the whole one gives.

    Texts that are cut off must be noticed in test sets: for the others not every publisher says how many there are.
    """
    recipe, root = corpus
    recipe.prepare(root, tmp_path / "whole")
    whole, unnoticed = read_texts(tmp_path / "whole"), []
    for number, name in enumerate(damage_in_turn(root, tmp_path / "aside")):
        out = tmp_path / f"out{number}"
        caplog.clear()
        try:
            recipe.prepare(root, out)
        except UserError:
            continue
        is_text = name.endswith((" empty", " cut off"))
        differ = {key for key, found in read_texts(out).items() if found != whole[key]}
        if not caplog.records and {key for key in differ if key.startswith("test") or not is_text}:
            unnoticed.append(f"{name}: {sorted(differ)}")
    assert unnoticed == []


def damage_test(*corpora: str) -> Callable[..., None]:
    """The test that no damage of these fixtures goes unnoticed."""

    @pytest.mark.parametrize("corpus", corpora)
    def test(
        corpus: str,
        request: pytest.FixtureRequest,
        tmp_path_factory: pytest.TempPathFactory,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        check_damages(request.getfixturevalue(corpus), tmp_path_factory.mktemp("damaged"), caplog)

    return test


def read_texts(output_dir: Path) -> dict[str, list[tuple[str, str | None]]]:
    return {name: list(texts(found).items()) for name, found in read_sets(output_dir).items()}
