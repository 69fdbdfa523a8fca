"""`asr ngram CONFIG`: estimate n-grams of tokens or words from the training texts, as an ARPA file."""

from __future__ import annotations

import argparse

from asr.cli import add_config, read_overrides, whole_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser, "YAML file of a run: its data, text and tokenizer")
    add = parser.add_argument
    text = "tokens or words in the longest n-gram (default: 3)"
    add("--order", metavar="N", type=whole_number(1, 20), default=3, help=text)
    text = "of tokens, for any speech model, or of words, for one of characters or phones (default: tokens)"
    add("--unit", choices=("tokens", "words"), default="tokens", help=text)
    add("--output", metavar="FILE", help="where to write it (default: UNIT-Ngram.arpa in output_dir)")


def run(args: argparse.Namespace) -> int:
    import math
    from pathlib import Path

    from asr.data.sentences import read_sentences
    from asr.language_models.ngram import UNKNOWN, NgramModel, estimate_ngrams, token_vocabulary, write_arpa
    from asr.system.run_config import RunConfig
    from asr.text.tokenizer import SPECIAL_TOKENS
    from asr.train.run_tokenizer import load_or_train_tokenizer
    from asr.train.training_data import read_training_texts

    config = RunConfig.load(args.config, read_overrides(args))
    dev = list(read_sentences(config.data.dev, config.text))
    tokens: list[str] = []
    if args.unit == "tokens":
        tokenizer = load_or_train_tokenizer(config)
        tokens = token_vocabulary(tokenizer.tokens)

    def split(text: str) -> list[str]:
        return [tokens[id] for id in tokenizer.encode(text)] if tokens else text.split()

    texts = map(split, read_training_texts(config))
    arpa = estimate_ngrams(texts, args.order, tokens[len(SPECIAL_TOKENS) :])
    output = Path(args.output or Path(config.output_dir) / f"{args.unit}-{args.order}gram.arpa")
    write_arpa(output, arpa)

    lines = [split(text) for text in dev]
    known = {word for words in arpa.orders[0] for word in words} - {UNKNOWN}
    log_probability = NgramModel(arpa, arpa.vocabulary).log_probability(lines)
    num_units = sum(len(line) + 1 for line in lines)  # the end counts as a token, as in a language model
    num_words = sum(len(text.split()) + 1 for text in dev)
    unknown = sum(word not in known for line in lines for word in line)
    counts = [f"{len(level):,} of order {order}" for order, level in enumerate(arpa.orders, start=1)]
    print(f"{output}: {', '.join(counts)}")
    print(
        f"{config.data.dev}: perplexity {math.exp(-log_probability / max(num_units, 1)):.3f} a "
        f"{args.unit[:-1]}, {math.exp(-log_probability / max(num_words, 1)):.2f} a word; {unknown} unknown "
        f"{args.unit}"
    )
    return 0
