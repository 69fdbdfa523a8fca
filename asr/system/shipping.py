"""Export of models: the folder that `asr convert` writes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr.errors import UserError
from asr.families import find_model
from asr.system.checkpoint import save_checkpoint
from asr.system.decoding_resources import BUNDLED_DECODING, load_bundled_decoding
from asr.system.run_config import RunConfig
from asr.system.system import System, load_any_system, load_state

# Parts of the training state to keep: its length, scores and versions, and what transcription needs.
_KEPT = (
    *("step", "seconds", "audio_seconds", "longest_seconds", "dev_scores"),
    *("asr", "commit", "torch", "python"),
)


def write_model_folder(source: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write the model of a run or checkpoint, then its decoding.yaml and the files named there."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: is not empty; choose a new folder")
    model = find_model(source)
    bundled = load_bundled_decoding(model)
    _write_model(model, folder.absolute(), dtype)
    if bundled is None:
        return
    try:
        for name in (bundled.language_model, bundled.words, model / BUNDLED_DECODING):
            if name is not None:
                copy = shutil.copytree if Path(name).is_dir() else shutil.copyfile
                copy(name, folder / Path(name).name)
    except OSError as error:
        raise UserError(f"{folder}: cannot write its decoding files ({error.strerror})") from None


def _write_model(model: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write the model without what only training needs, and without paths of this machine."""
    system = load_any_system(model, to_train=True)  # so that low-rank changes are not merged
    state = {name: value for name, value in load_state(model).items() if name in _KEPT}
    settings = _hide_folders(json.loads(system.config.model_dump_json()))
    config = RunConfig.model_validate_json(json.dumps(settings))
    passed_on = System(config, system.tokenizer, system.front_end, system.model)
    save_checkpoint(folder, passed_on, state, round_weights(system.model.state_dict(), dtype))


def round_weights(weights: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Round weights to the precision of the file. When loaded, they become float32 again."""
    rounded = {
        name: weight.to(dtype) if weight.is_floating_point() else weight for name, weight in weights.items()
    }
    for name, weight in rounded.items():
        if not weight.isfinite().all():
            raise UserError(f"{name}: has weights out of range for {str(dtype)[6:]}; keep float32")
    return rounded


def _hide_folders(tree: Any) -> Any:
    """Replace absolute paths by their last part."""
    if isinstance(tree, dict):
        return {key: _hide_folders(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_hide_folders(value) for value in tree]
    return Path(tree).name if isinstance(tree, str) and Path(tree).is_absolute() else tree
