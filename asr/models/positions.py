"""Position encodings: sinusoids, Fourier basis, learned or none, added or concatenated; and rotary."""

from __future__ import annotations

import math
from typing import Literal

import pydantic
import torch
from torch import Tensor, nn

from asr.config import Config
from asr.errors import UserError

# B batch, T positions, D model dimension, P position dimension, H heads, K head dimension


class PositionConfig(Config):
    """Position encoding: how a model knows the order of its inputs."""

    type: Literal["sinusoid", "fourier", "learned", "rotary", "none"] = "sinusoid"
    """sinusoid: of "Attention Is All You Need"; fourier: cos(pi k t / span), sin(pi k t / span); learned: a
    table; rotary: queries and keys are turned, so that attention sees distances only."""
    combine: Literal["add", "concatenate"] = "add"
    """Whether a code is added to its input, or put beside it and projected back. Rotary does neither."""
    span: int = pydantic.Field(default=2048, gt=0)
    """Steps: half the longest period of the Fourier basis, or rows of the learned table."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> PositionConfig:
        has_codes = self.type not in ("rotary", "none")
        self.refuse_idle(has_codes, "type = sinusoid, fourier or learned", "combine")
        self.refuse_idle(self.type in ("fourier", "learned"), "type = fourier or learned", "span")
        return self


def sinusoid_codes(positions_T: Tensor, dim: int) -> Tensor:
    """(T, dim) in float64: sin(t / 10000^(2i/dim)) beside its cosine (Vaswani et al. 2017)."""
    frequencies = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=positions_T.device) / dim)
    return _waves(positions_T, frequencies)


def fourier_codes(positions_T: Tensor, dim: int, span: int) -> Tensor:
    """(T, dim) in float64: sin(pi k t / span) beside its cosine, k = 1 ... dim / 2; unique below 2 * span."""
    harmonics = torch.arange(1, dim // 2 + 1, dtype=torch.float64, device=positions_T.device)
    return _waves(positions_T, harmonics * math.pi / span)


def _waves(positions_T: Tensor, frequencies: Tensor) -> Tensor:
    # In float64: at t = 10,000 the angle in float32 is off by a thousandth.
    angles = positions_T.double()[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


class Positions(nn.Module):
    """Gives a sequence its position codes; `start` is the position of its first step, for decoding."""

    _codes: Tensor

    def __init__(self, config: PositionConfig, dim: int) -> None:
        super().__init__()
        self.config = config
        self.dim = dim
        if config.type == "learned":
            self.table = nn.Embedding(config.span, dim)
            nn.init.normal_(self.table.weight, std=dim**-0.5)
        has_codes = config.type not in ("rotary", "none")
        self.combine = nn.Linear(2 * dim, dim) if has_codes and config.combine == "concatenate" else None
        if config.type in ("sinusoid", "fourier"):
            self.register_buffer("_codes", torch.empty(0, dim), persistent=False)  # those computed so far

    def forward(self, x_BTD: Tensor, start: int = 0) -> Tensor:
        if self.config.type in ("rotary", "none"):
            return x_BTD
        codes_TD = self.codes(start + x_BTD.size(1), x_BTD.device)[start:].to(x_BTD.dtype)
        if self.combine is None:
            return x_BTD + codes_TD
        return self.combine(torch.cat([x_BTD, codes_TD.expand_as(x_BTD)], dim=-1))

    def codes(self, length: int, device: torch.device) -> Tensor:
        """The codes of the first `length` steps, (length, dim)."""
        if self.config.type == "learned":
            if length > self.config.span:
                raise UserError(
                    f"a sequence of {length} steps, but learned positions end at span = {self.config.span}; "
                    "cut the recording at pauses, or train with a larger span or another type of positions"
                )
            return self.table.weight[:length]
        if self._codes.size(0) < length or self._codes.device != device:
            # Twice as many as asked for, so that growing step by step does not compute them each time; and
            # outside of inference mode, since training can't use a tensor made in it.
            with torch.inference_mode(False):
                steps_T = torch.arange(2 * length, device=device)
                if self.config.type == "sinusoid":
                    self._codes = sinusoid_codes(steps_T, self.dim).float()
                else:
                    self._codes = fourier_codes(steps_T, self.dim, self.config.span).float()
        return self._codes[:length]


class Rotary(nn.Module):
    """Turns each pair of a query or key by an angle that grows with its position (Su et al. 2021).

    The product of a turned query and a turned key depends on their distance alone.
    """

    _cosines: Tensor
    _sines: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        assert head_dim % 2 == 0
        self.head_dim = head_dim
        self.register_buffer("_cosines", torch.empty(0, head_dim // 2), persistent=False)
        self.register_buffer("_sines", torch.empty(0, head_dim // 2), persistent=False)

    def forward(self, x_BHTK: Tensor, start: int = 0) -> Tensor:
        cosines, sines = self._tables(start + x_BHTK.size(-2), x_BHTK)
        # Pair i is (i, i + K/2): whole halves move, not every other one.
        first, second = x_BHTK.chunk(2, dim=-1)
        cosines, sines = cosines[start:], sines[start:]
        return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)

    def _tables(self, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        if self._cosines.size(0) < length or self._cosines.device != like.device:
            with torch.inference_mode(False):  # training can't use a tensor made in it
                half = torch.arange(self.head_dim // 2, dtype=torch.float64, device=like.device)
                frequencies = 10000.0 ** (-2 * half / self.head_dim)
                steps_T = torch.arange(2 * length, dtype=torch.float64, device=like.device)
                angles = steps_T[:, None] * frequencies
                self._cosines, self._sines = angles.cos().float(), angles.sin().float()
        return self._cosines[:length].to(like.dtype), self._sines[:length].to(like.dtype)
