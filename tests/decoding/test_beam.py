"""Beam search against brute force over every text, and against greedy decoding."""

from __future__ import annotations

import math

import pytest
import torch
from decoding_examples import (
    BigramModel,
    build_talker,
    ctc_scores,
    decoder_scores,
    random_encoded,
    rank_all,
    search_beams,
)
from model_examples import NUM_SPECIAL, RELATIVES, SYSTEMS, WITH_DECODER, mark_relatives

from asr.decoding import DecodingConfig, Hypothesis
from asr.errors import UserError
from asr.models import CTCPrefixes
from asr.text import BLANK_ID, EOS_ID, PAD_ID, SOS_ID

HYBRID = [name for name in WITH_DECODER if SYSTEMS[name].ctc_weight > 0]
every_decoder = pytest.mark.parametrize("name", mark_relatives(WITH_DECODER))


def texts(hypotheses: list[Hypothesis]) -> list[tuple[int, ...]]:
    return [hypothesis.tokens for hypothesis in hypotheses]


@pytest.mark.parametrize("name", mark_relatives(HYBRID))
@torch.inference_mode()
def test_a_guide_biases_attention_to_the_times_of_ctc(name: str) -> None:
    """Each hypothesis has the log-probability of its tokens under the decoder that looks there, teacher-forced."""
    model, lengths = build_talker(name), [10, 8, 5, 3, 9]
    encoded_BTD, lengths_B = random_encoded(model, lengths)
    config = DecodingConfig(beam=4, nbest=3, guide_width=2.0)
    if model.decoder.num_heads == 0:
        with pytest.raises(UserError, match="guide_width"):
            search_beams(model, encoded_BTD, lengths_B, config, ctc_weight=0.3)
        return
    found = search_beams(model, encoded_BTD, lengths_B, config, ctc_weight=0.3)
    free = search_beams(model, encoded_BTD, lengths_B, DecodingConfig(beam=4), ctc_weight=0.3)
    assert found[0][0].log_probability != free[0][0].log_probability
    log_probabilities_BTV = model.ctc_log_probabilities(encoded_BTD)
    for row, hypotheses in enumerate(found):
        one, length = slice(row, row + 1), lengths[row]
        for hypothesis in hypotheses:
            prefixes = CTCPrefixes(log_probabilities_BTV[one, :length], lengths_B[one])
            bias_NT = []
            for token in (*hypothesis.tokens, None):
                times_T = prefixes.next_token_times()[0, 0].double()
                window = [
                    sum(times_T[s].item() * math.exp(-((t - s) ** 2) / 8) for s in range(length))
                    for t in range(length)
                ]
                bias_NT.append([math.log(weight + 1e-8) for weight in window])
                if token is not None:
                    prefixes.advance(torch.tensor([[0]]), torch.tensor([[token]]))
            tokens = torch.tensor([[SOS_ID, *hypothesis.tokens]])
            encoded = (encoded_BTD[one, :length], lengths_B[one])
            scores_1NV, _ = model.decoder(tokens, *encoded, None, torch.tensor([bias_NT]))
            targets = torch.tensor([[[*hypothesis.tokens, EOS_ID]]]).mT
            expected = scores_1NV.log_softmax(-1).gather(2, targets).sum().item()
            assert hypothesis.log_probability == pytest.approx(expected, abs=1e-3)


CASES = [
    (0.0, DecodingConfig()),
    (0.3, DecodingConfig()),
    (1.0, DecodingConfig()),
    (0.3, DecodingConfig(length_bonus=1.5)),
    (0.0, DecodingConfig(length_bonus=-1.0)),
    (0.0, DecodingConfig(length_bonus=2.0)),
    (0.0, DecodingConfig(language_model_weight=0.8)),
    (0.4, DecodingConfig(language_model_weight=0.5, length_bonus=1.0)),
]


# Each case with one decoder, two cases with others; all with all is slow.
PAIRS = [
    pytest.param(
        *(name, *case),
        marks=()
        if name == "transformer-hybrid" or (name not in RELATIVES and number in (0, 7))
        else pytest.mark.slow,
    )
    for name in HYBRID
    for number, case in enumerate(CASES)
]


