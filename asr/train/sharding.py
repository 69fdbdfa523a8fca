"""A model that one device does not hold: each process keeps a part of all weights and moments (FSDP2).

The layers of the encoder are gathered one by one as a pass comes to them; the rest of the model, its decoder
too, is gathered for the whole of a pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from asr.errors import UserError
from asr.system.run_config import TrainConfig
from asr.train.distributed import Process

LAYERS = ("encoder.layers", "layers")  # whose elements are only used by calling them, as FSDP needs it


def shard_model(model: nn.Module, config: TrainConfig, reduce_dtype: torch.dtype) -> None:
    """Leave each process its part of the weights, which move to its device."""
    if config.compile or config.precision == "fp16":
        raise UserError(
            "train.sharded goes with neither train.compile nor train.precision=fp16; leave it out"
        )
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(reduce_dtype=reduce_dtype)
    for name, layers in model.named_modules():
        if name in LAYERS and isinstance(layers, nn.ModuleList):
            for layer in layers:
                fully_shard(layer, mp_policy=policy, reshard_after_forward=True)
    fully_shard(model, mp_policy=policy, reshard_after_forward=False)
    for unit in units_of(model):
        unit.set_gradient_divide_factor(1.0)  # sums: losses are divided by the tokens of all processes
        unit.set_force_sum_reduction_for_comms(True)  # gloo knows no other


def make_completer(process: Process) -> Callable[[], bool]:
    """Make `completes` of `write_checkpoint`, for its thread: no message mixes with those of training."""
    group = cast(dist.ProcessGroup, dist.new_group(backend="gloo"))

    def complete() -> bool:
        dist.barrier(group)
        return process.is_main

    return complete


def units_of(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "unshard")]


def is_part(tensor: Tensor) -> bool:
    """Recognise a DTensor without its import, which takes longer than all else."""
    return hasattr(tensor, "placements")


@contextlib.contextmanager
def whole_weights(model: nn.Module) -> Iterator[None]:
    """Gather all weights within the block: each process may then call any part of the model."""
    units = units_of(model)
    for unit in units:
        unit.unshard()
        unit.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for unit in units:
            unit.reshard()
            unit.set_reshard_after_forward(unit is not model, recurse=False)


def split_like(tensor: Tensor, like: Tensor) -> Tensor:
    """The part of a whole tensor that this process has of `like`; all of it where that is not sharded."""
    if not is_part(like):
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def own_parts(tensors: Mapping[str, Any], *, is_main: bool) -> dict[str, Tensor]:
    """Select what this process has to save: its parts, and in the main one what all have alike."""
    parts = {name: tensor.to_local() for name, tensor in tensors.items() if is_part(tensor)}
    return parts | {name: tensor for name, tensor in tensors.items() if is_main and name not in parts}


def whole(tensor: Any) -> Tensor:
    """The tensor that all processes have parts of."""
    result: Tensor = tensor.full_tensor() if is_part(tensor) else tensor
    return result
