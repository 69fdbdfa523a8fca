"""A speech model with an encoder, a CTC head and a decoder."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pydantic
import torch
from torch import Tensor, nn

from asr.config import choose_by_type
from asr.errors import UserError
from asr.models.adapting import PROJECTIONS, LoraConfig, LowRankLinear, find_linears, freeze
from asr.models.decoders import (
    AnyDecoder,
    AnyDecoderConfig,
    Decoder,
    Encoded,
    TeacherForcing,
    Weights,
    WeightsOf,
    build_decoder,
)
from asr.models.encoders import AnyEncoderConfig, EncoderModel
from asr.models.guided_attention import GuidedAttention, GuidedAttentionConfig, GuidedBatch, ctc_window_bias
from asr.models.layers import Dropout, ModelConfig, Net, find_more_kinds, without_weights
from asr.models.losses import Losses, Targets, ctc_loss


class SpeechModelConfig(ModelConfig):
    """An encoder with a CTC head, a decoder, or both."""

    makes_text: ClassVar[bool] = True
    scores: ClassVar[tuple[str, ...]] = ("wer", "cer", "token_accuracy", "loss")

    type: Literal["speech"] = "speech"
    encoder: AnyEncoderConfig
    """Maps features to encoded steps: transformer, conformer, lstm, intra_attention, or a pretrained one."""
    decoder: AnyDecoderConfig | None = None
    """Maps encoded steps to tokens, one by one: transformer, attention, intra_attention, single_summary,
    transducer, or a pretrained model's; or all at once: parallel_length or mask_ctc; null: only CTC."""
    ctc_weight: float = pydantic.Field(default=0.3, ge=0, le=1)
    """Weight of CTC in the loss; the remaining weight is the decoder's."""
    label_smoothing: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Probability mass of each target that is spread over the vocabulary."""
    guided_attention: GuidedAttentionConfig | None = None
    """Guides cross-attention along the recording; null: no guidance."""
    frozen: tuple[str, ...] = ()
    """Parts whose weights are not trained, such as encoder or decoder.embedding."""
    lora: LoraConfig | None = None
    """Trains low-rank updates of attention projections instead of their weights (LoRA); null: none. With
    frozen: [encoder, decoder], nothing else in these is trained."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> SpeechModelConfig:
        if (self.decoder is None) != (self.ctc_weight == 1):
            raise ValueError(f"ctc_weight = {self.ctc_weight}: set it to 1.0 without a decoder, else below")
        if self.decoder is not None and self.decoder.needs_ctc and self.ctc_weight == 0:
            raise ValueError(f"decoder.type = {self.decoder.type} needs CTC too: set ctc_weight above 0")
        guided = self.guided_attention
        if guided is None:
            return self
        if self.decoder is None or self.decoder.cross_attention == (0, 0):
            raise ValueError("guided_attention needs a decoder with attention; set guided_attention: null")
        if (guided.prior is not None or guided.window is not None) and not self.decoder.reads_tokens:
            raise ValueError(
                "guided_attention.prior and .window need an autoregressive decoder, and "
                f"decoder.type = {self.decoder.type} does not; remove them"
            )
        if guided.window is not None and guided.window.follows == "ctc" and self.ctc_weight == 0:
            raise ValueError("guided_attention follows the CTC head: set ctc_weight above 0")
        return self

    def check_run(self, run: Any) -> None:
        if run.train.select_by == "token_accuracy" and self.decoder is None:
            raise ValueError("train.select_by = token_accuracy needs a decoder; set it to wer")
        features = run.features
        needs_all = features.cmvn == "utterance" or features.convention == "whisper"
        if getattr(self.encoder, "chunk", None) is not None and (needs_all or features.type == "samples"):
            raise ValueError(
                "model.encoder.chunk is for live transcription, whose mel features do without the whole "
                "recording; set features.cmvn: running, with convention: kaldi and type: log_mel"
            )
        guided = self.guided_attention
        prior = None if guided is None else guided.prior
        if prior is not None and prior.end_updates >= run.train.steps:
            raise ValueError(
                f"model.guided_attention.prior.end_updates = {prior.end_updates} is not before train.steps = "
                f"{run.train.steps}, so attention would never be learned without the prior; lower it"
            )
        if guided is not None and (guided.loss or guided.prior) and run.features.type != "log_mel":
            raise ValueError(
                "model.guided_attention finds silence in log-mel features: set features.type = log_mel, or "
                "remove its loss and prior"
            )


