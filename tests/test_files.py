"""asr/files.py: a written file is complete, or the old file is unchanged."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.cli import main
from asr.errors import UserError
from asr.files import claim_folder, replace_file, unpack

ROOT = Path(__file__).resolve().parent.parent


def test_the_new_file_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "file"
    for content in (b"first", b"second"):
        with replace_file(path) as file:
            file.write(content)
            assert not path.exists() or path.read_bytes() != content, "nothing is seen before the end"
        assert path.read_bytes() == content
    assert os.listdir(path.parent) == ["file"]


def test_an_error_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), replace_file(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with replace_file(tmp_path / "link") as file:
        file.write(b"content")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.parametrize("place", ["folder", "file/below", "/proc/nowhere/file", "/dev/null"])
def test_places_that_cannot_be_written_to(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    path = tmp_path / place
    with pytest.raises(UserError) as caught, replace_file(path):
        pass
    assert str(path) in str(caught.value)


CLAIM = """
import sys
from asr.files import claim_folder
with claim_folder(sys.argv[1]):
    print("claimed", flush=True)
    sys.stdin.read()
"""


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", CLAIM, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "claimed\n"
        with pytest.raises(UserError, match="another process is writing there"), claim_folder(folder):
            pass
        other.kill()
    with claim_folder(folder):
        for _ in range(2):
            with pytest.raises(UserError, match="another process is writing there"), claim_folder(folder):
                pass
        assert not subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL).stdout
    with pytest.raises(OSError, match="disk"), claim_folder(folder):  # a killed one claims nothing
        raise OSError("disk")  # what goes wrong within is not blamed on the claim


def read_packed(path: Path) -> bytes:
    with open(path, "rb") as file:
        return unpack(file, path).read()


@pytest.mark.parametrize("content", [b"", b"x", b"one\ntwo\n" * 100_000])
def test_gzip_is_unpacked_and_other_files_stay(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    assert read_packed(path) == content
    path.write_bytes(gzip.compress(content) + gzip.compress(b"more"))  # as of `cat a.gz b.gz`
    assert read_packed(path) == content + b"more"
    assert unpack(io.BytesIO(gzip.compress(content)), "-").read() == content


def test_bombs_and_damage_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = gzip.compress(bytes(20_000_000))  # a thousandth of it
    (tmp_path / "bomb.gz").write_bytes(bomb)
    with pytest.raises(UserError, match=r"bomb\.gz: unpacks to more than 1\d,\d{3},000 bytes"):
        read_packed(tmp_path / "bomb.gz")
    monkeypatch.setattr("asr.files.MAX_UNPACKED_PIPE", 1_000_000)
    with pytest.raises(UserError, match="unpacks to more than"):
        unpack(io.BytesIO(bomb), "-").read()
    packed = gzip.compress(b"abc" * 1000)
    for damaged in (packed[:-9], packed[:12] + b"\xff" * 9 + packed[21:], packed[:2], packed + b"junk"):
        (tmp_path / "damaged.gz").write_bytes(damaged)
        with pytest.raises(UserError, match=r"damaged\.gz: damaged gzip file"):
            read_packed(tmp_path / "damaged.gz")


def test_an_error_of_reading_names_that_file(tmp_path: Path) -> None:
    missing = tmp_path / "in" / "texts.txt"
    with pytest.raises(UserError) as caught, replace_file(tmp_path / "out.jsonl") as file:
        file.write(missing.read_bytes())
    assert str(missing) in str(caught.value)


@pytest.mark.parametrize(
    "command",
    [
        f"transcribe a.wav --model {ROOT}/recipes/an4/pretrained --output-dir s3://b/x",
        "manifest convert all.jsonl s3://b/all.jsonl",
        "manifest pack all.jsonl s3://b/shards",
        f"train {ROOT}/conf/yesno/ctc_lstm.yaml data.train=all.jsonl data.dev=all.jsonl output_dir=s3://b/run",
        "evaluate m all.jsonl --output-dir s3://b/scores",
    ],
)
def test_commands_write_nothing_to_addresses(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all.jsonl").write_text('{"id": "a", "audio": "a.wav", "duration": 1}\n')
    soundfile.write(tmp_path / "a.wav", np.full(8000, 0.1), 8000)
    before = sorted(tmp_path.iterdir())
    status = main(command.split())
    assert (status, sorted(tmp_path.iterdir())) == (2, before)
    assert "outputs are written to local files" in capsys.readouterr().err
