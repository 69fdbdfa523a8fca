"""Two speakers of the Free Spoken Digit Dataset at once: strings of digits, mixed by the rule of wsj0-2mix.

Each mixture has two texts, `text` and `extras.text_2`; their order means nothing. The strings by themselves
are in the folder `clean`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from asr.audio import mix_sources, read, write
from asr.data import Utterance, read_manifest, write_manifest
from asr.recipe import Recipe, load_recipe

SAMPLE_RATE = 8_000
MIXTURES_PER_STRING = {"train": 3, "dev": 2, "test": 1}
MAX_GAIN_DB = 2.5  # of the louder one, as much less of the other: 0 to 5 dB apart


def prepare(corpus_dir: Path | None, output_dir: Path, *, smoke: bool = False) -> None:
    """Let the recipe fsdd write its strings into `clean`; write the mixtures of train, dev and test."""
    fsdd = load_recipe("fsdd", Path(__file__).absolute().parents[1])
    fsdd.write_manifests(corpus_dir, output_dir / "clean", smoke=smoke)
    for split, count in MIXTURES_PER_STRING.items():
        strings = list(read_manifest(output_dir / "clean" / f"{split}.jsonl"))
        folder = output_dir / "audio" / split
        folder.mkdir(parents=True, exist_ok=True)
        write_manifest(output_dir / f"{split}.jsonl", _mix(strings, count, folder))


def _mix(strings: list[Utterance], count: int, folder: Path) -> Iterator[Utterance]:
    """Each string so often with one of another speaker, which is drawn."""
    generator = np.random.default_rng(list(folder.name.encode()))
    for first in strings * count:
        second = first
        while second.speaker == first.speaker:
            second = strings[generator.integers(len(strings))]
        gain = generator.uniform(0, MAX_GAIN_DB) * generator.choice([-1, 1])
        sources = [read(item.audio, SAMPLE_RATE) for item in (first, second)]
        path = folder / f"{first.id}_{gain:.8g}_{second.id}_{-gain:.8g}.wav"
        mixture = mix_sources(sources, [gain, -gain], SAMPLE_RATE)
        write(path, mixture, SAMPLE_RATE)
        yield Utterance(
            id=path.stem,
            audio=str(path),
            duration=len(mixture) / SAMPLE_RATE,
            text=first.text,
            speaker=f"{first.speaker}_{second.speaker}",
            language="en",
            extras={"text_2": second.text},
        )


RECIPE = Recipe(
    licence="Creative Commons Attribution-ShareAlike 4.0; the mixtures are adaptations under the same terms",
    hours=9.0,
    prepare=prepare,
    prepare_smoke=partial(prepare, smoke=True),
    source="the recipe fsdd downloads the corpus: `asr recipe run fsdd --stage download`",
)
