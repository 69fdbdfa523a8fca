"""Random numbers that depend on names, such as (seed, epoch, utterance id), and on nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np


def random_stream(*keys: str | int) -> np.random.Generator:
    """The numbers of these keys: the same in every process and on every machine, others for other keys."""
    return np.random.Generator(np.random.PCG64(_hash("/".join(map(str, keys)), 16)))


def hash_names(names: Iterable[str]) -> np.ndarray:
    """64 bits for each name, for `choose`."""
    return np.fromiter((_hash(name, 8) for name in names), dtype=np.uint64)


def choose(hashes_N: np.ndarray, num_choices: int, *keys: str | int) -> np.ndarray:
    """Draw a number below `num_choices` for each name, by its hash and the keys."""
    mixed_N = hashes_N ^ np.uint64(_hash("/".join(map(str, keys)), 8))
    # The last step of SplitMix64: each bit comes to depend on all others.
    mixed_N = (mixed_N ^ (mixed_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed_N = (mixed_N ^ (mixed_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed_N ^= mixed_N >> np.uint64(31)
    return (mixed_N % np.uint64(num_choices)).astype(np.int64)


def _hash(text: str, num_bytes: int) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=num_bytes).digest(), "little")
