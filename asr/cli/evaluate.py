"""`asr evaluate MODEL MANIFEST`: decode or classify a split: error rates with intervals, and speed."""

from __future__ import annotations

import argparse

from asr.cli import DECODING_METHODS, add_decoding_options, add_settings, limit_threads


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="folder of a run or of one of its checkpoints, or a Whisper model: its file, folder or name",
    )
    parser.add_argument(
        "manifest",
        metavar="MANIFEST",
        help="utterances with texts or labels: JSON Lines, or a folder of shards",
    )
    parser.add_argument(
        "--decoding",
        metavar="METHOD",
        action="append",
        help=f"{DECODING_METHODS}, or all that MODEL offers; may be repeated (default: auto)",
    )
    add_decoding_options(parser, "utterances")
    add_settings(
        parser,
        "any other setting, such as decoding.ctc_weight=0.5, checks=off or whisper.language=de; may be "
        "repeated; `--set list` explains those of MODEL",
    )
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        help="write references and the hypotheses of each METHOD there as they are scored (reference.jsonl, "
        "METHOD.jsonl and the same as .trn; `asr score` finds the same errors in them; further references in "
        "reference_2.jsonl and so on), and the texts before normalization (METHOD.raw.jsonl); of several "
        "speakers at once reference.stm and hypothesis.stm, for `asr score --align speakers`; of a "
        "classifier the expected and the predicted labels (labels.jsonl)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from asr.cli.evaluation_job import evaluate

    limit_threads(args.threads)
    return evaluate(args)
