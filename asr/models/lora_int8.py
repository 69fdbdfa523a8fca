"""Adapted models, with frozen parts and low-rank changes (LoRA); precision of inference, 8 bits too."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, Literal

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.config import Config
from asr.errors import UserError
from asr.models.layers import without_weights

# B batch, T steps, D dimension of the input, K dimension of the output, R rank

PROJECTIONS = ("project_in", "project_out", "project_queries", "project_memory")  # of any attention


class LoraConfig(Config):
    """The projections of attention learn a change of low rank (Hu et al. 2021); their own weights stay.

    What else is in the model is trained whole, unless `frozen` names it.
    """

    rank: int = pydantic.Field(default=8, gt=0)
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
            raise UserError(
                f"model.frozen: no part {part!r} in this model; it has {known}, and parts of them such as "
                "encoder.layers.0"
            ) from None


def add_low_rank(model: nn.Module, config: LoraConfig) -> None:
    """Put a layer of low rank in the place of each projection of attention."""
    found = [one for one in _find(model, nn.Linear) if one[2] in PROJECTIONS]
    if not found:
        raise UserError(
            "model.lora changes the projections of attention, and this model has none; set lora: null"
        )
    for _, parent, name, linear in found:
        setattr(parent, name, LowRankLinear(linear, config.rank, config.alpha / config.rank))


def require_learning(model: nn.Module) -> None:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(
            "model.frozen leaves nothing that could be trained; take a part out, or add model.lora"
        )


def merge_low_rank(model: nn.Module) -> None:
    """Merge all changes: plain projections compute the same in less time."""
    for _, parent, name, layer in _find(model, LowRankLinear):
        setattr(parent, name, layer.merged())


def is_low_rank(name: str) -> bool:
    """Tell by its name whether a weight is part of a learned change."""
    return name.endswith((".down_RD", ".up_KR"))


def _find(root: nn.Module, kind: type[nn.Linear]) -> list[tuple[str, nn.Module, str, Any]]:
    """The layers of a kind: path of the module around each, that module, name, layer."""
    return [
        (path, parent, name, layer)
        for path, parent in root.named_modules()
        for name, layer in parent.named_children()
        if type(layer) is kind
    ]


Precision = Literal["auto", "float32", "bf16", "fp16", "int8", "int8_bf16"]
"""int8: linear layers in 8 bits, all else in float32; int8_bf16: attention and convolution in bf16."""

# Instructions that multiply matrices at least 1.5 times as fast as those of float32, by the names of
# torch.cpu.get_capabilities(). What is not in the table is left to the setting: on ARM nothing was measured.
FAST_INSTRUCTIONS = {
    "int8": ("amx_int8", "avx512_vnni", "avx_vnni"),
    "bf16": ("amx_bf16", "avx512_bf16"),
}
BF16_COMPUTE_CAPABILITY = (8, 0)  # of GPUs, from Ampere on
KEPT_KERNELS = 128


def is_fast(precision: Literal["int8", "bf16"], device: torch.device) -> bool:
    """Check that the device has instructions for it. No clock decides: equal runs are equal."""
    if device.type == "cuda":
        return precision == "bf16" and torch.cuda.get_device_capability(device) >= BF16_COMPUTE_CAPABILITY
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in FAST_INSTRUCTIONS[precision])


def resolve_precision(wanted: Precision, device: torch.device, prefers_int8: bool) -> Precision:
    """The precision of inference; `prefers_int8`: the model loses nothing by 8 bits, as Whisper does not.

    auto: 16 bits on a GPU; 8 bits for such a model on a CPU with instructions for it; else float32.
    Others are taken or refused.
    """
    if wanted == "auto" and device.type == "cuda":
        return "bf16" if is_fast("bf16", device) else "fp16"
    if wanted == "auto":
        if not (prefers_int8 and device.type == "cpu" and is_fast("int8", device) and is_int8_exact()):
            return "float32"
        return "int8_bf16" if is_fast("bf16", device) else "int8"
    if wanted.startswith("int8"):
        if wanted == "int8_bf16" and not prefers_int8:
            raise UserError(f"precision {wanted} is for Whisper models; take int8 or float32")
        if device.type != "cpu":
            raise UserError(f"precision {wanted} on {device.type}: it is for a CPU; take bf16 or fp16")
        if not is_int8_exact():
            raise UserError(f"precision {wanted}: this processor multiplies no 8 bits exactly; take float32")
    return wanted


def describe_arithmetic(precision: Precision, device: torch.device) -> str:
    """Name precision and device, as results and output folders have them."""
    return f"{precision} on {device.type}"


def describe_device(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    threads = torch.get_num_threads()
    return f"cpu ({threads} thread{'s' if threads != 1 else ''})"


def limit_kept_kernels() -> None:
    """Have PyTorch keep few of the kernels that it compiles on a CPU, one for each shape of a product.

    Each takes 0.3 MB, and 1024 of them would be kept in each of two caches. Too late after the first product.
    """
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(cache, str(KEPT_KERNELS))


# --- 8 bits -----------------------------------------------------------------------------------------

# M rows, N outputs, K inputs

LARGEST = 127
ROUNDED_AT_ONCE = 250_000  # weights
MIDDLE = 128  # stands for 0 among the inputs, which the processor wants without a sign


class Int8Linear(nn.Module):
    """A linear layer of weights that are rounded to 8 bits by output, and inputs by row.

    Each row has its own scale, and sums of whole numbers are exact: what comes of a row does not depend on
    its company.
    """

    scales_N: Tensor
    bias_N: Tensor | None
    _zeros_N: Tensor

    def __init__(
        self, weight_NK: Tensor, bias_N: Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        """`dtype` is that of the output."""
        super().__init__()
        whole_NK, scales_N = _round(weight_NK.detach())
        self.dtype = dtype
        self.out_features, self.in_features = weight_NK.shape
        self._packed = torch.ops.onednn.qlinear_prepack(whole_NK, None)  # no buffer: it cannot be moved
        self.register_buffer("scales_N", scales_N)
        self.register_buffer("bias_N", None if bias_N is None else bias_N.detach().to(dtype, copy=True))
        self.register_buffer("_zeros_N", torch.zeros(self.out_features, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        x_MK = x.reshape(-1, self.in_features)
        largest_M1 = torch.maximum(x_MK.amax(1, True), -x_MK.amin(1, True)).float()
        scales_M1 = largest_M1.clamp_(min=1e-30).mul_(1 / LARGEST)
        # What is cut off is past the point: halves are rounded up.
        whole_MK = torch.div(x_MK, scales_M1).add_(MIDDLE + 0.5).to(torch.uint8)
        y_MN = torch.ops.onednn.qlinear_pointwise(
            whole_MK, 1.0, MIDDLE, self._packed, self.scales_N, self._zeros_N, None,
            1.0, 0, self.dtype, "none", [], "",
        )  # fmt: skip
        scales_M1 = scales_M1.to(self.dtype)
        if self.bias_N is None:
            y_MN *= scales_M1
        else:
            y_MN = torch.addcmul(self.bias_N, y_MN, scales_M1)
        return y_MN.unflatten(0, x.shape[:-1])


def quantise_layers(model: nn.Module) -> None:
    """Replace, in place, the linear layers in the stacks of encoder and decoder by layers in 8 bits.

    What is before and after a stack stays as it is: subsampling, embeddings, the output.
    """
    found = [one for one in _find(model, nn.Linear) if "layers" in one[0].split(".")]
    if not found:
        raise UserError(
            "precision int8: this model has no layers that can be quantized, as Transformers and Conformers "
            "have; take float32"
        )
    for _, parent, name, linear in found:
        setattr(parent, name, Int8Linear(linear.weight, linear.bias))


def _round(weight_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers and their scales. Some rows at a time, which stay in the cache as float32."""
    whole_NK, scales_N = torch.empty(weight_NK.shape, dtype=torch.int8), torch.empty(len(weight_NK))
    num_rows = max(1, ROUNDED_AT_ONCE // weight_NK.size(1))
    parts = zip(*(tensor.split(num_rows) for tensor in (weight_NK, whole_NK, scales_N)), strict=True)
    for weight_RK, whole_RK, scales_R in parts:
        weight_RK = weight_RK.float()
        scales_R.copy_(weight_RK.abs().amax(1).clamp_(min=1e-30).div_(LARGEST))
        whole_RK.copy_((weight_RK / scales_R[:, None]).round_())
    return whole_NK, scales_N


@torch.inference_mode()
def is_int8_exact() -> bool:
    """Check that this processor multiplies in 8 bits without errors.

    One without instructions for that adds pairs up in 16 bits, which large ones do not fit in; and not every
    build of PyTorch has such products.
    """
    try:
        products_MN = Int8Linear(torch.ones(64, 512))(torch.ones(2, 512))
    except (AttributeError, RuntimeError):
        return False
    return torch.allclose(products_MN, torch.tensor(512.0), rtol=1e-5)
