"""`asr info CONF|MODEL`: every setting and what it means; of a trained model also its size and scores."""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", metavar="CONF|MODEL", help="YAML file of a run, or folder of a trained model"
    )
    parser.add_argument(
        "overrides", metavar="KEY=VALUE", nargs="*", help="settings that replace those of the file"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    from asr.config import describe_config
    from asr.errors import UserError
    from asr.run import RunConfig

    model: dict[str, Any] = {}
    path = Path(args.config)
    if path.is_dir():
        if args.overrides:
            raise UserError(
                f"{path}: the settings of a trained model stand; give {args.overrides[0]} with a YAML"
            )
        model, path = describe_model(path)
    config = RunConfig.load(path, args.overrides)
    rows = list(describe_config(config))
    if args.json:
        settings = {key: {"value": value, "help": documentation} for key, value, documentation in rows}
        described = {"model": model, "settings": settings} if model else settings
        print(json.dumps(described, ensure_ascii=False, indent=2, default=str))
        return 0
    for name, value in model.items():
        print(f"{name:18}{_as_text(value)}")
    if model:
        print()
    for key, value, documentation in rows:
        print(f"{key}: {json.dumps(value, ensure_ascii=False, default=str)}")
        for line in textwrap.wrap(documentation, width=96):
            print(f"    {line}")
    return 0


def describe_model(path: Path) -> tuple[dict[str, Any], Path]:
    """What is in the folder of a trained model, and the file of its settings."""
    from asr.checkpoint import find_model, load_state, load_system

    folder = find_model(path)
    system, state = load_system(folder), load_state(folder)
    parts = {name: _count(part) for name, part in system.model.named_children() if _count(part)}
    described = {
        "folder": str(folder),
        "parameters": _count(system.model),
        "parameters of": parts,
        "tokens": len(system.tokenizer),
        "sample rate": system.config.features.sample_rate,
        "updates": state.get("step"),
        "hours heard": round(float(state.get("audio_seconds", 0)) / 3600, 2),
        "scores on dev": state.get("dev_scores", {}),
        "made by": {name: state.get(name) for name in ("asr", "commit", "torch", "python")},
    }
    return described, folder / "config.yaml"


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_as_text(item)}" for name, item in value.items()) or "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
