"""Prepare a run for its first update: tokenizer, front end, model and data."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asr.batches.builder import Batch, Inputs
from asr.batches.loader import BatchLoader, TextLoader
from asr.batches.order import ProcessShare, hash_names
from asr.config import Config, find_differences
from asr.data.manifest import Manifest
from asr.data.manifest_readers import hash_file_or_shards, is_shards, open_shards, read_data
from asr.data.sentences import read_sentences, read_text_file
from asr.data.storage import is_address
from asr.data.utterance_audio import INDEX_NAME
from asr.errors import UserError
from asr.families import find_checkpoints, find_family, find_model, require_trainable
from asr.features.front_end import FrontEnd
from asr.files import find_shipped
from asr.models import ModelConfig, Net, build_model, require_memory
from asr.models.encoders import make_frame_times, subsampled_lengths
from asr.models.speech_model import is_low_rank
from asr.scoring.counting import count_word_errors
from asr.system.run_config import RunConfig, System, load_any_system
from asr.text.normalization import normalize
from asr.text.tokenizer import Tokenizer, compute_fingerprint
from asr.train.distributed import Process, broadcast_from_main

logger = logging.getLogger(__name__)

MAX_WRONG_BY_RULES = 0.5  # of the words of dev
# Of each folder of shards, which may be of any size: enough for a tokenizer and the ratio of unknown tokens.
MAX_SAMPLED_TEXTS = 100_000


MAX_CAPITALS = 0.5  # of the texts
MANY_TOKENS = 1.2  # for capitals, as a multiple of those for the same texts in lower case


class TrainingData:
    """The batches of a run, as the training loop requests them."""

    def __init__(self, system: System[Net], process: Process, first_world_size: int | None = None) -> None:
        """`first_world_size`: number of processes that the training was started with. With any other number,
        each update has the same batches as with those."""
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
        """The batches of each update for this process, fewer in the last of the epoch.

        `batches_done`: those of this epoch that all processes together have learned from; `window`: what the
        loader's `find_window` gave for them.
        """
        batches = self.train.epoch_batches(epoch, batches_done, window)
        while group := list(itertools.islice(batches, self._share.own_size)):
            yield group


def build_inputs(system: System[Net]) -> Inputs:
    """Build what makes batches of utterances for the model."""
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
    """Build the loaders of the training and of the dev set, each of manifests or of shards."""
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
                f"data.train = {config.data.train_name}: manifests and folders of shards do not mix; "
                "`asr manifest pack` packs manifests"
            )
        from asr.shards.shard_loader import ShardLoader

        folders = [open_shards(path) for path in paths]
        return ShardLoader(folders, inputs, config.batches, **options)

    return load(config.data.train_paths), load([config.data.dev])


def check_dev(config: RunConfig, id_hashes_N: np.ndarray | None) -> None:
    """Reject rules of `text` that make the dev set's own texts wrong; warn of ids that train has too.

    `id_hashes_N`: hashes of the ids of the training set, if that is to be compared.
    """
    items = list(read_data(config.data.dev, max_packed=MAX_SAMPLED_TEXTS))
    if config.model.makes_text:
        texts = [item.text or "" for item in items]
        learned = [normalize(text, config.text.training) for text in texts]
        pairs = [[normalize(text, config.text.scoring) for text in side] for side in (texts, learned)]
        counted = count_word_errors(list(zip(*pairs, strict=True)))
        share = counted.errors / max(counted.length, 1)
        message = (
            f"{config.data.dev}: without any error of the model, WER would be {share:.1%}: text.training "
            "changes words in a way that text.scoring does not. Give text.scoring the same rules"
        )
        if share > MAX_WRONG_BY_RULES:
            raise UserError(message)
        if share:
            logger.warning("%s", message)
    if id_hashes_N is None:
        return
    if doubled := len(id_hashes_N) - len(np.unique(id_hashes_N)):
        logger.warning("%s: %d ids come more than once", config.data.train_name, doubled)
    ids = [item.id for item in items]
    if shared := list(itertools.compress(ids, np.isin(hash_names(ids), id_hashes_N))):
        logger.warning(
            "%s: %d of %d utterances have ids of the training set, such as %s. If they are the same, choose "
            "others for dev, or set train.select_by=updates",
            config.data.dev, len(shared), len(ids), shared[0],
        )  # fmt: skip


def read_training_texts(config: RunConfig) -> Iterator[str]:
    """Read all texts that a language model of this run learns from."""
    return itertools.chain(
        *(read_sentences(path, config.text) for path in config.data.train_paths),
        *(read_text_file(path, config.text) for path in config.data.text),
    )


def build_text_loaders(system: System[Net], share: ProcessShare) -> tuple[TextLoader, TextLoader]:
    """Build the loaders of all training texts, and of the texts of the dev set."""
    config = system.config
    load = partial(
        TextLoader, tokenizer=system.tokenizer, config=config.batches, seed=config.seed, share=share
    )
    train = load(read_training_texts(config), " + ".join((*config.data.train_paths, *config.data.text)))
    return train, load(read_sentences(config.data.dev, config.text), config.data.dev)


def find_last_checkpoint(config: RunConfig, process: Process) -> Path | None:
    """The checkpoint to resume from, which is the same in all processes, whatever each of them sees."""
    checkpoints = find_checkpoints(Path(config.output_dir))
    return broadcast_from_main(lambda: checkpoints[-1] if checkpoints else None, process)


def prepare_system(config: RunConfig, process: Process) -> System[Net]:
    """Build a new system with random weights, or load the one of the last checkpoint."""
    last = find_last_checkpoint(config, process)
    if last is not None:
        system = load_any_system(last, to_train=True)
        report = partial(report_unknown_tokens, config, system.tokenizer, read_tokenizer_texts(config))
        broadcast_from_main(report, process)
        return replace(system, config=inherit_settings(config, system.config.model))
    tokenizer = broadcast_from_main(partial(load_or_train_tokenizer, config), process)
    if config.start_from is not None:
        if (family := find_family(config.start_from, as_run=True)) is not None:
            return require_trainable(family).inherit_run(config, tokenizer)
        return _inherit_run(config, tokenizer, find_model(config.start_from))
    front_end = FrontEnd(config.features)
    require_memory(config.model, front_end.num_features, len(tokenizer))
    model = build_model(config.model, front_end.num_features, len(tokenizer))
    return System(config, tokenizer, front_end, model)


def require_data(config: RunConfig) -> None:
    """Check that the files are there; name the setting of one that is not, and what makes it."""
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
                f"data.{name} = {path}: a folder without {INDEX_NAME}, so not one of shards; make a manifest "
                f"of its recordings and texts by `asr manifest convert {path} {name}.jsonl`, and give that"
            )


def hash_data(config: RunConfig) -> dict[str, str]:
    """Hash the files that each setting names for utterances and texts.

    Their audio is not hashed, but the index of a folder of shards has the hashes of these.
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


