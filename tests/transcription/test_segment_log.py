"""A log of finished segments: what was cut by a kill is done again, what was made otherwise is not taken."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from asr.errors import UserError
from asr.transcription import SEGMENT, SegmentLog
from asr.transcripts import Segment, Word

MADE_BY = {"model": "m", "audio_stamp": [5, 7]}
VALUES = [
    Segment(i / 3, i + 0.7, "é", (Word("é", i / 3, i + 0.7, 1 / 7),), 1 / 7, language="en") for i in range(4)
]


def write_log(path: Path) -> SegmentLog:
    log = SegmentLog(path, MADE_BY)
    for index, value in enumerate(VALUES):
        log.add((index / 3, index + 1.0), asdict(value))
    return log


def find_all(log: SegmentLog) -> list[Segment | None]:
    return [log.find((index / 3, index + 1.0), SEGMENT) for index in range(len(VALUES))]


def test_floats_come_back_to_the_bit(tmp_path: Path) -> None:
    write_log(tmp_path / "logs" / "a.jsonl")
    log = SegmentLog(tmp_path / "logs" / "a.jsonl", MADE_BY)
    assert find_all(log) == VALUES and len(log) == 4
    assert log.find((0.5, 2.0), SEGMENT) is None, "cut elsewhere now"
    log.remove()
    assert not (tmp_path / "logs").exists()


def test_a_cut_line_is_done_again(tmp_path: Path) -> None:
    write_log(tmp_path / "a.jsonl")
    content = (tmp_path / "a.jsonl").read_bytes()
    for size in range(0, len(content), 23):
        (tmp_path / "a.jsonl").write_bytes(content[:size])
        found = find_all(SegmentLog(tmp_path / "a.jsonl", MADE_BY))
        assert found == [*VALUES[: 4 - found.count(None)], *[None] * found.count(None)]
        write_log(tmp_path / "a.jsonl")
        assert find_all(SegmentLog(tmp_path / "a.jsonl", MADE_BY)) == VALUES


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[[[[",
        b"[" * 100_000,
        b'{"model": "m", "audio_stamp": [5, 7]}\n[0.0, 1.0, 5]\n[1]\n7',
    ],
)
def test_what_is_no_log_is_not_taken(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    assert find_all(write_log(tmp_path / "a.jsonl"))[1:] == [None] * 3
    assert find_all(SegmentLog(tmp_path / "a.jsonl", MADE_BY)) == VALUES


def test_what_was_made_otherwise_is_forgotten(tmp_path: Path) -> None:
    write_log(tmp_path / "a.jsonl")
    log = SegmentLog(tmp_path / "a.jsonl", {"model": "other"})
    assert len(log) == 0
    log.add((0.0, 1.0), asdict(VALUES[0]))
    assert len(SegmentLog(tmp_path / "a.jsonl", MADE_BY)) == 0


def test_a_log_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(UserError, match="cannot write"):
        write_log(tmp_path / "file" / "a.jsonl")
