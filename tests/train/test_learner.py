"""asr/train/learner: updates, errors that they survive, and memory between updates."""

from __future__ import annotations

import logging
import math
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_examples import build_example, every_system
from safetensors.torch import load_file
from torch import nn
from torch.amp import GradScaler
from training_examples import TinyRun, read_log

from asr.batches.builder import Batch
from asr.errors import UserError
from asr.models.encoders import DepthwiseConvolution
from asr.models.speech_model import SpeechModel
from asr.system.run_config import OptimConfig, RunConfig
from asr.train import learner as learner_module, loop
from asr.train.distributed import Process
from asr.train.learner import (
    Learner,
    MovingAverage,
    Outcome,
    build_optimizer,
    choose_precision,
    halve_largest,
    learning_rate_at,
    warn_of_short_training,
)
from asr.train.loop import TrainingState, train
from asr.train.preparation import prepare_system
from asr.train.training_data import TrainingData


def spoil_losses(monkeypatch: pytest.MonkeyPatch, is_spoilt: Callable[[int], bool]) -> None:
    original = SpeechModel.forward

    def forward(self: SpeechModel, *arguments: Any) -> Any:
        losses = original(self, *arguments)
        step = arguments[4] if len(arguments) > 4 else -1
        return replace(losses, total=losses.total * math.nan) if self.training and is_spoilt(step) else losses

    monkeypatch.setattr(SpeechModel, "forward", forward)


