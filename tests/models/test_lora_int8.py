"""Adapted models: frozen parts, changes of low rank, 8 bits against whole numbers, and what precision auto means."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from model_examples import NUM_FEATURES, SYSTEMS, VOCAB_SIZE, make_utterances
from torch import Tensor, nn

from asr.errors import UserError
from asr.models import precision
from asr.models.adapting import LowRankLinear, is_low_rank, merge_low_rank
from asr.models.precision import Int8Linear, is_fast, is_int8_exact, resolve_precision
from asr.models.speech_model import SpeechModel, SpeechModelConfig, build_model


def build(name: str, **settings: object) -> SpeechModel:
    config = SpeechModelConfig.model_validate(SYSTEMS[name].model_dump() | settings)
    torch.manual_seed(0)
    model = build_model(config, NUM_FEATURES, VOCAB_SIZE)
    assert isinstance(model, SpeechModel)
    return model


def test_a_change_of_low_rank() -> None:
    linear = nn.Linear(6, 4)
    layer, x = LowRankLinear(linear, rank=2, scale=3.0), torch.randn(5, 6)
    torch.testing.assert_close(layer(x), linear(x), msg="at first there is no change")
    nn.init.normal_(layer.up_KR)
    weight = linear.weight.double() + 3.0 * layer.up_KR.double() @ layer.down_RD.double()
    expected = x.double() @ weight.T + linear.bias.double()
    torch.testing.assert_close(layer(x).double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(layer.merged()(x).double(), expected, atol=1e-5, rtol=1e-5)
    layer(x).sum().backward()
    assert linear.weight.grad is None and linear.bias.grad is None
    assert layer.down_RD.grad is not None and layer.up_KR.grad is not None


@pytest.mark.parametrize("name", ["transformer-hybrid", "conformer-hybrid"])
def test_any_model_learns_a_change_of_low_rank(name: str) -> None:
    plain = build(name)
    model = build(name, frozen=("encoder", "decoder"), lora={"rank": 2, "alpha": 4.0})
    model.load_state_dict(plain.state_dict(), strict=False)
    assert not [key for key in plain.state_dict() if key not in model.state_dict()], "the names stay"
    batch = make_utterances([60, 40], [4, 3])
    torch.testing.assert_close(model.eval()(*batch).total, plain.eval()(*batch).total)
    learned = [key for key, parameter in model.named_parameters() if parameter.requires_grad]
    low_rank = [key for key in learned if is_low_rank(key)]
    assert low_rank and all(key.startswith("ctc_head.") for key in learned if key not in low_rank)
    assert all("attention" in key and "project_" in key for key in low_rank)

    for key, parameter in model.named_parameters():
        if key.endswith("up_KR"):
            nn.init.normal_(parameter, std=0.1)
    expected = model(*batch).total
    assert not torch.allclose(expected, plain(*batch).total)
    merge_low_rank(model)
    assert model.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(model(*batch).total, expected, atol=1e-3, rtol=1e-5)


def test_frozen_parts_get_no_gradient() -> None:
    model = build("transformer-hybrid", frozen=("encoder.layers.0", "decoder.embedding"))
    model(*make_utterances([60, 40], [4, 3])).total.backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.startswith(("encoder.layers.0.", "decoder.embedding.")), name


def test_names_that_are_not_there() -> None:
    with pytest.raises(UserError, match=r"no part 'decoder.tail' in this model; it has encoder"):
        build("transformer-hybrid", frozen=("decoder.tail",))
    for parts in (("",), ("encoder", "decoder", "ctc_head")):
        with pytest.raises(UserError, match="frozen leaves nothing to train"):
            build("transformer-hybrid", frozen=parts)
    assert build("transformer-hybrid", frozen=("encoder", "decoder", "ctc_head"), lora={})


# M rows, N outputs, K inputs


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def multiply_plainly(x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor, weight_max: int) -> np.ndarray:
    """In float64, of inputs from -127 to 127 with a scale for each row and weights with one for each output."""
    x, weight = x_MK.double().numpy(), weight_NK.double().numpy()
    result = np.empty((len(x), len(weight)))
    for row, values in enumerate(x):
        row_scale = np.abs(values).max() / 127 or 1.0
        whole = np.floor(values / row_scale + 0.5)
        for output, weights in enumerate(weight):
            scale = np.abs(weights).max() / weight_max or 1.0
            total = int(whole @ np.rint(weights / scale))
            result[row, output] = total * row_scale * scale + float(bias_N[output])
    return result


needs_int8 = pytest.mark.skipif(
    not is_int8_exact(), reason="this processor or build of PyTorch has no exact products in 8 bits"
)


@needs_int8
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["many rows", "few rows", "avx2"])
def test_sums_of_whole_numbers(dtype: torch.dtype, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asr.models.precision.OUTPUTS_PACKED", 16)  # 33 are in three parts
    if kind == "avx2":  # what newer processors compute as well
        if "fbgemm" not in torch.backends.quantized.supported_engines:
            pytest.skip("products for AVX2 are of FBGEMM")
        monkeypatch.setattr(torch.backends.quantized, "engine", "fbgemm")
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
        assert is_int8_exact()
    x_MK = draw(9, 70) * torch.logspace(-3, 3, 9)[:, None]
    x_MK[4] = 0.0
    weight_NK, bias_N = draw(33, 70, seed=1), draw(33, seed=2)
    weight_NK[7] = 0.0
    layer = Int8Linear(weight_NK, bias_N, dtype, kind == "few rows")
    found_MN = layer(x_MK)
    assert found_MN.dtype == dtype
    expected_MN = multiply_plainly(x_MK, weight_NK, bias_N, layer.weight_max)
    tolerances_M1 = np.abs(expected_MN).max(1, keepdims=True) * (1e-5 if dtype == torch.float32 else 2e-2)
    is_right_MN = np.abs(found_MN.double().numpy() - expected_MN) <= tolerances_M1
    # In float32 a number near a half may be rounded the other way, which changes the sums of its row.
    assert is_right_MN.all(axis=1).sum() >= 8


@torch.no_grad()
@pytest.mark.parametrize("few_rows", [False, True])
def test_company_changes_nothing(few_rows: bool) -> None:
    layer = Int8Linear(draw(48, 64, seed=1), draw(48, seed=2), torch.float32, few_rows)
    x_BTK = draw(3, 5, 64) * torch.tensor([1e-3, 1.0, 1e3])[:, None, None]
    together_BTN = layer(x_BTK)
    assert together_BTN.shape == (3, 5, 48)
    for place in range(3):
        torch.testing.assert_close(layer(x_BTK[place, 2:3]), together_BTN[place, 2:3], rtol=0, atol=0)


@pytest.mark.parametrize("products", [300.0, None], ids=["wrong", "none"])
def test_a_processor_without(monkeypatch: pytest.MonkeyPatch, products: float | None) -> None:
    def forward(self: Int8Linear, x: Tensor) -> Tensor:
        if products is None:
            raise RuntimeError("not here")
        return torch.full((len(x), self.out_features), products)

    monkeypatch.setattr(Int8Linear, "forward", forward)
    assert not is_int8_exact()


CPU = torch.device("cpu")
AVX512 = ("avx2", "avx512_f")


@pytest.mark.parametrize(
    ("instructions", "whisper", "has_bf16"),
    [
        (("sse4_2",), "float32", False),
        (("avx2",), "int8", False),  # Haswell, Zen 3
        (AVX512, "int8", False),  # Skylake
        ((*AVX512, "avx512_vnni"), "int8", False),  # Cascade Lake, Ice Lake
        (("avx2", "avx_vnni"), "int8", False),  # Alder Lake
        ((*AVX512, "avx512_vnni", "avx512_bf16"), "int8_bf16", True),  # Cooper Lake, Zen 4
        ((*AVX512, "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16"), "int8_bf16", True),  # Sapphire
        (("neon", "dot", "bf16", "i8mm"), "float32", False),  # Graviton 3
    ],
)
def test_auto(
    instructions: tuple[str, ...], whisper: str, has_bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(instructions, True))
    monkeypatch.setattr(precision, "is_int8_exact", lambda: True)
    assert resolve_precision("auto", CPU, prefers_int8=True) == whisper
    assert resolve_precision("auto", CPU, prefers_int8=False) == "float32"
    assert is_fast("bf16", CPU) is has_bf16
    monkeypatch.setattr(precision, "is_int8_exact", lambda: False)  # a build of PyTorch without them
    assert resolve_precision("auto", CPU, prefers_int8=True) == "float32"


@pytest.mark.parametrize(("capability", "has_bf16"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_gpu(capability: tuple[int, int], has_bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    device = torch.device("cuda")
    assert is_fast("bf16", device) is has_bf16 and not is_fast("int8", device)
    assert resolve_precision("auto", device, prefers_int8=True) == ("bf16" if has_bf16 else "fp16")
    assert resolve_precision("float32", device, prefers_int8=True) == "float32"


def test_this_processor_has_names_as_in_the_table() -> None:
    """On x86 all of them are known to PyTorch, set or not; a misspelled one would never be found."""
    capabilities = torch.cpu.get_capabilities()
    if capabilities["architecture"] != "x86_64":
        pytest.skip("the table is of x86")
    required = {name for names in precision.FAST_INSTRUCTIONS.values() for name in names}
    assert required <= capabilities.keys()


def test_what_is_named_is_taken_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "is_int8_exact", lambda: False)
    for wanted in ("float32", "bf16", "fp16"):
        assert resolve_precision(wanted, CPU, prefers_int8=True) == wanted  # type: ignore[arg-type]
    with pytest.raises(UserError, match="int8 is not exact on this processor"):
        resolve_precision("int8", CPU, prefers_int8=True)
    with pytest.raises(UserError, match="is not supported by this model"):
        resolve_precision("int8_bf16", CPU, prefers_int8=False)
    with pytest.raises(UserError, match="is for CPUs"):
        resolve_precision("int8", torch.device("cuda"), prefers_int8=True)


@pytest.mark.slow
@needs_int8
@pytest.mark.skipif(sys.platform != "linux", reason="the memory is read from /proc")
def test_kernels_of_many_shapes_take_little_memory() -> None:
    """About 130 MB, and 920 if PyTorch keeps as many as it likes."""
    script = """
from pathlib import Path
import torch
from asr.cli import limit_threads
from asr.models.precision import Int8Linear

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

limit_threads(1)
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
