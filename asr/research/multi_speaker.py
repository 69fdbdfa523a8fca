"""Simultaneous speakers: an encoder with a CTC head for each, trained with permutation invariance."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import pydantic
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from asr.models.encoders import AnyEncoderConfig, EncoderModel
from asr.models.layers import Dropout, ModelConfig
from asr.models.losses import Losses, ctc_loss
from asr.text.tokenizer import EOS_ID, PAD_ID

# B batch, S speakers and as many heads, T encoded steps, F features, U tokens, V vocabulary


class MultiSpeakerConfig(ModelConfig):
    """An encoder of mixed speech with a CTC head for each speaker (Yu et al. 2017, arXiv 1704.01985)."""

    type: Literal["multi_speaker"]
    num_speakers: int = pydantic.Field(default=2, ge=2, le=4)
    """Number of simultaneous speakers. Their texts are `text`, `extras.text_2` and so on, in any order,
    because training uses the assignment to heads with the lowest loss (permutation-invariant training)."""
    encoder: AnyEncoderConfig
    """Encoder, as in a speech model."""

    @property
    def num_texts(self) -> int:
        return self.num_speakers


class MultiSpeakerModel(EncoderModel):
    """Transcribes simultaneous speakers. Its targets are the texts of all, with EOS_ID between them."""

    reported = ("total",)

    def __init__(self, config: MultiSpeakerConfig, num_features: int, vocab_size: int) -> None:
        super().__init__(config.encoder, num_features)
        self.config = config
        self.ctc_dropout = Dropout(self.encoder.dropout.probability)
        self.ctc_head = nn.Linear(self.encoder.output_dim, config.num_speakers * vocab_size)

    def ctc_log_probabilities(self, features_BTF: Tensor, feature_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B, S, T, V) of all heads, and how many of the T steps each utterance has."""
        encoded_BTD, lengths_B = self.encoder(features_BTF, feature_lengths_B)
        scores_BTX: Tensor = self.ctc_head(self.ctc_dropout(encoded_BTD))
        scores_BTSV = scores_BTX.unflatten(2, (self.config.num_speakers, -1))
        return scores_BTSV.transpose(1, 2).float().log_softmax(-1), lengths_B

    def forward(
        self, features_BTF: Tensor, feature_lengths_B: Tensor, tokens_BU: Tensor, counts_B: Tensor, *_: Any
    ) -> Losses:
        log_probabilities_BSTV, lengths_B = self.ctc_log_probabilities(features_BTF, feature_lengths_B)
        texts = split_texts(tokens_BU, counts_B, self.config.num_speakers)
        losses_BSS = torch.stack(
            [
                ctc_loss(head_BTV, lengths_B, *text)
                for head_BTV in log_probabilities_BSTV.unbind(1)
                for text in texts
            ],
            dim=1,
        ).unflatten(1, (self.config.num_speakers, -1))
        return Losses(least_loss(losses_BSS).sum(), self.count_targets(counts_B))


def split_texts(tokens_BU: Tensor, lengths_B: Tensor, num_texts: int) -> list[tuple[Tensor, Tensor]]:
    """Split tokens at EOS_ID: tokens and lengths of the first texts, then of the second texts, and so on."""
    rows = [row[:length] for row, length in zip(tokens_BU, lengths_B.tolist(), strict=True)]
    ends = [(row == EOS_ID).nonzero()[:, 0].tolist() for row in rows]
    parts = [
        [row[begin + 1 : end] for begin, end in itertools.pairwise([-1, *own, len(row)])]
        for row, own in zip(rows, ends, strict=True)
    ]
    assert all(len(own) == num_texts for own in parts)
    return [
        (pad_sequence(list(texts), True, PAD_ID), lengths_B.new_tensor([len(text) for text in texts]))
        for texts in zip(*parts, strict=True)
    ]


def least_loss(losses_BSS: Tensor) -> Tensor:
    """Return (B,): the lowest sum of losses over all assignments of texts to heads."""
    heads = range(losses_BSS.size(1))
    sums = [losses_BSS[:, heads, texts].sum(1) for texts in itertools.permutations(heads)]
    return torch.stack(sums).amin(0)
