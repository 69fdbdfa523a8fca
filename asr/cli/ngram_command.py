"""`asr ngram CONF`: estimate n-grams of tokens or words from the training texts, as an ARPA file."""

from __future__ import annotations

import argparse
import json

from asr.cli import add_config, read_overrides, whole_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser, "YAML file of a run: its data, text and tokenizer")
    add = parser.add_argument
    text = "tokens or words in the longest n-gram (%(default)s)"
    add("--order", metavar="N", type=whole_number(1, 20), default=3, help=text)
    text = "of tokens, for any speech model, or of words, for one of characters or phones (%(default)s)"
    add("--units", choices=("tokens", "words"), default="tokens", help=text)
    add("--output", metavar="FILE", help="where to write it (default: UNITS-Ngram.arpa in output_dir)")
    add("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    import math
    from pathlib import Path

    from asr.data.packed import read_sentences
    from asr.decoding.ngram import UNKNOWN, NgramModel, estimate_ngrams, token_vocabulary, write_arpa
    from asr.system.run_config import RunConfig
    from asr.text.tokenizer import SPECIAL_TOKENS
    from asr.train.preparation import load_or_train_tokenizer, read_training_texts, require_file

    config = RunConfig.load(args.config, read_overrides(args))
    require_file("data.dev", config.data.dev)
    tokens: list[str] = []
    if args.units == "tokens":
        tokenizer = load_or_train_tokenizer(config)
        tokens = token_vocabulary(tokenizer.tokens)

    def split(text: str) -> list[str]:
        return [tokens[id] for id in tokenizer.encode(text)] if tokens else text.split()

    texts = map(split, read_training_texts(config))
    arpa = estimate_ngrams(texts, args.order, tokens[len(SPECIAL_TOKENS) :])
    output = Path(args.output or Path(config.output_dir) / f"{args.units}-{args.order}gram.arpa")
    write_arpa(output, arpa)

    dev = list(read_sentences(config.data.dev, config.text))
    lines = [split(text) for text in dev]
    known = {word for words in arpa.orders[0] for word in words} - {UNKNOWN}
    log_probability = NgramModel(arpa, arpa.vocabulary).log_probability(lines)
    num_units = sum(len(line) + 1 for line in lines)  # the end is one, as for a language model
    num_words = sum(len(text.split()) + 1 for text in dev)
    counts = [len(order) for order in arpa.orders]
    result = {
        "output": str(output),
        "ngrams": counts,
        "perplexity": math.exp(-log_probability / max(num_units, 1)),
        "word_perplexity": math.exp(-log_probability / max(num_words, 1)),
        "unknown": sum(word not in known for line in lines for word in line),
    }
    if args.json:
        print(json.dumps(result))
        return 0
    shown = ", ".join(f"{count:,} of order {order}" for order, count in enumerate(counts, start=1))
    print(f"{output}: {shown}")
    print(
        f"{config.data.dev}: perplexity {result['perplexity']:.3f} a {args.units[:-1]}, "
        f"{result['word_perplexity']:.2f} a word; {result['unknown']} unknown {args.units}"
    )
    return 0
