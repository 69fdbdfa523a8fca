"""The data of a run: loaders for the training and dev sets, checks of their content, and their hashes."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from asr.batches.builder import Batch, Inputs
from asr.batches.loader import BatchLoader, TextLoader
from asr.batches.order import ProcessShare, hash_names
from asr.data.manifest import Manifest
from asr.data.manifest_readers import hash_file_or_shards, is_shards, open_shards, read_data
from asr.data.sentences import read_sentences, read_text_file
from asr.data.storage import is_address
from asr.data.utterance_audio import INDEX_NAME
from asr.errors import UserError
from asr.files import find_shipped
from asr.models.encoders import make_frame_times, subsampled_lengths
from asr.models.layers import Net
from asr.scoring.counting import count_word_errors
from asr.system.run_config import RunConfig
from asr.system.system import System
from asr.text.normalization import normalize
from asr.train.distributed import Process, broadcast_from_main

logger = logging.getLogger(__name__)

MAX_WRONG_BY_RULES = 0.5  # share of the words of dev
# Texts read from each folder of shards, which may be huge; enough for a tokenizer and its unknown tokens.
MAX_SAMPLED_TEXTS = 100_000


class TrainingData:
    """The batches of a run, grouped by update for the training loop."""

    def __init__(self, system: System[Net], process: Process, first_world_size: int | None = None) -> None:
        """`first_world_size` is the number of processes when training was first started. A resume with
        another number still has the same batches in each update."""
        config = system.config
        per_update = config.train.batches_per_update
        self._share = ProcessShare(process.rank, process.world_size, first_world_size, per_update)
        self.batches_per_update = self._share.update_size
        build: Any = build_audio_loaders if config.model.reads_audio else build_text_loaders
        self.train, self.dev = build(system, self._share)
        if config.model.reads_audio:
            in_memory = isinstance(self.train, BatchLoader) and config.train.select_by != "updates"
            id_hashes_N = self.train.training_set.id_hashes_N if in_memory else None
            broadcast_from_main(partial(check_dev, config, id_hashes_N), process)

    def epoch(self, epoch: int, batches_done: int, window: Sequence[int] = (0, 0)) -> Iterator[list[Batch]]:
        """Yield this process's batches of each update; the last update of an epoch may have fewer.

        `batches_done` counts the batches of this epoch that all processes have already used; `window` is what
        the loader's `find_window` returned for them.
        """
        batches = self.train.epoch_batches(epoch, batches_done, window)
        while group := list(itertools.islice(batches, self._share.own_size)):
            yield group


def build_inputs(system: System[Net]) -> Inputs:
    """Build what the loaders need to turn utterances into batches for the model."""
    config, model = system.config, system.model
    inputs = Inputs(
        system.front_end,
        system.tokenizer,
        config.text,
        config.augment,
        partial(subsampled_lengths, factor=model.subsampling_factor),
        has_ctc=getattr(model, "ctc_head", None) is not None,
        num_texts=config.model.num_texts,
    )
    if (labels := config.model.find_labels(config.text)) is None:
        return inputs
    times = make_frame_times(config.features, getattr(model, "encoder", None)).times
    return replace(inputs, labels=labels, step_times=times)


def build_audio_loaders(system: System[Net], share: ProcessShare) -> tuple[Any, Any]:
    """Build the loaders of the training and dev sets, each from manifests or from shards."""
    config, inputs = system.config, build_inputs(system)
    if inputs.labels is not None:
        from asr.research.labels import find_unseen_labels

        find_unseen_labels(config.data.dev, read_data(config.data.dev), inputs.labels, system.tokenizer)
    options: dict[str, Any] = {"seed": config.seed, "share": share}

    def load(paths: Sequence[str]) -> Any:
        are_packed = {is_shards(path) for path in paths}
        if are_packed == {False}:
            return BatchLoader(Manifest.open(*paths), inputs, config.batches, **options)
        if len(are_packed) > 1:
            raise UserError(
                f"data.train = {config.data.train_name}: manifests and folders of shards cannot be mixed; "
                "pack the manifests with `asr manifest pack`"
            )
        from asr.shards.shard_loader import ShardLoader

        folders = [open_shards(path) for path in paths]
        return ShardLoader(folders, inputs, config.batches, **options)

    return load(config.data.train_paths), load([config.data.dev])


def check_dev(config: RunConfig, id_hashes_N: np.ndarray | None) -> None:
    """Reject `text` rules that make even the dev set's own texts wrong; warn about ids shared with train.

    `id_hashes_N` are hashes of the ids of the training set, or None to skip that check.
    """
    items = list(read_data(config.data.dev, max_packed=MAX_SAMPLED_TEXTS))
    if config.model.makes_text:
        texts = [item.text or "" for item in items]
        learned = [normalize(text, config.text.training) for text in texts]
        pairs = [[normalize(text, config.text.scoring) for text in side] for side in (texts, learned)]
        counted = count_word_errors(list(zip(*pairs, strict=True)))
        share = counted.errors / max(counted.length, 1)
        message = (
            f"{config.data.dev}: even a perfect model would have a WER of {share:.1%}, because text.training "
            "changes words in ways that text.scoring does not. Give text.scoring the same rules"
        )
        if share > MAX_WRONG_BY_RULES:
            raise UserError(message)
        if share:
            logger.warning("%s", message)
    if id_hashes_N is None:
        return
    if doubled := len(id_hashes_N) - len(np.unique(id_hashes_N)):
        logger.warning("%s: %d duplicate ids", config.data.train_name, doubled)
    ids = [item.id for item in items]
    if shared := list(itertools.compress(ids, np.isin(hash_names(ids), id_hashes_N))):
        logger.warning(
            "%s: %d of %d utterances have ids of the training set, such as %s. If they are the same "
            "utterances, choose others for dev, or set train.select_by=updates",
            config.data.dev, len(shared), len(ids), shared[0],
        )  # fmt: skip


def read_training_texts(config: RunConfig) -> Iterator[str]:
    """Read all texts that a language model of this run learns from."""
    return itertools.chain(
        *(read_sentences(path, config.text) for path in config.data.train_paths),
        *(read_text_file(path, config.text) for path in config.data.text),
    )


def build_text_loaders(system: System[Net], share: ProcessShare) -> tuple[TextLoader, TextLoader]:
    """Build the loaders of the training texts and of the dev set's texts, for a language model."""
    config = system.config
    load = partial(
        TextLoader, tokenizer=system.tokenizer, config=config.batches, seed=config.seed, share=share
    )
    train = load(read_training_texts(config), " + ".join((*config.data.train_paths, *config.data.text)))
    return train, load(read_sentences(config.data.dev, config.text), config.data.dev)


