"""Prepare the system that a run trains: from its last checkpoint, from another model, or new."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from asr.families import find_checkpoints
from asr.features.front_end import FrontEnd
from asr.models.layers import Net
from asr.models.speech_model import build_model, require_memory
from asr.system.run_config import RunConfig
from asr.system.system import System, load_any_system
from asr.train.distributed import Process, broadcast_from_main
from asr.train.run_tokenizer import load_or_train_tokenizer, read_tokenizer_texts, report_unknown_tokens
from asr.train.start_from import inherit_run, inherit_settings, load_source


def find_last_checkpoint(config: RunConfig, process: Process) -> Path | None:
    """Find the checkpoint to resume from; the main process decides, so that all use the same one."""
    checkpoints = find_checkpoints(Path(config.output_dir))
    return broadcast_from_main(lambda: checkpoints[-1] if checkpoints else None, process)


def prepare_system(config: RunConfig, process: Process) -> System[Net]:
    """Load the system of the last checkpoint, or build one from `start_from` or with random weights."""
    last = find_last_checkpoint(config, process)
    if last is not None:
        system = load_any_system(last, to_train=True)
        report = partial(report_unknown_tokens, config, system.tokenizer, read_tokenizer_texts(config))
        broadcast_from_main(report, process)
        return replace(system, config=inherit_settings(config, system.config.model))
    tokenizer = broadcast_from_main(partial(load_or_train_tokenizer, config), process)
    if config.start_from is not None:
        return inherit_run(config, tokenizer, load_source(config.start_from))
    front_end = FrontEnd(config.features)
    require_memory(config.model, front_end.num_features, len(tokenizer))
    model = build_model(config.model, front_end.num_features, len(tokenizer))
    return System(config, tokenizer, front_end, model)
