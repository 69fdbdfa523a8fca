"""One update: batches in, changed weights out; halves a batch that needs too much memory."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from asr.batches.builder import Batch
from asr.errors import UserError
from asr.models import Model
from asr.models.model import Losses
from asr.models.precision import is_fast
from asr.system.run_config import RunConfig
from asr.train.distributed import Process, sum_gradients, sum_over_processes
from asr.train.optim import MovingAverage, build_optimizer, learning_rate_at

logger = logging.getLogger(__name__)

Precision = Literal["float32", "bf16", "fp16"]
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Outcome:
    """Result of an update, over all processes."""

    is_finite: bool
    sums: dict[str, float]
    """Losses and measures, summed over tokens."""
    num_tokens: float
    audio_seconds: float
    gradient_norm: float
    learning_rate: float


class Learner:
    """A model, its optimizer and how they compute."""

    def __init__(self, model: Model, config: RunConfig, process: Process, precision: Precision) -> None:
        self.model = model
        self.config = config
        self.process = process
        self.precision = precision
        self.optimizer = build_optimizer(model, config.optim)
        decay = config.train.average_decay
        self.average = None if decay is None else MovingAverage(model, decay)
        self.scaler = torch.amp.GradScaler(process.device.type, enabled=precision == "fp16")
        self.scaler.scale(torch.zeros((), device=process.device))  # it begins with the first tensor it sees
        if config.train.compile and process.device.type == "cpu":
            raise UserError(
                "train.compile = true: PyTorch's compiler fails on these models on a CPU; "
                "set train.compile=false, or train on a GPU"
            )
        self._forward = torch.compile(model, dynamic=True) if config.train.compile else model

    def update(self, batches: Sequence[Batch], step: int) -> Outcome:
        """Change the weights by the gradient of the mean loss per token, over all processes."""
        config = self.config
        # Dropout then depends on the update alone: nothing of it needs to be stored for an exact resume.
        torch.manual_seed(config.seed + 1_000_003 * step + 1_009 * self.process.rank)
        rate = learning_rate_at(step, config.optim, config.train.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        counts = [sum(map(self._count_targets, batches)), sum(batch.audio_seconds for batch in batches)]
        num_tokens, audio_seconds, num_utterances = sum_over_processes(
            [*counts, sum(map(len, batches))], self.process
        )
        if not num_utterances:  # all files of all processes were broken: there is no gradient
            return Outcome(True, {}, 0.0, 0.0, 0.0, rate)
        sums = self._accumulate_gradients(list(batches), max(num_tokens, 1.0), step)
        # All names in all processes: one whose batches were empty has no sums of its own.
        names = self.model.reported
        summed = sum_over_processes([sums.get(name, 0.0) for name in names], self.process)
        sums = {name: value for name, value in zip(names, summed, strict=True) if value or name in sums}
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        sum_gradients(parameters, self.process)
        self.scaler.unscale_(self.optimizer)
        norm = float(nn.utils.clip_grad_norm_(parameters, config.train.clip_norm, foreach=True))
        is_finite = math.isfinite(norm) and math.isfinite(sums.get("total", 0.0))
        if is_finite:
            self.scaler.step(self.optimizer)
            if self.average is not None:
                self.average.update(self.model, step)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return Outcome(is_finite, sums, num_tokens, audio_seconds, norm, rate)

    def try_batch(self, batch: Batch) -> float:
        """Run one forward and backward pass without an update, so that out of memory shows at the start.

        Returns its seconds.
        """
        started = time.monotonic()
        self._accumulate_gradients([batch], float(max(self._count_targets(batch), 1)), step=0)
        self.optimizer.zero_grad(set_to_none=True)
        return time.monotonic() - started

    @contextlib.contextmanager
    def weights_to_use(self) -> Iterator[None]:
        """Give the model the averaged weights, if any are kept, within the block."""
        if self.average is None:
            yield
            return
        raw = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        self.model.load_state_dict(self.average.weights)
        try:
            yield
        finally:
            self.model.load_state_dict(raw)

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        return torch.autocast(
            self.process.device.type, dtype=DTYPES[self.precision], enabled=self.precision != "float32"
        )

    def _count_targets(self, batch: Batch) -> int:
        return self.model.count_targets(batch.token_lengths_B)

    def _accumulate_gradients(self, batches: list[Batch], num_tokens: float, step: int) -> dict[str, float]:
        """Add up gradients of the loss per token. Returns the sums that the model reports."""
        batches = [batch for batch in batches if len(batch)]
        while True:
            try:
                return self._run_batches(batches, num_tokens, step)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            # Outside of the handler, which would keep the tensors of the failed pass alive.
            self.optimizer.zero_grad(set_to_none=True)
            if self.process.device.type == "cuda":
                torch.cuda.empty_cache()
            batches = halve_largest(batches)

    def _run_batches(self, batches: list[Batch], num_tokens: float, step: int) -> dict[str, float]:
        self.model.train()
        sums: Counter[str] = Counter()
        for batch in batches:
            batch = batch.to(self.process.device)
            with self.autocast():
                losses: Losses = self._forward(
                    batch.features_BTF,
                    batch.feature_lengths_B,
                    batch.tokens_BU,
                    batch.token_lengths_B,
                    step,
                    batch.speech_spans_B2,
                )
            scaled: Tensor = self.scaler.scale(losses.total / num_tokens)
            scaled.backward()
            parts = {"total": losses.total.detach()} | losses.parts
            values = torch.stack([part.double() for part in parts.values()]).tolist()  # one wait for the GPU
            sums.update(dict(zip(parts, values, strict=True)))
        return dict(sums)

    # --- state ----------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """State that only training needs: tensors, and the few numbers of the gradient scaler."""
        tensors = {
            f"optimizer.{index}.{name}": value
            for index, moments in self.optimizer.state_dict()["state"].items()
            for name, value in moments.items()
        }
        if self.average is not None:
            tensors |= {f"raw.{name}": tensor for name, tensor in self.model.state_dict().items()}
        return tensors, self.scaler.state_dict()

    def load(self, weights: dict[str, Tensor], tensors: dict[str, Tensor], scaler: dict[str, float]) -> None:
        """Restore `state`. `weights` are those to use: the average where one is kept."""
        if self.average is not None:
            self.average.weights = {name: tensor.to(self.process.device) for name, tensor in weights.items()}
            weights = {
                key.removeprefix("raw."): value for key, value in tensors.items() if key.startswith("raw.")
            }
        self.model.load_state_dict(weights)
        state = self.optimizer.state_dict()
        state["state"] = {}
        for key, value in tensors.items():
            kind, _, rest = key.partition(".")
            if kind == "optimizer":
                index, _, name = rest.partition(".")
                state["state"].setdefault(int(index), {})[name] = value
        self.optimizer.load_state_dict(state)
        for parameter, moments in self.optimizer.state.items():
            for name, value in moments.items():
                # The fused kernel walks through memory, so a moment must lie there as its parameter does.
                if value.shape == parameter.shape:
                    moments[name] = torch.empty_like(parameter).copy_(value)
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(scaler)


def choose_precision(wanted: Precision | Literal["auto"], process: Process) -> Precision:
    """Resolve auto: bf16 where the processors of all processes have instructions for it, else float32."""
    if wanted != "auto":
        return wanted
    (num_fast,) = sum_over_processes([float(is_fast("bf16", process.device))], process)
    chosen: Precision = "bf16" if num_fast == process.world_size else "float32"
    reason = "has" if chosen == "bf16" else "lacks"
    logger.info(
        "train.precision = auto: %s, since the %s %s fast bf16", chosen, process.device.type.upper(), reason
    )
    return chosen


def is_out_of_memory(error: RuntimeError) -> bool:
    """Recognise out of memory: on a GPU PyTorch has a type for it, on a CPU only words."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def halve_largest(batches: list[Batch]) -> list[Batch]:
    """Replace the largest batch, padding included, by its two halves."""
    largest = max(range(len(batches)), key=lambda index: batches[index].padded_size)
    batch = batches[largest]
    num_utterances = len(batch) // batch.num_views
    if num_utterances == 1:
        raise UserError(
            f"out of memory with a single utterance of {batch.audio_seconds:.1f} s, {batch.ids[0]}: "
            "lower batches.max_utterance_seconds (max_tokens for text), or take a smaller model"
        )
    logger.warning(
        "out of memory: a batch of %d utterances is halved; lower batches.max_seconds to avoid it",
        num_utterances,
    )
    middle = num_utterances // 2 * batch.num_views
    return [*batches[:largest], *_split(batch, middle), *batches[largest + 1 :]]


def _split(batch: Batch, middle: int) -> tuple[Batch, Batch]:
    def part(rows: slice) -> Batch:
        share = float(batch.feature_lengths_B[rows].sum() / batch.feature_lengths_B.sum().clamp(min=1))
        return replace(
            batch,
            ids=batch.ids[rows],
            texts=batch.texts[rows],
            applied=batch.applied[rows],
            skipped=(),
            audio_seconds=share * batch.audio_seconds,
            features_BTF=batch.features_BTF[rows, : int(batch.feature_lengths_B[rows].max())],
            feature_lengths_B=batch.feature_lengths_B[rows],
            tokens_BU=batch.tokens_BU[rows],
            token_lengths_B=batch.token_lengths_B[rows],
            speech_spans_B2=None if batch.speech_spans_B2 is None else batch.speech_spans_B2[rows],
        )

    return part(slice(None, middle)), part(slice(middle, None))
