"""Training and evaluation on shards: as on a manifest, and resumed exactly in the middle of an epoch."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from shard_examples import set_window
from training_examples import TinyRun, assert_equal_bits, read_log, run_until_killed

from asr.data import Manifest, read_data, write_manifest
from asr.errors import UserError
from asr.evaluation.speech import read_references
from asr.families import find_checkpoints
from asr.shards.packing import PackSettings, pack
from asr.system.system import load_state
from asr.train.loop import train


@pytest.fixture(scope="module")
def shards(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus of tones: train in 6 shards, dev in 2, and manifests in the order of these."""
    folder = tmp_path_factory.mktemp("shards")
    for split, count in (("train", 6), ("dev", 2)):
        manifest = Manifest.open(tones / f"{split}.jsonl")
        hours = manifest.durations.sum() / 3600 / count * 1.0001
        pack(manifest, folder / split, PackSettings("copy", hours=float(hours)))
        corpus = {item.id: item for item in manifest}
        write_manifest(folder / f"{split}.jsonl", [corpus[item.id] for item in read_data(folder / split)])
    return folder


def on(path: object, *overrides: str) -> list[str]:
    return [f"data.train={path}/train", f"data.dev={path}/dev", *overrides]


def test_manifests_and_shards_do_not_mix(tiny_run: TinyRun, shards: Path) -> None:
    with pytest.raises(UserError, match="manifests and folders of shards cannot be mixed"):
        train(tiny_run(f"data.train=[{shards}/train, {shards}/train.jsonl]"))


@pytest.mark.parametrize(("killed_at", "window"), [pytest.param(4, 0, marks=pytest.mark.slow), (11, 2)])
def test_resuming_in_mid_epoch_is_exact(
    tiny_run: TinyRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shards: Path,
    killed_at: int,
    window: int,
) -> None:
    set_window(monkeypatch, 2)
    settings = on(shards, "train.steps=14")
    whole = train(tiny_run(f"output_dir={tmp_path}/whole", *settings))
    run_until_killed(monkeypatch, killed_at, lambda: train(tiny_run(*settings)))
    state = load_state(find_checkpoints(tmp_path / "run")[-1])
    assert state["step"] == killed_at // 3 * 3 and state["batches_done"] > 0
    assert state["window"][0] == window, "from which on the resume reads"
    assert_equal_bits(whole, train(tiny_run(*settings)))
    logs = [read_log(tmp_path / name, "train") for name in ("whole", "run")]
    assert [line["step"] for line in logs[0]] == [line["step"] for line in logs[1]]


@pytest.mark.slow
def test_other_shards_are_refused_by_a_resume(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tones: Path
) -> None:
    manifest = Manifest.open(tones / "train.jsonl")
    pack(manifest, tmp_path / "train", PackSettings("copy"))
    settings = [f"data.train={tmp_path}/train"]
    run_until_killed(monkeypatch, 4, lambda: train(tiny_run(*settings)))
    shutil.rmtree(tmp_path / "train")
    pack(manifest, tmp_path / "train", PackSettings("copy", seed=1))
    with pytest.raises(UserError, match="changed since the training of"):
        train(tiny_run(*settings))


def test_references_are_read_from_shards(shards: Path) -> None:
    expected = read_references(shards / "dev.jsonl")
    found = read_references(shards / "dev")
    assert [(item.id, item.text) for item in found] == [(item.id, item.text) for item in expected]
