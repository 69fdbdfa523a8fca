"""Tiny models of every kind, as a table, and random utterances for them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence, Set
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from asr.models.speech_model import SpeechModel, SpeechModelConfig, build_model
from asr.research.non_autoregressive import NonAutoregressiveDecoderConfig
from asr.text.tokenizer import PAD_ID, SPECIAL_TOKENS

# B batch, T frames, F features, U tokens

NUM_FEATURES = 20
NUM_SPECIAL = len(SPECIAL_TOKENS)
VOCAB_SIZE = NUM_SPECIAL + 8

_SIZE = {"dim": 32, "num_layers": 2, "num_heads": 4, "feed_forward_dim": 64, "dropout": 0.0}
_ONE_LAYER = _SIZE | {"num_layers": 1}
_CONV2D = {"factor": 4, "channels": 4}
_CONV2D_BY_2 = {"factor": 2, "channels": 4}
_TRANSFORMER = {"type": "transformer", **_ONE_LAYER, "subsampling": _CONV2D}
_LSTM = {"type": "lstm", "dim": 24, "num_layers": 1, "dropout": 0.0, "subsampling": _CONV2D}
_DECODER = {"type": "transformer", **_ONE_LAYER}

# Together they use every type and almost every option of a section.
_TREES: dict[str, dict[str, Any]] = {
    "transformer-ctc": {"encoder": _TRANSFORMER | {"num_layers": 2}, "ctc_weight": 1.0},
    "transformer-attention": {
        "encoder": _TRANSFORMER | {"num_layers": 2},
        "decoder": _DECODER | {"num_layers": 2},
        "ctc_weight": 0.0,
        "guided_attention": {"loss": {}},
    },
    "transformer-hybrid": {
        "encoder": _TRANSFORMER | {"num_layers": 2, "subsampling": _CONV2D_BY_2},
        "decoder": _DECODER | {"dim": 24},
        "guided_attention": {"loss": {}},
    },
    "transformer-monotonic": {
        "encoder": _TRANSFORMER,
        "decoder": _DECODER | {"positions": "rotary", "window": 3},
        "guided_attention": {"window": {"follows": "itself", "width": 1.5}},
    },
    "transformer-window": {
        "encoder": _TRANSFORMER | {"num_layers": 2, "dropout": 0.05, "window": [5, 3], "positions": "rotary"},
        "ctc_weight": 1.0,
    },
    "conformer-hybrid": {
        "encoder": {
            **(_ONE_LAYER | {"type": "conformer", "dropout": 0.05, "kernel": 7, "window": [8, 8]}),
            "subsampling": _CONV2D,
            "positions": "none",
        },
        "decoder": _DECODER | {"positions": "rotary", "window": 3},
        "guided_attention": {"loss": {"half_life": 100}},
    },
    "lstm-ctc": {"encoder": _LSTM | {"num_layers": 2}, "ctc_weight": 1.0},
    "lstm-hybrid": {"encoder": _LSTM | {"dropout": 0.05}, "decoder": _DECODER},
    "intra-attention-ctc": {"encoder": _LSTM | {"type": "intra_attention"}, "ctc_weight": 1.0},
    "attention-additive": {
        "encoder": _LSTM,
        "decoder": {"type": "attention", "dim": 32, "dropout": 0.0},
        "ctc_weight": 0.0,
        "guided_attention": {"loss": {}},
    },
    "attention-location": {
        "encoder": _TRANSFORMER,
        "decoder": {
            **{"type": "attention", "dim": 24, "num_layers": 2, "dropout": 0.05},
            "attention": {"location": 5},
        },
        "guided_attention": {"loss": {}},
    },
    "intra-attention-decoder": {
        "encoder": _LSTM,
        "decoder": {
            **{"type": "intra_attention", "dim": 24, "num_layers": 1, "dropout": 0.05},
            "attention": {"score": "scaled_dot"},
        },
        "guided_attention": {"window": {"follows": "itself"}},
    },
    "single-summary": {
        "encoder": _LSTM,
        "decoder": {"type": "single_summary", "dim": 32, "num_layers": 2, "dropout": 0.0},
        "ctc_weight": 0.0,
    },
    "single-summary-hybrid": {
        "encoder": _TRANSFORMER,
        "decoder": {"type": "single_summary", "dim": 48, "dropout": 0.0},
    },
    "parallel-length": {
        "encoder": _TRANSFORMER,
        "decoder": {"type": "parallel_length", **_SIZE},
        "ctc_weight": 0.0,
        "guided_attention": {"loss": {}},
    },
    "mask-ctc": {
        "encoder": _LSTM,
        "decoder": {"type": "mask_ctc", **_SIZE},
        "guided_attention": {"loss": {}},
    },
}

SYSTEMS = {name: SpeechModelConfig.model_validate_json(json.dumps(tree)) for name, tree in _TREES.items()}
PARALLEL = [
    name for name, config in SYSTEMS.items() if isinstance(config.decoder, NonAutoregressiveDecoderConfig)
]  # their decoders say all tokens at once
WITH_DECODER = [
    name for name, config in SYSTEMS.items() if config.decoder is not None and name not in PARALLEL
]  # which says token after token
ATTENDING = [name for name in WITH_DECODER if SYSTEMS[name].decoder.cross_attention != (0, 0)]
MONOTONIC = ["transformer-monotonic", "intra-attention-decoder"]  # whose decoder has a window of its own

# Of each kind of system the fast tests take one or two; these are their relatives.
RELATIVES = {"lstm-hybrid", "attention-location", "single-summary-hybrid"}


def mark_relatives(names: Iterable[str], slow_too: Set[str] = frozenset()) -> list[Any]:
    """Parameters of a test; the relatives are marked slow."""
    return [
        pytest.param(name, marks=pytest.mark.slow if name in RELATIVES | slow_too else ()) for name in names
    ]


every_system = pytest.mark.parametrize("name", mark_relatives(SYSTEMS))
every_decoder = pytest.mark.parametrize("name", mark_relatives(WITH_DECODER))
every_non_autoregressive = pytest.mark.parametrize("name", mark_relatives(PARALLEL))
every_attending_decoder = pytest.mark.parametrize("name", mark_relatives(ATTENDING))


def build_example(name: str) -> SpeechModel:
    """Return the model of that name, always with the same weights, in evaluation mode."""
    torch.manual_seed(0)
    return build_model(SYSTEMS[name], NUM_FEATURES, VOCAB_SIZE).eval()


class Utterances(NamedTuple):
    """A padded batch: the arguments of a model, in their order."""

    features_BTF: Tensor
    feature_lengths_B: Tensor
    tokens_BU: Tensor
    token_lengths_B: Tensor

    def alone(self, row: int) -> Utterances:
        """Return one utterance without padding."""
        num_frames, num_tokens = int(self.feature_lengths_B[row]), int(self.token_lengths_B[row])
        one = slice(row, row + 1)
        return Utterances(
            self.features_BTF[one, :num_frames],
            self.feature_lengths_B[one],
            self.tokens_BU[one, :num_tokens],
            self.token_lengths_B[one],
        )

    def references(self) -> list[list[int]]:
        return [
            tokens[:length].tolist()
            for tokens, length in zip(self.tokens_BU, self.token_lengths_B.tolist(), strict=True)
        ]


def make_utterances(
    feature_lengths: Sequence[int], token_lengths: Sequence[int], padding: float = 0.0, seed: int = 0
) -> Utterances:
    """Noise as features, any ordinary tokens as text; `padding` fills the features beyond the lengths."""
    random = torch.Generator().manual_seed(seed)
    frames_B, counts_B = torch.tensor(feature_lengths), torch.tensor(token_lengths)
    features_BTF = torch.randn(len(frames_B), max(feature_lengths), NUM_FEATURES, generator=random)
    tokens_BU = torch.randint(NUM_SPECIAL, VOCAB_SIZE, (len(counts_B), max(token_lengths)), generator=random)
    is_frame_BT = torch.arange(max(feature_lengths)) < frames_B[:, None]
    is_token_BU = torch.arange(max(token_lengths)) < counts_B[:, None]
    return Utterances(
        features_BTF.masked_fill(~is_frame_BT[..., None], padding),
        frames_B,
        tokens_BU.masked_fill(~is_token_BU, PAD_ID),
        counts_B,
    )
