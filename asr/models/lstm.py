"""Bidirectional LSTM, GRU or tanh encoder: the baseline with CTC."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import pydantic
import torch
from torch import Tensor, nn

from asr.models.encoder import Encoder, LayeredEncoderConfig, Subsampling
from asr.models.layers import Dropout

# B batch, T steps, F features, D output dimension (both directions)

Cell = Literal["lstm", "gru", "tanh"]
CELLS: dict[Cell, type[nn.LSTM | nn.GRU | nn.RNN]] = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN}


class LSTMEncoderConfig(LayeredEncoderConfig):
    """Layers of a bidirectional recurrent network."""

    type: Literal["lstm"] = "lstm"
    cell: Cell = "lstm"
    """What stands at each step: LSTM, GRU, or a plain tanh of input and past."""
    num_layers: int = pydantic.Field(default=4, gt=0)


class RecurrentEncoder(Encoder):
    """(B, T, F) features to (B, T / factor, 2 * dim) encoded steps, by layers that go in both directions."""

    def __init__(
        self, config: LayeredEncoderConfig, num_features: int, make: Callable[[int], nn.Module]
    ) -> None:
        """`make` builds one direction of a layer, whose input has so many dimensions."""
        super().__init__()
        self.output_dim = 2 * config.dim
        self.subsampling = Subsampling(config.subsampling, num_features, config.dim)
        self.dropout = Dropout(config.dropout)
        widths = [config.dim] + [self.output_dim] * (config.num_layers - 1)
        self.layers = nn.ModuleList(Bidirectional(make(width), make(width)) for width in widths)
        # Without norms each layer hands on a signal several times weaker than the one that it got.
        self.norms = nn.ModuleList(nn.LayerNorm(self.output_dim) for _ in widths)

    def forward(self, features_BTF: Tensor, feature_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        x_BTD, lengths_B = self.subsampling(features_BTF, feature_lengths_B)
        x_BTD = self.dropout(x_BTD)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x_BTD = self.dropout(norm(layer(x_BTD, lengths_B)))
        return x_BTD, lengths_B


class LSTMEncoder(RecurrentEncoder):
    """Layers of LSTMs, GRUs or plain recurrent networks."""

    def __init__(self, config: LSTMEncoderConfig, num_features: int) -> None:
        make = partial(CELLS[config.cell], hidden_size=config.dim, batch_first=True)
        super().__init__(config, num_features, make)


class Bidirectional(nn.Module):
    """One layer in both directions, each a module from x_BTD to (y_BTH, anything); padding changes nothing.

    Not PyTorch's own with packed sequences: on a CPU that takes four to ten times as long.
    """

    def __init__(self, forwards: nn.Module, backwards: nn.Module) -> None:
        super().__init__()
        self.forwards = forwards
        self.backwards = backwards

    def forward(self, x_BTD: Tensor, lengths_B: Tensor) -> Tensor:
        # Each sequence is turned round within its own length, so that its padding stays at the end.
        steps_T = torch.arange(x_BTD.size(1), device=x_BTD.device)
        turned_BT1 = (lengths_B[:, None] - 1 - steps_T).remainder(x_BTD.size(1))[..., None]
        forwards_BTH, _ = self.forwards(x_BTD)
        backwards_BTH, _ = self.backwards(x_BTD.gather(1, turned_BT1.expand_as(x_BTD)))
        return torch.cat([forwards_BTH, backwards_BTH.gather(1, turned_BT1.expand_as(backwards_BTH))], dim=-1)
