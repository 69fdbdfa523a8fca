"""The feature cache: what makes an entry another one, damaged entries, several writers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_features import build, compute_alone, make_speech

from asr.errors import UserError
from asr.features.cache import FeatureCache
from asr.features.front_end import FrontEnd


@pytest.fixture
def audio_path(tmp_path: Path) -> Path:
    path = tmp_path / "a.wav"
    path.write_bytes(b"only its size and time matter here")
    return path


def forbid() -> np.ndarray:
    raise AssertionError("computed, although the cache had it")


def test_cache_computes_once(tmp_path: Path, audio_path: Path) -> None:
    features = compute_alone(build(), make_speech(0.5)).numpy()
    assert np.array_equal(
        FeatureCache(tmp_path / "cache", build()).get(audio_path, lambda: features), features
    )
    cached = FeatureCache(tmp_path / "cache", build()).get(audio_path, forbid)
    assert np.array_equal(cached, features)
    assert torch.from_numpy(cached).dtype == torch.float32  # writable: torch would warn otherwise
    assert not list((tmp_path / "cache").rglob("*.part"))


@pytest.mark.parametrize(
    "piece", [{"start": 0.5}, {"duration": 1.0}, {"channel": 1}, {"speed": "0.9"}], ids=str
)
def test_cache_tells_pieces_apart(piece: dict[str, Any], tmp_path: Path, audio_path: Path) -> None:
    cache = FeatureCache(tmp_path / "cache", build())
    cache.get(audio_path, lambda: np.zeros((1, 80), np.float32))
    assert cache.get(audio_path, lambda: np.ones((2, 80), np.float32), **piece).shape == (2, 80)


def test_cache_notices_changed_audio_settings_and_statistics(tmp_path: Path, audio_path: Path) -> None:
    def get(front_end: FrontEnd, value: float) -> float:
        made = np.full((1, front_end.num_features), value, np.float32)
        return float(FeatureCache(tmp_path / "cache", front_end).get(audio_path, lambda: made)[0, 0])

    relearnt = build(cmvn="global")
    relearnt.set_cmvn(torch.zeros(80), torch.ones(80))
    assert get(build(), 1) == 1
    assert get(build(low_hz=30.0), 2) == 2
    assert get(build(cmvn="global"), 3) == 3
    assert get(relearnt, 4) == 4
    audio_path.write_bytes(b"other audio")
    assert get(build(), 5) == 5


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:50],
        lambda data: data[:-1],
        lambda data: b"PK\x03\x04" + data,
        lambda data: data.replace(b"'<f4'", b"'<f8'"),
        lambda data: data.replace(b"(3, 80)", b"(80, 3)"),
        lambda data: data.replace(b"'<f4'", b"'|O' "),
    ],
)
def test_cache_recomputes_damaged_entries(
    damage: Any, tmp_path: Path, audio_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = FeatureCache(tmp_path / "cache", build())
    features = np.arange(240, dtype=np.float32).reshape(3, 80)
    cache.get(audio_path, lambda: features)
    (entry,) = (tmp_path / "cache").rglob("*.npy")
    entry.write_bytes(damage(entry.read_bytes()))
    assert np.array_equal(cache.get(audio_path, lambda: features), features)
    assert str(entry) in caplog.text
    assert np.array_equal(cache.get(audio_path, forbid), features)


def test_cache_keeps_audio_without_frames(tmp_path: Path, audio_path: Path) -> None:
    cache = FeatureCache(tmp_path / "cache", build())
    for compute in (lambda: np.zeros((0, 80), np.float32), forbid):
        assert cache.get(audio_path, compute).shape == (0, 80)


def test_cache_written_by_several_at_once(tmp_path: Path, audio_path: Path) -> None:
    features = np.ones((300, 80), np.float32)
    start = threading.Barrier(4)

    def fill(_: int) -> bool:
        cache = FeatureCache(tmp_path / "cache", build())
        start.wait()
        return all(
            np.array_equal(cache.get(audio_path, lambda: features, start=float(i)), features)
            for i in range(20)
        )

    with ThreadPoolExecutor(max_workers=4) as pool:
        assert all(pool.map(fill, range(4)))
    assert len(list((tmp_path / "cache").rglob("*"))) <= 40  # entries and their folders, nothing else


def test_cache_explains_what_it_cannot_do(tmp_path: Path, audio_path: Path) -> None:
    cache = FeatureCache(tmp_path / "cache", build())
    with pytest.raises(UserError, match=r"gone\.wav"):
        cache.get(tmp_path / "gone.wav", forbid)
    with pytest.raises(UserError, match=r"shape \(2, 3\)"):
        cache.get(audio_path, lambda: np.zeros((2, 3), np.float32))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write to this feature cache"):
        FeatureCache(tmp_path / "file", build()).get(audio_path, lambda: np.zeros((1, 80), np.float32))
