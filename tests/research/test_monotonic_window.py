"""The learned monotonic window: positions sum over all paths, token by token and all at once."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from model_examples import VOCAB_SIZE, build_example

from asr.models.guided_attention import WINDOW_FLOOR
from asr.models.speech_model import SpeechModel
from asr.research.monotonic_window import PositionTrackingDecoder
from asr.text.tokenizer import SOS_ID

# B utterances, R rows of beams, U tokens, T encoded steps


def build_tracking(
    name: str = "transformer-monotonic", seed: int = 0
) -> tuple[SpeechModel, PositionTrackingDecoder]:
    """A model that is sure of its position, unlike an untrained one."""
    model = build_example(name)
    assert isinstance(model.decoder, PositionTrackingDecoder)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model.decoder.query.weight.normal_(std=3, generator=random)
        model.decoder.move.normal_(generator=random)
    return model, model.decoder


def sum_paths(decoder: PositionTrackingDecoder, scores_UT: torch.Tensor) -> list[float]:
    """The position of the last of U tokens, by enumerating the positions of all tokens."""
    num_tokens, num_steps = scores_UT.shape
    moves = decoder.move.softmax(0).tolist()
    weights = [0.0] * num_steps
    for path in itertools.product(range(num_steps), repeat=num_tokens):
        weight, last = 1.0, 0
        for token, place in enumerate(path):
            distance = place - last
            weight *= (moves[distance] if 0 <= distance < len(moves) else 0.0) + WINDOW_FLOOR
            weight *= math.exp(scores_UT[token, place])
            last = place
        weights[path[-1]] += weight
    return [weight / sum(weights) for weight in weights]


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 4))
@settings(max_examples=25)
@torch.no_grad()
def test_the_window_equals_the_sum_over_all_paths(seed: int, num_steps: int, num_tokens: int) -> None:
    _, decoder = build_tracking(seed=seed)
    random = torch.Generator().manual_seed(seed)
    encoded_BTL = torch.randn(1, num_steps, decoder.key.in_features, generator=random)
    tokens_RU = torch.randint(VOCAB_SIZE, (1, num_tokens), generator=random)
    bias_RUT = torch.randn(1, num_tokens, num_steps, generator=random)
    state = decoder.start(encoded_BTL, torch.tensor([num_steps]))
    window_UT = decoder.compute_bias(tokens_RU, state, bias_RUT)[0]
    query_UK, key_TK = decoder.query(tokens_RU)[0], decoder.key(encoded_BTL)[0]
    scores_UT = query_UK @ key_TK.T / math.sqrt(key_TK.size(1)) + bias_RUT[0]
    for count in range(1, num_tokens + 1):
        places = sum_paths(decoder, scores_UT[:count])
        expected = [
            math.log(
                WINDOW_FLOOR + sum(p * math.exp(-((t - s) ** 2) / 2 / 1.5**2) for s, p in enumerate(places))
            )
            for t in range(num_steps)
        ]
        assert window_UT[count - 1].tolist() == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("bias", "expected"), [(17.0, 1), (20.0, 9)])  # log of the floor: -18.4
@torch.no_grad()
def test_a_position_out_of_reach_needs_strong_evidence(bias: float, expected: int) -> None:
    _, decoder = build_tracking()
    decoder.query.weight.zero_()
    decoder.move.fill_(-1e4)
    decoder.move[1] = 0
    state = decoder.start(torch.zeros(1, 12, decoder.key.in_features), torch.tensor([12]))
    bias_RUT = bias * (torch.arange(12) == 9)[None, None]
    assert decoder.compute_bias(torch.tensor([[SOS_ID]]), state, bias_RUT).argmax() == expected


def test_a_token_moves_by_fewer_than_64_steps() -> None:
    _, decoder = build_tracking()
    state = decoder.start(torch.zeros(1, 80, decoder.key.in_features), torch.tensor([80]))
    assert (state.move_TT > 0).sum(1).tolist() == [64] * 17 + list(range(63, 0, -1))
