"""Manifests as lhotse 1.33 writes them; the real package writes the same where it is installed."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from asr.data import Utterance
from asr.errors import UserError
from asr.formats import guess_source_kind, read_utterances

RECORDING = {
    "id": "call",
    "sources": [{"type": "file", "channels": [0, 1], "source": "/data/call.wav"}],
    "sampling_rate": 8000,
    "num_samples": 80000,
    "duration": 10.0,
    "channel_ids": [0, 1],
}
SUPERVISION = {
    "id": "call-1", "recording_id": "call", "start": 0.5, "duration": 1.25, "channel": 1, "text": "yes",
    "language": "en", "speaker": "bob", "gender": "m", "custom": {"score": 0.5, "list": [1]},
}  # fmt: skip
CUT = {
    "id": "cut-1", "start": 2.0, "duration": 3.0, "channel": 1, "supervisions": [SUPERVISION],
    "recording": RECORDING, "type": "MonoCut",
}  # fmt: skip


def write(path: Path, *records: dict[str, Any]) -> Path:
    lines = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)
    return path


def read(path: Path) -> list[Utterance]:
    assert guess_source_kind(path) == "lhotse"
    return list(read_utterances(path, "lhotse"))


def test_cuts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mixed = {"id": "mix", "type": "MixedCut", "tracks": []}
    no_text = CUT | {"id": "cut-2", "supervisions": [], "start": 6.0}
    with caplog.at_level(logging.WARNING):
        found = read(write(tmp_path / "cuts.jsonl.gz", CUT, no_text, mixed))
    assert found == [
        Utterance(
            id="call-1", audio="/data/call.wav", start=2.5, duration=1.25, channel=2, text="yes",
            speaker="bob", language="en", extras={"score": 0.5},
        ),
        Utterance(id="cut-2", audio="/data/call.wav", start=6.0, duration=3.0, channel=2),
    ]  # fmt: skip
    assert "1 utterances lose 'custom.list'" in caplog.text
    assert "1 utterances are left out, as MixedCut without a recording" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": [{"type": "command", "channels": [1], "source": "rm x"}]}, "'command' is not opened"),
        ({"sources": [{"type": "url", "channels": [1], "source": "http://x"}]}, "'url' is not opened"),
        ({"sources": [{"type": "file", "channels": [0], "source": "a"}]}, r"has no file with channel"),
        ({"sources": "a"}, r"has no file with channel"),
        ({"transforms": [{"name": "Speed"}]}, "has transforms"),
    ],
)
def test_what_is_not_opened(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "cuts.jsonl", CUT | {"recording": RECORDING | change})
    with pytest.raises(UserError, match=message):
        read(path)


def test_paths_of_audio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the cuts, or from the current folder on."""
    sources = [{"type": "file", "channels": [c], "source": f"wav/call.{c}.wav"} for c in (0, 1)]
    path = write(tmp_path / "cuts.jsonl", CUT | {"recording": RECORDING | {"sources": sources}})
    monkeypatch.chdir(tmp_path.parent)
    (found,) = read(path)
    assert (found.audio, found.channel) == (str(tmp_path.parent / "wav/call.1.wav"), None)
    (tmp_path / "wav").mkdir()
    (tmp_path / "wav/call.1.wav").touch()
    assert read(path)[0].audio == str(tmp_path / "wav/call.1.wav")


def test_what_is_wrong(tmp_path: Path) -> None:
    path = write(tmp_path / "cuts.jsonl", CUT, CUT | {"start": "a"})
    with pytest.raises(UserError, match=r"cuts\.jsonl:2: cut 'cut-1': expected supervisions, and starts"):
        read(path)


def test_those_of_the_real_package(tmp_path: Path) -> None:
    lhotse = pytest.importorskip("lhotse", reason="the extra formats is not installed")
    segments = lhotse.SupervisionSet.from_segments([lhotse.SupervisionSegment.from_dict(SUPERVISION)])
    recordings = lhotse.RecordingSet.from_recordings([lhotse.Recording.from_dict(RECORDING)])
    cuts = lhotse.CutSet.from_manifests(recordings=recordings, supervisions=segments)
    cuts.to_file(tmp_path / "cuts.jsonl.gz")
    cuts.trim_to_supervisions(keep_overlapping=False).to_file(tmp_path / "trimmed.jsonl.gz")
    found = read(tmp_path / "cuts.jsonl.gz")
    assert [utterance.start for utterance in found] == [0.5]
    assert read(tmp_path / "trimmed.jsonl.gz") == found
