"""One update of the weights from a list of batches; a batch that needs too much memory is halved."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import logging
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from asr.batches.builder import Batch
from asr.errors import UserError
from asr.models.layers import Net
from asr.models.losses import Losses
from asr.models.precision import HALF_TYPES, is_fast
from asr.system.run_config import OptimConfig, RunConfig
from asr.train.distributed import GradientSum, Process, sum_over_processes

logger = logging.getLogger(__name__)

Precision = Literal["float32", "bf16", "fp16"]
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # constants from glibc's malloc.h
OUT_OF_MEMORY = ("can't allocate memory", "bad_alloc", "could not create a primitive")  # the last is oneDNN's


@dataclass(frozen=True)
class Outcome:
    """Result of an update, summed over all processes."""

    is_finite: bool
    sums: dict[str, float]  # losses and other measures, summed over tokens
    num_tokens: float
    audio_seconds: float
    gradient_norm: float
    learning_rate: float


class Learner:
    """A model with its optimizer, precision and process."""

    def __init__(self, model: Net, config: RunConfig, process: Process, precision: Precision) -> None:
        self.model = model
        self.config = config
        self.process = process
        self.precision = precision
        warn_of_short_training(config.optim, config.train.steps)
        model.to(process.device)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.gradient_sum = GradientSum(self.parameters, process)
        self.optimizer = build_optimizer(model, config.optim)
        decay = config.train.average_decay
        self.average = None if decay is None else MovingAverage(model, decay)
        # Small gradients would become zero in fp16, so the loss is scaled up and the gradients back down.
        self.scaler = torch.amp.GradScaler(process.device.type, enabled=precision == "fp16")
        self.scaler.scale(torch.zeros((), device=process.device))  # creates the scale even without a batch

    def update(self, batches: Sequence[Batch], step: int) -> Outcome:
        """Change the weights by the gradient of the mean loss per token, over all processes."""
        config = self.config
        # Dropout then depends only on the update, so an exact resume needs no stored random state.
        torch.manual_seed(config.seed + 1_000_003 * step + 1_009 * self.process.rank)
        rate = learning_rate_at(step, config.optim, config.train.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        num_tokens: float = sum(self.model.count_targets(batch.token_lengths_B) for batch in batches)
        audio_seconds = sum(batch.audio_seconds for batch in batches)
        num_tokens, audio_seconds, num_utterances = sum_over_processes(
            [num_tokens, audio_seconds, sum(map(len, batches))], self.process
        )
        if not num_utterances:  # every file in every process was unreadable, so there is no gradient
            return Outcome(True, {}, 0.0, 0.0, 0.0, rate)
        sums = self._accumulate_gradients(list(batches), max(num_tokens, 1.0), step)
        self.gradient_sum.finish()
        # Use all names in all processes, because a process with empty batches has no sums of its own.
        names = self.model.reported
        summed = sum_over_processes([sums.get(name, 0.0) for name in names], self.process)
        sums = {name: value for name, value in zip(names, summed, strict=True) if value or name in sums}
        self.scaler.unscale_(self.optimizer)
        norm = float(nn.utils.clip_grad_norm_(self.parameters, CLIP_NORM, foreach=True))
        is_finite = math.isfinite(norm) and math.isfinite(sums.get("total", 0.0))
        if is_finite:
            self.scaler.step(self.optimizer)
            if self.average is not None:
                self.average.update(self.model, step)
        self.scaler.update()  # halves the scale after an overflow
        self.optimizer.zero_grad(set_to_none=True)
        return Outcome(is_finite, sums, num_tokens, audio_seconds, norm, rate)

    def try_batch(self, batch: Batch) -> None:
        """Run one forward and backward pass without an update, so that lack of memory shows at the start."""
        num_tokens = max(float(self.model.count_targets(batch.token_lengths_B)), 1.0)
        self._accumulate_gradients([batch], num_tokens, 0, sends=False)
        self.optimizer.zero_grad(set_to_none=True)

    @contextlib.contextmanager
    def using_weights(self, weights: Mapping[str, Tensor] | None = None) -> Iterator[None]:
        """Use `weights` within the block, or without them the moving average if there is one."""
        if weights is None and self.average is not None:
            weights = self.average.weights
        raw = {}
        if weights is not None:
            raw = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
            self.model.load_state_dict(dict(weights))
        try:
            yield
        finally:
            if weights is not None:
                self.model.load_state_dict(raw)

    def _accumulate_gradients(
        self, batches: list[Batch], num_tokens: float, step: int, *, sends: bool = True
    ) -> dict[str, float]:
        """Accumulate gradients of the loss per token, and return the sums that the model reports.

        With `sends`, gradients are sent to the other processes as soon as they are ready.
        """
        batches = [batch for batch in batches if len(batch)]
        while True:
            try:
                return self._run_batches(batches, num_tokens, step, sends)
            except RuntimeError as error:
                is_known = isinstance(error, torch.OutOfMemoryError)  # GPU only; a CPU error has just a text
                if not is_known and not any(words in str(error) for words in OUT_OF_MEMORY):
                    raise
            # Outside the handler, because the exception keeps the tensors of the failed pass alive.
            self.optimizer.zero_grad(set_to_none=True)
            if self.process.device.type == "cuda":
                torch.cuda.empty_cache()
            batches = halve_largest(batches)

    def _run_batches(
        self, batches: list[Batch], num_tokens: float, step: int, sends: bool
    ) -> dict[str, float]:
        self.model.train()
        sums: dict[str, Tensor] = {}
        for index, batch in enumerate(batches, start=1):
            batch = batch.to(self.process.device)
            dtype = HALF_TYPES.get(self.precision)
            with torch.autocast(self.process.device.type, dtype, enabled=dtype is not None):
                losses: Losses = self.model(
                    batch.features_BTF,
                    batch.feature_lengths_B,
                    batch.tokens_BU,
                    batch.token_lengths_B,
                    step,
                    batch.speech_spans_B2,
                )
            self.gradient_sum.begin_pass(is_last=sends and index == len(batches))
            self.scaler.scale(losses.total / num_tokens).backward()
            for name, part in ({"total": losses.total.detach()} | losses.parts).items():
                sums[name] = sums[name] + part.double() if name in sums else part.double()
        # A single tolist, so that there is only one synchronization with the GPU.
        return dict(zip(sums, torch.stack(list(sums.values())).tolist(), strict=True)) if sums else {}

    # --- state ----------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the weights to use, and the tensors that only training needs."""
        weights = raw = self.model.state_dict()
        tensors = {
            f"optimizer.{index}.{name}": value
            for index, moments in self.optimizer.state_dict()["state"].items()
            for name, value in moments.items()
        }
        scaler = self.scaler.state_dict()  # empty unless precision is fp16
        tensors |= {f"scaler.{name}": torch.tensor(value) for name, value in scaler.items()}
        if self.average is not None:
            weights = self.average.weights
            tensors |= {f"raw.{name}": tensor for name, tensor in raw.items()}
        return weights, tensors

    def load(self, weights: Iterable[tuple[str, Tensor]], tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Restore what `state` returned, tensor by tensor."""
        self.model.load_state_dict(dict(weights))
        if self.average is not None:
            self.average = MovingAverage(self.model, self.average.decay)
        parameters = self.model.state_dict()
        state = self.optimizer.state_dict()
        state["state"] = {}
        scaler = {}
        for key, value in tensors:
            kind, _, rest = key.partition(".")
            if kind == "raw":
                with torch.no_grad():
                    parameters[rest].copy_(value)
            elif kind == "optimizer":
                index, _, name = rest.partition(".")
                state["state"].setdefault(int(index), {})[name] = value
            elif kind == "scaler":
                scaler[rest] = value.item()
        self.optimizer.load_state_dict(state)
        if scaler:
            self.scaler.load_state_dict(scaler)
        for parameter, moments in self.optimizer.state.items():
            for name, value in moments.items():
                # The fused kernel ignores strides, so a moment needs the memory layout of its parameter.
                if value.shape == parameter.shape:
                    moments[name] = torch.empty_like(parameter).copy_(value)


def choose_precision(requested: Precision | Literal["auto"], process: Process) -> Precision:
    """Resolve auto to bf16 if the processors of all processes have instructions for it, else float32."""
    if requested != "auto":
        return requested
    (num_fast,) = sum_over_processes([float(is_fast("bf16", process.device))], process)
    is_bf16 = num_fast == process.world_size
    slow = "float32, because bf16 is slow here" + "; try fp16" * (process.device.type == "cuda")
    logger.info("train.precision = auto: %s", "bf16" if is_bf16 else slow)
    return "bf16" if is_bf16 else "float32"


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next update; a no-op with other C libraries.

    By default it returns large blocks to the system, which costs 20,000 page faults in every update.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def halve_largest(batches: list[Batch]) -> list[Batch]:
    """Replace the largest batch, padding included, by its two halves."""
    largest = max(range(len(batches)), key=lambda index: batches[index].padded_size)
    batch = batches[largest]
    if len(batch) == 1:
        raise UserError(
            f"out of memory with a single utterance of {batch.audio_seconds:.1f} s, {batch.ids[0]}; "
            "lower batches.max_utterance_seconds (max_tokens for text), or use a smaller model"
        )
    logger.warning(
        "out of memory: halving a batch of %d utterances; lower batches.max_seconds to avoid this", len(batch)
    )
    middle = len(batch) // 2
    halves = [batch.take(rows) for rows in (range(middle), range(middle, len(batch)))]
    return [*batches[:largest], *halves, *batches[largest + 1 :]]


FINAL_SCALE = 0.01  # learning rate at the end of the cosine schedule, relative to the peak
CLIP_NORM = 5.0  # maximum gradient norm; larger gradients are scaled down
BETAS = (0.9, 0.98)  # decay of Adam's two moving averages, the usual values for Transformers


def learning_rate_at(step: int, config: OptimConfig, max_steps: int) -> float:
    """Return the learning rate of update `step`, counted from 0."""
    peak, warmup = config.learning_rate, config.warmup_steps
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if config.schedule == "constant":
        return peak
    if config.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / max(step, 1))
    progress = min((step - warmup) / max(max_steps - 1 - warmup, 1), 1.0)
    return peak * (FINAL_SCALE + (1 - FINAL_SCALE) * 0.5 * (1 + math.cos(math.pi * progress)))


def warn_of_short_training(config: OptimConfig, steps: int) -> None:
    """Warn if the learning rate is still rising when training ends."""
    if config.warmup_steps >= steps:
        last, peak = learning_rate_at(steps - 1, config, steps), config.learning_rate
        message = "optim.warmup_steps = %d, but train.steps = %d: the learning rate reaches %.3g, not %.3g"
        logger.warning(message, config.warmup_steps, steps, last, peak)


class AdamW(torch.optim.AdamW):
    """PyTorch's AdamW without its decorators, which import the compiler (1 s) just to disable it."""


for _name in ("add_param_group", "zero_grad", "step", "state_dict", "load_state_dict"):
    setattr(AdamW, _name, torch.no_grad()(inspect.unwrap(getattr(torch.optim.AdamW, _name))))


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """Build AdamW with weight decay for matrices only, not for scales, shifts and embeddings."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    parameters = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in parameters if p.ndim > 1 and id(p) not in embeddings]
    others = [p for p in parameters if p.ndim <= 1 or id(p) in embeddings]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0}]
    # The fused kernel updates all parameters in one pass, on CPUs and GPUs.
    return AdamW(groups, lr=config.learning_rate, betas=BETAS, fused=True)


class MovingAverage:
    """An exponential moving average of the weights, which is often better than the latest weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        # The first weights are random, so start with a small decay that forgets them quickly.
        decay = min(self.decay, (1 + step) / (10 + step))
        current = model.state_dict()
        names = [name for name, tensor in current.items() if tensor.is_floating_point()]
        torch._foreach_lerp_([self.weights[n] for n in names], [current[n] for n in names], 1 - decay)
        for name in current.keys() - set(names):
            self.weights[name].copy_(current[name])
