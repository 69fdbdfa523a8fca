"""Times of tokens, from the CTC head or else from cross-attention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.decoding.word_spans import TokenTime
from asr.models.layers import length_mask
from asr.models.losses import Targets
from asr.models.speech_model import SpeechModel
from asr.text.tokenizer import BLANK_ID, PAD_ID

# B batch, T encoded steps, U tokens, N rows of the decoder (tokens and the end), V vocabulary, S samples

# --- tokens -------------------------------------------------------------------------------------


def pad_tokens(tokens: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """(B, U) tokens and (B,) their counts."""
    rows = [torch.tensor(list(ids), dtype=torch.long) for ids in tokens]
    return pad_sequence(rows, batch_first=True, padding_value=PAD_ID), torch.tensor([*map(len, rows)])


def align_by_ctc(
    log_probabilities_BTV: Tensor, lengths_B: Tensor, tokens: Sequence[Sequence[int]]
) -> list[list[TokenTime]]:
    """Forced alignment: find the best path through the CTC posteriors that spells the tokens."""
    tokens_BU, counts_B = pad_tokens(tokens)
    scores_BTV = log_probabilities_BTV.float().cpu()
    first_BU, past_BU = align_tokens(scores_BTV, lengths_B.cpu(), tokens_BU, counts_B)
    aligned = []
    for row, ids in enumerate(tokens):
        times = []
        for column, token in enumerate(ids):
            first = int(first_BU[row, column])
            past = max(int(past_BU[row, column]), first + 1)
            best = float(scores_BTV[row, first:past, token].max()) if first < scores_BTV.size(1) else -np.inf
            times.append(TokenTime(first, past - 1, float(np.exp(best))))
        aligned.append(times)
    return aligned


@torch.no_grad()
def align_tokens(
    log_probabilities_BTV: Tensor, lengths_B: Tensor, tokens_BU: Tensor, token_lengths_B: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the first step and one past the last step of each token on the best path, each (B, U).

    Padding is 0. Without a path, because there are too few steps, tokens are spread evenly.
    """
    max_tokens = tokens_BU.size(1)
    is_token_BU = length_mask(token_lengths_B, max_tokens)
    states_BT = _best_path(log_probabilities_BTV, lengths_B, tokens_BU, token_lengths_B)
    state_BU = (2 * torch.arange(max_tokens, device=tokens_BU.device) + 1).repeat(len(tokens_BU), 1)
    first_BU = torch.searchsorted(states_BT, state_BU)
    past_BU = torch.searchsorted(states_BT, state_BU, right=True).clamp(max=lengths_B[:, None])

    is_repeat_BU = (tokens_BU[:, 1:] == tokens_BU[:, :-1]) & is_token_BU[:, 1:]
    has_path_B1 = (lengths_B >= token_lengths_B + is_repeat_BU.sum(1))[:, None]
    edges_N = torch.arange(max_tokens + 1, device=tokens_BU.device)
    edges_BN = lengths_B[:, None] * edges_N // token_lengths_B.clamp(min=1)[:, None]
    first_BU = torch.where(has_path_B1, first_BU, edges_BN[:, :-1])
    past_BU = torch.where(has_path_B1, past_BU, edges_BN[:, 1:])
    return first_BU * is_token_BU, past_BU * is_token_BU


def _best_path(
    log_probabilities_BTV: Tensor, lengths_B: Tensor, tokens_BU: Tensor, token_lengths_B: Tensor
) -> Tensor:
    """Return the (B, T) states of the best path (Viterbi): 2u + 1 for token u, even for blanks.

    A path stays in its state, moves to the next one, or skips the blank between two different tokens.
    """
    batch_size, num_steps, _ = log_probabilities_BTV.shape
    num_states = 2 * tokens_BU.size(1) + 1
    labels_BS = tokens_BU.new_full((batch_size, num_states), BLANK_ID)
    labels_BS[:, 1::2] = tokens_BU
    emissions_BTS = log_probabilities_BTV.float().gather(2, labels_BS[:, None].expand(-1, num_steps, -1))
    may_skip_BS = labels_BS != BLANK_ID
    may_skip_BS[:, 3::2] &= tokens_BU[:, 1:] != tokens_BU[:, :-1]
    skip_BS = torch.where(may_skip_BS, 0.0, -torch.inf)

    # Two columns on the left stand for the time before the first state; all paths start in the second.
    scores_TBS = emissions_BTS.new_full((num_steps + 1, batch_size, 2 + num_states), -torch.inf)
    scores_TBS[0, :, 1] = 0
    stay_TBS, step_TBS = scores_TBS[:-1, :, 2:], scores_TBS[:-1, :, 1:-1]
    for t, emissions_BS in enumerate(emissions_BTS.unbind(1)):
        best_BS = torch.maximum(stay_TBS[t], step_TBS[t])
        best_BS = torch.maximum(best_BS, scores_TBS[t, :, :-2] + skip_BS)
        scores_TBS[t + 1, :, 2:] = best_BS + emissions_BS

    moves_TBS = (step_TBS > stay_TBS).byte()
    moves_TBS[scores_TBS[:-1, :, :-2] + skip_BS > torch.maximum(stay_TBS, step_TBS)] = 2
    moves_TBS *= length_mask(lengths_B, num_steps).T[:, :, None]  # after its end a path keeps its state
    last_B1 = 2 * token_lengths_B[:, None]
    final_BS = scores_TBS[lengths_B, torch.arange(batch_size, device=lengths_B.device)]
    ends_B2 = final_BS.gather(1, torch.cat([last_B1 + 1, last_B1 + 2], 1))  # the last token or the last blank
    state_B1 = (last_B1 - 1 + ends_B2.argmax(1, keepdim=True)).clamp(min=0)
    path = [state_B1]
    for moves_BS in reversed(moves_TBS[1:].unbind(0)):
        state_B1 = state_B1 - moves_BS.gather(1, state_B1)
        path.append(state_B1)
    return torch.cat(path[::-1], 1)


