"""A tiny Whisper behind the server, in the process of the tests or at a port of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import DEFAULT, Mock

import numpy as np
import soundfile
import uvicorn
from hostile_audio import make_speechlike
from whisper_systems import build_system

from asr.audio import SegmentationConfig
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig
from asr.serve.app import build_app
from asr.serve.service import Keys, ServeConfig
from asr.transcription.transcribe import Recognizer
from asr.whisper import load

RATE = 16_000
build_once = functools.cache(build_system)
SHORT = SegmentationConfig(max_seconds=3.0)
SURE = DecodingConfig(beam=1, temperatures=())


def load_tiny() -> Recognizer:
    """Random weights that say much."""
    system = build_once(True, window_steps=200)  # of four seconds
    return load(system, "cpu", "float32", segmentation=SHORT, checks=ChecksConfig.off())


def fail_once() -> Recognizer:
    """The tiny model, whose first batch fails."""
    model = load_tiny()
    results = itertools.chain([RuntimeError("secret of the machine")], itertools.repeat(DEFAULT))
    model.recognize = Mock(side_effect=results, wraps=model.recognize)  # type: ignore[method-assign]
    return model


def speak(seconds: float, seed: int = 0) -> np.ndarray:
    """Bursts of what sounds like speech, with pauses."""
    pieces = [np.zeros(RATE // 2, np.float32)]
    while sum(map(len, pieces)) < seconds * RATE:
        pieces += [make_speechlike(1.0, RATE, seed + len(pieces)), np.zeros(RATE, np.float32)]
    return np.clip(np.concatenate(pieces), -1, 1)[: round(seconds * RATE)]


def encode(audio_S: np.ndarray, kind: str = "WAV") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, audio_S, RATE, format=kind)
    return file.getvalue()


def make_body(fields: dict[str, str], content: bytes, name: str = "a.wav") -> bytes:
    """A form with a file; its parts are divided by `b`."""
    parts = [
        f'content-disposition: form-data; name="{key}"\r\n\r\n{value}'.encode()
        for key, value in fields.items()
    ]
    parts.append(f'content-disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode() + content)
    return b"".join(b"--b\r\n" + part + b"\r\n" for part in parts) + b"--b--\r\n"


def make_app(keys: Keys | None = None, recognizer: Any = None, **settings: Any) -> Any:
    config = ServeConfig(**({"decoding": SURE, "hosts": ("testserver", "x")} | settings))
    return build_app({"tiny": recognizer or load_tiny()}, config, keys)


@contextlib.contextmanager
def at_a_port(app: Any) -> Iterator[str]:
    """Its address."""
    config = uvicorn.Config(
        app, port=0, log_config=None, access_log=False, ws="websockets-sansio", ws_max_size=1 << 22
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)


def connect(address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(address.partition(":")[2])), timeout=10)


def wait_until(is_true: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.005)
