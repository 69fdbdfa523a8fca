"""A folder of transcripts: written as wholes, never over what is not ours, and resumed after an interruption.

A journal in the folder has two lines for each recording: before its outputs are written, and after. By it a
later call knows which outputs are whole, and of which audio, model and settings. While a recording is being
decoded, a log of its own has its finished segments, with which a later call begins.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from asr.audio.segmentation import AudioSegment
from asr.audio.sources import STANDARD_INPUT, Recording
from asr.data.storage import ByteRange
from asr.errors import UserError
from asr.files import replace_file, require_local
from asr.transcription.segment_log import SegmentLog

logger = logging.getLogger(__name__)
Value = TypeVar("Value")

MAX_NAME_BYTES = 235  # 255, less what the temporary name adds
JOURNAL = ".asr-transcribe.jsonl"
SEGMENT_LOGS = ".asr-transcribe-segments"

Stamp = list[int | str]  # of a file size in bytes and time of change in nanoseconds


class OutputFolder:
    """Folder for the outputs of recordings, and what is there already."""

    def __init__(self, folder: str | Path, formats: Sequence[str], made_by: Mapping[str, Any]) -> None:
        """`made_by` is all that the text depends on, as JSON: with another value nothing counts as done."""
        self.folder = Path(folder)
        self._formats = list(formats)
        self._made_by = json.loads(json.dumps(made_by))
        self._journal = self.folder / JOURNAL
        self._announced: dict[str, dict[str, Any]] = {}  # output -> the newest line that names it
        self._done: dict[
            str, dict[str, Any]
        ] = {}  # name of a recording -> its newest line, if it is of the end
        self.earlier_arithmetic: str | None = None
        """That of earlier calls which were equal in all else, the latest of them."""
        self._logs: dict[str, dict[int | None, SegmentLog]] = {}  # by name of a recording, and channel
        self._read_journal()

    @property
    def made_by(self) -> Mapping[str, Any]:
        return dict(self._made_by)

    def paths(self, recording: Recording) -> dict[str, Path]:
        """Format to file."""
        return {name: self.folder / f"{recording.name}.{name}" for name in self._formats}

    def check(self, recordings: Sequence[Recording]) -> None:
        """Refuse, before any work, to write over audio that is to be read, or where nothing can be."""
        self._require_writable()
        inputs = {_key(recording.path) for recording in recordings}
        for recording in recordings:
            for path in self.paths(recording).values():
                if _key(path) in inputs:
                    raise UserError(
                        f"{path}: would be written over a recording; give another --output-dir or --format"
                    )

    def _require_writable(self) -> None:
        require_local(self.folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.folder).close()
            if not shutil.disk_usage(self.folder).free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise UserError(
                f"{self.folder}: cannot write there ({error.strerror}); give another --output-dir"
            ) from None

    def is_done(self, recording: Recording) -> bool:
        """Check that all outputs are there, whole, and of this audio, model and settings."""
        made = self._outputs_made(recording)
        outputs = [os.path.relpath(path, self.folder) for path in self.paths(recording).values()]
        return all(output in made and made[output] == stamp_file(self.folder / output) for output in outputs)

    def write(self, recording: Recording, contents: Mapping[str, str], is_whole: bool = True) -> None:
        """Put the outputs in their places. `contents`: format to text.

        What is of a part of the audio (`is_whole` false) is ours, but never done.
        """
        self.require_free(recording)
        paths = self.paths(recording)
        others = self._outputs_made(recording)
        for path in paths.values():
            self._remove_remains(path)
        line = {
            "name": recording.name,
            "audio": os.path.abspath(recording.path),
            "audio_stamp": stamp_recording(recording),
            "clip": _clip(recording),
            "made_by": self._made_by,
            "is_whole": False,
            "outputs": {os.path.relpath(path, self.folder): None for path in paths.values()},
        }
        self._append(line)
        for name, path in paths.items():
            with replace_file(path) as file:
                file.write(contents[name].encode())
        line["is_whole"] = is_whole
        line["outputs"] = others | {output: stamp_file(self.folder / output) for output in line["outputs"]}
        self._append(line)
        for log in self._logs.pop(recording.name, {}).values():
            log.remove()

    def find_segment(self, segment: AudioSegment, kind: pydantic.TypeAdapter[Value]) -> Value | None:
        """Find what an earlier call has decoded of the same segment."""
        log = self._open_log(segment.recording)
        return None if log is None else log.find((segment.start, segment.end), kind)

    def add_segment(self, segment: AudioSegment, value: dict[str, Any]) -> None:
        """Keep what was decoded of a segment until the outputs of its recording are written."""
        log = self._open_log(segment.recording)
        if log is not None:
            log.add((segment.start, segment.end), value)

    def _open_log(self, recording: Recording) -> SegmentLog | None:
        if recording.path == STANDARD_INPUT:  # it is not there again
            return None
        logs = self._logs.setdefault(recording.name, {})
        if recording.channel not in logs:
            made_by = {"name": recording.name, "channel": recording.channel, "made_by": self._made_by}
            made_by |= {"audio": os.path.abspath(recording.path), "audio_stamp": stamp_recording(recording)}
            made_by |= {"clip": _clip(recording)}
            name = json.dumps([recording.name, recording.channel])
            file = hashlib.sha256(name.encode()).hexdigest()[:32]
            log = SegmentLog(self.folder / SEGMENT_LOGS / f"{file}.jsonl", made_by)
            if len(log):
                logger.info("%s: %d segments were finished by an earlier call", recording.path, len(log))
            logs[recording.channel] = log
        return logs[recording.channel]

    def _outputs_made(self, recording: Recording) -> dict[str, Stamp | None]:
        """Outputs that earlier calls made of the same audio with the same settings, in whatever format."""
        line = self._done.get(recording.name)
        if line is None or line["made_by"] != self._made_by or not _is_same_audio(line, recording):
            return {}
        return dict(line["outputs"])

    def require_free(self, recording: Recording) -> None:
        """Refuse to write over a file that is not ours, or of something else, and names that are too long."""
        for path in self.paths(recording).values():
            if len(os.fsencode(path.name)) > MAX_NAME_BYTES:
                raise UserError(
                    f"{path.name}: a name of more than {MAX_NAME_BYTES} bytes, too long for an output; "
                    "rename the recording"
                )
            self._require_ours(path, recording)

    def _require_ours(self, path: Path, recording: Recording) -> None:
        there = stamp_file(path)
        if there is None:
            return
        output = os.path.relpath(path, self.folder)
        line = self._announced.get(output)
        if line is None:
            problem = "is there already, and was not written here by `asr transcribe`"
        elif line["outputs"][output] not in (None, there):
            problem = "was changed after `asr transcribe` had written it"
        elif line["audio"] != os.path.abspath(recording.path) and os.path.lexists(line["audio"]):
            problem = f"is of another recording, {line['audio']}"
        else:
            return
        raise UserError(f"{path}: {problem}; move it away, or give another --output-dir")

    def _remove_remains(self, path: Path) -> None:
        """Remove the unfinished file that a call left behind which was killed while it wrote this output."""
        line = self._announced.get(os.path.relpath(path, self.folder))
        if line is None or None not in line["outputs"].values():
            return
        for remains in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
            with contextlib.suppress(OSError):
                remains.unlink()

    # --- journal --------------------------------------------------------------------------------

    def _read_journal(self) -> None:
        try:
            lines = self._journal.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            raise UserError(
                f"{self._journal}: cannot be read ({error.strerror}); give another --output-dir"
            ) from None
        for text in lines:
            try:
                line = json.loads(text)
                self._note(line)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # cut when a process was killed: its outputs are those announced before

    def _note(self, line: dict[str, Any]) -> None:
        outputs, name = line["outputs"], line["name"]
        if not {"audio", "audio_stamp", "made_by", "is_whole"} <= line.keys():
            return
        made_by = line["made_by"]
        if made_by == self._made_by:  # one for all lines: it is much larger than the rest of them
            line = line | {"made_by": self._made_by}
        if self._made_by == made_by | {"arithmetic": self._made_by.get("arithmetic")}:
            self.earlier_arithmetic = made_by.get("arithmetic")
        self._announced |= dict.fromkeys(outputs, line)
        if line["is_whole"]:
            self._done[name] = line
        else:
            self._done.pop(name, None)

    def _append(self, line: dict[str, Any]) -> None:
        text = json.dumps(line) + "\n"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self._journal, "ab+") as file:
                # After a cut line, a line end first.
                if file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                    text = "\n" + text
                file.write(text.encode())
        except OSError as error:
            raise UserError(f"{self._journal}: cannot write the file ({error.strerror})") from None
        self._note(json.loads(text))


def _is_same_audio(line: Mapping[str, Any], recording: Recording) -> bool:
    stamp = stamp_recording(recording)
    is_same_clip = line.get("clip") == _clip(recording)
    return stamp is not None and line["audio_stamp"] == stamp and is_same_clip


def _clip(recording: Recording) -> list[float | None] | None:
    is_whole = not recording.start and recording.duration is None
    return None if is_whole else [recording.start, recording.duration]


def stamp_recording(recording: Recording) -> Stamp | None:
    """Stamp that differs when the audio does; None where there is no audio."""
    if isinstance(recording.content, ByteRange):
        return [recording.content.offset, recording.content.size, recording.content.version]
    return stamp_file(recording.path)


def stamp_file(path: str | Path) -> Stamp | None:
    """Size and time of change; None where there is no such file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return [status.st_size, status.st_mtime_ns]


def _key(path: str | Path) -> str:
    try:
        return os.path.realpath(path)
    except ValueError:  # a null byte
        return str(path)
