"""The server with a tiny Whisper, for several files of tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def recognizer() -> Any:
    from serve_examples import load_tiny  # which needs the extra serve

    return load_tiny()


@pytest.fixture(scope="module")
def client(recognizer: Any) -> Iterator[Any]:
    from serve_examples import make_app
    from starlette.testclient import TestClient

    with TestClient(make_app(recognizer=recognizer)) as client:
        yield client
