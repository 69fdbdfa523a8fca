"""CAM++ trained by `asr train`, and EER and minDCF of pairs of utterances."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from corpus_examples import write_audio
from torch.nn import functional as F

from asr.audio import read
from asr.data import Utterance, write_manifest
from asr.speakers.speaker_models import _load_model, find_speaker_models
from asr.speakers.training import FIRST_LABEL_ID
from asr.system.system import load_any_system
from asr.train.loop import train_model

CONF = Path(__file__).resolve().parents[2] / "conf" / "speakers" / "small.yaml"
TINY = "num_mels: 16, dim: 8, channels: 8, growth: 4, bottleneck: 4, blocks: [[2, 1], [1, 2]]"


def test_a_trained_model_is_a_speaker_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cosines equal those from `embed`, which computes features another way; the margin is an angle."""
    paths = [tmp_path / f"{name}.wav" for name in ("a1", "a2", "b1", "b2")]
    for path in paths:
        write_audio(path, 1.515)  # 150 frames
    items = [Utterance(id=p.stem, audio=str(p), duration=1.515, speaker=p.stem[0]) for p in paths]
    write_manifest(tmp_path / "train.jsonl", items)
    data = [f"data.{name}={tmp_path}/train.jsonl" for name in ("train", "dev")]
    data += [f"model.sizes={{{TINY}}}", "features.num_mels=16", "train.steps=2", "batches.num_workers=0"]
    model_dir = train_model(CONF, [*data, f"output_dir={tmp_path}/run"]).model_dir
    system: Any = load_any_system(model_dir)
    audio_S = torch.from_numpy(read(paths[0], 16_000))
    with torch.no_grad():
        inputs = system.front_end(audio_S[None], torch.tensor([len(audio_S)]))
        found_L = system.model.label(*inputs)[0][0, 0]
        for folder in (model_dir, model_dir.parent):
            own = _load_model("embedding", find_speaker_models(folder)["embedding"])[0].eval()
            expected_L = F.normalize(system.model.speakers_LD) @ own.embed([audio_S])[0]
            torch.testing.assert_close(found_L, expected_L, rtol=0, atol=1e-4)
        monkeypatch.setattr(torch, "rand", torch.zeros)  # excerpts begin at 0
        system.model.train().embedding.eval()
        expected_L[0] = torch.cos(torch.acos(expected_L[0]) + 0.1)
        found = system.model(*inputs, torch.tensor([[FIRST_LABEL_ID]]), torch.ones(1), 10_000).total
    torch.testing.assert_close(found, -(12 * expected_L).log_softmax(0)[0], rtol=0, atol=0.01)


def test_rates_of_pairs() -> None:
    """By counting at each threshold, and with embeddings that nothing confuses."""
    verify_speakers = runpy.run_path(str(CONF.parents[2] / "tools" / "verify_speakers.py"))["verify_speakers"]
    random = np.random.default_rng(0)
    x_ND = np.repeat(random.normal(size=(8, 3)), 4, axis=0) + 0.5 * random.normal(size=(32, 3))
    x_ND /= np.linalg.norm(x_ND, axis=1, keepdims=True)
    names = [name for name in "abcdefgh" for _ in range(4)]
    pairs = [(float(x_ND[i] @ x_ND[j]), names[i] == names[j]) for j in range(32) for i in range(j)]
    own, others = ([score for score, is_own in pairs if is_own is same] for same in (True, False))
    points = [(np.mean(np.less(own, t)), np.mean(np.greater_equal(others, t))) for t, _ in sorted(pairs)]
    found = verify_speakers(x_ND, names)
    eer, interval = found["eer"]
    assert eer == pytest.approx(np.mean(min(points, key=lambda point: abs(point[0] - point[1]))))
    assert found["min_dcf"][0] == pytest.approx(min(1.0, *(miss + 99 * false for miss, false in points)))
    assert 0 < interval.low < eer < interval.high < 0.5
    assert verify_speakers(np.eye(8)[np.repeat(np.arange(8), 4)], names)["eer"][0] == 0
