"""asr/train/distributed.py: weights that are shared out among processes learn what they learn in one piece."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_examples import read_log

from asr.errors import UserError
from asr.system import RunConfig
from asr.train import shard_model, train

SETTINGS = ("model.encoder.dropout=0.0", "model.decoder.dropout=0.0", "batches.max_utterances=2",
            "train.average_decay=0.9", "train.log_every=1", "train.threads=1")  # fmt: skip


def run(conf: Path, folder: Path, processes: int, *settings: str) -> None:
    """In a folder of its own, where output_dir has the same name as elsewhere."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += ["-m", "asr", "train", str(conf), "output_dir=run", *SETTINGS, *settings]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_sharded_training_is_the_same_and_goes_on_anywhere(
    tiny_run: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two processes, then in three, of which one has nothing to learn from, or in one."""
    tiny_run()
    conf = tmp_path / "run.yaml"
    run(conf, tmp_path / "plain", 2, "train.steps=4")
    run(conf, tmp_path / "three", 2, "train.steps=3", "train.sharded=true")
    parts = sorted(
        path.name for path in (tmp_path / "three/run/checkpoints/step-00000003").glob("*.safetensors")
    )
    assert parts == [f"{name}-0000{i}-of-00002.safetensors" for name in ("model", "training") for i in (0, 1)]
    subprocess.run(["cp", "-r", "three", "one"], cwd=tmp_path, check=True)
    run(conf, tmp_path / "three", 3, "train.steps=4", "train.sharded=true")
    monkeypatch.chdir(tmp_path / "one")
    train(tiny_run("output_dir=run", *SETTINGS, "train.steps=4"))
    expected = load_file(tmp_path / "plain/run/model/model.safetensors")
    losses = [line["loss"] for line in read_log(tmp_path / "plain" / "run", "train")]
    for name in ("three", "one"):
        log = read_log(tmp_path / name / "run", "train")
        assert [line["loss"] for line in log] == pytest.approx(losses, rel=1e-4)
        found = load_file(tmp_path / name / "run" / "model" / "model.safetensors")
        assert found.keys() == expected.keys()
        for key, tensor in expected.items():
            torch.testing.assert_close(found[key], tensor, atol=1e-4, rtol=1e-4)


def test_what_does_not_go_with_it(tiny_run: Callable[..., RunConfig]) -> None:
    with pytest.raises(UserError, match=r"train\.precision"):
        shard_model(torch.nn.Linear(2, 2), tiny_run("train.precision=fp16").train)