def require_data(config: RunConfig) -> None:
    """Check that the files exist. The error for a missing one names its setting and how to create it."""
    for name, path in [*config.data.named_paths, *(("text", path) for path in config.data.text)]:
        recipe = Path(path).absolute().parent.name
        if is_address(path):
            continue
        if not os.path.exists(path):
            has_recipe = os.path.exists(find_shipped(f"recipes/{recipe}/recipe.py"))
            remedy = f"run `asr recipe run {recipe} --stage prepare`, or " * has_recipe + "correct the path"
            raise UserError(f"data.{name} = {path}: not found from {os.getcwd()}; {remedy}")
        if os.path.isdir(path) and not os.path.exists(os.path.join(path, INDEX_NAME)):
            raise UserError(
                f"data.{name} = {path}: a folder without {INDEX_NAME}, so it contains no shards; make a "
                f"manifest with `asr manifest convert {path} {name}.jsonl`, and use that"
            )


def hash_data(config: RunConfig) -> dict[str, str]:
    """Hash the files with utterances and texts that each setting names.

    Audio is not hashed; but the index of a folder of shards, which is, contains the hashes of the shards.
    """
    noise = config.augment.noise.recordings
    files = {
        "data.train": config.data.train_paths,
        "data.dev": (config.data.dev,),
        "data.text": config.data.text,
        "augment.noise.recordings": () if noise is None else (noise,),
    }
    try:
        return {key: " ".join(map(hash_file_or_shards, paths)) for key, paths in files.items() if paths}
    except OSError as error:
        raise UserError(f"{error.filename}: cannot read it ({error.strerror})") from None
