"""Begin with the model of `start_from`: take settings that the run leaves open, and weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from asr.config import Config, find_differences
from asr.errors import UserError
from asr.models.adapting import is_low_rank
from asr.models.layers import ModelConfig, Net
from asr.models.speech_model import build_model, require_memory
from asr.system.run_config import RunConfig
from asr.system.system import System, load_any_system
from asr.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


def inherit_settings(config: RunConfig, source: ModelConfig) -> RunConfig:
    """Take settings that are null, and listed in `from_start` of their section, from `source`."""
    parts: dict[str, Config] = {}
    for name in ("encoder", "decoder"):
        own, other = getattr(config.model, name, None), getattr(source, name, None)
        if own is not None and other is not None and type(own) is type(other):
            missing = [key for key in getattr(own, "from_start", ()) if getattr(own, key) is None]
            parts[name] = own.model_copy(update={key: getattr(other, key) for key in missing})
    model = config.model.model_copy(update=parts)
    # Built again, to check what could not be checked before.
    return RunConfig(**config.model_copy(update={"model": model}).model_dump())


def inherit_run(config: RunConfig, tokenizer: Tokenizer, folder: Path) -> System[Net]:
    source = load_any_system(folder)
    differing = find_differences(source.config.features, config.features, "features.")
    if config.keep_tokenizer:
        differing |= find_differences(source.config.tokenizer, config.tokenizer, "tokenizer.")
        differing.pop("tokenizer.pronunciations", None)  # a run of phones has words of its own
    if differing:
        of_tokenizer = all(key.startswith("tokenizer.") for key in differing)
        other = ", or learn another tokenizer by keep_tokenizer=false" if of_tokenizer else ""
        raise UserError(
            f"start_from = {config.start_from}: set otherwise there: {', '.join(differing)}; make that the "
            f"same{other}"
        )
    config = inherit_settings(config, source.config.model)
    num_features = source.front_end.num_features
    require_memory(config.model, num_features, len(tokenizer))
    model = build_model(config.model, num_features, len(tokenizer))
    weights = source.model.state_dict()
    of_tokens = set() if config.keep_tokenizer else find_token_weights(config.model, num_features)
    weights = {name: weight for name, weight in weights.items() if name not in of_tokens}
    hint = f"give section model the sizes of {folder / 'config.yaml'}"
    load_weights(config, model, weights, lambda name: is_low_rank(name) or name in of_tokens, hint)
    return System(config, tokenizer, source.front_end, model)


def find_token_weights(config: ModelConfig, num_features: int) -> set[str]:
    """Find the names of the weights whose size is that of the vocabulary."""
    with torch.device("meta"):
        smaller, larger = (build_model(config, num_features, size).state_dict() for size in (10, 11))
    return {name for name, weight in smaller.items() if weight.shape != larger[name].shape}


def load_weights(
    config: RunConfig, model: Net, weights: Mapping[str, Tensor], is_new: Callable[[str], bool], hint: str
) -> None:
    """Load weights. `is_new` is True for a name whose weight may be missing and stay random."""
    own = model.state_dict()
    mismatched = [name for name in own if name not in weights and not is_new(name)]
    mismatched += [name for name in weights if name not in own or weights[name].shape != own[name].shape]
    if mismatched:
        name = mismatched[0]
        there, here = (tuple(one[name].shape) if name in one else "missing" for one in (weights, own))
        raise UserError(
            f"start_from = {config.start_from}: its weights do not fit this model ({name} is {there} "
            f"there and {here} here); {hint}"
        )
    model.load_state_dict(weights, strict=False)
    fresh = sorted({".".join(name.split(".")[:2]) for name in own.keys() - weights.keys()})
    logger.info("starting from the weights of %s; new are %s", config.start_from, ", ".join(fresh) or "none")
