"""CTC prefix scores against all alignments one by one, a plain float64 recursion, and PyTorch's loss."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from decoding_examples import collapse, ctc_losses
from hypothesis import given, settings, strategies as st

from asr.models import CTCPrefixes
from asr.text import BLANK_ID

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
@settings(max_examples=40)
def test_scores_are_the_sums_over_all_alignments(seed: int, steps: int, prefix: list[int]) -> None:
    scores_TV = random_scores(1, steps, VOCABULARY, seed)[0]
    for ours, theirs in zip(
        score_prefix(scores_TV, prefix), brute_force(scores_TV, tuple(prefix)), strict=True
    ):
        assert ours == pytest.approx(theirs, abs=1e-5)


@given(st.integers(0, 1000), st.integers(1, 5), st.lists(st.integers(1, VOCABULARY - 1), max_size=3))
@settings(max_examples=40)
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


def test_all_beams_and_utterances_at_once() -> None:
    """Two rounds of extension by different parents, in a padded batch, each against its prefix alone."""
    lengths = [9, 4, 1, 6]
    scores_BTV = random_scores(4, 9, 6, 1)
    prefixes = CTCPrefixes(scores_BTV, torch.tensor(lengths))
    all_tokens = [[1, 3], [5, 5], [3, 1], [1, 5]]
    parents = [[1, 0, 1], [0, 0, 1], [1, 1, 0], [0, 1, 0]]
    next_tokens = [[3, 1, 1], [5, 2, 5], [4, 3, 3], [1, 5, 5]]
    prefixes.advance(torch.zeros(4, 2, dtype=torch.long), torch.tensor(all_tokens))
    begins_BWC = prefixes.candidate_scores(torch.tensor(all_tokens)[:, None].expand(-1, 2, -1))
    prefixes.advance(torch.tensor(parents), torch.tensor(next_tokens))
    ends_BW = prefixes.end_scores()
    for row, length in enumerate(lengths):
        scores_TV = scores_BTV[row, :length]
        for beam, column in itertools.product(range(2), range(2)):
            prefix = [all_tokens[row][beam], all_tokens[row][column]]
            expected = max(-9e3, score_prefix(scores_TV, prefix)[0])  # -inf: too few steps
            assert max(-9e3, begins_BWC[row, beam, column].item()) == pytest.approx(expected, abs=1e-5)
        for beam in range(3):
            prefix = [all_tokens[row][parents[row][beam]], next_tokens[row][beam]]
            expected = max(-9e3, score_prefix(scores_TV, prefix)[1])
            assert max(-9e3, ends_BW[row, beam].item()) == pytest.approx(expected, abs=1e-5)


def test_selected_utterances_go_on_as_before() -> None:
    scores_BTV, lengths_B = random_scores(3, 8, 6, 2), torch.tensor([8, 5, 7])
    kept = torch.tensor([2, 0])
    whole, part = CTCPrefixes(scores_BTV, lengths_B), CTCPrefixes(scores_BTV, lengths_B)
    parents, tokens = torch.zeros(3, 2, dtype=torch.long), torch.tensor([[1, 2], [3, 4], [5, 1]])
    whole.advance(parents, tokens)
    part.advance(parents, tokens)
    part.select_utterances(kept)
    again = torch.tensor([[[1, 2, 3], [2, 5, 4]]]).expand(3, -1, -1)
    torch.testing.assert_close(part.candidate_scores(again[kept]), whole.candidate_scores(again)[kept])
    whole.advance(parents, tokens)
    part.advance(parents[kept], tokens[kept])
    torch.testing.assert_close(part.end_scores(), whole.end_scores()[kept])


def test_probabilities_of_nothing_do_no_harm() -> None:
    """A head may rule tokens out: log-probabilities of -inf."""
    scores_TV = random_scores(1, 5, VOCABULARY, 3)[0]
    scores_TV[:, 2] = -torch.inf
    scores_TV[3:, BLANK_ID] = -torch.inf
    expected = brute_force(scores_TV, (1, 3))[1]
    assert score_prefix(scores_TV, [1, 3])[1] == pytest.approx(expected, abs=1e-5)
    assert score_prefix(scores_TV, [2])[0] < -9000
