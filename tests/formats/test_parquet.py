"""Parquet tables with audio in their cells, as Hugging Face datasets publish them."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from asr.cli import main
from asr.data import Utterance, read_manifest
from asr.errors import UserError
from asr.formats import guess_source_kind, read_utterances

pyarrow = pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
from pyarrow import parquet  # noqa: E402


def make_audio(seconds: float, container: str = "WAV") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.full(round(seconds * 8000), 0.1), 8000, format=container)
    return file.getvalue()


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


ROWS = [
    {"file": "/home/x/1-2.flac", "audio": {"bytes": make_audio(0.5, "FLAC"), "path": "1-2.flac"}, "text": "A B",
     "speaker_id": 7, "id": "1-2", "words": [1, 2]},
    {"file": None, "audio": {"bytes": make_audio(0.25), "path": None}, "text": "C", "speaker_id": 8, "id": "1-2",
     "words": None},
]  # fmt: skip


def test_rows_become_utterances(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "data" / "train-0.parquet", ROWS)
    assert guess_source_kind(path) == guess_source_kind(path.parent) == "parquet"
    with caplog.at_level(logging.WARNING):
        assert main(["manifest", "convert", str(path.parent), str(tmp_path / "out.jsonl")]) == 0
    folder = tmp_path / "out.jsonl.audio"
    split = {"split": "train"}
    assert list(read_manifest(tmp_path / "out.jsonl")) == [
        Utterance(id="1-2", audio=f"{folder}/1-2.flac", duration=0.5, text="A B", speaker="7", extras=split),
        Utterance(
            id="1-2-2", audio=f"{folder}/1-2-2.wav", duration=0.25, text="C", speaker="8", extras=split
        ),
    ]
    assert (folder / "1-2.flac").read_bytes() == make_audio(0.5, "FLAC")
    assert "1 utterances lose 'words', a list or an object" in caplog.text


@pytest.mark.parametrize("target", ["mine/all.jsonl", "mine/kaldi", "all.jsonl"])
def test_targets_of_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("data/train-0.parquet", "data/test-0.parquet", f"{target}2/other.parquet"):
        write(Path(name), [ROWS[0] | {"id": name[5:10]}])
    assert main(["manifest", "convert", "data", target]) == 0
    found = list(read_utterances(target, guess_source_kind(target)))
    assert [Path(u.audio).read_bytes() for u in found] == [make_audio(0.5, "FLAC")] * 2
    assert {Path(u.audio).parent for u in found} == {tmp_path / f"{target}.audio"}
    if target != "mine/kaldi":
        assert [u.extras["split"] for u in found] == ["test", "train"]


def test_numbers_of_names_as_voxpopuli_has_them(tmp_path: Path) -> None:
    audio = {"bytes": make_audio(0.5), "path": "a/2018-en_1.wav"}
    row = {"audio": audio, "language": 1, "raw_text": "", "normalized_text": "we agree", "gender": -1}
    table = pyarrow.Table.from_pylist([row])
    names = {"language": {"names": ["en", "de"], "_type": "ClassLabel"}, "gender": {"names": ["f", "m"]}}
    content = json.dumps({"info": {"features": {"audio": {"_type": "Audio"}, **names}}})
    parquet.write_table(table.replace_schema_metadata({"huggingface": content}), tmp_path / "a.parquet")
    (found,) = read_utterances(tmp_path / "a.parquet", "parquet", audio_dir=tmp_path / "audio")
    assert (found.id, found.text, found.language, found.extras) == (
        "2018-en_1",
        "we agree",
        "de",
        {"raw_text": ""},
    )


def test_names_stay_in_their_folder(tmp_path: Path) -> None:
    names = ["../../up.wav", "/etc/passwd", "..", "a/b c.wav"]
    rows = [{"audio": {"bytes": make_audio(0.1), "path": name}, "sentence": name} for name in names]
    found = list(
        read_utterances(write(tmp_path / "a.parquet", rows), "parquet", audio_dir=tmp_path / "audio")
    )
    assert [Path(item.audio).name for item in found] == ["up.wav", "passwd.wav", "utterance.wav", "b_c.wav"]
    assert {Path(item.audio).parent for item in found} == {tmp_path / "audio"}


def test_a_cell_without_audio(tmp_path: Path) -> None:
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    table = pyarrow.table({"audio": pyarrow.array([{"bytes": None, "path": "a.wav"}], kind), "text": ["A"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(UserError, match="row 1: its audio is not in the table"):
        list(read_utterances(tmp_path / "a.parquet", "parquet", audio_dir=tmp_path / "audio"))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"audio": "a.wav", "text": "A"}], "expected one column of audio, each cell with bytes and path"),
        ([{"a": ROWS[0]["audio"], "b": ROWS[0]["audio"]}], "found a, b among a, b"),
    ],
)
def test_tables_without_audio(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    path = write(tmp_path / "a.parquet", rows)
    with pytest.raises(UserError, match=message):
        list(read_utterances(path, "parquet", audio_dir=tmp_path))


def test_damaged_tables(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", ROWS)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="not a whole Parquet table"):
        list(read_utterances(path, "parquet", audio_dir=tmp_path))
    with pytest.raises(UserError, match="holds audio; make a manifest of it first"):
        list(read_utterances(path, "parquet"))
