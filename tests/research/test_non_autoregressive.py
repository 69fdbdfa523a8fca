"""asr/research/non_autoregressive: length predictor, gaps and losses compared with loops; attention."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from model_examples import NUM_FEATURES, SYSTEMS, VOCAB_SIZE, build_example, every_non_autoregressive
from torch import Tensor

from asr.models.decoders import TeacherForcing
from asr.models.losses import Targets
from asr.models.speech_model import SpeechModel, SpeechModelConfig, build_model
from asr.research import non_autoregressive as module
from asr.research.non_autoregressive import LengthDecoder, LengthPredictor, MaskDecoder, draw_gaps

# B utterances, T encoded steps, U tokens or queries, N tokens and the end, V vocabulary

SMOOTHING = 0.1
FORCING = TeacherForcing(SMOOTHING)
TARGETS = Targets(
    torch.tensor([[5, 6, 7, 8], [9, 5, 1, 1], [1, 1, 1, 1], [7, 7, 7, 1]]), torch.tensor([4, 2, 0, 3])
)


def build(name: str, **decoder: Any) -> SpeechModel:
    tree = json.loads(SYSTEMS[name].model_dump_json())
    tree["decoder"] |= decoder
    torch.manual_seed(0)
    return build_model(
        SpeechModelConfig.model_validate_json(json.dumps(tree)), NUM_FEATURES, VOCAB_SIZE
    ).eval()


def encode(model: SpeechModel, lengths: tuple[int, ...] = (11, 6, 9, 4)) -> tuple[Tensor, Tensor]:
    """Random encoded steps, with garbage in the padding."""
    lengths_B = torch.tensor(lengths)
    encoded_BTD = torch.randn(
        len(lengths), max(lengths), model.encoder.output_dim, generator=torch.Generator().manual_seed(1)
    )
    is_step_BT = torch.arange(max(lengths)) < lengths_B[:, None]
    return encoded_BTD.masked_fill(~is_step_BT[..., None], 50.0), lengths_B


def smoothed_loss(scores_V: Tensor, target: int) -> float:
    """The definition, in float64."""
    log_probabilities = scores_V.double().log_softmax(-1).tolist()
    spread = sum(log_probabilities) / len(log_probabilities)
    return -(1 - SMOOTHING) * log_probabilities[target] - SMOOTHING * spread


# --- the length ---------------------------------------------------------------------------------


@given(mean=st.floats(0, 300), log_scale=st.floats(-3, 3))
def test_length_predictor_is_a_distribution(mean: float, log_scale: float) -> None:
    """It sums to 1 over all integers, and equals differences of sigmoids."""
    predictor = LengthPredictor(4).double()
    with torch.no_grad():
        predictor.log_scale.fill_(log_scale)
        counts = torch.arange(-1000, 1400).double()
        chances = predictor.log_probability(counts, torch.tensor(mean, dtype=torch.float64)).exp()
        edges = torch.tensor(
            [(count - 0.5 - mean) / math.exp(log_scale) for count in range(-1000, 1401)], dtype=torch.float64
        )
    assert chances.sum().item() == pytest.approx(1, abs=1e-9)
    torch.testing.assert_close(chances, edges.sigmoid().diff(), rtol=0, atol=1e-12)


def test_a_length_far_off_still_has_a_gradient() -> None:
    predictor = LengthPredictor(4)
    means = torch.tensor([0.0, 1e4], requires_grad=True)
    loss = -predictor.log_probability(torch.tensor([1000, 10]), means).sum()
    loss.backward()
    assert loss.isfinite() and means.grad is not None
    torch.testing.assert_close(
        means.grad, torch.tensor([-1.0, 1.0])
    )  # one over the scale, which is the maximum


def test_length_is_the_sum_over_steps() -> None:
    predictor, (encoded_BTD, lengths_B) = LengthPredictor(32), encode(build("parallel-length"))
    expected = [
        sum(
            math.log1p(math.exp(predictor.count(encoded_BTD[row, step]).item()))
            for step in range(int(length))
        )
        for row, length in enumerate(lengths_B)
    ]
    assert predictor(encoded_BTD, lengths_B).tolist() == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_loss_of_length_and_tokens() -> None:
    """The loop adds, for each text, the log-probability of its length and of its tokens."""
    model = build("parallel-length")
    decoder = model.decoder
    assert isinstance(decoder, LengthDecoder)
    encoded = encode(model)
    decoder_loss = decoder.compute_loss(TARGETS, encoded, {}, FORCING)
    predicted = [4.3, 3.0, 0.4, 3.6]
    cross_entropy = length_loss = 0.0
    for row, count in enumerate(TARGETS.lengths_B.tolist()):
        steps = int(encoded[1][row])
        alone = (encoded[0][row : row + 1, :steps], encoded[1][row : row + 1])
        if count:
            scores_1UV, _ = decoder(torch.tensor([count]), count, decoder.precompute_kv(*alone))
            pairs = zip(scores_1UV[0], TARGETS.tokens_BU[row, :count].tolist(), strict=True)
            cross_entropy += sum(smoothed_loss(*pair) for pair in pairs)
        mean = decoder.length_predictor(*alone).double().item()
        length_loss -= math.log(
            1 / (1 + math.exp(mean - count - 0.5)) - 1 / (1 + math.exp(mean - count + 0.5))
        )
    assert decoder_loss.parts["cross_entropy"].item() == pytest.approx(cross_entropy, rel=1e-5)
    assert decoder_loss.parts["length"].item() == pytest.approx(length_loss, rel=1e-4)
    assert decoder_loss.loss.item() == pytest.approx(cross_entropy + length_loss, rel=1e-5)
    assert decoder_loss.num_rows_B.tolist() == [4, 2, 0, 3]
    # A correct length counts like a correct token.
    decoder.output.bias[7] += 1e3
    decoder.length_predictor.forward = lambda *_: torch.tensor(predicted)  # type: ignore[method-assign]
    assert decoder.compute_loss(TARGETS, encoded, {}, FORCING).parts["correct"] == 4 + 2


# --- gaps ---------------------------------------------------------------------------------------


def test_gaps_are_any_number_of_any_tokens() -> None:
    torch.manual_seed(0)
    lengths_B = torch.tensor([5, 0, 1, 3]).repeat(5000)
    gaps_BU = draw_gaps(lengths_B, 5).unflatten(0, (-1, 4)).float()
    for row, length in enumerate([5, 0, 1, 3]):
        own = gaps_BU[:, row]
        assert not own[:, length:].any()
        if length == 0:
            continue
        numbers = own.sum(1)
        assert numbers.min() == 1 and numbers.max() == length
        for number in range(1, length + 1):  # all counts are equally frequent, and so are all positions
            assert (numbers == number).float().mean().item() == pytest.approx(1 / length, abs=0.03)
        middle = (length + 1) / 2 / length
        assert own[:, :length].mean(0).tolist() == pytest.approx([middle] * length, abs=0.03)


@torch.no_grad()
def test_loss_of_the_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """In training random tokens are gaps; in evaluation every token is."""
    model = build("mask-ctc")
    decoder = model.decoder
    assert isinstance(decoder, MaskDecoder)
    encoded = encode(model)
    drawn_BU = torch.tensor([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]]).bool()
    monkeypatch.setattr(module, "draw_gaps", lambda lengths_B, longest: drawn_BU)
    for is_training, gaps_BU in ((True, drawn_BU), (False, torch.ones(4, 4).bool())):
        expected, num_correct = 0.0, 0.0
        for row, count in enumerate(TARGETS.lengths_B.tolist()):
            own, gaps = TARGETS.tokens_BU[row, :count].tolist(), gaps_BU[row, :count].tolist()
            if not count:
                num_correct += 1  # there is nothing to fill
                continue
            read = [VOCAB_SIZE if gap else token for token, gap in zip(own, gaps, strict=True)]
            steps = int(encoded[1][row])
            alone = (encoded[0][row : row + 1, :steps], encoded[1][row : row + 1])
            scores_1UV, _ = decoder(
                torch.tensor([read]), torch.tensor([count]), decoder.precompute_kv(*alone)
            )
            asked = [place for place in range(count) if gaps[place]]
            expected += sum(smoothed_loss(scores_1UV[0, place], own[place]) for place in asked)
            right = sum(int(scores_1UV[0, place].argmax()) == own[place] for place in asked)
            num_correct += (count + 1) * right / len(asked)
        decoder_loss = decoder.train(is_training).compute_loss(TARGETS, encoded, {}, FORCING)
        assert decoder_loss.loss.item() == pytest.approx(expected, rel=1e-5)
        assert decoder_loss.parts["correct"].item() == pytest.approx(num_correct, rel=1e-5)


# --- all ----------------------------------------------------------------------------------------


@every_non_autoregressive
@torch.no_grad()
def test_requested_attention_weights(name: str) -> None:
    """For each requested head and each token, a distribution over the steps."""
    model = build_example(name)
    assert model.decoder is not None
    encoded = encode(model)
    _, weights = model.decoder.score_reference(TARGETS, encoded, {0: (1, 3)})
    assert weights[0].shape == (4, 2, 4, 11) and list(weights) == [0]
    torch.testing.assert_close(weights[0].sum(-1), torch.ones(4, 2, 4))
    assert not weights[0][1, :, :, 6:].any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder": {"type": "parallel_length", "positions": "rotary"}}, "positions = rotary"),
        ({"decoder": {"type": "mask_ctc"}, "ctc_weight": 0.0}, "decoder.type = mask_ctc needs CTC too"),
    ],
)
def test_config_names_the_settings_in_conflict(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SpeechModelConfig.model_validate({"encoder": {"type": "transformer"}} | changes)
