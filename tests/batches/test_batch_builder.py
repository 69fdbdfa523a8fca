"""Building a batch: what CTC needs, what a worker process is given. The content of batches: test_batches.py."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from asr.batches import AugmentConfig, Augmenter, Batch, BatchBuilder, Inputs, needed_frames
from asr.data import Manifest, Utterance, write_manifest
from asr.features import FeaturesConfig, FrontEnd
from asr.text import TextConfig, Tokenizer, TokenizerConfig


@pytest.mark.parametrize(
    ("tokens", "frames"), [([], 1), ([5], 1), ([5, 6, 5], 3), ([5, 5], 3), ([5, 5, 5, 6, 6], 8)]
)
def test_frames_that_ctc_needs(tokens: list[int], frames: int) -> None:
    assert needed_frames(tokens) == frames
    if tokens:  # PyTorch's CTC agrees: finite with so many frames, infinite with one less
        for length, is_finite in [(frames, True), (frames - 1, False)]:
            losses = torch.nn.functional.ctc_loss(
                torch.zeros(frames, 1, 10).log_softmax(2), torch.tensor([tokens]), [length], [len(tokens)]
            )
            assert bool(torch.isfinite(losses)) == is_finite


def test_builder_can_be_sent_to_another_process(tmp_path: Path) -> None:
    """Not every system forks."""
    soundfile.write(tmp_path / "a.wav", np.random.default_rng(0).uniform(-0.1, 0.1, 8000), 16_000)
    utterance = Utterance(id="a", audio=str(tmp_path / "a.wav"), duration=0.5, text="ONE")
    write_manifest(tmp_path / "train.jsonl", [utterance])
    tokenizer = Tokenizer.train(TokenizerConfig(), ["ONE"])
    augment = AugmentConfig(speed=(0.9, 1.1))
    half = partial(torch.floor_divide, other=2)
    inputs = Inputs(FrontEnd(FeaturesConfig()), tokenizer, TextConfig(), augment, half)
    builder = BatchBuilder(Manifest.open(tmp_path / "train.jsonl"), inputs, Augmenter(augment, 0, 16_000, 80))
    batch, other = (built[0, np.array([0])] for built in (builder, pickle.loads(pickle.dumps(builder))))
    assert isinstance(batch, Batch) and isinstance(other, Batch)
    assert batch.ids == ("a",) and torch.equal(batch.features_BTF, other.features_BTF)