# --- tokenizer ----------------------------------------------------------------------------------


def load_or_train_tokenizer(config: RunConfig) -> Tokenizer:
    """Load the tokenizer in the run's folder; else take that of `start_from`, or learn one.

    It is written only if it covers the texts of train and dev. Texts are read once, and kept in memory until
    they are counted. A file that an earlier run left, of other texts or settings, is rejected.
    """
    path, texts = Path(config.output_dir) / "tokenizer.json", list(read_tokenizer_texts(config))
    taken = inherit_tokenizer(config, texts)
    if path.exists():
        tokenizer = Tokenizer.load(path)
        fingerprints = ("", compute_fingerprint(config.tokenizer, texts))
        is_own = tokenizer.type == config.tokenizer.type and tokenizer.fingerprint in fingerprints
        if not (is_own if taken is None else tokenizer == taken):
            raise UserError(
                f"{path}: learned from other texts than those of {config.data.train_name}, or with other "
                "settings (start_from, sections text and tokenizer); delete the file, or take another "
                'output_dir. To use a tokenizer of the same type as it is, remove "fingerprint" from it'
            )
    else:
        tokenizer = train_tokenizer(config, texts) if taken is None else taken
    report_unknown_tokens(config, tokenizer, texts)
    if taken is not None:
        warn_of_capitals(config, tokenizer, texts)
    if not path.exists():
        tokenizer.save(path)
        logger.info("%s: %d tokens", path, len(tokenizer))
    return tokenizer


