"""Exposure of a decoder to its mistakes: in training it reads what might have been decoded."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from asr.models.decoders import Decoder, Encoded, ExposureConfig, TeacherForcing
from asr.models.losses import IGNORED
from asr.text.tokenizer import SOS_ID, SPECIAL_TOKENS, UNK_ID

# B batch, U tokens, N tokens and the end, V vocabulary, D model dimension

SHARPNESS = 10.0  # of the softmax of cosines by which tokens are confused


def expose(
    decoder: Decoder, inputs_BN: Tensor, targets_BN: Tensor, encoded: Encoded, forcing: TeacherForcing
) -> Tensor:
    """Replace some inputs by what might have been decoded."""
    exposure = forcing.exposure
    can_change_BN = (targets_BN != IGNORED) & (inputs_BN != SOS_ID)
    if exposure.scheduled_sampling > 0:
        with torch.no_grad():
            scores_BNV, _ = decoder(inputs_BN, *encoded, None, forcing.attention_bias_BNT)
        own_BN = torch.cat([inputs_BN[:, :1], scores_BNV.argmax(-1)[:, :-1]], dim=1)
        is_sampled_BN = torch.rand(inputs_BN.shape, device=inputs_BN.device) < exposure.scheduled_sampling
        inputs_BN = torch.where(can_change_BN & is_sampled_BN, own_BN, inputs_BN)
    if exposure.corrupted > 0:
        similarity_VV = token_similarity(decoder.embedding.weight)
        inputs_BN = corrupt(inputs_BN, can_change_BN, exposure, similarity_VV)
    return inputs_BN


def corrupt(
    inputs_BU: Tensor, can_change_BU: Tensor, config: ExposureConfig, similarity_VV: Tensor
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
    return corrupted_BU.masked_fill(is_dropped_BU, UNK_ID)


def token_similarity(embeddings_VD: Tensor) -> Tensor:
    """(V, V): sharpened cosines of the embeddings; none for a token and itself, or for special tokens."""
    unit_VD = F.normalize(embeddings_VD.detach().float(), dim=-1)
    similarity_VV = SHARPNESS * unit_VD @ unit_VD.T
    similarity_VV.fill_diagonal_(-torch.inf)
    similarity_VV[:, : len(SPECIAL_TOKENS)] = -torch.inf
    return similarity_VV.nan_to_num(nan=0.0, neginf=-1e4)
