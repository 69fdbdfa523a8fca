"""A corpus of tones in place of words, and a run that trains on it in seconds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import soundfile

TONES_HZ = {"ONE": 400, "TWO": 800, "SIX": 1500, "TEN": 2500}

TINY_RUN = """
output_dir: {folder}/run
data: {{train: {tones}/train.jsonl, dev: {tones}/dev.jsonl}}
features: {{num_mels: 20, cmvn: utterance}}
augment: {{speed: [0.9, 1.0, 1.1], spec_augment: {{num_time_masks: 1, num_frequency_masks: 1, frequency_mask_width: 4}}}}
batches: {{max_seconds: 40, max_utterances: 8, num_workers: 0}}
model:
  encoder: {{type: transformer, dim: 32, num_layers: 1, num_heads: 2, feed_forward_dim: 32, subsampling: {{channels: 4}}}}
  decoder: {{type: transformer, dim: 32, num_layers: 1, num_heads: 2, feed_forward_dim: 32}}
  guided_attention: {{loss: {{}}}}
optim: {{learning_rate: 3e-3, warmup_steps: 3}}
train: {{steps: 12, precision: float32, device: cpu, validate_every: 6, save_every: 3, log_every: 2, keep_best: 2}}
"""


def write_tones(folder: Path) -> Path:
    """train.jsonl (48 utterances of 2 to 4 words, each a tone of its own) and dev.jsonl (5 of 1 or 2)."""
    random = np.random.default_rng(0)
    for split, count, fewest, most in (("train", 48, 2, 4), ("dev", 5, 1, 2)):
        lines = []
        for number in range(count):
            words = random.choice(list(TONES_HZ), random.integers(fewest, most + 1))
            audio = np.concatenate([np.zeros(800), *(make_tone(word, random) for word in words)])
            audio += 0.003 * random.standard_normal(len(audio))
            path = folder / f"{split}-{number}.wav"
            soundfile.write(path, audio, 16_000)
            record = {
                "id": path.stem,
                "audio": path.name,
                "duration": len(audio) / 16_000,
                "text": " ".join(words),
            }
            lines.append(json.dumps(record) + "\n")
        (folder / f"{split}.jsonl").write_text("".join(lines))
    return folder


def make_tone(word: str, random: np.random.Generator) -> np.ndarray:
    """A fifth of a second of tone and a short pause."""
    time = np.arange(int(16_000 * random.uniform(0.15, 0.25))) / 16_000
    return np.pad(
        0.3 * np.sin(2 * np.pi * TONES_HZ[word] * time), (0, int(16_000 * random.uniform(0.05, 0.1)))
    )
