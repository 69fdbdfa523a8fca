"""Encoder, CTC head and decoder as one model: features and tokens to losses; what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pydantic
import torch
from torch import Tensor, nn

from asr.config import choose_by_type
from asr.models.decoders import (
    AnyDecoder,
    AnyDecoderConfig,
    Decoder,
    Encoded,
    ExposureConfig,
    TeacherForcing,
    Weights,
    WeightsOf,
    build_decoder,
)
from asr.models.encoders import AnyEncoderConfig, EncoderModel
from asr.models.guided_attention import GuidedAttention, GuidedAttentionConfig, GuidedBatch, guide_texts
from asr.models.language_model import LanguageModel, LanguageModelConfig
from asr.models.layers import Dropout, find_more_kinds
from asr.models.lora_int8 import LoraConfig, add_low_rank, freeze, require_learning
from asr.models.losses import CTC, Losses, Model, ModelConfig, Targets, ctc_loss

# B batch, T encoded steps, F features, U tokens, N rows of the decoder (tokens and the end), V vocabulary,
# D dimension


class SpeechModelConfig(ModelConfig):
    """An encoder with a CTC head, a decoder, or both."""

    makes_text: ClassVar[bool] = True
    scores: ClassVar[tuple[str, ...]] = ("wer", "cer", "token_accuracy", "bleu", "loss")

    type: Literal["speech"] = "speech"
    encoder: AnyEncoderConfig
    """Features to encoded steps: transformer, conformer, convolutional, lstm, intra_attention or whisper."""
    decoder: AnyDecoderConfig | None = None
    """Encoded steps to tokens, one after the other: transformer, attention, intra_attention, single_summary
    or whisper; all at once: parallel_length, parallel_end or mask_ctc; null for CTC alone."""
    ctc_weight: float = pydantic.Field(default=0.3, ge=0, le=1)
    """Share of CTC in the loss; the rest is the decoder's cross-entropy."""
    label_smoothing: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Share of each target that is spread over the whole vocabulary."""
    guided_attention: GuidedAttentionConfig | None = None
    """Leads cross-attention along the recording; null: it is free."""
    exposure: ExposureConfig = ExposureConfig()
    """Mistakes among the tokens that the decoder reads in training, after which it learns to go on."""
    frozen: tuple[str, ...] = ()
    """Parts whose weights stay as they are, such as encoder, or decoder.embedding."""
    lora: LoraConfig | None = None
    """Projections of attention learn a change of low rank, in place of their weights; null: none. With
    frozen: [encoder, decoder] nothing else there is trained."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> SpeechModelConfig:
        if self.decoder is None and self.ctc_weight != 1:
            raise ValueError(
                f"ctc_weight = {self.ctc_weight}, but without a decoder CTC is all: set ctc_weight: 1.0"
            )
        if self.decoder is not None and self.ctc_weight == 1:
            raise ValueError("ctc_weight = 1.0 leaves the decoder untrained; lower it or set decoder: null")
        self.refuse_idle(self.decoder is not None, "a decoder", "label_smoothing")
        reads_tokens = self.decoder is not None and self.decoder.reads_tokens
        if self.exposure != ExposureConfig() and not reads_tokens:
            raise ValueError("exposure is about the tokens that a decoder reads, and none does; remove it")
        if self.decoder is not None and self.decoder.needs_ctc and self.ctc_weight == 0:
            raise ValueError("decoder.type = mask_ctc starts from CTC: set ctc_weight above 0")
        if self.guided_attention is not None:
            self._check_guided(self.guided_attention)
        return self

    def _check_guided(self, guided: GuidedAttentionConfig) -> None:
        if self.decoder is None or self.decoder.cross_attention == (0, 0):
            raise ValueError("guided_attention needs a decoder that attends; set guided_attention: null")
        if (guided.prior is not None or guided.window is not None) and not self.decoder.reads_tokens:
            raise ValueError(
                "guided_attention.prior and .window need a decoder that goes token by token, and "
                f"decoder.type = {self.decoder.type} does not; remove them"
            )
        if guided.needs_ctc and self.ctc_weight == 0:
            raise ValueError("guided_attention follows the CTC head: set ctc_weight above 0")

    def check_run(self, run: Any) -> None:
        super().check_run(run)
        if run.train.select_by == "token_accuracy" and self.decoder is None:
            raise ValueError(
                "train.select_by = token_accuracy is about a decoder, and there is none; set it to wer"
            )
        guided = self.guided_attention
        if guided is not None and (guided.loss or guided.prior) and run.features.type != "log_mel":
            raise ValueError(
                "model.guided_attention finds silence in log-mel features: set features.type = log_mel, or "
                "remove its loss and prior"
            )
        if guided is not None and guided.prior and guided.prior.end_updates >= run.train.steps:
            raise ValueError(
                f"model.guided_attention.prior.end_updates = {guided.prior.end_updates} is not before "
                f"train.steps = {run.train.steps}, and no decoder can attend at its end; lower it"
            )


REPORTED = (
    "total",
    "ctc",
    "cross_entropy",
    "length",  # of the text, as a decoder predicts it before the tokens
    "guided_attention",
    "correct",  # tokens that the decoder predicts rightly
    "on_ctc_path",  # tokens guided to their time in the CTC alignment
    "attention_distance",  # from the path, as a share of the utterance
    "attention_monotonic",  # tokens whose attention does not step back
)