@torch.inference_mode()
def align_by_attention(
    model: SpeechModel, encoded_BTD: Tensor, lengths_B: Tensor, tokens: Sequence[Sequence[int]]
) -> list[list[TokenTime]]:
    """Dynamic time warping over the mean cross-attention of the decoder's last layer."""
    assert model.decoder is not None
    tokens_BU, counts_B = pad_tokens(tokens)
    targets = Targets(tokens_BU.to(encoded_BTD.device), counts_B.to(encoded_BTD.device))
    encoded = (encoded_BTD, lengths_B)
    scores_BNV, weights = model.score_reference(targets, encoded, model.decoder.last_heads)
    probabilities_BNV = scores_BNV.float().softmax(-1).cpu()
    weights_BHNT = torch.cat([*weights.values()], dim=1)
    weights_BNT = weights_BHNT.mean(1).float().cpu().numpy()
    aligned = []
    for row, (ids, length) in enumerate(zip(tokens, lengths_B.tolist(), strict=True)):
        firsts, pasts = warp(weights_BNT[row, : len(ids), :length])
        times = []
        for column, (token, first, past) in enumerate(zip(ids, firsts, pasts, strict=True)):
            # Warping assigns all steps, including silence; the token is where attention is highest.
            peak = first + int(np.argmax(weights_BNT[row, column, first:past])) if past > first else first
            times.append(TokenTime(peak, peak, float(probabilities_BNV[row, column, token])))
        aligned.append(times)
    return aligned


def warp(weights_UT: np.ndarray) -> tuple[list[int], list[int]]:
    """Return first step and one past the last of each token on the monotonic path with most attention.

    The path covers all steps and tokens; with fewer steps than tokens it is a straight line.
    """
    num_tokens, num_steps = weights_UT.shape
    if num_tokens == 0 or num_steps < num_tokens:
        edges = np.linspace(0, num_steps, num_tokens + 1).astype(int).tolist()
        return edges[:-1], edges[1:]
    (firsts,) = warp_batch([-np.log(weights_UT + 1e-8)], may_share=False)
    return firsts, [*firsts[1:], num_steps]


def warp_batch(costs: Sequence[np.ndarray], may_share: bool) -> list[list[int]]:
    """Find, for each matrix (U, T), the first step of each row on the cheapest path from corner to corner.

    The path continues with the next step in the same or the next row; if rows may share a step, also with the
    next row only. All matrices are processed together, diagonal by diagonal.
    """
    num_rows = max(len(cost) for cost in costs)
    num_steps = max(cost.shape[1] for cost in costs)
    # Diagonal d has row u at step d - u, so each diagonal depends only on the two before it.
    skewed_BDU = np.full((len(costs), num_rows + num_steps - 1, num_rows), np.inf)
    for diagonal_DU, cost_UT in zip(skewed_BDU, costs, strict=True):
        for row, cost_T in enumerate(cost_UT):
            diagonal_DU[row : row + len(cost_T), row] = cost_T
    moves_BDU = np.zeros(skewed_BDU.shape, np.int8)  # move 0: row and step, 1: row, 2: step
    beyond_B1 = np.full((len(costs), 1), np.inf)
    before_BU = np.full((len(costs), num_rows), np.inf)  # the diagonal before
    both_BU = before_BU.copy()  # the one before, for moves by a row and a step
    both_BU[:, 0] = 0.0
    for diagonal in range(skewed_BDU.shape[1]):
        above_BU = np.concatenate([beyond_B1, before_BU[:, :-1]], axis=1)
        row_BU = above_BU if may_share else np.full_like(above_BU, np.inf)
        is_both_BU = (both_BU < row_BU) & (both_BU < before_BU)
        is_row_BU = (row_BU < both_BU) & (row_BU < before_BU)
        moves_BDU[:, diagonal] = np.where(is_both_BU, 0, np.where(is_row_BU, 1, 2))
        best_BU = np.where(is_both_BU, both_BU, np.where(is_row_BU, row_BU, before_BU))
        both_BU, before_BU = above_BU, skewed_BDU[:, diagonal] + best_BU
    return [_trace(moves_BDU[diagonal], cost.shape) for diagonal, cost in enumerate(costs)]


def _trace(moves_DU: np.ndarray, shape: tuple[int, ...]) -> list[int]:
    row, step = shape[0] - 1, shape[1] - 1
    firsts = [0] * shape[0]
    while row >= 0 and step >= 0:
        firsts[row] = step
        move = 1 if step == 0 else 2 if row == 0 else int(moves_DU[row + step, row])
        row, step = row - (move != 2), step - (move != 1)
    return firsts
