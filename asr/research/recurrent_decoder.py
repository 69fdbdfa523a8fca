"""Recurrent decoders: with attention to the encoded steps, a single summary of them, or intra-attention.

These came before the Transformer. Cho et al. 2014 compress the utterance into one vector; Bahdanau et al.
2015 and Chorowski et al. 2015 attend to the encoded steps before each token; Cheng et al. 2016 also let the
network attend to its own past.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, Literal

import pydantic
import torch
from torch import Tensor, nn

from asr.config import Config, Depth, Size
from asr.models.decoders import Decoder, DecoderConfig, DecoderState, Weights, WeightsOf
from asr.models.layers import Dropout, Kernel, length_mask
from asr.research.intra_attention import IntraAttentionCell, IntraAttentionState

# B utterances, W beams of each, R = B x W rows, T encoded steps, E their dimension, U tokens, D dimension of
# the decoder and its state, A dimension of query and key, C of a context, V vocabulary

ATTENTION_DIM = 256  # dimension of query and key
LOCATION_CHANNELS = 16


class RecurrentAttentionConfig(Config):
    """The score that attention gives an encoded step, from it and the state of the decoder."""

    score: Literal["additive", "dot", "scaled_dot"] = "additive"
    """additive: a small network. dot: query times key. scaled_dot: dot over the root of their dimension."""
    location: Kernel | None = None
    """Width, an odd number of steps, of a convolution over the previous attention weights, with which
    attention knows its last position; null: none."""


EncoderKV = tuple[Tensor, Tensor, Tensor]  # keys_BTA, computed once for each utterance, encoded_BTE, mask_BT


class RecurrentAttention(nn.Module):
    """Computes alpha = softmax(score(state, key)) over the steps, and the alpha-weighted sum of the steps."""

    def __init__(self, config: RecurrentAttentionConfig, state_dim: int, memory_dim: int) -> None:
        super().__init__()
        self.score = config.score
        self.project_query = nn.Linear(state_dim, ATTENTION_DIM)
        self.project_keys = nn.Linear(memory_dim, ATTENTION_DIM, bias=False)
        if config.score == "additive":
            self.energy = nn.Linear(ATTENTION_DIM, 1, bias=False)
        self.location: nn.Conv1d | None = None
        if config.location is not None:
            self.location = nn.Conv1d(
                1, LOCATION_CHANNELS, config.location, padding=config.location // 2, bias=False
            )
            self.project_location = nn.Linear(LOCATION_CHANNELS, ATTENTION_DIM, bias=False)

    def forward(
        self, state_RD: Tensor, memory: EncoderKV, last_RT: Tensor, bias_RT: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return contexts (R, E) and weights (R, T). `last_RT` are the weights of the previous token."""
        keys_BTA, encoded_BTE, mask_BT = memory
        batch, keys = len(keys_BTA), keys_BTA[:, None]
        query_BWA = self.project_query(state_RD).unflatten(0, (batch, -1))
        if self.location is not None:
            # From here on, each beam of an utterance has its own keys.
            located_RTA = self.project_location(self.location(last_RT[:, None]).mT)
            keys = keys + located_RTA.unflatten(0, (batch, -1))
        scores_BWT = self._compare(query_BWA, keys).to(last_RT.dtype)
        if bias_RT is not None:
            scores_BWT = scores_BWT + bias_RT.unflatten(0, (batch, -1))
        weights_BWT = scores_BWT.masked_fill(~mask_BT[:, None], -torch.inf).softmax(dim=-1)
        context_BWE = weights_BWT.to(encoded_BTE.dtype) @ encoded_BTE
        return context_BWE.flatten(0, 1), weights_BWT.flatten(0, 1)

    def _compare(self, query_BWA: Tensor, keys: Tensor) -> Tensor:
        """Return (B, W, T) scores; keys are (B, W or 1, T, A)."""
        if self.score == "additive":
            return self.energy(torch.tanh(query_BWA[:, :, None] + keys))[..., 0]
        factor = query_BWA.size(-1) ** -0.5 if self.score == "scaled_dot" else 1.0
        if keys.size(1) == 1:
            return factor * (query_BWA @ keys[:, 0].mT)
        return factor * (keys @ query_BWA[..., None])[..., 0]


