"""asr/train: resumes are exact, no update is lost, and errors are survived or reported."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from model_examples import SYSTEMS, every_system
from training_examples import TinyRun, assert_equal_bits, read_log, run_until_killed

from asr.batches.builder import Batch
from asr.cli import main
from asr.data import read_manifest, write_manifest
from asr.errors import UserError
from asr.families import find_checkpoints
from asr.system import checkpoint
from asr.system.run_config import RunConfig
from asr.system.system import load_state, load_system
from asr.train import dev_scores, loop
from asr.train.distributed import Process
from asr.train.learner import Learner, Outcome
from asr.train.loop import train
from asr.train.preparation import prepare_system
from asr.train.training_data import TrainingData


@pytest.mark.parametrize(
    ("killed_at", "overrides"),
    [
        pytest.param(4, ("train.steps=6", "train.precision=fp16"), marks=pytest.mark.slow),
        (4, ("train.steps=6",)),  # in the first epoch, one checkpoint earlier
        # In the second epoch, with averaged weights.
        pytest.param(8, ("train.steps=9", "train.average_decay=0.9"), marks=pytest.mark.slow),
        pytest.param(10, ("batches.num_workers=1", "train.batches_per_update=2"), marks=pytest.mark.slow),
    ],
)
def test_resuming_is_exact(
    tiny_run: TinyRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    killed_at: int,
    overrides: tuple[str, ...],
) -> None:
    whole = train(tiny_run(f"output_dir={tmp_path}/whole", *overrides))
    run_until_killed(monkeypatch, killed_at, lambda: train(tiny_run(*overrides)))
    assert load_state(find_checkpoints(tmp_path / "run")[-1])["step"] == killed_at // 3 * 3
    resumed = train(tiny_run(*overrides))
    assert_equal_bits(whole, resumed)
    last = (find_checkpoints(tmp_path / name)[-1] / "training.safetensors" for name in ("whole", "run"))
    assert_equal_bits(*last)
    logs = [read_log(tmp_path / name, "train") for name in ("whole", "run")]
    expected, steps = ([line["step"] for line in log] for log in logs)
    assert steps == expected, "an update is in the log twice, or lost"


def test_a_resumed_training_uses_the_threads_of_its_start(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch, restored_threads: None
) -> None:
    """Otherwise their number could depend on which cores are free now."""
    short = ("train.steps=4", "train.save_every=1", "train.validate_every=4")
    torch.set_num_threads(2)
    run_until_killed(monkeypatch, 1, lambda: train(tiny_run(*short)))
    torch.set_num_threads(1)
    train(tiny_run(*short))
    assert torch.get_num_threads() == 2
    train(tiny_run(*short, "train.threads=1"))
    assert torch.get_num_threads() == 1


def test_each_epoch_learns_from_each_utterance_once(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def update(self: Learner, batches: Sequence[Batch], step: int) -> Outcome:
        names.extend(name for batch in batches for name in batch.ids)
        return Outcome(True, {"total": 1.0}, 1.0, audio_seconds=1.0, gradient_norm=1.0, learning_rate=0.1)

    monkeypatch.setattr(Learner, "update", update)
    train(tiny_run("train.steps=16", "train.validate_every=16", "train.save_every=16"))
    first, second = names[:48], names[48:96]
    assert len(set(first)) == 48 and first != second and sorted(first) == sorted(second)


@pytest.mark.slow
@every_system
def test_every_system_resumes_exactly(
    name: str, tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(folder: str) -> RunConfig:
        settings = ("train.steps=2", "train.save_every=1", "train.validate_every=2")
        run = tiny_run(*settings, f"output_dir={tmp_path}/{folder}")
        return run.model_copy(update={"model": SYSTEMS[name]})

    whole = train(build("whole"))
    run_until_killed(monkeypatch, 1, lambda: train(build("run")))
    assert load_state(find_checkpoints(tmp_path / "run")[-1])["step"] == 1
    assert_equal_bits(whole, train(build("run")))


def send_signals(monkeypatch: pytest.MonkeyPatch, numbers: Sequence[int]) -> None:
    """During the third update."""
    original = Learner.update

    def update(self: Learner, batches: Sequence[Batch], step: int) -> Any:
        for number in numbers if step == 2 else ():
            os.kill(os.getpid(), number)
        return original(self, batches, step)

    monkeypatch.setattr(Learner, "update", update)


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGTERM, SystemExit), pytest.param(signal.SIGINT, KeyboardInterrupt, marks=pytest.mark.slow)],
)
def test_termination_saves_and_resumes(
    tiny_run: TinyRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
    error: type[BaseException],
) -> None:
    settings = ("train.steps=4", "train.save_every=2")
    whole = train(tiny_run(f"output_dir={tmp_path}/whole", *settings))
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch, pytest.raises(error) as caught, caplog.at_level(logging.INFO):
        send_signals(patch, [number])
        train(tiny_run(*settings))
    assert number == signal.SIGINT or caught.value.code == 143
    assert "stopped and saved at update 3; the same command resumes" in caplog.text
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert find_checkpoints(tmp_path / "run")[-1].name == "step-00000003", "the update in progress is kept"
    assert_equal_bits(whole, train(tiny_run(*settings)))


def test_a_second_interrupt_stops_at_once(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    send_signals(monkeypatch, [signal.SIGINT, signal.SIGINT])
    with pytest.raises(KeyboardInterrupt):
        train(tiny_run("train.save_every=2"))
    assert find_checkpoints(tmp_path / "run")[-1].name == "step-00000002"
    assert "saving after this update; Ctrl-C again stops at once" in capfd.readouterr().err


def test_an_interrupt_during_the_last_evaluation_stops_at_once(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluate(*_: object) -> Path:
        os.kill(os.getpid(), signal.SIGINT)
        return tmp_path / "went on"

    monkeypatch.setattr(loop, "finish", evaluate)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_run("train.steps=1"))
    assert find_checkpoints(tmp_path / "run")[-1].name == "step-00000001", "nothing is lost"


def run_in_a_group_of_its_own(arguments: list[str], messages: Path) -> None:
    os.setsid()
    os.dup2(os.open(messages, os.O_WRONLY | os.O_CREAT), 2)
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, force=True)
    sys.exit(main(arguments))


def test_a_training_in_a_thread(tiny_run: TinyRun) -> None:
    """As in a notebook or a service, where signals do not reach it."""
    with ThreadPoolExecutor(1) as pool:
        folder = pool.submit(train, tiny_run("train.steps=1")).result()
    assert load_state(folder)["step"] == 1


def test_an_ignored_interrupt_stays_ignored(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the trainings of a recipe, which stops them itself after Ctrl-C."""
    send_signals(monkeypatch, [signal.SIGINT])
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        train(tiny_run("train.steps=4"))
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert read_log(tmp_path / "run", "dev")[-1]["step"] == 4


