"""Cost of a training: operations against formulas, memory by what grows with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from asr.cli import main
from asr.errors import UserError
from asr.system import cost
from asr.system.cost import Cost, measure_cost
from asr.system.run_config import RunConfig

BASE = """
output_dir: runs/x
data: {train: a.jsonl, dev: b.jsonl}
features: {num_mels: 20}
train: {steps: 36, precision: float32}
batches: {max_seconds: 100}
"""
STEPS = 50  # 2 s are 198 frames; the convolutions leave a quarter, the last part filled up


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "SECONDS", 2.0)


def cost_of(tmp_path: Path, encoder: str, decoder: str = "null", *overrides: str) -> Cost:
    path = tmp_path / "run.yaml"
    weight = "1.0" if decoder == "null" else "0.3"
    path.write_text(f"{BASE}model:\n  encoder: {{{encoder}}}\n  decoder: {decoder}\n  ctc_weight: {weight}\n")
    return measure_cost(RunConfig.load(path, overrides), 30)


def test_a_layer_of_a_transformer_costs_what_its_products_cost(tmp_path: Path) -> None:
    encoder = "type: transformer, dim: 16, num_heads: 2, feed_forward_dim: 24, positions: {type: sinusoid}, num_layers: "
    one, two = (cost_of(tmp_path, f"{encoder}{layers}") for layers in (1, 2))
    products = 2 * STEPS * (4 * 16 * 16 + 2 * 16 * 24)
    attention = 2 * 2 * STEPS * STEPS * 16
    assert (two.flops_per_second - one.flops_per_second) * 2 == products + attention
    assert (
        two.parameters - one.parameters == 4 * 16 * 17 + 16 * 25 + 24 * 17 + 4 * 16
    )  # with biases and norms


def test_a_layer_of_an_lstm_costs_what_its_products_cost(tmp_path: Path) -> None:
    one, two = (
        cost_of(tmp_path, f"type: lstm, dim: 16, subsampling: {{channels: 4}}, num_layers: {layers}")
        for layers in (1, 2)
    )
    assert (two.flops_per_second - one.flops_per_second) * 2 == 2 * 2 * STEPS * 4 * 16 * (32 + 16)


def test_memory_and_hours(tmp_path: Path) -> None:
    encoder = "type: conformer, dim: 16, num_heads: 2, feed_forward_dim: 24, num_layers: 1"
    decoder = "{type: transformer, dim: 16, num_heads: 2, feed_forward_dim: 24, num_layers: 1}"
    plain = cost_of(tmp_path, encoder, decoder)
    averaged = cost_of(tmp_path, encoder, decoder, "train.average_decay=0.9", "batches.max_seconds=300")
    assert plain.weight_bytes == 16 * plain.parameters
    assert averaged.weight_bytes == 20 * plain.parameters
    assert averaged.batch_bytes == pytest.approx(3 * plain.batch_bytes, rel=1e-6)
    # Each of the 12 inputs of a layer's products, at least, is kept in float32 for every step.
    assert plain.batch_bytes > 50 * 12 * STEPS * 16 * 4
    assert plain.training_hours == 1.0 and averaged.training_hours == 3.0
    assert plain.training_flops == 3 * 3600 * plain.flops_per_second
    halved = cost_of(tmp_path, encoder, decoder, "train.precision=bf16")
    assert 0.4 * plain.batch_bytes < halved.batch_bytes < 0.9 * plain.batch_bytes


def test_cost_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "output_dir: runs/x\ndata: {train: a.jsonl, dev: b.jsonl}\ntrain: {select_by: loss}\n"
        "model: {type: language, dim: 16, num_layers: 1, num_heads: 2, feed_forward_dim: 16}\n"
    )
    with pytest.raises(UserError, match="counted of speech models that begin with random weights"):
        measure_cost(RunConfig.load(path))
    cost_of(tmp_path, "type: lstm, dim: 4, num_layers: 1, subsampling: {channels: 1}")
    assert main(["info", str(path), "--cost", "10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("parameters") and "5,000 tokens, assumed" in lines[1]
    assert "1 hours of audio at most" in lines[4] and "hours at 10 TFLOP/s" in lines[4]
    assert main(["info", str(path), "--cost", "0"]) == 2
    assert "expected a YAML file, and more than 0 TFLOP/s" in capsys.readouterr().err
