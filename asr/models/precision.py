"""Precision of matrix products: what the processor has instructions for, and what `auto` means."""

from __future__ import annotations

from typing import Literal

import torch

from asr.errors import UserError
from asr.models.int8 import is_int8_exact

Precision = Literal["auto", "float32", "bf16", "fp16", "int8", "int8_bf16"]
"""int8: linear layers in 8 bits, all else in float32; int8_bf16: attention and convolution in bf16."""

# Instructions that multiply matrices at least 1.5 times as fast as those of float32, by the names of
# torch.cpu.get_capabilities(). What is not in the table is left to the setting: on ARM nothing was measured.
FAST_INSTRUCTIONS = {
    "int8": ("amx_int8", "avx512_vnni", "avx_vnni"),
    "bf16": ("amx_bf16", "avx512_bf16"),
}
BF16_COMPUTE_CAPABILITY = (8, 0)  # of GPUs, from Ampere on


def is_fast(precision: Literal["int8", "bf16"], device: torch.device) -> bool:
    """Whether the device has instructions for it. No clock decides: equal runs are equal."""
    if device.type == "cuda":
        return precision == "bf16" and torch.cuda.get_device_capability(device) >= BF16_COMPUTE_CAPABILITY
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in FAST_INSTRUCTIONS[precision])


def resolve_precision(wanted: Precision, device: torch.device, prefers_int8: bool) -> Precision:
    """The precision of inference; `prefers_int8`: the model loses nothing by 8 bits, as Whisper does not.

    auto: 8 bits for such a model on a processor with instructions for it, float32 elsewhere. Others are taken
    or refused.
    """
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
