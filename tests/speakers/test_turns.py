"""Speaker turns: RTTM, UEM and SegLST are read and written, and wrong files are named with line and reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asr.errors import UserError
from asr.speakers.turns import Turn, format_rttm, format_seglst, read_rttm, read_seglst, read_uem


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    turns = [
        Turn("a", 0.001, 0.004, '"\n\u2028', "x \\ ü"),
        Turn("a b", 7.1, 9999.123, "(%)", ""),
        Turn("ü", 3, 3, ";;"),
    ]
    path.write_text(format_seglst(turns), encoding="utf-8")
    assert read_seglst(path) == turns
    path.write_text(format_rttm(turns), encoding="utf-8")
    assert [(turn.start, turn.end) for turn in read_rttm(path)] == [(turn.start, turn.end) for turn in turns]
    path.write_text("a%20b 1 0.001 7.100\na%20b 1 8 9\n")
    assert read_uem(path) == {"a%20b": [(0.001, 7.1), (8.0, 9.0)]}


def test_rttm_of_others(tmp_path: Path) -> None:
    path = tmp_path / "a.rttm"
    path.write_text(
        ";; comment\nSPKR-INFO m 1 <NA> <NA> <NA> unknown bob <NA> <NA>\n\n"
        "SPEAKER m 1 2.50 .5 <NA> <NA> bob <NA>\nSPEAKER m 2 0.1 0.2 <NA> <NA> ann <NA> <NA>\n"
    )
    assert read_rttm(path) == [Turn("m", 0.1, 0.3, "ann"), Turn("m", 2.5, 3.0, "bob")]
    assert format_rttm([Turn("m x", 0.1, 0.3, "(a)")]) == (
        "SPEAKER m%20x 1 0.100 0.200 <NA> <NA> %28a%29 <NA> <NA>\n"
    )


SEGMENT = {"session_id": "m", "speaker": "a", "start_time": 0, "end_time": 1, "words": "x"}
RTTM = "SPEAKER m 1 {} <NA> <NA> a <NA> <NA>\n"
NUMBER = "expected a number of seconds"


@pytest.mark.parametrize(
    ("read", "content", "message"),
    [
        (read_rttm, RTTM.format("0 1") + RTTM.format("nan 1"), f":2: start = 'nan': {NUMBER}"),
        (read_rttm, RTTM.format("-1 1"), f":1: start = '-1': {NUMBER}"),
        (read_rttm, RTTM.format("0 1e300"), f":1: duration = '1e300': {NUMBER}"),
        (read_rttm, "hello\n", ":1: 'hello': not a line of RTTM. Expected SPEAKER recording channel start"),
        (read_rttm, "SPEAKER m 1 0 1 <NA>\n", "not a line of RTTM"),
        (read_uem, "m 1 0 5\nm 1 3 2\n", ":2: end 2 is not after start 3. Expected recording channel"),
        (read_uem, "m 1 0 inf\n", f":1: end = 'inf': {NUMBER}. Expected recording"),
        (read_uem, "m 1 0\n", ":1: 'm 1 0': not a line of UEM"),
        (read_seglst, {}, ": not a JSON list. Expected segments"),
        (read_seglst, [SEGMENT, 3], ": segment 2, 3: expected a JSON object"),
        (read_seglst, [SEGMENT | {"speaker": None}], "expected session_id and speaker"),
        (read_seglst, [SEGMENT | {"start_time": float("nan")}], f"start_time = NaN: {NUMBER}"),
        (read_seglst, [SEGMENT | {"start_time": 2}], "end_time 1 is before start_time 2"),
        (read_seglst, [SEGMENT | {"words": ["x"]}], 'words = ["x"]: expected a string'),
    ],
)
def test_wrong_files(read: Callable[[Path], Any], content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError) as caught:
        read(path)
    assert str(caught.value).startswith(str(path)) and message in str(caught.value)
