"""The guide on cross-attention: where CTC has the next token, alike in training, in the searches and in alignments."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from decoding_examples import build_talker, random_encoded, search
from hypothesis import given, settings, strategies as st
from model_examples import SYSTEMS, build_example, make_utterances, mark_relatives
from test_attention_prior import FREE
from test_ctc_prefix import VOCABULARY, brute_force_times, random_scores
from torch import Tensor

from asr.decoding import DecodingConfig, EncodedAudio, search_quickly
from asr.errors import UserError
from asr.models import (
    CTC,
    ELSEWHERE,
    AttentionGuide,
    AttentionGuideConfig,
    AttentionPriorConfig,
    Decoder,
    SpeechModel,
    SpeechModelConfig,
    Targets,
    follow_texts,
    guide_texts,
)
from asr.transcription import align_by_attention

# B batch, W texts of each, N tokens and the end, T encoded steps, H heads

HYBRID = "transformer-hybrid"
GUIDE = AttentionGuideConfig(width=1.5, ctc_threshold=1e9)
every_guided_decoder = pytest.mark.parametrize(
    "name", mark_relatives([name for name in FREE if SYSTEMS[name].ctc_weight > 0])
)


def guided(model: SpeechModel, guide: AttentionGuideConfig | None = GUIDE) -> SpeechModel:
    model.config = model.config.model_copy(update={"attention_guide": guide})
    return model


# --- values -------------------------------------------------------------------------------------


@given(st.integers(0, 1000), st.integers(1, 5), st.lists(st.integers(1, VOCABULARY - 1), max_size=3))
@settings(max_examples=25)
def test_texts_are_followed_as_all_their_alignments_say(seed: int, steps: int, text: list[int]) -> None:
    scores_BTV = random_scores(1, steps, VOCABULARY, seed)
    times_NT = follow_texts(scores_BTV, torch.tensor([steps]), torch.tensor([[text]]).long())[0, 0]
    assert times_NT.shape == (len(text) + 1, steps)
    for count, times_T in enumerate(times_NT):
        expected = brute_force_times(scores_BTV[0], tuple(text[:count]))
        wanted = [time / sum(expected) for time in expected] if sum(expected) else [0] * (steps - 1) + [1]
        assert times_T.tolist() == pytest.approx(wanted, abs=1e-4)


def test_texts_of_a_batch_are_followed_as_alone() -> None:
    scores_BTV, lengths_B = random_scores(2, 9, 6, 1), torch.tensor([9, 6])
    texts_BWU = torch.tensor([[[1, 2, 2], [3, 1, 5]], [[4, 4, 1], [5, 1, 2]]])
    times_BWNT = follow_texts(scores_BTV, lengths_B, texts_BWU)
    for row, text in itertools.product(range(2), range(2)):
        length = int(lengths_B[row])
        alone = follow_texts(
            scores_BTV[row : row + 1, :length],
            lengths_B[row : row + 1],
            texts_BWU[row : row + 1, text : text + 1],
        )
        torch.testing.assert_close(times_BWNT[row, text, :, :length], alone[0, 0], rtol=0, atol=1e-5)
        assert not times_BWNT[row, text, :, length:].any()


def test_the_window_is_a_gaussian_around_each_time() -> None:
    times_T = torch.tensor([0.0, 0.75, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0])
    bias_T = AttentionGuide(1.5, 8, times_T.device).compute_bias(times_T)
    for step in range(8):
        expected = 0.75 * math.exp(-((step - 1) ** 2) / 4.5) + 0.25 * math.exp(-((step - 4) ** 2) / 4.5)
        assert bias_T[step].item() == pytest.approx(math.log(expected + ELSEWHERE), abs=1e-5)


# --- in training --------------------------------------------------------------------------------


@every_guided_decoder
def test_training_and_dev_see_the_window(name: str) -> None:
    """The loss of training without dropout is that of a dev set; no gradient reaches CTC through the window."""
    batch = make_utterances([90, 60], [5, 3])
    free = build_example(name)(*batch).parts["cross_entropy"].item()
    model = guided(build_example(name))
    window = model(*batch).parts["cross_entropy"].item()
    assert window != pytest.approx(free, abs=1e-4)
    encoded = model.encode(*batch[:2])
    scores_BNV, _ = model.score_reference(Targets(*batch[2:]), encoded, {})
    _, targets_BN = Targets(*batch[2:]).for_decoder()
    smoothing = model.config.label_smoothing
    expected = torch.nn.functional.cross_entropy(
        scores_BNV.flatten(0, 1), targets_BN.flatten(), label_smoothing=smoothing, reduction="sum"
    )
    assert window == pytest.approx(expected.item(), rel=1e-5)
    encoded_BTD = torch.randn_like(encoded[0])
    model.decoder(Targets(*batch[2:]).for_decoder()[0], encoded_BTD, encoded[1], {}, guide_texts(
        model.ctc_log_probabilities(encoded_BTD), encoded[1], batch[2][:, None], 1.5))[0].sum().backward()  # fmt: skip
    assert model.ctc_head.weight.grad is None


def test_the_threshold_is_a_loss_per_token() -> None:
    """A loss of 0 stands for too few steps, and so for no alignment."""
    ctc = CTC(torch.empty(0), torch.tensor([5.9, 6.1, 2.1, 0.0]))
    targets = Targets(torch.zeros(4, 3, dtype=torch.long), torch.tensor([3, 3, 1, 3]))
    assert ctc.aligns(targets, 2.0).tolist() == [True, False, False, False]


@pytest.mark.parametrize("prior", [None, AttentionPriorConfig(trim_silence=False)])
def test_an_utterance_that_ctc_does_not_align_has_the_prior(prior: AttentionPriorConfig | None) -> None:
    """In training; without one its attention is free. On dev it is guided, too."""
    batch, model = make_utterances([90, 60], [5, 3]), guided(build_example(HYBRID), None)
    loss_B = model._compute_ctc(model.encode(*batch[:2]), Targets(*batch[2:])).loss_B / batch[3]

    def find_bias(threshold: float, training: bool = True) -> Tensor:
        model = guided(build_example(HYBRID), AttentionGuideConfig(width=1.5, ctc_threshold=threshold))
        model.config = model.config.model_copy(update={"attention_prior": prior})
        seen, forward = [], model.decoder.forward
        model.decoder.forward = lambda *args: seen.append(args[-1]) or forward(*args)
        model.train(training)(*batch)
        return torch.zeros(()) if seen[0] is None else seen[0]

    both, window, own = (find_bias(threshold) for threshold in (loss_B.mean().item(), 1e9, 1e-9))
    is_aligned_B = (loss_B < loss_B.mean())[:, None, None]
    assert torch.equal(both, torch.where(is_aligned_B, window, own)) and not torch.equal(window, own)
    assert torch.equal(find_bias(1e-9, training=False), window)


# --- in decoding --------------------------------------------------------------------------------


@every_guided_decoder
@pytest.mark.parametrize("method", ["joint", "attention", "rescoring"])
@torch.inference_mode()
def test_searches_score_by_the_decoder_that_was_trained(name: str, method: str) -> None:
    """Each hypothesis has the log-probability that its tokens have as a reference."""
    model, lengths = guided(build_talker(name)), [10, 8, 5, 3, 9]
    encoded_BTD, lengths_B = random_encoded(model, lengths)
    config = DecodingConfig(method=method, beam=4, nbest=3)
    found = search(model, encoded_BTD, lengths_B, config)
    tokens = [[hypothesis.tokens for hypothesis in hypotheses] for hypotheses in found]
    free = search(guided(model, None), encoded_BTD, lengths_B, config)
    assert [[one.log_probability for one in hypotheses] for hypotheses in found] != [
        [one.log_probability for one in hypotheses] for hypotheses in free
    ]
    guided(model)
    for row, (texts, length) in enumerate(zip(tokens, lengths, strict=True)):
        encoded = (encoded_BTD[row : row + 1, :length], lengths_B[row : row + 1])
        for text, hypothesis in zip(texts, found[row], strict=True):
            targets = Targets(torch.tensor([text]).view(1, -1).long(), torch.tensor([len(text)]))
            scores_1NV, _ = model.score_reference(targets, encoded, {})
            _, wanted_1N = targets.for_decoder()
            expected = scores_1NV.log_softmax(-1).gather(2, wanted_1N[..., None]).sum().item()
            assert hypothesis.log_probability == pytest.approx(expected, abs=1e-3)


@torch.inference_mode()
def test_a_width_of_decoding_takes_the_place_of_that_of_training() -> None:
    model = build_talker(HYBRID)
    encoded = random_encoded(model, [10, 8])
    for method in ("joint", "attention"):
        wide = search(guided(model, None), *encoded, DecodingConfig(method=method, guide_width=4.0))
        assert search(guided(model), *encoded, DecodingConfig(method=method, guide_width=4.0)) == wide
        assert search(model, *encoded, DecodingConfig(method=method)) != wide


@torch.inference_mode()
def test_dev_texts_of_the_decoder_keep_to_the_window() -> None:
    model = guided(build_talker(HYBRID))
    encoded = random_encoded(model, [10, 8, 3])
    greedy = search(model, *encoded, DecodingConfig(method="attention", beam=1))
    found = search_quickly(EncodedAudio(model, *encoded))["decoder"]
    assert found == [list(hypotheses[0].tokens) for hypotheses in greedy]
    assert search_quickly(EncodedAudio(guided(model, None), *encoded))["decoder"] != found


@torch.inference_mode()
def test_alignments_look_where_the_decoder_does() -> None:
    model = guided(build_talker(HYBRID))
    encoded_BTD, lengths_B = random_encoded(model, [10])
    tokens = [7, 8, 9]
    (aligned,) = align_by_attention(model, encoded_BTD, lengths_B, [tokens])
    targets = Targets(torch.tensor([tokens]), torch.tensor([3]))
    _, weights = model.score_reference(targets, (encoded_BTD, lengths_B), model.decoder.last_heads)
    times_NT = follow_texts(model.ctc_log_probabilities(encoded_BTD), lengths_B, torch.tensor([[tokens]]))[
        0, 0
    ]
    (weights_HNT,) = next(iter(weights.values()))
    steps_T = torch.arange(10.0)
    distance_N = ((weights_HNT.mean(0) - times_NT) @ steps_T).abs()
    assert distance_N.max() < 1.5
    (free,) = align_by_attention(guided(model, None), encoded_BTD, lengths_B, [tokens])
    assert aligned != free


# --- configuration ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"decoder": None, "ctc_weight": 1.0}, "decoder is null; set attention_guide: null"),
        (
            {"decoder": {"type": "parallel_end"}},
            "decoder.type = parallel_end does not; set attention_guide: null",
        ),
        ({"ctc_weight": 0.0}, "attention_guide follows the CTC head: set ctc_weight above 0"),
    ],
)
def test_config_says_what_it_needs(tree: dict[str, Any], message: str) -> None:
    given = {"encoder": {"type": "transformer"}, "decoder": {}, "attention_guide": {}}
    SpeechModelConfig.model_validate(given)
    with pytest.raises(ValueError, match=message):
        SpeechModelConfig.model_validate(given | tree)


def test_a_width_without_ctc_is_refused() -> None:
    model = build_talker("transformer-attention")
    assert isinstance(model.decoder, Decoder)
    with pytest.raises(UserError, match="guide_width"):
        search(model, *random_encoded(model, [5]), DecodingConfig(method="attention", guide_width=3.0))
    with pytest.raises(UserError, match="guide_width"):
        DecodingConfig(guide_width=3.0, ctc_weight=1.0)
