"""The prior on cross-attention: its values, its schedule, and what it changes in decoders and losses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from model_examples import NUM_FEATURES, SYSTEMS, VOCAB_SIZE, build_example, make_utterances, mark_relatives
from torch import Tensor

from asr.config import build_config
from asr.errors import UserError
from asr.models import (
    MIN_DEVIATION,
    AttentionPriorConfig,
    Decoder,
    SpeechModelConfig,
    Targets,
    attend,
    attention_weights,
    build_model,
    diagonal_times,
    prior_bias,
)
from asr.system import RunConfig

# B batch, N rows of attention, T encoded steps, R rows of beams, H heads, V vocabulary

ATTENDING = [
    name
    for name, config in SYSTEMS.items()
    if config.decoder is not None
    and config.decoder.cross_attention != (0, 0)
    and not config.decoder.type.startswith(("parallel", "mask"))
]
FREE = [name for name in ATTENDING if SYSTEMS[name].attention_clock is None]
every_attending_decoder = pytest.mark.parametrize("name", mark_relatives(ATTENDING))
every_free_decoder = pytest.mark.parametrize("name", mark_relatives(FREE))

# --- values -------------------------------------------------------------------------------------


@given(
    spans=st.lists(st.tuples(st.floats(0, 50), st.floats(0, 200)), min_size=1, max_size=3),
    rows=st.lists(st.integers(1, 12), min_size=3, max_size=3),
    width=st.floats(0.02, 5.0),
    num_steps=st.integers(1, 60),
)
@settings(max_examples=50)
def test_bias_equals_its_formula(
    spans: list[tuple[float, float]], rows: list[int], width: float, num_steps: int
) -> None:
    """-(t - t_n)^2 / (2 (width * length)^2), with t_n at n / N of the way from the start of the speech."""
    spans_B2 = torch.tensor([[start, start + length] for start, length in spans])
    times_BN = diagonal_times(spans_B2, torch.tensor(rows[: len(spans)]), max(rows))
    bias_BNT = prior_bias(times_BN, spans_B2, num_steps, width)
    assert bias_BNT.shape == (len(spans), max(rows), num_steps)
    for utterance, (start, length) in enumerate(spans):
        deviation = max(width * length, MIN_DEVIATION)
        for n in range(rows[utterance]):
            time = start + n / rows[utterance] * length
            expected = [-((t - time) ** 2) / (2 * deviation**2) for t in range(num_steps)]
            np.testing.assert_allclose(bias_BNT[utterance, n].numpy(), expected, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("step", "width"),
    [
        (0, 0.08),
        (99, 0.08),
        (100, 0.08),
        (200, 0.08 / 0.75),
        (300, 0.16),
        (499, 32.0),
        (500, None),
        (9999, None),
    ],
)
def test_width_is_kept_then_grows_then_there_is_none(step: int, width: float | None) -> None:
    found = AttentionPriorConfig(width=0.08, keep_updates=100, end_updates=500).width_at(step)
    assert found == (None if width is None else pytest.approx(width))


def test_bias_pulls_a_flat_attention_to_the_diagonal_and_lets_it_go() -> None:
    spans_B2 = torch.tensor([[0.0, 40.0]])
    times_BN = diagonal_times(spans_B2, torch.tensor([4]), 4)
    weights_BNT = prior_bias(times_BN, spans_B2, 40, 0.08).softmax(-1)
    assert weights_BNT.argmax(-1).tolist() == [[0, 10, 20, 30]]
    assert weights_BNT[0, 1].max() == pytest.approx(
        1 / (math.sqrt(2 * math.pi) * 3.2), rel=1e-3
    )  # a Gaussian
    wide_BNT = prior_bias(times_BN, spans_B2, 40, 32.0).softmax(-1)
    torch.testing.assert_close(wide_BNT, torch.full_like(wide_BNT, 1 / 40), rtol=2e-3, atol=0)


# --- in attention -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_training", [False, True])  # another path in half precision
def test_attention_adds_a_bias_before_the_softmax(dtype: torch.dtype, is_training: bool) -> None:
    torch.manual_seed(0)
    queries, keys, values = (torch.randn(2, 3, steps, 4, dtype=torch.float64) for steps in (5, 7, 7))
    bias = torch.randn(2, 1, 5, 7, dtype=torch.float64).masked_fill(torch.arange(7) > 4, -torch.inf)
    expected = (queries @ keys.mT / 2 + bias).softmax(-1)
    parts = [part.to(dtype) for part in (queries, keys, values)]
    tolerance = {"rtol": 0, "atol": 1e-5 if dtype == torch.float32 else 0.05}
    with torch.set_grad_enabled(is_training):
        attended = attend(*parts, bias.to(dtype)).double()
        weights = attention_weights(*parts[:2], bias.to(dtype)).double()
    torch.testing.assert_close(attended, expected @ values, **tolerance)
    torch.testing.assert_close(weights, expected, **tolerance)


def example(name: str) -> tuple[Decoder, Tensor, tuple[Tensor, Tensor], Tensor]:
    """A decoder, tokens (R, U), what it attends to, and a bias (R, U, T); two beams of each utterance."""
    model, batch = build_example(name), make_utterances([90, 60], [5, 3])
    assert isinstance(model.decoder, Decoder)
    encoded_BTD, lengths_B = model.encode(*batch[:2])
    tokens_RU = Targets(*batch[2:]).for_decoder()[0].repeat_interleave(2, dim=0)
    bias_RUT = torch.randn(*tokens_RU.shape, encoded_BTD.size(1), generator=torch.Generator().manual_seed(3))
    return model.decoder, tokens_RU, (encoded_BTD, lengths_B), bias_RUT


@every_free_decoder
@torch.no_grad()
def test_a_decoder_attends_by_its_scores_and_the_bias(name: str) -> None:
    """Where nothing that was attended to before has a say: weights ~ weights without it * exp(bias)."""
    decoder, tokens_RU, encoded, bias_RUT = example(name)
    heads = {0: tuple(range(decoder.num_heads))}
    free_RUV, free = decoder(tokens_RU, *encoded, heads)
    biased_RUV, biased = decoder(tokens_RU, *encoded, heads, bias_RUT)
    expected = free[0] * bias_RUT.exp()[:, None]
    expected = expected / expected.sum(-1, keepdim=True)
    rows = slice(None) if decoder.num_heads > 1 else slice(1)  # a recurrent state has the contexts in it
    torch.testing.assert_close(biased[0][:, :, rows], expected[:, :, rows], rtol=1e-4, atol=1e-6)
    assert (free_RUV - biased_RUV).abs().max() > 1e-3
    none_RUV, _ = decoder(tokens_RU, *encoded, heads, torch.zeros_like(bias_RUT))
    torch.testing.assert_close(none_RUV, free_RUV, rtol=0, atol=1e-5)


@every_attending_decoder
@torch.no_grad()
def test_step_by_step_with_a_bias_is_the_same(name: str) -> None:
    decoder, tokens_RU, encoded, bias_RUT = example(name)
    whole_RUV, _ = decoder(tokens_RU, *encoded, None, bias_RUT)
    state = decoder.start(*encoded)
    state.select_beams(torch.tensor([0, 0, 1, 1]))
    for step in range(tokens_RU.size(1)):
        now = slice(step, step + 1)
        scores_R1V, _ = decoder.step(tokens_RU[:, now], state, None, bias_RUT[:, now])
        torch.testing.assert_close(scores_R1V[:, 0], whole_RUV[:, step], rtol=0, atol=1e-4)


# --- in training --------------------------------------------------------------------------------

PRIOR = AttentionPriorConfig(keep_updates=2, end_updates=5, trim_silence=False)


@every_attending_decoder
def test_it_holds_training_alone_and_not_after_its_end(name: str) -> None:
    """Off, it changes no bit."""
    batch = make_utterances([90, 60], [5, 3])
    model = build_example(name)
    scheduled = model.config.guided_attention

    def losses(step: int, training: bool, prior: AttentionPriorConfig | None) -> list[float]:
        model.config = model.config.model_copy(
            update={"attention_prior": prior, "guided_attention": scheduled}
        )
        torch.manual_seed(1)
        found = model.train(training)(*batch, step=step)
        return [found.total.item(), *(part.item() for part in found.parts.values())]

    for step in (0, 4):
        assert losses(step, True, PRIOR) != losses(step, True, None)
    assert losses(0, True, PRIOR) != losses(4, True, PRIOR)
    assert losses(5, True, PRIOR) == losses(5, True, None)
    assert losses(0, False, PRIOR) == losses(0, False, None)


@pytest.mark.parametrize(
    ("encoder", "decoder"),
    [
        ({"type": "lstm", "dim": 8, "num_layers": 1}, {"attention": {"score": "dot"}}),
        (
            {"type": "lstm", "cell": "tanh", "dim": 8, "num_layers": 1},
            {"cell": "tanh", "attention": {"score": "additive"}},
        ),
        (
            {"type": "convolutional", "dim": 16, "num_layers": 1, "feed_forward_dim": 16},
            {"attention": {"score": "scaled_dot"}},
        ),
    ],
    ids=["dot product", "tanh cells", "convolutions"],
)
def test_a_narrow_prior_puts_recurrent_attention_on_the_diagonal(
    encoder: dict[str, Any], decoder: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the score and the cells: random weights alone attend elsewhere."""
    tree = {"encoder": encoder, "decoder": {"type": "attention", "dim": 16, "num_layers": 1} | decoder}
    prior = {"width": 0.02, "keep_updates": 2, "end_updates": 5, "trim_silence": False}
    model = build_model(
        SpeechModelConfig.model_validate(tree | {"attention_prior": prior}), NUM_FEATURES, VOCAB_SIZE
    ).train()
    assert isinstance(model.decoder, Decoder)
    compute_loss, weights = model.decoder.compute_loss, []

    def watch(targets: Targets, encoded: Any, watched: Any, forcing: Any) -> Any:
        found = compute_loss(targets, encoded, model.decoder.last_heads, forcing)
        weights.append(next(iter(found.weights.values())).detach())
        return found

    monkeypatch.setattr(model.decoder, "compute_loss", watch)
    batch = make_utterances([160], [7])
    for step in (0, 5):
        model(*batch, step=step)
    held_N, free_N = (found[0, 0].argmax(-1) for found in weights)
    diagonal_N = torch.arange(8) / 8 * 40
    assert (held_N - diagonal_N).abs().max() <= 1.5
    assert (free_N - diagonal_N).abs().max() > 5


