"""Tones with the times of their words, said by speakers that sound unlike; runs that learn labels of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile
from tone_examples import TONES_HZ

from asr.data import Utterance, write_manifest
from asr.system.run_config import RunConfig

RATE = 16_000
SPEAKERS = {"low voice": 180, "high voice": 5000}  # Hz of what sounds along with each word

RUN = """
output_dir: {folder}/run
data: {{train: {folder}/train.jsonl, dev: {folder}/dev.jsonl}}
tokenizer: {{type: labels}}
features: {{num_mels: 20, cmvn: utterance}}
augment: {{speed: [0.9, 1.0, 1.1], spec_augment: {{num_time_masks: 0, num_frequency_masks: 1, frequency_mask_width: 2}}}}
batches: {{max_seconds: 60, max_utterances: 8, num_workers: 0}}
model:
  encoder: {{type: transformer, dim: 32, num_layers: 1, num_heads: 2, feed_forward_dim: 32}}
optim: {{learning_rate: 5e-3, warmup_steps: 3}}
train: {{steps: 12, precision: float32, device: cpu, validate_every: 6, save_every: 3, log_every: 2, keep_best: 2, select_by: accuracy}}
"""
KINDS = {
    "recording": ("model.type=recording_label", "model.label=speaker"),
    "frames": ("model.type=frame_labels",),
}


def write_labeled_tones(folder: Path, train: int = 32, dev: int = 6) -> Path:
    """train.jsonl and dev.jsonl, each utterance of 2 or 3 words with pauses; extras.word_times tells when."""
    random = np.random.default_rng(0)
    for split, count in (("train", train), ("dev", dev)):
        utterances = [
            _write_utterance(folder, f"{split}-{number}", number, random) for number in range(count)
        ]
        write_manifest(folder / f"{split}.jsonl", utterances)
    return folder


def _write_utterance(folder: Path, name: str, number: int, random: np.random.Generator) -> Utterance:
    words = [str(word) for word in random.choice(list(TONES_HZ), random.integers(2, 4))]
    speaker = list(SPEAKERS)[number % 2]
    parts, times, now = [], [], 0
    for word in words:
        pause, length = (int(RATE * random.uniform(0.1, 0.2)) for _ in range(2))
        length += int(0.1 * RATE)
        radians = 2 * np.pi * np.arange(length) / RATE
        tone = 0.3 * np.sin(TONES_HZ[word] * radians) + 0.2 * np.sin(SPEAKERS[speaker] * radians)
        parts += [np.zeros(pause), tone]
        times.append(f"{word}:{(now + pause) / RATE:.4f}-{(now + pause + length) / RATE:.4f}")
        now += pause + length
    audio = np.concatenate([*parts, np.zeros(int(0.15 * RATE))])
    audio += 0.001 * random.standard_normal(len(audio))
    soundfile.write(folder / f"{name}.wav", audio, RATE)
    return Utterance(
        id=name,
        audio=str(folder / f"{name}.wav"),
        duration=len(audio) / RATE,
        text=" ".join(words),
        speaker=speaker,
        extras={"word_times": " ".join(times), "words": len(words)},
    )


def build_run(folder: Path, kind: str, *overrides: str) -> RunConfig:
    """`folder` has the manifests; the run goes into its folder run, unless an override says otherwise."""
    path = folder / "run.yaml"
    path.write_text(RUN.format(folder=folder))
    return RunConfig.load(path, [*KINDS[kind], *overrides])
