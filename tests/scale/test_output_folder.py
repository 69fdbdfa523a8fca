"""Output folders: outputs are complete, calls resume, and foreign files are never overwritten."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asr.audio import AudioSegment, Recording
from asr.errors import UserError
from asr.scale.output_folder import JOURNAL, STATE, OutputFolder

MADE_BY = {"model": "m", "beam": 5}
CONTENTS = {"txt": "hello\n", "srt": "1\n", "vtt": "WEBVTT\n"}


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    (tmp_path / "audio").mkdir()
    (tmp_path / "audio" / "a.wav").write_bytes(b"sound")
    return Recording(str(tmp_path / "audio" / "a.wav"), "sub/a")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def open_folder(
    out: Path, made_by: object = MADE_BY, formats: tuple[str, ...] = ("txt", "srt")
) -> OutputFolder:
    return OutputFolder(out, formats, made_by)  # type: ignore[arg-type]


def write(folder: OutputFolder, recording: Recording, problem: str = "") -> None:
    folder.write(recording, CONTENTS, 2.5, problem)


def test_written_outputs_are_done(out: Path, recording: Recording) -> None:
    folder = open_folder(out)
    assert not folder.is_done(recording)
    write(folder, recording)
    assert {path.name: path.read_text() for path in (out / "sub").iterdir()} == {
        "a.txt": "hello\n",
        "a.srt": "1\n",
    }
    for again in (folder, open_folder(out), open_folder(out, formats=("srt",))):
        assert again.is_done(recording)
    assert not open_folder(out, {"model": "m", "beam": 6}).is_done(recording)
    assert not open_folder(out, formats=("txt", "json")).is_done(recording)
    write(open_folder(out, formats=("vtt",)), recording)
    assert open_folder(out, formats=("txt", "vtt")).is_done(recording), "outputs of several calls add up"
    settings, before, after, *_ = map(json.loads, (out / JOURNAL).read_text().splitlines())
    assert settings["made_by"] == MADE_BY
    assert [line.get("seconds") for line in (before, after)] == [None, 2.5]


def test_settings_are_stored_once_for_all_recordings(out: Path, recording: Recording) -> None:
    folder = open_folder(out, made_by={str(number): [number] for number in range(2_000)}, formats=("txt",))
    write(folder, recording)
    tracemalloc.start()
    try:
        for number in range(20):
            write(folder, replace(recording, id=f"sub/{number}"))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 200_000, "bytes; the settings alone have as many"
    written = (out / JOURNAL).stat().st_size
    write(open_folder(out, made_by=folder._made_by), recording)
    assert (out / JOURNAL).stat().st_size - written < 2_000, "nor are they written again"


@pytest.mark.parametrize(
    "change",
    [
        lambda audio, out: audio.write_bytes(b"other sound"),
        lambda audio, out: os.utime(audio, (2e9, 2e9)),
        lambda audio, out: (out / "sub" / "a.srt").unlink(),
    ],
    ids=["audio", "time of audio", "output"],
)
def test_changed_audio_or_settings_are_done_again(
    change: Callable[[Path, Path], None], out: Path, recording: Recording
) -> None:
    write(open_folder(out), recording)
    change(Path(recording.path), out)
    folder = open_folder(out)
    assert not folder.is_done(recording)
    folder.write(recording, {"txt": "better\n", "srt": "2\n"}, 2.5)
    assert (out / "sub" / "a.txt").read_text() == "better\n" and open_folder(out).is_done(recording)


def test_a_partial_output_is_not_done_but_may_be_replaced(out: Path, recording: Recording) -> None:
    write(open_folder(out), recording, problem="cut short")
    folder = open_folder(out)
    assert not folder.is_done(recording) and folder.find_problem(recording) == "cut short"
    assert open_folder(out, made_by={"model": "other"}).find_problem(recording) is None
    folder.require_free(recording)
    write(folder, recording)
    assert folder.is_done(recording)


@pytest.mark.parametrize("cut", [0.1, 0.4, 0.6, 0.95])
def test_a_killed_call_is_resumed(cut: float, out: Path, recording: Recording) -> None:
    """The journal may end anywhere, and outputs announced in it may exist or not."""
    other = Recording(recording.path, "b")
    folder = open_folder(out)
    write(folder, recording)
    write(folder, other)
    journal = (out / JOURNAL).read_bytes()
    lines = journal.splitlines(keepends=True)
    first, last = lines[0] + lines[1], lines[-1]  # the settings, and the first outputs announced
    keep = max(len(first), round(cut * len(journal)))
    if keep < journal.index(b'"b"'):
        for name in ("b.txt", "b.srt"):
            (out / name).unlink()  # announced before being written
    else:
        keep = max(keep, len(journal) - len(last))
    (out / JOURNAL).write_bytes(journal[:keep])
    resumed = open_folder(out)
    for item in (recording, other):
        if not resumed.is_done(item):
            write(resumed, item)
    assert all(open_folder(out).is_done(item) for item in (recording, other))


def test_remains_of_a_killed_call_are_removed(
    out: Path, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    from asr.scale import output_folder

    def die(path: Path) -> None:
        path.parent.mkdir(parents=True)
        (path.parent / f".{path.name}.123.tmp").write_text("hel")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(output_folder, "replace_file", die)
        write(open_folder(out), recording)
    write(open_folder(out), recording)
    assert sorted(path.name for path in (out / "sub").iterdir()) == ["a.srt", "a.txt"]


def test_finished_segments_are_reused_only_for_the_same_audio(out: Path, recording: Recording) -> None:
    found = {"text": "hello"}

    def find(recording: Recording, **changed: Any) -> Any:
        return open_folder(out, **changed).find_segment(cut_out(recording))

    def cut_out(recording: Recording) -> AudioSegment:
        return AudioSegment(0.0, np.zeros(8_000, np.float32), 8_000, recording=recording)

    open_folder(out).add_segment(cut_out(recording), found)
    assert find(recording) == found
    (log,) = (path for path in (out / STATE).iterdir() if path != out / JOURNAL)
    whole = log.read_bytes()
    log.write_bytes(whole[:-9])  # as left by a kill
    assert find(recording) is None
    open_folder(out).add_segment(cut_out(recording), found)
    assert find(recording) == found, "behind the cut line"
    assert find(replace(recording, duration=2.0)) is None
    assert find(recording, made_by={"model": "other"}) is None
    Path(recording.path).write_bytes(b"other sound")
    assert find(recording) is None


def test_foreign_files_are_kept(out: Path, recording: Recording, tmp_path: Path) -> None:
    """Next to a.wav there often is an a.txt with the reference text."""
    (out / "sub").mkdir(parents=True)
    (out / "sub" / "a.txt").write_text("a reference")
    for call in (OutputFolder.require_free, write):
        with pytest.raises(UserError, match="was not written here by `asr transcribe`"):
            call(open_folder(out), recording)
    assert [path.name for path in (out / "sub").iterdir()] == ["a.txt"]
    (out / "sub" / "a.txt").unlink()
    write(open_folder(out), recording)
    (tmp_path / "a.flac").write_bytes(b"another")
    other = Recording(str(tmp_path / "a.flac"), recording.name)
    with pytest.raises(UserError, match="belongs to another recording"):
        open_folder(out).require_free(other)
    os.rename(recording.path, tmp_path / "moved.wav")  # if the first recording is gone, it was moved
    open_folder(out).require_free(other)
    (out / "sub" / "a.txt").write_text("corrected by hand")
    with pytest.raises(UserError, match="was changed after"):
        open_folder(out).require_free(other)


def test_audio_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"RIFF")
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(UserError, match="was not written here"):
        open_folder(link).require_free(Recording(str(path), "a"))
    assert path.read_bytes() == b"RIFF"


def test_foreign_lines_in_the_journal_are_skipped(out: Path, recording: Recording) -> None:
    write(open_folder(out), recording)
    with open(out / JOURNAL, "ab") as file:
        file.write(
            b'\xff\xfe\nnull\n[1]\n{}\n{"outputs": 3, "name": "sub/a"}\n{"outputs": {"sub/a.txt": null}, "name": "x"}'
        )
    folder = open_folder(out)
    assert folder.is_done(recording)
    write(folder, recording)
    assert open_folder(out).is_done(recording)