@every_free_decoder
def test_gradients_are_finite_in_fp16_where_texts_differ_in_length(name: str) -> None:
    model = build_example(name).train()
    model.config = model.config.model_copy(update={"attention_prior": PRIOR})
    with torch.autocast("cpu", torch.float16):
        loss = model(*make_utterances([250, 60], [60, 1])).total
    loss.backward()
    assert all(one.grad is None or one.grad.isfinite().all() for one in model.parameters())


def test_it_follows_the_speech_that_the_batch_names() -> None:
    """As the penalty does: masks of SpecAugment are no silence."""
    seen = []
    config = SYSTEMS["conformer-hybrid"].model_copy(update={"attention_prior": AttentionPriorConfig()})
    model = build_model(config, NUM_FEATURES, VOCAB_SIZE)
    decoder = model.decoder
    original = decoder.forward
    decoder.forward = lambda *args: seen.append(args[-1]) or original(*args)
    batch = make_utterances([90, 60], [5, 3])
    for spans in ([[0.0, 90.0], [0.0, 60.0]], [[20.0, 80.0], [8.0, 48.0]]):
        seen.clear()
        model(*batch, 0, torch.tensor(spans))
        spans_B2 = torch.tensor(spans) / 4
        times_BN = diagonal_times(spans_B2, torch.tensor([6, 4]), 6)
        assert torch.equal(seen[0], prior_bias(times_BN, spans_B2, seen[0].size(2), 0.08))


