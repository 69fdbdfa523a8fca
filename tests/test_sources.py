"""asr/sources: blocks of whatever is to be transcribed, read ahead in a thread that ends with its reader."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from asr import audio
from asr.errors import UserError
from asr.transcription.sources import (
    AudioPart,
    Samples,
    describe_source,
    make_samples,
    read_ahead,
    read_source,
)


def test_array_and_file_give_the_same_samples(tmp_path: Path) -> None:
    samples_S = np.random.default_rng(0).uniform(-0.5, 0.5, 20_000).astype(np.float32)
    samples_S = np.round(samples_S * 32768) / 32768
    audio.write(tmp_path / "a.wav", samples_S, 8_000)
    whole = np.concatenate(list(read_source(tmp_path / "a.wav", 8_000)))
    assert np.array_equal(whole, samples_S)
    assert np.array_equal(np.concatenate(list(read_source(Samples(samples_S, 8_000), 8_000))), whole)
    part = np.concatenate(list(read_source(AudioPart(tmp_path / "a.wav", 0.5, 1.0), 8_000)))
    assert np.array_equal(part, samples_S[4_000:12_000])


def test_silence_is_no_error(tmp_path: Path) -> None:
    audio.write(tmp_path / "a.wav", np.zeros(8_000), 8_000)
    assert sum(map(len, read_source(tmp_path / "a.wav", 8_000))) == 8_000


def test_names() -> None:
    assert describe_source(Path("x/talk.one.mp3")) == ("talk.one", "x/talk.one.mp3", 0.0)
    assert describe_source(AudioPart("x/y.wav", 3.0, id="u1")) == ("u1", "x/y.wav", 3.0)
    assert describe_source(Samples(np.zeros(1), 8_000)) == ("", "", 0.0)


@pytest.mark.parametrize(
    ("samples_S", "rate", "message"),
    [
        (np.zeros(9, np.float32), None, "needs its sample_rate"),
        (np.zeros(9, np.int16), 8_000, "divide 16-bit integers by 32768"),
        (np.zeros((9, 2)), 8_000, "mean of the channels"),
        (np.array([0.0, np.nan]), 8_000, "not numbers"),
        (np.array([0.0, 32_000.0]), 8_000, "far outside"),
    ],
)
def test_arrays_that_are_no_audio_are_refused(samples_S: np.ndarray, rate: int | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_samples(samples_S, rate)


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
