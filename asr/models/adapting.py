"""Adapt a trained model with low-rank updates (LoRA) and frozen parts."""

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

PROJECTIONS = ("project_in", "project_out", "project_queries", "project_memory")  # in any attention layer


class LoraConfig(Config):
    """LoRA (Hu et al. 2021): attention projections learn low-rank updates, and their weights stay fixed.

    All other parts of the model are trained in full, unless `frozen` names them.
    """

    rank: Size = 8
    """Rank of the updates: a projection from D to K dimensions learns rank x (D + K) numbers."""
    alpha: float = pydantic.Field(default=16.0, gt=0)
    """Updates are scaled by alpha / rank, so that the learning rate does not depend on the rank."""


class LowRankLinear(nn.Linear):
    """A linear layer with fixed weights and a learned low-rank update, which starts at zero."""

    def __init__(self, linear: nn.Linear, rank: int, scale: float) -> None:
        nn.Module.__init__(self)  # skips creating weights, because they already exist
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
        """Merge the update into a plain linear layer."""
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
    """Merge all low-rank updates, because plain layers compute the same results faster."""
    for _, parent, name, layer in find_linears(model, LowRankLinear):
        setattr(parent, name, layer.merged())


def is_low_rank(name: str) -> bool:
    """Return whether the weight with this name is part of a low-rank update."""
    return name.endswith((".down_RD", ".up_KR"))


def find_linears(root: nn.Module, kind: type[nn.Linear]) -> list[tuple[str, nn.Module, str, Any]]:
    """Find all layers of a class; returns (path of the parent module, parent, name, layer) for each."""
    return [
        (path, parent, name, layer)
        for path, parent in root.named_modules()
        for name, layer in parent.named_children()
        if type(layer) is kind
    ]
