"""`asr convert MODEL FOLDER`: the model of a run, or a Whisper model of any form, as a folder to pass on."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "float16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="folder of a run, checkpoint or model; or Whisper: file of OpenAI (.pt) or whisper.cpp "
        "(ggml-*.bin), folder of Hugging Face or CTranslate2, or a name on the hub",
    )
    parser.add_argument("folder", metavar="FOLDER", help="where to write the model; a new folder")
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="of the weights in the file; float16 takes half the room, and they are float32 again when they "
        "are loaded (default: float32; of Whisper, as they come)",
    )
    parser.add_argument(
        "--vocabulary",
        metavar="PATH",
        help="Whisper: file or folder to take the vocabulary from; files of OpenAI have none "
        "(multilingual.tiktoken or gpt2.tiktoken beside them is found without this)",
    )


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    import torch

    from asr.errors import UserError
    from asr.whisper.loading import is_whisper

    dtype = None if args.dtype is None else getattr(torch, args.dtype)
    if not Path(args.model).is_dir() or is_whisper(args.model):
        _convert_whisper(args, dtype)
    elif args.vocabulary is not None:
        raise UserError(f"--vocabulary is for Whisper models, and {args.model} is none; leave it out")
    else:
        from asr.recipe.shipping import write_model_folder

        write_model_folder(Path(args.model), Path(args.folder), dtype or torch.float32)
    print(args.folder)
    return 0


def _convert_whisper(args: argparse.Namespace, dtype: torch.dtype | None) -> None:
    from dataclasses import replace
    from pathlib import Path

    from asr.system.checkpoint import round_weights
    from asr.whisper.folder import write_folder
    from asr.whisper.loading import build_tokenizer, read_checkpoint

    checkpoint = read_checkpoint(args.model, args.vocabulary)
    build_tokenizer(checkpoint, args.model)  # so that what is written also loads
    if dtype is not None:
        checkpoint = replace(checkpoint, weights=round_weights(checkpoint.weights, dtype))
    write_folder(Path(args.folder), checkpoint)
