"""The first pass of live transcription: tokens as soon as the chunk is encoded in which they are spoken.

What was read stays: no token changes when later chunks come. All sessions whose chunks are encoded together
are read together, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from asr.decoding.timestamps import pad_tokens
from asr.models.speech_model import SpeechModel
from asr.text.tokenizer import BLANK_ID

if TYPE_CHECKING:
    from asr.transducer.label_looping import GreedySearch

# B sessions, T encoded steps, U tokens, D dimension of the encoder or of the joint network


class Emission(NamedTuple):
    """A token, the step of the segment at which it was emitted, and its log-probability there."""

    token: int
    step: int
    log_probability: float


class ReadState(NamedTuple):
    """Place of a session in its segment, after the steps that were read."""

    num_steps: int = 0
    last: int = BLANK_ID
    """Token of the last step, which CTC may repeat."""
    search: tuple[Tensor, ...] = ()
    """Row of the session in the greedy search of a transducer; empty before the first step."""


Read = tuple[list[Emission], ReadState]


FirstPass = Callable[[Tensor, Tensor, Sequence[ReadState]], list[Read]]
"""Reads the next steps of each session."""


class CtcFirstPass:
    """The best path of the CTC head."""

    def __init__(self, model: SpeechModel) -> None:
        self._model = model

    def __call__(self, encoded_BTD: Tensor, lengths_B: Tensor, states: Sequence[ReadState]) -> list[Read]:
        best_BT, tokens_BT = self._model.ctc_log_probabilities(encoded_BTD).max(-1)
        columns = (tokens_BT.tolist(), best_BT.tolist(), lengths_B.tolist(), states)
        found: list[Read] = []
        for tokens, values, length, state in zip(*columns, strict=True):
            path = tokens[:length]
            emissions = [
                Emission(token, state.num_steps + place, values[place])
                for place, (before, token) in enumerate(itertools.pairwise([state.last, *path]))
                if token not in (BLANK_ID, before)
            ]
            last = path[-1] if path else state.last
            found.append((emissions, ReadState(state.num_steps + length, last)))
        return found


class TransducerFirstPass:
    """The greedy search of a transducer, which goes on from chunk to chunk."""

    def __init__(self, model: SpeechModel) -> None:
        self._decoder: Any = model.decoder

    def __call__(self, encoded_BTD: Tensor, lengths_B: Tensor, states: Sequence[ReadState]) -> list[Read]:
        steps_BTD = self._decoder.prepare_steps(encoded_BTD)
        search = self._resume(states, lengths_B.device)
        predicted_BD, state = search.predicted_BD.clone(), tuple(part.clone() for part in search.state)
        search.read(steps_BTD, lengths_B)
        texts, places = search.finish()
        scores = self._score([text.tokens for text in texts], places, steps_BTD, predicted_BD, state)
        found: list[Read] = []
        for row, (before, text, own, values) in enumerate(zip(states, texts, places, scores, strict=True)):
            emitted = zip(text.tokens, own, values, strict=True)
            emissions = [Emission(token, before.num_steps + place, value) for token, place, value in emitted]
            columns = (search.next_B, search.num_at_step_B, search.predicted_BD, *search.state)
            after = tuple(column[row] for column in columns)
            found.append((emissions, ReadState(before.num_steps + int(lengths_B[row]), search=after)))
        return found

    def _resume(self, states: Sequence[ReadState], device: torch.device) -> GreedySearch:
        from asr.transducer.label_looping import GreedySearch

        search = GreedySearch(self._decoder, len(states), device)
        columns = [search.next_B, search.num_at_step_B, search.predicted_BD, *search.state]
        for row, state in enumerate(states):
            for column, part in zip(columns, state.search, strict=bool(state.search)):
                column[row] = part
        return search

    def _score(
        self,
        texts: Sequence[Sequence[int]],
        places: Sequence[Sequence[int]],
        steps_BTD: Tensor,
        predicted_BD: Tensor,
        state: tuple[Tensor, ...],
    ) -> list[list[float]]:
        """Log-probability of each new token where it was emitted."""
        if not any(texts):
            return [[] for _ in texts]
        tokens_BU, places_BU = (pad_tokens(rows)[0].to(steps_BTD.device) for rows in (texts, places))
        after_BUD, _ = self._decoder.predict(tokens_BU, state)
        predicted_BUD = torch.cat([predicted_BD[:, None], after_BUD[:, :-1]], dim=1)
        emitting_BUD = steps_BTD.gather(1, places_BU[..., None].expand(-1, -1, steps_BTD.size(2)))
        scores_BUV, _ = self._decoder.score(emitting_BUD, predicted_BUD)
        scores_BU = scores_BUV.gather(2, tokens_BU[..., None])[..., 0]
        return [row[: len(text)] for row, text in zip(scores_BU.tolist(), texts, strict=True)]


FIRST_PASSES: dict[str, Callable[[SpeechModel], FirstPass]] = {
    "ctc": CtcFirstPass,
    "transducer": TransducerFirstPass,
}
