"""Beam search against brute force over every text, and a beam of one against the same in plain Python."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from decoding_examples import (
    BigramModel,
    build_talker,
    ctc_scores,
    decode_by_decoder,
    decoder_scores,
    limit_tokens,
    random_encoded,
    rank_all,
    search_beams,
)
from model_examples import (
    NUM_SPECIAL,
    RELATIVES,
    SYSTEMS,
    VOCAB_SIZE,
    WITH_DECODER,
    build_example,
    every_system,
    make_utterances,
    mark_relatives,
)

from asr.decoding.beam import score_texts
from asr.decoding.hypothesis import DecodingConfig, Hypothesis
from asr.models.speech_model import SpeechModel
from asr.text.tokenizer import BLANK_ID, EOS_ID, PAD_ID, SOS_ID, UNK_ID

HYBRID = [name for name in WITH_DECODER if SYSTEMS[name].ctc_weight > 0]
every_decoder = pytest.mark.parametrize("name", mark_relatives(WITH_DECODER))


def texts(hypotheses: list[Hypothesis]) -> list[tuple[int, ...]]:
    return [hypothesis.tokens for hypothesis in hypotheses]


CASES = [
    (0.0, DecodingConfig()),
    (0.3, DecodingConfig()),
    (1.0, DecodingConfig()),
    (1.0, DecodingConfig(language_model_weight=0.7)),
    (0.0, DecodingConfig(language_model_weight=0.8)),
    (0.4, DecodingConfig(language_model_weight=0.5)),
]


# Each case with one decoder, two cases with others; all with all is slow.
PAIRS = [
    pytest.param(
        *(name, *case),
        marks=()
        if name == "transformer-hybrid" or (name not in RELATIVES and number in (0, 5))
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
    config = config.model_copy(update={"beam": 9**3, "nbest": 5})
    language_model = BigramModel() if config.language_model_weight else None
    model = build_talker(name, 0, end_bias=-2.0)
    limit_tokens(model, 3)
    encoded_BTD, lengths_B = random_encoded(model, [8, 3, 1], 0)
    found = search_beams(model, encoded_BTD, lengths_B, config, language_model, ctc_weight=ctc_weight)
    for row, length in enumerate(lengths_B.tolist()):
        encoded_TD = encoded_BTD[row, :length]
        longest = 3 if ctc_weight == 0 else min(3, length)
        expected = rank_all(model, encoded_TD, config, longest, ctc_weight, language_model)[:5]
        assert texts(found[row])[: len(expected)] == [text for _, text in expected]
        scores = [hypothesis.score for hypothesis in found[row]][: len(expected)]
        assert scores == pytest.approx([score for score, _ in expected], abs=1e-4)
        own = texts(found[row])
        for weight, attribute, find in (
            (1 - ctc_weight, "log_probability", decoder_scores),
            (ctc_weight, "ctc_log_probability", ctc_scores),
        ):
            parts = [getattr(hypothesis, attribute) for hypothesis in found[row]]
            assert parts == pytest.approx(
                find(model, encoded_TD, own) if weight else [math.nan] * len(own), abs=1e-4, nan_ok=True
            )


@every_decoder
@torch.inference_mode()
def test_attended_steps_are_those_of_the_last_layer(name: str) -> None:
    model = build_talker(name, 1, -2.0)
    assert model.decoder is not None
    encoded_BTD, lengths_B = random_encoded(model, [9, 5, 1])
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


@torch.inference_mode()
def test_attended_steps_of_several_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder may name heads of more than one layer: their mean counts."""
    model = build_talker("transformer-attention", 1, -2.0)
    monkeypatch.setattr(type(model.decoder), "last_heads", {0: (1,), 1: (0, 3)})
    assert model.decoder is not None
    encoded = random_encoded(model, [9])
    ((hypothesis, *_),) = search_beams(model, *encoded, DecodingConfig(beam=2))
    inputs = torch.tensor([[SOS_ID, *hypothesis.tokens]])
    _, weights = model.decoder(inputs, *encoded, model.decoder.last_heads)
    mean_NT = torch.cat([weights[0], weights[1]], dim=1).mean(1)[0]
    assert hypothesis.attended_steps == pytest.approx((mean_NT @ torch.arange(9.0)).tolist(), abs=1e-4)


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


@torch.inference_mode()
def build_constant(decoder: dict[int, float], ctc: dict[int, float]) -> SpeechModel:
    """Heads that give the same scores to these tokens at each step, and next to nothing to others."""
    model = build_talker("transformer-hybrid")
    assert model.decoder is not None and model.ctc_head is not None
    for layer, scores in ((model.decoder.output, decoder), (model.ctc_head, ctc)):
        layer.weight.zero_()
        layer.bias.fill_(-50.0)
        for token, score in scores.items():
            layer.bias[token] = score
    return model


