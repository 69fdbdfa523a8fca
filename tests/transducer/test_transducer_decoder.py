"""asr/transducer/transducer_decoder: the loss of a model against all alignments one by one, and where tokens are emitted."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from model_examples import NUM_SPECIAL, VOCAB_SIZE, make_utterances
from torch import Tensor
from transducer_examples import DURATIONS, build_transducer, encode, list_paths, score_steps

from asr.decoding.timestamps import align_by_attention
from asr.errors import UserError
from asr.models.decoders import TeacherForcing
from asr.models.losses import Targets
from asr.models.speech_model import SpeechModel, SpeechModelConfig
from asr.text.tokenizer import BLANK_ID
from asr.transducer.transducer_decoder import TransducerDecoder, TransducerDecoderConfig

KINDS = [("stateless", ()), ("lstm", ()), ("stateless", DURATIONS), ("lstm", (0, 1, 3))]
every_kind = pytest.mark.parametrize(("predictor", "durations"), KINDS)
TEXTS = [(6, 7), (5, 5, 6), (), (8,)]
LENGTHS = [4, 3, 2, 1]


def as_targets(texts: list[tuple[int, ...]]) -> Targets:
    rows = [torch.tensor([*text, *[0] * (3 - len(text))]) for text in texts]
    return Targets(torch.stack(rows), torch.tensor([len(text) for text in texts]))


def score_path(model: SpeechModel, encoded_TE: Tensor, text: tuple[int, ...], path: list[Any]) -> float:
    """Log-probability of an alignment."""
    decoder = model.decoder
    assert isinstance(decoder, TransducerDecoder)
    total = 0.0
    for kind, step, count in path:
        arc = decoder.arcs[kind]
        by_token, by_duration = score_steps(model, encoded_TE[step], text[:count])
        total += math.log(by_token[text[count] if arc.tokens else BLANK_ID])
        if decoder.durations:
            total += math.log(by_duration[decoder.durations.index(arc.steps)])
    return total


def compute_loss(model: SpeechModel, encoded: tuple[Tensor, Tensor], texts: list[tuple[int, ...]]) -> Tensor:
    assert model.decoder is not None
    return model.decoder.compute_loss(as_targets(texts), encoded, {}, TeacherForcing(0.1)).loss


@every_kind
@torch.no_grad()
def test_loss_is_that_of_all_alignments(predictor: str, durations: tuple[int, ...]) -> None:
    model = build_transducer(predictor, durations=durations)
    encoded = encode(model, LENGTHS)
    assert isinstance(model.decoder, TransducerDecoder)
    expected = 0.0
    for row, (text, length) in enumerate(zip(TEXTS, LENGTHS, strict=True)):
        paths = list_paths(model.decoder.arcs, length, len(text))
        logs = [score_path(model, encoded[0][row, :length], text, path) for path in paths]
        expected -= math.log(sum(map(math.exp, logs)))
    assert compute_loss(model, encoded, TEXTS).item() == pytest.approx(expected, rel=1e-5)


@every_kind
def test_padding_changes_neither_loss_nor_gradient(predictor: str, durations: tuple[int, ...]) -> None:
    model = build_transducer(predictor, durations=durations)
    encoded_BTE, lengths_B = encode(model, LENGTHS)
    losses, gradients = [], []
    alone = [(encoded_BTE[row : row + 1, :n], lengths_B[row : row + 1]) for row, n in enumerate(LENGTHS)]
    for parts in (
        [((encoded_BTE, lengths_B), TEXTS)],
        [(one, [text]) for one, text in zip(alone, TEXTS, strict=True)],
    ):
        model.zero_grad()
        loss = sum(compute_loss(model, encoded, texts) for encoded, texts in parts)
        loss.backward()
        losses.append(float(loss.detach()))
        assert model.decoder is not None
        gradients.append([parameter.grad.clone() for parameter in model.decoder.parameters()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for own, other in zip(*gradients, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-4)
        assert own.abs().max() > 0


def test_an_utterance_without_steps_has_no_loss() -> None:
    model = build_transducer()
    encoded_BTE, _ = encode(model, [3, 3])
    loss = compute_loss(model, (encoded_BTE, torch.tensor([0, 3])), [(6, 7), (8,)])
    alone = compute_loss(model, (encoded_BTE[1:], torch.tensor([3])), [(8,)])
    assert loss.item() == pytest.approx(alone.item(), rel=1e-6)


@every_kind
@torch.no_grad()
def test_a_predictor_reads_on_where_it_stopped(predictor: str, durations: tuple[int, ...]) -> None:
    model = build_transducer(predictor, durations=durations)
    assert isinstance(model.decoder, TransducerDecoder)
    tokens_RU = torch.randint(NUM_SPECIAL, VOCAB_SIZE, (3, 5))
    start = model.decoder.predictor.start(3, tokens_RU.device)
    whole_RUD, _ = model.decoder.predict(tokens_RU, start)
    state, parts = start, []
    for tokens_R1 in tokens_RU.split(1, dim=1):
        part_R1D, state = model.decoder.predict(tokens_R1, state)
        parts.append(part_R1D)
    torch.testing.assert_close(torch.cat(parts, 1), whole_RUD)


@torch.no_grad()
def test_a_stateless_predictor_sees_two_tokens() -> None:
    decoder = build_transducer().decoder
    assert isinstance(decoder, TransducerDecoder)
    tokens_RU = torch.tensor([[5, 6, 7, 8], [6, 6, 7, 8], [5, 6, 6, 8]])
    last_RD = decoder.predict(tokens_RU, decoder.predictor.start(3, tokens_RU.device))[0][:, -1]
    assert torch.equal(last_RD[0], last_RD[1]) and not torch.allclose(last_RD[0], last_RD[2])


@every_kind
@torch.no_grad()
def test_attention_is_where_tokens_are_emitted(predictor: str, durations: tuple[int, ...]) -> None:
    """By the share of each alignment in the sum; scores are those at the likeliest step."""
    model = build_transducer(predictor, durations=durations)
    encoded_BTE, lengths_B = encode(model, LENGTHS)
    decoder = model.decoder
    assert isinstance(decoder, TransducerDecoder)
    targets = as_targets(TEXTS)
    scores_BNV, weights = decoder.score_reference(targets, (encoded_BTE, lengths_B), decoder.last_heads)
    for row, (text, length) in enumerate(zip(TEXTS, LENGTHS, strict=True)):
        expected_NT = torch.zeros(len(text) + 1, length)
        expected_NT[-1, -1] = 1.0
        paths = [*list_paths(decoder.arcs, length, len(text))]
        chances = [math.exp(score_path(model, encoded_BTE[row], text, path)) for path in paths]
        for path, chance in zip(paths, chances, strict=True):
            for kind, step, count in path:
                if decoder.arcs[kind].tokens:
                    expected_NT[count, step] += chance / sum(chances)
        torch.testing.assert_close(
            weights[0][row, 0, : len(text) + 1, :length], expected_NT, rtol=1e-4, atol=1e-5
        )
        for count in range(len(text) + 1):
            likeliest = encoded_BTE[row, int(expected_NT[count].argmax())]
            by_token = torch.tensor(score_steps(model, likeliest, text[:count])[0])
            by_token[1:4] = 0.0  # the special tokens
            found = scores_BNV[row, count].double().exp()
            torch.testing.assert_close(found, by_token.double(), rtol=1e-3, atol=1e-5)


def test_tokens_are_aligned_by_emission() -> None:
    model = build_transducer()
    encoded = encode(model, [9, 8])
    (first, second) = align_by_attention(model, *encoded, [[6, 7, 8], [5]])
    assert [one.first for one in first] == sorted({one.first for one in first}) and len(second) == 1
    assert all(0 < one.probability <= 1 and 0 <= one.first < 9 for one in [*first, *second])


def test_the_model_reports_the_loss_beside_that_of_ctc() -> None:
    model = build_transducer()
    batch = make_utterances([40, 24], [4, 2])
    losses = model(*batch)
    assert {"ctc", "transducer"} <= set(model.reported) and set(losses.parts) == {"ctc", "transducer"}
    expected = 0.3 * losses.parts["ctc"] + 0.7 * losses.parts["transducer"]
    assert losses.total.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("durations", [(1,), (0, 2), (0, 1, 1), (1, 0)])
def test_durations_are_checked(durations: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="rising numbers that begin with 0 and 1"):
        TransducerDecoderConfig(durations=durations)


def test_ctc_is_beside_it() -> None:
    encoder = {"type": "lstm", "dim": 8}
    with pytest.raises(UserError, match="transducer needs CTC too"):
        SpeechModelConfig(encoder=encoder, decoder={"type": "transducer"}, ctc_weight=0.0)
    with pytest.raises(UserError, match="guided_attention needs a decoder with attention"):
        SpeechModelConfig(encoder=encoder, decoder={"type": "transducer"}, guided_attention={"loss": {}})
