"""A Whisper model of any form: folders of ours and Hugging Face; files of OpenAI or whisper.cpp.

Our folder has nothing but numbers and text, mapped into memory as it is loaded:

config.yaml            sizes
model.safetensors      weights, in the precision that they came in
vocabulary.tiktoken    tokens of text
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from asr.config import dump_config, load_config
from asr.errors import UserError, suggest
from asr.features.front_end import FeaturesConfig, FrontEnd
from asr.files import make_folder, replace_file, usual_mode
from asr.whisper.encoder_decoder import Whisper
from asr.whisper.ggml import is_ggml_file, read_ggml
from asr.whisper.huggingface import (
    PATTERNS,
    PICKLED,
    find_weights,
    is_huggingface_folder,
    read_huggingface,
    read_safetensors,
)
from asr.whisper.naming import Checkpoint, check_weight, expected_shapes
from asr.whisper.openai import RANKS, is_torch_file, read_openai
from asr.whisper.sections import WhisperConfig
from asr.whisper.vocabulary import FILE_NAME, Vocabulary, read_huggingface_vocabulary, read_ranks, write_ranks
from asr.whisper.whisper_tokenizer import Task, WhisperTokenizer, require_english

log = logging.getLogger(__name__)

# Names as in openai-whisper and faster-whisper, and where the hub has them.
NAMES = {
    name: f"openai/whisper-{name}"
    for name in (
        *("tiny", "tiny.en", "base", "base.en", "small", "small.en", "medium", "medium.en"),
        *("large-v2", "large-v3", "large-v3-turbo"),
    )
}
NAMES |= {"large-v1": "openai/whisper-large", "large": NAMES["large-v3"], "turbo": NAMES["large-v3-turbo"]}
for _name in ("small.en", "medium.en", "large-v2", "large-v3", "large-v3.5"):
    NAMES[f"distil-{_name}"] = f"distil-whisper/distil-{_name}"
SHORT_NAME = re.compile(r"whisper-[\w.-]+")  # of OpenAI's own models
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class WhisperSystem:
    """A model and all that turns audio into its input and its output into text."""

    config: WhisperConfig
    tokenizer: WhisperTokenizer
    front_end: FrontEnd
    model: Whisper


def load_whisper(
    source: str | Path,
    vocabulary: str | Path | None = None,
    *,
    dtype: torch.dtype | None = torch.float32,
) -> WhisperSystem:
    """Load a model in evaluation mode, on the CPU. Weights that are in `dtype` stay mapped.

    `vocabulary` names a file or folder that has one, for files of OpenAI, which have none. Without a `dtype`,
    each weight is in that of the file, for a recogniser that rounds them.
    """
    checkpoint = read_checkpoint(source, vocabulary)
    config = checkpoint.config
    tokenizer = build_tokenizer(checkpoint, str(source))
    front_end = FrontEnd(FeaturesConfig(convention="whisper", num_mels=config.num_mels))
    weights = checkpoint.weights
    if dtype is not None:
        for name, weight in weights.items():
            weights[name] = weight.to(dtype)  # in place, so that there are never two of all
    return WhisperSystem(config, tokenizer, front_end, Whisper.of(config, weights))


def read_checkpoint(source: str | Path, vocabulary: str | Path | None = None) -> Checkpoint:
    """Read the files of a model, whatever their form."""
    path = find_files(source)
    try:
        checkpoint = _read(path)
    except OSError as error:
        raise UserError(f"{path}: cannot read it ({error.strerror})") from None
    if vocabulary is not None:
        return replace(checkpoint, vocabulary=read_vocabulary(Path(vocabulary)))
    return checkpoint


def build_tokenizer(checkpoint: Checkpoint, source: str) -> WhisperTokenizer:
    if checkpoint.vocabulary is None:
        is_multilingual = checkpoint.config.is_multilingual
        ranks, other = (RANKS[0], "a multilingual") if is_multilingual else (RANKS[1], "an English-only")
        raise UserError(
            f"{source}: there is no vocabulary in or beside this model. Put {ranks} into the same folder (the"
            " package openai-whisper has it in whisper/assets), or name a file or folder with one, such as "
            f"the ggml file or Hugging Face folder of {other} Whisper: "
            "asr convert MODEL FOLDER --vocabulary PATH"
        )
    try:
        return WhisperTokenizer.of_size(checkpoint.vocabulary, checkpoint.config.vocab_size)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def is_whisper(source: str | Path) -> bool:
    """Recognise a Whisper model, in any form that is read here."""
    path = Path(source)
    try:
        if path.exists():
            return _find_reader(path) is not None
    except OSError:
        return False
    return "whisper" in (_find_hub_name(str(source)) or "").lower()


def require_language(source: str | Path, language: str | None, task: Task) -> None:
    """Refuse what an English-only model does not know, before its weights are fetched or loaded."""
    if language in (None, "en") and task == "transcribe":
        return
    is_file = Path(source).exists()
    if not (read_checkpoint(source).config.is_multilingual if is_file else not str(source).endswith(".en")):
        require_english(language, task)


def find_files(source: str | Path) -> Path:
    """The file or folder of a model; for a name on the hub, its folder in the cache, fetched if need be."""
    path, name = Path(source), str(source)
    if path.exists():
        return path
    hub_name = _find_hub_name(name)
    if hub_name is None:
        raise _no_model(name)
    return _fetch(hub_name)


def _find_hub_name(name: str) -> str | None:
    """Find the name on the hub of a model that is given by its name."""
    if name in NAMES:
        return NAMES[name]
    if SHORT_NAME.fullmatch(name):
        return f"openai/{name}"
    return name if HUB_NAME.fullmatch(name) else None


def find_whisper_weights(source: str | Path) -> Path:
    """A file that is another one when the model is."""
    path = find_files(source)
    return next(iter(find_weights(path)), path / "config.json") if path.is_dir() else path


def read_vocabulary(path: Path) -> Vocabulary:
    """Read the vocabulary of a file of ranks, or of any model that has one."""
    if (path / FILE_NAME).is_file():
        return read_ranks(path / FILE_NAME)
    if path.is_dir():
        vocabulary = read_huggingface_vocabulary(path)
        if vocabulary is None:
            raise UserError(
                f"{path}: no vocabulary there; expected vocab.json with merges.txt, or tokenizer.json"
            )
        return vocabulary
    if not path.is_file():
        raise UserError(f"{path}: no such file or folder; expected one with a vocabulary")
    if is_ggml_file(path):
        vocabulary = read_ggml(path).vocabulary
        assert vocabulary is not None
        return vocabulary
    return read_ranks(path)


def _find_reader(path: Path) -> Callable[[Path], Checkpoint] | None:
    """Find what reads a file or folder, by its first bytes or its files."""
    forms = FOLDERS if path.is_dir() else FILES
    return next((read for matches, read in forms.items() if matches(path)), None)


def _read(path: Path) -> Checkpoint:
    if (read := _find_reader(path)) is not None:
        return read(path)
    if path.is_dir():
        raise UserError(
            f"{path}: no Whisper model in this folder; expected ours (config.yaml, {FILE_NAME}), or one "
            "of Hugging Face (config.json, model.safetensors)"
        )
    raise UserError(
        f"{path}: neither a .pt file of OpenAI nor a ggml file of whisper.cpp, by its first bytes; "
        "it may be cut off, or a page that was saved in its place"
    )


def _fetch(name: str) -> Path:
    """Fetch a model from the hub, unless it is in the cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, allow_patterns=[*PATTERNS, PICKLED], local_files_only=True))
        if is_huggingface_folder(folder) and find_weights(folder):
            return folder
    except HFValidationError:  # such as ../whisper, which is a path
        raise _no_model(name) from None
    except LocalEntryNotFoundError:
        pass
    log.info("%s is not in the cache of Hugging Face yet; fetching it", name)
    try:
        folder = Path(snapshot_download(name, allow_patterns=[*PATTERNS]))
        if not find_weights(folder):
            folder = Path(snapshot_download(name, allow_patterns=[*PATTERNS, PICKLED]))
    except Exception as error:  # network, hub and disk fail in many ways
        reason = str(error).split("\n")[0][:200]
        advice = f"With a network run the command again, or `hf download {name}` where there is one."
        if name not in NAMES.values() and (near := suggest(name, NAMES.values(), "")):
            advice = near[0].upper() + near[1:]
        raise UserError(
            f"{name}: not in the cache, and not to be had from the hub ({type(error).__name__}: {reason}). "
            f"{advice} Without a network give the path of a Whisper model, a .pt or ggml file or a folder, "
            "in place of the name "
            "(`asr transcribe` takes it from --model, or from ASR_MODEL in the environment)"
        ) from None
    return folder


def _no_model(name: str) -> UserError:
    return UserError(
        f"{name}: no such file or folder, and no name of a Whisper model; give the path of one, its name on "
        f"the hub, such as openai/whisper-base, or one of {', '.join(NAMES)}"
    )


# --- our folder -------------------------------------------------------------------------------------


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
    make_folder(folder)
    try:
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


FOLDERS = {
    is_own_folder: read_folder,
    is_huggingface_folder: read_huggingface,
}
FILES = {is_ggml_file: read_ggml, is_torch_file: read_openai}
