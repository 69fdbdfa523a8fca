"""Start training from the weights, tokenizer and front end of another run, or of a ready model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import pydantic
import torch
from torch import Tensor

from asr.config import Config, find_differences
from asr.errors import UserError
from asr.models import Model, ModelConfig, build_model
from asr.models.adaptation import is_low_rank
from asr.system.checkpoint import System, find_model, load_any_system
from asr.system.run_config import RunConfig
from asr.text.tokenizer import Tokenizer
from asr.transcription.families import find_family

logger = logging.getLogger(__name__)


def take_over_tokenizer(config: RunConfig) -> Tokenizer | None:
    """Take the tokenizer of `start_from`; None where the run learns its own."""
    source = config.start_from
    if source is None:
        return None
    if (family := find_family(source)) is not None:
        return family.take_over_tokenizer(config)
    return load_any_system(find_model(source)).tokenizer if config.keep_tokenizer else None


def take_over(config: RunConfig, tokenizer: Tokenizer) -> System[Model]:
    """Build a system with the weights of `start_from`, to be trained further as `config` says."""
    assert config.start_from is not None
    if (family := find_family(config.start_from)) is not None:
        return family.take_over(config, tokenizer)
    return _take_over_run(config, tokenizer, find_model(config.start_from))


def complete(config: RunConfig, source: ModelConfig) -> RunConfig:
    """Take settings that are null, and whose section says so in `from_start`, from `source`."""
    parts: dict[str, Config] = {}
    for name in ("encoder", "decoder"):
        own, other = getattr(config.model, name, None), getattr(source, name, None)
        if own is not None and other is not None and type(own) is type(other):
            missing = [key for key in own.from_start if getattr(own, key) is None]
            parts[name] = own.model_copy(update={key: getattr(other, key) for key in missing})
    model = config.model.model_copy(update=parts)
    try:  # what could not be checked before
        return RunConfig.model_validate(config.model_copy(update={"model": model}).model_dump())
    except pydantic.ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]["msg"].removeprefix("Value error, ")
        raise UserError(f"with the sizes that start_from has: {problem}") from None


def _take_over_run(config: RunConfig, tokenizer: Tokenizer, folder: Path) -> System[Model]:
    source = load_any_system(folder)
    differing = find_differences(source.config.features, config.features, "features.")
    if config.keep_tokenizer:
        differing |= find_differences(source.config.tokenizer, config.tokenizer, "tokenizer.")
        differing.pop("tokenizer.pronunciations", None)  # a run of phones has words of its own
    if differing:
        is_tokenizer = all(key.startswith("tokenizer.") for key in differing)
        hint = "; or learn another tokenizer, with new output layers, by keep_tokenizer=false"
        raise UserError(
            f"start_from = {config.start_from}: set otherwise in {folder / 'config.yaml'}: "
            f"{_describe_differences(differing)}. Make that the same{hint if is_tokenizer else ''}"
        )
    config = complete(config, source.config.model)
    num_features = source.front_end.num_features
    model = build_model(config.model, num_features, len(tokenizer))
    weights = source.model.state_dict()
    of_tokens = set() if config.keep_tokenizer else find_token_weights(config.model, num_features)
    weights = {name: weight for name, weight in weights.items() if name not in of_tokens}
    changed = _describe_differences(find_differences(source.config.model, config.model, "model."))
    hint = f"set otherwise in {folder / 'config.yaml'}: {changed}"
    load_weights(config, model, weights, lambda name: is_low_rank(name) or name in of_tokens, hint)
    return System(config, tokenizer, source.front_end, model)


def find_token_weights(config: ModelConfig, num_features: int) -> set[str]:
    """Find the names of the weights whose size is that of the vocabulary."""
    with torch.device("meta"):
        smaller, larger = (build_model(config, num_features, size).state_dict() for size in (10, 11))
    return {name for name, weight in smaller.items() if weight.shape != larger[name].shape}


def _describe_differences(differing: dict[str, tuple[object, object]]) -> str:
    """Show the first few of `find_differences`."""
    shown = [f"{key} = {there} there, {here} here" for key, (there, here) in differing.items()]
    return "; ".join(shown[:8]) + ("; ..." if len(shown) > 8 else "")


def load_weights(
    config: RunConfig, model: Model, weights: Mapping[str, Tensor], is_new: Callable[[str], bool], hint: str
) -> None:
    """Load weights. `is_new` tells of a name whether its weight may be missing and stay random."""
    own = model.state_dict()
    wrong = [name for name in own if name not in weights and not is_new(name)]
    wrong += [name for name in weights if name not in own or weights[name].shape != own[name].shape]
    if wrong:
        there, here = (_shape(wrong[0], named) for named in (weights, own))
        raise UserError(
            f"start_from = {config.start_from}: its weights do not fit this model ({wrong[0]} is {there} "
            f"there and {here} here); {hint}"
        )
    model.load_state_dict(weights, strict=False)
    fresh = sorted({".".join(name.split(".")[:2]) for name in own.keys() - weights.keys()})
    logger.info("starting from the weights of %s; new are %s", config.start_from, ", ".join(fresh) or "none")


def _shape(name: str, weights: Mapping[str, Tensor]) -> str:
    return " x ".join(map(str, weights[name].shape)) if name in weights else "missing"
