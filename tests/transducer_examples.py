"""Tiny transducers of random weights, and their distributions by one step and text at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from decoding_examples import TOKENS, random_encoded
from model_examples import NUM_FEATURES, VOCAB_SIZE
from torch import Tensor

from asr.language_models.fusion import Columns, RowModel
from asr.models.speech_model import SpeechModel, SpeechModelConfig, build_model
from asr.text.tokenizer import BLANK_ID, SOS_ID
from asr.transducer.lattice import Arc
from asr.transducer.transducer_decoder import TransducerDecoder

SAYABLE = TOKENS
DURATIONS = (0, 1, 2, 3, 4)
Text = tuple[int, ...]
Node = tuple[int, int, int]  # kind of arc, step, tokens so far
TREE: dict[str, Any] = {
    "encoder": {"type": "lstm", "dim": 8, "num_layers": 1, "subsampling": {"factor": 4, "channels": 4}}
}


def list_paths(arcs: tuple[Arc, ...], length: int, count: int) -> Iterator[list[Node]]:
    """All ways from (0, 0) to (length, count), whose last arc emits nothing."""

    def go_on(step: int, tokens: int, path: list[Node]) -> Iterator[list[Node]]:
        if (step, tokens) == (length, count):
            yield path
        if step >= length:
            return
        for number, arc in enumerate(arcs):
            after = step + arc.steps
            if tokens + arc.tokens <= count and after <= length - arc.tokens:
                yield from go_on(after, tokens + arc.tokens, [*path, (number, step, tokens)])

    return go_on(0, 0, [])


def build_transducer(
    predictor: str = "stateless", seed: int = 0, blank: float = 1.0, **decoder: Any
) -> SpeechModel:
    """Lively random weights, with a bias for blank."""
    tree = {"type": "transducer", "predictor": predictor, "dim": 8, **decoder}
    torch.manual_seed(seed)
    config = SpeechModelConfig.model_validate({**TREE, "decoder": tree})
    model = build_model(config, NUM_FEATURES, VOCAB_SIZE).eval()
    assert isinstance(model, SpeechModel) and isinstance(model.decoder, TransducerDecoder)
    torch.nn.init.normal_(model.decoder.output.weight, std=1.5)
    with torch.no_grad():
        model.decoder.output.bias[BLANK_ID] += blank
    return model


def encode(model: SpeechModel, lengths: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    return random_encoded(model, lengths, seed)


def score_steps(model: SpeechModel, encoded_E: Tensor, text: Text) -> tuple[list[float], list[float]]:
    """Probabilities of blank and tokens, and of durations, at an encoded step after a text, read as a whole."""
    decoder = model.decoder
    assert isinstance(decoder, TransducerDecoder)
    tokens = torch.tensor([[SOS_ID, *text]])
    predicted_1UD, _ = decoder.predictor(tokens, decoder.predictor.start(1, tokens.device))
    hidden_D = torch.tanh(
        decoder.project_encoded(encoded_E) + decoder.project_predicted(predicted_1UD[0, -1])
    )
    scores = decoder.output(hidden_D).double()
    return scores[:VOCAB_SIZE].softmax(-1).tolist(), scores[VOCAB_SIZE:].softmax(-1).tolist()


class TableModel(RowModel):
    """`BigramModel`, as a model that keeps a number for each row: its last token."""

    def __init__(self, scores_VV: Tensor) -> None:
        self.scores_VV = scores_VV

    def step(self, columns: Columns | None, tokens_R: Tensor) -> tuple[Columns, Tensor]:
        return (tokens_R,), self.scores_VV[tokens_R]
