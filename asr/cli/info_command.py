"""`asr info CONFIG|MODEL`: explain every setting; for a model also print its size and scores."""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path
from typing import Any

from asr.cli import add_config, read_overrides


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "YAML file of a run, folder of a trained model, or pretrained model (folder or name)"
    add_config(parser, text, "CONFIG|MODEL")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    from asr.config import describe_config
    from asr.families import find_family
    from asr.system.run_config import RunConfig
    from asr.train.monitor import drop_repeated_rates, show_value

    model, rows = dict[str, Any](), []
    path, overrides, family = Path(args.config), read_overrides(args), find_family(args.config, as_run=True)
    if family is not None:
        model = family.describe(args.config)
    else:
        if path.is_dir() or not (path.suffix in (".yaml", ".yml") or path.exists()):
            model, path = describe_model(path)
        rows = list(describe_config(RunConfig.load(path, overrides)))
    if args.json:
        settings = {key: {"value": value, "help": text} for key, value, text in rows}
        described = {"model": model, "settings": settings} if model else settings
        print(json.dumps(described, ensure_ascii=False, indent=2, default=str))
        return 0
    scores = drop_repeated_rates(model.get("scores on dev", {}))
    rates = {name: show_value(name, value) for name, value in scores.items()}
    for name, value in (model | ({"scores on dev": rates} if rates else {})).items():
        print(f"{name:18}{value if isinstance(value, str) else json.dumps(value)}")
    if model:
        print()
    for key, value, text in rows:
        print(f"{key}: {json.dumps(value, ensure_ascii=False, default=str)}")
        for line in textwrap.wrap(text, width=96):
            print(f"    {line}")
    return 0


def describe_model(path: Path) -> tuple[dict[str, Any], Path]:
    """Describe a trained model's folder; also return its config file."""
    from asr.families import find_model
    from asr.system.decoding_resources import load_bundled_decoding
    from asr.system.system import load_any_system, load_state
    from asr.text.tokenizer import SPECIAL_TOKENS

    folder = find_model(path)
    system, state = load_any_system(folder), load_state(folder)
    children = system.model.named_children()
    counts = {name: sum(parameter.numel() for parameter in part.parameters()) for name, part in children}
    parts = {name: count for name, count in counts.items() if count}
    own = load_bundled_decoding(folder)
    is_classifier = system.config.model.find_labels(system.config.text) is not None
    labels = system.tokenizer.tokens[len(SPECIAL_TOKENS) :] if is_classifier else ()
    described = {
        "folder": str(folder),
        "parameters": sum(parts.values()),
        "parameters of": parts,
        **({"labels": ", ".join(labels)} if labels else {"tokens": len(system.tokenizer)}),
        **({"sample rate": system.config.features.sample_rate} if system.config.model.reads_audio else {}),
        **({} if own is None else {"decoding": own.describe()}),
        "updates": state.get("step"),
        "hours trained on": round(float(state.get("audio_seconds", 0)) / 3600, 2),
        "scores on dev": state.get("dev_scores", {}),
        "made by": {name: state.get(name) for name in ("asr", "commit", "torch", "python")},
    }
    return described, folder / "config.yaml"
