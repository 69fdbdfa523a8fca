"""Tar files of webdataset and of lhotse Shar: theirs are read where they lie, ours are opened by them."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from shard_examples import RATE, pack_noise

from asr.audio import reading as audio_files
from asr.cli import main
from asr.data import Manifest, read_audio, read_data
from asr.errors import UserError
from asr.shards import index_folder


def write_tar(path: Path, members: dict[str, bytes | str | dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            data = json.dumps(content) if isinstance(content, dict) else content
            data = data.encode() if isinstance(data, str) else data
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def noise(seconds: float = 0.2, format: str = "FLAC", channels: int = 1) -> tuple[np.ndarray, bytes]:
    shape = (int(RATE * seconds), channels)
    samples = np.random.default_rng(len(format)).integers(-3000, 3000, shape, dtype=np.int16)
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format=format, subtype="PCM_16")
    return samples / np.float32(32768), file.getvalue()


def test_samples_of_webdataset(tmp_path: Path) -> None:
    flac, wav = noise(), noise(0.3, "WAV")
    write_tar(
        tmp_path / "data/train-0.tar",
        {
            "a/0001.json": {"text": "ONE", "speaker_id": "s1", "snr": 3.5, "words": ["ONE"], "duration": 99},
            "a/0001.flac": flac[1],
            "LICENSE.txt": "none",
            "b.wav": wav[1],
            "b.txt": " TWO\n",
            "b.npy": b"x",
            "c.wav": wav[1],
        },
    )
    report = index_folder(tmp_path)
    first, second, third = items = list(read_data(tmp_path))
    assert not report.failures and [item.id for item in items] == ["a/0001", "b", "c"]
    assert (first.text, first.speaker, first.extras) == ("ONE", "s1", {"snr": 3.5})
    assert (first.duration, second.duration, second.text, third.text) == (0.2, 0.3, "TWO", None)
    assert np.array_equal(read_audio(first, RATE), flac[0][:, 0])
    assert np.array_equal(read_audio(second, RATE), wav[0][:, 0])


def test_bad_samples_are_named_and_stop_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = noise()[1]
    members: dict[str, Any] = {
        "a.flac": b"not audio", "b.flac": good, "b.json": "[1]", "c.flac": good, "c.txt": b"\xff", "d.wav": b"",
        "e f.flac": good, "g.flac": good, "g.txt": "ONE",
    }  # fmt: skip
    write_tar(tmp_path / "0.tar", members)
    write_tar(tmp_path / "1.tar", {"g.flac": good})
    assert main(["manifest", "index", str(tmp_path)]) == 1
    assert [item.id for item in read_data(tmp_path)] == ["g"]
    for message in ("a.flac: is text", "b.json is not a JSON object", "c.txt is not UTF-8", "d.wav: the file is empty",
                    "e f: ", "g stands there twice"):  # fmt: skip
        assert message in caplog.text, message


def test_what_is_not_a_plain_tar_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no \.tar file there"):
        index_folder(tmp_path)
    write_tar(tmp_path / "x.tar", {"a.flac": noise()[1]})
    (tmp_path / "a.tar").write_bytes(gzip.compress((tmp_path / "x.tar").read_bytes()))
    with pytest.raises(UserError, match=r"a\.tar: not a plain tar file"):
        index_folder(tmp_path)
    (tmp_path / "a.tar").rename(tmp_path / "a b.tar")
    with pytest.raises(UserError, match=r"a b\.tar: expected a name of letters"):
        index_folder(tmp_path)


def test_links_and_devices_are_passed_over(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE):
            info = tarfile.TarInfo("x.flac")
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
    with pytest.raises(UserError, match="no utterance in its tar files"):
        index_folder(tmp_path)


def write_shar(folder: Path, cuts: list[dict], audio: bytes, channels: list[int]) -> None:
    members: dict[str, Any] = {}
    for cut in cuts:
        members[f"{cut['id']}.flac"] = audio
        members[f"{cut['id']}.json"] = {"id": cut["id"], "sources": [], "channel_ids": channels}
    write_tar(folder / "recording.000000.tar", members)
    lines = "".join(json.dumps(cut) + "\n" for cut in cuts)
    (folder / "cuts.000000.jsonl.gz").write_bytes(gzip.compress(lines.encode()))


def test_cuts_of_shar(tmp_path: Path) -> None:
    """By hand: a second channel, two supervisions, and a cut that cannot be read."""
    samples, audio = noise(0.5, channels=2)
    cut = {"start": 0.1, "duration": 0.3, "channel": 1, "type": "MonoCut"}
    said = [
        {"id": "s1", "text": "ONE", "speaker": "x", "language": "en", "custom": {"snr": 3, "list": []}},
        {"id": "s2", "text": "TWO", "speaker": "x", "language": "de"},
    ]
    cuts = [{"id": "a.1", "supervisions": said} | cut, {"id": "b", "supervisions": []} | cut]
    write_shar(tmp_path / "shar", [*cuts, {"id": "c", "type": "PaddingCut"}], audio, [0, 1])
    write_tar(tmp_path / "shar/features.000000.tar", {"a.llc": b"x"})
    report = index_folder(tmp_path)
    first, second = read_data(tmp_path)
    assert (first.id, first.text, first.speaker, first.language) == ("a.1", "ONE TWO", "x", None)
    assert (first.start, first.duration, first.channel, first.extras) == (0.1, 0.3, 2, {"snr": 3})
    assert np.array_equal(read_audio(first, RATE), samples[1600:6400, 1])
    assert second.text is None
    assert [failure.id for failure in report.failures] == ["c"] and "PaddingCut" in report.failures[0].message


def test_cuts_that_do_not_belong_to_their_tar_file(tmp_path: Path) -> None:
    write_shar(tmp_path, [{"id": "a", "duration": 0.2, "type": "MonoCut"}], noise()[1], [0])
    (tmp_path / "cuts.000000.jsonl.gz").write_bytes(gzip.compress(b'{"id": "b", "type": "MonoCut"}\n'))
    with pytest.raises(UserError, match=r"a\.flac' stands where the cut 'b' of"):
        index_folder(tmp_path)


# --- the packages themselves ----------------------------------------------------------------------


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


@pytest.mark.slow
def test_we_read_what_webdataset_writes(manifest: Manifest, tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset", reason="the extra formats is not installed")
    with webdataset.ShardWriter(str(tmp_path / "train-%06d.tar"), maxcount=3) as writer:
        for item in manifest:
            audio = Path(item.audio).read_bytes()
            writer.write(
                {"__key__": item.id, "wav": audio, "json": {"text": item.text, "speaker": item.speaker}}
            )
    index_folder(tmp_path)
    require_same(tmp_path, manifest)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["flac", "wav"])
def test_we_read_what_lhotse_writes(manifest: Manifest, tmp_path: Path, format: str) -> None:
    lhotse = pytest.importorskip("lhotse", reason="the extra formats is not installed")
    cuts = []
    for item in manifest:
        cut = lhotse.Recording.from_file(item.audio, recording_id=item.id).to_cut()
        cut.id = item.id
        cut.supervisions = [
            lhotse.SupervisionSegment(
                id=item.id, recording_id=item.id, start=0, duration=item.duration, text=item.text, speaker="s"
            )
        ]
        cuts.append(cut)
    (tmp_path / "shar").mkdir()
    lhotse.CutSet.from_cuts(cuts).to_shar(tmp_path / "shar", fields={"recording": format}, shard_size=3)
    index_folder(tmp_path)
    require_same(tmp_path, manifest)


def require_same(folder: Path, manifest: Manifest) -> None:
    for item, expected in itertools.zip_longest(read_data(folder), manifest):
        assert (item.id, item.text, item.speaker) == (expected.id, expected.text, expected.speaker)
        assert item.duration == pytest.approx(expected.duration, abs=1e-3)
        assert np.array_equal(read_audio(item, RATE), audio_files.read(expected.audio, RATE))
