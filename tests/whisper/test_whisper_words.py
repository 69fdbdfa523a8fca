"""Time warping compared with a search of all paths, the attention heads used, and words from tokens."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from whisper_examples import VOCAB_SIZE, VOCABULARY
from whisper_systems import build_system

from asr.decoding.hypothesis import EncodedAudio
from asr.decoding.timestamps import warp_batch
from asr.transcripts.transcript import Word
from asr.whisper import (
    WhisperSizes,
    align_tokens,
    find_alignment_heads,
    find_sizes,
    make_tokenizer,
    time_words,
    units_of,
)


def warp_plainly(cost_NT: np.ndarray) -> tuple[float, list[int]]:
    """The least cost from corner to corner, and the first step of each row on such a path."""

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
    tokenizer, steps = system.tokenizer, [20, 12, 5]
    encoded_BTD = torch.randn(3, 20, 32, generator=torch.Generator().manual_seed(1))
    special, heads = units_of(tokenizer).special, find_alignment_heads(find_sizes(system))
    prompt, lengths_B = special.prompt("en"), torch.full((3,), 20)
    encoded = EncodedAudio(system.model, encoded_BTD, lengths_B)
    texts = [tokenizer.encode(text) for text in ("the rain in spain", "the", "plain on the sun again")]
    together = align_tokens(encoded, heads, special.first, steps, [prompt] * 3, texts)
    for row, (ids, firsts, found) in enumerate(zip(texts, *together, strict=True)):
        part = encoded.select(torch.tensor([row]))
        alone = align_tokens(part, heads, special.first, steps[row : row + 1], [prompt], [ids])
        assert alone[0] == [firsts]
        assert len(firsts) == len(ids) + 1 and firsts == sorted(firsts)
        assert firsts[0] == 0 and firsts[-1] < steps[row]
        scores_NV = system.model.decoder(torch.tensor([[*prompt, *ids]]), part.encoded_BTD, part.lengths_B)[
            0
        ][0, 3:-1]
        scores_NV[:, :5] = scores_NV[:, special.first :] = -torch.inf
        expected = scores_NV.softmax(-1)[range(len(ids)), ids]
        np.testing.assert_allclose(alone[1][0], found, rtol=1e-3)
        np.testing.assert_allclose(found, expected, rtol=1e-3)


UNITS = units_of(make_tokenizer(VOCABULARY, VOCAB_SIZE))


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
def test_words(text: str, language: str, expected: list[str]) -> None:
    assert [word.text for word in time(UNITS.encode_piece(text), language)] == expected


def test_punctuation_takes_no_time() -> None:
    the, comma, sun = (UNITS.encode_piece(text) for text in (" the", ",", " sun"))
    first, second = time([*the, *comma, *sun])
    assert (first.text, first.start, first.end) == ("the,", 0.0, pytest.approx(0.2 * len(the)))
    assert second.start == pytest.approx(0.2 * len([*the, *comma])) and second.end > second.start
    assert second.confidence == pytest.approx(0.25)
    (alone,) = time(comma)
    assert (alone.start, alone.end) == (0.0, pytest.approx(0.2))


def test_bytes_that_are_no_letters_are_lost_nowhere() -> None:
    the, lead, sun = UNITS.encode_piece(" the"), UNITS.pieces.index(b"\xe4"), UNITS.encode_piece(" sun")
    assert [word.text for word in time([*the, lead, *sun])] == ["the\ufffd", "sun"]
    assert [word.text for word in time([*the, lead])] == ["the\ufffd"]


def test_a_character_of_several_tokens_is_timed_from_its_first_byte() -> None:
    first, second = time(UNITS.encode_piece("今日"), "ja")
    assert (first.start, first.end) == (0.0, pytest.approx(0.6))
    assert (second.start, second.end) == (pytest.approx(0.6), pytest.approx(1.2))


def time(tokens: list[int], language: str = "en") -> list[Word]:
    """Words whose tokens take 0.2 seconds each."""
    return time_words(
        UNITS.pieces, tokens, language, range(0, 10 * len(tokens) + 1, 10), [0.25] * len(tokens)
    )
