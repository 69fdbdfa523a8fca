"""asr/train/probe.py: batches are tried, not computed, and with the lines that are printed every batch fits."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, strategies as st

from asr.batches import Batch
from asr.cli import main
from asr.errors import UserError
from asr.system import RunConfig
from asr.train import Process, TrainingData, prepare_system, probe

TinyRun = Callable[..., RunConfig]


@given(st.integers(0, 2 * probe.MAX_UTTERANCES))
def test_the_largest_count_is_found_to_a_sixteenth(limit: int) -> None:
    tried: list[int] = []

    def fits(count: int) -> bool:
        tried.append(count)
        return count <= limit

    found = probe.find_largest(fits)
    assert found <= limit and (found > 0 or limit == 0)
    assert limit - found <= max(1, found // 16) or found > probe.MAX_UTTERANCES // 2
    assert len(tried) <= 2 * math.log2(probe.MAX_UTTERANCES) + 2


def test_no_more_utterances_are_tried_than_there_are() -> None:
    assert [probe.find_largest(lambda _: True, most) for most in (1, 7, 48)] == [1, 7, 48]
    assert probe.find_largest(lambda count: count < 48, 48) in (46, 47)


def hold(frames: int, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """A memory for so many squared frames of attention; rows and frames of what is tried."""
    tried: list[tuple[int, int]] = []

    def fits(trainee: probe.Trainee, batch: Batch, count: int) -> bool:
        length = batch.features_BTF.size(1)
        tried.append((count, length))
        return count * length**2 <= frames

    monkeypatch.setattr(probe, "fits_in_process", fits)
    return tried


def test_every_batch_fits_with_the_lines_that_are_printed(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_run()
    frames = 30 * 100**2
    tried = hold(frames, monkeypatch)
    assert main(["train", str(tmp_path / "run.yaml"), "--probe", "--memory", "2"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# the largest batches in 2.0 GB of cpu:\n#   1.")
    lengths = list(dict.fromkeys(length for _, length in tried))
    assert len(lengths) >= 2 and lengths == sorted(lengths, reverse=True), "buckets, the longest first"
    settings = yaml.safe_load(printed)["batches"]
    assert set(settings) == {"max_seconds", "max_utterances", "max_utterance_seconds"}, (
        "the default is too long"
    )
    config = tiny_run(*(f"batches.{name}={value}" for name, value in settings.items()))
    process = Process(0, 1, torch.device("cpu"))
    for groups in TrainingData(prepare_system(config, process), process).epoch(0, 0):
        assert all(len(batch) * batch.features_BTF.size(1) ** 2 <= frames for batch in groups)
    assert not (tmp_path / "run" / "checkpoints").exists()
    hold(10**12, monkeypatch)
    assert yaml.safe_load(probe.probe(tiny_run(), 2))["batches"]["max_utterances"] == 48


def test_one_utterance_that_does_not_fit_is_said(tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(10, monkeypatch)
    with pytest.raises(
        UserError, match=r"an utterance of 1\.\d s alone does not fit in 2\.0 GB of cpu: lower"
    ):
        probe.probe(tiny_run(), 2)


@pytest.mark.parametrize("options", [["--memory", "2"], ["--probe", "--memory", "0"]])
def test_memory_is_for_probing(
    tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    tiny_run()
    assert main(["train", str(tmp_path / "run.yaml"), *options]) == 2
    assert "--memory: a number of gigabytes above 0, with --probe" in capsys.readouterr().err


def test_a_language_model_has_tokens(tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        probe, "fits_in_process", lambda trainee, batch, count: count * batch.tokens_BU.size(1) <= 400
    )
    (tmp_path / "run.yaml").write_text(
        f"{{output_dir: {tmp_path}/run, data: {{train: {tones}/train.jsonl, dev: {tones}/dev.jsonl}}, "
        "model: {type: language, dim: 16, num_layers: 1, num_heads: 2, feed_forward_dim: 16}, "
        "train: {select_by: loss, device: cpu}}"
    )
    settings = yaml.safe_load(probe.probe(RunConfig.load(tmp_path / "run.yaml"), 2))["batches"]
    assert set(settings) == {"max_tokens", "max_utterances"} and 360 <= settings["max_tokens"] <= 400


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "message"), [(os.abort, None), (sys.exit, "failed for another reason than memory")]
)
def test_an_attempt_that_ends_by_itself(ending: Callable[[], None], message: str | None) -> None:
    """Where memory is short, libraries abort the process instead of raising an error."""

    class Ending:
        def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
            return ending, ()

    trainee: Any = Ending()
    if message is None:
        assert not probe.fits_in_process(trainee, trainee, 1)
        return
    with pytest.raises(UserError, match=message):
        probe.fits_in_process(trainee, trainee, 1)


@pytest.mark.slow
def test_an_interruption_ends_the_attempt() -> None:
    class Endless:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            interrupt = f"os.kill({os.getpid()}, signal.SIGINT)"
            return exec, (f"import os, signal, time; time.sleep(2); {interrupt}; time.sleep(300)",)

    trainee: Any = Endless()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        probe.fits_in_process(trainee, trainee, 1)
    assert time.monotonic() - started < 200


@pytest.mark.slow
def test_more_memory_holds_larger_batches(tiny_run: TinyRun, tones: Path) -> None:
    """Really tried, within a limit of the system."""
    pytest.importorskip("resource")
    many = f"data.train=[{', '.join(100 * [f'{tones}/train.jsonl'])}]"  # more than fit
    found = []
    for memory in (0.2, 0.4):
        lines = probe.probe(tiny_run("train.threads=1", many), memory)
        found.append(yaml.safe_load(lines)["batches"]["max_seconds"])
    assert found[1] > 1.5 * found[0], "the first pass takes some of it for good"