class SpeechModel(EncoderModel):
    """Speech model that encodes audio once for both the CTC head and the decoder."""

    def __init__(self, config: SpeechModelConfig, num_features: int, vocab_size: int) -> None:
        super().__init__(config.encoder, num_features)
        self.config = config
        dim = self.encoder.output_dim
        self.ctc_head = nn.Linear(dim, vocab_size) if config.ctc_weight > 0 else None
        self.ctc_dropout = Dropout(self.encoder.dropout.probability)
        self.decoder: AnyDecoder | None = None
        if config.decoder is not None:
            self.decoder = build_decoder(config.decoder, dim, vocab_size)
        self.guided_attention: GuidedAttention | None = None
        if config.guided_attention is not None:
            self.guided_attention = GuidedAttention(config.guided_attention, self.subsampling_factor)
            window = config.guided_attention.window
            if window is not None and window.follows == "itself":
                from asr.research.monotonic_window import PositionTrackingDecoder

                assert isinstance(self.decoder, Decoder)
                self.decoder = PositionTrackingDecoder(window.width, self.decoder, dim, vocab_size)
        freeze(self, config.frozen)
        if (lora := config.lora) is not None:
            projections = [found for found in find_linears(self, nn.Linear) if found[2] in PROJECTIONS]
            if not projections:
                raise UserError("model.lora updates attention, and this model has none; remove it")
            for _, parent, name, linear in projections:
                setattr(parent, name, LowRankLinear(linear, lora.rank, lora.alpha / lora.rank))
        if not any(parameter.requires_grad for parameter in self.parameters()):
            raise UserError("model.frozen leaves nothing to train; remove a part from it")

    @property
    def reported(self) -> tuple[str, ...]:  # type: ignore[override]
        own = () if self.decoder is None else self.decoder.reported
        return ("total", "ctc", *own, "guided_attention", "correct")

    @property
    def text_heads(self) -> tuple[str, ...]:
        return ("ctc",) * (self.ctc_head is not None) + ("decoder",) * (self.decoder is not None)

    @property
    def window_width(self) -> float | None:
        """Width of the CTC-guided attention window in decoding, in encoded steps; None if there is none."""
        guided = self.guided_attention
        return None if guided is None or guided.window is None else guided.window.width

    def encode(self, features_BTF: Tensor, feature_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        encoded_BTD, encoded_lengths_B = self.encoder(features_BTF, feature_lengths_B)
        return encoded_BTD, encoded_lengths_B

    def limit_tokens(self, encoded_lengths_B: Tensor) -> Tensor:
        """Return the maximum number of tokens from a decoder, which is what CTC could return.

        Without CTC, it is one per two feature frames, so that a decoder that repeats itself ends.
        """
        most = max(1, self.subsampling_factor // 2) if self.ctc_head is None else 1
        return (
            encoded_lengths_B if self.decoder is None else self.decoder.limit_tokens(encoded_lengths_B, most)
        )

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
        """Compute the losses. Guided attention needs `step` (updates so far) and `speech_spans_B2`."""
        encoded = self.encode(features_BTF, feature_lengths_B)
        targets = Targets(tokens_BU, token_lengths_B)
        total = encoded[0].new_zeros((), dtype=torch.float32)
        parts: dict[str, Tensor] = {}
        ctc_BTV = ctc_loss_B = None
        if self.ctc_head is not None:
            ctc_BTV = self.ctc_log_probabilities(encoded[0])
            ctc_loss_B = ctc_loss(ctc_BTV, encoded[1], tokens_BU, token_lengths_B)
            parts["ctc"] = ctc_loss_B.sum()
            total = total + self.config.ctc_weight * parts["ctc"]
        if self.decoder is not None:
            smoothing = self.config.label_smoothing
            penalty: Tensor | float = 0.0
            if self.guided_attention is None:
                decoder_loss = self.decoder.compute_loss(targets, encoded, {}, TeacherForcing(smoothing))
            else:
                audio = (features_BTF, feature_lengths_B, speech_spans_B2)
                trained = step if self.training else None
                batch = GuidedBatch(targets, encoded, ctc_BTV, ctc_loss_B, audio, trained)
                decoder_loss, penalty = self.guided_attention.compute_loss(self.decoder, batch, smoothing)
            total = total + (1 - self.config.ctc_weight) * decoder_loss.loss + penalty
            parts |= decoder_loss.parts
        num_tokens = int(targets.num_rows_B.sum())
        return Losses(total, num_tokens, {name: part.detach() for name, part in parts.items()})

    def score_reference(
        self, targets: Targets, encoded: Encoded, weights_of: WeightsOf
    ) -> tuple[Tensor, Weights]:
        """Return the decoder's teacher-forced scores, and the requested attention weights."""
        assert self.decoder is not None
        width = self.window_width
        if width is None:
            return self.decoder.score_reference(targets, encoded, weights_of)
        assert isinstance(self.decoder, Decoder)
        ctc_BTV = self.ctc_log_probabilities(encoded[0])
        bias_BNT = ctc_window_bias(ctc_BTV, encoded[1], targets.tokens_BU[:, None], width)
        return self.decoder(targets.for_decoder()[0], *encoded, weights_of, bias_BNT)


# Maps a config section to the class that it builds; the training loop does not depend on the kind.
MODELS: dict[type[ModelConfig], Callable[[Any, int, int], Net]] = {SpeechModelConfig: SpeechModel}


if TYPE_CHECKING:
    AnyModelConfig = ModelConfig
else:
    AnyModelConfig = choose_by_type(MODELS, "speech", lambda: find_more_kinds("MODELS"))


def build_model(config: ModelConfig, num_features: int, vocab_size: int) -> Net:
    """Build a model with random weights, which depend on torch's seed."""
    build = MODELS.get(type(config)) or find_more_kinds("MODELS", type(config))[type(config)]
    return build(config, num_features, vocab_size)


def require_memory(config: ModelConfig, num_features: int, vocab_size: int) -> None:
    """Raise an error if a model's weights exceed this machine's memory, before building it."""
    with without_weights():
        model = build_model(config, num_features, vocab_size)
    needed = sum(weight.nbytes for weight in model.parameters())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        sizes = f"{needed / 1e9:,.0f} GB, and this machine has {memory / 1e9:,.0f} GB"
        raise UserError(f"model: its weights take {sizes}; lower its sizes (dim, num_layers, ...)")
