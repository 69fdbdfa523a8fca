"""Packing: every utterance once with all its samples, resumed by a second run; bad files are reported."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, strategies as st
from shard_examples import RATE, pack_noise, write_noise

from asr.audio import reading as audio_files
from asr.cli import main
from asr.data import Manifest, Utterance, read_audio, read_data, write_manifest
from asr.errors import UserError
from asr.shards import packing
from asr.shards.packing import PackSettings, deal, make_key, pack
from asr.shards.shards import ShardFolder


def hash_all(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("encoding", ["flac", "copy"])
def test_every_utterance_is_read_back_unchanged(manifest: Manifest, tmp_path: Path, encoding: str) -> None:
    folder = pack_noise(manifest, tmp_path, 3, encoding=encoding)
    assert 3 <= len(folder.shards) <= 4
    expected = {item.id: item for item in manifest}
    for item in read_data(tmp_path):
        before = expected.pop(item.id)
        assert item.model_dump(exclude={"audio", "offset", "size", "shard", "version"}) == before.model_dump(
            exclude={"audio"}
        )
        assert np.array_equal(read_audio(item, RATE), audio_files.read(before.audio, RATE))
    assert not expected


def test_members_are_what_webdataset_expects(manifest: Manifest, tmp_path: Path) -> None:
    """Python's tar reader finds <id>.flac, then <id>.json, and no other kind of member."""
    pack_noise(manifest, tmp_path, 1)
    with tarfile.open(tmp_path / "shard-000000.tar") as tar:
        members = tar.getmembers()
        assert all(member.isreg() for member in members)
        names = [member.name for member in members]
        stems = [name.removesuffix(".flac") for name in names[::2]]
        assert names[1::2] == [f"{stem}.json" for stem in stems]
        assert sorted(stems) == [item.id for item in manifest]
        record = json.load(tar.extractfile(members[1]))  # type: ignore[arg-type]
        assert record["id"] == stems[0] and record["text"] and record["audio"] == names[0]


