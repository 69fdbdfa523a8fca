"""A model folder with random weights that talks a lot, for tests of what stands around a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from asr.config import build_config
from asr.features.front_end import FrontEnd
from asr.models.speech_model import build_model
from asr.system.checkpoint import save_checkpoint
from asr.system.run_config import RunConfig
from asr.system.system import System
from asr.text.tokenizer import EOS_ID, UNK_ID, Tokenizer

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]

OVERRIDES = [
    *("output_dir=run", "data.train=train.jsonl", "data.dev=dev.jsonl"),
    *("features.num_mels=20", "features.cmvn=none", "tokenizer.type=words"),
    *(
        f"model.encoder.{setting}"
        for setting in ("type=transformer", "dim=32", "num_layers=1", "num_heads=2")
    ),
    *("model.encoder.feed_forward_dim=32", "model.encoder.subsampling.channels=4"),
]
DECODER = [
    *(
        f"model.decoder.{setting}"
        for setting in ("type=transformer", "dim=32", "num_layers=1", "num_heads=2")
    ),
    "model.decoder.feed_forward_dim=32",
]


def save_talker(
    folder: Path,
    *overrides: str,
    sharpness: float = 1.0,
    decoder: bool = True,
    seed: int = 0,
    words: Sequence[str] = WORDS,
) -> Path:
    """Says random words, which depend on the audio; the more sharpness, the surer it is."""
    head = DECODER if decoder else ["model.ctc_weight=1.0"]
    config = build_config(RunConfig, [*OVERRIDES, *head, *overrides])
    torch.manual_seed(seed)
    tokenizer = Tokenizer.train(config.tokenizer, words)
    front_end = FrontEnd(config.features)
    model = build_model(config.model, front_end.num_features, len(tokenizer)).eval()
    for layer in (model.ctc_head, model.decoder and model.decoder.output):
        if layer is not None:
            torch.nn.init.normal_(layer.weight, std=sharpness)
            torch.nn.init.constant_(layer.bias[UNK_ID], -100.0)
    if model.decoder is not None:
        torch.nn.init.constant_(model.decoder.output.bias[EOS_ID], 3 * sharpness)
    save_checkpoint(folder, System(config, tokenizer, front_end, model), {"step": 0})
    return folder
