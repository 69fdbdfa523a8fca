"""Which precision `auto` means, by the instructions of a processor: those of real ones, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from asr.errors import UserError
from asr.models import is_fast, lora_int8, resolve_precision

CPU = torch.device("cpu")
AVX512 = ("avx2", "avx512_f")


@pytest.mark.parametrize(
    ("instructions", "whisper", "has_bf16"),
    [
        (("sse4_2",), "float32", False),
        (("avx2",), "float32", False),  # Haswell, Zen 3
        (AVX512, "float32", False),  # Skylake
        ((*AVX512, "avx512_vnni"), "int8", False),  # Cascade Lake, Ice Lake
        (("avx2", "avx_vnni"), "int8", False),  # Alder Lake
        ((*AVX512, "avx512_vnni", "avx512_bf16"), "int8_bf16", True),  # Cooper Lake, Zen 4
        (
            (*AVX512, "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16"),
            "int8_bf16",
            True,
        ),  # Sapphire Rapids
        (("neon", "dot", "bf16", "i8mm"), "float32", False),  # Graviton 3
    ],
)
def test_auto(
    instructions: tuple[str, ...], whisper: str, has_bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(instructions, True))
    monkeypatch.setattr(lora_int8, "is_int8_exact", lambda: True)
    assert resolve_precision("auto", CPU, prefers_int8=True) == whisper
    assert resolve_precision("auto", CPU, prefers_int8=False) == "float32"
    assert is_fast("bf16", CPU) is has_bf16
    monkeypatch.setattr(lora_int8, "is_int8_exact", lambda: False)  # a build of PyTorch without them
    assert resolve_precision("auto", CPU, prefers_int8=True) == "float32"


@pytest.mark.parametrize(("capability", "has_bf16"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_gpu(capability: tuple[int, int], has_bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    device = torch.device("cuda")
    assert is_fast("bf16", device) is has_bf16 and not is_fast("int8", device)
    expected = "bf16" if has_bf16 else "fp16"
    assert resolve_precision("auto", device, prefers_int8=True) == expected
    assert resolve_precision("float32", device, prefers_int8=True) == "float32"


def test_this_processor_has_names_as_in_the_table() -> None:
    """On x86 all of them are known to PyTorch, set or not; a misspelt one would never be found."""
    capabilities = torch.cpu.get_capabilities()
    if capabilities["architecture"] != "x86_64":
        pytest.skip("the table is of x86")
    assert {name for names in lora_int8.FAST_INSTRUCTIONS.values() for name in names} <= capabilities.keys()


def test_what_is_named_is_taken_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora_int8, "is_int8_exact", lambda: False)
    for wanted in ("float32", "bf16", "fp16"):
        assert resolve_precision(wanted, CPU, prefers_int8=True) == wanted  # type: ignore[arg-type]
    with pytest.raises(UserError, match="multiplies no 8 bits exactly"):
        resolve_precision("int8", CPU, prefers_int8=True)
    with pytest.raises(UserError, match="is for Whisper models"):
        resolve_precision("int8_bf16", CPU, prefers_int8=False)
    with pytest.raises(UserError, match="it is for a CPU"):
        resolve_precision("int8", torch.device("cuda"), prefers_int8=True)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the memory is read from /proc")
def test_kernels_of_many_shapes_take_little_memory() -> None:
    """About 130 MB, and 920 if PyTorch keeps as many as it likes."""
    if not lora_int8.is_int8_exact():
        pytest.skip("this processor multiplies no 8 bits exactly")
    script = """
from pathlib import Path
from types import SimpleNamespace
import torch
from asr.models import Int8Linear
from asr.transcription import Transcriber

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

Transcriber.__init__(SimpleNamespace(), "cpu", "int8", prefers_int8=True)
layer, weights = Int8Linear(torch.randn(64, 64)), torch.randn(64, 64).bfloat16()
before = resident()
with torch.inference_mode():
    for rows in range(1, 900):
        x = torch.randn(rows, 64)
        layer(x), x.bfloat16() @ weights
print(resident() - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 300_000_000
