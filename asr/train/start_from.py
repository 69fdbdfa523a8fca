"""Start from the model `start_from`: inherit weights, and settings that the run leaves open."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

import torch

from asr.config import Config, find_differences
from asr.errors import UserError, shorten
from asr.families import find_family, find_model, require_trainable
from asr.models.adapting import is_low_rank
from asr.models.layers import ModelConfig, Net
from asr.models.speech_model import build_model, require_memory
from asr.system.run_config import RunConfig
from asr.system.system import System, load_any_system
from asr.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


def inherit_settings(config: RunConfig, source: ModelConfig) -> RunConfig:
    """Copy settings from `source` that are null here and listed in `from_start` of their section."""
    parts: dict[str, Config] = {}
    for name in ("encoder", "decoder"):
        own, other = getattr(config.model, name, None), getattr(source, name, None)
        if own is not None and other is not None and type(own) is type(other):
            missing = [key for key in getattr(own, "from_start", ()) if getattr(own, key) is None]
            parts[name] = own.model_copy(update={key: getattr(other, key) for key in missing})
    model = config.model.model_copy(update=parts)
    # Build the config again, to validate it with the inherited settings.
    return RunConfig(**config.model_copy(update={"model": model}).model_dump())


def load_source(source: str) -> System[Net]:
    """Load the model to start from, which is a run or a published model of some family."""
    if (family := find_family(source, as_run=True)) is not None:
        return require_trainable(family).load_source(source)
    return load_any_system(find_model(source))


def keeps_tokens(config: RunConfig, source: System[Net]) -> bool:
    """Return True if the run uses its source's tokens; of a published model it may use just the encoder."""
    is_same_type = config.tokenizer.type == source.tokenizer.type
    return config.keep_tokenizer and (is_same_type or not source.is_published)


def inherit_run(config: RunConfig, tokenizer: Tokenizer, source: System[Net]) -> System[Net]:
    """Build a system with the weights of the source, or just the encoder or decoder of a published one."""
    has_tokens = keeps_tokens(config, source)
    differing = find_differences(source.config.features, config.features, "features.")
    if has_tokens:
        differing |= find_differences(source.config.tokenizer, config.tokenizer, "tokenizer.")
        differing.pop("tokenizer.lexicon", None)  # a run of phones has words of its own
    if differing:
        of_tokenizer = all(key.startswith("tokenizer.") for key in differing)
        other = ", or learn another tokenizer with keep_tokenizer=false" if of_tokenizer else ""
        needed = ", ".join(f"{key} = {shorten(value)}" for key, (value, _) in differing.items())
        raise UserError(f"start_from = {config.start_from}: has other settings; set {needed} here{other}")
    parts = find_parts(config, source.config.model) if source.is_published else ("",)
    config = inherit_settings(config, source.config.model)
    num_features = source.front_end.num_features
    require_memory(config.model, num_features, len(tokenizer))
    model = build_model(config.model, num_features, len(tokenizer))
    new = set() if has_tokens else find_token_weights(config.model, num_features)
    if len({type(getattr(own, "decoder", None)) for own in (config.model, source.config.model)}) > 1:
        names = model.state_dict().keys() | source.model.state_dict().keys()
        new |= {name for name in names if name.startswith("decoder.")}
    load_weights(config, model, source, parts, new)
    return System(config, tokenizer, source.front_end, model)


def find_parts(config: RunConfig, source: Any) -> tuple[str, ...]:
    """Return the name prefixes of the weights to load: encoder and decoder, if the source has their type."""
    types = {name: type(getattr(source, name)) for name in ("encoder", "decoder")}
    parts = [f"{name}." for name, own in types.items() if type(getattr(config.model, name, None)) is own]
    if not parts:
        raise UserError(
            f"start_from = {config.start_from} is a published model, but neither model.encoder nor "
            f"model.decoder has its type; set one of them to type: {source.encoder.type}"
        )
    return tuple(parts)


def find_token_weights(config: ModelConfig, num_features: int) -> set[str]:
    """Find the names of weights whose size depends on the vocabulary."""
    with torch.device("meta"):
        smaller, larger = (build_model(config, num_features, size).state_dict() for size in (10, 11))
    return {name for name, weight in smaller.items() if weight.shape != larger[name].shape}


def load_weights(
    config: RunConfig, model: Net, source: System[Net], parts: tuple[str, ...], of_tokens: Collection[str]
) -> None:
    """Load the weights whose names start with `parts`, except those in `of_tokens`."""
    own, theirs = model.state_dict(), source.model.state_dict()
    weights = {name: theirs[name] for name in theirs if name.startswith(parts) and name not in of_tokens}
    fresh = {name for name in own if is_low_rank(name) or name in of_tokens or not name.startswith(parts)}
    mismatched = [name for name in own if name not in weights and name not in fresh]
    mismatched += [name for name in weights if name not in own or weights[name].shape != own[name].shape]
    if mismatched:
        name = mismatched[0]
        there, here = (tuple(one[name].shape) if name in one else "missing" for one in (weights, own))
        remedy = f"set section model to the sizes that `asr info {config.start_from}` shows"
        if source.is_published:
            remedy = "omit `sizes`, and combine its decoder with the encoder of the same model"
        raise UserError(
            f"start_from = {config.start_from}: its weights do not match this model ({name} is {there} "
            f"there and {here} here); {remedy}"
        )
    model.load_state_dict(weights, strict=False)
    new = sorted({".".join(name.split(".")[:2]) for name in own.keys() - weights.keys()})
    logger.info("starting from the weights of %s; new: %s", config.start_from, ", ".join(new) or "none")
