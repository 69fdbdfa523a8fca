"""Batches of sentences for a language model, resumable at any step: to the loop, like those of audio.

All tokens are kept in memory, 4 bytes each: a hundred million characters take 0.4 GB.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Iterator

import numpy as np
import torch

from asr.batches.builder import Batch, pad_rows
from asr.batches.order import WHOLE, BatchConfig, ProcessShare, group_by_length, plan_epoch
from asr.errors import UserError
from asr.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

DEFAULT_MAX_TOKENS = 4000

# N sentences, B of a batch, U tokens


class TextLoader:
    """Loader of this process's batches of all `texts`; each sentence is a sequence of its own."""

    def __init__(
        self,
        texts: Iterable[str],
        name: str,
        tokenizer: Tokenizer,
        config: BatchConfig,
        *,
        seed: int = 0,
        share: ProcessShare = WHOLE,
    ) -> None:
        tokens, ends = array("i"), array("q", [0])
        for text in texts:
            tokens.extend(tokenizer.encode(text))
            ends.append(len(tokens))
        self._tokens = np.array(tokens, dtype=np.int32)
        self._ends = np.array(ends, dtype=np.int64)
        self._name = name
        self._tokenizer = tokenizer
        # Grouped as audio is, but by tokens in place of seconds.
        self._max_tokens = config.max_tokens or DEFAULT_MAX_TOKENS
        self._config = config.model_copy(update={"max_seconds": float(self._max_tokens)})
        self._seed = seed
        self._share = share
        self._lengths_N = np.diff(self._ends) + 1.0  # with the end
        self._fitting_N = np.flatnonzero(self._lengths_N <= self._max_tokens)
        if not len(self._fitting_N):
            raise UserError(
                f"{name}: {len(self)} sentences, none of at most batches.max_tokens = {self._max_tokens}; "
                "give text, one sentence a line"
            )

    def __len__(self) -> int:
        return len(self._lengths_N)

    def epoch_batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, but for the first `start` of all processes: as if these had come too."""
        groups = self._plan(epoch)
        logger.info("epoch %d: %d sentences in %d batches", epoch, sum(map(len, groups)), len(groups))
        if num_long := len(self) - len(self._fitting_N):
            logger.warning(
                "%s: %d of %d sentences are left out of training, longer than batches.max_tokens = %d",
                self._name, num_long, len(self), self._max_tokens,
            )  # fmt: skip
        for group in self._share.take(groups, start):
            yield self._build(group)

    def evaluation_batches(self) -> Iterator[Batch]:
        """Every sentence once in all processes together, the longest first."""
        groups = group_by_length(self._lengths_N, self._config, None)
        for group in self._share.take(groups[::-1]):
            yield self._build(group)

    def largest_batch(self) -> Batch:
        groups = self._plan(0)
        return self._build(max(groups, key=lambda group: len(group) * self._lengths_N[group].max()))

    def _plan(self, epoch: int) -> list[np.ndarray]:
        lengths = self._lengths_N[self._fitting_N]
        plan = plan_epoch(lengths, self._config, self._seed, epoch, self._share.multiple)
        return [self._fitting_N[group] for group in plan.batches]

    def _build(self, group_B: np.ndarray) -> Batch:
        rows = [self._tokens[self._ends[n] : self._ends[n + 1]] for n in group_B]
        tokens_BU, token_lengths_B = pad_rows(rows, np.int64, self._tokenizer.pad_id)
        return Batch(
            ids=tuple(f"{self._name}:{n + 1}" for n in group_B),
            features_BTF=torch.zeros(len(rows), 0, 0),
            feature_lengths_B=torch.zeros(len(rows), dtype=torch.int64),
            tokens_BU=tokens_BU,
            token_lengths_B=token_lengths_B,
            texts=tuple(self._tokenizer.decode(row.tolist()) for row in rows),
            audio_seconds=0.0,
        )
