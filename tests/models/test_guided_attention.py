"""Guided attention: penalty, prior and window against their formulas, in training, searches and alignments."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from decoding_examples import build_talker, random_encoded, search
from hypothesis import given, strategies as st
from model_examples import (
    ATTENDING,
    MONOTONIC,
    NUM_FEATURES,
    SYSTEMS,
    build_example,
    every_attending_decoder,
    make_utterances,
    mark_relatives,
)
from test_ctc_prefix import VOCABULARY, brute_force_times, random_scores
from torch import Tensor

from asr.config import build_config
from asr.decoding.decode import search_greedy
from asr.decoding.hypothesis import DecodingConfig, EncodedAudio
from asr.decoding.timestamps import align_by_attention
from asr.errors import UserError
from asr.models.decoders import Decoder
from asr.models.guided_attention import (
    MIN_DEVIATION,
    WINDOW_FLOOR,
    AttentionLossConfig,
    AttentionPriorConfig,
    GaussianWindow,
    GuidedAttention,
    GuidedAttentionConfig,
    GuidedBatch,
    ctc_token_times,
    ctc_window_bias,
    diagonal_times,
    guided_attention_loss,
    prior_bias,
)
from asr.models.losses import Targets, ctc_loss
from asr.models.speech_model import SpeechModel, SpeechModelConfig
from asr.system.run_config import RunConfig

# B batch, W texts of each, R rows of beams, N tokens and the end, T encoded steps, H heads, V vocabulary

HYBRID = "transformer-hybrid"
PRIOR = {"end_updates": 5}
WINDOW = {"width": 1.5, "ctc_threshold": 1e9}
every_guided_decoder = pytest.mark.parametrize(
    "name", mark_relatives([name for name in ATTENDING if SYSTEMS[name].ctc_weight > 0])
)


def guide(model: SpeechModel, **parts: Any) -> SpeechModel:
    """The same model, led by these parts alone."""
    config = GuidedAttentionConfig.model_validate(parts) if parts else None
    model.guided_attention = None if config is None else GuidedAttention(config, model.subsampling_factor)
    return model


def catch_bias(model: SpeechModel) -> list[Any]:
    """The bias of each later pass of the decoder."""
    seen: list[Any] = []
    forward = model.decoder.forward
    model.decoder.forward = lambda *args: seen.append(args[-1]) or forward(*args)
    return seen


@given(
    rows=st.lists(st.integers(1, 6), min_size=2, max_size=3),
    steps=st.lists(st.integers(1, 20), min_size=3, max_size=3),
    seed=st.integers(0, 99),
)
def test_penalty_equals_its_formula(rows: list[int], steps: list[int], seed: int) -> None:
    """1 - exp(-(n/N - t/T)^2 / (2 * 0.2^2)) times the attention: sums over rows, a mean over heads."""
    lengths, random = steps[: len(rows)], torch.Generator().manual_seed(seed)
    weights_BHNT = torch.rand(len(rows), 2, max(rows), max(lengths), generator=random).softmax(-1)
    lengths_B, num_rows_B = torch.tensor(lengths), torch.tensor(rows)
    spans_B2 = torch.stack([torch.zeros(len(rows)), lengths_B], dim=1)
    times_BN = diagonal_times(spans_B2, num_rows_B, max(rows))
    expected = 0.0
    for b, (count, length) in enumerate(zip(rows, lengths, strict=True)):
        for head, n, t in itertools.product(range(2), range(count), range(length)):
            penalty = 1 - math.exp(-((n / count - t / length) ** 2) / (2 * 0.2**2))
            expected += weights_BHNT[b, head, n, t].item() * penalty / 2
    loss = guided_attention_loss(weights_BHNT, times_BN, num_rows_B, lengths_B).item()
    assert loss == pytest.approx(expected, abs=1e-5)


def test_its_weight_stays_or_is_halved() -> None:
    assert AttentionLossConfig(weight=2.0).weight_at(10**6) == 2.0
    halved = AttentionLossConfig(weight=2.0, half_life=10)
    assert [halved.weight_at(step) for step in (0, 5, 20)] == pytest.approx([2.0, 2 / math.sqrt(2), 0.5])


@torch.no_grad()
def test_the_diagonal_runs_through_the_speech() -> None:
    """From the first loud frame to the last, or as the batch says: masks of SpecAugment are no silence."""
    features_BTF = torch.full((1, 80, NUM_FEATURES), -10.0)
    features_BTF[0, 20:60] = 0.0
    lengths_B, known_B2 = torch.tensor([80]), torch.tensor([[24.0, 60.0]])
    targets = Targets(torch.tensor([[7, 8]]), torch.tensor([2]))

    def find_span(known_B2: Tensor | None) -> list[list[float]]:
        audio = (features_BTF, lengths_B, known_B2)
        batch = GuidedBatch(targets, (features_BTF, lengths_B), None, None, audio, 0)
        return batch.find_diagonal(4)[0].tolist()

    assert find_span(None) == [[5.0, 15.0]]
    assert find_span(known_B2) == [[6.0, 15.0]]
    times_BN = diagonal_times(torch.tensor([[2.0, 10.0], [0.0, 3.0]]), torch.tensor([4, 3]), 4)
    assert times_BN[0].tolist() == [2, 4, 6, 8] and times_BN[1, :3].tolist() == [0, 1, 2]


@given(
    spans=st.lists(st.tuples(st.floats(0, 50), st.floats(0, 200)), min_size=1, max_size=3),
    rows=st.lists(st.integers(1, 12), min_size=3, max_size=3),
    width=st.floats(0.02, 5.0),
    num_steps=st.integers(1, 60),
)
def test_prior_equals_its_formula(
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


def test_its_width_is_kept_then_grows_then_there_is_none() -> None:
    widths = {0: 0.08, 99: 0.08, 100: 0.08, 200: 0.08 / 0.75, 300: 0.16, 499: 32.0, 500: None, 9999: None}
    prior = AttentionPriorConfig()
    assert {step: prior.width_at(step) for step in widths} == pytest.approx(widths)


@every_attending_decoder
def test_it_holds_training_alone_and_not_after_its_end(name: str) -> None:
    """Without guided attention, no bit changes."""
    batch, model = make_utterances([90, 60], [5, 3]), build_example(name)
    own = (SYSTEMS[name].guided_attention or GuidedAttentionConfig()).model_dump() | {"prior": None}

    def losses(step: int, training: bool, **prior: Any) -> list[float]:
        torch.manual_seed(1)
        found = guide(model, **own | prior).train(training)(*batch, step=step)
        return [found.total.item(), *(part.item() for part in found.parts.values())]

    first, late, past = (losses(step, True, prior=PRIOR) for step in (0, 4, 5))
    assert losses(0, True) != first != late != losses(4, True)
    assert past == losses(5, True)
    assert losses(0, False, prior=PRIOR) == losses(0, False)


@every_attending_decoder
def test_gradients_are_finite_in_fp16_where_texts_differ_in_length(name: str) -> None:
    model = guide(build_example(name), prior=PRIOR).train()
    with torch.autocast("cpu", torch.float16):
        loss = model(*make_utterances([250, 60], [60, 1])).total
    loss.backward()
    assert all(one.grad is None or one.grad.isfinite().all() for one in model.parameters())


def test_it_follows_the_speech_that_the_batch_names() -> None:
    model = guide(build_example("conformer-hybrid"), prior={})
    seen, batch = catch_bias(model.train()), make_utterances([90, 60], [5, 3])
    for spans in ([[0.0, 90.0], [0.0, 60.0]], [[20.0, 80.0], [8.0, 48.0]]):
        model(*batch, 0, torch.tensor(spans))
        spans_B2 = torch.tensor(spans) / 4
        times_BN = diagonal_times(spans_B2, torch.tensor([6, 4]), 6)
        assert torch.equal(seen[-1], prior_bias(times_BN, spans_B2, seen[-1].size(2), 0.08))


def example(name: str) -> tuple[Decoder, Tensor, tuple[Tensor, Tensor], Tensor]:
    """A decoder, tokens (R, U), what it attends to, and a bias (R, U, T); two beams of each utterance."""
    model, batch = build_example(name), make_utterances([90, 60], [5, 3])
    assert isinstance(model.decoder, Decoder)
    encoded_BTD, lengths_B = model.encode(*batch[:2])
    tokens_RU = Targets(*batch[2:]).for_decoder()[0].repeat_interleave(2, dim=0)
    bias_RUT = torch.randn(*tokens_RU.shape, encoded_BTD.size(1), generator=torch.Generator().manual_seed(3))
    return model.decoder, tokens_RU, (encoded_BTD, lengths_B), bias_RUT


@pytest.mark.parametrize("name", [name for name in ATTENDING if name not in MONOTONIC])
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


@given(st.integers(0, 1000), st.integers(1, 5), st.lists(st.integers(1, VOCABULARY - 1), max_size=3))
def test_texts_are_followed_as_all_their_alignments_say(seed: int, steps: int, text: list[int]) -> None:
    scores_BTV = random_scores(1, steps, VOCABULARY, seed)
    times_NT = ctc_token_times(scores_BTV, torch.tensor([steps]), torch.tensor([[text]]).long())[0, 0]
    assert times_NT.shape == (len(text) + 1, steps)
    for count, times_T in enumerate(times_NT):
        expected = brute_force_times(scores_BTV[0], tuple(text[:count]))
        wanted = [time / sum(expected) for time in expected] if sum(expected) else [0] * (steps - 1) + [1]
        assert times_T.tolist() == pytest.approx(wanted, abs=1e-4)


def test_the_window_is_a_gaussian_around_each_time() -> None:
    times_T = torch.tensor([0.0, 0.75, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0])
    bias_T = GaussianWindow(1.5, 8, times_T.device).compute_bias(times_T)
    for step in range(8):
        expected = 0.75 * math.exp(-((step - 1) ** 2) / 4.5) + 0.25 * math.exp(-((step - 4) ** 2) / 4.5)
        assert bias_T[step].item() == pytest.approx(math.log(expected + WINDOW_FLOOR), abs=1e-5)


@every_guided_decoder
def test_training_and_dev_see_the_window(name: str) -> None:
    """The loss of training without dropout is that of a dev set; no gradient reaches CTC through the window."""
    batch = make_utterances([90, 60], [5, 3])
    free = build_example(name)(*batch).parts["cross_entropy"].item()
    model = guide(build_example(name), window=WINDOW)
    window = model(*batch).parts["cross_entropy"].item()
    assert window != pytest.approx(free, abs=1e-4)
    encoded, targets = model.encode(*batch[:2]), Targets(*batch[2:])
    scores_BNV, _ = model.score_reference(targets, encoded, {})
    inputs_BN, targets_BN = targets.for_decoder()
    smoothing = model.config.label_smoothing
    expected = torch.nn.functional.cross_entropy(
        scores_BNV.flatten(0, 1), targets_BN.flatten(), label_smoothing=smoothing, reduction="sum"
    )
    assert window == pytest.approx(expected.item(), rel=1e-5)
    encoded_BTD = torch.randn_like(encoded[0])
    ctc_BTV = model.ctc_log_probabilities(encoded_BTD)
    bias_BNT = ctc_window_bias(ctc_BTV, encoded[1], batch[2][:, None], 1.5)
    model.decoder(inputs_BN, encoded_BTD, encoded[1], {}, bias_BNT)[0].sum().backward()
    assert model.ctc_head.weight.grad is None


@pytest.mark.parametrize("prior", [None, {}])
def test_an_utterance_that_ctc_does_not_align_has_the_prior(prior: dict[str, Any] | None) -> None:
    """In training; without one its attention is free. On dev it is guided, too."""
    batch, model = make_utterances([90, 60], [5, 3]), build_example(HYBRID)
    encoded_BTD, lengths_B = model.encode(*batch[:2])
    loss_B = ctc_loss(model.ctc_log_probabilities(encoded_BTD), lengths_B, *batch[2:]) / batch[3]

    def find_bias(threshold: float, training: bool = True) -> Tensor:
        model = guide(build_example(HYBRID), prior=prior, window={"width": 1.5, "ctc_threshold": threshold})
        seen = catch_bias(model.train(training))
        model(*batch)
        return torch.zeros(()) if seen[0] is None else seen[0]

    both, window, own = (find_bias(threshold) for threshold in (loss_B.mean().item(), 1e9, 1e-9))
    is_aligned_B = (loss_B < loss_B.mean())[:, None, None]
    assert torch.equal(both, torch.where(is_aligned_B, window, own)) and not torch.equal(window, own)
    assert torch.equal(find_bias(1e-9, training=False), window)


def test_the_threshold_is_a_loss_per_token() -> None:
    """A loss of 0 stands for too few steps, and so for no alignment."""
    targets = Targets(torch.full((4, 3), 5), torch.tensor([3, 3, 1, 3]))
    encoded, ctc_BTV = (torch.zeros(4, 8, 2), torch.full((4,), 8)), torch.randn(4, 8, 9).log_softmax(-1)
    batch = GuidedBatch(targets, encoded, ctc_BTV, torch.tensor([5.9, 6.1, 2.1, 0.0]), (*encoded, None), 0)
    config = GuidedAttentionConfig.model_validate({"window": {"width": 1.5, "ctc_threshold": 2.0}})
    bias_BNT = GuidedAttention(config, 4).find_bias(batch)
    assert bias_BNT is not None and bias_BNT.flatten(1).any(1).tolist() == [True, False, False, False]


@every_guided_decoder
@pytest.mark.parametrize("method", ["joint", "attention", "rescoring"])
@torch.inference_mode()
def test_searches_score_by_the_decoder_that_was_trained(name: str, method: str) -> None:
    """Each hypothesis has the log-probability that its tokens have as a reference."""
    model, lengths = build_talker(name), [7, 3, 6]
    encoded_BTD, lengths_B = random_encoded(model, lengths)
    config = DecodingConfig(method=method, beam=4, nbest=3)
    free = search(guide(model), encoded_BTD, lengths_B, config)
    found = search(guide(model, window=WINDOW), encoded_BTD, lengths_B, config)
    assert [one.log_probability for row in found for one in row] != [
        one.log_probability for row in free for one in row
    ]
    for row, length in enumerate(lengths):
        encoded = (encoded_BTD[row : row + 1, :length], lengths_B[row : row + 1])
        for hypothesis in found[row]:
            text = list(hypothesis.tokens)
            targets = Targets(torch.tensor([text]).view(1, -1).long(), torch.tensor([len(text)]))
            scores_1NV, _ = model.score_reference(targets, encoded, {})
            _, wanted_1N = targets.for_decoder()
            expected = scores_1NV.log_softmax(-1).gather(2, wanted_1N[..., None]).sum().item()
            assert hypothesis.log_probability == pytest.approx(expected, abs=1e-3)


@torch.inference_mode()
def test_a_width_of_decoding_takes_the_place_of_that_of_training() -> None:
    model = build_talker(HYBRID)
    encoded, wide = random_encoded(model, [10, 8]), {"window_width": 4.0}
    for method in ("joint", "attention"):
        found = search(guide(model), *encoded, DecodingConfig(method=method, **wide))
        assert search(guide(model, window=WINDOW), *encoded, DecodingConfig(method=method, **wide)) == found
        assert search(model, *encoded, DecodingConfig(method=method)) != found
    model = build_talker("transformer-attention")
    with pytest.raises(UserError, match="window_width"):
        search(model, *random_encoded(model, [5]), DecodingConfig(method="attention", **wide))


@torch.inference_mode()
def test_dev_texts_of_the_decoder_keep_to_the_window() -> None:
    model = guide(build_talker(HYBRID), window=WINDOW)
    encoded = random_encoded(model, [10, 8, 3])
    greedy = search(model, *encoded, DecodingConfig(method="attention", beam=1))
    found = search_greedy(EncodedAudio(model, *encoded))["decoder"]
    assert found == [list(hypotheses[0].tokens) for hypotheses in greedy]
    assert search_greedy(EncodedAudio(guide(model), *encoded))["decoder"] != found


@torch.inference_mode()
def test_alignments_look_where_the_decoder_does() -> None:
    model = guide(build_talker(HYBRID), window=WINDOW)
    encoded_BTD, lengths_B = random_encoded(model, [10])
    tokens, targets = [7, 8, 9], Targets(torch.tensor([[7, 8, 9]]), torch.tensor([3]))
    (aligned,) = align_by_attention(model, encoded_BTD, lengths_B, [tokens])
    _, weights = model.score_reference(targets, (encoded_BTD, lengths_B), model.decoder.last_heads)
    times_BWNT = ctc_token_times(
        model.ctc_log_probabilities(encoded_BTD), lengths_B, torch.tensor([[tokens]])
    )
    (weights_HNT,) = next(iter(weights.values()))
    assert ((weights_HNT.mean(0) - times_BWNT[0, 0]) @ torch.arange(10.0)).abs().max() < 1.5
    (free,) = align_by_attention(guide(model), encoded_BTD, lengths_B, [tokens])
    assert aligned != free


@pytest.mark.parametrize(
    ("guided", "changes", "message"),
    [
        ({"loss": {}}, {"decoder": None, "ctc_weight": 1.0}, "needs a decoder with attention"),
        ({"window": {}}, {"decoder": {"type": "single_summary"}}, "needs a decoder with attention"),
        ({"window": {}}, {"decoder": {"type": "mask_ctc"}}, "decoder.type = mask_ctc does not"),
        ({"window": {}}, {"ctc_weight": 0.0}, "set ctc_weight above 0"),
    ],
)
def test_config_says_what_it_needs(guided: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    tree = {"encoder": {"type": "transformer"}, "decoder": {}, "guided_attention": guided}
    with pytest.raises(ValueError, match=message):
        SpeechModelConfig.model_validate(tree | changes)


def test_its_loss_and_prior_are_for_log_mel_features() -> None:
    base = ["output_dir=run", "data={train: train.jsonl, dev: dev.jsonl}"]
    base += ["model={encoder: {type: transformer}, decoder: {}, guided_attention: {prior: {}}}"]
    build_config(RunConfig, base)
    with pytest.raises(UserError, match="finds silence in log-mel features"):
        build_config(RunConfig, [*base, "features.type=mfcc"])
