"""asr/train/distributed.py: gradients are sent while others are computed, even if a pass fails."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from training_examples import TinyRun, read_log

from asr.cli import main
from asr.data import read_manifest, write_manifest
from asr.errors import UserError
from asr.families import find_checkpoints
from asr.system.system import load_state
from asr.train import distributed
from asr.train.distributed import GradientSum, Process, broadcast_from_main, rendezvous_key, report_error_once
from asr.train.loop import train
from asr.train.preparation import prepare_system
from asr.train.training_data import TrainingData

ROOT = Path(__file__).resolve().parents[2]
TWO = Process(0, 2, torch.device("cpu"))


class Sent:
    """A fake second process with the same gradients, and a record of what both send."""

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
    """Buckets with one parameter each."""
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
        for layer in layers[:2]:  # no gradient reaches the third
            x = layer(x)
        x.square().sum().backward()
    return [p.grad if p.grad is None else p.grad.clone() for layer in layers for p in layer.parameters()]


def test_gradients_are_sent_within_the_last_pass_and_become_sums(sent: Sent) -> None:
    layers, inputs = build(), [torch.ones(1, 3), torch.full((1, 3), 2.0)]
    parameters = [p for layer in layers for p in layer.parameters()]
    expected = gradients(layers, inputs)
    gradient_sum = GradientSum(parameters, TWO)
    for _ in range(2):  # as good as new after each update
        sent.messages.clear()
        gradient_sum.begin_pass(is_last=False)
        gradients(layers, inputs[:1])
        assert not sent.messages, "they are still to grow"
        gradient_sum.begin_pass(is_last=True)
        for x in inputs[1:]:
            layers[1](layers[0](x)).square().sum().backward()
        assert not sent.messages, "the third layer's are sent first in all processes, and never come"
        gradient_sum.finish()
        assert len(sent.messages) == 6
        for parameter, one in zip(parameters, expected, strict=True):
            assert parameter.grad is not None
            torch.testing.assert_close(
                parameter.grad, torch.zeros_like(parameter) if one is None else 2 * one
            )


def test_gradients_are_sent_while_others_are_computed(sent: Sent) -> None:
    layers = build()[:2]
    gradient_sum = GradientSum([p for layer in layers for p in layer.parameters()], TWO)
    seen: list[int] = []
    layers[0].weight.register_hook(lambda gradient: seen.append(len(sent.messages)))
    gradient_sum.begin_pass(is_last=True)
    gradients(layers, [torch.ones(1, 3)])
    assert seen[0] >= 2 and len(sent.messages) == 4, "the second layer's were being sent"


def test_gradients_of_an_aborted_pass_are_not_sent_twice(sent: Sent) -> None:
    """As after lack of memory: the batch is repeated as two halves, the first of which is not the last pass."""
    layers = build()[:2]
    whole, halves = torch.arange(6.0).view(2, 3), list(torch.arange(6.0).view(2, 1, 3))
    parameters = [p for layer in layers for p in layer.parameters()]
    expected = gradients(layers, [whole])
    gradient_sum = GradientSum(parameters, TWO)

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


def test_an_error_of_the_main_process_reaches_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[Any]] = []

    def fail() -> None:
        raise UserError("no texts")

    def receive(found: list[Any], **_: object) -> None:
        found[:] = sent[0]

    group: Any = object()
    for rank, broadcast in ((0, lambda found, **_: sent.append(found)), (1, receive)):
        monkeypatch.setattr(distributed.dist, "broadcast_object_list", broadcast)
        with pytest.raises(UserError, match="no texts"):
            broadcast_from_main(fail, Process(rank, 2, torch.device("cpu"), group))


def test_processes_that_start_together_agree_on_a_new_key() -> None:
    store = torch.distributed.HashStore()
    store.set("asr/start/1", "of one that died")
    names = set()
    for _ in range(3):
        with ThreadPoolExecutor(3) as threads:
            starts = [threads.submit(rendezvous_key, store, rank, 3) for rank in (2, 0, 1)]
            (name,) = {start.result(20) for start in starts}
        names.add(name)
    assert len(names) == 3


# --- several processes, or another number of them -----------------------------------------------


@pytest.mark.parametrize(
    ("first", "asked", "now"),
    [(2, None, 1), (4, None, 3), (1, 5, 3), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((4, None, 2), (2, 6, 4)))],
)  # fmt: skip
def test_any_number_of_processes_learns_from_the_same_batches(
    tiny_run: TinyRun, first: int, asked: int | None, now: int
) -> None:
    """Update by update, and resumed at any update, no part of an epoch is lost or repeated."""
    setting = f"train.batches_per_update={'null' if asked is None else asked}"
    system = prepare_system(tiny_run("batches.max_utterances=1", setting), Process(0, 1, torch.device("cpu")))

    def updates(world_size: int, batches_done: int) -> list[set[str]]:
        """The utterances of each update, from all processes."""
        processes = [Process(rank, world_size, torch.device("cpu")) for rank in range(world_size)]
        epochs = [TrainingData(system, process, first).epoch(1, batches_done) for process in processes]
        return [
            {name for group in groups for batch in group for name in batch.ids}
            for groups in zip(*epochs, strict=True)
        ]

    expected = updates(first, 0)
    assert len(expected) > 2 and sum(map(len, expected)) == len(set().union(*expected))
    for done in range(len(expected) + 1):
        assert updates(now, done * (asked or first)) == expected[done:]


def run_two_processes(arguments: Sequence[str], *program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [*(program or ("-m", "asr")), "train", *arguments, "train.threads=1"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.slow  # gloo sometimes aborts a process that has done all its work and is about to end
def test_two_processes_equal_one(tiny_run: TinyRun, tmp_path: Path) -> None:
    """Two gloo processes, a batch each, against one process with two batches to an update; and one process that
    continues where two were."""
    settings = [
        *("model.encoder.dropout=0.0", "model.decoder.dropout=0.0", "train.steps=6"),
        "batches.max_utterances=1",
    ]
    one = train(tiny_run("train.batches_per_update=2", *settings))
    conf = str(tmp_path / "run.yaml")
    done = run_two_processes([conf, f"output_dir={tmp_path}/two", *settings])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{tmp_path}/two/model"], "one process prints"
    assert done.stderr.count(" parameters, ") == 1, "one process speaks"
    done = run_two_processes([conf, f"output_dir={tmp_path}/both", *settings, "train.steps=3"])
    assert done.returncode == 0, done.stderr
    both = train(tiny_run(f"output_dir={tmp_path}/both", *settings))
    assert load_state(both)["batches_done"] == 12
    one_log = read_log(tmp_path / "run", "train")
    for folder in (tmp_path / "two", tmp_path / "both"):
        log = [line for line in read_log(folder, "train") if line["step"] != 3]
        assert [line["step"] for line in one_log] == [line["step"] for line in log]
        for ours, theirs in zip(one_log, log, strict=True):
            if (
                folder.name == "two" or ours["step"] != 4
            ):  # its mean starts at the last line, which is update 3
                assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        ours, theirs = (
            load_file(find_checkpoints(run)[-1] / "model.safetensors") for run in (one.parent, folder)
        )
        for name in ours:
            torch.testing.assert_close(ours[name], theirs[name], atol=1e-4, rtol=1e-4)


COUNTER = """
import json, os, sys
from asr.cli import main
from asr.train import preparation
counts = {}
def count(module, name, size):
    original = getattr(module, name)
    def counted(*arguments):
        result = original(*arguments)
        counts[name] = counts.get(name, 0) + size(result)
        return result
    setattr(module, name, counted)
