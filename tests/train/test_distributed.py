"""asr/train/distributed.py: gradients that are sent while others are computed, whatever happens meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asr.train import GradientSum, Process, agree_on_name, distributed

TWO = Process(0, 2, torch.device("cpu"))


class Sent:
    """The other process, which has the same gradients: what it and ours send."""

    def __init__(self) -> None:
        self.messages: list[Tensor] = []

    def all_reduce(self, flat: Tensor, async_op: bool) -> Any:
        assert async_op
        self.messages.append(flat.clone())
        sums = 2 * flat

        class Work:
            def wait(self) -> None:
                flat.copy_(sums)

        return Work()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Buckets of one parameter each."""
    sent = Sent()
    monkeypatch.setattr(distributed.dist, "all_reduce", sent.all_reduce)
    monkeypatch.setattr(distributed, "BUCKET_BYTES", 1)
    return sent


def build() -> tuple[nn.Linear, nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    return nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)


def gradients(layers: tuple[nn.Linear, ...], inputs: list[Tensor]) -> list[Tensor | None]:
    for layer in layers:
        layer.zero_grad()
    for x in inputs:
        for layer in layers[:2]:  # nothing comes by the third
            x = layer(x)
        x.square().sum().backward()
    return [p.grad if p.grad is None else p.grad.clone() for layer in layers for p in layer.parameters()]


def test_gradients_are_sent_within_the_last_pass_and_become_sums(sent: Sent) -> None:
    layers, inputs = build(), [torch.ones(1, 3), torch.full((1, 3), 2.0)]
    parameters = [p for layer in layers for p in layer.parameters()]
    expected = gradients(layers, inputs)
    gradient_sum = GradientSum(parameters, TWO, torch.float32)
    for _ in range(2):  # as good as new after each update
        sent.messages.clear()
        gradient_sum.begin_pass(is_last=False)
        gradients(layers, inputs[:1])
        assert not sent.messages, "they are still to grow"
        gradient_sum.begin_pass(is_last=True)
        for x in inputs[1:]:
            layers[1](layers[0](x)).square().sum().backward()
        assert not sent.messages, "those of the third layer go first in all processes, and never come"
        gradient_sum.finish()
        assert len(sent.messages) == 6
        for parameter, one in zip(parameters, expected, strict=True):
            assert parameter.grad is not None
            torch.testing.assert_close(
                parameter.grad, torch.zeros_like(parameter) if one is None else 2 * one
            )


def test_they_travel_while_others_are_computed(sent: Sent) -> None:
    layers = build()[:2]
    gradient_sum = GradientSum([p for layer in layers for p in layer.parameters()], TWO, torch.float32)
    seen: list[int] = []
    layers[0].weight.register_hook(lambda gradient: seen.append(len(sent.messages)))
    gradient_sum.begin_pass(is_last=True)
    gradients(layers, [torch.ones(1, 3)])
    assert seen[0] >= 2 and len(sent.messages) == 4, "those of the second layer were on their way"


def test_a_pass_that_is_broken_off_is_not_sent_twice(sent: Sent) -> None:
    """As when memory is short: the batch comes again as two halves, the first of which is not the last pass."""
    layers = build()[:2]
    whole, halves = torch.arange(6.0).view(2, 3), list(torch.arange(6.0).view(2, 1, 3))
    parameters = [p for layer in layers for p in layer.parameters()]
    expected = gradients(layers, [whole])
    gradient_sum = GradientSum(parameters, TWO, torch.float32)

    def fail(gradient: Tensor) -> None:
        raise torch.OutOfMemoryError("out of memory")

    gradient_sum.begin_pass(is_last=True)
    hook = layers[0].weight.register_hook(fail)
    with pytest.raises(torch.OutOfMemoryError):
        gradients(layers, [whole])
    hook.remove()
    before = len(sent.messages)
    assert before >= 2
    gradient_sum.begin_pass(is_last=False)
    gradients(layers, halves[:1])
    assert len(sent.messages) == before
    gradient_sum.begin_pass(is_last=True)
    layers[1](layers[0](halves[1])).square().sum().backward()
    gradient_sum.finish()
    assert len(sent.messages) == 4
    for parameter, one in zip(parameters, expected, strict=True):
        assert parameter.grad is not None and one is not None
        torch.testing.assert_close(parameter.grad, 2 * one)


def test_they_may_travel_in_half_the_bits(sent: Sent) -> None:
    (layer, *_) = build()
    gradient_sum = GradientSum(layer.parameters(), TWO, torch.bfloat16)
    expected = gradients((layer, layer), [torch.ones(1, 3)])
    gradient_sum.begin_pass(is_last=True)
    gradients((layer, layer), [torch.ones(1, 3)])
    gradient_sum.finish()
    assert [message.dtype for message in sent.messages] == [torch.bfloat16] * 2
    for parameter, one in zip(layer.parameters(), expected, strict=False):
        assert parameter.grad is not None and one is not None and parameter.grad.dtype == torch.float32
        torch.testing.assert_close(parameter.grad, 2 * one.bfloat16().float())


def test_one_process_sends_nothing(sent: Sent) -> None:
    (layer, *_) = build()
    gradient_sum = GradientSum(layer.parameters(), Process(0, 1, torch.device("cpu")), torch.bfloat16)
    expected = gradients((layer, layer), [torch.ones(1, 3)])
    gradient_sum.begin_pass(is_last=True)
    found = gradients((layer, layer), [torch.ones(1, 3)])
    gradient_sum.finish()
    assert not sent.messages
    assert all(
        torch.equal(a, b) for a, b in zip(found, expected, strict=True) if a is not None and b is not None
    )


def test_those_that_start_together_agree_on_a_name_that_no_one_had_before() -> None:
    store = torch.distributed.HashStore()
    store.set("asr/start/1", "of one that died")
    names = set()
    for _ in range(3):
        with ThreadPoolExecutor(3) as threads:
            starts = [threads.submit(agree_on_name, store, rank, 3) for rank in (2, 0, 1)]
            (name,) = {start.result(20) for start in starts}
        names.add(name)
    assert len(names) == 3
