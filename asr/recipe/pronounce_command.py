"""`asr pronounce CONFIG`: write a pronunciation lexicon for the words of a run, with espeak-ng."""

from __future__ import annotations

import argparse

from asr.cli import add_config, read_overrides


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser, "YAML file of a run: its data and text, and a tokenizer of phones")
    add = parser.add_argument
    add("--voice", default="en-us", help="espeak-ng voice: en-us, en, de, fr, cmn and so on (default: en-us)")
    text = "also include the words of this manifest or .txt file; may be repeated"
    add("--texts", metavar="FILE", action="append", default=[], help=text)
    add("--output", metavar="FILE", help="output file (default: tokenizer.lexicon)")


def run(args: argparse.Namespace) -> int:
    import itertools
    from pathlib import Path

    from asr.data.sentences import read_sentences
    from asr.errors import UserError
    from asr.files import replace_file
    from asr.recipe.speech_synthesis import pronounce
    from asr.system.run_config import RunConfig
    from asr.train.training_data import read_training_texts

    config = RunConfig.load(args.config, read_overrides(args))
    output = args.output or config.tokenizer.lexicon
    if output is None:
        raise UserError("no output file: set tokenizer={type: phones, lexicon: FILE}, or pass --output")
    if Path(output).exists():
        raise UserError(f"{output} exists already; remove it or pass another --output")
    others = (read_sentences(path, config.text) for path in (config.data.dev, *args.texts))
    texts = itertools.chain(read_training_texts(config), *others)
    words = sorted({word for text in texts for word in text.split()})
    if not words:
        raise UserError(f"{config.data.train_name}: found no words; add --texts FILE")
    dictionary = dict(zip(words, pronounce(words, args.voice), strict=True))
    if silent := [word for word, phones in dictionary.items() if not phones]:
        raise UserError(
            f"{args.voice} cannot speak {len(silent):,} of {len(words):,} words, such as {silent[0]!r}; "
            "remove them by text.training, or choose another --voice"
        )
    with replace_file(output) as file:
        file.writelines(f"{word} {' '.join(phones)}\n".encode() for word, phones in dictionary.items())
    num_phones = len({phone for phones in dictionary.values() for phone in phones})
    print(f"{output}: {len(words):,} words, {num_phones} phones")
    return 0