count(preparation, "load_or_train_tokenizer", lambda tokenizer: 1)
status = main(sys.argv[1:])
with open(f"counts{os.environ['RANK']}.json", "w") as file:
    json.dump(counts, file)
sys.exit(status)
"""


@pytest.mark.slow
@pytest.mark.parametrize("num_broken", [5, 6])
def test_two_processes_share_a_tokenizer_and_count_broken_files_together(
    tiny_run: TinyRun, tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_broken: int
) -> None:
    """At most 5 of 48 utterances may be unreadable, in whichever process."""
    utterances = [
        item.model_copy(update={"audio": f"{tmp_path}/none.wav"})
        if number % 8 == 0 and number < 8 * num_broken
        else item
        for number, item in enumerate(read_manifest(tones / "train.jsonl"))
    ]
    write_manifest(tmp_path / "train.jsonl", utterances)
    tiny_run()
    (tmp_path / "counter.py").write_text(COUNTER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    settings = ("batches.max_utterances=1", "train.steps=24", "train.validate_every=24")
    done = run_two_processes(["run.yaml", "data.train=train.jsonl", *settings], "counter.py")
    assert (done.returncode == 0) == (num_broken == 5), done.stderr
    assert ("6 of 48 utterances cannot be used" in done.stderr) == (num_broken == 6)
    if num_broken == 5:
        broken = [item.id for item in utterances if "none.wav" in item.audio]
        assert all(f"utterance {name} is left out" in done.stderr for name in broken)
        counts = [json.loads((tmp_path / f"counts{rank}.json").read_text()) for rank in (0, 1)]
        assert counts == [{"load_or_train_tokenizer": 1}, {}]


@pytest.mark.slow
def test_two_processes_report_an_error_once(tiny_run: TinyRun, tmp_path: Path) -> None:
    tiny_run()
    (tmp_path / "dev.jsonl").write_text("")
    conf = str(tmp_path / "run.yaml")
    for setting, message in (
        (f"data.dev={tmp_path}/dev.jsonl", "no utterance"),
        ("train.step=2", "unknown key"),
    ):
        done = run_two_processes([conf, setting])
        assert done.returncode != 0
        said = done.stderr.partition("torch/distributed/elastic")[0]  # the rest is printed by torchrun
        assert [line for line in done.stderr.splitlines() if line.startswith("asr: ")] and message in said
        assert said.count("asr: ") == 1 and "in _train" not in done.stderr


def test_one_process_reports_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The main process reports it. The others wait for torchrun to stop them, longest after a lost connection."""
    waits: list[float] = []
    monkeypatch.setattr(distributed.time, "sleep", waits.append)
    lost, bad = RuntimeError("Connection closed by peer"), UserError("bad input")
    for world_size, rank, error in ((1, 0, bad), (2, 0, bad), (2, 1, bad), (2, 0, lost), (2, 1, lost)):
        with pytest.raises(type(error)), report_error_once(Process(rank, world_size, torch.device("cpu"))):
            raise error
    assert waits == [10, 20, 20]


