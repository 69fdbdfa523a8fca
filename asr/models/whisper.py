"""Whisper's encoder and decoder: our Transformer layers, with its own front, positions and output."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.config import Config
from asr.errors import UserError
from asr.models.layers import length_mask
from asr.models.positions import PositionConfig
from asr.models.transformer import (
    EncoderLayer,
    TransformerDecoder,
    TransformerDecoderConfig,
    TransformerDecoderState,
    TransformerEncoderConfig,
)

# B batch, T frames or encoded steps, F features, U tokens, D dimension, V vocabulary

FRAMES_PER_STEP = 2
EXPANSION = 4  # of the feed-forward blocks


class WhisperConfig(Config):
    """Sizes of a Whisper model. The limits only keep a damaged file from asking for the moon."""

    type: Literal["whisper"] = "whisper"
    num_mels: Literal[80, 128]
    """Bands of the log-mel features: 128 in large-v3 and turbo, 80 in all others."""
    vocab_size: int = pydantic.Field(gt=0, le=200_000)
    """Tokens of text, of language and task, and of time."""
    dim: int = pydantic.Field(gt=0, le=8192)
    """Width of encoder and decoder."""
    encoder_layers: int = pydantic.Field(gt=0, le=200)
    encoder_heads: int = pydantic.Field(gt=0, le=200)
    decoder_layers: int = pydantic.Field(gt=0, le=200)
    decoder_heads: int = pydantic.Field(gt=0, le=200)
    max_steps: int = pydantic.Field(default=1500, gt=0, le=100_000)
    """Steps of 20 ms that the encoder has positions for: 30 seconds."""
    max_tokens: int = pydantic.Field(default=448, gt=0, le=100_000)
    """Tokens that the decoder has positions for, those of the prompt among them."""
    alignment_heads: tuple[tuple[int, int], ...] | None = None
    """Layer and head of the cross-attentions that follow the words; null where the checkpoint names none."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> WhisperConfig:
        for part, heads in (("encoder", self.encoder_heads), ("decoder", self.decoder_heads)):
            if self.dim % heads:
                raise ValueError(f"dim = {self.dim} is no multiple of {part}_heads = {heads}")
        if self.dim % 2:
            raise ValueError(f"dim = {self.dim}: positions are pairs of sine and cosine, so it must be even")
        for layer, head in self.alignment_heads or ():
            if not (0 <= layer < self.decoder_layers and 0 <= head < self.decoder_heads):
                raise ValueError(
                    f"alignment_heads: no head {head} of layer {layer} among "
                    f"{self.decoder_layers} layers of {self.decoder_heads} heads"
                )
        return self

    @property
    def is_multilingual(self) -> bool:
        """English-only models have one token of text less."""
        return self.vocab_size >= 51_865


def sinusoids(length: int, dim: int) -> Tensor:
    """(length, dim) as Whisper has them: all sines, then all cosines, with periods from 2 pi to 20000 pi."""
    scales = 10_000.0 ** -(torch.arange(dim // 2, dtype=torch.float64) / max(dim // 2 - 1, 1))
    angles = torch.arange(length, dtype=torch.float64)[:, None] * scales
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()


class WhisperEncoder(nn.Module):
    """Two convolutions over time, the second of which halves it, then layers of self-attention.

    Frames past an utterance's length are as if they were not there. To hear the 30 seconds that Whisper was
    trained on, give it features of audio with silence behind, as long as these.
    """

    positions_TD: Tensor

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        layer = TransformerEncoderConfig(
            dim=config.dim,
            num_heads=config.encoder_heads,
            feed_forward_dim=EXPANSION * config.dim,
            dropout=0.0,
            positions=PositionConfig(type="none"),
        )
        self.output_dim = config.dim
        self.convolution_1 = nn.Conv1d(config.num_mels, config.dim, 3, padding=1)
        self.convolution_2 = nn.Conv1d(config.dim, config.dim, 3, stride=FRAMES_PER_STEP, padding=1)
        self.register_buffer("positions_TD", sinusoids(config.max_steps, config.dim))
        self.layers = nn.ModuleList(EncoderLayer(layer) for _ in range(config.encoder_layers))
        self.norm = nn.LayerNorm(config.dim)

    def forward(self, features_BTF: Tensor, feature_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        lengths_B = (feature_lengths_B + 1) // FRAMES_PER_STEP
        frame_mask_BT = _mask_unless_full(feature_lengths_B, features_BTF.size(1))
        x_BDT = _zero_past(features_BTF.mT, frame_mask_BT)
        x_BDT = _zero_past(F.gelu(self.convolution_1(x_BDT)), frame_mask_BT)
        x_BTD = F.gelu(self.convolution_2(x_BDT)).mT
        if x_BTD.size(1) > len(self.positions_TD):
            raise UserError(
                f"{features_BTF.size(1)} frames of 10 ms at once, but this model hears no more than "
                f"{FRAMES_PER_STEP * len(self.positions_TD)}; cut the recording into shorter pieces"
            )
        x_BTD = x_BTD + self.positions_TD[: x_BTD.size(1)]
        mask_BT = _mask_unless_full(lengths_B, x_BTD.size(1))
        for layer in self.layers:
            x_BTD = layer(x_BTD, mask_BT)
        return self.norm(x_BTD), lengths_B


class WhisperDecoder(TransformerDecoder):
    """Our decoder with unscaled embeddings, and an output that is these, without a bias."""

    def __init__(self, config: WhisperConfig) -> None:
        layers = TransformerDecoderConfig(
            dim=config.dim,
            num_layers=config.decoder_layers,
            num_heads=config.decoder_heads,
            feed_forward_dim=EXPANSION * config.dim,
            dropout=0.0,
            positions=PositionConfig(type="learned", span=config.max_tokens),
        )
        super().__init__(layers, config.dim, config.vocab_size)
        self.scale = 1.0
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)
        self.tie()

    def tie(self) -> None:
        self.output.weight = self.embedding.weight

    def start(self, encoded_BTD: Tensor, encoded_lengths_B: Tensor) -> TransformerDecoderState:
        state = super().start(encoded_BTD, encoded_lengths_B)
        if _mask_unless_full(encoded_lengths_B, encoded_BTD.size(1)) is None:
            state.memories = [dataclasses.replace(memory, mask_BS=None) for memory in state.memories]
        return state


class Whisper(nn.Module):
    """Encodes once; the decoder reads the result."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = WhisperEncoder(config)
        self.decoder = WhisperDecoder(config)

    @classmethod
    def of(cls, config: WhisperConfig, weights: Mapping[str, Tensor]) -> Whisper:
        """With these weights as they are, not copied; those of the output are the embeddings."""
        with torch.device("meta"):  # random weights would take longer than loading these
            model = cls(config)
        weights = dict(weights) | {"decoder.output.weight": weights["decoder.embedding.weight"]}
        model.load_state_dict(weights, assign=True)
        model.decoder.tie()
        return model.eval()

    def encode(self, features_BTF: Tensor, feature_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        encoded_BTD, encoded_lengths_B = self.encoder(features_BTF, feature_lengths_B)
        return encoded_BTD, encoded_lengths_B


def _mask_unless_full(lengths_B: Tensor, length: int) -> Tensor | None:
    """None where all are whole, as 30-second windows are: attention is then faster."""
    if bool((lengths_B >= length).all()):
        return None
    return length_mask(lengths_B.clamp(min=1), length)


def _zero_past(x_BDT: Tensor, mask_BT: Tensor | None) -> Tensor:
    return x_BDT if mask_BT is None else x_BDT * mask_BT[:, None]
