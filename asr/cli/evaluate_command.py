"""`asr evaluate MODEL MANIFEST`: decode or classify a split; print error rates and speed."""

from __future__ import annotations

import argparse

from asr.cli import DECODING_METHODS, add_decoding_options, add_settings, limit_threads, require_any_input


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "run directory, checkpoint, or pretrained model (folder or name)"
    add("model", metavar="MODEL", help=text)
    text = "utterances with texts or labels: JSON Lines, or a folder of shards"
    add("manifest", metavar="MANIFEST", help=text)
    text = f"{DECODING_METHODS}, or all that MODEL offers; may be repeated (default: auto)"
    add("--decoding", metavar="METHOD", action="append", help=text)
    add_decoding_options(parser, "utterances")
    text = """any other setting, such as decoding.ctc_weight=0.5, checks=off or precision=float32; may be
    repeated; `--set list` explains all of them"""
    add_settings(parser, text)
    text = """folder for references and hypotheses as they are scored (reference.jsonl, METHOD.jsonl, and the
    same as .trn, for `asr score`) and as the model wrote them (METHOD.raw.jsonl); for mixed speech
    reference.stm and hypothesis.stm; for a classifier labels.jsonl"""
    add("--output-dir", metavar="DIR", help=text)
    add("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    require_any_input(args.manifest)
    from asr.cli.evaluation_job import evaluate

    limit_threads(args.threads)
    return evaluate(args)
