"""`asr convert MODEL FOLDER`: the model of a run, or a Whisper model of any form, as a folder to pass on."""

from __future__ import annotations

import argparse

DTYPES = ("float32", "float16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="folder of a run, checkpoint or model; or Whisper: file of OpenAI (.pt) or whisper.cpp "
        "(ggml-*.bin), folder of Hugging Face, or a name on the hub",
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
    from asr.transcription.families import find_family

    dtype = None if args.dtype is None else getattr(torch, args.dtype)
    if (family := find_family(args.model)) is not None:
        family.convert(args.model, Path(args.folder), dtype, args.vocabulary)
    elif args.vocabulary is not None:
        raise UserError(f"--vocabulary is for Whisper models, and {args.model} is none; leave it out")
    else:
        from asr.recipe.shipping import write_model_folder

        write_model_folder(Path(args.model), Path(args.folder), dtype or torch.float32)
    print(args.folder)
    return 0
