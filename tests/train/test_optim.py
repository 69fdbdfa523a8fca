"""Learning rates worked out by hand, weights that decay and those that don't, the moving average in float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from model_examples import build_example, every_system
from torch import nn

from asr.models import DepthwiseConvolution
from asr.system import OptimConfig
from asr.train import MovingAverage, build_optimizer, learning_rate_at, warn_of_short_training

# --- schedules ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        # The warm-up never starts at zero and ends right before the peak.
        ({"schedule": "constant", "warmup_steps": 3}, {0: 0.25, 1: 0.5, 2: 0.75, 3: 1.0, 4: 1.0, 999: 1.0}),
        ({"schedule": "constant", "warmup_steps": 0}, {0: 1.0, 999: 1.0}),
        ({"schedule": "inverse_sqrt", "warmup_steps": 100}, {99: 100 / 101, 100: 1.0, 400: 0.5, 900: 1 / 3}),
        ({"schedule": "inverse_sqrt", "warmup_steps": 0}, {0: 1.0, 1: 1.0, 4: 0.5, 100: 0.1}),
        # Half a cosine from update 200 to the last one, 1000.
        (
            {"schedule": "cosine", "warmup_steps": 200},
            {
                99: 100 / 201,
                200: 1.0,
                400: 0.01 + 0.99 * (2 + 2**0.5) / 4,
                600: 0.505,
                1000: 0.01,
                2000: 0.01,
            },
        ),
        # Its fall is one update long.
        ({"schedule": "cosine", "warmup_steps": 999}, {998: 0.999, 999: 1.0, 1000: 0.01}),
    ],
)
def test_learning_rate(options: dict[str, Any], rates: dict[int, float]) -> None:
    config = OptimConfig(learning_rate=2.0, **options)
    computed = {step: learning_rate_at(step, config, max_steps=1001) for step in rates}
    assert computed == pytest.approx({step: 2 * rate for step, rate in rates.items()})


@pytest.mark.parametrize("schedule", ["constant", "inverse_sqrt", "cosine"])
def test_learning_rate_has_no_jumps(schedule: Any) -> None:
    config = OptimConfig(learning_rate=1.0, schedule=schedule, warmup_steps=100)
    rates = [learning_rate_at(step, config, max_steps=1000) for step in range(1000)]
    assert all(0 < rate <= 1 for rate in rates)
    assert max(rates) == 1
    assert max(abs(after - before) for before, after in itertools.pairwise(rates)) < 0.011


def test_a_warmup_that_is_cut_off_is_said(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_short_training(OptimConfig(learning_rate=2.0, warmup_steps=99), 100)
    assert not caplog.text
    warn_of_short_training(OptimConfig(learning_rate=2.0, warmup_steps=100), 100)
    assert "optim.warmup_steps = 100" in caplog.text and "1.98" in caplog.text


# --- optimizer ----------------------------------------------------------------------------------


@every_system
def test_norms_biases_and_embeddings_do_not_decay(name: str) -> None:
    model = build_example(name)
    optimizer = build_optimizer(model, OptimConfig(weight_decay=0.3))
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert len(decays) == sum(len(group["params"]) for group in optimizer.param_groups)
    assert decays.keys() == {id(parameter) for parameter in model.parameters()}
    tied = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for module in model.modules():
        for key, parameter in module.named_parameters(recurse=False):
            matrices = nn.Linear | nn.Conv1d | nn.Conv2d | nn.RNNBase | nn.RNNCellBase | DepthwiseConvolution
            is_matrix = isinstance(module, matrices)
            is_decaying = is_matrix and not key.startswith("bias") and id(parameter) not in tied
            assert decays[id(parameter)] == (0.3 if is_decaying else 0.0), (module, key)


def test_one_update_decays_and_steps() -> None:
    """AdamW's first update: weights shrink by rate * decay and move by rate against the gradient's sign."""
    model = nn.Linear(2, 1)
    nn.init.constant_(model.weight, 1.0)
    nn.init.constant_(model.bias, 1.0)
    optimizer = build_optimizer(model, OptimConfig(learning_rate=0.1, weight_decay=0.5))
    model(torch.tensor([[3.0, -2.0]])).sum().backward()
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), torch.tensor([[0.95 - 0.1, 0.95 + 0.1]]))
    torch.testing.assert_close(model.bias.detach(), torch.tensor([0.9]))


# --- moving average -----------------------------------------------------------------------------


def test_moving_average_equals_a_plain_loop() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))  # has a counter, which is no average
    average = MovingAverage(model, decay=0.9)
    expected = {name: tensor.double().clone() for name, tensor in model.state_dict().items()}
    for step in range(20):  # after many more, nothing would be left of how it began
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter)
        model[1].num_batches_tracked += 1
        average.update(model, step)
        decay = min(0.9, (1 + step) / (10 + step))  # the first weights, which are random, fade quickly
        for name, tensor in model.state_dict().items():
            expected[name] = decay * expected[name] + (1 - decay) * tensor.double()
    expected["1.num_batches_tracked"] = torch.tensor(20.0, dtype=torch.float64)
    for name, tensor in average.weights.items():
        torch.testing.assert_close(tensor.double(), expected[name], rtol=0, atol=1e-5)


def test_moving_average_is_apart_from_the_model() -> None:
    model = nn.Linear(3, 2)
    average = MovingAverage(model, decay=0.5)
    before = average.weights["weight"].clone()
    nn.init.zeros_(model.weight)
    assert torch.equal(average.weights["weight"], before)
    average.update(model, step=10**6)
    torch.testing.assert_close(average.weights["weight"], before / 2)
    assert not average.weights["weight"].requires_grad
