"""`asr convert MODEL FOLDER`: a Whisper model of any form as a folder of ours."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="file of OpenAI (.pt) or whisper.cpp (ggml-*.bin), folder of Hugging Face, or a name on its hub",
    )
    parser.add_argument("folder", metavar="FOLDER", help="where to write the model; a new folder")
    parser.add_argument(
        "--vocabulary",
        metavar="PATH",
        help="file or folder to take the vocabulary from; files of OpenAI have none "
        "(multilingual.tiktoken or gpt2.tiktoken beside them is found without this)",
    )


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from asr.whisper.folder import write_folder
    from asr.whisper.loading import build_tokenizer, read_checkpoint

    checkpoint = read_checkpoint(args.model, args.vocabulary)
    build_tokenizer(checkpoint, args.model)  # so that what is written also loads
    write_folder(Path(args.folder), checkpoint)
    print(args.folder)
    return 0
