"""The tokenizer of a run: an existing one, the tokenizer of `start_from`, or one learned from its texts."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from asr.data.manifest_readers import read_data
from asr.data.sentences import read_sentences, read_text_file
from asr.errors import UserError
from asr.system.run_config import RunConfig
from asr.text.tokenizer import Tokenizer, compute_fingerprint
from asr.train.start_from import keeps_tokens, load_source
from asr.train.training_data import MAX_SAMPLED_TEXTS

logger = logging.getLogger(__name__)

MAX_CAPITALS = 0.5  # share of texts in capitals
MANY_TOKENS = 1.2  # tokens of texts in capitals, divided by tokens of the same texts in lower case


def load_or_train_tokenizer(config: RunConfig) -> Tokenizer:
    """Load the tokenizer in the run's folder, or else inherit it from `start_from` or learn one.

    It is saved only if it covers the texts of train and dev. Texts are read once and kept in memory until
    they are counted. An existing file is rejected if it was learned from other texts or with other settings.
    """
    path, texts = Path(config.output_dir) / "tokenizer.json", list(read_tokenizer_texts(config))
    taken = inherit_tokenizer(config, texts)
    if path.exists():
        tokenizer = Tokenizer.load(path)
        fingerprints = ("", compute_fingerprint(config.tokenizer, texts))
        is_own = tokenizer.type == config.tokenizer.type and tokenizer.fingerprint in fingerprints
        if not (is_own if taken is None else tokenizer == taken):
            raise UserError(
                f"{path}: learned from texts other than {config.data.train_name}, or with other settings "
                "(start_from, sections text and tokenizer); delete the file, or choose another output_dir. "
                'To use a tokenizer of the same type unchanged, remove "fingerprint" from the file'
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
    """Return the tokenizer of `start_from`, or None if the run learns its own.

    A phone tokenizer gets the words of this run in addition.
    """
    if config.start_from is None or not config.keep_tokenizer:
        return None
    source = load_source(config.start_from)
    if not keeps_tokens(config, source):
        return None
    if not source.tokenizer.type == config.tokenizer.type == "phones":
        return source.tokenizer
    tokenizer = source.tokenizer.with_words_of(train_tokenizer(config, texts))
    if word := next((word for text in texts for word in tokenizer.find_unknown(text)), ""):
        raise UserError(
            f"{config.tokenizer.lexicon}: {word!r} needs a phone or homophone mark that start_from = "
            f"{config.start_from} does not have; use only its phones, or set keep_tokenizer=false"
        )
    return tokenizer


def report_unknown_tokens(config: RunConfig, tokenizer: Tokenizer, texts: Iterable[str]) -> None:
    """Log the share of unknown tokens in train (`texts` and data.text) and in dev.

    Raises UserError if the share is too large or a set has no text.
    """
    more = (read_text_file(path, config.text) for path in config.data.text)
    counted = {
        config.data.train_name: itertools.chain(texts, *more),
        config.data.dev: read_tokenizer_texts(config, (config.data.dev,)),
    }
    for path, texts in counted.items():
        unknown, total = tokenizer.count_unknown(texts)
        if not total:
            raise UserError(f"{path}: contains no utterance with a text; use a manifest with texts")
        share = unknown / total
        log_unknown_share(path, share)
        if share > config.data.max_unknown:
            raise UserError(
                f"{path}: {share:.1%} of the tokens are unknown to the tokenizer, more than "
                f"data.max_unknown = {config.data.max_unknown:g}. Perhaps case or script differ from the "
                "texts it was learned from; normalize both with text.training, or raise data.max_unknown"
            )


def warn_of_capitals(config: RunConfig, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    """Warn about texts in capitals if the tokenizer of `start_from` needs more tokens for them."""
    capitals = [text for text in texts if text.isupper()]
    share = len(capitals) / len(texts)
    own = sum(len(tokenizer.encode(text)) for text in capitals[:1000])
    lower = sum(len(tokenizer.encode(text.lower())) for text in capitals[:1000])
    if share > MAX_CAPITALS and own > MANY_TOKENS * lower:
        logger.warning(
            "%s: %.0f%% of the texts are in capitals. start_from = %s was trained on lower case, so it needs "
            "%.1f times as many tokens for them. Add lowercase to text.training and text.scoring",
            config.data.train_name, 100 * share, config.start_from, own / lower,
        )  # fmt: skip


def log_unknown_share(path: str, share: float) -> None:
    level = logging.WARNING if share > 0.01 else logging.INFO if share else logging.DEBUG
    logger.log(level, "%s: %.1f%% of the tokens are unknown to the tokenizer", path, 100 * share)


def train_tokenizer(config: RunConfig, texts: Iterable[str]) -> Tokenizer:
    """Learn a tokenizer from `texts`, which `read_tokenizer_texts` returned."""
    try:
        return Tokenizer.train(config.tokenizer, texts)
    except UserError as error:
        raise UserError(f"{config.data.train_name}: {error}") from None


def read_tokenizer_texts(config: RunConfig, paths: Sequence[str] = ()) -> Iterator[str]:
    """Read the texts or labels to learn a tokenizer from. `paths` replace the training manifests."""
    paths, labels = paths or config.data.train_paths, config.model.find_labels(config.text)
    if labels is None:
        return itertools.chain.from_iterable(
            read_sentences(path, config.text, MAX_SAMPLED_TEXTS, config.model.num_texts) for path in paths
        )
    items = read_data(*paths, max_packed=MAX_SAMPLED_TEXTS)
    return (name for item in items for name in labels.names(item))