@pytest.mark.parametrize(
    ("number", "status"), [pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow), (signal.SIGINT, 130)]
)
def test_termination_of_the_whole_group(tiny_run: TinyRun, tmp_path: Path, number: int, status: int) -> None:
    """As with a scheduler or terminal, whose signal also reaches the data loading processes."""
    tiny_run()
    arguments = ["train", str(tmp_path / "run.yaml"), "train.steps=100000", "train.threads=1"]
    arguments += ["batches.num_workers=1", "train.log_every=1", "train.validate_every=100000"]
    arguments += ["train.save_every=100000"]
    messages = tmp_path / "messages"
    # A fork is faster than a new interpreter, which would import torch first.
    process = multiprocessing.get_context("fork").Process(
        target=run_in_a_group_of_its_own, args=(arguments, messages)
    )
    process.start()
    log = tmp_path / "run" / "log.jsonl"
    while process.is_alive() and not (log.exists() and log.read_text().count("\n") >= 3):
        time.sleep(0.05)
    assert process.pid is not None
    os.killpg(process.pid, number)
    process.join(60)
    said = messages.read_text()
    assert process.exitcode == status, said
    assert "Traceback" not in said and "the same command resumes" in said
    assert len(find_checkpoints(tmp_path / "run")) == 1


def test_the_result_is_the_best_on_dev(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[bool] = []
    model = tmp_path / "run" / "model"
    monkeypatch.setattr(loop, "wait_for_all", lambda process: waits.append(model.is_dir()))
    folder = train(tiny_run("train.steps=4", "train.validate_every=1", "train.select_by=loss"))
    assert waits[-1], "no process returns before the model is there"
    dev = read_log(tmp_path / "run", "dev")
    best = sorted(line["loss"] for line in dev)[:2]
    kept = {path.name for path in find_checkpoints(tmp_path / "run")}
    assert kept == {f"step-{line['step']:08d}" for line in dev if line["loss"] in best} | {"step-00000004"}
    state = load_state(folder)
    assert state["dev_scores"]["loss"] <= best[0] + 1e-6
    system = load_system(folder)
    assert system.model.training is False and len(system.tokenizer) > 5


def test_error_rates_of_dev_are_computed_over_all_utterances(
    tiny_run: TinyRun, tones: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(0, 1, torch.device("cpu"))
    system = prepare_system(tiny_run(), process)

    def decode(_: object, batch: Batch) -> dict[str, list[str]]:
        return {"ctc": [""] * len(batch), "decoder": [text.split()[0] for text in batch.texts]}

    monkeypatch.setattr(dev_scores, "decode_batch", decode)
    batches = TrainingData(system, process).dev.evaluation_batches()
    scores = dev_scores.compute_dev_scores(system, batches, process)
    lengths = [len((utterance.text or "").split()) for utterance in read_manifest(tones / "dev.jsonl")]
    assert scores["wer_ctc"] == scores["cer_ctc"] == 1
    assert scores["wer"] == scores["wer_decoder"] == pytest.approx(1 - len(lengths) / sum(lengths))


def test_a_process_without_dev_batches_has_the_scores_of_all(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with fewer batches than processes."""
    process = Process(0, 1, torch.device("cpu"))
    system = prepare_system(tiny_run(), process)
    sums: list[dict[Any, float]] = []
    monkeypatch.setattr(dev_scores, "gather_over_processes", lambda own, *_: sums.append(own) or sums)
    batches = TrainingData(system, process).dev.evaluation_batches()
    scores = dev_scores.compute_dev_scores(system, batches, process)
    assert dev_scores.compute_dev_scores(system, [], process) == scores and sums[0] != sums[1]


def test_changed_settings_are_refused(tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asr.train.monitor.open_tensorboard", lambda config, step: lambda step, numbers: None)
    train(tiny_run("train.steps=2"))
    for setting in ("optim.learning_rate=0.1", "train.steps=1"):
        with pytest.raises(UserError, match=rf"other settings \({setting.partition('=')[0]}: "):
            train(tiny_run("train.steps=2", setting))
    free = ("train.log_every=7", "batches.num_workers=1", "data.max_unknown=0.5", "train.save_every=1")
    free += ("train.validate_every=1", "train.keep_best=1", "train.tensorboard=true")
    train(tiny_run("train.steps=2", *free))


# --- a training continues -------------------------------------------------------------------------


def test_a_finished_training_is_extended(
    tiny_run: TinyRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A training extended to more updates ends like one that was started with that many."""
    whole = train(tiny_run(f"output_dir={tmp_path}/whole", "train.steps=3", "train.validate_every=1"))
    train(tiny_run("train.steps=2", "train.validate_every=1"))
    with caplog.at_level(logging.INFO):
        assert_equal_bits(whole, train(tiny_run("train.steps=3", "train.validate_every=1")))
    assert "train.steps: 2 then, 3 now" in caplog.text and "is stretched" not in caplog.text
    warnings = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
    assert all("warmup_steps" in message for message in warnings)
    assert [line["step"] for line in read_log(tmp_path / "run", "dev")] == [1, 2, 3]
    assert [line["step"] for line in read_log(tmp_path / "run", "model")] == [3]


def test_a_stretched_cosine_causes_a_warning(tiny_run: TinyRun, caplog: pytest.LogCaptureFixture) -> None:
    settings = ("train.validate_every=1", "optim.schedule=cosine")
    train(tiny_run("train.steps=1", *settings))
    train(tiny_run("train.steps=2", *settings))
    assert "optim.schedule = cosine is stretched" in caplog.text


def test_a_run_and_its_data_may_move(tiny_run: TinyRun, tones: Path, tmp_path: Path) -> None:
    """Other paths to the same utterances, and other checkpoint intervals, give the same model."""
    settings = ("train.select_by=updates", "train.keep_best=1")
    whole = train(tiny_run(f"output_dir={tmp_path}/whole", "train.steps=2", *settings))
    train(tiny_run("train.steps=1", *settings))
    (tmp_path / "run").rename(tmp_path / "moved")
    (tmp_path / "link").symlink_to(tones)
    moved = (f"output_dir={tmp_path}/moved", f"data.train=[{tmp_path}/link/train.jsonl]")
    assert_equal_bits(whole, train(tiny_run("train.steps=2", *moved, *settings)))


def test_one_unreadable_file_of_a_small_dev_set_is_tolerated(
    tiny_run: TinyRun, tones: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    utterances = list(read_manifest(tones / "dev.jsonl"))
    utterances[0] = utterances[0].model_copy(update={"audio": str(tmp_path / "missing.wav")})
    write_manifest(tmp_path / "dev.jsonl", utterances)
    settings = ("train.steps=2", "train.validate_every=1", f"data.dev={tmp_path}/dev.jsonl")
    train(tiny_run(*settings))
    assert "missing.wav" in caplog.text


def test_a_validation_that_fails_loses_no_update(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise UserError("dev cannot be read")

    monkeypatch.setattr(loop, "compute_dev_scores", fail)
    for _ in range(2):
        with pytest.raises(UserError, match="dev cannot be read"):
            train(tiny_run("train.steps=3", "train.validate_every=1"))
        assert load_state(find_checkpoints(tmp_path / "run")[-1])["step"] == 1


@pytest.mark.parametrize(("validate_every", "failed"), [(4, 1), (2, 2), (2, 1)])
def test_a_failed_validation_is_repeated(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validate_every: int, failed: int
) -> None:
    """Whether it is the only one, the last of several, or one in between."""
    settings = ("train.steps=4", f"train.validate_every={validate_every}", "train.keep_best=1")
    whole = train(tiny_run(f"output_dir={tmp_path}/whole", *settings))
    original, calls = loop.compute_dev_scores, iter(range(1, 9))

    def fail_once(*arguments: Any) -> dict[str, float]:
        if next(calls) == failed:
            raise UserError("dev cannot be read")
        return original(*arguments)

    monkeypatch.setattr(loop, "compute_dev_scores", fail_once)
    with pytest.raises(UserError, match="dev cannot be read"):
        train(tiny_run(*settings))
    repaired = train(tiny_run(*settings))
    assert_equal_bits(whole, repaired)
    assert load_state(whole)["dev_scores"] == load_state(repaired)["dev_scores"]
    for kind in ("dev", "model"):
        ours, theirs = (read_log(tmp_path / name, kind) for name in ("whole", "run"))
        assert [(line["step"], line["loss"]) for line in ours] == [
            (line["step"], line["loss"]) for line in theirs
        ]
    whole_kept, kept = (find_checkpoints(tmp_path / name) for name in ("whole", "run"))
    assert [folder.name for folder in whole_kept] == [folder.name for folder in kept]
    states = [load_state(folders[-1]) for folders in (whole_kept, kept)]
    assert states[0]["best"] == states[1]["best"] and not states[1]["needs_validation"]


@pytest.mark.parametrize("name", ["train", "dev"])
def test_a_changed_manifest_is_refused(tiny_run: TinyRun, tones: Path, tmp_path: Path, name: str) -> None:
    utterances = list(read_manifest(tones / f"{name}.jsonl"))
    write_manifest(tmp_path / "own.jsonl", utterances)
    setting = f"data.{name}={tmp_path}/own.jsonl"
    train(tiny_run("train.steps=1", setting))
    write_manifest(tmp_path / "own.jsonl", utterances[::-1])
    with pytest.raises(UserError, match=rf"data\.{name}: the utterances have changed"):
        train(tiny_run("train.steps=2", setting))
    write_manifest(tmp_path / "own.jsonl", utterances)  # and again
    train(tiny_run("train.steps=2", setting))


def test_remains_of_a_killed_training_are_removed(tiny_run: TinyRun, tmp_path: Path) -> None:
    left = [tmp_path / "run" / "checkpoints" / ".step-00000006.123.tmp", tmp_path / "run" / ".model.7.tmp"]
    for folder in left:
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"half")
    for _ in range(2):
        train(tiny_run("train.steps=1"))
    assert not any(folder.exists() for folder in left)
    assert len(read_log(tmp_path / "run", "model")) == 1, "the end is made and logged again, not twice"


# --- what goes wrong ----------------------------------------------------------------------------


def test_training_continues_while_a_checkpoint_is_written(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint has the weights of its update, although they change meanwhile."""
    settings = ("train.steps=5", "train.validate_every=5", "train.keep_best=1")
    run_until_killed(monkeypatch, 4, lambda: train(tiny_run(f"output_dir={tmp_path}/whole", *settings)))
    write, update = checkpoint.save_file, Learner.update
    goes_on = threading.Event()

    def save_file(tensors: Any, path: Path) -> None:
        assert goes_on.wait(60)
        write(tensors, path)

    def update_then_write(self: Learner, batches: Sequence[Batch], step: int) -> Outcome:
        outcome = update(self, batches, step)
        if step == 3:
            assert not find_checkpoints(tmp_path / "run")
            goes_on.set()
        return outcome

    monkeypatch.setattr(checkpoint, "save_file", save_file)
    monkeypatch.setattr(Learner, "update", update_then_write)
    run_until_killed(monkeypatch, 4, lambda: train(tiny_run(*settings)))
    for name in ("model", "training"):
        files = [tmp_path / run / f"checkpoints/step-00000003/{name}.safetensors" for run in ("whole", "run")]
        assert_equal_bits(*files)


def test_full_disk_leaves_the_last_checkpoint(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = checkpoint.save_file

    def save_file(tensors: Any, path: Path) -> None:
        if "step-00000002" in str(path):
            Path(path).write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        original(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", save_file)
    with pytest.raises(UserError, match="No space left on device"):
        train(tiny_run("train.steps=2", "train.save_every=1"))
    assert [folder.name for folder in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000001"]


def test_command_line(tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_run()
    assert main(["train", str(tmp_path / "run.yaml"), "train.steps=1"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "run" / "model")
    assert loop.train  # the command runs the same loop
    assert (tmp_path / "run" / "learning_curve.png").read_bytes()[:4] == b"\x89PNG"
