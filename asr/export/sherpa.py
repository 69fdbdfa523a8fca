"""Decode recordings by sherpa-onnx in a process of its own, which it ends if it refuses a file."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from asr.errors import UserError


def decode_apart(folder: Path, recordings: Sequence[np.ndarray]) -> tuple[list[str], float]:
    """Return the texts of recordings, with single spaces, and the CPU time."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        try:
            return pool.submit(decode, folder, recordings).result()
        except (BrokenProcessPool, RuntimeError) as error:
            raise UserError(
                f"sherpa-onnx refuses this model ({error}); use --format onnx, and report this"
            ) from None


def decode(folder: Path, recordings: Sequence[np.ndarray]) -> tuple[list[str], float]:
    import sherpa_onnx

    about = json.loads((folder / "export.json").read_text("utf-8"))
    call, rate = about["sherpa"], about["sample_rate"]
    files = {*about["files"].values(), "tokens.txt"}
    arguments = {
        name: str(folder / value) if value in files else value for name, value in call["arguments"].items()
    }
    recognizer = functools.reduce(getattr, call["constructor"].split("."), sherpa_onnx)(**arguments)
    texts, began = [], time.process_time()
    for audio_S in recordings:
        stream = recognizer.create_stream()
        stream.accept_waveform(rate, audio_S)
        if about["streaming"] is None:
            recognizer.decode_stream(stream)
            texts.append(stream.result.text)
            continue
        stream.accept_waveform(rate, np.zeros(rate // 100, np.float32))  # a chunk is read when more is there
        stream.input_finished()
        while recognizer.is_ready(stream):
            recognizer.decode_stream(stream)
        texts.append(recognizer.get_result(stream))
    return [" ".join(text.split()) for text in texts], time.process_time() - began
