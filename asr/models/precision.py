"""Devices and their precision: half precision, and linear layers in 8 bits."""

from __future__ import annotations

import os
import warnings
from typing import Literal

import torch
from torch import Tensor, nn

from asr.config import Precision, check_device
from asr.errors import UserError
from asr.models.adapting import find_linears
from asr.models.layers import has_any

VNNI = ("amx_int8", "avx512_vnni", "avx_vnni")  # add up 8-bit products in 32 bits
# Instructions with matrix products at least 1.5 times as fast as float32 (Zen 3: twice), named as in
# torch.cpu.get_capabilities(). On others, such as ARM, nothing was measured, so precision auto ignores them.
FAST_INSTRUCTIONS = {"int8": (*VNNI, "avx2"), "bf16": ("amx_bf16", "avx512_bf16")}
HALF_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}  # precision to autocast type
BF16_COMPUTE_CAPABILITY = (8, 0)  # GPUs from Ampere on
MAX_KERNELS = 32  # compiled kernels in each cache


def is_fast(precision: Literal["int8", "bf16"], device: torch.device) -> bool:
    """Return whether the device has instructions for it. Nothing is timed, so that runs are reproducible."""
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
        raise UserError(f"device {name}: cannot be used here ({reason}); use auto or cpu") from None
    return device


def resolve_precision(requested: Precision, device: torch.device, prefers_int8: bool) -> Precision:
    """Return the precision of inference. `prefers_int8`: int8 does not reduce the model's accuracy.

    auto: 16 bits on a GPU; 8 bits for such a model on a CPU with instructions for it; else float32.
    Other precisions are used as requested, or refused.
    """
    if requested == "auto" and device.type == "cuda":
        return "bf16" if is_fast("bf16", device) else "fp16"
    if requested == "auto":
        if not (prefers_int8 and device.type == "cpu" and is_fast("int8", device) and is_int8_exact()):
            return "float32"
        return "int8_bf16" if is_fast("bf16", device) else "int8"
    if requested.startswith("int8"):
        if requested == "int8_bf16" and not prefers_int8:
            raise UserError(f"precision {requested} is not supported by this model; use int8 or float32")
        if device.type != "cpu":
            raise UserError(f"precision {requested} is for CPUs, not {device.type}; use bf16 or fp16")
        if not is_int8_exact():
            raise UserError(f"precision {requested}: int8 is not exact on this processor; use float32")
    return requested


def describe_device(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    threads = torch.get_num_threads()
    return f"cpu ({threads} thread{'s' if threads != 1 else ''})"


def limit_kernel_cache() -> None:
    """Limit PyTorch's caches of compiled CPU kernels, one for each shape of a product.

    A kernel takes up to 1 MB, and each of two caches would keep 1024. Call this before the first product.
    """
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(cache, str(MAX_KERNELS))


# --- 8 bits -----------------------------------------------------------------------------------------

# M rows, N outputs, K inputs

INT8_MAX = 127
PAIRS_MAX = 64  # largest weight if pairs of products are added in 16 bits: 2 x 255 x 64 fits
OUTPUTS_AT_ONCE = 256  # rows rounded at once, so that they fit the cache in float32
OUTPUTS_PACKED = 4096  # rows packed at once by FBGEMM; more are slower to pack, fewer slower to multiply
ZERO_POINT = 128  # offset of the inputs, which the processor requires to be unsigned


class Int8Linear(nn.Module):
    """A linear layer in 8 bits, with a scale per output for the weights and per row for the inputs.

    Each row has its own scale, and sums of integers are exact, so a row's result does not depend on other
    rows. AVX2 adds pairs of products in 16 bits, so weights have 7 bits there. FBGEMM, which provides these
    products, is deprecated in PyTorch; without it, `is_int8_exact` is false on AVX2.
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
        """`dtype` is the output's. FBGEMM takes half as long as oneDNN for few rows, longer for many."""
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
        # The packed matrix is not a buffer, because it cannot be moved to another device.
        if self._uses_fbgemm:  # in parts, because it would read a large matrix with large strides
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
            # Halves are rounded up. Via int32, because PyTorch's direct cast to uint8 is four times slower.
            uint8_MK = scaled_MK.add_(ZERO_POINT + 0.5).to(torch.int32).to(torch.uint8)
            y_MN = torch.ops.onednn.qlinear_pointwise(
                uint8_MK, 1.0, ZERO_POINT, self._packed, self.scales_N, self._zeros_N, None,
                1.0, 0, self.dtype, "none", [], "",
            )  # fmt: skip
        torch.addcmul(self.bias_N, y_MN, scales_M1.to(self.dtype), out=y_MN)
        return y_MN.view(*x.shape[:-1], self.out_features)


def quantize_layers(model: nn.Module) -> None:
    """Replace the linear layers in the encoder and decoder stacks with 8-bit layers, in place.

    Layers outside the stacks are unchanged: subsampling, embeddings, the output.
    """
    linears = [one for one in find_linears(model, nn.Linear) if "layers" in one[0].split(".")]
    if not linears:
        raise UserError("precision int8: this model has no layers that can be quantized; use float32")
    for _, parent, name, linear in linears:
        setattr(parent, name, Int8Linear(linear.weight, linear.bias))


def _round(weight_NK: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """Return the weights as integers up to `largest`, and their scales."""
    int8_NK = torch.empty_like(weight_NK, dtype=torch.int8)
    scales = []
    for part_MK, int8_MK in zip(*(both.split(OUTPUTS_AT_ONCE) for both in (weight_NK, int8_NK)), strict=True):
        part_MK = part_MK.float()
        scales.append(part_MK.abs().amax(1).clamp_(min=1e-30).div_(largest))
        int8_MK.copy_((part_MK / scales[-1][:, None]).round_())
    return int8_NK, torch.cat(scales)


@torch.inference_mode()
def is_int8_exact() -> bool:
    """Return whether 8-bit products are exact on this processor; not in every build of PyTorch they are."""
    try:
        layers = [Int8Linear(torch.ones(64, 512), few_rows=few_rows) for few_rows in (False, True)]
        products_MN = torch.cat([layer(torch.ones(2, 512)) for layer in layers])
    except (AttributeError, RuntimeError):
        return False
    return torch.allclose(products_MN, torch.tensor(512.0), rtol=1e-5)
