"""asr/research/non_autoregressive_search: lengths, ends and gaps compared with loops; other guarantees."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from decoding_examples import (
    BigramModel,
    build_talker,
    decode_by_decoder,
    encode_in_batches,
    random_encoded,
    search,
)
from hypothesis import given, strategies as st
from model_examples import NUM_SPECIAL, PARALLEL, VOCAB_SIZE, every_non_autoregressive
from torch import Tensor

from asr.decoding.decode import offered_methods, plan_fallbacks, resolve_method
from asr.decoding.hypothesis import DecodingConfig, Hypothesis, find_best_paths
from asr.errors import UserError
from asr.models.speech_model import SpeechModel
from asr.research import non_autoregressive_search
from asr.research.non_autoregressive import LengthDecoder, MaskDecoder
from asr.text.tokenizer import BLANK_ID, UNK_ID

# T encoded steps, D dimension, U tokens or queries, V vocabulary

LENGTHS = [13, 1, 7, 4]


def decode_parallel(
    model: SpeechModel, encoded: tuple[Tensor, Tensor], **config: Any
) -> list[list[Hypothesis]]:
    return search(model, *encoded, DecodingConfig(method="parallel", **config))


def alone(encoded: tuple[Tensor, Tensor], row: int) -> tuple[Tensor, Tensor]:
    length = int(encoded[1][row])
    return encoded[0][row : row + 1, :length], encoded[1][row : row + 1]


def say(scores_UV: Tensor, tokens: range) -> list[tuple[int, float]]:
    """The best of these tokens at each position, and its log-probability among all tokens."""
    log_probabilities = scores_UV.double().log_softmax(-1).tolist()
    return [
        max(((token, row[token]) for token in tokens), key=lambda pair: pair[1]) for row in log_probabilities
    ]


# --- one utterance by itself --------------------------------------------------------------------


@pytest.mark.parametrize(
    "config", [{"beam": 1}, {"beam": 4, "nbest": 4}, {"beam": 30, "nbest": 30}, {"beam": 5, "nbest": 2}]
)
@torch.no_grad()
def test_the_most_likely_lengths_are_tried(config: dict[str, Any]) -> None:
    model = build_talker("parallel-length", 1)
    decoder = model.decoder
    assert isinstance(decoder, LengthDecoder)
    decoder.length_predictor.log_scale.fill_(1.0)  # undecided
    encoded = random_encoded(model, LENGTHS)
    for row, hypotheses in enumerate(decode_parallel(model, encoded, **config)):
        own = alone(encoded, row)
        mean = decoder.length_predictor(*own).item()
        expected = []
        for count in range(2 * LENGTHS[row] + 1):
            scores_1UV, _ = decoder(torch.tensor([count]), count, decoder.precompute_kv(*own))
            said = say(scores_1UV[0], range(UNK_ID, VOCAB_SIZE))
            below, above = ((count + half - mean) / math.e for half in (-0.5, 0.5))
            chance = math.log(1 / (1 + math.exp(-above)) - 1 / (1 + math.exp(-below)))
            total = chance + sum(log_probability for _, log_probability in said)
            expected.append((chance, total, tuple(token for token, _ in said)))
        expected = sorted(sorted(expected)[-config["beam"] :], key=lambda entry: -entry[1])
        expected = expected[: config.get("nbest", 1)]
        assert [hypothesis.tokens for hypothesis in hypotheses] == [tokens for *_, tokens in expected]
        for hypothesis, (_, total, tokens) in zip(hypotheses, expected, strict=True):
            assert hypothesis.score == hypothesis.log_probability == pytest.approx(total, abs=1e-4)
            assert len(hypothesis.attended_steps) == len(tokens) + 1
            assert hypothesis.attended_steps[-1] == LENGTHS[row] - 1  # no query predicts the end


@given(
    path=st.lists(st.integers(BLANK_ID, NUM_SPECIAL + 2), min_size=1, max_size=9),
    chances=st.lists(st.floats(0.4, 1.0), min_size=9, max_size=9),
    padding=st.integers(0, 3),
)
def test_tokens_and_probabilities_of_ctc(path: list[int], chances: list[float], padding: int) -> None:
    """In a batch with longer and shorter ones."""
    rows = [path, path[:1], [NUM_SPECIAL] * (len(path) + padding)]
    scores_BTV = torch.full((3, len(path) + padding, VOCAB_SIZE), -20.0)
    for row, own in enumerate(rows):
        for step, token in enumerate(own):
            scores_BTV[row, step, token] = math.log(chances[step % 9])
    paths = find_best_paths(scores_BTV, torch.tensor([len(row) for row in rows]))
    for row, own in enumerate(rows):
        expected = []
        for token, steps in itertools.groupby(range(len(own)), key=own.__getitem__):
            if token != BLANK_ID:
                expected.append((token, max(chances[step % 9] for step in steps)))
        count = int(paths.counts_B[row])
        assert paths.tokens_BU[row, :count].tolist() == [token for token, _ in expected]
        starts = [step for step, token in enumerate(own) if step == 0 or token != own[step - 1]]
        assert paths.steps_BU[row, :count].tolist() == [step for step in starts if own[step] != BLANK_ID]
        sure = paths.log_probabilities_BU[row, :count].exp().tolist()
        assert sure == pytest.approx([chance for _, chance in expected], rel=1e-5)


def fill_gaps(
    model: SpeechModel, own: tuple[Tensor, Tensor], threshold: float, iterations: int
) -> tuple[list[int], list[float], int]:
    """Tokens, their log-probabilities, and passes: Mask-CTC for one utterance, in plain Python."""
    decoder = model.decoder
    assert isinstance(decoder, MaskDecoder)
    paths = find_best_paths(model.ctc_log_probabilities(own[0]), own[1])
    tokens, sure = paths.tokens_BU[0].tolist(), paths.log_probabilities_BU[0].tolist()
    gaps = {place for place, value in enumerate(sure) if math.exp(value) < threshold}
    num_gaps, passes = len(gaps), min(iterations, len(gaps))
    for number in range(1, passes + 1):
        read = [decoder.mask_id if place in gaps else token for place, token in enumerate(tokens)]
        counts_B = torch.tensor([len(tokens)])
        scores_1UV, _ = decoder(torch.tensor([read]), counts_B, decoder.precompute_kv(*own))
        said = say(scores_1UV[0], range(UNK_ID, VOCAB_SIZE))
        num_left = num_gaps * (passes - number) // passes
        for place in sorted(gaps, key=lambda place: -said[place][1])[: len(gaps) - num_left]:
            tokens[place], sure[place] = said[place]
            gaps.remove(place)
    return tokens, sure, passes


@torch.no_grad()
def test_the_most_probable_gaps_are_filled_first(monkeypatch: pytest.MonkeyPatch) -> None:
    model, texts = build_talker("mask-ctc", 2), set()
    encoded = random_encoded(model, [30, 1, 17, 24])
    for threshold, iterations in itertools.product((0.0, 0.5, 1.0), (1, 2, 5, 20)):
        monkeypatch.setattr(non_autoregressive_search, "MASK_THRESHOLD", threshold)
        monkeypatch.setattr(non_autoregressive_search, "MAX_PASSES", iterations)
        found = decode_parallel(model, encoded)
        texts.add(tuple(best.tokens for best, *_ in found))
        for row, (hypothesis,) in enumerate(found):
            tokens, sure, passes = fill_gaps(model, alone(encoded, row), threshold, iterations)
            assert hypothesis.tokens == tuple(tokens)
            assert hypothesis.log_probability == pytest.approx(sum(sure), abs=1e-4)
            assert math.isnan(hypothesis.ctc_log_probability)
            assert len(hypothesis.attended_steps) == (len(tokens) + 1 if passes else 0)
    assert len(texts) >= 3  # more passes change a text


# --- guarantees of the search -------------------------------------------------------------------


@every_non_autoregressive
def test_texts_do_not_depend_on_the_batch(name: str) -> None:
    model = build_talker(name, 2, -2.0)
    if isinstance(model.decoder, LengthDecoder):
        torch.nn.init.zeros_(model.decoder.length_predictor.count.bias)  # more tokens for each step
    texts: dict[int, list[Any]] = {1: [], 7: [], 20: []}
    for size, found in texts.items():
        for encoded in encode_in_batches(model, size):
            ranked = decode_parallel(model, encoded, beam=4, nbest=2)
            found += [[text.tokens for text in hypotheses] for hypotheses in ranked]
    assert texts[1] == texts[7] == texts[20]
    assert len({ranked[0] for ranked in texts[1]}) > 3  # otherwise a constant output would pass


@every_non_autoregressive
def test_without_encoded_steps_there_is_no_text(name: str) -> None:
    model = build_talker(name, 0, -2.0)
    encoded_BTD, lengths_B = random_encoded(model, [9, 0, 5, 0])
    found = decode_parallel(model, (encoded_BTD, lengths_B))
    for (hypothesis,) in (found[1], found[3]):
        assert (hypothesis.tokens, hypothesis.score, hypothesis.log_probability) == ((), 0.0, 0.0)
    said = decode_by_decoder(model, encoded_BTD, lengths_B)
    assert said[1] == said[3] == []
    assert decode_parallel(model, (encoded_BTD[:0], lengths_B[:0])) == []


@every_non_autoregressive
def test_nbest_lists_are_ranked_and_have_no_special_tokens(name: str) -> None:
    model = build_talker(name, 1, -2.0)
    for hypotheses in decode_parallel(model, random_encoded(model, [12, 1, 6]), beam=6, nbest=5):
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True) and all(map(math.isfinite, scores))
        assert len({hypothesis.tokens for hypothesis in hypotheses}) == len(hypotheses)
        if name != "mask-ctc":  # an untrained CTC head outputs arbitrary tokens
            assert all(token >= UNK_ID for hypothesis in hypotheses for token in hypothesis.tokens)


@pytest.mark.parametrize("name", [*PARALLEL, "transformer-hybrid", "transformer-ctc"])
def test_each_decoder_has_the_methods_that_it_supports(name: str) -> None:
    ctc: list[str] = ["ctc_greedy", "ctc_beam"]
    expected: dict[str, tuple[str, list[str]]] = {
        "parallel-length": ("parallel", ["parallel"]),
        "mask-ctc": ("parallel", ["ctc_greedy", "ctc_beam", "parallel"]),
        "transformer-hybrid": ("joint", [*ctc, "attention", "rescoring", "joint"]),
        "transformer-ctc": ("ctc_beam", ctc),
    }
    model = build_talker(name)
    assert (resolve_method(model, "auto"), offered_methods(model)) == expected[name]
    encoded = random_encoded(model, [5])
    for method in ("ctc_greedy", "ctc_beam", "parallel", "attention", "rescoring", "joint"):
        if method not in expected[name][1]:
            with pytest.raises(UserError, match=f"method {method} needs .*; use {expected[name][0]}"):
                search(model, *encoded, DecodingConfig(method=method))


@pytest.mark.parametrize(
    ("name", "instead"), [("parallel-length", "leave it out"), ("mask-ctc", "use ctc_beam")]
)
def test_a_language_model_is_never_ignored(name: str, instead: str) -> None:
    model = build_talker(name)
    config = DecodingConfig(method="parallel", language_model_weight=0.5)
    with pytest.raises(UserError, match=f"parallel has no use for a language model; {instead}"):
        search(model, *random_encoded(model, [5]), config, BigramModel())
    kept = ["ctc_beam"] if name == "mask-ctc" else ["parallel"]
    assert offered_methods(model, with_language_model=True) == kept


def test_rejected_texts_are_decoded_again_with_ctc() -> None:
    def methods(name: str) -> list[str]:
        return [attempt.method for attempt in plan_fallbacks(build_talker(name), DecodingConfig())]

    assert methods("mask-ctc") == ["parallel", "ctc_beam"]
    assert methods("parallel-length") == ["parallel"]  # a second attempt would give the same text
