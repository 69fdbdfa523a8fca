"""Small parts of every model family: quick dropout, feed-forward blocks, masks; models without weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

# B batch, T positions, D model dimension, H hidden dimension

Activation = Literal["gelu", "relu", "swish", "swiglu"]


def _check_kernel(kernel: int) -> int:
    if kernel % 2 == 0:
        raise ValueError(f"kernel = {kernel} has no middle; take an odd number")
    return kernel


Kernel = Annotated[int, pydantic.Field(gt=0), pydantic.AfterValidator(_check_kernel)]


def length_mask(lengths_B: Tensor, max_length: int) -> Tensor:
    """(B, max_length), True where a position belongs to the sequence."""
    return torch.arange(max_length, device=lengths_B.device) < lengths_B[:, None]


def drop_out(x: Tensor, probability: float) -> Tensor:
    """`F.dropout`, but some four times as fast on a CPU.

    PyTorch draws one random double an element there, which costs a training step more than its matrix
    products. Here one 64-bit draw serves eight elements, or four where 1/256 is too coarse a step for the
    probability.
    """
    if probability == 0:
        return x
    if x.device.type != "cpu" or probability > 0.99:
        return F.dropout(x, probability)
    is_coarse_enough = abs(round(256 * probability) / 256 - probability) < 0.02 * probability
    integer, num_bits = (torch.int8, 8) if is_coarse_enough else (torch.int16, 16)
    draws = -(-x.numel() * num_bits // 64)
    lowest = torch.iinfo(torch.int64).min
    bits = torch.empty(draws, dtype=torch.int64).random_(lowest, None).view(integer)
    threshold = round(probability * 2**num_bits)
    scale = torch.empty(x.shape, dtype=x.dtype)  # 1 where an element is kept, at first
    torch.ge(bits[: x.numel()].view(x.shape), threshold - 2 ** (num_bits - 1), out=scale)
    return x * scale.mul_(1 / (1 - threshold / 2**num_bits))


class Dropout(nn.Module):
    """`nn.Dropout`, by `drop_out`."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        assert 0 <= probability < 1
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        return drop_out(x, self.probability) if self.training else x


class FeedForward(nn.Module):
    """Linear, activation, linear; with SwiGLU the first linear also makes the gate."""

    def __init__(self, dim: int, hidden_dim: int, activation: Activation, dropout: float) -> None:
        super().__init__()
        self.activation = activation
        self.expand = nn.Linear(dim, hidden_dim * (2 if activation == "swiglu" else 1))
        self.contract = nn.Linear(hidden_dim, dim)
        self.dropout = Dropout(dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.contract(self.dropout(activate(self.expand(x_BTD), self.activation)))


def activate(x: Tensor, activation: Activation) -> Tensor:
    if activation == "gelu":
        return F.gelu(x)
    if activation == "relu":
        return F.relu(x)
    if activation == "swish":
        return F.silu(x)
    value, gate = x.chunk(2, dim=-1)
    return value * F.silu(gate)


@contextmanager
def without_weights() -> Iterator[None]:
    """Build modules that have shapes, but no memory, without drawing random numbers.

    To draw them nowhere, as on the device "meta" alone, PyTorch would import its compiler: a second.
    """
    with torch.device("meta"), _NoRandomWeights():
        yield


class _NoRandomWeights(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(function, "__module__", None) == "torch.nn.init":
            return (kwargs or {}).get("tensor", args[0] if args else None)
        return function(*args, **(kwargs or {}))
