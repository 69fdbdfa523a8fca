"""What stands before the first update: tokenizer, front end, model and data of a run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from asr import audio as audio_files
from asr.batch_builder import Batch, Inputs
from asr.batch_order import Shard
from asr.batches import BatchLoader
from asr.checkpoint import System, find_checkpoints, load_system
from asr.errors import UserError
from asr.features import FrontEnd, fit_front_end
from asr.manifest import Manifest, read_manifest
from asr.models import build_model
from asr.models.subsampling import subsampled_lengths
from asr.run import RunConfig
from asr.text import normalize_for_training
from asr.tokenizer import Tokenizer
from asr.train.distributed import Process, run_on_main_first

logger = logging.getLogger(__name__)

NUM_PLOTTED = 4  # dev utterances whose attention is drawn


class TrainingData:
    """The batches of a run, as the training loop asks for them."""

    def __init__(self, system: System, process: Process) -> None:
        config = system.config
        self._accumulate = config.train.accumulate
        inputs = Inputs(
            system.front_end,
            system.tokenizer,
            config.text,
            config.augment,
            partial(subsampled_lengths, factor=system.model.encoder.subsampling_factor),
        )
        shard = Shard(process.rank, process.world_size)
        load = partial(BatchLoader, config=config.batches, seed=config.seed, shard=shard)
        skipped_path = Path(config.output_dir) / "skipped.jsonl"
        self._train = load(Manifest.open(config.data.train), inputs, skipped_path=skipped_path)
        self._dev = load(Manifest.open(config.data.dev), inputs, skipped_path=skipped_path)

    def epoch(self, epoch: int, batches_done: int) -> Iterator[list[Batch]]:
        """The batches of each update: `accumulate` of them, fewer in the last of the epoch."""
        group: list[Batch] = []
        for batch in self._train.epoch_batches(epoch, batches_done):
            group.append(batch)
            if len(group) == self._accumulate:
                yield group
                group = []
        if group:
            yield group

    def dev_batches(self) -> Iterator[Batch]:
        return self._dev.evaluation_batches()

    def largest_batch(self) -> Batch:
        return self._train.largest_batch()

    def batch_to_plot(self) -> Batch:
        """The same few dev utterances each time, out of the longest ones."""
        batch = next(iter(self._dev.evaluation_batches()))
        rows = slice(0, NUM_PLOTTED)
        return replace(
            batch,
            ids=batch.ids[rows],
            texts=batch.texts[rows],
            features_BTF=batch.features_BTF[rows],
            feature_lengths_B=batch.feature_lengths_B[rows],
            tokens_BU=batch.tokens_BU[rows],
            token_lengths_B=batch.token_lengths_B[rows],
        )


def prepare_system(config: RunConfig, process: Process) -> System:
    """A new system with random weights, or the one of the last checkpoint."""
    checkpoints = find_checkpoints(Path(config.output_dir))
    if checkpoints:
        return replace(load_system(checkpoints[-1]), config=config)
    tokenizer = run_on_main_first(partial(load_or_train_tokenizer, config), process)
    front_end = FrontEnd(config.features)
    fit_front_end(front_end, AudioOf(config))
    model = build_model(config.model, front_end.num_features, len(tokenizer))
    return System(config, tokenizer, front_end, model)


def load_or_train_tokenizer(config: RunConfig) -> Tokenizer:
    """The one in the run's folder; where there is none yet, one trained on the training texts."""
    path = Path(config.output_dir) / "tokenizer.json"
    if path.exists():
        tokenizer = Tokenizer.load(path)
        if tokenizer.type != config.tokenizer.type:
            raise UserError(
                f"{path}: its type is {tokenizer.type}, but tokenizer.type = {config.tokenizer.type}; "
                "delete the file, or take another output_dir"
            )
        return tokenizer
    texts = (utterance.text for utterance in read_manifest(config.data.train))
    tokenizer = Tokenizer.train(
        config.tokenizer, (normalize_for_training(t, config.text) for t in texts if t)
    )
    tokenizer.save(path)
    logger.info("%s: %d tokens from the texts of %s", path, len(tokenizer), config.data.train)
    return tokenizer


class AudioOf:
    """The training audio as batches of one, as often as asked for; broken files are left to the loader."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        sample_rate = self._config.features.sample_rate
        for utterance in read_manifest(self._config.data.train):
            try:
                audio: np.ndarray = audio_files.read(
                    utterance.audio, sample_rate, start=utterance.start, duration=utterance.duration
                )
            except UserError as error:
                logger.warning("utterance %s does not count in the statistics: %s", utterance.id, error)
                continue
            yield torch.from_numpy(audio)[None], torch.tensor([len(audio)])
