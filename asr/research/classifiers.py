"""Models that label: one label for a recording, or one for each encoded step, of the same encoders."""

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
    """A classifier: an encoder and labels of a field of the manifest."""

    scores: ClassVar[tuple[str, ...]] = ("accuracy", "loss")

    encoder: AnyEncoderConfig
    """Features to encoded steps, as in a model of speech."""


class RecordingLabelConfig(LabelModelConfig):
    """An encoder, pooled over time, and a label for the whole recording: which digit, which speaker."""

    type: Literal["recording_label"]
    label: str = pydantic.Field(pattern=RECORDING_FIELDS)
    """Field of the manifest that holds the label: speaker, language, text, or extras.NAME. The training
    manifest says which labels there are; any other, in dev or test, counts as an error."""

    def find_labels(self, text: TextConfig) -> RecordingLabels:
        return RecordingLabels(self.label, text)


class FrameLabelsConfig(LabelModelConfig):
    """An encoder, and a label for each encoded step: framewise classification."""

    type: Literal["frame_labels"]
    label: str = pydantic.Field(default="extras.word_times", pattern=TIMED_FIELDS)
    """Field of the manifest that says when each label holds, as "TWO:0.106-0.436 SIX:0.51-0.9", in seconds
    from the start of the utterance. A step has the label that covers its middle, or else that of silence.
    `asr align` writes such a field. accuracy is that of frames: the share of steps labeled rightly."""

    def find_labels(self, text: TextConfig) -> FrameLabels:
        return FrameLabels(self.label)


class LabelModel(EncoderModel, abc.ABC):
    """Classifier of recordings or frames. Its accuracy is the share of right labels.

    It reads as many tokens of an utterance as it gives labels. A target that is no label, as UNK_ID is for
    one that training has not seen, has no part in the loss and is never right.
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
        """(B, N, D), and how many of the N each utterance has."""

    def label(self, features_BTF: Tensor, feature_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, L) scores before softmax, and how many of the N each utterance has.

        Label 0 is the token FIRST_LABEL_ID.
        """
        pooled_BND, counts_B = self.pool(*self.encoder(features_BTF, feature_lengths_B))
        scores_BNL: Tensor = self.output(self.dropout(pooled_BND))
        return scores_BNL.float(), counts_B

    def forward(
        self, features_BTF: Tensor, feature_lengths_B: Tensor, tokens_BU: Tensor, counts_B: Tensor, *_: Any
    ) -> Losses:
        scores_BNL = self.label(features_BTF, feature_lengths_B)[0]
        width = min(scores_BNL.size(1), tokens_BU.size(1))  # either may be padded further
        scores_BNL, tokens_BN = scores_BNL[:, :width], tokens_BU[:, :width]
        is_known_BN = length_mask(counts_B, width) & (tokens_BN > UNK_ID)
        targets_BN = torch.where(is_known_BN, tokens_BN - FIRST_LABEL_ID, IGNORED)
        loss = cross_entropy(scores_BNL, targets_BN, label_smoothing=0.0)
        num_right = (scores_BNL.argmax(-1) == targets_BN).sum()
        return Losses(loss, self.count_targets(counts_B), {"accuracy": num_right.detach()})


class RecordingLabelModel(LabelModel):
    """One label for a recording, from a mean of its steps whose weights a learned query gives."""

    def __init__(self, config: RecordingLabelConfig, num_features: int, vocab_size: int) -> None:
        super().__init__(config, num_features, vocab_size)
        self.query = nn.Linear(self.encoder.output_dim, 1)

    def pool(self, encoded_BTD: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        is_step_BT = length_mask(lengths_B, encoded_BTD.size(1))
        scores_BT = self.query(encoded_BTD)[..., 0].float()
        weights_BT = scores_BT.masked_fill(~is_step_BT, torch.finfo(torch.float32).min).softmax(-1)
        # Not a product with zeros: padding may hold anything.
        steps_BTD = encoded_BTD.masked_fill(~is_step_BT[..., None], 0.0)
        pooled_B1D = weights_BT.to(steps_BTD.dtype)[:, None] @ steps_BTD
        return pooled_B1D, torch.ones_like(lengths_B)


class FrameLabelsModel(LabelModel):
    """One label for each encoded step."""

    def pool(self, encoded_BTD: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        return encoded_BTD, lengths_B
