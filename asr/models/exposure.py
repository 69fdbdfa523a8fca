"""Training the decoder on its own mistakes: corrupted inputs and scheduled sampling."""

from __future__ import annotations

import pydantic
import torch
from torch import Tensor
from torch.nn import functional as F

from asr.config import Config

# B batch, U tokens, V vocabulary, D model dimension


class ExposureConfig(Config):
    """Tokens that the decoder reads in training in place of the true ones. Targets stay as they are."""

    replace: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Share of tokens replaced by another one, likelier by one that the model takes for a similar one."""
    drop: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Share of tokens replaced by the unknown token, as if nothing had been heard."""
    repeat: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Share of tokens replaced by the token before, as if that had been decoded twice."""
    scheduled_sampling: float = pydantic.Field(default=0.0, ge=0, le=1)
    """Share of tokens replaced by the decoder's own choice in a first pass (Bengio et al. 2015)."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> ExposureConfig:
        if self.replace + self.drop + self.repeat >= 1:
            raise ValueError(
                f"replace + drop + repeat = {self.replace + self.drop + self.repeat:g} must be below 1"
            )
        return self

    @property
    def corrupts(self) -> bool:
        return self.replace + self.drop + self.repeat > 0


def corrupt(
    inputs_BU: Tensor, can_change_BU: Tensor, config: ExposureConfig, similarity_VV: Tensor, unk_id: int
) -> Tensor:
    """Inputs of the decoder with some tokens replaced, dropped or repeated where `can_change_BU` is True."""
    draw_BU = torch.rand(inputs_BU.shape, device=inputs_BU.device)
    end_of_drop = config.replace + config.drop
    is_replaced_BU = can_change_BU & (draw_BU < config.replace)
    is_dropped_BU = can_change_BU & (draw_BU >= config.replace) & (draw_BU < end_of_drop)
    is_repeated_BU = can_change_BU & (draw_BU >= end_of_drop) & (draw_BU < end_of_drop + config.repeat)
    is_repeated_BU &= F.pad(can_change_BU[:, :-1], (1, 0))  # the start token is nothing to repeat
    probabilities_NV = similarity_VV[inputs_BU.flatten()].softmax(-1)
    confused_BU = torch.multinomial(probabilities_NV, 1).view_as(inputs_BU)
    before_BU = torch.cat([inputs_BU[:, :1], inputs_BU[:, :-1]], dim=1)
    corrupted_BU = torch.where(is_replaced_BU, confused_BU, inputs_BU)
    corrupted_BU = torch.where(is_repeated_BU, before_BU, corrupted_BU)
    return corrupted_BU.masked_fill(is_dropped_BU, unk_id)


def token_similarity(embeddings_VD: Tensor, num_special: int, sharpness: float = 10.0) -> Tensor:
    """(V, V): sharpened cosines of the embeddings; none for a token and itself, or for special tokens."""
    unit_VD = F.normalize(embeddings_VD.detach().float(), dim=-1)
    similarity_VV = sharpness * unit_VD @ unit_VD.T
    similarity_VV.fill_diagonal_(-torch.inf)
    similarity_VV[:, :num_special] = -torch.inf
    return similarity_VV.nan_to_num(nan=0.0, neginf=-1e4)
