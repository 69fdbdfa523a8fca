"""Files, patterns and folders: which recordings are found, in which order and under which names."""

from __future__ import annotations

import gzip
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from asr.audio import Recording
from asr.data import ByteRange, Utterance, write_manifest
from asr.errors import UserError
from asr.transcription.arguments import MAX_UNIT_ITEMS, find_recordings, plan_units


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        *("a.wav", "b.FLAC", "notes.txt", "sub/a.wav", "sub/deep/c d.mp3", "sub/.hidden.wav", ".git/x.wav"),
        *("other/a.wav", "other/a.ogg", "talk.part 2"),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(*arguments: str, recursive: bool = False) -> list[tuple[str, str]]:
    return [(str(item.path), item.name) for item in find_recordings(arguments, recursive)]


def test_files_are_named_by_their_stem(folder: Path) -> None:
    assert found("b.FLAC", "sub/a.wav", "notes.txt") == [
        *(("b.FLAC", "b"), ("sub/a.wav", "a"), ("notes.txt", "notes"))
    ]
    assert found(str(folder / "sub" / "a.wav")) == [(str(folder / "sub" / "a.wav"), "a")]


def test_missing_files_are_kept_and_reported_later() -> None:
    assert found("no/such.wav", "a\0b.wav") == [("no/such.wav", "such"), ("a\0b.wav", "a_b")]


@pytest.mark.usefixtures("folder")
def test_each_file_once() -> None:
    assert found("a.wav", "./a.wav", "sub/../a.wav", "-", "-") == [("a.wav", "a"), ("-", "stdin")]


def test_folders(folder: Path) -> None:
    with pytest.raises(UserError, match="add --recursive"):
        found("sub")
    assert found(".", recursive=True) == [
        *(
            ("./a.wav", "a"),
            ("./b.FLAC", "b"),
            ("./other/a.ogg", "other/a.ogg"),
            ("./other/a.wav", "other/a.wav"),
        ),
        *(("./sub/a.wav", "sub/a"), ("./sub/deep/c d.mp3", "sub/deep/c d")),
    ]
    assert found("sub", recursive=True) == [("sub/a.wav", "a"), ("sub/deep/c d.mp3", "deep/c d")]


def test_a_folder_without_audio(folder: Path) -> None:
    (folder / "sub" / "empty").mkdir()
    with pytest.raises(UserError, match="contains no file with the suffix of an audio format"):
        found("sub/empty", recursive=True)


def test_links_to_folders_are_not_followed(folder: Path) -> None:
    (folder / "sub" / "loop").symlink_to(folder)
    assert len(found("sub", recursive=True)) == 2


def test_equal_names_keep_more_of_their_path(folder: Path) -> None:
    assert [name for _, name in found("other/a.wav", "other/a.ogg")] == ["a.wav", "a.ogg"]
    assert [name for _, name in found("a.wav", "sub/a.wav", "b.FLAC")] == ["a.wav", "sub/a.wav", "b"]
    names = [name for _, name in found("sub", "other", recursive=True)]
    assert names == ["sub/a.wav", "deep/c d", "a.ogg", "other/a.wav"]
    (folder / "A.wav").touch()
    assert [name for _, name in found("a.wav", "A.wav")] == ["a.wav", "A.wav"]


def test_names_stay_below_their_folder(folder: Path) -> None:
    """No name leaves the output folder, whatever path is given."""
    os.chdir(folder / "sub")
    for name in (item.name for item in find_recordings(["../a.wav", "a.wav", "../other"], recursive=True)):
        assert ".." not in name.split("/") and not os.path.isabs(name)


