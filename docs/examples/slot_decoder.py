"""A decoder for short commands: a slot for each token, all filled at once from the mean encoded step."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from asr.config import DecoderConfig, Size
from asr.decoding.decode import DecodingMethod
from asr.decoding.hypothesis import DecodingConfig, EncodedAudio, FusionModel, Hypothesis, NBest
from asr.models.decoders import AnyDecoder, DecoderLoss, Encoded, TeacherForcing, Weights, WeightsOf
from asr.models.layers import length_mask
from asr.models.losses import IGNORED, Targets, cross_entropy
from asr.text.tokenizer import EOS_ID


class SlotDecoderConfig(DecoderConfig):
    reads_tokens = False
    type: Literal["slots"] = "slots"
    slots: Size = 12
    """Places of the longest text, with its end."""


class SlotDecoder(AnyDecoder):
    kind, reported = "slots", ("slots",)
    num_layers = num_heads = 0

    def __init__(self, config: SlotDecoderConfig, memory_dim: int, vocab_size: int) -> None:
        super().__init__()
        self.slots, self.output = config.slots, nn.Linear(memory_dim, config.slots * vocab_size)

    def score(self, encoded_BTD: Tensor, lengths_B: Tensor) -> Tensor:
        is_step_BT1 = length_mask(lengths_B, encoded_BTD.size(1))[..., None]
        mean_BD = (encoded_BTD * is_step_BT1).sum(1) / lengths_B.clamp(min=1)[:, None]
        return self.output(mean_BD).unflatten(1, (self.slots, -1))

    def compute_loss(
        self, targets: Targets, encoded: Encoded, weights_of: WeightsOf, forcing: TeacherForcing
    ) -> DecoderLoss:
        targets_BS = F.pad(targets.for_decoder()[1], (0, self.slots), value=IGNORED)[:, : self.slots]
        loss = cross_entropy(self.score(*encoded), targets_BS, forcing.label_smoothing)
        return DecoderLoss(loss, {"slots": loss}, {}, targets.num_rows_B)

    def score_reference(
        self, targets: Targets, encoded: Encoded, weights_of: WeightsOf
    ) -> tuple[Tensor, Weights]:
        return self.score(*encoded), {}


def decode(encoded: EncodedAudio, config: DecodingConfig, language_model: FusionModel | None) -> NBest:
    decoder: Any = encoded.model.decoder
    best_BS, tokens_BS = decoder.score(encoded.encoded_BTD, encoded.lengths_B).log_softmax(-1).max(-1)
    texts = [[*tokens, EOS_ID] for tokens in tokens_BS.tolist()]
    scored = zip((tuple(text[: text.index(EOS_ID)]) for text in texts), best_BS.sum(1).tolist(), strict=True)
    return [[Hypothesis(text, score, score)] for text, score in scored]


METHOD = DecodingMethod(decode, decoders=("slots",), fuses_language_model=False)
