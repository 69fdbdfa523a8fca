"""The server with a tiny Whisper. Its tests are skipped if the extra serve is not installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

EXTRA = ("starlette", "uvicorn", "python_multipart", "websockets", "openai")

collect_ignore_glob = [] if all(map(importlib.util.find_spec, EXTRA)) else ["test_serve_*.py"]


@pytest.fixture(scope="module")
def recognizer() -> Any:
    from serve_examples import load_tiny

    return load_tiny()


@pytest.fixture(scope="module")
def client(recognizer: Any) -> Iterator[Any]:
    from serve_examples import make_app
    from starlette.testclient import TestClient

    with TestClient(make_app(recognizer=recognizer)) as client:
        yield client


@pytest.fixture(autouse=True, scope="module")
def noise_is_speech(loud_is_speech: None) -> None:
    pass