@pytest.mark.parametrize("name, ctc_weight, config", PAIRS)
@torch.inference_mode()
def test_an_exhaustive_beam_finds_what_brute_force_finds(
    name: str, ctc_weight: float, config: DecodingConfig
) -> None:
    """The best five of every text of up to three tokens, and their scores; in a padded batch."""
    config = config.model_copy(update={"beam": 9**3, "nbest": 5, "max_tokens": 3})
    language_model = BigramModel() if config.language_model_weight else None
    model = build_talker(name, 0, end_bias=-2.0)
    encoded_BTD, lengths_B = random_encoded(model, [8, 3, 1], 0)
    found = search_beams(model, encoded_BTD, lengths_B, config, language_model, ctc_weight=ctc_weight)
    for row, length in enumerate(lengths_B.tolist()):
        encoded_TD = encoded_BTD[row, :length]
        longest = 3 if ctc_weight == 0 else min(3, length)
        expected = rank_all(model, encoded_TD, config, longest, ctc_weight, language_model)[:5]
        assert texts(found[row])[: len(expected)] == [text for _, text in expected]
        scores = [hypothesis.score for hypothesis in found[row]][: len(expected)]
        assert scores == pytest.approx([score for score, _ in expected], abs=1e-4)


@pytest.mark.parametrize("ctc_weight", [0.0, 0.3])
@torch.inference_mode()
def test_parts_of_the_score_are_those_of_the_text(ctc_weight: float) -> None:
    model = build_talker("transformer-hybrid", 0, -2.0)
    encoded_BTD, lengths_B = random_encoded(model, [20, 12, 5])
    config = DecodingConfig(beam=6, nbest=6, length_bonus=0.5)
    found = search_beams(model, encoded_BTD, lengths_B, config, ctc_weight=ctc_weight)
    for row, length in enumerate(lengths_B.tolist()):
        assert len(found[row]) == len(set(texts(found[row]))) >= 3
        for hypothesis in found[row]:
            arguments = (model, encoded_BTD[row, :length], [hypothesis.tokens])
            assert hypothesis.log_probability == pytest.approx(decoder_scores(*arguments)[0], abs=1e-4)
            total = (1 - ctc_weight) * hypothesis.log_probability
            if ctc_weight:
                assert hypothesis.ctc_log_probability == pytest.approx(ctc_scores(*arguments)[0], abs=1e-4)
                total += ctc_weight * hypothesis.ctc_log_probability
            else:
                assert math.isnan(hypothesis.ctc_log_probability)
            assert hypothesis.score == pytest.approx(total + 0.5 * len(hypothesis.tokens), abs=1e-6)
        scores = [hypothesis.score for hypothesis in found[row]]
        assert scores == sorted(scores, reverse=True)


@every_decoder
@torch.inference_mode()
def test_attended_steps_are_those_of_the_last_layer(name: str) -> None:
    model = build_talker(name, 1, -2.0)
    assert model.decoder is not None
    encoded_BTD, lengths_B = random_encoded(model, [18, 7, 1])
    found = search_beams(model, encoded_BTD, lengths_B, DecodingConfig(beam=4, nbest=2))
    for row, length in enumerate(lengths_B.tolist()):
        for hypothesis in found[row]:
            inputs = torch.tensor([[SOS_ID, *hypothesis.tokens]])
            alone = (encoded_BTD[row : row + 1, :length], torch.tensor([length]))
            _, weights = model.decoder(inputs, *alone, model.decoder.last_heads)
            if model.decoder.num_heads == 0:
                assert weights == {} and hypothesis.attended_steps == ()
                continue
            mean_NT = weights[model.decoder.num_layers - 1].mean(1)[0]
            expected = [sum(step * weight for step, weight in enumerate(row_T)) for row_T in mean_NT.tolist()]
            assert hypothesis.attended_steps == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", mark_relatives(HYBRID))
