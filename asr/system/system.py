"""A system is a model with its tokenizer and front end. This module loads it from a checkpoint."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, cast

from safetensors import SafetensorError, safe_open
from torch import Tensor
from typing_extensions import TypeVar

from asr.config import describe_config
from asr.errors import UserError
from asr.features.front_end import FrontEnd
from asr.files import read_limited
from asr.models.adapting import merge_low_rank
from asr.models.layers import Net, check_weights, without_weights
from asr.models.speech_model import SpeechModel, build_model
from asr.system.run_config import RunConfig
from asr.text.normalization import TextConfig
from asr.text.tokenizer import Tokenizer

MODEL_PREFIX = "model."
MAX_STATE_BYTES = 10_000_000

ModelType = TypeVar("ModelType", bound=Net, default=SpeechModel, covariant=True)


@dataclass(frozen=True)
class System(Generic[ModelType]):
    """A model with all that turns audio or text into its input, as a checkpoint restores it."""

    config: RunConfig
    tokenizer: Tokenizer
    front_end: FrontEnd  # an unused default if the model reads no audio
    model: ModelType
    is_published: bool = False  # a pretrained model of others, not trained by this toolkit

    @property
    def longest_seconds(self) -> float:
        """Maximum seconds of audio at once, because training used no longer utterances."""
        return self.config.batches.max_utterance_seconds

    @property
    def text(self) -> TextConfig | None:
        """The normalization rules of its texts; None for a published model."""
        return None if self.is_published else self.config.text


def load_system(folder: str | Path) -> System:
    """Load the speech model of a checkpoint, in evaluation mode on the CPU."""
    return require_speech(load_any_system(folder), folder)


def require_speech(system: System[Net], folder: str | Path) -> System:
    """Return the same system. Raises UserError if its model does not turn audio into text."""
    if not isinstance(system.model, SpeechModel):
        raise UserError(
            f"{folder}: a model of type {system.config.model.type}; expected type speech, which turns a "
            "recording into one text"
        )
    return cast(System, system)


def load_any_system(folder: str | Path, *, to_train: bool = False) -> System[Net]:
    """Load a checkpoint of any model type.

    Low-rank changes are merged into the weights, except with `to_train`, which keeps them trainable.
    """
    folder = Path(folder)
    config = RunConfig.load(folder / "config.yaml")
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    front_end = FrontEnd(config.features)
    tensors = dict(read_tensors(folder / "model.safetensors"))
    weights = _check_weights(config, front_end.num_features, len(tokenizer), tensors, folder)
    model = build_model(config.model, front_end.num_features, len(tokenizer))
    model.load_state_dict(weights)
    if not to_train:
        merge_low_rank(model)
    return System(config, tokenizer, front_end, model.eval())


def load_state(folder: Path) -> dict[str, Any]:
    path = folder / "state.json"
    text = read_limited(path, MAX_STATE_BYTES, "too large to be the state of a training")
    with contextlib.suppress(ValueError):
        if isinstance(state := json.loads(text), dict):
            return state
    raise UserError(f"{path}: not a JSON object; the checkpoint is damaged, use another one")


def read_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a file one by one."""
    try:
        with safe_open(path, framework="pt") as file:
            for name in sorted(file.keys()):
                yield name, file.get_tensor(name)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; give the folder of a run or of a checkpoint") from None
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: damaged safetensors file ({error}); use another checkpoint") from None


def _check_weights(
    config: RunConfig, num_features: int, num_tokens: int, tensors: Mapping[str, Tensor], folder: Path
) -> dict[str, Tensor]:
    """Return the model's weights after comparing their shapes with the config, before allocating memory."""
    for key, value, _ in describe_config(config.model):
        if key.endswith("layers") and isinstance(value, int) and value > len(tensors):
            raise UserError(f"{folder}: model.{key} = {value:,}, but there are {len(tensors):,} weights")
    with without_weights():
        module = build_model(config.model, num_features, num_tokens)
    own = {
        name.removeprefix(MODEL_PREFIX): tensor
        for name, tensor in tensors.items()
        if name.startswith(MODEL_PREFIX)
    }
    found, expected = (
        {name: tuple(tensor.shape) for name, tensor in part.items()} for part in (own, module.state_dict())
    )
    check_weights(folder, found, expected, "Is config.yaml that of this model?")
    return own
