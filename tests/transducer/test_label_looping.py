"""asr/transducer/label_looping: the texts of a plain loop over steps and tokens, in any batch and in any chunks."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from transducer_examples import DURATIONS, SAYABLE, build_transducer, encode, score_steps

from asr.decoding.hypothesis import Hypothesis
from asr.models.speech_model import SpeechModel
from asr.text.tokenizer import BLANK_ID
from asr.transducer import label_looping
from asr.transducer.label_looping import GreedySearch
from asr.transducer.transducer_decoder import TransducerDecoder

LENGTHS = [13, 1, 7, 10]
KINDS = [("stateless", ()), ("lstm", ()), ("stateless", DURATIONS), ("lstm", (0, 1, 3))]
every_kind = pytest.mark.parametrize(("predictor", "durations"), KINDS)


def decode_plainly(model: SpeechModel, encoded_TE: Tensor) -> tuple[list[int], list[int], float]:
    """Tokens, the steps at which they are emitted, and the log-probability of that path."""
    decoder = model.decoder
    assert isinstance(decoder, TransducerDecoder)
    text: list[int] = []
    steps: list[int] = []
    step, at_step, total = 0, 0, 0.0
    while step < len(encoded_TE):
        by_token, by_duration = score_steps(model, encoded_TE[step], tuple(text))
        token = max([BLANK_ID, *SAYABLE], key=lambda one: by_token[one])
        total += math.log(by_token[token])
        go_on = int(token == BLANK_ID)
        if by_duration:
            place = max(range(len(by_duration)), key=lambda one: by_duration[one])
            total += math.log(by_duration[place])
            go_on = max(go_on, decoder.durations[place])
        if token != BLANK_ID:
            text.append(token)
            steps.append(step)
            at_step += 1
            go_on = max(go_on, int(at_step >= label_looping.MAX_TOKENS_AT_STEP))
        step, at_step = step + go_on, 0 if go_on else at_step
    return text, steps, total


def search(
    model: SpeechModel, encoded_BTE: Tensor, lengths_B: Tensor, chunks: list[int] | None = None
) -> tuple[list[Hypothesis], list[list[int]]]:
    """By the greedy search, chunk by chunk."""
    assert isinstance(model.decoder, TransducerDecoder)
    greedy = GreedySearch(model.decoder, len(lengths_B), lengths_B.device)
    steps_BTD, first = model.decoder.prepare_steps(encoded_BTE), 0
    for size in chunks or [steps_BTD.size(1)]:
        sizes_B = (lengths_B - first).clamp(0, size)
        greedy.read(steps_BTD[:, first : first + size], sizes_B)
        first += size
    return greedy.finish()


@every_kind
@pytest.mark.parametrize("blank", [-1.0, 3.0, -100.0])
@torch.inference_mode()
def test_it_equals_a_plain_loop(predictor: str, durations: tuple[int, ...], blank: float) -> None:
    """For hasty and for sparing decoders, and for one that never says blank."""
    model = build_transducer(predictor, blank=blank, durations=durations)
    encoded_BTE, lengths_B = encode(model, LENGTHS)
    texts, all_steps = search(model, encoded_BTE, lengths_B)
    for row, length in enumerate(LENGTHS):
        tokens, steps, total = decode_plainly(model, encoded_BTE[row, :length])
        assert list(texts[row].tokens) == tokens and all_steps[row] == steps
        assert texts[row].score == texts[row].log_probability == pytest.approx(total, abs=1e-3)


@every_kind
@given(chunks=st.lists(st.integers(1, 6), min_size=13, max_size=13), seed=st.integers(0, 9))
@settings(max_examples=10)
@torch.inference_mode()
def test_chunks_give_the_text_of_the_whole(
    predictor: str, durations: tuple[int, ...], chunks: list[int], seed: int
) -> None:
    model = build_transducer(predictor, seed=seed, durations=durations)
    encoded = encode(model, LENGTHS, seed)
    (texts, all_steps), (whole, whole_steps) = search(model, *encoded, chunks), search(model, *encoded)
    assert [one.tokens for one in texts] == [one.tokens for one in whole] and all_steps == whole_steps
    assert [one.score for one in texts] == pytest.approx([one.score for one in whole], abs=1e-4)


@torch.inference_mode()
def test_the_predictor_runs_once_for_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_transducer(blank=6.0)
    assert isinstance(model.decoder, TransducerDecoder)
    calls = []
    predict = model.decoder.predict
    monkeypatch.setattr(model.decoder, "predict", lambda *inputs: calls.append(1) or predict(*inputs))
    texts, _ = search(model, *encode(model, [40] * 6))
    counts = [len(text.tokens) for text in texts]
    assert len(calls) == 1 + max(counts) < sum(counts)