@pytest.mark.parametrize("ctc_weight, beam", [(0.0, 1), (0.0, 5), (0.3, 5), (0.3, 30), (1.0, 5)])
@torch.inference_mode()
def test_batch_and_padding_change_nothing(name: str, ctc_weight: float, beam: int) -> None:
    model = build_talker(name, 2, -1.0)
    lengths = [12, 3, 8, 1, 5, 10, 2]
    encoded_BTD, lengths_B = random_encoded(model, lengths)
    config = DecodingConfig(beam=beam, nbest=min(3, beam))
    together = search_beams(model, encoded_BTD, lengths_B, config, ctc_weight=ctc_weight)
    for row, length in enumerate(lengths):
        alone = (encoded_BTD[row : row + 1, :length], lengths_B[row : row + 1])
        (expected,) = search_beams(model, *alone, config, ctc_weight=ctc_weight)
        assert texts(together[row]) == texts(expected)
        scores = [hypothesis.score for hypothesis in together[row]]
        assert scores == pytest.approx([hypothesis.score for hypothesis in expected], abs=1e-4)


@torch.inference_mode()
def test_a_wider_beam_finds_no_worse(name: str = "transformer-hybrid") -> None:
    """Not a law, but so in all of these, and strictly better in some: the beam is used."""
    better = 0
    for seed in range(5):
        model = build_talker(name, seed, -2.0).double()  # float32 has errors above the bound
        encoded_BTD, lengths_B = random_encoded(model, [20, 15, 12], seed)
        encoded = encoded_BTD.double(), lengths_B
        for narrow, wide in zip(
            search_beams(model, *encoded, DecodingConfig(beam=1)),
            search_beams(model, *encoded, DecodingConfig(beam=20)),
            strict=True,
        ):
            assert wide[0].score >= narrow[0].score - 1e-6
            better += wide[0].score > narrow[0].score + 1e-3
    assert better >= 3


@torch.inference_mode()
def test_a_decoder_that_never_ends_is_stopped() -> None:
    """At one token a step, or elsewhere on demand; the end that it never said is in its score."""
    model = build_talker("lstm-hybrid")
    assert model.decoder is not None
    model.decoder.output.bias.data[NUM_SPECIAL] = 1e3
    encoded = random_encoded(model, [9, 4])
    found = search_beams(model, *encoded, DecodingConfig(beam=1))
    assert [hypotheses[0].tokens for hypotheses in found] == [(NUM_SPECIAL,) * 9, (NUM_SPECIAL,) * 4]
    assert all(hypotheses[0].log_probability < -900 for hypotheses in found)
    limited = search_beams(model, *encoded, DecodingConfig(beam=1, max_tokens=3))
    assert [hypotheses[0].tokens for hypotheses in limited] == [(NUM_SPECIAL,) * 3] * 2
    lifted = search_beams(model, *encoded, DecodingConfig(beam=1, max_tokens=20))
    assert [hypotheses[0].tokens for hypotheses in lifted] == [(NUM_SPECIAL,) * 20] * 2
    joint = search_beams(model, *encoded, DecodingConfig(beam=1, max_tokens=20), ctc_weight=0.1)
    assert [len(hypotheses[0].tokens) <= steps for hypotheses, steps in zip(joint, (9, 4), strict=True)] == [
        True
    ] * 2


@torch.inference_mode()
def test_a_search_ends_as_soon_as_nothing_can_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that is sure of the end takes one step, not one for each encoded step."""
    model = build_talker("lstm-hybrid", 0, end_bias=30.0)
    assert model.decoder is not None
    counts = []
    step = model.decoder.step
    monkeypatch.setattr(model.decoder, "step", lambda *args: counts.append(1) or step(*args))
    encoded = random_encoded(model, [20, 20])
    search_beams(model, *encoded, DecodingConfig(beam=5))
    assert len(counts) == 1
    counts.clear()
    search_beams(model, *encoded, DecodingConfig(beam=5, length_bonus=50.0))  # longer texts do win
    assert len(counts) == 21


@pytest.mark.parametrize("token", [BLANK_ID, PAD_ID, SOS_ID])
@torch.inference_mode()
def test_special_tokens_are_never_said(token: int) -> None:
    model = build_talker("transformer-hybrid", 0, -2.0)
    assert model.decoder is not None
    model.decoder.output.bias.data[token] = 20.0
    for ctc_weight in (0.0, 0.3):
        found = search_beams(
            model, *random_encoded(model, [9, 7]), DecodingConfig(beam=3, nbest=3), ctc_weight=ctc_weight
        )
        said = {token for hypotheses in found for hypothesis in hypotheses for token in hypothesis.tokens}
        assert said and said.isdisjoint({BLANK_ID, PAD_ID, SOS_ID, EOS_ID})
