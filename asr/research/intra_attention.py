"""Intra-attention (LSTMN, Cheng et al. 2016): an LSTM whose state is a weighted mean of its past states."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from asr.config import Depth
from asr.models.encoders import LayeredEncoderConfig, RecurrentEncoder

# B batch, T steps, P past steps, F features, D dimension of a state, N any number of parts of D


class IntraAttentionEncoderConfig(LayeredEncoderConfig):
    """Layers of bidirectional LSTMs that attend to their own past states."""

    type: Literal["intra_attention"] = "intra_attention"
    num_layers: Depth = 2


class IntraAttentionState:
    """State of an `IntraAttentionCell` for each row: a tape of its steps so far, which starts empty."""

    def __init__(self) -> None:
        self._length = 0
        # Keys, hidden states and cell states. Without gradients it has spare room for more steps.
        self._tape_BTN: Tensor | None = None
        self.query_BD: Tensor | None = None  # contribution of the last summary to the next query

    def read(self) -> tuple[Tensor, Tensor]:
        """Return keys (B, P, D) and states (B, P, 2 D) of all steps."""
        assert self._tape_BTN is not None, "the tape is empty"
        tape_BPN = self._tape_BTN[:, : self._length]
        dim = tape_BPN.size(-1) // 3
        return tape_BPN[..., :dim], tape_BPN[..., dim:]

    def append(self, keys_BD: Tensor, hidden_BD: Tensor, cell_BD: Tensor) -> None:
        entry_BN = torch.cat([keys_BD, hidden_BD, cell_BD], dim=-1)
        if torch.is_grad_enabled():  # the backward pass needs the tape as it was at each step
            old = [] if self._tape_BTN is None else [self._tape_BTN[:, : self._length]]
            self._tape_BTN = torch.cat([*old, entry_BN[:, None]], dim=1)
        else:
            if self._tape_BTN is None or self._tape_BTN.size(1) == self._length:
                longer_BTN = entry_BN.new_empty(len(entry_BN), max(16, 2 * self._length), entry_BN.size(1))
                if self._tape_BTN is not None:
                    longer_BTN[:, : self._length] = self._tape_BTN
                self._tape_BTN = longer_BTN
            self._tape_BTN[:, self._length] = entry_BN
        self._length += 1

    def select(self, rows_B: Tensor) -> None:
        """Keep only these rows, the surviving beams, in this order."""
        if self._tape_BTN is not None and self.query_BD is not None:
            self._tape_BTN = self._tape_BTN[rows_B]
            self.query_BD = self.query_BD[rows_B]


class IntraAttentionCell(nn.Module):
    """One step of the recurrence. With past states h_i and c_i, and summary h' of the previous step:

        a_i = v . tanh(W_h h_i + W_x x + W_s h')       s = softmax(a)
        h~ = sum_i s_i h_i                             c~ = sum_i s_i c_i
        i, f, o = sigmoid(W [h~, x])                   c^ = tanh(W_c [h~, x])
        c = f c~ + i c^                                h = o tanh(c)

    The summaries h~ and c~ of the first step, which has no past, are zero. As tanh(z) = 2 sigmoid(2 z) - 1
    and a softmax ignores constants, the tanh of the scores is computed as a sigmoid, which takes a tenth of
    the time on a CPU. This is the reason for every 2 below.
    """

    def __init__(self, input_dim: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.input = nn.Linear(input_dim, 5 * dim)  # input to query and gates
        self.summary = nn.Linear(dim, 5 * dim, bias=False)  # summary to next query and gates
        self.key = nn.Linear(dim, dim, bias=False)  # hidden state to key
        self.energy = nn.Linear(dim, 1, bias=False)

    def forward(self, x_BD: Tensor, state: IntraAttentionState) -> Tensor:
        """Compute the hidden state (B, D) of the next step, and append it to the state."""
        query_BD, gates_BN = self.input(x_BD).split([self.dim, 4 * self.dim], dim=-1)
        if state.query_BD is None:
            next_query_BD = cell_BD = torch.zeros_like(query_BD)
        else:
            keys_BPD, states_BPN = state.read()
            query_BD = 2 * (query_BD + state.query_BD)
            scores_BP1 = 2 * self.energy((keys_BPD + query_BD[:, None]).sigmoid())
            summary_BN = (scores_BP1.softmax(dim=1).mT @ states_BPN)[:, 0]
            hidden_BD, cell_BD = summary_BN.chunk(2, dim=-1)
            next_query_BD, added_BN = self.summary(hidden_BD).split([self.dim, 4 * self.dim], dim=-1)
            gates_BN = gates_BN + added_BN
        into_BD, kept_BD, out_BD = gates_BN[:, : 3 * self.dim].sigmoid().chunk(3, dim=-1)
        cell_BD = kept_BD * cell_BD + into_BD * gates_BN[:, 3 * self.dim :].tanh()
        hidden_BD = out_BD * cell_BD.tanh()
        state.query_BD = next_query_BD
        state.append(2 * self.key(hidden_BD), hidden_BD, cell_BD)
        return hidden_BD


class Recurrence(torch.autograd.Function):
    """All steps of an `IntraAttentionCell`, from projected inputs (T, B, 5 D) to hidden states (B, T, D).

    Training is two to three times as fast as step by step. Memory is linear in T, except for attention
    weights, because tapes are written once and the backward pass computes the sigmoids again.
    """

    @staticmethod
    def forward(ctx: Any, inputs_TBN: Tensor, summary_ND: Tensor, key_DD: Tensor, energy_D: Tensor) -> Tensor:
        length, batch, dim = *inputs_TBN.shape[:2], len(energy_D)
        queries_TBD, gates_TBN = inputs_TBN[..., :dim].clone(), inputs_TBN[..., dim:].clone()
        keys_BTD = inputs_TBN.new_empty(batch, length, dim)
        states_BTN = inputs_TBN.new_empty(batch, length, 2 * dim)
        summaries_TBN = inputs_TBN.new_zeros(length, batch, 2 * dim)
        added_BN = inputs_TBN.new_zeros(batch, 5 * dim)
        weights = []
        for t in range(length):
            past = slice(t)
            queries_TBD[t].add_(added_BN[:, :dim]).mul_(2)
            if t > 0:
                similarity_BPD = (keys_BTD[:, past] + queries_TBD[t][:, None]).sigmoid_()
                weights.append((2 * (similarity_BPD @ energy_D)).softmax(dim=1))
                summaries_TBN[t] = torch.bmm(weights[-1][:, None], states_BTN[:, past])[:, 0]
                added_BN = summaries_TBN[t, :, :dim] @ summary_ND.T
            gates_BN = gates_TBN[t].add_(added_BN[:, dim:])
            gates_BN[:, : 3 * dim].sigmoid_()
            gates_BN[:, 3 * dim :].tanh_()
            into_BD, kept_BD, out_BD, new_BD = gates_BN.chunk(4, dim=1)
            cell_BD = torch.addcmul(kept_BD * summaries_TBN[t, :, dim:], into_BD, new_BD)
            hidden_BD = out_BD * cell_BD.tanh()
            states_BTN[:, t, :dim], states_BTN[:, t, dim:] = hidden_BD, cell_BD
            keys_BTD[:, t] = 2 * (hidden_BD @ key_DD.T)
        ctx.save_for_backward(
            *(summary_ND, key_DD, energy_D, queries_TBD, gates_TBN, keys_BTD, states_BTN, summaries_TBN),
            *weights,
        )
        return states_BTN[..., :dim].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_hidden_BTD: Tensor) -> tuple[Tensor | None, ...]:
        """`d_x` is the gradient of x. Gradients accumulate in the tapes until the step that wrote them."""
        summary_ND, key_DD, energy_D, queries_TBD, gates_TBN, *tapes = ctx.saved_tensors
        keys_BTD, states_BTN, summaries_TBN, *weights = tapes
        length, batch, dim = queries_TBD.shape
        d_keys_BTD = torch.zeros_like(keys_BTD)
        d_states_BTN = torch.cat([d_hidden_BTD, torch.zeros_like(d_hidden_BTD)], dim=-1)
        d_inputs_TBN = gates_TBN.new_zeros(length, batch, 5 * dim)
        d_added_TBN = torch.zeros_like(d_inputs_TBN)
        d_energy_D = torch.zeros_like(energy_D)
        for t in reversed(range(length)):
            past = slice(t)
            d_hidden_BD = torch.addmm(d_states_BTN[:, t, :dim], d_keys_BTD[:, t], key_DD, alpha=2)
            d_gates_BN, d_cell_BD = _gates_backward(
                *(d_hidden_BD, d_states_BTN[:, t, dim:]),
                *(gates_TBN[t], states_BTN[:, t, dim:], summaries_TBN[t, :, dim:]),
            )
            d_inputs_TBN[t, :, dim:] = d_gates_BN
            if t == 0:
                break
            d_added_TBN[t, :, dim:] = d_gates_BN
            d_summary_BN = torch.cat([d_added_TBN[t] @ summary_ND, d_cell_BD], dim=1)
            # In the other order this product would take eight times as long.
            d_weights_BP = torch.bmm(d_summary_BN[:, None], states_BTN[:, past].mT)[:, 0]
            weights_BP = weights[t - 1]
            d_states_BTN[:, past].addcmul_(weights_BP[..., None], d_summary_BN[:, None])
            d_scores_BP = weights_BP * d_weights_BP
            d_scores_BP -= weights_BP * d_scores_BP.sum(1, keepdim=True)
            similarity_BPD = (keys_BTD[:, past] + queries_TBD[t][:, None]).sigmoid_()
            d_energy_D += 2 * d_scores_BP.flatten() @ similarity_BPD.flatten(0, 1)
            d_sums_BPD = torch.ops.aten.sigmoid_backward(2 * d_scores_BP[..., None], similarity_BPD)
            d_keys_BTD[:, past].addcmul_(d_sums_BPD, energy_D)
            d_query_BD = 2 * d_sums_BPD.sum(1) * energy_D
            d_inputs_TBN[t, :, :dim] = d_added_TBN[t - 1, :, :dim] = d_query_BD
        d_summary_ND = d_added_TBN.flatten(0, 1).T @ summaries_TBN[..., :dim].flatten(0, 1)
        d_key_DD = 2 * d_keys_BTD.flatten(0, 1).T @ states_BTN[..., :dim].flatten(0, 1)
        return d_inputs_TBN, d_summary_ND, d_key_DD, d_energy_D


def _gates_backward(
    d_hidden_BD: Tensor, d_cell_BD: Tensor, gates_BN: Tensor, cell_BD: Tensor, summary_BD: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the gates, before their sigmoid or tanh, and of the cell summary."""
    into_BD, kept_BD, out_BD, new_BD = gates_BN.chunk(4, dim=1)
    tanh_BD = cell_BD.tanh()
    d_cell_BD = d_cell_BD + torch.ops.aten.tanh_backward(d_hidden_BD * out_BD, tanh_BD)
    d_sigmoids_BN = torch.cat([d_cell_BD * new_BD, d_cell_BD * summary_BD, d_hidden_BD * tanh_BD], dim=1)
    d_gates_BN = torch.cat(
        [
            torch.ops.aten.sigmoid_backward(d_sigmoids_BN, gates_BN[:, : d_sigmoids_BN.size(1)]),
            torch.ops.aten.tanh_backward(d_cell_BD * into_BD, new_BD),
        ],
        dim=1,
    )
    return d_gates_BN, d_cell_BD * kept_BD


class IntraAttention(nn.Module):
    """One layer in one direction, from (B, T, input_dim) to hidden states (B, T, D)."""

    def __init__(self, input_dim: int, dim: int) -> None:
        super().__init__()
        self.cell = IntraAttentionCell(input_dim, dim)

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, None]:
        """Return hidden states and None, where PyTorch's recurrent layers return their last state."""
        weights = (self.cell.summary.weight, self.cell.key.weight, self.cell.energy.weight[0])
        inputs_TBN = self.cell.input(x_BTD.transpose(0, 1)).to(weights[0].dtype)
        with torch.autocast(x_BTD.device.type, enabled=False):
            return Recurrence.apply(inputs_TBN, *weights), None


class IntraAttentionEncoder(RecurrentEncoder):
    """An encoder of LSTM layers that attend to their own past states."""

    def __init__(self, config: IntraAttentionEncoderConfig, num_features: int) -> None:
        super().__init__(config, num_features, partial(IntraAttention, dim=config.dim))
