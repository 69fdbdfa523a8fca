"""Two speakers of the Free Spoken Digit Dataset at once: strings of digits, mixed by the rule of wsj0-2mix.

Each mixture has two texts, `text` and `extras.text_2`; their order means nothing. The strings by themselves
are in the folder `clean`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from asr.audio import read, write
from asr.data import Utterance, read_manifest, write_manifest
from asr.recipe import Recipe, load_recipe

SAMPLE_RATE = 8_000
MIXTURES_PER_STRING = {"train": 3, "dev": 2, "test": 1}
MAX_GAIN_DB = 2.5  # gain of the louder source, negated for the other: 0 to 5 dB apart

# Active speech level (ITU-T P.56)
MARGIN_DB = 15.9  # distance of the activity threshold below the measured level
SMOOTHING_SECONDS = 0.03
HANGOVER_SECONDS = 0.2
PEAK = 0.9


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
    """Pair each string this often with a random string of another speaker."""
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


def mix_sources(sources: Sequence[np.ndarray], gains_db: Sequence[float], sample_rate: int) -> np.ndarray:
    """Mix the sources, each scaled to its level and padded with silence.

    Levels refer to active speech, so that pauses do not make a source louder than another. Where the sum
    or one of its parts would be clipped, all are lowered; peaks are at most 0.9.
    """
    mixture = np.zeros(max(map(len, sources)))
    peak = 1.0
    for source, gain in zip(sources, gains_db, strict=True):
        level = measure_active_level(source, sample_rate)
        part = source * (10 ** (gain / 20) / np.sqrt(level) if level else 0.0)
        mixture[: len(part)] += part
        peak = max(peak, float(np.abs(part).max(initial=0.0)))
    peak = max(peak, float(np.abs(mixture).max(initial=0.0)))
    return (PEAK / peak * mixture).astype(np.float32)


def measure_active_level(audio: np.ndarray, sample_rate: int) -> float:
    """Measure the mean square of active speech (ITU-T P.56, method B); 0 for silence.

    Active is what lies 15.9 dB below the level or less. Each threshold, a factor of two from the next, gives
    a share of active samples and so a level; the one that is right lies between two thresholds.
    """
    from scipy.ndimage import maximum_filter1d
    from scipy.signal import lfilter

    energy = float(np.square(audio, dtype=np.float64).sum())
    if not energy:
        return 0.0
    decay = np.exp(-1 / (SMOOTHING_SECONDS * sample_rate))
    envelope = np.abs(audio, dtype=np.float64)
    for _ in range(2):
        envelope = lfilter([1 - decay], [1, -decay], envelope)
    width = 1 + round(HANGOVER_SECONDS * sample_rate)
    envelope = maximum_filter1d(envelope, width, mode="constant", origin=(width - 1) // 2)
    thresholds = envelope.max() * 2.0 ** -np.arange(32)
    counts = len(envelope) - np.searchsorted(np.sort(envelope), thresholds)
    levels_db = 10 * np.log10(energy / counts)
    distances_db = levels_db - 20 * np.log10(thresholds)
    index = int(np.searchsorted(distances_db, MARGIN_DB))  # the distance grows as the threshold falls
    if not 0 < index < len(thresholds):
        return energy / len(audio)
    share = (MARGIN_DB - distances_db[index - 1]) / (distances_db[index] - distances_db[index - 1])
    return float(10 ** ((levels_db[index - 1] + share * (levels_db[index] - levels_db[index - 1])) / 10))


RECIPE = Recipe(
    license="Creative Commons Attribution-ShareAlike 4.0; the mixtures are adaptations under the same terms",
    hours=9.0,
    prepare=prepare,
    prepare_smoke=partial(prepare, smoke=True),
    source="the recipe fsdd downloads the corpus: `asr recipe run fsdd --stage download`",
)
