"""`asr convert MODEL TARGET`: a run's model as a folder to pass on, or a Whisper in another form."""

from __future__ import annotations

import argparse

DTYPES = ("float32", "float16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="run directory, checkpoint or model folder; or Whisper: file of OpenAI (.pt), folder of Hugging "
        "Face, name on the hub, or run that fine-tuned one",
    )
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="a new folder to write the model to; Whisper: in the form of Hugging Face, or a new file "
        "FILE.pt in that of OpenAI",
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="precision of the weights in the file; float16 takes half the space, and they are float32 again "
        "when they are loaded (default: float32; Whisper: that of MODEL)",
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
    from asr.families import find_family

    dtype = None if args.dtype is None else getattr(torch, args.dtype)
    if (family := find_family(args.model)) is not None:
        family.convert(args.model, Path(args.target), dtype, args.vocabulary)
    elif args.vocabulary is not None:
        raise UserError(f"--vocabulary is for Whisper models, and {args.model} is none; leave it out")
    else:
        from asr.system.shipping import write_model_folder

        write_model_folder(Path(args.model), Path(args.target), dtype or torch.float32)
    print(args.target)
    return 0
