"""asr/train: resuming is exact, nothing is lost, and what goes wrong is survived or said."""

from __future__ import annotations

import errno
import io
import json
import logging
import math
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_examples import SYSTEMS, every_system
from safetensors.torch import load_file
from training_examples import assert_equal_bits, read_log, run_until_killed

import asr
from asr.batches import Batch
from asr.cli import main
from asr.data import read_manifest, write_manifest
from asr.errors import UserError
from asr.evaluation import END, Picture
from asr.models import SpeechModel
from asr.system import RunConfig, checkpoint, find_checkpoints, load_state, load_system
from asr.train import (
    Learner,
    Outcome,
    Process,
    TrainingData,
    choose_precision,
    dev_scores,
    halve_largest,
    learner as learner_module,
    loop,
    monitor,
    one_voice,
    prepare_system,
    train,
)

TinyRun = Callable[..., RunConfig]


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize(
    ("killed_at", "overrides"),
    [
        (4, ("train.steps=6",)),  # in the first epoch, a checkpoint behind
        pytest.param(  # while it widens
            4,
            ("train.steps=6", "model.guided_attention.prior={keep_updates: 2, end_updates: 5}"),
            marks=pytest.mark.slow,
        ),
        # In the second epoch, with averaged weights.
        pytest.param(8, ("train.steps=9", "train.average_decay=0.9"), marks=pytest.mark.slow),
        pytest.param(
            10,
            ("batches.num_workers=1", "train.accumulate=2", "model.exposure.replace=0.1"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            5,
            (
                *("train.steps=6", "model.decoder={type: intra_attention, dim: 16}"),
                "model.exposure.scheduled_sampling=0.2",
            ),
            marks=pytest.mark.slow,
        ),
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


@pytest.mark.parametrize(
    ("key", "overrides"),
    [
        ("data.train", ()),
        ("data.dev", ()),
        ("start_from", ()),
        ("augment.noise.recordings", ("augment.noise.kinds=[recorded]", "augment.noise.probability=1")),
    ],
)
def test_a_missing_file_is_named_by_its_setting(
    tiny_run: TinyRun, key: str, overrides: tuple[str, ...]
) -> None:
    with pytest.raises(UserError, match=rf"^{key} = no/such/file: not found \(seen from "):
        train(tiny_run(f"{key}=no/such/file", *overrides))


def send_signals(monkeypatch: pytest.MonkeyPatch, numbers: Sequence[int]) -> None:
    """During the fifth update."""
    original = Learner.update

    def update(self: Learner, batches: Sequence[Batch], step: int) -> Any:
        for number in numbers if step == 4 else ():
            os.kill(os.getpid(), number)
        return original(self, batches, step)

    monkeypatch.setattr(Learner, "update", update)


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (signal.SIGTERM, SystemExit),
        pytest.param(signal.SIGINT, KeyboardInterrupt, marks=pytest.mark.slow),
    ],
)
def test_termination_saves_and_resumes(
    tiny_run: TinyRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
    error: type[BaseException],
) -> None:
    whole = train(tiny_run(f"output_dir={tmp_path}/whole", "train.steps=6"))
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch, pytest.raises(error) as caught, caplog.at_level(logging.INFO):
        send_signals(patch, [number])
        train(tiny_run("train.steps=6"))
    assert number == signal.SIGINT or caught.value.code == 143
    assert "stopped and saved at update 5; the same command goes on from there" in caplog.text
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert find_checkpoints(tmp_path / "run")[-1].name == "step-00000005", "the update in progress is kept"
    assert_equal_bits(whole, train(tiny_run("train.steps=6")))


def test_a_second_interrupt_stops_at_once(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    send_signals(monkeypatch, [signal.SIGINT, signal.SIGINT])
    with pytest.raises(KeyboardInterrupt):
        train(tiny_run())
    assert find_checkpoints(tmp_path / "run")[-1].name == "step-00000003"
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
    """As in a notebook or a service, where no signal reaches it."""
    with ThreadPoolExecutor(1) as pool:
        folder = pool.submit(asr.train, tiny_run("train.steps=1")).result()
    assert load_state(folder)["step"] == 1


def test_an_interrupt_that_is_ignored_stays_so(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the trainings of a recipe, whose caller ends them after Ctrl-C."""
    send_signals(monkeypatch, [signal.SIGINT])
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        train(tiny_run("train.steps=6"))
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert read_log(tmp_path / "run", "dev")[-1]["step"] == 6


@pytest.mark.parametrize(
    ("number", "status"), [pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow), (signal.SIGINT, 130)]
)
def test_termination_of_the_whole_group(tiny_run: TinyRun, tmp_path: Path, number: int, status: int) -> None:
    """As a scheduler or a terminal does it: the signal reaches the processes that load data, too."""
    tiny_run()
    arguments = ["train", str(tmp_path / "run.yaml"), "train.steps=100000", "train.threads=1"]
    arguments += ["batches.num_workers=1", "train.log_every=1", "train.validate_every=100000"]
    arguments += ["train.save_every=100000"]
    messages = tmp_path / "messages"
    # A fork is quicker than a new interpreter, which would import torch first.
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
    assert "Traceback" not in said and "the same command goes on from there" in said
    assert len(find_checkpoints(tmp_path / "run")) == 1


def test_the_result_is_the_best_on_dev(tiny_run: TinyRun, tmp_path: Path) -> None:
    folder = train(tiny_run("train.validate_every=2", "train.select_by=loss"))
    dev = read_log(tmp_path / "run", "dev")
    best = sorted(line["loss"] for line in dev)[:2]
    kept = {path.name for path in find_checkpoints(tmp_path / "run")}
    assert kept == {f"step-{line['step']:08d}" for line in dev if line["loss"] in best} | {"step-00000012"}
    state = load_state(folder)
    assert state["dev_scores"]["loss"] <= best[0] + 1e-6
    system = load_system(folder)
    assert system.model.training is False and len(system.tokenizer) > 5


def test_a_model_that_has_learned_nothing_is_said(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    panels: dict[str, Any] = {}
    monkeypatch.setattr(monitor, "draw_learning_curve", lambda path, curves: panels.update(curves))
    asr.train(tiny_run("train.steps=1", "train.select_by=loss"))
    assert "WER on dev is 100.0 %" in caplog.text and "learning_curve.png" in caplog.text
    assert panels.keys() == {"loss", "wer"} and len(panels["wer"]["dev"]) == 1
    caplog.clear()
    loop.warn_of_nothing_learned({"loss": 1.0, "wer": 0.3}, tmp_path)
    loop.warn_of_nothing_learned({"loss": 1.0}, tmp_path)
    assert not caplog.text


def test_lines_have_the_time(tiny_run: TinyRun, tmp_path: Path) -> None:
    tiny_run()
    logging.getLogger().handlers, before = (
        [logging.StreamHandler(stream := io.StringIO())],
        (logging.getLogger().handlers),
    )
    try:
        main(["train", str(tmp_path / "run.yaml"), "train.steps=1"])
    finally:
        logging.getLogger().handlers = before
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d the model has", stream.getvalue(), re.MULTILINE)
    assert all("T" in line["time"] for line in read_log(tmp_path / "run", "dev"))


def test_patience_stops(tiny_run: TinyRun, tmp_path: Path) -> None:
    # A learning rate near zero: nothing gets better, and the first validation stays the best.
    train(
        tiny_run(
            "optim.learning_rate=1e-12", "train.validate_every=1", "train.patience=2", "train.select_by=wer"
        )
    )
    assert [line["step"] for line in read_log(tmp_path / "run", "dev")][-1] <= 4


@pytest.mark.slow
def test_log_tells_what_goes_on(tiny_run: TinyRun, tmp_path: Path) -> None:
    started = time.monotonic()
    train(tiny_run("train.steps=6", "train.validate_every=3", "train.plot_every=6"))
    lines = read_log(tmp_path / "run", "train")
    assert [line["step"] for line in lines] == [2, 4, 6]
    for name in ("loss", "ctc", "cross_entropy", "guided_attention", "attention_monotonic", "token_accuracy",
                 "learning_rate", "gradient_norm", "audio_seconds_per_second"):  # fmt: skip
        assert math.isfinite(lines[0][name]), name
    first, second = read_log(tmp_path / "run", "dev")
    assert {"loss", "wer", "cer", "wer_ctc", "wer_decoder"} <= first.keys()
    assert 0 < first["audio_hours"] < second["audio_hours"] < 0.1
    assert 0 < first["training_seconds"] < second["training_seconds"] < time.monotonic() - started
    pictures = list((tmp_path / "run" / "attention" / "step-00000006").glob("*.png"))
    assert pictures and all(picture.read_bytes()[:4] == b"\x89PNG" for picture in pictures)


@pytest.mark.parametrize(("name", "has_end"), [("transformer", True), ("parallel_length", False)])
def test_pictures_name_what_each_row_of_attention_belongs_to(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, has_end: bool
) -> None:
    process = Process(0, 1, torch.device("cpu"))
    system = prepare_system(tiny_run(f"model.decoder.type={name}"), process)
    batch = TrainingData(system, process).batch_to_plot()
    drawn: dict[Path, Picture] = {}
    monkeypatch.setattr(dev_scores, "draw", drawn.__setitem__)
    dev_scores.plot_dev_attention(system, batch, tmp_path, process)
    assert list(drawn) == [tmp_path / f"{id}.png" for id in batch.ids]
    _, lengths_B = system.model.encode(batch.features_BTF, batch.feature_lengths_B)
    for row, picture in enumerate(drawn.values()):
        tokens = [system.tokenizer.tokens[id] for id in system.tokenizer.encode(batch.texts[row])]
        assert picture.names == ([*tokens, END] if has_end else tokens)
        assert picture.rows.values_NT.shape == (len(picture.names), lengths_B[row])
        assert picture.rows.values_NT.sum(1) == pytest.approx(1, abs=1e-3), "attention adds up to one"


def test_error_rates_of_dev_are_those_of_all_utterances_together(
    tiny_run: TinyRun, tones: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(0, 1, torch.device("cpu"))
    system = prepare_system(tiny_run(), process)

    def decode(_: object, batch: Batch) -> dict[str, list[str]]:
        return {"ctc": [""] * len(batch), "decoder": [text.split()[0] for text in batch.texts]}

    monkeypatch.setattr(dev_scores, "decode_batch", decode)
    batches = TrainingData(system, process).dev_batches()
    scores = dev_scores.compute_dev_scores(system, batches, process)
    lengths = [len((utterance.text or "").split()) for utterance in read_manifest(tones / "dev.jsonl")]
    assert scores["wer_ctc"] == scores["cer_ctc"] == 1
    assert scores["wer"] == scores["wer_decoder"] == pytest.approx(1 - len(lengths) / sum(lengths))


def test_a_process_without_dev_batches_has_the_scores_of_all(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where there are fewer batches than processes."""
    process = Process(0, 1, torch.device("cpu"))
    system = prepare_system(tiny_run(), process)
    sums: list[list[float]] = []
    monkeypatch.setattr(
        dev_scores, "sum_over_processes", lambda values, process: sums.append(list(values)) or sums[0]
    )
    batches = TrainingData(system, process).dev_batches()
    scores = dev_scores.compute_dev_scores(system, batches, process)
    assert dev_scores.compute_dev_scores(system, [], process) == scores and sums[0] != sums[1]


def test_changed_settings_are_refused(tiny_run: TinyRun) -> None:
    train(tiny_run("train.steps=3"))
    with pytest.raises(UserError, match=r"other settings \(optim.learning_rate: 0.003 then, 0.1 now"):
        train(tiny_run("train.steps=3", "optim.learning_rate=0.1"))
    free = ("train.log_every=7", "batches.num_workers=1", "data.max_unknown=0.5", "train.save_every=1")
    free += ("train.validate_every=1", "train.keep_best=1", "train.plot_every=7", "train.patience=9")
    train(tiny_run("train.steps=3", *free))
    with pytest.raises(UserError, match=r"train.steps: 3 then, 2 now"):
        train(tiny_run("train.steps=2"))


# --- a training goes on -------------------------------------------------------------------------


def test_a_finished_training_is_extended(
    tiny_run: TinyRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With more updates than planned at first, it is the one that was planned with so many."""
    whole = train(tiny_run(f"output_dir={tmp_path}/whole", "train.steps=9", "train.validate_every=3"))
    train(tiny_run("train.steps=6", "train.validate_every=3"))
    with caplog.at_level(logging.INFO):
        assert_equal_bits(whole, train(tiny_run("train.steps=9", "train.validate_every=3")))
    assert "train.steps: 6 then, 9 now" in caplog.text
    warnings = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
    assert all("hardly learned" in message for message in warnings)
    assert [line["step"] for line in read_log(tmp_path / "run", "dev")] == [3, 6, 9]
    assert [line["step"] for line in read_log(tmp_path / "run", "model")] == [9]


def test_what_more_updates_do_is_said(
    tiny_run: TinyRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ("optim.schedule=cosine", "train.patience=1", "train.validate_every=1", "train.keep_best=1")
    settings += ("train.select_by=loss", "optim.learning_rate=1e-12")
    train(tiny_run("train.steps=5", *settings))
    reached = find_checkpoints(tmp_path / "run")[-1].name
    train(tiny_run("train.steps=50", *settings))
    assert "optim.schedule = cosine falls until the last update: stretched to 50 updates" in caplog.text
    if reached != "step-00000005":
        assert "dev has not been better for train.patience = 1 validations" in caplog.text


def test_a_run_and_its_data_may_move(tiny_run: TinyRun, tones: Path, tmp_path: Path) -> None:
    """Other paths to the same utterances, and other times of checkpoints, make the same model."""
    settings = ("train.select_by=updates", "train.keep_best=1")
    whole = train(tiny_run(f"output_dir={tmp_path}/whole", "train.steps=4", *settings))
    train(tiny_run("train.steps=2", *settings))
    (tmp_path / "run").rename(tmp_path / "moved")
    (tmp_path / "link").symlink_to(tones)
    moved = (f"output_dir={tmp_path}/moved", f"data.train=[{tmp_path}/link/train.jsonl]")
    assert_equal_bits(whole, train(tiny_run("train.steps=4", *moved, *settings)))


def test_one_broken_file_of_a_small_dev_set_stops_nothing(
    tiny_run: TinyRun, tones: Path, tmp_path: Path
) -> None:
    utterances = list(read_manifest(tones / "dev.jsonl"))
    utterances[0] = utterances[0].model_copy(update={"audio": str(tmp_path / "missing.wav")})
    write_manifest(tmp_path / "dev.jsonl", utterances)
    settings = ("train.steps=4", "train.validate_every=2", f"data.dev={tmp_path}/dev.jsonl")
    train(tiny_run(*settings))
    assert "missing.wav" in (tmp_path / "run" / "skipped.jsonl").read_text()


def test_a_validation_that_fails_loses_no_update(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise UserError("dev cannot be read")

    monkeypatch.setattr(loop, "compute_dev_scores", fail)
    for step in (2, 4):  # a restart goes on behind it
        with pytest.raises(UserError, match="dev cannot be read"):
            train(tiny_run("train.steps=5", "train.validate_every=2"))
        assert load_state(find_checkpoints(tmp_path / "run")[-1])["step"] == step


def test_a_changed_manifest_is_refused(tiny_run: TinyRun, tones: Path, tmp_path: Path) -> None:
    for name in ("train", "dev"):
        utterances = list(read_manifest(tones / f"{name}.jsonl"))
        write_manifest(tmp_path / f"{name}.jsonl", utterances)
    settings = [f"data.{name}={tmp_path}/{name}.jsonl" for name in ("train", "dev")]
    train(tiny_run("train.steps=2", *settings))
    write_manifest(tmp_path / "dev.jsonl", utterances)  # the same once more
    train(tiny_run("train.steps=3", *settings))
    for name in ("train", "dev"):
        utterances = list(read_manifest(tmp_path / f"{name}.jsonl"))
        write_manifest(tmp_path / f"{name}.jsonl", utterances[::-1])
        with pytest.raises(
            UserError, match=rf"data\.{name}: the utterances changed since the training of .* was started"
        ):
            train(tiny_run("train.steps=4", *settings))
        write_manifest(tmp_path / f"{name}.jsonl", utterances)


def change_checkpoint(folder: Path, change: Callable[[dict[str, Any]], object], accumulate: int) -> None:
    """Of a training with two batches to an update."""
    path = find_checkpoints(folder)[-1] / "state.json"
    state = json.loads(path.read_text())
    change(state)
    path.write_text(json.dumps(state))
    path = path.with_name("config.yaml")
    path.write_text(path.read_text().replace("accumulate: 2", f"accumulate: {accumulate}"))


@pytest.mark.slow
def test_one_process_goes_on_where_two_were(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes with a batch each make an update of two batches, of which one process takes both."""
    settings = ("train.steps=5", "batches.max_utterances=4", "train.keep_best=1")
    whole = train(tiny_run(f"output_dir={tmp_path}/whole", "train.accumulate=2", *settings))
    run_until_killed(monkeypatch, 4, lambda: train(tiny_run("train.accumulate=2", *settings)))
    change_checkpoint(tmp_path / "run", lambda state: state.update(first_world_size=2), accumulate=1)
    assert_equal_bits(whole, train(tiny_run("train.accumulate=1", *settings)))


@pytest.mark.parametrize(
    ("first", "accumulate", "now"),
    [
        (2, 1, 1),
        (4, 1, 3),
        (3, 2, 2),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 2, 4), (4, 1, 2), (2, 3, 4))),
    ],
)
def test_another_number_of_processes_learns_from_the_same_batches(
    tiny_run: TinyRun, first: int, accumulate: int, now: int
) -> None:
    """Update by update, from each update on: nothing of an epoch is lost, nothing comes twice."""
    system = prepare_system(
        tiny_run("batches.max_utterances=3", f"train.accumulate={accumulate}"),
        Process(0, 1, torch.device("cpu")),
    )

    def updates(world_size: int, batches_done: int) -> list[set[str]]:
        """The utterances of each, from all processes."""
        processes = [Process(rank, world_size, torch.device("cpu")) for rank in range(world_size)]
        epochs = [TrainingData(system, process, first).epoch(1, batches_done) for process in processes]
        return [
            {name for group in groups for batch in group for name in batch.ids}
            for groups in zip(*epochs, strict=True)
        ]

    expected = updates(first, 0)
    assert len(expected) > 2 and sum(map(len, expected)) == len(set().union(*expected))
    for done in range(len(expected) + 1):
        assert updates(now, done * first * accumulate) == expected[done:]


def test_processes_that_cannot_share_an_update_equally_are_said(
    tiny_run: TinyRun, caplog: pytest.LogCaptureFixture
) -> None:
    system = prepare_system(tiny_run("train.accumulate=3"), Process(0, 1, torch.device("cpu")))
    TrainingData(system, Process(0, 4, torch.device("cpu")), first_world_size=2)
    assert (
        "an update has 6 batches (2 processes at the start, train.accumulate = 3), which 4 proc"
        in caplog.text
    )


def test_what_a_killed_training_left_is_removed(tiny_run: TinyRun, tmp_path: Path) -> None:
    train(tiny_run("train.steps=3"))
    left = [tmp_path / "run" / "checkpoints" / ".step-00000006.123.tmp", tmp_path / "run" / ".model.7.tmp"]
    for folder in left:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
    train(tiny_run("train.steps=3"))
    assert not any(folder.exists() for folder in left)
    assert len(read_log(tmp_path / "run", "model")) == 1, "the end is made and logged again, not twice"


# --- what goes wrong ----------------------------------------------------------------------------


def spoil_losses(monkeypatch: pytest.MonkeyPatch, is_spoilt: Callable[[int], bool]) -> None:
    original = SpeechModel.forward

    def forward(self: SpeechModel, *arguments: Any) -> Any:
        losses = original(self, *arguments)
        step = arguments[4] if len(arguments) > 4 else -1
        return replace(losses, total=losses.total * math.nan) if self.training and is_spoilt(step) else losses

    monkeypatch.setattr(SpeechModel, "forward", forward)


def test_only_ctc_leaves_texts_out_that_have_more_tokens_than_steps(tiny_run: TinyRun) -> None:
    process, used = Process(0, 1, torch.device("cpu")), {}
    for weight, guided in ((0.3, "{}"), (0.0, "null")):
        config = tiny_run(
            "model.encoder.subsampling.factor=8",
            f"model.ctc_weight={weight}",
            f"model.guided_attention={guided}",
        )
        system = prepare_system(config, process)
        groups = TrainingData(system, process).epoch(0, 0)
        used[weight] = sum(len(batch) for group in groups for batch in group)
    assert 0 < used[0.3] < used[0.0] == 48


def test_a_bad_update_is_skipped_and_named(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spoil_losses(monkeypatch, lambda step: step in (3, 4))
    with caplog.at_level(logging.WARNING):
        folder = train(tiny_run("train.steps=6"))
    assert all(torch.isfinite(tensor).all() for tensor in weights_of(folder).values())
    messages = [record.getMessage() for record in caplog.records if "skipped:" in record.getMessage()]
    assert len(messages) == 2 and "train-" in messages[0] and "update 4 skipped: loss nan" in messages[0]
    assert sum(line["skipped_updates"] for line in read_log(tmp_path / "run", "train")) == 2


def test_losses_of_an_update_are_waited_for_once(tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, batches = make_learner(tiny_run())
    read: list[int] = []
    original = torch.stack

    def stack(tensors: Any, *rest: Any, **options: Any) -> torch.Tensor:
        if tensors[0].dtype == torch.float64 and tensors[0].ndim == 0:
            read.append(len(tensors))
        return original(tensors, *rest, **options)

    monkeypatch.setattr(torch, "stack", stack)
    sums = learner.update(batches[:3], 0).sums
    assert read == [len(sums)] and sums["total"] > 0


def test_too_many_bad_updates_stop(tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil_losses(monkeypatch, lambda step: step >= 5)
    monkeypatch.setattr(loop, "MAX_BAD_UPDATES", 3)
    with pytest.raises(UserError, match="3 updates in a row had no finite loss"):
        train(tiny_run())


def make_learner(config: RunConfig) -> tuple[Learner, list[Batch]]:
    process = Process(0, 1, torch.device("cpu"))
    torch.manual_seed(0)
    system = prepare_system(config, process)
    batches = [group[0] for group in TrainingData(system, process).epoch(0, 0)]
    return Learner(system.model, config, process, "float32"), batches


def test_gradients_travel_as_the_config_says(tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    dtypes: list[torch.dtype] = []
    monkeypatch.setattr(
        learner_module, "GradientSum", lambda parameters, process, dtype: dtypes.append(dtype)
    )
    for setting in ("float32", "bf16"):
        make_learner(tiny_run(f"train.reduce_dtype={setting}"))
    assert dtypes == [torch.float32, torch.bfloat16]


def test_trying_a_batch_changes_nothing(tiny_run: TinyRun) -> None:
    learner, batches = make_learner(tiny_run())
    before = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    assert 0 < learner.try_batch(batches[0]) < 60
    assert all(parameter.grad is None for parameter in learner.model.parameters())
    for name, tensor in learner.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_a_batch_of_broken_files_alone_changes_nothing(tiny_run: TinyRun) -> None:
    """Also as the first one in fp16, whose scaler has seen no gradient yet."""
    config = tiny_run()
    learner, batches = make_learner(config)
    learner = Learner(learner.model, config, learner.process, "fp16")
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
    """The masks depend on seed, update and process, and on nothing that a resume would have to restore."""
    settings = ("model.encoder.dropout=0.5", "model.decoder.dropout=0.5", "optim.learning_rate=1e-30")
    learner, batches = make_learner(tiny_run(*settings))

    def loss(step: int, rank: int = 0, seed: int = 0) -> float:
        learner.process = replace(learner.process, rank=rank)
        learner.config = tiny_run(*settings, f"seed={seed}")
        torch.rand(3)  # whatever drew numbers before
        return learner.update(batches[:1], step).sums["total"]

    losses = [loss(0), loss(1), loss(2), loss(1, rank=1), loss(1, seed=1)]
    assert len(set(losses)) == len(losses)
    assert [loss(0), loss(1), loss(2), loss(1, rank=1), loss(1, seed=1)] == losses
    learner, batches = make_learner(tiny_run(*settings))  # as after a resume
    assert loss(2) == losses[2]


def test_the_average_forgets_the_first_weights_within_the_first_updates(tiny_run: TinyRun) -> None:
    """Of update n, counted from 0, the old average keeps (1 + n) / (10 + n), at most average_decay."""
    learner, batches = make_learner(tiny_run("train.average_decay=0.6"))
    name, parameter = next(iter(learner.model.named_parameters()))
    assert learner.average is not None
    for step, kept in ((0, 1 / 10), (1, 2 / 11), (8, 9 / 18), (12, 13 / 22), (13, 0.6), (500, 0.6)):
        before = learner.average.weights[name].clone()
        learner.update(batches[:1], step)
        expected = kept * before + (1 - kept) * parameter.detach()
        torch.testing.assert_close(learner.average.weights[name], expected, rtol=0, atol=1e-6)
        assert not torch.equal(before, parameter.detach())


def test_want_of_memory_halves_the_batch(tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
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
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)  # the update moves all by 7.5e-4


def test_the_model_is_told_where_speech_was_before_the_masks(
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
    with pytest.raises(UserError, match=f"single utterance of .* s, {batches[0].ids[0]}: lower batches"):
        halve_largest(batches[:1])


def test_training_goes_on_while_a_checkpoint_is_written(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the weights of its own update, whatever becomes of them meanwhile."""
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
        if "step-00000006" in str(path) and path.name == "training.safetensors":
            Path(path).write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        original(tensors, path)

    with monkeypatch.context() as patch, pytest.raises(UserError, match="No space left on device"):
        patch.setattr(checkpoint, "save_file", save_file)
        train(tiny_run("train.steps=6"))
    folders = list((tmp_path / "run" / "checkpoints").iterdir())
    assert [folder.name for folder in folders] == ["step-00000003"]


# --- precision and processes --------------------------------------------------------------------


def test_compiling_on_a_cpu_is_refused(tiny_run: TinyRun) -> None:
    with pytest.raises(UserError, match="compiler fails on these models"):
        train(tiny_run("train.compile=true"))


@pytest.mark.parametrize(("instructions", "chosen"), [("amx_bf16", "bf16"), ("avx512_vnni", "float32")])
def test_precision_is_chosen_by_the_processor(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, instructions: str, chosen: str
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {instructions: True})
    process = Process(0, 1, torch.device("cpu"))
    assert choose_precision("auto", process) == chosen
    assert f"the CPU {'has' if chosen == 'bf16' else 'lacks'} fast bf16" in caplog.text
    assert [choose_precision(wanted, process) for wanted in ("float32", "fp16")] == ["float32", "fp16"]


def test_precision_of_unlike_processors_is_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    from asr.train import learner

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    monkeypatch.setattr(learner, "sum_over_processes", lambda values, process: list(values))  # the other: 0
    assert choose_precision("auto", Process(0, 2, torch.device("cpu"))) == "float32"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_trains(tiny_run: TinyRun, tmp_path: Path, precision: str) -> None:
    train(tiny_run(f"train.precision={precision}"))
    lines = read_log(tmp_path / "run", "train")
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert all(line["gradient_norm"] < 1000 for line in lines), "the scale of fp16 is taken off"


def run_two_processes(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "asr", "train", *arguments, "train.threads=1"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.slow  # now and then, gloo aborts a process that has done all its work and is about to end
def test_two_processes_equal_one(tiny_run: TinyRun, tmp_path: Path) -> None:
    """Two gloo processes, a batch each, against one process with two batches to an update; and one process that
    goes on where two were."""
    settings = [
        *("model.encoder.dropout=0.0", "model.decoder.dropout=0.0", "train.steps=6"),
        "batches.max_utterances=1",
    ]
    one = train(tiny_run("train.accumulate=2", *settings))
    conf = str(tmp_path / "run.yaml")
    done = run_two_processes([conf, f"output_dir={tmp_path}/two", *settings])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{tmp_path}/two/model"], "one process prints"
    assert done.stderr.count("M parameters") == 1, "one process speaks"
    done = run_two_processes([conf, f"output_dir={tmp_path}/both", *settings, "train.steps=3"])
    assert done.returncode == 0, done.stderr
    both = train(tiny_run(f"output_dir={tmp_path}/both", *settings))
    assert load_state(both)["batches_done"] == 12
    one_log = read_log(tmp_path / "run", "train")
    for folder in (tmp_path / "two", tmp_path / "both"):
        log = [line for line in read_log(folder, "train") if line["step"] != 3]
        assert [line["step"] for line in one_log] == [line["step"] for line in log]
        for ours, theirs in zip(one_log, log, strict=True):
            if folder.name == "two" or ours["step"] != 4:  # whose mean begins at the last line, of update 3
                assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        ours, theirs = (weights_of(find_checkpoints(run)[-1]) for run in (one.parent, folder))
        for name in ours:
            torch.testing.assert_close(ours[name], theirs[name], atol=1e-4, rtol=1e-4)


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
        said = done.stderr.partition("torch/distributed/elastic")[0]  # what follows is of torchrun itself
        assert [line for line in done.stderr.splitlines() if line.startswith("asr: ")] and message in said
        assert said.count("asr: ") == 1 and "in _train" not in done.stderr


def test_one_process_reports_an_error() -> None:
    """The first that meets it; a connection that breaks because of it is no news."""
    process = Process(1, 2, torch.device("cpu"))
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError, match="a fault of ours"), one_voice(process):
            raise RuntimeError("a fault of ours")
        with pytest.raises(UserError, match="bad input"), one_voice(process):
            raise UserError("bad input")
        for later in (UserError("bad input"), RuntimeError("Connection closed by peer")):
            with pytest.raises(SystemExit) as caught, one_voice(process):
                raise later
            assert caught.value.code == 2
    finally:
        torch.distributed.destroy_process_group()
    with pytest.raises(UserError), one_voice(Process(0, 1, torch.device("cpu"))):
        raise UserError("alone")


def test_only_the_first_process_reports_a_bad_config(
    tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_run()
    for rank, message in (("0", "unknown key"), ("1", "")):
        monkeypatch.setenv("RANK", rank)
        assert main(["train", str(tmp_path / "run.yaml"), "train.step=2"]) == 2
        assert message in (shown := capsys.readouterr().err) and bool(shown) == bool(message)


def test_command_line(tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_run()
    assert main(["train", str(tmp_path / "run.yaml"), "train.steps=2"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "run" / "model")
    assert loop.train  # the command is that loop
    assert (tmp_path / "run" / "learning_curve.png").read_bytes()[:4] == b"\x89PNG"


def test_from_python_progress_is_shown(
    tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the program has set up no logging, which pytest has."""
    monkeypatch.setattr(logging.getLogger("asr"), "propagate", False)
    tiny_run()
    folder = asr.train(tmp_path / "run.yaml", ["train.steps=2"])  # type: ignore[operator]
    shown = capsys.readouterr().err
    assert folder == tmp_path / "run" / "model" and "train 2: epoch 0, loss" in shown and "dev 2: " in shown
    assert not logging.getLogger("asr").handlers and logging.getLogger("asr").level == logging.NOTSET


def test_a_bar_on_a_terminal_counts_updates_and_is_not_broken_by_lines(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    config = tiny_run("train.steps=5", f"output_dir={tmp_path}")
    with monitor.Monitor(config, 3, is_main=True) as shown:
        shown.advance()
        shown.advance()
        shown.say("saved")
    assert "3/5" in terminal.getvalue() and "5/5" in terminal.getvalue()
    assert [line for line in terminal.getvalue().split("\r") if line.endswith(" saved\n")]


def test_the_learning_curve_is_that_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [("train", 1, {"loss": 3.0}), ("train", 2, {"loss": 2.0}), ("dev", 2, {"loss": 2.5, "wer": 0.5})]
    text = "".join(json.dumps({"step": step, "kind": kind} | values) + "\n" for kind, step, values in lines)
    (tmp_path / "log.jsonl").write_text(text)
    drawn: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(monitor, "draw_learning_curve", lambda path, panels: drawn.append(panels))
        for select_by in ("wer", "updates"):
            monitor.draw_log(tmp_path, select_by)
    losses = {"train": [(1, 3.0), (2, 2.0)], "dev": [(2, 2.5)]}
    assert drawn == 2 * [{"loss": losses, "wer": {"dev": [(2, 0.5)]}}]
    (tmp_path / "learning_curve.png").mkdir()
    monitor.draw_log(tmp_path, "wer")
    assert "not a regular file" in caplog.text, "a picture that fails stops nothing"


def test_a_training_starts_from_another(tiny_run: TinyRun, tmp_path: Path) -> None:
    first = tiny_run(f"output_dir={tmp_path}/first", "train.steps=4")
    train(first)
    second = tiny_run(
        f"output_dir={tmp_path}/second",
        f"start_from={first.output_dir}",
        "optim.learning_rate=1e-12",
        "train.steps=1",
    )
    train(second)
    for name, weight in weights_of(Path(first.output_dir) / "model").items():
        assert torch.allclose(weight, weights_of(Path(second.output_dir) / "model")[name], atol=1e-6), name
    assert (
        load_system(Path(second.output_dir) / "model").tokenizer
        == load_system(Path(first.output_dir) / "model").tokenizer
    )


@pytest.mark.slow
def test_a_training_goes_on_without_the_one_it_started_from(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tiny_run(f"output_dir={tmp_path}/first", "train.steps=2")
    train(first)
    settings = ("train.steps=6", f"start_from={first.output_dir}")
    whole = tiny_run(f"output_dir={tmp_path}/whole", *settings)
    train(whole)
    cut = tiny_run(f"output_dir={tmp_path}/cut", *settings)
    run_until_killed(monkeypatch, 4, lambda: train(cut))
    shutil.rmtree(first.output_dir)
    train(cut)
    assert_equal_bits(Path(whole.output_dir) / "model", Path(whole.output_dir).with_name("cut") / "model")


def test_what_a_training_cannot_start_from(tiny_run: TinyRun, tmp_path: Path) -> None:
    first, first_process = tiny_run(f"output_dir={tmp_path}/first"), Process(0, 1, torch.device("cpu"))
    system = prepare_system(first, first_process)
    checkpoint.save_checkpoint(tmp_path / "first" / "model", system, {})
    start = f"start_from={first.output_dir}"
    with pytest.raises(UserError, match="no model here"):
        train(tiny_run(f"output_dir={tmp_path}/none", f"start_from={tmp_path}"))
    for settings, message in (
        (["features.num_mels=23"], r"config.yaml: features.num_mels = 20 there, 23 here. Make that the same"),
        (
            ["tokenizer={type: bpe, vocab_size: 20}"],
            r"tokenizer.type = characters there, bpe here; .*keep_token",
        ),
        (
            ["model.encoder.dim=24"],
            r"do not fit this model \(encoder.* here\); .*: model.encoder.dim = 32 there",
        ),
        (["keep_tokenizer=false", "model.decoder.dim=24"], r"model.decoder.dim = 32 there, 24 here"),
    ):
        with pytest.raises(UserError, match=message):
            prepare_system(tiny_run(f"output_dir={tmp_path}/new", start, *settings), first_process)
        shutil.rmtree(tmp_path / "new")
    with pytest.raises(UserError, match="keep_tokenizer = false is about the tokenizer of start_from"):
        tiny_run("keep_tokenizer=false")


def test_a_training_starts_from_another_with_a_tokenizer_of_its_own(
    tiny_run: TinyRun, tones: Path, tmp_path: Path
) -> None:
    """The encoder and the inner layers of the decoder stay; what has a row for each token is new."""
    process = Process(0, 1, torch.device("cpu"))
    source = prepare_system(tiny_run(f"output_dir={tmp_path}/first"), process)
    checkpoint.save_checkpoint(tmp_path / "first" / "model", source, {})
    for name in ("train", "dev"):
        utterances = read_manifest(tones / f"{name}.jsonl")
        others = [item.model_copy(update={"text": "один два"}) for item in utterances]
        write_manifest(tmp_path / f"{name}.jsonl", others)
    config = tiny_run(
        *(f"data.{name}={tmp_path}/{name}.jsonl" for name in ("train", "dev")),
        *(f"start_from={tmp_path}/first", "keep_tokenizer=false", "train.steps=1"),
    )
    torch.manual_seed(1)
    system = prepare_system(config, process)
    assert set(system.tokenizer.tokens[5:]) == set("один два")
    old, new = source.model.state_dict(), system.model.state_dict()
    changed = {
        name for name in new if new[name].shape != old[name].shape or not torch.equal(new[name], old[name])
    }
    assert changed == {
        *("ctc_head.weight", "ctc_head.bias"),
        *("decoder.embedding.weight", "decoder.output.weight", "decoder.output.bias"),
    }
    assert load_system(train(config)).tokenizer == system.tokenizer


def test_means_and_speeds_since_the_last_line() -> None:
    log = monitor.Averages()
    for tokens, seconds, is_finite in ((4.0, 0.5, True), (6.0, 1.5, True), (9.0, 2.0, False)):
        sums = {"total": 2 * tokens}
        log.add(
            Outcome(is_finite, sums, tokens, audio_seconds=tokens, gradient_norm=3.0, learning_rate=0.1),
            seconds,
        )
    found = log.take()
    assert found["skipped_updates"] == 1 and found["gradient_norm"] == 3.0
    assert found["tokens_per_second"] == pytest.approx(10 / 4)
    assert found["audio_seconds_per_second"] == pytest.approx(19 / 4)
