"""The lattice of a transducer: sums over all of its paths, and how much of the sum passes through each arc.

A path begins before the first encoded step and the first token, at (0, 0). Its arcs read steps, or emit a
token, or do both, until all steps are read and all tokens are emitted, at (T, U). All nodes with the same
step + token lie on one anti-diagonal. They depend on those before alone, so one operation computes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

# A kinds of arcs, B utterances, T encoded steps, U tokens, N numbers of tokens so far (U + 1), D diagonals

LOG_ZERO = -1e30  # the log of a probability of 0, of which sums are finite too


@dataclass(frozen=True)
class Arc:
    """An arc advances by a number of encoded steps and a number of tokens, from any node."""

    steps: int
    tokens: int

    @property
    def diagonals(self) -> int:
        return self.steps + self.tokens


RNNT_ARCS = (Arc(1, 0), Arc(0, 1))  # blank, and a token


@dataclass(frozen=True)
class Paths:
    """The paths from the start to each node, by diagonals. Column 0 is before the first token: empty."""

    arcs: tuple[Arc, ...]
    scores_ADBN: Tensor  # log-probability of each arc, at the node where it begins
    sums_DBN: Tensor  # log-probability of all paths to the node
    last_B: Tensor  # diagonal of the last node of each utterance
    counts_B: Tensor

    @property
    def totals_B(self) -> Tensor:
        """Log-probability of all paths from the start to the end."""
        rows_B = torch.arange(len(self.last_B), device=self.last_B.device)
        return self.sums_DBN[self.last_B, rows_B, self.counts_B + 1]


def add_up_paths(scores_ABTN: Tensor, arcs: tuple[Arc, ...], lengths_B: Tensor, counts_B: Tensor) -> Paths:
    """`scores_ABTN` has the log-probability of each kind of arc at each node; without an arc, LOG_ZERO."""
    _, batch, num_steps, width = scores_ABTN.shape
    scores_ADBN = _skew(scores_ABTN)
    sums_DBN = scores_ABTN.new_full((num_steps + width, batch, width + 1), LOG_ZERO)
    sums_DBN[0, :, 1] = 0.0
    for diagonal in range(1, len(sums_DBN)):
        sum_BN = sums_DBN[diagonal, :, 1:]
        for arc, scores_DBN in zip(arcs, scores_ADBN, strict=True):
            before = diagonal - arc.diagonals
            if before >= 0:
                from_BN = sums_DBN[before] + scores_DBN[before]
                sum_BN.copy_(torch.logaddexp(sum_BN, _shift(from_BN, arc)))
    return Paths(arcs, scores_ADBN, sums_DBN, lengths_B + counts_B, counts_B)


def find_shares(paths: Paths) -> Tensor:
    """(A, B, T, N): the probability that a path of the utterance passes through each arc."""
    shares_ADBN = torch.zeros_like(paths.scores_ADBN)
    for arc, scores_DBN, shares_DBN in zip(paths.arcs, paths.scores_ADBN, shares_ADBN, strict=True):
        # First the share of the paths to a node that arrive by this arc.
        reached_DBN = paths.sums_DBN[arc.diagonals :, :, 1:]
        arriving_DBN = _shift(paths.sums_DBN + scores_DBN, arc)[: len(reached_DBN)]
        _shift(shares_DBN, arc)[: len(reached_DBN)] = (arriving_DBN - reached_DBN).exp()
    nodes_DBN = torch.zeros_like(paths.sums_DBN)
    rows_B = torch.arange(len(paths.last_B), device=nodes_DBN.device)
    has_path_B = paths.totals_B > LOG_ZERO / 2
    nodes_DBN[paths.last_B, rows_B, paths.counts_B + 1] = has_path_B.to(nodes_DBN.dtype)
    for diagonal in range(len(nodes_DBN) - 1, 0, -1):
        node_BN = nodes_DBN[diagonal, :, 1:]
        for arc, shares_DBN in zip(paths.arcs, shares_ADBN, strict=True):
            before = diagonal - arc.diagonals
            if before >= 0:
                share_BN = _shift(shares_DBN[before], arc)
                share_BN *= node_BN
                _shift(nodes_DBN[before], arc).add_(share_BN)
    return _unskew(shares_ADBN)


def _shift(from_BN: Tensor, arc: Arc) -> Tensor:
    """A view of the nodes that this arc leads from, in the columns of those that it leads to."""
    return from_BN[..., :-1] if arc.tokens else from_BN[..., 1:]


def _skew(scores_ABTN: Tensor) -> Tensor:
    """(A, D, B, N + 1): by diagonal in place of step, with an empty column before the others."""
    num_steps, width = scores_ABTN.shape[2:]
    rows_N = torch.arange(width, device=scores_ABTN.device)
    steps_DN = torch.arange(num_steps + width, device=scores_ABTN.device)[:, None] - rows_N
    is_none_DN = (steps_DN < 0) | (steps_DN >= num_steps)
    scores_ABDN = scores_ABTN[:, :, steps_DN.clamp(0, num_steps - 1), rows_N]
    scores_ABDN = F.pad(scores_ABDN.masked_fill(is_none_DN, LOG_ZERO), (1, 0), value=LOG_ZERO)
    return scores_ABDN.transpose(1, 2).contiguous()


def _unskew(shares_ADBN: Tensor) -> Tensor:
    width = shares_ADBN.size(3) - 1
    num_steps = shares_ADBN.size(1) - width
    steps_T, rows_N = (torch.arange(size, device=shares_ADBN.device) for size in (num_steps, width))
    return shares_ADBN.transpose(1, 2)[:, :, steps_T[:, None] + rows_N, rows_N + 1]


class SumOverPaths(torch.autograd.Function):
    """(B,) log-probabilities of the utterances; the gradient of an arc is its share."""

    @staticmethod
    def forward(
        ctx: Any, scores_ABTN: Tensor, arcs: tuple[Arc, ...], lengths_B: Tensor, counts_B: Tensor
    ) -> Tensor:
        ctx.paths = add_up_paths(scores_ABTN, arcs, lengths_B, counts_B)
        return ctx.paths.totals_B

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_B: Tensor) -> tuple[Tensor | None, ...]:
        return gradient_B[:, None, None] * find_shares(ctx.paths), None, None, None
