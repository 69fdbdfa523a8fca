"""Load batches for training and evaluation in worker processes; training can resume at any step."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import signal
import traceback
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from asr.batches.augment import Augmenter
from asr.batches.builder import Batch, BatchBuilder, Inputs, Skipped, encode_text, needed_frames, pad_rows
from asr.batches.order import ONE_PROCESS, ProcessShare, group_by_length, hash_names, plan_epoch
from asr.data.manifest import Manifest, Utterance
from asr.errors import UserError
from asr.system.run_config import BatchConfig
from asr.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MAX_BROKEN_SHARE = 0.01  # share of a manifest; with more, the problem is the corpus, not a few files
MAX_BROKEN = 5  # always allowed, unless this is more than half of a small manifest


class UtteranceLoader:
    """Base class of loaders; each yields the batches of its own process.

    An utterance that cannot be used is left out of its batch and listed in `Batch.skipped`. Every planned
    batch is yielded, even if it is empty, so all processes take the same number of steps, and step numbers
    do not depend on broken files.
    """

    def __init__(
        self,
        name: str,
        utterances: Any,
        num_utterances: int,
        inputs: Inputs,
        config: BatchConfig,
        *,
        seed: int = 0,
        share: ProcessShare = ONE_PROCESS,
    ) -> None:
        self.name = name
        self._inputs = inputs
        self._config = config
        self._seed = seed
        self._share = share
        self._augmenter = Augmenter(inputs.augment, seed, inputs.front_end.config.sample_rate)
        self._builder = BatchBuilder(utterances, inputs, self._augmenter)
        self._num_utterances = num_utterances
        self._skipped: dict[str, str] = {}
        """Messages of all utterances skipped so far, by ID."""
        self.num_skipped = 0
        """Number of utterances that could not be used in the current pass over the data."""

    def find_window(self, batches_done: int) -> tuple[int, int]:
        """Return the shard window of the epoch's next batch, and the number of batches before that window."""
        return 0, 0

    def _load(
        self, planned: Iterable[list[Any]], epoch: int | None, num_workers: int | None = None
    ) -> Iterator[Batch]:
        """Build a batch from each list of keys in worker processes, which work a few batches ahead."""
        loader = DataLoader(
            self._builder,
            sampler=((epoch, keys) for keys in planned),
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=self._config.num_workers if num_workers is None else num_workers,
            pin_memory=torch.cuda.is_initialized(),  # lets copies to a GPU overlap with its computation
            generator=torch.Generator(),  # the global one drives dropout, which a resume must not change
        )
        self.num_skipped = 0
        with block_signals():
            results = iter(loader)
        try:
            for result in results:
                if isinstance(result, UserError):
                    raise result
                self._note_skipped(result.skipped)
                yield result
        finally:
            del results  # ends the workers even if an error's traceback keeps this frame alive

    def _note_skipped(self, skipped: Sequence[Skipped]) -> None:
        """Record skipped utterances, and log each once, as an error, because all processes show errors."""
        self.num_skipped += len(skipped)
        for item in skipped:
            if item.id not in self._skipped:
                self._skipped[item.id] = item.message
                logger.error("utterance %s is left out: %s", item.id, item.message)
        self.require_few_skipped(self.num_skipped)

    def require_few_skipped(self, num_skipped: float) -> None:
        """Raise an error, which stops the run, if too many utterances were skipped."""
        count = self._num_utterances
        allowed = max(int(MAX_BROKEN_SHARE * count), min(MAX_BROKEN, count // 2))
        if num_skipped > allowed:
            raise UserError(
                f"{self.name}: {num_skipped:.0f} of {count} utterances cannot be used, more "
                f"than {allowed}; fix or remove them. The first: "
                f"{'; '.join(list(self._skipped.values())[:5])}"
            )


class BatchLoader(UtteranceLoader):
    """Loads the batches of a manifest."""

    def __init__(self, manifest: Manifest, inputs: Inputs, config: BatchConfig, **options: Any) -> None:
        super().__init__(manifest.name, manifest, len(manifest), inputs, config, **options)
        self._manifest = manifest

    @cached_property
    def training_set(self) -> TrainingSet:
        chosen = select_training_set(self._manifest, self._inputs, self._config)
        report_left_out(self.name, self._manifest, chosen)
        if not len(chosen.positions_N):
            raise UserError(f"{self.name}: none of the {len(self._manifest)} utterances can be trained on")
        return chosen

    def plan_epoch(self, epoch: int) -> list[np.ndarray]:
        """Return the epoch's batches for all processes, as positions in the manifest."""
        chosen, multiple = self.training_set, self._share.multiple
        seconds_N = chosen.seconds_N / self._augmenter.choose_speeds(chosen.id_hashes_N, epoch)
        groups = plan_epoch(seconds_N, self._config, self._seed, epoch, multiple)
        return [chosen.positions_N[group] for group in groups]

    def epoch_batches(self, epoch: int, start: int = 0, window: Sequence[int] = (0, 0)) -> Iterator[Batch]:
        """The batches of an epoch, but for the first `start` of all processes: as if these had come too."""
        groups = self.plan_epoch(epoch)
        logger.info("epoch %d: %d utterances in %d batches", epoch, sum(map(len, groups)), len(groups))
        yield from self._load_groups(self._share.take(groups, start), epoch)

    def evaluation_batches(self) -> Iterator[Batch]:
        """Yield every utterance once across all processes, without augmentation, longest first."""
        groups = group_by_length(self._manifest.durations, self._config, None)
        yield from self._load_groups(self._share.take(groups[::-1]), None)

    @property
    def longest_seconds(self) -> float:
        """Duration of the longest training utterance, at its original speed."""
        return float(self.training_set.seconds_N.max(initial=0.0))

    def largest_batch(self) -> Batch:
        """Return the largest batch of the first epoch, padding included, to test whether memory suffices."""
        seconds_N = self._manifest.durations
        largest = max(self.plan_epoch(0), key=lambda group: len(group) * seconds_N[group].max())
        return next(self._load_groups([largest], 0))

    def _load_groups(self, planned: Iterable[np.ndarray], epoch: int | None) -> Iterator[Batch]:
        groups = [group.tolist() for group in planned]
        return self._load(groups, epoch, min(self._config.num_workers, len(groups)))


@dataclass(frozen=True)
class TrainingSet:
    """The utterances that training uses, with a few numbers for each."""

    positions_N: np.ndarray  # in the manifest
    seconds_N: np.ndarray  # at the original speed
    id_hashes_N: np.ndarray
    left_out: dict[str, np.ndarray]  # reason to the positions left out for it


def measure_utterances(utterances: Iterable[Utterance], inputs: Inputs) -> list[np.ndarray]:
    """Return arrays of each utterance's seconds, frames that its tokens need, and ID hash."""
    seconds, needed, id_hashes = array("d"), array("q"), array("Q")
    for utterance in utterances:
        tokens = encode_text(utterance, inputs)
        seconds.append(utterance.duration)
        needed.append(needed_frames(tokens) if inputs.has_ctc else 1)
        id_hashes.append(int(hash_names([utterance.id])[0]))
    return [np.array(column) for column in (seconds, needed, id_hashes)]


def select_training_set(utterances: Iterable[Utterance], inputs: Inputs, config: BatchConfig) -> TrainingSet:
    """Leave out utterances that are too short, too long or, with CTC, have too many tokens.

    `utterances`: a manifest, or a window of shards. Frames are counted at the fastest speed, so that every
    epoch leaves out the same utterances.
    """
    seconds_N, needed_N, id_hashes_N = measure_utterances(utterances, inputs)
    samples_N = seconds_N * inputs.front_end.config.sample_rate / max(inputs.augment.speed, default=1.0)
    feature_lengths_N = inputs.front_end.num_frames(torch.from_numpy(samples_N).long())
    frames_N = inputs.num_encoded_frames(feature_lengths_N).numpy()
    reasons = {
        f"shorter than batches.min_seconds = {config.min_seconds}": seconds_N < config.min_seconds,
        f"longer than batches.max_utterance_seconds = {config.max_utterance_seconds}": (
            seconds_N > config.max_utterance_seconds
        ),
        "fewer frames after the encoder than their tokens need": frames_N < needed_N,
    }
    positions_N = np.flatnonzero(~np.any(list(reasons.values()), axis=0))
    return TrainingSet(
        positions_N,
        seconds_N[positions_N],
        id_hashes_N[positions_N],
        {reason: np.flatnonzero(is_out_N) for reason, is_out_N in reasons.items() if is_out_N.any()},
    )


def report_left_out(name: str, utterances: Sequence[Utterance], chosen: TrainingSet) -> None:
    """Log how many utterances are left out of training, for each reason, and the first few IDs."""
    for reason, positions in chosen.left_out.items():
        first = ", ".join(utterances[int(position)].id for position in positions[:5])
        logger.warning(
            "%s: %d of %d utterances are left out of training (%s): %s%s",
            name, len(positions), len(utterances), reason, first, ", ..." if len(positions) > 5 else "",
        )  # fmt: skip


def _as_it_is(result: Any) -> Any:
    return result


@contextlib.contextmanager
def block_signals() -> Iterator[None]:
    """Make processes started inside ignore Ctrl-C and a scheduler's SIGTERM, which reach all processes.

    The main process needs its workers to finish the current update, and ends them itself. It receives a
    signal sent inside this block after the block.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def translate_worker_errors() -> Iterator[None]:
    """Turn a dead worker into a UserError, wherever it is raised; after other errors, end all workers."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, RuntimeError) or "DataLoader worker" not in str(error):
            # The traceback's frames hold loaders, whose workers ignore SIGTERM: Python would wait for them.
            traceback.clear_frames(error.__traceback__)
            raise
        for process in multiprocessing.active_children():
            if process.daemon:  # it may wait for a lock of the dead worker, and it blocks SIGTERM
                process.kill()
                process.join()
        raise UserError(
            f"a data loading process died ({error}); if memory ran out, lower batches.num_workers or "
            "batches.max_seconds, or enlarge /dev/shm"
        ) from None


# --- sentences for a language model (N sentences, B of a batch, U tokens) ------------------------


class TextLoader:
    """Loads this process's batches of sentences for a language model, each a separate sequence."""

    num_skipped, longest_seconds = 0, None  # texts are never broken, and have no duration

    def __init__(
        self,
        texts: Iterable[str],
        name: str,
        tokenizer: Tokenizer,
        config: BatchConfig,
        *,
        seed: int = 0,
        share: ProcessShare = ONE_PROCESS,
    ) -> None:
        tokens, ends = array("i"), array("q", [0])
        for text in texts:
            tokens.extend(tokenizer.encode(text))
            ends.append(len(tokens))
        self._tokens = np.array(tokens, dtype=np.int32)
        self._ends = np.array(ends, dtype=np.int64)
        self._name = name
        self._tokenizer = tokenizer
        # Grouped like audio, but by tokens instead of seconds.
        self._config = config.model_copy(update={"max_seconds": float(config.max_tokens)})
        self._seed = seed
        self._share = share
        self._lengths_N = np.diff(self._ends) + 1.0  # one more for the end token
        self._fitting_N = np.flatnonzero(self._lengths_N <= config.max_tokens)
        if not len(self._fitting_N):
            raise UserError(
                f"{name}: {len(self)} sentences, all longer than batches.max_tokens = {config.max_tokens}; "
                "give text with one sentence per line"
            )

    def __len__(self) -> int:
        return len(self._lengths_N)

    def epoch_batches(self, epoch: int, start: int = 0, window: Sequence[int] = (0, 0)) -> Iterator[Batch]:
        """The batches of an epoch, but for the first `start` of all processes: as if these had come too."""
        groups = self._plan(epoch)
        logger.info("epoch %d: %d sentences in %d batches", epoch, sum(map(len, groups)), len(groups))
        if num_long := len(self) - len(self._fitting_N):
            logger.warning(
                "%s: %d of %d sentences are left out of training, longer than batches.max_tokens = %d",
                self._name, num_long, len(self), self._config.max_tokens,
            )  # fmt: skip
        yield from map(self._build, self._share.take(groups, start))

    def find_window(self, batches_done: int) -> tuple[int, int]:
        return 0, 0

    def require_few_skipped(self, num_skipped: float) -> None:
        pass

    def evaluation_batches(self) -> Iterator[Batch]:
        """Yield every sentence once across all processes, longest first."""
        groups = group_by_length(self._lengths_N, self._config, None)
        yield from map(self._build, self._share.take(groups[::-1]))

    def largest_batch(self) -> Batch:
        groups = self._plan(0)
        return self._build(max(groups, key=lambda group: len(group) * self._lengths_N[group].max()))

    def _plan(self, epoch: int) -> list[np.ndarray]:
        lengths = self._lengths_N[self._fitting_N]
        groups = plan_epoch(lengths, self._config, self._seed, epoch, self._share.multiple)
        return [self._fitting_N[group] for group in groups]

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
