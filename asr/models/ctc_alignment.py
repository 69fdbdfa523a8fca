"""Forced alignment of tokens under a CTC head."""

from __future__ import annotations

import torch
from torch import Tensor

# B batch, T encoded steps, U tokens, V vocabulary


def align_tokens(
    log_probabilities_BTV: Tensor,
    lengths_B: Tensor,
    tokens_BU: Tensor,
    token_lengths_B: Tensor,
    blank_id: int,
) -> tuple[Tensor, Tensor]:
    """First step and one past the last step of each token on the best path, each (B, U); 0 in the padding.

    Utterances with too few steps for their tokens have no path; theirs are spread evenly.
    """
    from torchaudio.functional import forced_align  # a good part of a start, for those who align nothing

    first_BU = torch.zeros(tokens_BU.shape, dtype=torch.long)
    past_BU = torch.zeros(tokens_BU.shape, dtype=torch.long)
    scores_BTV = log_probabilities_BTV.detach().float().cpu()
    tokens_BU = tokens_BU.cpu()
    # torchaudio's aligner takes one utterance at a time; it is compiled code, under a millisecond each.
    for row, (length, count) in enumerate(zip(lengths_B.tolist(), token_lengths_B.tolist(), strict=True)):
        if count == 0:
            continue
        tokens_U = tokens_BU[row, :count]
        repeats = int((tokens_U[1:] == tokens_U[:-1]).sum())
        if length < count + repeats:
            edges = torch.linspace(0, length, count + 1).long()
            first_BU[row, :count], past_BU[row, :count] = edges[:-1], edges[1:]
            continue
        path_T = forced_align(scores_BTV[row : row + 1, :length], tokens_U[None], blank=blank_id)[0][0]
        starts = (path_T != blank_id) & (path_T != torch.cat([path_T.new_full((1,), -1), path_T[:-1]]))
        ends = (path_T != blank_id) & (path_T != torch.cat([path_T[1:], path_T.new_full((1,), -1)]))
        first_BU[row, :count], past_BU[row, :count] = starts.nonzero()[:, 0], ends.nonzero()[:, 0] + 1
    return first_BU.to(lengths_B.device), past_BU.to(lengths_B.device)
