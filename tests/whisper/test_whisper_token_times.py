"""Warping against a search of all paths, the heads that are looked at, and the words of tokens."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from whisper_examples import VOCABULARY
from whisper_systems import build_system

from asr.decoding import warp_batch
from asr.whisper import (
    EncodedSteps,
    WhisperSizes,
    WhisperTokenizer,
    align_tokens,
    find_alignment_heads,
    split_words,
    time_words,
)


def warp_plainly(cost_NT: np.ndarray) -> tuple[float, list[int]]:
    """The least cost from corner to corner, and the first step of each row on a path that has it."""

    @functools.cache
    def go(row: int, step: int) -> tuple[float, tuple[int, ...]]:
        if row == step == 0:
            return float(cost_NT[0, 0]), (0,)
        ways = []
        for rows, steps in ((1, 1), (1, 0), (0, 1)):
            if row >= rows and step >= steps:
                total, firsts = go(row - rows, step - steps)
                ways.append((total + float(cost_NT[row, step]), (*firsts, step) if rows else firsts))
        return min(ways)

    total, firsts = go(cost_NT.shape[0] - 1, cost_NT.shape[1] - 1)
    return total, list(firsts)


@settings(max_examples=60)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9)), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_warping(shapes: list[tuple[int, int]], seed: int) -> None:
    random = np.random.default_rng(seed)
    costs = [random.standard_normal(shape) for shape in shapes]
    assert warp_batch(costs, may_share=True) == [warp_plainly(cost)[1] for cost in costs]


def config(dim: int, layers: int, heads: int, vocab_size: int, **more: object) -> WhisperSizes:
    sizes = {"num_mels": 80, "encoder_layers": 1, "encoder_heads": heads} | more
    return WhisperSizes(dim=dim, decoder_layers=layers, decoder_heads=heads, vocab_size=vocab_size, **sizes)  # type: ignore[arg-type]


def test_heads() -> None:
    assert find_alignment_heads(config(384, 4, 6, 51_865)) == {2: (2,), 3: (0, 2, 3, 4, 5)}
    assert find_alignment_heads(config(512, 6, 8, 51_864)) == {3: (3,), 4: (7,), 5: (1, 5, 7)}
    turbo = config(1280, 4, 20, 51_866, num_mels=128)
    assert find_alignment_heads(turbo) == {2: (4, 11), 3: (3, 6, 11, 14)}
    large = [config(1280, 32, 20, size, num_mels=mels) for size, mels in ((51_865, 80), (51_866, 128))]
    assert [sum(map(len, find_alignment_heads(one).values())) for one in large] == [23, 10]
    own = config(384, 4, 6, 51_865, alignment_heads=((3, 1), (1, 0), (3, 0)))
    assert find_alignment_heads(own) == {1: (0,), 3: (0, 1)}
    assert find_alignment_heads(config(32, 4, 2, 51_865)) == {2: (0, 1), 3: (0, 1)}


@torch.inference_mode()
def test_tokens_have_the_same_times_and_probabilities_in_any_company() -> None:
    system = build_system(True)
    encoded_BTD = torch.randn(3, 20, 32, generator=torch.Generator().manual_seed(1))
    lengths_B, steps = torch.full((3,), 20), [20, 12, 5]
    tokenizer = system.tokenizer
    tokens = [tokenizer.encode(text) for text in (" the rain in spain", " the", " plain on the sun again")]
    prompts = [tokenizer.prompt("en")] * 3
    audio = EncodedSteps(encoded_BTD, lengths_B)
    firsts, probabilities = align_tokens(system.model, tokenizer, audio, steps, prompts, tokens)
    for row, ids in enumerate(tokens):
        part = audio.select([row])
        alone = align_tokens(system.model, tokenizer, part, steps[row : row + 1], prompts[:1], [ids])
        assert alone[0] == [firsts[row]]
        np.testing.assert_allclose(alone[1][0], probabilities[row], rtol=1e-3)
        assert len(firsts[row]) == len(ids) + 1 and firsts[row] == sorted(firsts[row])
        assert firsts[row][0] == 0 and firsts[row][-1] < steps[row]
        scores_NV = system.model.decoder(torch.tensor([[*prompts[0], *ids]]), *part[:2])[0][0]
        expected = [
            float(scores_NV[3 + place, : tokenizer.end].softmax(-1)[id]) for place, id in enumerate(ids)
        ]
        np.testing.assert_allclose(probabilities[row], expected, rtol=1e-3)


@pytest.fixture(scope="module")
def tokenizer() -> WhisperTokenizer:
    return WhisperTokenizer(VOCABULARY, 99, True)


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        (" the rain, ends again.", "en", ["the", "rain,", "ends", "again."]),
        (" schön  wär's", "de", ["schön", "wär's"]),
        ("今日は。いい", "ja", ["今", "日", "は。", "い", "い"]),
        (" ", "en", []),
        (" - the", "en", ["-", "the"]),
    ],
)
def test_words(tokenizer: WhisperTokenizer, text: str, language: str, expected: list[str]) -> None:
    tokens = tokenizer.encode(text)
    spans = split_words(tokenizer, tokens, language)
    assert [span.text for span in spans] == expected
    for span in spans:
        assert span.text in tokenizer.decode(tokens[span.tokens])
        assert span.tokens.start <= span.timed.start < span.timed.stop <= span.tokens.stop


def test_punctuation_takes_no_time(tokenizer: WhisperTokenizer) -> None:
    tokens = [*tokenizer.encode(" the"), *tokenizer.encode(","), *tokenizer.encode(" sun")]
    first, second = split_words(tokenizer, tokens, "en")
    assert tokenizer.decode(tokens[first.timed]).strip() == "the"
    words = time_words([first, second], list(range(0, 10 * len(tokens) + 1, 10)), [0.25] * len(tokens))
    assert words[0].start == 0.0 and words[0].end == pytest.approx(0.2 * first.timed.stop)
    assert words[1].start == pytest.approx(0.2 * second.timed.start) and words[1].confidence == pytest.approx(
        0.25
    )


def test_bytes_that_are_no_letters_are_lost_nowhere(tokenizer: WhisperTokenizer) -> None:
    tokens = [*tokenizer.encode(" the"), tokenizer.vocabulary.index(b"\xe4"), *tokenizer.encode(" sun")]
    assert [span.text for span in split_words(tokenizer, tokens, "en")] == ["the\ufffd", "sun"]
    cut = [*tokenizer.encode(" the"), tokenizer.vocabulary.index(b"\xe4")]
    assert [span.text for span in split_words(tokenizer, cut, "en")] == ["the\ufffd"]
