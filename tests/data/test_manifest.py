"""Records and their files: what is accepted, what is refused and how, and that nothing is lost."""

from __future__ import annotations

import json
import os
import pickle
import re
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from asr.data import (
    Manifest,
    Utterance,
    build_utterance,
    parse_utterance,
    read_lines,
    read_manifest,
    relative_audio,
    write_manifest,
)
from asr.data.text_lines import MAX_LINE_BYTES
from asr.errors import UserError

FEW = settings(max_examples=40)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NASTY = st.sampled_from(
    ["\u2028", "\u0085", "\x00", "\x1c", "\t", "\n", "\r", '"', "\\", "\ufeff", "a\u0301", "😀", "\x7f"]
)
TEXT = st.lists(NASTY | TEXTS, max_size=5).map("".join)
IDS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=30)
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)
SECONDS = st.floats(min_value=1e-6, max_value=1e6)
VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
UTTERANCES = st.builds(
    Utterance,
    id=IDS,
    audio=NAMES.map(lambda name: "/" + name),
    start=st.floats(min_value=0, max_value=1e6),
    duration=SECONDS,
    channel=st.none() | st.integers(1, 1000),
    text=st.none() | TEXT,
    speaker=st.none() | NAMES,
    language=st.none() | NAMES,
    extras=st.dictionaries(TEXT, VALUES, max_size=3),
)
PLAIN = {"id": "a", "audio": "a.wav", "duration": 1.5}


def line_of(**changes: object) -> bytes:
    return json.dumps({**PLAIN, **changes}).encode()


