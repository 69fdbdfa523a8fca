"""Free Spoken Digit Dataset: the English digits by six speakers, each alone and joined to strings.

Version 1.0.10: 3,000 recordings at 8 kHz, fifty of each digit by each speaker, cut closely around the word.
The strings have three to seven digits of one speaker, with short pauses; studies have longer ones, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

from asr.audio import read, write
from asr.data import Utterance, read_manifest, write_manifest
from asr.recipe import (
    Recipe,
    download as download_archive,
    extract,
    find_corpus,
    require_count,
    require_fingerprint,
)

URLS = ("https://github.com/Jakobovski/free-spoken-digit-dataset/archive/v1.0.10.tar.gz",)
# The host packs this archive on demand, so its bytes may vary, and the samples are checked instead.
SHA256 = None
MAX_ARCHIVE_BYTES = 100_000_000
MAX_CORPUS_BYTES = 200_000_000

SAMPLE_RATE = 8_000
WORDS = ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")
NUM_RECORDINGS = 3_000
FINGERPRINT = "f9b9b8bddd5a14527cbe0f463ac70819a30dbc81d4f36d665b8f4bf4c1c0065d"
# By the number of a recording. The publisher's rule: 0 to 4 are test, 5 to 49 train; dev is taken from train.
NUMBERS = {"train": range(10, 50), "dev": range(5, 10), "test": range(5)}
STRING_LENGTHS = (3, 4, 5, 6, 7)  # digits; each as often as the others
STRINGS_PER_SPEAKER = {"train": 400, "dev": 25, "test": 50}
# Strings with more digits than in training, and their number per speaker. The names begin with the split.
LONG_STRINGS = {"dev_15": (15, 8), "test_10": (10, 25), "test_15": (15, 20), "test_30": (30, 10)}
PARTS = {"train_4th": 4, "train_16th": 16}  # every Nth training string; equally many of each speaker
EDGE_PAUSE = (0.1, 0.3)  # shortest and longest, in seconds
INNER_PAUSE = (0.03, 0.25)
PAUSE_NOISE = 1 / 32768  # RMS: one 16-bit step, because no microphone records digital silence


def download(target_dir: Path) -> Path:
    """Fetch and unpack the archive; return the corpus folder."""
    archive = target_dir / "free-spoken-digit-dataset-1.0.10.tar.gz"
    download_archive(URLS, archive, SHA256, max_bytes=MAX_ARCHIVE_BYTES)
    extract(archive, target_dir / "fsdd", max_bytes=MAX_CORPUS_BYTES)
    return target_dir / "fsdd"


def prepare(
    corpus_dir: Path | None,
    output_dir: Path,
    strings_per_speaker: dict[str, int] = STRINGS_PER_SPEAKER,
    long_strings: dict[str, tuple[int, int]] = LONG_STRINGS,
) -> None:
    """Write SPLIT_single.jsonl of the recordings, and SPLIT.jsonl ... of strings, with their audio."""
    root = find_corpus(corpus_dir, "recordings")
    paths = sorted(
        p for p in (root / "recordings").iterdir() if re.fullmatch(r"\d_[a-z]+_\d{1,2}\.wav", p.name)
    )
    require_count(root, "files such as recordings/7_jackson_32.wav", len(paths), NUM_RECORDINGS)
    require_fingerprint(root, [f"recordings/{path.name}" for path in paths], SAMPLE_RATE, FINGERPRINT)
    recordings = {path: read(path, SAMPLE_RATE) for path in paths}
    for split, numbers in NUMBERS.items():
        chosen = {path: audio for path, audio in recordings.items() if _number(path) in numbers}
        singles = [
            _build(path, len(audio), WORDS[_digit(path)], _speaker(path)) for path, audio in chosen.items()
        ]
        write_manifest(output_dir / f"{split}_single.jsonl", singles)
        lengths = {split: np.resize(STRING_LENGTHS, strings_per_speaker[split])}
        lengths |= {name: np.full(n, k) for name, (k, n) in long_strings.items() if name.startswith(split)}
        for name, own in lengths.items():
            write_manifest(output_dir / f"{name}.jsonl", _join_strings(name, own, chosen, output_dir))
    strings = list(read_manifest(output_dir / "train.jsonl"))
    for name, every in PARTS.items():
        write_manifest(output_dir / f"{name}.jsonl", strings[::every])


def _join_strings(
    name: str, lengths: np.ndarray, recordings: dict[Path, np.ndarray], output_dir: Path
) -> Iterator[Utterance]:
    """Make strings of these lengths for each speaker, in random order."""
    speakers = sorted({_speaker(path) for path in recordings})
    folder = output_dir / "audio" / name
    folder.mkdir(parents=True, exist_ok=True)
    with tqdm(total=len(speakers) * len(lengths), desc=name, disable=None, leave=False) as bar:
        for speaker in speakers:
            generator = np.random.default_rng(list(f"{name} {speaker}".encode()))
            own = [path for path in recordings if _speaker(path) == speaker]
            for count, chosen in enumerate(_deal(own, generator.permutation(lengths), generator)):
                path = folder / f"{speaker}-{name}-{count:03d}.wav"
                audio, times = _join([recordings[p] for p in chosen], generator)
                write(path, audio, SAMPLE_RATE)
                bar.update()
                words = [WORDS[_digit(p)] for p in chosen]
                timed = [f"{w}:{begin:.4f}-{end:.4f}" for w, (begin, end) in zip(words, times, strict=True)]
                yield _build(path, len(audio), " ".join(words), speaker, word_times=" ".join(timed))


def _deal(paths: list[Path], lengths: np.ndarray, generator: np.random.Generator) -> Iterator[list[Path]]:
    """Draw strings of these lengths from shuffled decks, so that recordings are used about equally often."""
    num_decks = -(-int(lengths.sum()) // len(paths))
    deck = np.concatenate([generator.permutation(len(paths)) for _ in range(num_decks)])
    for part in np.split(deck, np.cumsum(lengths))[:-1]:
        yield [paths[i] for i in part]


def _join(
    recordings: list[np.ndarray], generator: np.random.Generator
) -> tuple[np.ndarray, list[tuple[float, float]]]:
    """Join the recordings with pauses around each; also return their starts and ends in seconds."""
    bounds = [EDGE_PAUSE, *[INNER_PAUSE] * (len(recordings) - 1), EDGE_PAUSE]
    pauses = [round(generator.uniform(*bound) * SAMPLE_RATE) for bound in bounds]
    pieces, times, position = [], [], 0
    for pause, recording in zip(pauses, [*recordings, None], strict=True):
        pieces.append(generator.normal(0.0, PAUSE_NOISE, pause).astype(np.float32))
        position += pause
        if recording is not None:
            pieces.append(recording)
            times.append((position / SAMPLE_RATE, (position + len(recording)) / SAMPLE_RATE))
            position += len(recording)
    return np.concatenate(pieces), times


def _build(path: Path, num_samples: int, text: str, speaker: str, **extras: str) -> Utterance:
    return Utterance(
        id=path.stem,
        audio=str(path),
        duration=num_samples / SAMPLE_RATE,
        text=text,
        speaker=speaker,
        language="en",
        extras=extras,
    )


def _digit(path: Path) -> int:
    return int(path.stem.split("_")[0])


def _speaker(path: Path) -> str:
    return path.stem.split("_")[1]


def _number(path: Path) -> int:
    return int(path.stem.split("_")[2])


RECIPE = Recipe(
    license="Creative Commons Attribution-ShareAlike 4.0; "
    "joined strings are adaptations under the same terms",
    hours=2.49,
    has_results=True,
    prepare=prepare,
    prepare_smoke=partial(
        prepare,
        strings_per_speaker={"train": 6, "dev": 2, "test": 2},
        long_strings={"dev_15": (15, 1), "test_10": (10, 1), "test_15": (15, 1), "test_30": (30, 1)},
    ),
    urls=URLS,
    download=download,
)