def test_only_the_first_process_reports_a_bad_config(
    tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_run()
    for rank, message in (("0", "unknown key"), ("1", "")):
        monkeypatch.setenv("RANK", rank)
        assert main(["train", str(tmp_path / "run.yaml"), "train.step=2"]) == 2
        assert message in (shown := capsys.readouterr().err) and bool(shown) == bool(message)


@pytest.mark.slow
def test_a_second_machine_may_join_later(tiny_run: TinyRun, tmp_path: Path) -> None:
    """Two torchruns on loopback, the second after the first checkpoint, use the batches of one process."""
    settings = [*("model.encoder.dropout=0.0", "model.decoder.dropout=0.0", "train.steps=150"),
                *("train.batches_per_update=2", "batches.max_utterances=2", "train.validate_every=150")]  # fmt: skip
    one = train(tiny_run(*settings))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1"]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--max-restarts=3"]
    command += ["-m", "asr", "train", str(tmp_path / "run.yaml"), f"output_dir={tmp_path}/late", *settings]
    environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # as in deploy/train-job.yaml
    machines = []
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            process = subprocess.Popen(
                [*command, "train.threads=1"], env=environment, stderr=subprocess.PIPE, text=True
            )
            machines.append(stack.enter_context(process))
            stack.callback(process.kill)
            while len(machines) == 1 and not find_checkpoints(tmp_path / "late"):
                time.sleep(0.02)
        said = [process.communicate(timeout=120)[1] for process in machines]
        assert [process.returncode for process in machines] == [0, 0], said
        assert any("on 2 x CPU" in text for text in said), "they did not meet"
    assert load_state(tmp_path / "late" / "model")["first_world_size"] == 1
    ours, theirs = (load_file(path / "model.safetensors") for path in (one, tmp_path / "late" / "model"))
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-3, rtol=1e-3)
