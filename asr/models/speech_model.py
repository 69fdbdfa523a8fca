"""A speech model of encoder, CTC head and decoder; how it is adapted, and in which precision it computes."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.config import Config, Precision, Size, check_device, choose_by_type
from asr.errors import UserError
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
from asr.models.language_model import LanguageModel, LanguageModelConfig
from asr.models.layers import Dropout, ModelConfig, Net, find_more_kinds, has_any, without_weights
from asr.models.losses import Losses, Targets, ctc_loss

# B batch, T steps, D dimension of the input, K dimension of the output, R rank

PROJECTIONS = ("project_in", "project_out", "project_queries", "project_memory")  # of any attention


class LoraConfig(Config):
    """The projections of attention learn a change of low rank (Hu et al. 2021); their own weights stay.

    What else is in the model is trained whole, unless `frozen` names it.
    """

    rank: Size = 8
    """Rank of the change: a projection of D to K dimensions learns rank x (D + K) numbers."""
    alpha: float = pydantic.Field(default=16.0, gt=0)
    """The change is multiplied by alpha / rank, so that another rank needs no other learning rate."""


class LowRankLinear(nn.Linear):
    """A linear layer whose weights stay, and a change of low rank that is learned; it starts as zero."""

    def __init__(self, linear: nn.Linear, rank: int, scale: float) -> None:
        nn.Module.__init__(self)  # the weights are there already
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.scale = scale
        self.down_RD = nn.Parameter(linear.weight.new_empty(rank, linear.in_features))
        self.up_KR = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))
        nn.init.kaiming_uniform_(self.down_RD, a=math.sqrt(5))
        for parameter in linear.parameters():
            parameter.requires_grad_(False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        change_BTK = F.linear(F.linear(x_BTD, self.down_RD), self.up_KR)
        return F.linear(x_BTD, self.weight, self.bias) + self.scale * change_BTK

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Merge the change into a plain layer."""
        with without_weights():
            linear = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None)
        linear.weight = nn.Parameter(self.weight + self.scale * self.up_KR @ self.down_RD)
        linear.bias = self.bias
        return linear


def freeze(model: nn.Module, parts: Sequence[str]) -> None:
    for part in parts:
        try:
            model.get_submodule(part).requires_grad_(False)
        except AttributeError:
            known = ", ".join(name for name, _ in model.named_children())
            raise UserError(f"model.frozen: no part {part!r} in this model; it has {known}") from None


def merge_low_rank(model: nn.Module) -> None:
    """Merge all changes: plain projections compute the same in less time."""
    for _, parent, name, layer in _find(model, LowRankLinear):
        setattr(parent, name, layer.merged())


def is_low_rank(name: str) -> bool:
    """Return True if the weight of this name is part of a learned change."""
    return name.endswith((".down_RD", ".up_KR"))


def _find(root: nn.Module, kind: type[nn.Linear]) -> list[tuple[str, nn.Module, str, Any]]:
    """The layers of a kind: path of the module around each, that module, name, layer."""
    return [
        (path, parent, name, layer)
        for path, parent in root.named_modules()
        for name, layer in parent.named_children()
        if type(layer) is kind
    ]


VNNI = ("amx_int8", "avx512_vnni", "avx_vnni")  # sums of 8-bit products in 32 bits
# Instructions that multiply matrices at least 1.5 times as fast as float32 (Zen 3: twice), by the names of
# torch.cpu.get_capabilities(). What is not in the table is left to the setting: on ARM nothing was measured.
FAST_INSTRUCTIONS = {"int8": (*VNNI, "avx2"), "bf16": ("amx_bf16", "avx512_bf16")}
HALF_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}  # of autocast, by precision
BF16_COMPUTE_CAPABILITY = (8, 0)  # of GPUs, from Ampere on
MAX_KERNELS = 32


def is_fast(precision: Literal["int8", "bf16"], device: torch.device) -> bool:
    """Check that the device has instructions for it. Nothing is timed: equal runs are equal."""
    if device.type == "cuda":
        return precision == "bf16" and torch.cuda.get_device_capability(device) >= BF16_COMPUTE_CAPABILITY
    return has_any(FAST_INSTRUCTIONS[precision])