def test_parts_of_recordings_are_cut_out(tmp_path: Path) -> None:
    stereo = np.random.default_rng(0).integers(-3000, 3000, (RATE, 2), dtype=np.int16)
    soundfile.write(tmp_path / "long.wav", stereo, RATE)
    part = {"audio": str(tmp_path / "long.wav"), "start": 0.25, "duration": 0.5}
    items = [
        Utterance(id="left", channel=1, **part), Utterance(id="right", channel=2, **part),
        Utterance(id="whole", audio=part["audio"], duration=1.0, channel=2),
    ]  # fmt: skip
    write_manifest(tmp_path / "m.jsonl", items)
    pack(Manifest.open(tmp_path / "m.jsonl"), tmp_path / "shards", PackSettings("copy"))
    found = {item.id: item for item in read_data(tmp_path / "shards")}
    for name, channel in (("left", 0), ("right", 1)):
        assert found[name].start == 0 and found[name].channel is None
        assert np.array_equal(
            read_audio(found[name], RATE), stereo[RATE // 4 : 3 * RATE // 4, channel] / 32768
        )
    assert found["whole"].audio.endswith(".wav") and found["whole"].channel == 2
    assert np.array_equal(read_audio(found["whole"], RATE), stereo[:, 1] / 32768)


def test_a_second_run_resumes_with_the_same_result(
    manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_noise(manifest, tmp_path / "whole", 4)
    written: list[int] = []
    original = packing.write_shard

    def write(*args: object) -> object:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(args[2])  # type: ignore[arg-type]
        return original(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(packing, "write_shard", write)
        pack_noise(manifest, tmp_path / "cut", 4)
    with pytest.raises(UserError, match=r"2 of [45] shards exist; `asr manifest pack` continues"):
        ShardFolder(tmp_path / "cut")
    with open(tmp_path / "cut" / "index.jsonl", "ab") as file:
        file.write(b'{"name": "shard-0000')  # as left by a kill in the middle of a line
    (tmp_path / "cut" / ".shard-000002.tar.4711.tmp").write_bytes(b"as a kill in the middle of a shard does")
    first = tmp_path / "cut" / "shard-000000.tar"
    stamp = first.stat().st_mtime_ns
    pack_noise(manifest, tmp_path / "cut", 4)
    assert first.stat().st_mtime_ns == stamp
    assert hash_all(tmp_path / "cut") == hash_all(tmp_path / "whole")
    first.write_bytes(b"cut short")
    pack_noise(manifest, tmp_path / "cut", 4)
    assert hash_all(tmp_path / "cut") == hash_all(tmp_path / "whole")


def test_shards_of_another_packing_are_not_mixed_with_new_ones(manifest: Manifest, tmp_path: Path) -> None:
    """webdataset and lhotse would read both."""
    folder, total = tmp_path / "one", float(manifest.durations.sum()) / 3600
    pack(manifest, folder, PackSettings(hours=total / 3))
    before = hash_all(folder)

    for settings in (PackSettings(), PackSettings("copy", hours=total / 3), PackSettings(hours=total / 3)):
        if settings.hours < 8 and settings.encoding == "flac":  # foreign shards
            (folder / "index.jsonl").unlink()
            before.pop("index.jsonl")
        with pytest.raises(UserError, match=r"one: contains other shards, such as shard-000000.tar; delete"):
            pack(manifest, folder, settings)
        assert hash_all(folder) == before


def test_bad_files_are_reported_and_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    manifest = write_noise(tmp_path / "corpus", 5)
    Path(manifest[1].audio).write_bytes(b"RIFF, but not really")
    Path(manifest[3].audio).unlink()
    status = main(["manifest", "pack", str(tmp_path / "corpus/train.jsonl"), str(tmp_path / "shards")])
    assert status == 1
    assert "3 utterances, 0.00 hours in 1 shards" in capsys.readouterr().out
    assert {item.id for item in read_data(tmp_path / "shards")} == {"u000", "u002", "u004"}
    [shard] = ShardFolder(tmp_path / "shards").shards
    assert {failure.id for failure in shard.info.failed} == {"u001", "u003"}
    for item in list(manifest):
        Path(item.audio).unlink(missing_ok=True)
    with pytest.raises(UserError, match=r"none of its 5 utterances could be packed; .*cannot read the file"):
        pack(manifest, tmp_path / "none", PackSettings())


def test_duplicate_ids_are_refused(manifest: Manifest, tmp_path: Path) -> None:
    write_manifest(tmp_path / "twice.jsonl", [*manifest, manifest[4]])
    with pytest.raises(UserError, match="duplicate id u004"):
        pack(Manifest.open(tmp_path / "twice.jsonl"), tmp_path / "shards", PackSettings())


@given(st.lists(st.floats(0.1, 30), min_size=1, max_size=60), st.floats(0.001, 0.1), st.integers(0, 9))
def test_each_utterance_is_in_one_shard_of_the_set_duration(
    seconds: list[float], hours: float, seed: int
) -> None:
    durations = np.array(seconds)
    parts = deal(durations, PackSettings(hours=hours, seed=seed))
    assert sorted(np.concatenate(parts)) == list(range(len(seconds)))
    assert all(durations[part].sum() <= hours * 3600 + 30 for part in parts)


@given(st.text(st.characters(blacklist_categories=("Cc", "Cs", "Zs", "Zl", "Zp")), min_size=1, max_size=200))
def test_keys_are_safe_file_names(name: str) -> None:
    key = make_key(name)
    assert len(key) <= packing.MAX_KEY_LENGTH
    assert not set(key) & set("./\\~") and key.isascii()
    assert key == name or make_key(name + "x") != key


def test_hostile_ids_stay_inside(tmp_path: Path) -> None:
    manifest = write_noise(tmp_path / "corpus", 1)
    items = [
        manifest[0].model_copy(update={"id": name})
        for name in ("../../etc/passwd", "/etc/x", "a.b", "ü" * 150)
    ]
    write_manifest(tmp_path / "m.jsonl", items)
    pack(Manifest.open(tmp_path / "m.jsonl"), tmp_path / "shards", PackSettings())
    assert {item.id for item in read_data(tmp_path / "shards")} == {item.id for item in items}
    [path] = (tmp_path / "shards").rglob("*.tar")
    with tarfile.open(path) as tar:
        assert not any("/" in name or ".." in name for name in tar.getnames())


@pytest.mark.slow
def test_webdataset_opens_ours(manifest: Manifest, tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset", reason="the extra formats is not installed")
    pack_noise(manifest, tmp_path, 2)
    paths = [str(path) for path in sorted(tmp_path.glob("shard-*.tar"))]
    samples = list(webdataset.WebDataset(paths, shardshuffle=False).decode())
    expected = {item.id: item for item in manifest}
    assert len(samples) == len(expected)
    for sample in samples:
        item = expected.pop(sample["__key__"])
        assert sample["json"]["text"] == item.text and sample["json"]["duration"] == item.duration
        audio, rate = soundfile.read(io.BytesIO(sample["flac"]), dtype="float32")
        assert rate == RATE and np.array_equal(audio, audio_files.read(item.audio, RATE))
