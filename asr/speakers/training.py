"""Train CAM++ on utterances with speaker labels, with `asr train`."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.features.filters import INT16_SCALE, KALDI_FLOOR, FeaturesConfig
from asr.models.layers import ModelConfig, Net
from asr.models.losses import IGNORED, Losses, cross_entropy
from asr.speakers.embedding import CamPlusPlus, CamPlusPlusSizes
from asr.text.tokenizer import SPECIAL_TOKENS, UNK_ID

# B batch, T frames, M mel bands, D embedding dimension, L training speakers

FIRST_LABEL_ID = len(SPECIAL_TOKENS)
MARGIN_STEPS = 500  # updates over which the margin rises from 0


class SpeakerEmbeddingConfig(ModelConfig):
    """CAM++, trained to distinguish speakers by the angles of embeddings (ArcFace, Deng et al. 2019)."""

    scores: ClassVar[tuple[str, ...]] = ("accuracy", "loss")
    label: ClassVar[str] = "speaker"

    type: Literal["speaker_embedding"]
    sizes: CamPlusPlusSizes = CamPlusPlusSizes()
    """Sizes of the model."""
    margin: float = pydantic.Field(default=0.2, ge=0, lt=1)
    """Angle in radians added between an utterance and its speaker in training; it rises from 0 at first."""
    scale: float = pydantic.Field(default=32.0, gt=0)
    """Factor of the cosines before the softmax."""
    crop_seconds: float = pydantic.Field(default=2.0, ge=0.1, le=30)
    """Length of the excerpt of each utterance; a shorter utterance is repeated."""

    def find_labels(self, text: Any) -> Any:
        from asr.research.labels import RecordingLabels

        return RecordingLabels(self.label, text)

    def check_run(self, run: Any) -> None:
        if run.features != FeaturesConfig(num_mels=self.sizes.num_mels, cmvn="none"):
            raise ValueError("features: expected num_mels of model.sizes, cmvn: none, and no other settings")


class SpeakerEmbeddingModel(Net):
    """CAM++, plus a direction for each training speaker."""

    reported = ("total", "accuracy")

    def __init__(self, config: SpeakerEmbeddingConfig, _: int, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = CamPlusPlus(config.sizes)
        self.speakers_LD = nn.Parameter(0.1 * torch.randn(vocab_size - FIRST_LABEL_ID, config.sizes.dim))

    @staticmethod
    def count_targets(token_lengths_B: Tensor) -> int:
        return int(token_lengths_B.sum())

    def label(self, features_BTM: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines (B, 1, L) of an excerpt, random in training, and their number, 1."""
        frames_T = torch.arange(round(100 * self.config.crop_seconds), device=lengths_B.device)
        first_B = (torch.rand(len(lengths_B)).to(lengths_B.device) * lengths_B * self.training).long()
        index_BT = (first_B[:, None] + frames_T) % lengths_B[:, None]
        x_BTM = features_BTM.gather(1, index_BT[:, :, None].expand(-1, -1, features_BTM.size(2)))
        # From samples in [-1, 1], as in `CamPlusPlus.compute_features`.
        x_BTM = (x_BTM - 2 * math.log(INT16_SCALE)).clamp(min=math.log(KALDI_FLOOR))
        x_BD = self.embedding(x_BTM - x_BTM.mean(dim=1, keepdim=True))
        cosines_BL = F.linear(F.normalize(x_BD.float()), F.normalize(self.speakers_LD))
        return cosines_BL[:, None], torch.ones_like(lengths_B)

    def forward(
        self, features_BTM: Tensor, lengths_B: Tensor, tokens_BU: Tensor, counts_B: Tensor, *more: Any
    ) -> Losses:
        cosines_BL = self.label(features_BTM, lengths_B)[0][:, 0]
        targets_B1 = torch.where(tokens_BU[:, :1] > UNK_ID, tokens_BU[:, :1] - FIRST_LABEL_ID, IGNORED)
        scores_BL, own_B1 = cosines_BL, targets_B1.clamp(min=0)
        if self.training:
            margin = self.config.margin * min(1.0, (more[0] if more else 0) / MARGIN_STEPS)
            angles_B1 = cosines_BL.gather(1, own_B1).clamp(-1 + 1e-6, 1 - 1e-6).acos() + margin
            scores_BL = cosines_BL.scatter(1, own_B1, angles_B1.clamp(max=math.pi).cos())
        loss = cross_entropy(self.config.scale * scores_BL[:, None], targets_B1, label_smoothing=0.0)
        num_right = (cosines_BL.argmax(dim=1) == targets_B1[:, 0]).sum()
        return Losses(loss, self.count_targets(counts_B), {"accuracy": num_right.detach()})


MODELS = {SpeakerEmbeddingConfig: SpeakerEmbeddingModel}  # see asr/models/layers.py