@pytest.mark.parametrize(("gap", "text"), [(1.9, ()), (2.1, (7, 7, 7))])
@torch.inference_mode()
def test_a_text_ends_only_where_the_end_is_likely(gap: float, text: tuple[int, ...]) -> None:
    """Each token costs something, so a beam prefers the empty text as soon as it may end."""
    model = build_constant({7: 0.0, EOS_ID: -gap}, {BLANK_ID: 0.0})
    limit_tokens(model, 3)
    found = search_beams(model, *random_encoded(model, [6]), DecodingConfig(beam=3))
    assert texts(found[0])[:1] == [text]


@pytest.mark.parametrize(("token", "is_found"), [(6, True), (7, True), (8, False)])
@torch.inference_mode()
def test_ctc_scores_three_candidates_of_a_beam_of_two(token: int, is_found: bool) -> None:
    """CTC is sure of the token that is the second, third or fourth of the decoder."""
    decoder = {5: 0.0, 6: -0.1, 7: -0.2, 8: -0.3, EOS_ID: -1.0}
    model = build_constant(decoder, {token: 0.0, BLANK_ID: -8.0})
    limit_tokens(model, 1)
    found = search_beams(model, *random_encoded(model, [1]), DecodingConfig(beam=2), ctc_weight=0.5)
    assert (texts(found[0])[:1] == [(token,)]) == is_found


# --- greedy --------------------------------------------------------------------------------------

LENGTHS = [6, 4, 0, 1, 5]


def decode_plainly(model: SpeechModel, encoded_TD: torch.Tensor, limit: int) -> list[int]:
    """One utterance without padding; everything is computed again for each token."""
    assert model.decoder is not None
    tokens: list[int] = []
    while len(tokens) < limit:
        inputs = torch.tensor([[SOS_ID, *tokens]])
        scores_BUV, _ = model.decoder(inputs, encoded_TD[None], torch.tensor([len(encoded_TD)]))
        scores = scores_BUV[0, -1].tolist()
        best = max([EOS_ID, UNK_ID, *range(NUM_SPECIAL, VOCAB_SIZE)], key=lambda token: scores[token])
        if best == EOS_ID:
            break
        tokens.append(best)
    return tokens


@every_decoder
@torch.inference_mode()
def test_decoder_equals_a_plain_loop(name: str) -> None:
    """In a batch, with a cache, ending at different times."""
    endings = set()
    for max_tokens, bias in itertools.product((None, 4), (-3.0, 0.0, 3.0)):
        model = build_talker(name, int(max_tokens is None), bias)
        encoded_BTD, lengths_B = random_encoded(model, LENGTHS)
        decoded = decode_by_decoder(model, encoded_BTD, lengths_B, max_tokens)
        for row, length in enumerate(LENGTHS):
            limit = length if model.ctc_head is not None else 2 * length
            if max_tokens is not None and length:
                limit = max_tokens
            assert decoded[row] == decode_plainly(model, encoded_BTD[row, :length], limit)
            endings.add(
                "limit" if len(decoded[row]) == limit else "at once" if not decoded[row] else "between"
            )
    assert "limit" in endings and len(endings) > 1


@every_decoder
@torch.inference_mode()
def test_a_decoder_that_never_ends_is_stopped(name: str) -> None:
    """At one token a step, or two where no CTC head forbids it; at another number on demand."""
    model = build_talker(name)
    model.decoder.output.bias.data[NUM_SPECIAL] += 1e4
    encoded = random_encoded(model, LENGTHS)
    per_step = 1 if model.ctc_head is not None else model.subsampling_factor // 2
    assert decode_by_decoder(model, *encoded) == [[NUM_SPECIAL] * per_step * length for length in LENGTHS]
    for max_tokens in (4, 13):
        limited = decode_by_decoder(model, *encoded, max_tokens=max_tokens)
        assert limited == [[NUM_SPECIAL] * max_tokens * bool(length) for length in LENGTHS]


@every_system
def test_training_goes_on_after_decoding(name: str) -> None:
    """What decoding leaves in a model (tables of positions) must serve a backward pass."""
    model, batch = build_example(name), make_utterances([80, 60], [3, 2])
    with torch.inference_mode():
        encoded = model.encode(*batch[:2])
        if model.decoder is not None:
            decode_by_decoder(model, *encoded)
    model.train()(*batch).total.backward()


@pytest.mark.parametrize("padding", [EOS_ID, PAD_ID, 7])
def test_whole_texts_under_a_language_model(padding: int) -> None:
    """With their end; what is impossible in the padding does no harm."""
    texts = [(5, 6, 5), (), (7,), (12, 12), (4, 4, 4)]
    tokens_RU = torch.tensor([[*text, *[padding] * (3 - len(text))] for text in texts])
    model, lengths_R = BigramModel(), torch.tensor([len(text) for text in texts])
    model.scores_VV[:, PAD_ID] = -torch.inf
    expected = [model.log_probability(text) for text in texts]
    assert score_texts(model, tokens_RU, lengths_R, SOS_ID, EOS_ID).tolist() == pytest.approx(expected)
    scores = score_texts(model, torch.empty(2, 0, dtype=torch.long), torch.tensor([0, 0]), SOS_ID, EOS_ID)
    assert scores.tolist() == pytest.approx([model.log_probability(())] * 2)
