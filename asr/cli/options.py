"""Options that `asr transcribe` and `asr evaluate` share: how audio becomes text, and on which device."""

from __future__ import annotations

import argparse

from asr.errors import UserError


def add_decoding_options(parser: argparse._ActionsContainer, items: str) -> None:
    """`items`: what a batch is made of, for the help."""
    parser.add_argument(
        "--beam", type=int, metavar="N", help="hypotheses kept at each step (default: 10; of Whisper 1)"
    )
    parser.add_argument(
        "--language-model",
        metavar="PATH",
        help="folder of a language model's run, or an ARPA file, for shallow fusion (its weight: 0.3, or "
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
        "--threads", type=int, metavar="N", help="of the CPU (default: as many as it has cores)"
    )
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda or cuda:1 (default: auto, a GPU if there is one)"
    )


def prepare_device(args: argparse.Namespace) -> None:
    """Check the options about computing, before any model is loaded."""
    import torch

    if args.batch_size < 1:
        raise UserError(f"--batch-size {args.batch_size}: expected 1 or more")
    if args.threads is not None and args.threads < 0:
        raise UserError(f"--threads {args.threads}: expected 1 or more")
    if args.threads:  # 0 is Whisper's word for the default
        torch.set_num_threads(args.threads)
