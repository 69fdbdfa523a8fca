"""What the tests of shards share: a small corpus of noise, packed or not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile

from asr.data import Manifest, Utterance, write_manifest
from asr.shards import PackSettings, ShardFolder, pack

RATE = 16_000
WORDS = ["ZERO", "ONE", "TWO", "THREE", "FOUR"]


def write_noise(
    folder: Path, count: int, seconds: tuple[float, float] = (0.1, 0.3), prefix: str = "u"
) -> Manifest:
    """A manifest of short files."""
    folder.mkdir(parents=True, exist_ok=True)
    stream = np.random.default_rng(0)
    utterances = []
    for number in range(count):
        audio = np.rint(stream.uniform(-0.1, 0.1, int(RATE * stream.uniform(*seconds))) * 32768) / 32768
        path = folder / f"{prefix}{number:03d}.wav"
        soundfile.write(path, audio, RATE)
        text = WORDS[number % len(WORDS)]
        utterances.append(
            Utterance(id=path.stem, audio=str(path), duration=len(audio) / RATE, text=text, speaker="s")
        )
    write_manifest(folder / "train.jsonl", utterances)
    return Manifest.open(folder / "train.jsonl")


def pack_noise(manifest: Manifest, folder: Path, num_shards: int, **settings: object) -> ShardFolder:
    """Pack into about so many shards."""
    hours = float(manifest.durations.sum()) / 3600 / num_shards
    pack(manifest, folder, PackSettings(hours=hours * 1.0001, **settings))  # type: ignore[arg-type]
    return ShardFolder.open(folder)