class SpeechModel(EncoderModel):
    """Model of speech: encodes once; the CTC head and the decoder both read the result."""

    reported = REPORTED

    def __init__(self, config: SpeechModelConfig, num_features: int, vocab_size: int) -> None:
        super().__init__(config.encoder, num_features)
        self.config = config
        dim = self.encoder.output_dim
        self.ctc_head = nn.Linear(dim, vocab_size) if config.ctc_weight > 0 else None
        self.ctc_dropout = Dropout(self.encoder.dropout.probability)
        self.guided_attention = GuidedAttention(config.guided_attention, self.subsampling_factor)
        self.decoder: AnyDecoder | None = None
        if config.decoder is not None:
            decoder = build_decoder(config.decoder, dim, vocab_size)
            self.decoder = self.guided_attention.wrap(decoder, dim, vocab_size)
        freeze(self, config.frozen)
        if config.lora is not None:
            add_low_rank(self, config.lora)
        require_learning(self)

    @property
    def text_heads(self) -> tuple[str, ...]:
        return ("ctc",) * (self.ctc_head is not None) + ("decoder",) * (self.decoder is not None)

    def encode(self, features_BTF: Tensor, feature_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        encoded_BTD, encoded_lengths_B = self.encoder(features_BTF, feature_lengths_B)
        return encoded_BTD, encoded_lengths_B

    def limit_tokens(self, encoded_lengths_B: Tensor, max_tokens: int | None) -> Tensor:
        """The most tokens that a decoder may give: `max_tokens`, or as many as CTC could.

        Without CTC, one for every two frames of features, lest a decoder that repeats itself never ends.
        """
        if max_tokens is not None:
            return max_tokens * (encoded_lengths_B > 0)  # without audio there is nothing to say
        return encoded_lengths_B * (max(1, self.subsampling_factor // 2) if self.ctc_head is None else 1)

    def ctc_log_probabilities(self, encoded_BTD: Tensor) -> Tensor:
        assert self.ctc_head is not None
        scores_BTV: Tensor = self.ctc_head(self.ctc_dropout(encoded_BTD))
        return scores_BTV.float().log_softmax(dim=-1)

    def forward(
        self,
        features_BTF: Tensor,
        feature_lengths_B: Tensor,
        tokens_BU: Tensor,
        token_lengths_B: Tensor,
        step: int = 0,
        speech_spans_B2: Tensor | None = None,
    ) -> Losses:
        """`step`, the number of updates so far, and `speech_spans_B2` are for guided attention."""
        encoded = self.encode(features_BTF, feature_lengths_B)
        targets = Targets(tokens_BU, token_lengths_B)
        total = encoded[0].new_zeros((), dtype=torch.float32)
        parts: dict[str, Tensor] = {}
        ctc = None
        if self.ctc_head is not None:
            ctc = self._compute_ctc(encoded, targets)
            total = total + self.config.ctc_weight * ctc.loss_B.sum()
            parts["ctc"] = ctc.loss_B.sum()
        if self.decoder is not None:
            audio = (features_BTF, feature_lengths_B, speech_spans_B2)
            batch = GuidedBatch(targets, encoded, ctc, audio, step if self.training else None)
            guided, config = self.guided_attention, self.config
            forcing = TeacherForcing(config.label_smoothing, config.exposure, guided.find_bias(batch))
            watched = guided.watch(self.decoder, batch)
            decoder_loss = self.decoder.compute_loss(targets, encoded, watched, forcing)
            penalty, measures = guided.measure(decoder_loss, batch)
            total = total + (1 - self.config.ctc_weight) * decoder_loss.loss + penalty
            parts |= decoder_loss.parts | measures
        num_tokens = int(targets.num_rows_B.sum())
        return Losses(total, num_tokens, {name: part.detach() for name, part in parts.items()})

    def _compute_ctc(self, encoded: Encoded, targets: Targets) -> CTC:
        log_probabilities_BTV = self.ctc_log_probabilities(encoded[0])
        loss_B = ctc_loss(log_probabilities_BTV, encoded[1], targets.tokens_BU, targets.lengths_B)
        return CTC(log_probabilities_BTV, loss_B)

    def score_reference(
        self, targets: Targets, encoded: Encoded, weights_of: WeightsOf
    ) -> tuple[Tensor, Weights]:
        """Teacher-forced scores of each token's place by the decoder, and the attention asked for."""
        assert self.decoder is not None
        width = self.guided_attention.ctc_width
        if width is None:
            return self.decoder.score_reference(targets, encoded, weights_of)
        assert isinstance(self.decoder, Decoder)
        ctc_BTV = self.ctc_log_probabilities(encoded[0])
        bias_BNT = guide_texts(ctc_BTV, encoded[1], targets.tokens_BU[:, None], width)
        return self.decoder(targets.for_decoder()[0], *encoded, weights_of, bias_BNT)


# From the section of a config to its class; nothing in the training loop names a kind.
MODELS: dict[type[ModelConfig], Callable[[Any, int, int], Model]] = {
    SpeechModelConfig: SpeechModel,
    LanguageModelConfig: LanguageModel,
}

if TYPE_CHECKING:
    AnyModelConfig = ModelConfig
else:
    AnyModelConfig = choose_by_type(MODELS, "speech", lambda: find_more_kinds("MODELS"))


def build_model(config: ModelConfig, num_features: int, vocab_size: int) -> Model:
    """The model with fresh random weights; seed torch before for the same ones."""
    build = MODELS.get(type(config)) or find_more_kinds("MODELS")[type(config)]
    return build(config, num_features, vocab_size)
