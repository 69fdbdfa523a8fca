"""The tokenizer of a run: its own, that of `start_from`, or one learned from the training texts."""

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

MAX_CAPITALS = 0.5  # of the texts
MANY_TOKENS = 1.2  # for capitals, as a multiple of those for the same texts in lower case


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
            f"{config.tokenizer.lexicon}: {word!r} needs a phone, or a mark of homophones, that "
            f"start_from = {config.start_from} has not; write it in those, or set keep_tokenizer=false"
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
