"""A small corpus of noise for tests of shards."""

from __future__ import annotations

import pytest
from shard_examples import write_noise

from asr.data import Manifest


@pytest.fixture(scope="session")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return write_noise(tmp_path_factory.mktemp("corpus"), 12)
