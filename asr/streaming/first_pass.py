"""The first pass of live transcription: tokens as soon as the chunk is encoded in which they are spoken.

What was read stays: no token changes when later chunks come. All sessions whose chunks are encoded together
are read together, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asr.decoding.timestamps import pad_tokens
from asr.models.speech_model import SpeechModel
from asr.text.tokenizer import BLANK_ID

# B sessions, T encoded steps, U tokens, D dimension of the encoder or of the joint network


class Emission(NamedTuple):
    """A token, the step of the segment at which it was emitted, and its log-probability there."""

    token: int
    step: int
    log_probability: float


class ReadState(NamedTuple):
    """Place of a session in its segment, after the steps that were read."""

    num_steps: int = 0
    last: int = BLANK_ID  # token of the last step, which CTC may repeat
    search: tuple[Tensor, ...] = ()  # its row in the greedy search of a transducer; empty at first


Read = tuple[list[Emission], ReadState]


def read_by_ctc(
    model: SpeechModel, encoded_BTD: Tensor, lengths_B: Tensor, states: Sequence[ReadState]
) -> list[Read]:
    """Follow the best path of the CTC head."""
    best_BT, tokens_BT = model.ctc_log_probabilities(encoded_BTD).max(-1)
    columns = (tokens_BT.tolist(), best_BT.tolist(), lengths_B.tolist(), states)
    found: list[Read] = []
    for tokens, values, length, state in zip(*columns, strict=True):
        path = [state.last, *tokens[:length]]
        emissions = [
            Emission(token, state.num_steps + place, values[place])
            for place, (before, token) in enumerate(itertools.pairwise(path))
            if token not in (BLANK_ID, before)
        ]
        found.append((emissions, ReadState(state.num_steps + length, path[-1])))
    return found


def read_by_transducer(
    model: SpeechModel, encoded_BTD: Tensor, lengths_B: Tensor, states: Sequence[ReadState]
) -> list[Read]:
    """Go on with the greedy search of a transducer."""
    from asr.transducer.label_looping import GreedySearch

    decoder: Any = model.decoder
    search = GreedySearch(decoder, len(states), lengths_B.device)
    for row, state in enumerate(states):
        parts = (search.next_B, search.num_at_step_B, search.predicted_BD, *search.state)
        for column, part in zip(parts, state.search, strict=bool(state.search)):
            column[row] = part
    predicted_BD, predictor = search.predicted_BD.clone(), tuple(part.clone() for part in search.state)
    steps_BTD = decoder.prepare_steps(encoded_BTD)
    search.read(steps_BTD, lengths_B)
    texts, places = search.finish()
    # The log-probability of each new token, given those before it, where it was emitted; and one more for
    # nothing, which all sessions have.
    rows = [(*text.tokens, BLANK_ID) for text in texts], [(*own, 0) for own in places]
    tokens_BU, places_BU = (pad_tokens(part)[0].to(lengths_B.device) for part in rows)
    after_BUD, _ = decoder.predict(tokens_BU, predictor)
    predicted_BUD = torch.cat([predicted_BD[:, None], after_BUD], dim=1)[:, :-1]
    places_BU = places_BU.clamp(max=steps_BTD.size(1) - 1)  # in the padding
    emitting_BUD = steps_BTD.gather(1, places_BU[..., None].expand(-1, -1, steps_BTD.size(2)))
    scores_BUV, _ = decoder.score(emitting_BUD, predicted_BUD)
    scores_BU = scores_BUV.gather(2, tokens_BU[..., None])[..., 0]
    after = zip(search.next_B, search.num_at_step_B, search.predicted_BD, *search.state, strict=True)
    found: list[Read] = []
    columns = (states, texts, places, scores_BU.tolist(), lengths_B.tolist(), after)
    for state, text, own, values, length, parts in zip(*columns, strict=True):
        emitted = zip(text.tokens, own, values, strict=False)
        emissions = [Emission(token, state.num_steps + place, value) for token, place, value in emitted]
        found.append((emissions, ReadState(state.num_steps + length, search=parts)))
    return found


FIRST_PASSES = {"ctc": read_by_ctc, "transducer": read_by_transducer}