def test_a_manifest_is_expanded_to_its_utterances(tmp_path: Path) -> None:
    """With or without texts. Each part of a file is a separate recording."""
    utterances = [
        Utterance(id="u1", audio=str(tmp_path / "a.wav"), start=1.5, duration=2.0),
        Utterance(id="u2", audio=str(tmp_path / "a.wav"), start=4.0, duration=0.5, text="hi", channel=2),
    ]
    manifest = tmp_path / "m.jsonl"
    write_manifest(manifest, utterances)
    path = str(tmp_path / "a.wav")
    expected = [
        Recording(path, "u1", 1.5, 2.0, is_utterance=True),
        Recording(path, "u2", 4.0, 0.5, 1, is_utterance=True),
    ]
    assert find_recordings([str(manifest)]) == expected
    packed = tmp_path / "m.jsonl.gz"
    packed.write_bytes(gzip.compress(manifest.read_bytes()))
    assert find_recordings([str(packed)]) == expected
    with pytest.raises(UserError, match="utterance u1"):
        find_recordings([str(manifest), str(packed)])
    with pytest.raises(UserError, match=r"lost\.jsonl: no such file or folder"):
        find_recordings([str(tmp_path / "lost.jsonl")])


@pytest.mark.parametrize("name", ["../out", "a/b", ".hidden"])
def test_ids_that_would_leave_the_output_folder_are_refused(name: str, tmp_path: Path) -> None:
    write_manifest(tmp_path / "m.jsonl", [Utterance(id=name, audio="/a.wav", duration=1)])
    with pytest.raises(UserError, match="ids name the output files"):
        find_recordings([str(tmp_path / "m.jsonl")])


@pytest.fixture
def bucket() -> str:
    import fsspec

    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    for name in ("talks/b.wav", "talks/deep/a.flac", "talks/notes.txt", "talks/../outside.wav", "else.wav"):
        filesystem.store[f"/bucket/{name}"] = fsspec.implementations.memory.MemoryFile(data=b"1234")
    return "memory://bucket"


def test_files_at_an_address(bucket: str) -> None:
    """Names that lead out of the folder are ignored, because remote names are not trusted."""
    assert found(f"{bucket}/talks", recursive=True) == [
        (f"{bucket}/talks/b.wav", "b"),
        (f"{bucket}/talks/deep/a.flac", "deep/a"),
    ]
    (one,) = find_recordings([f"{bucket}/else.wav"])
    assert one.name == "else" and one.content is not None
    assert isinstance(one.content, ByteRange) and one.content[:3] == (f"{bucket}/else.wav", 0, 4)


@pytest.mark.parametrize(
    ("name", "recursive", "message"),
    [
        ("talks", False, "add --recursive"),
        ("empty", True, "empty"),
        ("list.jsonl", False, "a manifest has to be local"),
        ("none.wav", False, "none.wav: cannot be read"),
    ],
)
def test_unsuitable_addresses_are_refused(bucket: str, name: str, recursive: bool, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_recordings([f"{bucket}/{name}"], recursive)


def test_an_address_in_a_manifest_is_not_opened(bucket: str, tmp_path: Path) -> None:
    manifest = tmp_path / "list.jsonl"
    manifest.write_text(f'{{"id": "a", "audio": "{bucket}/else.wav", "duration": 1.0, "text": null}}\n')
    (one,) = find_recordings([str(manifest)])
    assert one.content is None and str(one.path).startswith(str(tmp_path))


@given(st.lists(st.floats(0, 100, allow_nan=False)))
def test_every_item_is_in_one_unit(seconds: list[float]) -> None:
    units = plan_units(seconds, unit_seconds=60)
    assert [index for unit in units for index in unit] == list(range(len(seconds)))
    assert all(units), "no unit is empty"
    lengths = [sum(seconds[index] for index in unit) for unit in units]
    assert all(length <= 60 or len(unit) == 1 for unit, length in zip(units, lengths, strict=True))
    for length, other in pairwise(zip(lengths, units, strict=True)):  # no unit has room for the next item
        assert length[0] + seconds[other[1].start] > 60


def test_units_of_unknown_duration_are_limited_too() -> None:
    assert [len(unit) for unit in plan_units([0.0] * (MAX_UNIT_ITEMS + 1))] == [MAX_UNIT_ITEMS, 1]
