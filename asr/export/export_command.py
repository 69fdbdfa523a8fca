"""`asr export MODEL FOLDER`: write a model as ONNX graphs that give the same texts."""

from __future__ import annotations

import argparse

from asr.cli import limit_threads, require_any_input
from asr.errors import import_extra


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="run directory, checkpoint, or a Whisper or Moonshine model")
    add("folder", metavar="FOLDER", help="new folder for graphs, tokens, description and README")
    text = "sherpa: what sherpa-onnx reads (default); onnx: graphs for ONNX Runtime, of any kind of model"
    add("--format", choices=("sherpa", "onnx"), default="sherpa", help=text)
    text = "ctc_greedy, attention or transducer: the head to export (default: transducer, attention or CTC)"
    add("--decoding", choices=("auto", "ctc_greedy", "attention", "transducer"), default="auto", help=text)
    text = "export the encoder chunk by chunk, for live audio (needs model.encoder.chunk)"
    add("--stream", action="store_true", help=text)
    text = "also write 8-bit weights, compare error rate and speed, and keep what is better"
    add("--int8", action="store_true", help=text)
    text = "utterances to compare texts on, of which up to 60 are decoded (default: the run's dev set)"
    add("--manifest", metavar="MANIFEST", help=text)


def run(args: argparse.Namespace) -> int:
    require_any_input(args.model)
    exporter = import_extra("asr.export.export", "exporting a model", "export")
    limit_threads(1)
    for name, size in exporter.export(args).items():
        print(f"{args.folder}/{name}  {size / 1e6:.1f} MB")
    return 0
