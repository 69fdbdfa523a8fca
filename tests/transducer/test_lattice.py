"""asr/transducer/lattice: sums over all paths, and shares of arcs, against paths that are listed one by one."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from transducer_examples import DURATIONS, list_paths

from asr.transducer.lattice import LOG_ZERO, RNNT_ARCS, Arc, SumOverPaths, add_up_paths, find_shares

DURATIONS_ARCS = (*(Arc(steps, 0) for steps in DURATIONS[1:]), *(Arc(steps, 1) for steps in DURATIONS))


def make_scores(arcs: tuple[Arc, ...], lengths_B: Tensor, counts_B: Tensor, seed: int = 0) -> Tensor:
    """Random ones where there are nodes, LOG_ZERO elsewhere."""
    num_steps, width = max(1, int(lengths_B.max())), int(counts_B.max()) + 1
    random = torch.Generator().manual_seed(seed)
    scores_ABTN = torch.randn(len(arcs), len(lengths_B), num_steps, width, generator=random).double() - 1
    steps_T, tokens_N = torch.arange(num_steps), torch.arange(width)
    for arc, scores_BTN in zip(arcs, scores_ABTN, strict=True):
        is_over_BT1 = (steps_T + max(arc.steps, 1 - arc.tokens) + arc.tokens > lengths_B[:, None])[..., None]
        is_said_B1N = (tokens_N + arc.tokens > counts_B[:, None])[:, None]
        scores_BTN.masked_fill_(is_over_BT1 | is_said_B1N, LOG_ZERO)
    return scores_ABTN


@pytest.mark.parametrize("arcs", [RNNT_ARCS, DURATIONS_ARCS, (Arc(1, 0), Arc(2, 0), Arc(0, 1), Arc(1, 1))])
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=3), st.integers(0, 9))
def test_sums_and_shares_are_those_of_all_paths(
    arcs: tuple[Arc, ...], sizes: list[tuple[int, int]], seed: int
) -> None:
    lengths_B, counts_B = (torch.tensor(column) for column in zip(*sizes, strict=True))
    scores_ABTN = make_scores(arcs, lengths_B, counts_B, seed)
    paths = add_up_paths(scores_ABTN, arcs, lengths_B, counts_B)
    expected_ABTN = torch.zeros_like(scores_ABTN)
    for row, (length, count) in enumerate(sizes):
        found = [*list_paths(arcs, length, count)]
        logs = [sum(scores_ABTN[a, row, t, n].item() for a, t, n in path) for path in found]
        total = math.log(sum(map(math.exp, logs)))
        assert paths.totals_B[row].item() == pytest.approx(total, abs=1e-9)
        for log, path in zip(logs, found, strict=True):
            for a, t, n in path:
                expected_ABTN[a, row, t, n] += math.exp(log - total)
    torch.testing.assert_close(find_shares(paths), expected_ABTN)


def test_a_text_without_a_path_has_no_share() -> None:
    arcs = (Arc(1, 0), Arc(1, 1))
    lengths_B, counts_B = torch.tensor([2, 0, 0]), torch.tensor([3, 0, 1])
    scores_ABTN = make_scores(arcs, lengths_B, counts_B).requires_grad_()
    totals_B = SumOverPaths.apply(scores_ABTN, arcs, lengths_B, counts_B)
    assert totals_B[0] < LOG_ZERO / 2 and totals_B[1] == 0 and totals_B[2] < LOG_ZERO / 2
    (gradient_ABTN,) = torch.autograd.grad(totals_B.sum(), scores_ABTN)
    assert not gradient_ABTN.any()


@pytest.mark.parametrize("arcs", [RNNT_ARCS, DURATIONS_ARCS])
def test_gradient_is_that_of_finite_differences(arcs: tuple[Arc, ...]) -> None:
    lengths_B, counts_B = torch.tensor([4, 2]), torch.tensor([2, 3])
    scores_ABTN = make_scores(arcs, lengths_B, counts_B)
    is_arc_ABTN = scores_ABTN > LOG_ZERO / 2

    def add_up(scores: Tensor) -> Tensor:
        full_ABTN = torch.full_like(scores_ABTN, LOG_ZERO).masked_scatter(is_arc_ABTN, scores)
        return SumOverPaths.apply(full_ABTN, arcs, lengths_B, counts_B)

    assert torch.autograd.gradcheck(add_up, scores_ABTN[is_arc_ABTN].requires_grad_())
