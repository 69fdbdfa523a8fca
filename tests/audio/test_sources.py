"""asr/audio/segmentation: blocks of any kind of input, read ahead in a thread that ends with its reader."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from asr.audio import Recording, make_recording, read_ahead, read_recording, reading as audio
from asr.errors import UserError


def test_silence_is_no_error(tmp_path: Path) -> None:
    audio.write(tmp_path / "a.wav", np.zeros(8_000), 8_000)
    assert sum(map(len, read_recording(Recording(tmp_path / "a.wav"), 8_000))) == 8_000


def test_reading_ahead_keeps_order_and_is_bounded() -> None:
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(50):
            made.append(number)
            yield number

    with contextlib.closing(read_ahead(numbers(), 3)) as items:
        assert next(items) == 0
        time.sleep(0.1)
        assert len(made) <= 1 + 3 + 1 + 1  # taken, waiting, in hand
        assert list(items) == list(range(1, 50))


def test_errors_come_through_after_the_items_before() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError("half way")

    items = read_ahead(broken(), 2)
    assert next(items) == 1
    with pytest.raises(ZeroDivisionError, match="half way"):
        next(items)


def test_closing_ends_the_thread() -> None:
    def endless() -> Iterator[int]:
        while True:
            yield 0

    threads = threading.active_count()
    items = read_ahead(endless(), 2)
    next(items)
    assert threading.active_count() == threads + 1
    items.close()
    assert threading.active_count() == threads


def read_all(given: Any, sample_rate: int | None = None) -> np.ndarray:
    return np.concatenate(list(read_recording(make_recording(given, sample_rate), 16_000)))


def test_every_kind_of_audio_is_read_alike(tmp_path: Path) -> None:
    """Paths, arrays, tensors, bytes and opened files."""
    path = tmp_path / "a.wav"
    samples_S = (np.random.default_rng(0).integers(-9000, 9000, 8000) / 32768).astype(np.float32)
    audio.write(path, samples_S, 8000)
    content, expected = path.read_bytes(), read_all(path)
    assert len(expected) == 16_000
    with open(path, "rb") as opened:
        given: list[tuple[Any, ...]] = [
            (str(path),),
            (Recording(path),),
            (samples_S, 8000),
            (samples_S[None], 8000),
            (samples_S[:, None].astype(np.float64), 8000),
            (torch.from_numpy(samples_S), 8000),
            (torch.from_numpy(samples_S)[None].requires_grad_(), np.int64(8000)),
            (content,),
            (io.BytesIO(content),),
            (opened,),
        ]
        for one in given:
            np.testing.assert_allclose(read_all(*one), expected, atol=1e-4, err_msg=str(one)[:80])


@pytest.mark.parametrize(
    ("given", "rate", "message"),
    [
        (3, None, "type int"),
        ({"sentence": "a"}, None, "type dict"),
        (io.StringIO("RIFF"), None, "type StringIO"),
        ((16_000, np.zeros(3)), None, "type tuple"),
        (np.zeros(3), "fast", "sample_rate 'fast'"),
        (np.zeros(3), 0, "sample_rate 0"),
        ("a.wav", 16_000, "sample_rate is for an array"),
        (torch.zeros(3), None, "sample_rate None"),
        (torch.zeros(3, dtype=torch.int16), 16_000, "type int16"),
        (np.zeros((2, 5)), 16_000, r"shape \(2, 5\)"),
        (np.array([0.0, np.nan]), 8_000, "are NaN"),
        (np.array([0.0, 32_000.0]), 8_000, "far outside"),
    ],
)
def test_what_is_no_audio_is_refused(given: Any, rate: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_recording(given, rate)


def test_an_error_of_audio_in_memory_names_no_temporary_file() -> None:
    with pytest.raises(UserError, match=r"^the audio in memory: ") as caught:
        read_all(b"no audio at all, whatever it may be")
    assert "asr-" not in str(caught.value)