def test_a_bad_update_is_skipped_and_named(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spoil_losses(monkeypatch, lambda step: step in (3, 4))
    with caplog.at_level(logging.WARNING):
        folder = train(tiny_run("train.steps=6"))
    assert all(torch.isfinite(tensor).all() for tensor in load_file(folder / "model.safetensors").values())
    messages = [record.getMessage() for record in caplog.records if "skipped:" in record.getMessage()]
    assert len(messages) == 2 and "train-" in messages[0] and "update 4 skipped: loss nan" in messages[0]
    assert sum(line["skipped_updates"] for line in read_log(tmp_path / "run", "train")) == 2


def test_too_many_bad_updates_stop(tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil_losses(monkeypatch, lambda step: step >= 5)
    monkeypatch.setattr(loop, "MAX_BAD_UPDATES", 3)
    with pytest.raises(UserError, match="not finite in 3 updates in a row"):
        train(tiny_run())


def make_learner(config: RunConfig) -> tuple[Learner, list[Batch]]:
    process = Process(0, 1, torch.device("cpu"))
    torch.manual_seed(0)
    system = prepare_system(config, process)
    batches = [group[0] for group in TrainingData(system, process).epoch(0, 0)]
    return Learner(system.model, config, process, "float32"), batches


def test_trying_a_batch_changes_nothing(tiny_run: TinyRun) -> None:
    learner, batches = make_learner(tiny_run())
    before = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    learner.try_batch(batches[0])
    assert all(parameter.grad is None for parameter in learner.model.parameters())
    for name, tensor in learner.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_a_batch_of_unreadable_files_changes_nothing(tiny_run: TinyRun) -> None:
    learner, batches = make_learner(tiny_run())
    before = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    none = slice(0, 0)
    empty = replace(
        batches[0], ids=(), texts=(), audio_seconds=0.0,
        **{
            name: getattr(batches[0], name)[none]
            for name in ("features_BTF", "feature_lengths_B", "tokens_BU", "token_lengths_B")
        },
    )  # fmt: skip
    outcome = learner.update([empty], 0)
    assert outcome.is_finite and outcome.num_tokens == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.model.state_dict().items())
    assert learner.update([empty, batches[0]], 1).num_tokens > 0


def test_no_two_updates_share_their_dropout_masks(tiny_run: TinyRun) -> None:
    """Masks depend only on seed, update and process, so a resume need not restore any random state."""
    settings = ("model.encoder.dropout=0.5", "model.decoder.dropout=0.5", "optim.learning_rate=1e-30")
    learner, batches = make_learner(tiny_run(*settings))

    def loss(step: int, rank: int = 0, seed: int = 0) -> float:
        learner.process = replace(learner.process, rank=rank)
        learner.config = tiny_run(*settings, f"seed={seed}")
        torch.rand(3)  # regardless of numbers drawn before
        return learner.update(batches[:1], step).sums["total"]

    losses = [loss(0), loss(1), loss(2), loss(1, rank=1), loss(1, seed=1)]
    assert len(set(losses)) == len(losses)
    assert [loss(0), loss(1), loss(2), loss(1, rank=1), loss(1, seed=1)] == losses
    learner, batches = make_learner(tiny_run(*settings))  # as after a resume
    assert loss(2) == losses[2]


def test_lack_of_memory_halves_the_batch(tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_run("model.encoder.dropout=0.0", "model.decoder.dropout=0.0")
    expected, batches = make_learner(config)
    expected.update(batches[:1], 0)

    original = SpeechModel.forward
    sizes = []

    def forward(self: SpeechModel, features_BTF: torch.Tensor, *rest: Any) -> Any:
        sizes.append(len(features_BTF))
        if len(features_BTF) > 3:
            raise torch.OutOfMemoryError("out of memory")
        return original(self, features_BTF, *rest)

    learner, batches = make_learner(config)
    monkeypatch.setattr(SpeechModel, "forward", forward)
    outcome = learner.update(batches[:1], 0)
    assert max(sizes) == 8 and outcome.is_finite
    for ours, theirs in zip(learner.model.parameters(), expected.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)  # the update moves all weights by 7.5e-4


def test_the_model_gets_the_spans_of_speech_from_before_the_masks(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, batches = make_learner(tiny_run("augment.spec_augment={num_time_masks: 2}"))
    told: list[torch.Tensor] = []
    original = SpeechModel.forward

    def note(self: SpeechModel, *batch: Any) -> Any:
        told.append(batch[5])
        return original(self, *batch)

    monkeypatch.setattr(SpeechModel, "forward", note)
    learner.update(batches[:1], 0)
    assert batches[0].speech_spans_B2 is not None and torch.equal(told[0], batches[0].speech_spans_B2)


def test_one_utterance_too_large_is_named(tiny_run: TinyRun) -> None:
    _, batches = make_learner(tiny_run())
    while len(batches[0]) > 1:
        batches = halve_largest(batches[:1])
    with pytest.raises(UserError, match=f"single utterance of .* s, {batches[0].ids[0]}; lower batches"):
        halve_largest(batches[:1])


@pytest.mark.parametrize(("instructions", "chosen"), [("amx_bf16", "bf16"), ("avx512_vnni", "float32")])
def test_precision_is_chosen_by_the_processor(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, instructions: str, chosen: str
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {instructions: True})
    process = Process(0, 1, torch.device("cpu"))
    assert choose_precision("auto", process) == chosen
    assert f"train.precision = auto: {chosen}" in caplog.text and "fp16" not in caplog.text
    assert [choose_precision(wanted, process) for wanted in ("float32", "fp16")] == ["float32", "fp16"]


def test_precision_of_different_processors_is_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    monkeypatch.setattr(
        learner_module, "sum_over_processes", lambda values, process: list(values)
    )  # the other process reports 0
    assert choose_precision("auto", Process(0, 2, torch.device("cpu"))) == "float32"


def check_training(config: RunConfig) -> None:
    train(config)
    lines = read_log(Path(config.output_dir), "train")
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert all(line["gradient_norm"] < 1000 for line in lines), "without the scale of fp16"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_trains(tiny_run: TinyRun, precision: str) -> None:
    check_training(tiny_run(f"train.precision={precision}"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_fp16_trains_on_a_gpu(tiny_run: TinyRun) -> None:
    check_training(tiny_run("train.precision=fp16", "train.device=cuda"))


def test_a_loss_scale_falls_after_an_overflow_and_is_restored(tiny_run: TinyRun) -> None:
    """An overflow skips the update. The scale grows again 2,000 updates later by default."""
    config = tiny_run()
    learner, batches = make_learner(config)
    first, second = (Learner(learner.model, config, learner.process, "fp16") for _ in range(2))
    first.scaler.set_growth_interval(3)
    first.scaler.update(1e30)
    before = {name: tensor.clone() for name, tensor in first.model.state_dict().items()}
    outcome = first.update(batches[:1], 0)
    assert not outcome.is_finite and math.isfinite(outcome.sums["total"])
    assert first.scaler.get_scale() == pytest.approx(5e29)
    assert all(torch.equal(tensor, before[name]) for name, tensor in first.model.state_dict().items())
    first.scaler.update(1024.0)
    norms = [first.update(batches[:1], step).gradient_norm for step in (1, 2)]
    assert first.scaler.get_scale() == 1024 and all(0.01 < norm < 1000 for norm in norms)
    weights, tensors = first.state()
    second.load(weights.items(), tensors.items())
    assert second.scaler.state_dict() == first.scaler.state_dict() != GradScaler("cpu").state_dict()
    second.update(batches[:1], 3)
    assert second.scaler.get_scale() == 2048, "the third in a row without an overflow"


def test_an_overflow_in_fp16_causes_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    for loss, precision, level in (
        (1.0, "fp16", "INFO"),
        (math.nan, "fp16", "WARNING"),
        (1.0, "bf16", "WARNING"),
    ):
        outcome = Outcome(False, {"total": loss}, 1.0, 1.0, math.inf, 0.1)
        with caplog.at_level(logging.INFO):
            loop.report_bad_update(["a"], outcome, TrainingState(precision))
        assert caplog.records[-1].levelname == level


PROBLEMS = """
import resource
import torch
from asr.train.learner import keep_freed_memory

def count_problems(size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(size)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
print(count_problems(25_000_000), count_problems(24_000_000))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such switch")
def test_freed_memory_is_kept() -> None:
    """A second tensor reuses the 24,000 pages of the first."""
    done = subprocess.run([sys.executable, "-c", PROBLEMS], capture_output=True, text=True, check=True)
    first, second = map(int, done.stdout.split())
    assert second < first / 10


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        # The warm-up never starts at zero, and ends one update before the peak.
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
        # The decay takes a single update.
        ({"schedule": "cosine", "warmup_steps": 999}, {998: 0.999, 999: 1.0, 1000: 0.01}),
    ],
)
def test_learning_rate(options: dict[str, Any], rates: dict[int, float]) -> None:
    config = OptimConfig(learning_rate=2.0, **options)
    computed = {step: learning_rate_at(step, config, max_steps=1001) for step in rates}
    assert computed == pytest.approx({step: 2 * rate for step, rate in rates.items()})


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


def test_gradients_are_scaled_down_to_a_norm_of_5(tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The moments of Adam's first update are a tenth of the gradient, because its decay is 0.9."""

    def norm_of_used(factor: float) -> tuple[float, float]:
        original = SpeechModel.forward

        def forward(self: SpeechModel, *arguments: Any) -> Any:
            losses = original(self, *arguments)
            return replace(losses, total=losses.total * factor)

        with monkeypatch.context() as patch:
            learner, batches = make_learner(tiny_run())
            patch.setattr(SpeechModel, "forward", forward)
            norm = learner.update(batches[:1], 0).gradient_norm
        moments = [moment["exp_avg"] for moment in learner.optimizer.state.values()]
        return norm, 10 * float(torch.cat([moment.flatten() for moment in moments]).norm())

    for factor in (0.01, 100.0):
        norm, used = norm_of_used(factor)
        assert (norm > 5) == (factor > 1) and used == pytest.approx(min(norm, 5.0), rel=1e-4)


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


def test_moving_average_equals_a_plain_loop() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))  # has a counter, which is not averaged
    average = MovingAverage(model, decay=0.9)
    expected = {name: tensor.double().clone() for name, tensor in model.state_dict().items()}
    for step in range(20):  # many more updates would hide how it started
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


def test_a_warm_up_longer_than_training_is_reported(
    tiny_run: TinyRun, caplog: pytest.LogCaptureFixture
) -> None:
    for warmup, expected in ((3, 0), (4, 1)):
        config = tiny_run("train.steps=4", f"optim.warmup_steps={warmup}", "optim.learning_rate=0.01")
        caplog.clear()
        warn_of_short_training(config.optim, config.train.steps)
        warning = "warmup_steps = 4, but train.steps = 4: the learning rate reaches 0.008"
        assert caplog.text.count(warning) == expected
