"""WSJ-2mix: two sentences of WSJ at once, by different speakers.

The mixtures are made beforehand, by the published scripts; each has two texts, `text` and `extras.text_2`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from asr.data import Utterance, write_manifest
from asr.errors import UserError
from asr.recipe import (
    Recipe,
    build_whole,
    check_counts,
    find_corpus,
    index_wsj,
    normalize_prompt,
    read_prompts,
)

FOLDER = "2speakers/wav16k/max"  # not "min", where mixtures end with the shorter sentence
SETS = {"train": "tr", "dev": "cv", "test": "tt"}
COUNTS = {  # by the size of tt: mixtures from all of WSJ, or from WSJ0
    333: {"train": 37_416, "dev": 503, "test": 333},
    3_000: {"train": 20_000, "dev": 5_000, "test": 3_000},
}


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write train.jsonl (tr), dev.jsonl (cv) and test.jsonl (tt)."""
    root = find_corpus(corpus_dir, FOLDER)
    sets = {name: sorted((root / FOLDER / of / "mix").glob("*.wav")) for name, of in SETS.items()}
    counts = {name: len(paths) for name, paths in sets.items()}
    if counts["test"] not in COUNTS:
        raise UserError(
            f"{root / FOLDER}: {counts['test']:,} mixtures in tt/mix, expected "
            f"{' or '.join(map(str, COUNTS))}; get or make all of them"
        )
    check_counts(root, counts, COUNTS[counts["test"]])
    names = {path: _parse(path) for paths in sets.values() for path in paths}
    texts = read_prompts(root, index_wsj(root), {id for pair in names.values() for id in pair})
    for name, paths in sets.items():
        write_manifest(output_dir / f"{name}.jsonl", _build(paths, names, texts))


def _parse(path: Path) -> tuple[str, str]:
    """Return the IDs in a name such as 440c04zz_-0.6154_442c04zz_0.6154.wav, between the gains in dB."""
    match = re.fullmatch(r"(\w{8})_-?[\d.]+(?:e-?\d+)?_(\w{8})_-?[\d.]+(?:e-?\d+)?", path.stem)
    if match is None:
        raise UserError(f"{path}: expected a name such as 440c0401_-0.6154_442c0402_0.6154.wav")
    return match[1].lower(), match[2].lower()


def _build(
    paths: list[Path], names: Mapping[Path, tuple[str, str]], texts: Mapping[str, str]
) -> Iterator[Utterance]:
    for path in paths:
        first, second = names[path]
        yield build_whole(
            path,
            id=f"{first[:3]}_{second[:3]}_{path.stem}",
            text=normalize_prompt(texts[first]),
            speaker=f"{first[:3]}_{second[:3]}",
            language="en",
            extras={"text_2": normalize_prompt(texts[second])},
        )


RECIPE = Recipe(
    license="of the Linguistic Data Consortium",
    hours=50.0,
    prepare=prepare,
    source="license WSJ0 and WSJ1, and mix them by the published scripts (https://github.com/mpariente/pywsj0-mix)",
)
