"""Adapt a trained model: changes of low rank (LoRA), and parts that stay as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.config import Config, Size
from asr.errors import UserError
from asr.models.layers import without_weights

# B batch, T steps, D dimension of the input, K dimension of the output, R rank

PROJECTIONS = ("project_in", "project_out", "project_queries", "project_memory")  # of any attention


class LoraConfig(Config):
    """The projections of attention learn a change of low rank (Hu et al. 2021); their own weights stay.

    What else is in the model is trained whole, unless `frozen` names it.
    """

    rank: Size = 8
    """Rank of the change: a projection of D to K dimensions learns rank x (D + K) numbers."""
    alpha: float = pydantic.Field(default=16.0, gt=0)
    """The change is multiplied by alpha / rank, so that another rank needs no other learning rate."""


class LowRankLinear(nn.Linear):
    """A linear layer whose weights stay, and a change of low rank that is learned; it starts as zero."""

    def __init__(self, linear: nn.Linear, rank: int, scale: float) -> None:
        nn.Module.__init__(self)  # the weights are there already
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.scale = scale
        self.down_RD = nn.Parameter(linear.weight.new_empty(rank, linear.in_features))
        self.up_KR = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))
        nn.init.kaiming_uniform_(self.down_RD, a=math.sqrt(5))
        for parameter in linear.parameters():
            parameter.requires_grad_(False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        change_BTK = F.linear(F.linear(x_BTD, self.down_RD), self.up_KR)
        return F.linear(x_BTD, self.weight, self.bias) + self.scale * change_BTK

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Merge the change into a plain layer."""
        with without_weights():
            linear = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None)
        linear.weight = nn.Parameter(self.weight + self.scale * self.up_KR @ self.down_RD)
        linear.bias = self.bias
        return linear


def freeze(model: nn.Module, parts: Sequence[str]) -> None:
    for part in parts:
        try:
            model.get_submodule(part).requires_grad_(False)
        except AttributeError:
            known = ", ".join(name for name, _ in model.named_children())
            raise UserError(f"model.frozen: no part {part!r} in this model; it has {known}") from None


def merge_low_rank(model: nn.Module) -> None:
    """Merge all changes: plain projections compute the same in less time."""
    for _, parent, name, layer in find_linears(model, LowRankLinear):
        setattr(parent, name, layer.merged())


def is_low_rank(name: str) -> bool:
    """Return True if the weight of this name is part of a learned change."""
    return name.endswith((".down_RD", ".up_KR"))


def find_linears(root: nn.Module, kind: type[nn.Linear]) -> list[tuple[str, nn.Module, str, Any]]:
    """The layers of a kind: path of the module around each, that module, name, layer."""
    return [
        (path, parent, name, layer)
        for path, parent in root.named_modules()
        for name, layer in parent.named_children()
        if type(layer) is kind
    ]
