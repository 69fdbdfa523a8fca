"""Cost of a training: parameters, arithmetic and memory, counted in passes of random input."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from asr.errors import UserError
from asr.features.front_end import FrontEnd
from asr.models import SpeechModelConfig, build_model
from asr.system.run_config import RunConfig
from asr.text.units import SPECIAL_TOKENS

SECONDS = 10.0  # of the utterance that is counted: attention over longer ones costs more a second
TOKENS_PER_SECOND = {"bpe": 4.0, "unigram": 4.0, "words": 3.0}  # others: a character each
CHARACTERS_PER_SECOND = 14.0
ASSUMED_TOKENS = 5_000  # of a vocabulary that is not known before its texts are


@dataclass(frozen=True)
class Cost:
    """Cost on one GPU; a training on several divides the arithmetic, not the memory of the weights."""

    parameters: int
    tokens: int
    """In the vocabulary."""
    is_assumed: bool
    """Whether their number is, since nobody knows it before there are texts."""
    flops_per_second: float
    """Floating-point operations forward for a second of audio; training takes three times as many."""
    weight_bytes: int
    """Weights, their gradients, the two moments of Adam, and the moving average if there is one."""
    batch_bytes: int
    """Kept of the largest batch for the backward pass; the peak is higher by what is used in between."""
    training_hours: float
    """Of audio, if all batches were full."""

    @property
    def training_flops(self) -> float:
        return 3 * 3600 * self.flops_per_second * self.training_hours

    def describe(self, teraflops: float) -> dict[str, Any]:
        """Lines for people; `teraflops` is what a GPU reaches, not what its maker promises."""
        hours = self.training_flops / (teraflops * 1e12) / 3600
        return {
            "parameters": self.parameters,
            "vocabulary": f"{self.tokens:,} tokens" + ", assumed: texts decide" * self.is_assumed,
            "arithmetic": f"{3600 * self.flops_per_second / 1e12:,.1f} TFLOP for an hour of audio, forward",
            "memory": f"{self.weight_bytes / 1e9:.2f} GB for the weights, their gradients and Adam, and "
            f"{self.batch_bytes / 1e9:.2f} GB for a batch",
            "training": f"{self.training_hours:,.0f} hours of audio at most, "
            f"{self.training_flops / 1e18:,.2f} EFLOP: {hours:,.1f} hours at {teraflops:g} TFLOP/s",
        }


def measure_cost(config: RunConfig, num_tokens: int | None = None) -> Cost:
    """Count in forward passes on the CPU."""
    if not isinstance(config.model, SpeechModelConfig) or config.start_from is not None:
        raise UserError("the cost is counted of speech models that begin with random weights")
    tokens = num_tokens or config.tokenizer.vocab_size or ASSUMED_TOKENS
    model = build_model(config.model, config.features.num_features, tokens).train()
    one, two = (_count_kept_bytes(model, config, tokens, batch_size) for batch_size in (1, 2))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    learnt = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    copies = 4 if config.train.average_decay is not None else 3  # gradient, two moments, average
    batch_seconds = config.batches.max_seconds
    return Cost(
        parameters=parameters,
        tokens=tokens,
        is_assumed=not (num_tokens or config.tokenizer.vocab_size),
        flops_per_second=_count_flops(model, config, tokens) / SECONDS,
        weight_bytes=4 * (parameters + copies * learnt),
        batch_bytes=round((two - one) * batch_seconds / SECONDS),  # what weights become in bf16 is in both
        training_hours=config.train.steps * config.train.accumulate * batch_seconds / 3600,
    )


def _count_flops(model: nn.Module, config: RunConfig, num_tokens: int) -> int:
    """Count for one utterance. PyTorch counts nothing in fused attention and oneDNN's recurrent layers."""
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore")  # about GPUs of Intel, by the next line
        if any(isinstance(module, nn.RNNBase) for module in model.modules()):
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        counter = stack.enter_context(FlopCounterMode(display=False))
        _step(model, config, num_tokens, 1)
    return int(counter.get_total_flops())


def _count_kept_bytes(model: nn.Module, config: RunConfig, num_tokens: int, batch_size: int) -> int:
    """Count what is kept for the backward pass, beside the weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    is_half = config.train.precision != "float32"
    with (
        torch.autocast("cpu", torch.bfloat16, enabled=is_half),
        saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        _losses = _step(
            model, config, num_tokens, batch_size
        )  # keeps all that was noted alive: no address twice
    return sum(kept.values())


def _step(model: nn.Module, config: RunConfig, num_tokens: int, batch_size: int) -> object:
    num_frames = FrontEnd(config.features).num_frames(round(SECONDS * config.features.sample_rate))
    length = round(SECONDS * TOKENS_PER_SECOND.get(config.tokenizer.type, CHARACTERS_PER_SECOND))
    return model(
        torch.randn(batch_size, num_frames, config.features.num_features),
        torch.full((batch_size,), num_frames),
        torch.randint(len(SPECIAL_TOKENS), num_tokens, (batch_size, length)),
        torch.full((batch_size,), length),
    )
