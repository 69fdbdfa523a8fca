"""Encoder, CTC head and decoder as one model: features and tokens to losses; what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pydantic
import torch
from torch import Tensor, nn

from asr.config import choose_by_type
from asr.features.front_end import speech_spans
from asr.models.decoders import (
    AnyDecoder,
    AnyDecoderConfig,
    Decoder,
    DecoderConfig,
    Encoded,
    ExposureConfig,
    TeacherForcing,
    Weights,
    WeightsOf,
    build_decoder,
)
from asr.models.encoders import AnyEncoderConfig, EncoderModel
from asr.models.guided_attention import (
    AttentionClockConfig,
    AttentionGuideConfig,
    AttentionPriorConfig,
    GuidedAttentionConfig,
    attention_measures,
    diagonal_times,
    guide_texts,
    guided_attention_loss,
    prior_bias,
)
from asr.models.language_model import LanguageModel, LanguageModelConfig
from asr.models.layers import Dropout, find_more_kinds, length_mask
from asr.models.lora_int8 import LoraConfig, add_low_rank, freeze, require_learning
from asr.models.losses import Losses, Model, ModelConfig, Targets, align_tokens, ctc_loss

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
    """Pushes cross-attention to run from left to right; null: no push."""
    attention_prior: AttentionPriorConfig | None = None
    """Holds cross-attention near the diagonal in the first updates, then lets go; null: none."""
    attention_guide: AttentionGuideConfig | None = None
    """Keeps cross-attention to where CTC has the next token, in training and decoding; null: it is free."""
    attention_clock: AttentionClockConfig | None = None
    """Keeps cross-attention to where the decoder itself takes the next token to be; null: it is free."""
    exposure: ExposureConfig = ExposureConfig()
    """What the decoder sees in place of true tokens, to learn to go on after a mistake."""
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
        if self.decoder is None and self.guided_attention is not None:
            raise ValueError("guided_attention needs a decoder; set guided_attention: null")
        if self.decoder is None and self.exposure != ExposureConfig():
            raise ValueError("exposure is about the inputs of a decoder, and there is none; remove it")
        if self.decoder is not None and not self.decoder.reads_tokens and self.exposure != ExposureConfig():
            raise ValueError(
                "exposure is about the tokens before the next one, which decoder.type = "
                f"{self.decoder.type} does not see; remove it"
            )
        if self.decoder is not None and self.decoder.needs_ctc and self.ctc_weight == 0:
            raise ValueError("decoder.type = mask_ctc starts from CTC: set ctc_weight above 0")
        guided = self.guided_attention
        if guided is not None and guided.path == "ctc" and self.ctc_weight == 0:
            raise ValueError("guided_attention.path = ctc needs a CTC head: set ctc_weight above 0")
        if self.decoder is not None and guided is not None:
            check_guided_heads(guided, self.decoder)
        for name in ("attention_prior", "attention_guide", "attention_clock"):
            if getattr(self, name) is not None:
                check_biased(name, self.decoder)
        if self.attention_guide is not None and self.ctc_weight == 0:
            raise ValueError("attention_guide follows the CTC head: set ctc_weight above 0")
        if self.attention_guide is not None and self.attention_clock is not None:
            raise ValueError("attention_guide and attention_clock both say where to attend; remove one")
        return self

    @property
    def attends(self) -> bool:
        return self.decoder is not None and self.decoder.cross_attention != (0, 0)

    def check_run(self, run: Any) -> None:
        super().check_run(run)
        if run.train.select_by == "token_accuracy" and self.decoder is None:
            raise ValueError(
                "train.select_by = token_accuracy is about a decoder, and there is none; set it to wer"
            )
        is_loudness = run.features.type == "log_mel" and run.features.reduction.type == "none"
        for name in ("guided_attention", "attention_prior"):
            section = getattr(self, name)
            if section is not None and section.trim_silence and not is_loudness:
                raise ValueError(
                    f"model.{name}.trim_silence finds silence in log-mel features: set it to false, "
                    "or features.type = log_mel and features.reduction.type = none"
                )
        prior = self.attention_prior
        if prior is not None and prior.end_updates >= run.train.steps:
            raise ValueError(
                f"model.attention_prior.end_updates = {prior.end_updates} is not before train.steps = "
                f"{run.train.steps}, and what never attended without a prior cannot do so; lower it"
            )


def check_guided_heads(guided: GuidedAttentionConfig, decoder: DecoderConfig) -> None:
    num_layers, num_heads = decoder.cross_attention
    if num_heads == 0:
        raise ValueError(
            f"guided_attention needs attention, which decoder.type = {decoder.type} has not; set "
            "guided_attention: null"
        )
    for layer in guided.layers or ():
        if not -num_layers <= layer < num_layers:
            raise ValueError(
                f"guided_attention.layers: no layer {layer} among the {num_layers} of the decoder that attend"
            )
    for head in guided.heads or ():
        if head >= num_heads:
            raise ValueError(f"guided_attention.heads: no head {head} among the {num_heads} of the decoder")


def check_biased(name: str, decoder: DecoderConfig | None) -> None:
    if decoder is None or decoder.cross_attention == (0, 0) or not decoder.reads_tokens:
        raise ValueError(
            f"{name} needs a decoder that attends and goes token by token, and decoder"
            + (" is null" if decoder is None else f".type = {decoder.type} does not")
            + f"; set {name}: null"
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


@dataclass(frozen=True)
class CTC:
    """Output and loss of the CTC head for a batch."""

    log_probabilities_BTV: Tensor
    loss_B: Tensor

    def aligns(self, targets: Targets, threshold: float) -> Tensor:
        """(B,): True where the loss per token is below the threshold."""
        loss_B = self.loss_B.detach()  # 0 where there are too few steps for the tokens, and so no alignment
        return (loss_B > 0) & (loss_B < threshold * targets.lengths_B)


class SpeechModel(EncoderModel):
    """Model of speech: encodes once; the CTC head and the decoder both read the result."""

    reported = REPORTED

    def __init__(self, config: SpeechModelConfig, num_features: int, vocab_size: int) -> None:
        super().__init__(config.encoder, num_features)
        self.config = config
        dim = self.encoder.output_dim
        self.ctc_head = nn.Linear(dim, vocab_size) if config.ctc_weight > 0 else None
        self.ctc_dropout = Dropout(self.encoder.dropout.probability)
        self._forcing = TeacherForcing(config.label_smoothing, config.exposure)
        self.decoder: AnyDecoder | None = None
        if config.decoder is not None:
            self.decoder = build_decoder(config.decoder, dim, vocab_size)
        if config.attention_clock is not None:
            assert isinstance(self.decoder, Decoder)
            from asr.research.attention_clock import ClockedDecoder

            self.decoder = ClockedDecoder(config.attention_clock, self.decoder, dim, vocab_size)
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
            guided_weight = self._guided_weight(step)
            watched = self._watched_heads() if guided_weight > 0 or not self.training else {}
            forcing = self._forcing
            prior = self.config.attention_prior
            if self.training and prior is not None and (width := prior.width_at(step)) is not None:
                spans_B2 = self._speech_spans(features_BTF, feature_lengths_B, speech_spans_B2, of=prior)
                times_BN = diagonal_times(spans_B2, targets.num_rows_B, tokens_BU.size(1) + 1)
                bias_BNT = prior_bias(times_BN, spans_B2, encoded[0].size(1), width)
                forcing = replace(forcing, attention_bias_BNT=bias_BNT)
            if ctc is not None and self.config.attention_guide is not None:
                guided_BNT = self._guide_aligned(ctc, encoded, targets, forcing.attention_bias_BNT)
                forcing = replace(forcing, attention_bias_BNT=guided_BNT)
            decoder_loss = self.decoder.compute_loss(targets, encoded, watched, forcing)
            total = total + (1 - self.config.ctc_weight) * decoder_loss.loss
            parts |= decoder_loss.parts
            if decoder_loss.weights:
                weights_BHNT = torch.cat(list(decoder_loss.weights.values()), dim=1)
                spans_B2 = self._speech_spans(features_BTF, feature_lengths_B, speech_spans_B2)
                times_BN, on_path = self._path(spans_B2, encoded, targets, ctc)
                rows = (times_BN[:, : weights_BHNT.size(2)], decoder_loss.num_rows_B, encoded[1])
                parts |= attention_measures(weights_BHNT.detach(), *rows) | on_path
                if guided_weight > 0:
                    assert self.config.guided_attention is not None
                    penalty = guided_attention_loss(weights_BHNT, *rows, self.config.guided_attention.sigma)
                    total = total + guided_weight * penalty
                    parts["guided_attention"] = penalty
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
        guide = self.config.attention_guide
        if guide is None:
            return self.decoder.score_reference(targets, encoded, weights_of)
        assert isinstance(self.decoder, Decoder)
        ctc_BTV = self.ctc_log_probabilities(encoded[0])
        bias_BNT = guide_texts(ctc_BTV, encoded[1], targets.tokens_BU[:, None], guide.width)
        return self.decoder(targets.for_decoder()[0], *encoded, weights_of, bias_BNT)

    # --- guided attention -----------------------------------------------------------------------

    def _guide_aligned(
        self, ctc: CTC, encoded: Encoded, targets: Targets, bias_BNT: Tensor | None
    ) -> Tensor | None:
        """The window of utterances that CTC aligns well, and `bias_BNT` of the others."""
        config = self.config.attention_guide
        assert config is not None
        is_aligned_B = torch.ones_like(encoded[1], dtype=torch.bool)
        if self.training:
            is_aligned_B = ctc.aligns(targets, config.ctc_threshold)
        if not is_aligned_B.any():
            return bias_BNT
        ctc_BTV = ctc.log_probabilities_BTV.detach()
        window_BNT = guide_texts(ctc_BTV, encoded[1], targets.tokens_BU[:, None], config.width)
        others_BNT = torch.zeros_like(window_BNT) if bias_BNT is None else bias_BNT
        return torch.where(is_aligned_B[:, None, None], window_BNT, others_BNT)

    def _guided_weight(self, step: int) -> float:
        guided = self.config.guided_attention
        return guided.weight_at(step) if guided is not None and self.training else 0.0

    def _watched_heads(self) -> WeightsOf:
        """Layer to heads: those that are guided, or those of the last layer where none is."""
        assert self.decoder is not None
        guided, num_layers = self.config.guided_attention, self.decoder.num_layers
        if guided is None:
            return self.decoder.last_heads
        layers = range(num_layers) if guided.layers is None else guided.layers
        heads = tuple(range(self.decoder.num_heads)) if guided.heads is None else guided.heads
        return {layer % num_layers: heads for layer in layers}

    def _speech_spans(
        self,
        features_BTF: Tensor,
        feature_lengths_B: Tensor,
        known_B2: Tensor | None = None,
        *,
        of: AttentionPriorConfig | None = None,
    ) -> Tensor:
        """(B, 2): where the diagonal starts and ends, in encoded steps, by one section or the other."""
        section = of or self.config.guided_attention
        if section is not None and section.trim_silence:
            if known_B2 is None:
                known_B2 = speech_spans(features_BTF, feature_lengths_B)
            return known_B2 / self.encoder.subsampling_factor
        ends_B = feature_lengths_B / self.encoder.subsampling_factor
        return torch.stack([torch.zeros_like(ends_B), ends_B], dim=1)

    def _path(
        self, spans_B2: Tensor, encoded: Encoded, targets: Targets, ctc: CTC | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(B, N): when each row should be attended to, and how many rows follow the CTC alignment."""
        guided = self.config.guided_attention
        times_BN = diagonal_times(spans_B2, targets.num_rows_B, targets.tokens_BU.size(1) + 1)
        if guided is None or guided.path == "diagonal" or ctc is None:
            return times_BN, {}
        is_aligned_B = ctc.aligns(targets, guided.ctc_threshold)
        if is_aligned_B.any():
            first_BU, past_BU = align_tokens(
                ctc.log_probabilities_BTV, encoded[1], targets.tokens_BU, targets.lengths_B
            )
            path_BN = times_BN.clone()  # the end of the utterance keeps its place on the diagonal
            middle_BU = (first_BU + past_BU - 1) / 2
            is_token_BU = length_mask(targets.lengths_B, middle_BU.size(1))
            path_BN[:, :-1] = torch.where(is_token_BU, middle_BU, times_BN[:, :-1])
            times_BN = torch.where(is_aligned_B[:, None], path_BN, times_BN)
        return times_BN, {"on_ctc_path": (is_aligned_B * targets.num_rows_B).sum()}


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