# --- configuration ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (
            {"attention_prior": {"keep_updates": 500}},
            "end_updates = 500 is not after keep_updates = 500; raise it",
        ),
        (
            {"decoder": None, "ctc_weight": 1.0},
            "token by token, and decoder is null; set attention_prior: null",
        ),
        (
            {"decoder": {"type": "parallel_end"}},
            r"decoder.type = parallel_end does not; set attention_prior: null",
        ),
    ],
)
def test_config_says_what_it_needs(tree: dict[str, Any], message: str) -> None:
    given = {"encoder": {"type": "transformer"}, "decoder": {}, "attention_prior": {}}
    with pytest.raises(ValueError, match=message):
        SpeechModelConfig.model_validate(given | tree)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["train.steps=500"], "end_updates = 500 is not before train.steps = 500"),
        (["features.type=mfcc"], "model.attention_prior.trim_silence finds silence in log-mel features"),
    ],
)
def test_run_says_what_it_needs(settings: list[str], message: str) -> None:
    base = [
        "output_dir=run",
        "data.train=train.jsonl",
        "data.dev=dev.jsonl",
        "model.encoder.type=transformer",
    ]
    base += ["model.decoder={}", "model.attention_prior={}"]
    build_config(RunConfig, base)
    with pytest.raises(UserError, match=message):
        build_config(RunConfig, [*base, *settings])
