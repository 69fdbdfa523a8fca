"""Attention of a recurrent decoder to the encoded steps: additive, by product or cosine, location-aware."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.config import Config

# B utterances, W beams of each, R = B x W rows, T encoded steps, E their dimension, S of the decoder's state,
# A of the attention, C channels


class LocationConfig(Config):
    """A convolution of the weights of the token before, so that attention knows where it stood."""

    kernel: int = pydantic.Field(default=31, gt=0)
    """Steps that it sees, an odd number: as many to the left as to the right."""
    channels: int = pydantic.Field(default=16, gt=0)

    @pydantic.model_validator(mode="after")
    def _check(self) -> LocationConfig:
        if self.kernel % 2 == 0:
            raise ValueError(
                f"kernel = {self.kernel} has no middle; take an odd number, {self.kernel + 1} say"
            )
        return self


class RecurrentAttentionConfig(Config):
    """Score of an encoded step for the state of the decoder."""

    score: Literal["additive", "dot", "scaled_dot", "cosine"] = "additive"
    """additive: a small network. dot: the product of query and key. scaled_dot: this over the root of dim.
    cosine: the product of both at unit length, times a learned factor."""
    dim: int = pydantic.Field(default=256, gt=0)
    """Of query and key."""
    location: LocationConfig | None = None
    """Adds to each key what a convolution of the last weights says there; null: it does not."""


@dataclass(frozen=True)
class RecurrentMemory:
    """Encoded steps and their keys, a row for each utterance. The keys are computed once."""

    keys_BTA: Tensor
    encoded_BTE: Tensor
    mask_BT: Tensor

    def select(self, rows_B: Tensor) -> RecurrentMemory:
        return RecurrentMemory(self.keys_BTA[rows_B], self.encoded_BTE[rows_B], self.mask_BT[rows_B])


class RecurrentAttention(nn.Module):
    """alpha = softmax(score(state, key)) over the steps, context = sum of alpha times encoded step."""

    def __init__(self, config: RecurrentAttentionConfig, state_dim: int, memory_dim: int) -> None:
        super().__init__()
        self.score = config.score
        self.project_query = nn.Linear(state_dim, config.dim)
        self.project_keys = nn.Linear(memory_dim, config.dim, bias=False)
        if config.score == "additive":
            self.energy = nn.Linear(config.dim, 1, bias=False)
        elif config.score == "cosine":
            self.factor = nn.Parameter(torch.tensor(10.0))  # cosines alone could not tell many steps apart
        self.location: nn.Conv1d | None = None
        if config.location is not None:
            kernel, channels = config.location.kernel, config.location.channels
            self.location = nn.Conv1d(1, channels, kernel, padding=kernel // 2, bias=False)
            self.project_location = nn.Linear(channels, config.dim, bias=False)

    def remember(self, encoded_BTE: Tensor, mask_BT: Tensor) -> RecurrentMemory:
        keys_BTA = self.project_keys(encoded_BTE)
        return RecurrentMemory(keys_BTA if self.location else self._scale(keys_BTA), encoded_BTE, mask_BT)

    def _scale(self, queries_or_keys: Tensor) -> Tensor:
        return F.normalize(queries_or_keys, dim=-1) if self.score == "cosine" else queries_or_keys

    @staticmethod
    def begin(memory: RecurrentMemory) -> Tensor:
        """(B, T) weights before the first token: all on the first step. In float32 at least, as all after."""
        weights_BT = torch.zeros_like(
            memory.mask_BT, dtype=torch.promote_types(memory.encoded_BTE.dtype, torch.float32)
        )
        weights_BT[:, 0] = 1
        return weights_BT

    def forward(
        self, state_RS: Tensor, memory: RecurrentMemory, last_RT: Tensor, bias_RT: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Contexts (R, E) and weights (R, T). `last_RT` are the weights of the token before; see `begin`."""
        batch = len(memory.keys_BTA)
        query_BWA = self._scale(self.project_query(state_RS)).unflatten(0, (batch, -1))
        keys = memory.keys_BTA[:, None]
        if self.location is not None:
            # Now each beam of an utterance has keys of its own.
            located_RTA = self.project_location(self.location(last_RT[:, None]).mT)
            keys = self._scale(keys + located_RTA.unflatten(0, (batch, -1)))
        scores_BWT = self._compare(query_BWA, keys).to(last_RT.dtype)
        if bias_RT is not None:
            scores_BWT = scores_BWT + bias_RT.unflatten(0, (batch, -1))
        weights_BWT = scores_BWT.masked_fill(~memory.mask_BT[:, None], -torch.inf).softmax(dim=-1)
        context_BWE = weights_BWT.to(memory.encoded_BTE.dtype) @ memory.encoded_BTE
        return context_BWE.flatten(0, 1), weights_BWT.flatten(0, 1)

    def _compare(self, query_BWA: Tensor, keys: Tensor) -> Tensor:
        """(B, W, T) scores; keys are (B, W or 1, T, A)."""
        if self.score == "additive":
            return self.energy(torch.tanh(query_BWA[:, :, None] + keys))[..., 0]
        factor: Tensor | float = 1.0
        if self.score == "scaled_dot":
            factor = query_BWA.size(-1) ** -0.5
        elif self.score == "cosine":
            factor = self.factor
        if keys.size(1) == 1:
            return factor * (query_BWA @ keys[:, 0].mT)
        return factor * (keys @ query_BWA[..., None])[..., 0]
