"""CTC prefix scores against all alignments one by one, a plain float64 recursion, and PyTorch's loss."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from decoding_examples import collapse, ctc_losses
from hypothesis import given, strategies as st

from asr.models.decoders import CTCPrefixes
from asr.text.tokenizer import BLANK_ID

VOCABULARY = 4  # the blank and three tokens


def random_scores(batch: int, steps: int, vocabulary: int, seed: int, scale: float = 2.0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(batch, steps, vocabulary, generator=random)).log_softmax(-1)


def brute_force(scores_TV: torch.Tensor, prefix: tuple[int, ...]) -> tuple[float, float]:
    """Log-probability that the text begins with the prefix, and that it is just that; from every alignment."""
    begins = is_all = 0.0
    for path in itertools.product(range(scores_TV.size(1)), repeat=len(scores_TV)):
        probability = math.exp(sum(scores_TV[step, token].item() for step, token in enumerate(path)))
        text = collapse(path)
        begins += probability * (text[: len(prefix)] == prefix)
        is_all += probability * (text == prefix)
    return (math.log(begins) if begins else -math.inf), (math.log(is_all) if is_all else -math.inf)


def brute_force_times(scores_TV: torch.Tensor, prefix: tuple[int, ...]) -> list[float]:
    """Probability of the prefix and that the next token begins at each step; at the last also that none does."""
    times = [0.0] * len(scores_TV)
    for path in itertools.product(range(scores_TV.size(1)), repeat=len(scores_TV)):
        starts = [t for t, token in enumerate(path) if token != BLANK_ID and path[:t][-1:] != (token,)]
        if collapse(path)[: len(prefix)] == prefix:
            probability = math.exp(sum(scores_TV[step, token].item() for step, token in enumerate(path)))
            times[starts[len(prefix)] if len(starts) > len(prefix) else -1] += probability
    return times


def score_prefix(scores_TV: torch.Tensor, prefix: list[int]) -> tuple[float, float]:
    """Ours, for one utterance and one beam."""
    prefixes = CTCPrefixes(scores_TV[None], torch.tensor([len(scores_TV)]))
    begins = 0.0
    for token in prefix:
        begins = prefixes.candidate_scores(torch.tensor([[[token]]])).item()
        prefixes.advance(torch.tensor([[0]]), torch.tensor([[token]]))
    return begins, prefixes.end_scores().item()


@given(st.integers(0, 1000), st.integers(1, 5), st.lists(st.integers(1, VOCABULARY - 1), max_size=4))
def test_scores_are_the_sums_over_all_alignments(seed: int, steps: int, prefix: list[int]) -> None:
    scores_TV = random_scores(1, steps, VOCABULARY, seed)[0]
    for ours, theirs in zip(
        score_prefix(scores_TV, prefix), brute_force(scores_TV, tuple(prefix)), strict=True
    ):
        assert ours == pytest.approx(theirs, abs=1e-5)


@given(st.integers(0, 1000), st.integers(1, 5), st.lists(st.integers(1, VOCABULARY - 1), max_size=3))
def test_times_of_the_next_token_are_the_sums_over_all_alignments(
    seed: int, steps: int, prefix: list[int]
) -> None:
    """That nothing follows counts at the last step; the padding has no say."""
    scores_TV = random_scores(1, steps, VOCABULARY, seed)[0]
    expected = brute_force_times(scores_TV, tuple(prefix))
    padded_BTV = torch.cat([scores_TV, random_scores(1, 2, VOCABULARY, 1)[0]])[None]
    prefixes = CTCPrefixes(padded_BTV, torch.tensor([steps]))
    for token in prefix:
        prefixes.advance(torch.tensor([[0]]), torch.tensor([[token]]))
    times_T = prefixes.next_token_times()[0, 0]
    assert times_T[steps:].tolist() == [0.0, 0.0]
    if total := sum(expected):  # else there are too few steps for the prefix
        assert times_T[:steps].tolist() == pytest.approx([one / total for one in expected], abs=1e-5)


@pytest.mark.parametrize("scale", [0.5, 5.0, 50.0])
def test_long_utterances_stay_exact(scale: float) -> None:
    """Sums of log-probabilities reach thousands here; in float32 they would be off by a thousandth."""
    scores_TV = random_scores(1, 300, 10, 0, scale)[0]
    prefix = [3, 3, 1, 2, 2, 2, 9, 4, 5, 5, 6, 1] * 3
    expected = -ctc_losses(scores_TV, [tuple(prefix)])[0]
    assert score_prefix(scores_TV, prefix)[1] == pytest.approx(expected, abs=1e-6 * abs(expected))


def test_probabilities_of_nothing_do_no_harm() -> None:
    """A head may rule tokens out: log-probabilities of -inf."""
    scores_TV = random_scores(1, 5, VOCABULARY, 3)[0]
    scores_TV[:, 2] = -torch.inf
    scores_TV[3:, BLANK_ID] = -torch.inf
    expected = brute_force(scores_TV, (1, 3))[1]
    assert score_prefix(scores_TV, [1, 3])[1] == pytest.approx(expected, abs=1e-5)
    assert score_prefix(scores_TV, [2])[0] < -9000
