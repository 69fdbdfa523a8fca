"""Classifiers on the usual encoders, with one label for a recording or one for each encoded step."""

from __future__ import annotations

import abc
from typing import Any, ClassVar, Literal

import pydantic
import torch
from torch import Tensor, nn

from asr.models.encoders import AnyEncoderConfig, EncoderModel
from asr.models.layers import Dropout, ModelConfig, length_mask
from asr.models.losses import IGNORED, Losses, cross_entropy
from asr.research.labels import RECORDING_FIELDS, TIMED_FIELDS, FrameLabels, RecordingLabels
from asr.text.normalization import TextConfig
from asr.text.tokenizer import SPECIAL_TOKENS, UNK_ID

# B batch, T encoded steps, F features, N labels of an utterance, D dimension, L all labels there are

FIRST_LABEL_ID = len(SPECIAL_TOKENS)


class LabelModelConfig(ModelConfig):
    """A classifier: an encoder, and labels from a field of the manifest."""

    scores: ClassVar[tuple[str, ...]] = ("accuracy", "loss")

    encoder: AnyEncoderConfig
    """Encoder, as in a speech model."""


class RecordingLabelConfig(LabelModelConfig):
    """A classifier of whole recordings, such as by digit or speaker: an encoder pooled over time."""

    type: Literal["recording_label"]
    label: str = pydantic.Field(pattern=RECORDING_FIELDS)
    """Field of the manifest with the label: speaker, language, text, or extras.NAME. The labels of the
    training manifest are the only ones known, so any other in dev or test counts as an error."""

    def find_labels(self, text: TextConfig) -> RecordingLabels:
        return RecordingLabels(self.label, text)


class FrameLabelsConfig(LabelModelConfig):
    """A frame classifier: an encoder, and a label for each encoded step."""

    type: Literal["frame_labels"]
    label: str = pydantic.Field(default="extras.word_times", pattern=TIMED_FIELDS)
    """Field of the manifest with labels and their times, such as "TWO:0.106-0.436 SIX:0.51-0.9", in seconds
    from the start of the utterance. A step has the label at its middle, or silence. `asr align` writes such
    a field. accuracy is the share of steps that are labeled correctly."""

    def find_labels(self, text: TextConfig) -> FrameLabels:
        return FrameLabels(self.label)


class LabelModel(EncoderModel, abc.ABC):
    """Base of classifiers of recordings or frames. Its accuracy is the share of correct labels.

    Targets are as many tokens as it predicts labels. A target that is not a label, such as UNK_ID for one
    that did not occur in training, does not enter the loss and is never correct.
    """

    reported = ("total", "accuracy")

    def __init__(
        self, config: RecordingLabelConfig | FrameLabelsConfig, num_features: int, vocab_size: int
    ) -> None:
        super().__init__(config.encoder, num_features)
        self.config = config
        self.dropout = Dropout(self.encoder.dropout.probability)
        self.output = nn.Linear(self.encoder.output_dim, vocab_size - FIRST_LABEL_ID)

    @staticmethod
    def count_targets(token_lengths_B: Tensor) -> int:
        return int(token_lengths_B.sum())

    @abc.abstractmethod
    def pool(self, encoded_BTD: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B, N, D), and how many of the N each utterance has."""

    def label(self, features_BTF: Tensor, feature_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B, N, L) scores before softmax, and how many of the N each utterance has.

        Label 0 is the token FIRST_LABEL_ID.
        """
        pooled_BND, counts_B = self.pool(*self.encoder(features_BTF, feature_lengths_B))
        scores_BNL: Tensor = self.output(self.dropout(pooled_BND))
        return scores_BNL.float(), counts_B

    def forward(
        self, features_BTF: Tensor, feature_lengths_B: Tensor, tokens_BU: Tensor, counts_B: Tensor, *_: Any
    ) -> Losses:
        scores_BNL = self.label(features_BTF, feature_lengths_B)[0]
        width = min(scores_BNL.size(1), tokens_BU.size(1))  # either may have more padding
        scores_BNL, tokens_BN = scores_BNL[:, :width], tokens_BU[:, :width]
        is_known_BN = length_mask(counts_B, width) & (tokens_BN > UNK_ID)
        targets_BN = torch.where(is_known_BN, tokens_BN - FIRST_LABEL_ID, IGNORED)
        loss = cross_entropy(scores_BNL, targets_BN, label_smoothing=0.0)
        num_right = (scores_BNL.argmax(-1) == targets_BN).sum()
        return Losses(loss, self.count_targets(counts_B), {"accuracy": num_right.detach()})


class RecordingLabelModel(LabelModel):
    """Predicts one label for a recording from a weighted mean of its steps, with a learned query."""

    def __init__(self, config: RecordingLabelConfig, num_features: int, vocab_size: int) -> None:
        super().__init__(config, num_features, vocab_size)
        self.query = nn.Linear(self.encoder.output_dim, 1)

    def pool(self, encoded_BTD: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        is_step_BT = length_mask(lengths_B, encoded_BTD.size(1))
        scores_BT = self.query(encoded_BTD)[..., 0].float()
        weights_BT = scores_BT.masked_fill(~is_step_BT, torch.finfo(torch.float32).min).softmax(-1)
        # masked_fill rather than a product with zeros, because padding may contain NaN.
        steps_BTD = encoded_BTD.masked_fill(~is_step_BT[..., None], 0.0)
        pooled_B1D = weights_BT.to(steps_BTD.dtype)[:, None] @ steps_BTD
        return pooled_B1D, torch.ones_like(lengths_B)


class FrameLabelsModel(LabelModel):
    """Predicts one label for each encoded step."""

    def pool(self, encoded_BTD: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        return encoded_BTD, lengths_B
