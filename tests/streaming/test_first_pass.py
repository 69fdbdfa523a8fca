"""Tokens chunk by chunk equal the tokens of the whole, at the same steps and as likely, whatever the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from transducer_examples import DURATIONS, build_transducer, encode, score_steps

from asr.decoding.hypothesis import find_best_paths
from asr.models.speech_model import SpeechModel
from asr.streaming.first_pass import FIRST_PASSES, Emission, ReadState
from asr.transducer.label_looping import GreedySearch
from asr.transducer.transducer_decoder import TransducerDecoder

LENGTH = 23


@torch.inference_mode()
def read(name: str, model: SpeechModel, encoded_BTD: Tensor, size: int, apart: int) -> list[list[Emission]]:
    """All rows by chunks of so many steps; each row begins so many chunks after the one before."""
    found: list[list[Emission]] = [[] for _ in encoded_BTD]
    states = [ReadState() for _ in encoded_BTD]
    for turn in range(-(-LENGTH // size) + apart * len(encoded_BTD)):
        firsts = [size * (turn - apart * row) for row in range(len(encoded_BTD))]
        rows = [row for row, first in enumerate(firsts) if 0 <= first < LENGTH]
        if not rows:
            continue
        chunks = [encoded_BTD[row, firsts[row] : firsts[row] + size] for row in rows]
        lengths_B = torch.tensor([*map(len, chunks)])
        padded_BTD = torch.nn.utils.rnn.pad_sequence(chunks, batch_first=True, padding_value=7.0)
        results = FIRST_PASSES[name](model, padded_BTD, lengths_B, [states[row] for row in rows])
        for row, (emissions, state) in zip(rows, results, strict=True):
            found[row] += emissions
            states[row] = state
    assert [state.num_steps for state in states] == [LENGTH] * len(states)
    return found


def without_scores(rows: Sequence[Sequence[Emission]]) -> list[list[tuple[int, int]]]:
    return [[(emission.token, emission.step) for emission in row] for row in rows]


@given(size=st.integers(1, LENGTH), apart=st.integers(0, 2), seed=st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_the_best_path_of_ctc(size: int, apart: int, seed: int) -> None:
    model = build_transducer(seed=seed)
    assert model.ctc_head is not None
    torch.nn.init.normal_(model.ctc_head.weight, std=2.0)
    encoded_BTD, lengths_B = encode(model, [LENGTH] * 3, seed)
    with torch.inference_mode():
        paths = find_best_paths(model.ctc_log_probabilities(encoded_BTD), lengths_B)
    columns = (paths.texts(), paths.steps_BU.tolist())
    expected = [[*zip(tokens, steps, strict=False)] for tokens, steps in zip(*columns, strict=True)]
    assert any(expected)
    assert without_scores(read("ctc", model, encoded_BTD, size, apart)) == expected


@pytest.mark.parametrize("predictor", ["stateless", "lstm"])
@pytest.mark.parametrize("durations", [(), DURATIONS], ids=["rnnt", "tdt"])
@given(size=st.integers(1, LENGTH), apart=st.integers(0, 2), seed=st.integers(0, 9))
@settings(max_examples=10, deadline=None)
def test_the_greedy_search_of_a_transducer(
    predictor: str, durations: tuple[int, ...], size: int, apart: int, seed: int
) -> None:
    model = build_transducer(predictor, seed, durations=durations)
    encoded_BTD, lengths_B = encode(model, [LENGTH] * 3, seed)
    assert isinstance(model.decoder, TransducerDecoder)
    with torch.inference_mode():
        search = GreedySearch(model.decoder, 3, lengths_B.device)
        search.read(model.decoder.prepare_steps(encoded_BTD), lengths_B)
    columns = search.finish()
    expected = [[*zip(text.tokens, steps, strict=True)] for text, steps in zip(*columns, strict=True)]
    assert any(expected)
    found = read("transducer", model, encoded_BTD, size, apart)
    assert without_scores(found) == expected
    row = max(found, key=len)
    text = tuple(emission.token for emission in row)
    for number, (token, step, score) in enumerate(row):
        encoded_E = encoded_BTD[found.index(row), step]
        probability = score_steps(model, encoded_E, text[:number])[0][token]
        assert math.exp(score) == pytest.approx(probability, rel=1e-4)