def choose_device(name: str, is_elsewhere: bool = False) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    check_device(name)
    try:
        device = torch.device(name)
        torch.empty(1, device="meta" if is_elsewhere else device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device {name}: cannot be used here ({reason}); give auto or cpu") from None
    return device


def resolve_precision(requested: Precision, device: torch.device, prefers_int8: bool) -> Precision:
    """The precision of inference; `prefers_int8`: int8 costs the model no accuracy, as with Whisper.

    auto: 16 bits on a GPU; 8 bits for such a model on a CPU with instructions for it; else float32.
    Others are used or rejected.
    """
    if requested == "auto" and device.type == "cuda":
        return "bf16" if is_fast("bf16", device) else "fp16"
    if requested == "auto":
        if not (prefers_int8 and device.type == "cpu" and is_fast("int8", device) and is_int8_exact()):
            return "float32"
        return "int8_bf16" if is_fast("bf16", device) else "int8"
    if requested.startswith("int8"):
        if requested == "int8_bf16" and not prefers_int8:
            raise UserError(f"precision {requested} is for Whisper models; take int8 or float32")
        if device.type != "cpu":
            raise UserError(f"precision {requested} on {device.type}: it is for a CPU; take bf16 or fp16")
        if not is_int8_exact():
            raise UserError(f"precision {requested}: int8 is not exact on this processor; take float32")
    return requested


def describe_device(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    threads = torch.get_num_threads()
    return f"cpu ({threads} thread{'s' if threads != 1 else ''})"


def limit_kernel_cache() -> None:
    """Limit PyTorch's caches of the kernels that it compiles on a CPU, one for each shape of a product.

    Each takes up to 1 MB, and each of two caches would keep 1024 of them. Too late after the first product.
    """
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(cache, str(MAX_KERNELS))


# --- 8 bits -----------------------------------------------------------------------------------------

# M rows, N outputs, K inputs

INT8_MAX = 127
PAIRS_MAX = 64  # of weights: 2 x 255 x 64 fits in 16 bits
OUTPUTS_AT_ONCE = 256  # rounded at once: in float32 they should stay in the cache
OUTPUTS_PACKED = 4096  # by FBGEMM at once: more take longer to pack, fewer to multiply
ZERO_POINT = 128  # of the inputs, which the processor requires to be unsigned


class Int8Linear(nn.Module):
    """A linear layer of weights that are rounded to 8 bits by output, and inputs by row.

    Each row has its own scale, and sums of whole numbers are exact: what comes of a row does not depend on
    its company. AVX2 adds products up by pairs in 16 bits, so weights have 7 bits there. FBGEMM, which has
    such products, is deprecated in PyTorch: without it, `is_int8_exact` is false there.
    """

    scales_N: Tensor
    bias_N: Tensor
    _zeros_N: Tensor

    def __init__(
        self,
        weight_NK: Tensor,
        bias_N: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        few_rows: bool = False,
    ) -> None:
        """`dtype` is that of the output. FBGEMM takes half the time of oneDNN for few rows, more for many."""
        super().__init__()
        adds_pairs = has_any(["avx2"]) and not has_any(VNNI)
        self.weight_max = PAIRS_MAX if adds_pairs else INT8_MAX
        can_choose = has_any(["avx512_vnni"]) and hasattr(torch.ops.quantized, "linear_prepack")
        is_slower = len(weight_NK) > OUTPUTS_PACKED and has_any(["amx_int8"])  # for any number of rows
        self._uses_fbgemm = adds_pairs or (few_rows and can_choose and not is_slower)
        int8_NK, scales_N = _round(weight_NK.detach(), self.weight_max)
        self.dtype = dtype
        self.out_features, self.in_features = weight_NK.shape
        self.register_buffer("scales_N", scales_N)
        bias_N = torch.zeros_like(scales_N) if bias_N is None else bias_N
        self.register_buffer("bias_N", bias_N.detach().to(dtype, copy=True))
        self.register_buffer("_zeros_N", torch.zeros(self.out_features, dtype=torch.int64))
        # Packed, it is no buffer: it cannot be moved.
        if self._uses_fbgemm:  # in parts, as it would read a large matrix in leaps
            parts = zip(*(x.split(OUTPUTS_PACKED) for x in (int8_NK, scales_N, self._zeros_N)), strict=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                packable = [torch._make_per_channel_quantized_tensor(q, s, z, 0) for q, s, z in parts]
            self._packed = [torch.ops.quantized.linear_prepack(part_PK, None) for part_PK in packable]
        else:
            self._packed = torch.ops.onednn.qlinear_prepack(int8_NK, None)

    def forward(self, x: Tensor) -> Tensor:
        x_MK = x.reshape(-1, self.in_features).float()
        largest_M1 = torch.maximum(x_MK.amax(1, True), -x_MK.amin(1, True))
        scales_M1 = largest_M1.clamp_(min=1e-30).mul_(1 / INT8_MAX)
        scaled_MK = torch.div(x_MK, scales_M1)
        if self._uses_fbgemm:
            multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
            parts = [multiply(scaled_MK, 1.0, ZERO_POINT, part_PK) for part_PK in self._packed]
            y_MN = (parts[0] if len(parts) == 1 else torch.cat(parts, 1)).to(self.dtype)
        else:
            # Halves are rounded up. By way of int32: PyTorch casts to uint8 one by one, four times as slowly.
            uint8_MK = scaled_MK.add_(ZERO_POINT + 0.5).to(torch.int32).to(torch.uint8)
            y_MN = torch.ops.onednn.qlinear_pointwise(
                uint8_MK, 1.0, ZERO_POINT, self._packed, self.scales_N, self._zeros_N, None,
                1.0, 0, self.dtype, "none", [], "",
            )  # fmt: skip
        torch.addcmul(self.bias_N, y_MN, scales_M1.to(self.dtype), out=y_MN)
        return y_MN.view(*x.shape[:-1], self.out_features)


def quantize_layers(model: nn.Module) -> None:
    """Replace, in place, the linear layers in the stacks of encoder and decoder by layers in 8 bits.

    What is before and after a stack stays as it is: subsampling, embeddings, the output.
    """
    linears = [one for one in _find(model, nn.Linear) if "layers" in one[0].split(".")]
    if not linears:
        raise UserError("precision int8: this model has no layers that can be quantized; take float32")
    for _, parent, name, linear in linears:
        setattr(parent, name, Int8Linear(linear.weight, linear.bias))


def _round(weight_NK: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """Integers up to `largest` and their scales."""
    int8_NK = torch.empty_like(weight_NK, dtype=torch.int8)
    scales = []
    for part_MK, int8_MK in zip(*(both.split(OUTPUTS_AT_ONCE) for both in (weight_NK, int8_NK)), strict=True):
        part_MK = part_MK.float()
        scales.append(part_MK.abs().amax(1).clamp_(min=1e-30).div_(largest))
        int8_MK.copy_((part_MK / scales[-1][:, None]).round_())
    return int8_NK, torch.cat(scales)


@torch.inference_mode()
def is_int8_exact() -> bool:
    """Check that this processor multiplies in 8 bits without errors; not every build of PyTorch does."""
    try:
        layers = [Int8Linear(torch.ones(64, 512), few_rows=few_rows) for few_rows in (False, True)]
        products_MN = torch.cat([layer(torch.ones(2, 512)) for layer in layers])
    except (AttributeError, RuntimeError):
        return False
    return torch.allclose(products_MN, torch.tensor(512.0), rtol=1e-5)


# B batch, T encoded steps, F features, U tokens, N rows of decoder (tokens, end), V vocabulary, D dimension


class SpeechModelConfig(ModelConfig):
    """An encoder with a CTC head, a decoder, or both."""

    makes_text: ClassVar[bool] = True
    scores: ClassVar[tuple[str, ...]] = ("wer", "cer", "token_accuracy", "loss")

    type: Literal["speech"] = "speech"
    encoder: AnyEncoderConfig
    """Features to encoded steps: transformer, conformer, lstm, intra_attention or whisper."""
    decoder: AnyDecoderConfig | None = None
    """Encoded steps to tokens, one after the other: transformer, attention, intra_attention, single_summary
    or whisper; all at once: parallel_length or mask_ctc; null for CTC alone."""
    ctc_weight: float = pydantic.Field(default=0.3, ge=0, le=1)
    """Weight of CTC in the loss; the rest is the decoder's cross-entropy."""
    label_smoothing: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Probability mass of each target that is spread over the whole vocabulary."""
    guided_attention: GuidedAttentionConfig | None = None
    """Guides cross-attention along the recording; null: it is free."""
    frozen: tuple[str, ...] = ()
    """Parts whose weights stay as they are, such as encoder, or decoder.embedding."""
    lora: LoraConfig | None = None
    """Projections of attention learn a change of low rank, in place of their weights; null: none. With
    frozen: [encoder, decoder] nothing else there is trained."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> SpeechModelConfig:
        if (self.decoder is None) != (self.ctc_weight == 1):
            raise ValueError(f"ctc_weight = {self.ctc_weight}: set it to 1.0 without a decoder, else below")
        if self.decoder is not None and self.decoder.needs_ctc and self.ctc_weight == 0:
            raise ValueError("decoder.type = mask_ctc starts from CTC: set ctc_weight above 0")
        guided = self.guided_attention
        if guided is None:
            return self
        if self.decoder is None or self.decoder.cross_attention == (0, 0):
            raise ValueError("guided_attention needs a decoder that attends; set guided_attention: null")
        if (guided.prior is not None or guided.window is not None) and not self.decoder.reads_tokens:
            raise ValueError(
                "guided_attention.prior and .window need a decoder that goes token by token, and "
                f"decoder.type = {self.decoder.type} does not; remove them"
            )
        if guided.window is not None and guided.window.follows == "ctc" and self.ctc_weight == 0:
            raise ValueError("guided_attention follows the CTC head: set ctc_weight above 0")
        return self

    def check_run(self, run: Any) -> None:
        if run.train.select_by == "token_accuracy" and self.decoder is None:
            raise ValueError("train.select_by = token_accuracy needs a decoder; set it to wer")
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
    """Model of speech: encodes once; the CTC head and the decoder both read the result."""

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
            projections = [found for found in _find(self, nn.Linear) if found[2] in PROJECTIONS]
            if not projections:
                raise UserError("model.lora changes attention, and this model has none; remove it")
            for _, parent, name, linear in projections:
                setattr(parent, name, LowRankLinear(linear, lora.rank, lora.alpha / lora.rank))
        if not any(parameter.requires_grad for parameter in self.parameters()):
            raise UserError("model.frozen leaves nothing that could be trained; take a part out")

    @property
    def reported(self) -> tuple[str, ...]:  # type: ignore[override]
        own = () if self.decoder is None else self.decoder.reported
        return ("total", "ctc", *own, "guided_attention", "correct")

    @property
    def text_heads(self) -> tuple[str, ...]:
        return ("ctc",) * (self.ctc_head is not None) + ("decoder",) * (self.decoder is not None)

    @property
    def window_width(self) -> float | None:
        """Width of the CTC-guided attention window in decoding, in encoded steps; None: there is none."""
        guided = self.guided_attention
        return None if guided is None or guided.window is None else guided.window.width

    def encode(self, features_BTF: Tensor, feature_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        encoded_BTD, encoded_lengths_B = self.encoder(features_BTF, feature_lengths_B)
        return encoded_BTD, encoded_lengths_B

    def limit_tokens(self, encoded_lengths_B: Tensor) -> Tensor:
        """The most tokens that a decoder may return: as many as CTC could.

        Without CTC, one for every two frames of features, so that a decoder that repeats itself ends.
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
        """`step`, the number of updates so far, and `speech_spans_B2` are for guided attention."""
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
        """Teacher-forced scores at each position by the decoder, and the requested attention weights."""
        assert self.decoder is not None
        width = self.window_width
        if width is None:
            return self.decoder.score_reference(targets, encoded, weights_of)
        assert isinstance(self.decoder, Decoder)
        ctc_BTV = self.ctc_log_probabilities(encoded[0])
        bias_BNT = ctc_window_bias(ctc_BTV, encoded[1], targets.tokens_BU[:, None], width)
        return self.decoder(targets.for_decoder()[0], *encoded, weights_of, bias_BNT)


# From the section of a config to its class; nothing in the training loop names a kind.
MODELS: dict[type[ModelConfig], Callable[[Any, int, int], Net]] = {
    SpeechModelConfig: SpeechModel,
    LanguageModelConfig: LanguageModel,
}


if TYPE_CHECKING:
    AnyModelConfig = ModelConfig
else:
    AnyModelConfig = choose_by_type(MODELS, "speech", lambda: find_more_kinds("MODELS"))


def build_model(config: ModelConfig, num_features: int, vocab_size: int) -> Net:
    """The model with fresh random weights; seed torch before for the same ones."""
    build = MODELS.get(type(config)) or find_more_kinds("MODELS")[type(config)]
    return build(config, num_features, vocab_size)


def require_memory(config: ModelConfig, num_features: int, vocab_size: int) -> None:
    """Refuse a model whose weights exceed the memory of this machine, before any of it is built."""
    with without_weights():
        model = build_model(config, num_features, vocab_size)
    needed = sum(weight.nbytes for weight in model.parameters())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        sizes = f"{needed / 1e9:,.0f} GB, and this machine has {memory / 1e9:,.0f} GB"
        raise UserError(f"model: its weights take {sizes}; lower its sizes (dim, num_layers, ...)")
