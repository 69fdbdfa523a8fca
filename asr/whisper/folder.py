"""Our folder of a Whisper model: nothing but numbers and text, mapped into memory as it is loaded.

config.yaml            sizes
model.safetensors      weights, in the precision that they came in
vocabulary.tiktoken    tokens of text
"""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file

from asr.config import dump_config, load_config
from asr.errors import UserError
from asr.files import replace_file, usual_mode
from asr.whisper.huggingface import read_safetensors
from asr.whisper.naming import Checkpoint, check_weight, expected_shapes
from asr.whisper.sections import WhisperConfig
from asr.whisper.vocabulary import FILE_NAME, read_ranks, write_ranks


def is_own_folder(path: Path) -> bool:
    return (path / FILE_NAME).is_file() and (path / "config.yaml").is_file()


def read_folder(folder: Path) -> Checkpoint:
    config = load_config(WhisperConfig, folder / "config.yaml")
    weights = read_safetensors(folder / "model.safetensors")
    shapes = expected_shapes(config)
    if weights.keys() != shapes.keys():
        name = min(weights.keys() ^ shapes.keys())
        raise UserError(f"{folder}: {name[:80]} is unknown or missing; is config.yaml that of this model?")
    for name, shape in shapes.items():
        check_weight(weights[name], name, shape, str(folder))
    return Checkpoint("asr", config, read_ranks(folder / FILE_NAME), weights)


def write_folder(folder: Path, checkpoint: Checkpoint) -> None:
    """The config comes last: a folder that has one is whole."""
    assert checkpoint.vocabulary is not None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"{folder}: is not empty; give a new folder")
        weights = {name: weight.contiguous() for name, weight in checkpoint.weights.items()}
        with usual_mode(folder / "model.safetensors"):
            save_file(weights, folder / "model.safetensors")
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{folder}: cannot write a model there ({reason})") from None
    write_ranks(folder / FILE_NAME, checkpoint.vocabulary)
    with replace_file(folder / "config.yaml") as file:
        file.write(dump_config(checkpoint.config).encode())