def write_lines(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


# --- records ------------------------------------------------------------------------------------


@FEW
@given(utterances=st.lists(UTTERANCES, max_size=4))
def test_any_utterance_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, utterances: list[Utterance]
) -> None:
    path = tmp_path_factory.mktemp("manifest") / "a.jsonl"
    assert write_manifest(path, utterances) == len(utterances)
    assert list(read_manifest(path)) == utterances
    assert list(Manifest.open(path)) == utterances


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (line_of(duration=-1), "utterance 'a': duration = -1: expected greater than 0"),
        (line_of(duration="2"), "utterance 'a': duration = '2': "),
        (line_of(duration=True), "duration = true: "),
        (line_of(duration=48_000_000), "duration = 48000000: "),
        (b'{"id": "a", "audio": "a.wav", "duration": NaN}', "duration = NaN: "),
        (b'{"id": "a", "audio": "a.wav", "duration": 1e999}', "duration = Infinity: "),
        (line_of(start=-0.1), "start = -0.1: "),
        (line_of(id=""), "id = '': "),
        (line_of(id="a b"), "id = 'a b': expected a name without control characters or spaces"),
        (line_of(id="a\u2028b"), "control characters or spaces"),
        (line_of(id="a\x1bb"), "control characters or spaces"),
        (line_of(id="a" * 201), "id = 'aaa"),
        (line_of(id=7), "id = 7: "),
        (line_of(audio="a\0.wav"), "audio = 'a\\x00.wav': expected a name without control characters"),
        (line_of(text=["a"]), 'text = ["a"]: '),
        (line_of(speaker=""), "speaker = '': "),
        (line_of(language="a\nb"), "language = 'a\\nb': "),
        (line_of(extras={"a": [1]}), 'extras.a = [1]: '),
        (line_of(extras={"a": 1e400}), 'extras.a = Infinity: '),
        (line_of(speeker="x"), "unknown field speeker (value 'x'); did you mean speaker?"),
        (line_of(accent="x"), "unknown field accent (value 'x'); fields of your own belong in extras"),
        (line_of(**{"\x1b" + "a" * 99: 1}), "unknown field '\\x1baaa"),
        (line_of(audio_filepath="x"), "`asr manifest convert` reads other formats"),
        (b'{"id": "a", "audio": "a.wav"}', "utterance 'a': duration is missing; add it"),
        (b'["a"]', 'expected a JSON object, found ["a"]'),
        (b'{"id": "a"', "not a JSON object on one line"),
        (b"id,audio,text", "; `asr manifest convert` reads tables"),
        (b"[" * 100_000, "not a JSON object on one line"),
        (b'{"id": "\xff"}', "not a JSON object on one line"),
        (b'{"id": "\\ud800"}', "not a JSON object on one line"),
    ],
)  # fmt: skip
def test_a_bad_record_says_what_came_and_what_was_expected(line: bytes, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        parse_utterance(line)
    assert len(str(caught.value)) < 400


def test_a_hostile_record_is_refused_quickly() -> None:
    many = {f"k{i}": [] for i in range(3_000)}
    for line in (line_of(**many), line_of(extras=many)):
        begin = time.perf_counter()
        with pytest.raises(UserError):
            parse_utterance(line)
        assert time.perf_counter() - begin < 10


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", line_of(), b"", line_of(id="b", duration=0))
    for read in (lambda: list(read_manifest(path)), lambda: Manifest.open(path)):
        with pytest.raises(UserError, match=r"a\.jsonl:3: utterance 'b': duration = 0: "):
            read()


def test_lone_surrogates_are_refused() -> None:
    for fields in ({"text": "a\ud800"}, {"audio": os.fsdecode(b"\xff.wav")}, {"extras": {"a": "\ud800"}}):
        with pytest.raises(UserError, match=f"x:3: utterance 'a': {next(iter(fields))}"):
            build_utterance("x:3", {**PLAIN, **fields})


@FEW
@given(
    data=st.binary(max_size=200)
    | st.lists(st.sampled_from([line_of(), b"\n", b"\xef\xbb\xbf", b"{}", b'{"id":']), max_size=6).map(
        b"".join
    )
)
def test_any_bytes_give_utterances_or_a_user_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("manifest") / "a.jsonl"
    path.write_bytes(data)
    for read in (read_manifest, Manifest.open):
        try:
            assert all(isinstance(utterance, Utterance) for utterance in read(path))
        except UserError as error:
            assert str(path) in str(error)


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        (line_of(), ["a"]),
        (line_of() + b"\r\n", ["a"]),
        (b"\xef\xbb\xbf" + line_of() + b"\n", ["a"]),
        (b"\n \t\n" + line_of() + b"\n\n\n", ["a"]),
        (b"", []),
        (b"\xef\xbb\xbf\n", []),
    ],
)
def test_blank_lines_byte_order_mark_and_windows_lines_are_skipped(
    tmp_path: Path, content: bytes, ids: list[str]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    assert [utterance.id for utterance in read_manifest(path)] == ids
    assert [utterance.id for utterance in Manifest.open(path)] == ids


def test_a_line_without_end_is_refused_without_holding_it_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with open(path, "wb") as file:
        file.write(b'{"id": "')
        for _ in range(30):
            file.write(b"a" * MAX_LINE_BYTES)
        file.write(b"\n" + line_of() + b"\n")
    tracemalloc.start()
    lines = list(read_lines(path))
    with pytest.raises(UserError, match=r":1: the line is longer than 1,000,000 bytes; it begins with '\{"):
        list(read_manifest(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * MAX_LINE_BYTES
    assert [number for number, _, _ in lines] == [1, 2]
    assert lines[1][2] == line_of()


@pytest.mark.parametrize("make", ["missing", "folder", "pipe"])
def test_only_regular_files_are_read(tmp_path: Path, make: str) -> None:
    path = tmp_path / "a.jsonl"
    if make == "folder":
        path.mkdir()
    elif make == "pipe":
        os.mkfifo(path)  # opening it would wait for a writer
    for read in (lambda: list(read_manifest(path)), lambda: Manifest.open(path)):
        with pytest.raises(UserError, match=r"a\.jsonl: (cannot read|not a regular file)"):
            read()


# --- writing ------------------------------------------------------------------------------------


def test_audio_below_the_folder_is_stored_relative_and_the_folder_can_move(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    inside, outside = corpus / "audio" / "a.wav", tmp_path / "b.wav"
    utterances = [
        Utterance(id="inside", audio=str(inside), duration=1.0),
        Utterance(id="outside", audio=str(outside), duration=1.0),
        Utterance(id="relative", audio="audio/c.wav", duration=1.0),
    ]
    write_manifest(corpus / "a.jsonl", utterances)
    stored = [json.loads(line)["audio"] for line in (corpus / "a.jsonl").read_bytes().splitlines()]
    assert stored == ["audio/a.wav", str(outside), "audio/c.wav"]
    corpus.rename(tmp_path / "moved")
    read = [utterance.audio for utterance in read_manifest(tmp_path / "moved" / "a.jsonl")]
    assert read == [f"{tmp_path}/moved/audio/a.wav", str(outside), f"{tmp_path}/moved/audio/c.wav"]


def test_relative_audio_means_the_same_file() -> None:
    for audio, folder, stored in (
        ("/data/xy/a.wav", "/data/x", "/data/xy/a.wav"),
        ("/data/x//a.wav", "/data/x", "a.wav"),
        ("/a.wav", "/", "a.wav"),
        ("/data/x/../a.wav", "/data/x", "../a.wav"),
    ):
        assert relative_audio(audio, folder) == stored


def test_a_manifest_is_written_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.jsonl"
    write_manifest(path, [Utterance(**PLAIN)])
    before = path.read_bytes()
    with pytest.raises(UserError, match="utterance a: the line is longer"):
        write_manifest(path, [*read_manifest(path), Utterance(**PLAIN, text="a" * MAX_LINE_BYTES)])
    write_manifest(path, read_manifest(path))  # even from itself
    assert path.read_bytes() == before and [file.name for file in path.parent.iterdir()] == ["a.jsonl"]


# --- random access ------------------------------------------------------------------------------


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    utterances = [Utterance(id=f"é{i}", audio=f"{i}.wav", duration=1 + i / 10) for i in range(10)]
    write_manifest(tmp_path / "ten.jsonl", utterances)
    return tmp_path / "ten.jsonl"


def test_random_access(ten: Path) -> None:
    manifest = Manifest.open(ten)
    assert len(manifest) == 10
    assert manifest[3].id == manifest[np.int64(-7)].id == "é3"
    assert manifest[3].audio == str(ten.parent / "3.wav")
    assert list(manifest) == list(read_manifest(ten))
    np.testing.assert_array_equal(manifest.durations, [1 + i / 10 for i in range(10)])
    for index in (10, -11):
        with pytest.raises(IndexError):
            manifest[index]
    with pytest.raises(TypeError):
        manifest["é3"]
    with pytest.raises(ValueError, match="read-only"):
        manifest.durations[0] = 2


def test_a_pickled_manifest_works_elsewhere(ten: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ten.parent)
    data = pickle.dumps(Manifest.open("ten.jsonl"))
    monkeypatch.chdir("/")
    assert pickle.loads(data)[9].id == "é9"


@pytest.mark.parametrize("change", ["append", "replace", "remove"])
def test_a_changed_file_is_noticed(ten: Path, change: str) -> None:
    manifest = Manifest.open(ten)
    if change == "append":
        with open(ten, "ab") as file:
            file.write(line_of() + b"\n")
    elif change == "replace":
        content = ten.read_bytes()
        os.utime(ten, ns=(0, 0))
        ten.write_bytes(content)
    else:
        ten.unlink()
    for access in (lambda: manifest[0], lambda: list(manifest)):
        with pytest.raises(UserError, match=r"ten\.jsonl: (the manifest has changed|cannot read)"):
            access()


def test_the_index_is_small(tmp_path: Path) -> None:
    number = 5_000  # as records they would need some 5 MB
    write_manifest(
        tmp_path / "a.jsonl", (Utterance(id=f"u{i}", audio="a.wav", duration=1.0) for i in range(number))
    )
    tracemalloc.start()
    manifest = Manifest.open(tmp_path / "a.jsonl")
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(manifest) == number
    strings_kept_by_pydantic = 1_500_000
    assert kept < 16 * number + strings_kept_by_pydantic
    assert peak < 50 * number + strings_kept_by_pydantic
