"""Write the model of a run as a folder to pass on: weights, rounded if wanted, and its decoding."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from asr.decoding.hypothesis import DecodingConfig
from asr.errors import UserError
from asr.files import hash_file
from asr.models import Model
from asr.system.checkpoint import (
    System,
    find_model,
    load_any_system,
    load_state,
    round_weights,
    save_checkpoint,
)
from asr.system.decoding_resources import (
    LANGUAGE_MODEL,
    NGRAMS,
    BundledDecoding,
    copy_resources,
    load_bundled_decoding,
    write_bundled_decoding,
    write_lexicon,
    write_ngrams,
)
from asr.system.run_config import RunConfig
from asr.train.preparation import read_training_texts

logger = logging.getLogger(__name__)

# Of the state of a training: how long it was, what it led to, what made it; and what transcribing asks for.
_KEPT = (
    *("step", "seconds", "audio_seconds", "longest_seconds", "dev_scores"),
    *("asr", "commit", "torch", "python"),
)


def write_model_folder(source: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write the model of a run or of a checkpoint, whole or not at all."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: is not empty; give a new folder")
    folder = folder.absolute()
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        system = _write_model(find_model(source), temporary, dtype)
        _write_decoding(source, system, temporary, dtype)
        if folder.exists():
            folder.rmdir()
        temporary.rename(folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot write a model there ({error.strerror})") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_model(model: Path, folder: Path, dtype: torch.dtype) -> System[Model]:
    """Write the model without what only training needs, and without folder names of the machine."""
    system = load_any_system(model, to_train=True)  # as it is: changes of low rank stay apart
    state = {name: value for name, value in load_state(model).items() if name in _KEPT}
    settings = _hide_folders(json.loads(system.config.model_dump_json()))
    config = RunConfig.model_validate_json(json.dumps(settings))
    passed_on = System(config, system.tokenizer, system.front_end, system.model)
    save_checkpoint(folder, passed_on, state, round_weights(system.model.state_dict(), dtype))
    return system


def _hide_folders(tree: Any) -> Any:
    """Replace absolute paths by their last part."""
    if isinstance(tree, dict):
        return {key: _hide_folders(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_hide_folders(value) for value in tree]
    return Path(tree).name if isinstance(tree, str) and Path(tree).is_absolute() else tree


def _write_decoding(source: Path, system: System[Model], folder: Path, dtype: torch.dtype) -> None:
    """Write decoding.yaml and the files it names, if the source has one or dev has chosen a setup."""
    model = find_model(source)
    bundled = load_bundled_decoding(model)
    if bundled is not None:
        copy_resources(bundled, model, folder)
    else:
        chosen = _read_evaluation(source / "evaluation" / "summary.json")
        if chosen.get("inputs", {}).get("the model") != hash_file(model / "model.safetensors"):
            logger.info("%s: not evaluated by `asr recipe run`, so no decoding setup is noted", source)
            return
        bundled = _bundle(source, system, chosen, folder, dtype)
    write_bundled_decoding(folder, bundled)


def _read_evaluation(path: Path) -> dict[str, Any]:
    """Read what `asr recipe run` has found by dev; empty if it has not evaluated the run."""
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record


def _bundle(
    source: Path, system: System[Model], chosen: dict[str, Any], folder: Path, dtype: torch.dtype
) -> BundledDecoding:
    """Write the language model and the lexicon of the setup that dev chose."""
    decoding = DecodingConfig.model_validate_json(json.dumps(chosen["decoding_config"]))
    name = chosen["language_model"]
    if name is None:
        return BundledDecoding(decoding=decoding)
    texts = list(read_training_texts(system.config))
    lexicon = write_lexicon(folder, texts)
    if name == NGRAMS:
        language_model = write_ngrams(folder, system, texts)
    else:
        language_model = LANGUAGE_MODEL
        _write_model(find_model(source.parent / name), folder / LANGUAGE_MODEL, dtype)
    return BundledDecoding(decoding=decoding, language_model=language_model, lexicon=lexicon)
