"""What the tests of shards share: a small corpus of noise, packed or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from test_batches import CONFIG, build_inputs

from asr.batches.order import ProcessShare
from asr.data import Manifest, Utterance, write_manifest
from asr.shards import shard_loader
from asr.shards.packing import PackSettings, pack
from asr.shards.shard_loader import ShardLoader
from asr.shards.shards import ShardFolder

RATE = 16_000
LIMITS = {"max_seconds": 1.5, "max_utterance_seconds": 1.0}
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
    return ShardFolder(folder)


def set_window(monkeypatch: pytest.MonkeyPatch, shards: int) -> None:
    monkeypatch.setattr(shard_loader, "WINDOW_SHARDS", shards)
    monkeypatch.setattr(shard_loader, "WINDOW_UTTERANCES", 1)


def load_shards(
    folder: ShardFolder, *, window: int = 2, share: ProcessShare | None = None, **config: Any
) -> ShardLoader:
    """A loader of short batches, with windows of so many shards."""
    settings = CONFIG.model_copy(update=LIMITS | config)
    loader = ShardLoader([folder], build_inputs(), settings, seed=1, share=share or ProcessShare())
    loader._window_shards = window
    return loader
