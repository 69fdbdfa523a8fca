"""AdamW without decay of norms; learning rate as a function of the update; moving average of weights."""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor, nn

from asr.system.run_config import OptimConfig

logger = logging.getLogger(__name__)

FINAL_SCALE = 0.01  # learning rate at the end of a cosine, as a share of the peak
BETAS = (
    0.9,
    0.98,
)  # memory of Adam's two moving averages: the second shorter than usual, as for Transformers


def learning_rate_at(step: int, config: OptimConfig, max_steps: int) -> float:
    """The learning rate of update `step`, which counts from 0."""
    peak, warmup = config.learning_rate, config.warmup_steps
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if config.schedule == "constant":
        return peak
    if config.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / max(step, 1))
    progress = min((step - warmup) / max(max_steps - 1 - warmup, 1), 1.0)
    return peak * (FINAL_SCALE + (1 - FINAL_SCALE) * 0.5 * (1 + math.cos(math.pi * progress)))


def warn_of_short_training(config: OptimConfig, max_steps: int) -> None:
    """Warn where training ends before the learning rate is at its peak."""
    if config.warmup_steps >= max_steps:
        logger.warning(
            "optim.warmup_steps = %d, but train.steps = %d: the learning rate comes to %.3g in the end, "
            "never to its peak of %.3g",
            config.warmup_steps, max_steps, learning_rate_at(max_steps - 1, config, max_steps),
            config.learning_rate,
        )  # fmt: skip


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """Build AdamW with weight decay for matrices only: not for scales, shifts and rare embeddings."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    parameters = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in parameters if p.ndim > 1 and id(p) not in embeddings]
    others = [p for p in parameters if p.ndim <= 1 or id(p) in embeddings]
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    # The fused kernel updates all parameters in one pass, on a CPU as on a GPU.
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=BETAS, fused=True)


class MovingAverage:
    """An exponential moving average of the weights, often better than the last ones."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        # The first weights are random: forget them quickly.
        decay = min(self.decay, (1 + step) / (10 + step))
        averages: list[Tensor] = []
        currents: list[Tensor] = []
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                averages.append(self.weights[name])
                currents.append(tensor)
            else:
                self.weights[name].copy_(tensor)
        torch._foreach_lerp_(averages, currents, 1 - decay)