def inherit_tokenizer(config: RunConfig, texts: Iterable[str]) -> Tokenizer | None:
    """Take the tokenizer of `start_from`; None where the run learns its own.

    To one of phones, the run's own words are added.
    """
    source = config.start_from
    if source is None:
        return None
    taken: Tokenizer | None
    if (family := find_family(source, as_run=True)) is not None:
        taken = require_trainable(family).inherit_tokenizer(config)
    else:
        taken = load_any_system(find_model(source)).tokenizer if config.keep_tokenizer else None
    if taken is None or not taken.type == config.tokenizer.type == "phones":
        return taken
    tokenizer = taken.with_words_of(train_tokenizer(config, texts))
    if word := next((word for text in texts for word in tokenizer.find_unknown(text)), ""):
        raise UserError(
            f"{config.tokenizer.pronunciations}: {word!r} needs a phone, or a mark of homophones, that "
            f"start_from = {source} has not; write it in those, or set keep_tokenizer=false"
        )
    return tokenizer


def report_unknown_tokens(config: RunConfig, tokenizer: Tokenizer, texts: Iterable[str]) -> None:
    """Log the ratio of unknown tokens in train (`texts`, and data.text) and in dev.

    Rejects too large a ratio, and sets without text.
    """
    more = (read_text_file(path, config.text) for path in config.data.text)
    counted = {
        config.data.train_name: itertools.chain(texts, *more),
        config.data.dev: read_tokenizer_texts(config, (config.data.dev,)),
    }
    for path, texts in counted.items():
        unknown, total = tokenizer.count_unknown(texts)
        if not total:
            raise UserError(f"{path}: no utterance, or none with a text; give one with texts")
        share = unknown / total
        log_unknown_share(path, share)
        if share > config.data.max_unknown:
            raise UserError(
                f"{path}: {share:.1%} of the tokens are unknown to the tokenizer, more than "
                f"data.max_unknown = {config.data.max_unknown:g}: another case or script than in the texts "
                "it was learned from? Normalize both by the rules of text.training, or raise data.max_unknown"
            )


