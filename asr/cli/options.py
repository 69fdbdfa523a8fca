"""Options that `asr transcribe` and `asr evaluate` share: how audio becomes text, and on which device."""

from __future__ import annotations

import argparse


def add_decoding_options(parser: argparse.ArgumentParser, items: str) -> None:
    """`items`: what a batch is made of, for the help."""
    parser.add_argument(
        "--beam", type=int, metavar="N", help="hypotheses kept at each step (default: 10; of Whisper 1)"
    )
    parser.add_argument(
        "--language-model",
        metavar="PATH",
        help="folder of a language model's run, or an ARPA file, to weigh in (its weight: 0.3, or "
        "--set decoding.language_model_weight=...)",
    )
    parser.add_argument(
        "--lexicon",
        metavar="FILE",
        help="say words of this file only: plain text named .txt, or the texts of a manifest",
    )
    parser.add_argument(
        "--batch-size", type=int, default=8, metavar="N", help=f"{items} decoded at once (default: 8)"
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: a GPU if there is one"
    )