class RecurrentDecoderConfig(DecoderConfig):
    """A recurrent network over the previous tokens."""

    dim: Size = 256
    """Width of states, embeddings, the layer before the output, and a single summary."""
    num_layers: Depth = 1
    """Number of layers. The lowest reads the context, and the state of the highest is the query."""
    dropout: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Dropout of embeddings, between layers and before the output."""


class AttendingDecoderConfig(RecurrentDecoderConfig):
    """A recurrent network that attends to the encoded steps before each token."""

    attention: RecurrentAttentionConfig = RecurrentAttentionConfig()
    """Attention to the encoded steps."""

    @property
    def cross_attention(self) -> tuple[int, int]:
        return 1, 1


class AttentionDecoderConfig(AttendingDecoderConfig):
    """A recurrent network that attends to the encoded steps before each token."""

    type: Literal["attention"] = "attention"


class IntraAttentionDecoderConfig(AttendingDecoderConfig):
    """An attention decoder whose LSTMs also attend to their own past states (LSTMN)."""

    type: Literal["intra_attention"] = "intra_attention"


class SingleSummaryDecoderConfig(RecurrentDecoderConfig):
    """A recurrent network that gets the utterance as a single vector."""

    type: Literal["single_summary"] = "single_summary"


# --- one step of the recurrence -----------------------------------------------------------------


class CellState:
    """State of a cell, with a row for each beam."""

    def __init__(self, hidden_RD: Tensor) -> None:
        self.hidden_RD = hidden_RD
        self.cell_RD = torch.zeros_like(hidden_RD)

    def select(self, rows_R: Tensor) -> None:
        self.hidden_RD, self.cell_RD = self.hidden_RD[rows_R], self.cell_RD[rows_R]


class RecurrentCell(nn.Module):
    """PyTorch's LSTM with the interface of `IntraAttentionCell`, which updates a state object."""

    def __init__(self, input_dim: int, dim: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(input_dim, dim)

    def forward(self, x_RD: Tensor, state: CellState) -> Tensor:
        """Compute the next hidden state (R, D)."""
        state.hidden_RD, state.cell_RD = self.cell(x_RD, (state.hidden_RD, state.cell_RD))
        return state.hidden_RD


# --- base class ---------------------------------------------------------------------------------


class RecurrentState(DecoderState):
    """Layer states of each beam, the last output of the highest layer, and its last attention."""

    def __init__(
        self,
        hidden_RD: Tensor,
        layers: Sequence[CellState | IntraAttentionState],
        last_RX: Tensor,
        memory: EncoderKV | tuple[()] = (),
    ) -> None:
        self.hidden_RD = hidden_RD
        self.layers = layers
        self.last_RX = last_RX  # weights (R, T) of the last token, or the summary (R, D)
        self.memory: Any = memory

    def select_utterances(self, utterances_B: Tensor) -> None:
        self.memory = tuple(part[utterances_B] for part in self.memory)

    def select_beams(self, rows_R: Tensor) -> None:
        self.hidden_RD, self.last_RX = self.hidden_RD[rows_R], self.last_RX[rows_R]
        for layer in self.layers:
            layer.select(rows_R)


class RecurrentDecoder(Decoder):
    """Loops over the tokens. With s the state, y a token and c its context (see `attend`):

        s_i = cells(s_{i-1}, [embedding(y_{i-1}), c_i])
        scores_i = output(tanh(combine([s_i, c_i, embedding(y_{i-1})])))

    Only the recurrence runs token by token; the rest is computed for the whole sequence at once.
    """  # fmt: skip

    def __init__(
        self, dim: int, cells: Sequence[nn.Module], dropout: float, context_dim: int, vocab_size: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim)
        self.cells = nn.ModuleList(cells)
        self.combine = nn.Linear(2 * dim + context_dim, dim)
        self.output = nn.Linear(dim, vocab_size)
        self.dropout = Dropout(dropout)

    @abc.abstractmethod
    def attend(self, state: RecurrentState, bias_RT: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the context (R, C) of the next token, and the attention weights (R, T) if there are any."""

    def step(
        self,
        tokens_RU: Tensor,
        state: DecoderState,
        weights_of: WeightsOf | None = None,
        bias_RUT: Tensor | None = None,
    ) -> tuple[Tensor, Weights]:
        assert isinstance(state, RecurrentState)
        embedded_RUD = self.dropout(self.embedding(tokens_RU))
        hidden, contexts, weights = [], [], []
        for number, embedded_RD in enumerate(embedded_RUD.unbind(1)):
            context_RC, weights_RT = self.attend(state, None if bias_RUT is None else bias_RUT[:, number])
            x = torch.cat([embedded_RD, context_RC], dim=-1)
            for index, (cell, layer) in enumerate(zip(self.cells, state.layers, strict=True)):
                x = cell(self.dropout(x) if index else x, layer)
            state.hidden_RD = x
            hidden.append(x)
            contexts.append(context_RC)
            weights.append(weights_RT)
        parts = [torch.stack(hidden, dim=1), torch.stack(contexts, dim=1), embedded_RUD]
        scores_RUV = self.output(self.dropout(torch.tanh(self.combine(torch.cat(parts, dim=-1)))))
        requested = {layer: list(heads) for layer, heads in (weights_of or {}).items() if heads}
        if not requested:
            return scores_RUV, {}
        weights_RHUT = torch.stack([part for part in weights if part is not None], dim=1)[:, None]
        return scores_RUV, {layer: weights_RHUT[:, heads] for layer, heads in requested.items()}


def widths(input_dim: int, config: RecurrentDecoderConfig) -> list[int]:
    """Return the input dimension of each layer."""
    return [input_dim] + [config.dim] * (config.num_layers - 1)


class AttentionDecoder(RecurrentDecoder):
    """Attends with the state before a token; the context is the weighted mean of the encoded steps.

    States start at zero, and attention starts at the first step.
    """

    num_layers = num_heads = 1

    def __init__(
        self, config: AttentionDecoderConfig | IntraAttentionDecoderConfig, memory_dim: int, vocab_size: int
    ) -> None:
        build = IntraAttentionCell if isinstance(config, IntraAttentionDecoderConfig) else RecurrentCell
        cells = [build(width, config.dim) for width in widths(config.dim + memory_dim, config)]
        super().__init__(config.dim, cells, config.dropout, memory_dim, vocab_size)
        self.attention = RecurrentAttention(config.attention, config.dim, memory_dim)

    def start(self, encoded_BTE: Tensor, encoded_lengths_B: Tensor) -> RecurrentState:
        mask_BT = length_mask(encoded_lengths_B.clamp(min=1), encoded_BTE.size(1))
        hidden_BD = encoded_BTE.new_zeros(len(encoded_BTE), self.output.in_features)
        is_lstmn = [isinstance(cell, IntraAttentionCell) for cell in self.cells]
        layers = [IntraAttentionState() if one else CellState(hidden_BD) for one in is_lstmn]
        # At least float32, like all later weights.
        weights_BT = mask_BT.new_zeros(
            mask_BT.shape, dtype=torch.promote_types(encoded_BTE.dtype, torch.float32)
        )
        weights_BT[:, 0] = 1
        memory = (self.attention.project_keys(encoded_BTE), encoded_BTE, mask_BT)
        return RecurrentState(hidden_BD, layers, weights_BT, memory)

    def attend(self, state: RecurrentState, bias_RT: Tensor | None = None) -> tuple[Tensor, Tensor]:
        context_RC, state.last_RX = self.attention(state.hidden_RD, state.memory, state.last_RX, bias_RT)
        return context_RC, state.last_RX


class SingleSummaryDecoder(RecurrentDecoder):
    """Passes everything through one vector, c = tanh(summarize([first encoded step, last encoded step])).

    These two steps contain the last states of both directions of a bidirectional recurrent encoder. Layer
    states start as tanh(begin(c)), and each token reads c.
    """

    num_layers = num_heads = 0

    def __init__(self, config: SingleSummaryDecoderConfig, memory_dim: int, vocab_size: int) -> None:
        dim = config.dim
        cells = [RecurrentCell(width, dim) for width in widths(2 * dim, config)]
        super().__init__(dim, cells, config.dropout, dim, vocab_size)
        self.summarize = nn.Linear(2 * memory_dim, dim)
        self.begin = nn.Linear(dim, config.num_layers * dim)

    def start(self, encoded_BTE: Tensor, encoded_lengths_B: Tensor) -> RecurrentState:
        rows_B = torch.arange(len(encoded_BTE), device=encoded_BTE.device)
        last_BE = encoded_BTE[rows_B, (encoded_lengths_B - 1).clamp(min=0)]
        summary_BD = torch.tanh(self.summarize(torch.cat([encoded_BTE[:, 0], last_BE], dim=-1)))
        hidden = torch.tanh(self.begin(summary_BD)).chunk(len(self.cells), dim=-1)
        return RecurrentState(hidden[-1], [CellState(hidden_BD) for hidden_BD in hidden], summary_BD)

    def attend(self, state: RecurrentState, bias_RT: Tensor | None = None) -> tuple[Tensor, None]:
        return state.last_RX, None