def warn_of_capitals(config: RunConfig, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    """Warn of texts in capitals if the tokenizer of `start_from` splits them into more tokens."""
    capitals = [text for text in texts if text.isupper()]
    share = len(capitals) / len(texts)
    own = sum(len(tokenizer.encode(text)) for text in capitals[:1000])
    lower = sum(len(tokenizer.encode(text.lower())) for text in capitals[:1000])
    if share > MAX_CAPITALS and own > MANY_TOKENS * lower:
        logger.warning(
            "%s: %.0f%% of the texts are all capitals. start_from = %s was trained on another case: it needs "
            "%.1f times the tokens for them. Add lowercase to text.training and text.scoring",
            config.data.train_name, 100 * share, config.start_from, own / lower,
        )  # fmt: skip


def log_unknown_share(path: str, share: float) -> None:
    level = logging.WARNING if share > 0.01 else logging.INFO if share else logging.DEBUG
    logger.log(level, "%s: %.1f%% of the tokens are unknown to the tokenizer", path, 100 * share)


def train_tokenizer(config: RunConfig, texts: Iterable[str]) -> Tokenizer:
    """Learn from `read_tokenizer_texts`: the training texts, or the labels of the training set."""
    try:
        return Tokenizer.train(config.tokenizer, texts)
    except UserError as error:
        raise UserError(f"{config.data.train_name}: {error}") from None


def read_tokenizer_texts(config: RunConfig, paths: Sequence[str] = ()) -> Iterator[str]:
    """Read texts, or labels, to learn a tokenizer from. `paths`: other manifests than those for training."""
    paths, labels = paths or config.data.train_paths, config.model.find_labels(config.text)
    if labels is None:
        return itertools.chain.from_iterable(
            read_sentences(path, config.text, MAX_SAMPLED_TEXTS, config.model.num_texts) for path in paths
        )
    items = read_data(*paths, max_packed=MAX_SAMPLED_TEXTS)
    return (name for item in items for name in labels.names(item))


# --- weights of another run ---------------------------------------------------------------------


def inherit_settings(config: RunConfig, source: ModelConfig) -> RunConfig:
    """Take settings that are null, and listed in `from_start` of their section, from `source`."""
    parts: dict[str, Config] = {}
    for name in ("encoder", "decoder"):
        own, other = getattr(config.model, name, None), getattr(source, name, None)
        if own is not None and other is not None and type(own) is type(other):
            missing = [key for key in getattr(own, "from_start", ()) if getattr(own, key) is None]
            parts[name] = own.model_copy(update={key: getattr(other, key) for key in missing})
    model = config.model.model_copy(update=parts)
    # Built again, to check what could not be checked before.
    return RunConfig(**config.model_copy(update={"model": model}).model_dump())


def _inherit_run(config: RunConfig, tokenizer: Tokenizer, folder: Path) -> System[Net]:
    source = load_any_system(folder)
    differing = find_differences(source.config.features, config.features, "features.")
    if config.keep_tokenizer:
        differing |= find_differences(source.config.tokenizer, config.tokenizer, "tokenizer.")
        differing.pop("tokenizer.pronunciations", None)  # a run of phones has words of its own
    if differing:
        of_tokenizer = all(key.startswith("tokenizer.") for key in differing)
        other = ", or learn another tokenizer by keep_tokenizer=false" if of_tokenizer else ""
        raise UserError(
            f"start_from = {config.start_from}: set otherwise there: {', '.join(differing)}; make that the "
            f"same{other}"
        )
    config = inherit_settings(config, source.config.model)
    num_features = source.front_end.num_features
    require_memory(config.model, num_features, len(tokenizer))
    model = build_model(config.model, num_features, len(tokenizer))
    weights = source.model.state_dict()
    of_tokens = set() if config.keep_tokenizer else find_token_weights(config.model, num_features)
    weights = {name: weight for name, weight in weights.items() if name not in of_tokens}
    hint = f"give section model the sizes of {folder / 'config.yaml'}"
    load_weights(config, model, weights, lambda name: is_low_rank(name) or name in of_tokens, hint)
    return System(config, tokenizer, source.front_end, model)


def find_token_weights(config: ModelConfig, num_features: int) -> set[str]:
    """Find the names of the weights whose size is that of the vocabulary."""
    with torch.device("meta"):
        smaller, larger = (build_model(config, num_features, size).state_dict() for size in (10, 11))
    return {name for name, weight in smaller.items() if weight.shape != larger[name].shape}


def load_weights(
    config: RunConfig, model: Net, weights: Mapping[str, Tensor], is_new: Callable[[str], bool], hint: str
) -> None:
    """Load weights. `is_new` is True for a name whose weight may be missing and stay random."""
    own = model.state_dict()
    mismatched = [name for name in own if name not in weights and not is_new(name)]
    mismatched += [name for name in weights if name not in own or weights[name].shape != own[name].shape]
    if mismatched:
        name = mismatched[0]
        there, here = (tuple(one[name].shape) if name in one else "missing" for one in (weights, own))
        raise UserError(
            f"start_from = {config.start_from}: its weights do not fit this model ({name} is {there} "
            f"there and {here} here); {hint}"
        )
    model.load_state_dict(weights, strict=False)
    fresh = sorted({".".join(name.split(".")[:2]) for name in own.keys() - weights.keys()})
    logger.info("starting from the weights of %s; new are %s", config.start_from, ", ".join(fresh) or "none")
