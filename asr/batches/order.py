"""Which utterances make a batch, and in which order batches come: a function of (seed, epoch) alone.

Works on arrays of seconds and positions, N utterances long, and touches no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pydantic

from asr.batches.seeding import random_stream
from asr.config import Config
from asr.errors import UserError


class BatchConfig(Config):
    """Grouping of utterances into batches."""

    max_seconds: float = pydantic.Field(default=160.0, gt=0)
    """Greatest length of a batch with its padding: the number of utterances times the longest."""
    max_tokens: int = pydantic.Field(default=4000, ge=2)
    """For a language model: greatest size of a batch with its padding; longer sentences are left out."""
    max_utterances: int = pydantic.Field(default=64, ge=1)
    """Greatest number of utterances in a batch."""
    max_padding: float = pydantic.Field(default=0.1, gt=0, le=1)
    """Greatest share of padding in a batch; the mean is about half. More of it mixes lengths better."""
    min_seconds: float = pydantic.Field(default=0.1, ge=0)
    """Shorter utterances are left out of training."""
    max_utterance_seconds: float = pydantic.Field(default=30.0, gt=0)
    """Longer utterances are left out of training."""
    sort_first_epoch: bool = False
    """Go from short to long in the first epoch, which helps attention to find its way."""
    num_workers: int = pydantic.Field(default=2, ge=0, le=256)
    """Processes that read audio and compute features; 0: the training process does it itself."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> BatchConfig:
        if not self.min_seconds < self.max_utterance_seconds <= self.max_seconds:
            raise ValueError(
                f"expected min_seconds < max_utterance_seconds <= max_seconds, found {self.min_seconds}, "
                f"{self.max_utterance_seconds} and {self.max_seconds}"
            )
        return self


@dataclass(frozen=True)
class Shard:
    """Which of the global batches this process takes: of each W of them in a row, rank r takes the r-th."""

    rank: int = 0
    world_size: int = 1
    first_world_size: int | None = None
    """Of the processes that the training was started with, if others: an epoch keeps their batches."""

    @property
    def multiple(self) -> int:
        """An epoch has a multiple of so many batches."""
        return self.first_world_size or self.world_size

    def take(self, batches: list[np.ndarray], start: int = 0) -> list[np.ndarray]:
        """Select this process's batches: equally many for all processes, perhaps one without utterances."""
        left = batches[start:]
        num_empty = -len(left) % self.world_size
        return [*left, *[np.empty(0, dtype=np.int64)] * num_empty][self.rank :: self.world_size]


WHOLE = Shard()  # a single process takes all


@dataclass(frozen=True)
class EpochPlan:
    """The global batches of an epoch, each an array of positions, in their order."""

    batches: list[np.ndarray]
    left_over: list[np.ndarray]  # batches that do not fill a step of all processes; not used
    padding: float  # share of the padded seconds


def plan_epoch(
    seconds_N: np.ndarray, config: BatchConfig, seed: int, epoch: int, world_size: int
) -> EpochPlan:
    """The order does not depend on `world_size`, only what is left over."""
    stream = random_stream(seed, epoch, "order")
    groups = group_by_length(seconds_N, config, stream)
    padding = padding_share(seconds_N, groups)
    if epoch > 0 or not config.sort_first_epoch:
        groups = [groups[index] for index in stream.permutation(len(groups))]
    num_used = len(groups) - len(groups) % world_size
    if not num_used:
        raise UserError(
            f"an epoch has {len(groups)} batches, fewer than the {world_size} processes; "
            "lower batches.max_seconds or batches.max_utterances, or use fewer processes"
        )
    return EpochPlan(groups[:num_used], groups[num_used:], padding)


def group_by_length(
    seconds_N: np.ndarray, config: BatchConfig, stream: np.random.Generator | None
) -> list[np.ndarray]:
    """Groups of similar length within the limits, from short to long.

    With a stream of random numbers the groups differ each time: the lengths are changed a little, as far as
    `max_padding` allows, before they are sorted. An utterance over the limit is a group of its own.
    """
    keys_N = seconds_N
    if stream is not None:
        keys_N = seconds_N * (1 + config.max_padding * stream.uniform(-0.5, 0.5, len(seconds_N)))
    order_N = np.argsort(keys_N, kind="stable")
    sorted_N = seconds_N[order_N]
    starts, start = [], 0
    while start < len(order_N):
        starts.append(start)
        start += _count_fitting(sorted_N[start : start + config.max_utterances], config)
    return np.split(order_N, starts[1:])


def _count_fitting(seconds: np.ndarray, config: BatchConfig) -> int:
    """Count how many of the next utterances make a batch; at least one."""
    padded = np.maximum.accumulate(seconds) * np.arange(1, len(seconds) + 1)
    is_over = (padded > config.max_seconds) | (np.cumsum(seconds) < (1 - config.max_padding) * padded)
    is_over[0] = False
    return int(is_over.argmax()) if is_over.any() else len(seconds)


def padding_share(seconds_N: np.ndarray, groups: Sequence[np.ndarray]) -> float:
    padded = sum(len(group) * seconds_N[group].max() for group in groups)
    return float(1 - sum(seconds_N[group].sum() for group in groups) / padded)
