"""A folder of transcripts: outputs are written as wholes, never over foreign files, and calls are resumed.

A journal in the folder has what outputs depend on, once, and two lines for each recording: before its outputs
are written, and after. By it a later call finds which outputs are whole, and of which audio, model and
settings. While a recording is decoded, its finished segments are in a journal of their own, with which a
later call begins.
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
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from asr.audio.segmentation import AudioSegment
from asr.audio.sources import STANDARD_INPUT, Recording
from asr.data.storage import ByteRange
from asr.errors import UserError
from asr.files import is_claimed, replace_file, require_local

logger = logging.getLogger(__name__)
Value = TypeVar("Value")

MAX_NAME_BYTES = 235  # 255, less what the temporary name adds
STATE = ".asr-transcribe"  # a folder in that of the outputs
JOURNAL = f"{STATE}/journal.jsonl"

Stamp = list[int | str]  # of a file size in bytes and time of change in nanoseconds


class Journal:
    """A file of JSON Lines that is only added to; a line that a killed process left cut is passed over."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Iterator[dict[str, Any]]:
        try:
            with open(self.path, encoding="utf-8", errors="replace") as file:
                for text in file:
                    with contextlib.suppress(ValueError, RecursionError):
                        if isinstance(line := json.loads(text), dict):
                            yield line
        except FileNotFoundError:
            return
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot be read ({error.strerror}); give another --output-dir"
            ) from None

    def add(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab+") as file:
                # After a cut line, a line end first.
                if file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                    text = "\n" + text
                file.write(text.encode())
        except OSError as error:
            raise UserError(f"{self.path}: cannot write the file ({error.strerror})") from None


class OutputFolder:
    """Folder for the outputs of recordings, and what is there already."""

    def __init__(self, folder: str | Path, formats: Sequence[str], made_by: Mapping[str, Any]) -> None:
        """`made_by` is all that the text depends on, as JSON: with another value nothing counts as done."""
        self.folder = Path(folder)
        self._formats = list(formats)
        self._made_by = json.loads(json.dumps(made_by))
        self._key = hash_json(self._made_by)
        self.arithmetic = str(self._made_by.get("arithmetic"))
        self.state = self.folder / STATE
        self._journal = Journal(self.folder / JOURNAL)
        self._announced: dict[str, dict[str, Any]] = {}  # output -> the newest line that names it
        self._newest: dict[str, dict[str, Any]] = {}  # name of a recording -> its newest line
        self.earlier_arithmetic: str | None = None
        """That of earlier calls which were equal in all else, the latest of them."""
        self._segments: dict[tuple[str, int | None], tuple[Journal, dict[tuple[float, float], Any]]] = {}
        makers: dict[str, str | None] = {}  # key -> arithmetic, of calls that were equal in all else
        for line in self._journal.read():
            if isinstance(own := line.get("made_by"), dict):
                differs = {
                    name for name in {*own, *self._made_by} if own.get(name) != self._made_by.get(name)
                }
                makers |= {str(line.get("key")): own.get("arithmetic")} if differs <= {"arithmetic"} else {}
            elif {"name", "key", "audio", "stamp", "clip"} <= line.keys():
                self._note(line)
                self.earlier_arithmetic = makers.get(line["key"], self.earlier_arithmetic)
        self._is_introduced = self._key in makers

    def paths(self, recording: Recording) -> dict[str, Path]:
        """Format to file."""
        return {name: self.folder / f"{recording.name}.{name}" for name in self._formats}

    def check(self, recordings: Sequence[Recording]) -> None:
        """Refuse, before any work, to write over audio that is to be read, or where nothing can be."""
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
        inputs = {_real_path(recording.path) for recording in recordings}
        for recording in recordings:
            for path in self.paths(recording).values():
                if _real_path(path) in inputs:
                    raise UserError(
                        f"{path}: would be written over a recording; give another --output-dir or --format"
                    )

    def begin(self, num_recordings: int, seconds_left: float) -> None:
        """Note the size of the whole job, and what this call has to do, for `show_status`."""
        size = {"recordings": num_recordings, "seconds_left": seconds_left}
        self._add({"key": self._key, "began": time.time()} | size)

    def is_done(self, recording: Recording) -> bool:
        """Check that all outputs are there, whole, and of this audio, model and settings."""
        made = self._outputs_made(recording)
        outputs = [os.path.relpath(path, self.folder) for path in self.paths(recording).values()]
        return all(output in made and made[output] == stamp_file(self.folder / output) for output in outputs)

    def fault(self, recording: Recording) -> str | None:
        """Why an earlier call of the same settings could not transcribe it, or not all of it."""
        line = self._newest.get(recording.name, {})
        is_same = line.get("key") == self._key and line.items() >= self._describe(recording).items()
        return line.get("fault") if is_same and line["stamp"] is not None else None

    def note_fault(self, recording: Recording, message: str) -> None:
        self._add(self._describe(recording) | {"fault": message})

    def write(
        self, recording: Recording, contents: Mapping[str, str], seconds: float, fault: str = ""
    ) -> None:
        """Put the outputs in their places. `contents`: format to text; `seconds` of audio.

        With a `fault` they are of a part of the audio: ours, but never done.
        """
        self.require_free(recording)
        paths = self.paths(recording)
        others = self._outputs_made(recording)
        for path in paths.values():
            self._remove_remains(path)
        line = self._describe(recording)
        outputs = [os.path.relpath(path, self.folder) for path in paths.values()]
        self._add(line | {"outputs": dict.fromkeys(outputs)})
        for name, path in paths.items():
            with replace_file(path) as file:
                file.write(contents[name].encode())
        made = others | {output: stamp_file(self.folder / output) for output in outputs}
        ending = {"fault": fault} if fault else {"seconds": seconds}
        self._add(line | {"outputs": made} | ending)
        for key in [key for key in self._segments if key[0] == recording.name]:
            journal, _ = self._segments.pop(key)
            with contextlib.suppress(OSError):
                journal.path.unlink(missing_ok=True)

    def require_free(self, recording: Recording) -> None:
        """Refuse to write over a file that is not ours, or of something else, and names that are too long."""
        for path in self.paths(recording).values():
            if len(os.fsencode(path.name)) > MAX_NAME_BYTES:
                raise UserError(
                    f"{path.name}: a name of more than {MAX_NAME_BYTES} bytes, too long for an output; "
                    "rename the recording"
                )
            there, output = stamp_file(path), os.path.relpath(path, self.folder)
            if there is None:
                continue
            line = self._announced.get(output)
            if line is None:
                problem = "is there already, and was not written here by `asr transcribe`"
            elif line["outputs"][output] not in (None, there):
                problem = "was changed after `asr transcribe` had written it"
            elif line["audio"] != os.path.abspath(recording.path) and os.path.lexists(line["audio"]):
                problem = f"is of another recording, {line['audio']}"
            else:
                continue
            raise UserError(f"{path}: {problem}; move it away, or give another --output-dir")

    def _outputs_made(self, recording: Recording) -> dict[str, Stamp | None]:
        """Outputs that earlier calls made of the same audio with the same settings, in whatever format."""
        line = self._newest.get(recording.name, {})
        is_same = line.items() >= self._describe(recording).items() and line["stamp"] is not None
        return dict(line["outputs"]) if is_same and "seconds" in line else {}

    def _remove_remains(self, path: Path) -> None:
        """Remove the unfinished file that a call left behind which was killed while it wrote this output."""
        line = self._announced.get(os.path.relpath(path, self.folder))
        if line is None or None not in line["outputs"].values():
            return
        for remains in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
            with contextlib.suppress(OSError):
                remains.unlink()

    # --- finished segments of a recording that is on its way --------------------------------------

    def find_segment(self, segment: AudioSegment, kind: pydantic.TypeAdapter[Value]) -> Value | None:
        """Find what an earlier call has decoded of the same segment."""
        if segment.recording.path == STANDARD_INPUT:  # it is not there again
            return None
        _, known = self._open_segments(segment.recording)
        place = segment.start, segment.end
        try:
            return kind.validate_python(known[place])
        except (KeyError, pydantic.ValidationError):
            known.pop(place, None)
            return None

    def add_segment(self, segment: AudioSegment, value: dict[str, Any]) -> None:
        """Keep what was decoded of a segment until the outputs of its recording are written."""
        if segment.recording.path == STANDARD_INPUT:
            return
        journal, known = self._open_segments(segment.recording)
        if (segment.start, segment.end) not in known:
            if not known:
                journal.add({"of": self._describe(segment.recording)})
            journal.add({"place": [segment.start, segment.end], "value": value})
            known[segment.start, segment.end] = None  # not asked for again

    def _open_segments(self, recording: Recording) -> tuple[Journal, dict[tuple[float, float], Any]]:
        name = recording.name, recording.channel
        if name not in self._segments:
            journal = Journal(self.state / f"{hash_json(list(name))}.jsonl")
            known: dict[tuple[float, float], Any] = {}
            is_same = False
            for line in journal.read():
                if "of" in line:
                    known = {}
                    is_same = line["of"] == self._describe(recording)
                elif is_same and isinstance(line.get("place"), list):
                    known[tuple(line["place"])] = line.get("value")
            if known:
                logger.info("%s: %d segments were finished by an earlier call", recording.path, len(known))
            self._segments[name] = journal, known
        return self._segments[name]

    # --- journal --------------------------------------------------------------------------------

    def _describe(self, recording: Recording) -> dict[str, Any]:
        is_whole = not recording.start and recording.duration is None
        return {
            "name": recording.name,
            "key": self._key,
            "audio": os.path.abspath(recording.path),
            "stamp": stamp_recording(recording),
            "clip": None if is_whole else [recording.start, recording.duration],
        }

    def _note(self, line: dict[str, Any]) -> None:
        if isinstance(outputs := line.get("outputs"), dict):
            self._announced |= dict.fromkeys(outputs, line)
        self._newest[line["name"]] = line

    def _add(self, line: dict[str, Any]) -> None:
        if not self._is_introduced:
            self._journal.add({"key": self._key, "made_by": self._made_by})
            self._is_introduced = True
        self._journal.add(line)
        if "name" in line:
            self._note(line)


def stamp_recording(recording: Recording) -> Stamp | None:
    """Stamp that differs when the audio does; None where there is no audio."""
    content = recording.content
    if isinstance(content, ByteRange):
        return [content.offset, content.size, content.version]
    return stamp_file(recording.path)


def stamp_file(path: str | Path) -> Stamp | None:
    """Size and time of change; None where there is no such file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return [status.st_size, status.st_mtime_ns]


def _real_path(path: str | Path) -> str:
    try:
        return os.path.realpath(path)
    except ValueError:  # a null byte
        return str(path)


def hash_json(value: Any) -> str:
    """Sixteen hexadecimal digits that are others when the value is."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def show_status(output_dir: str) -> None:
    """Print how far the newest call is that writes to a folder."""
    journal, call, seconds_of_call = Journal(Path(output_dir) / JOURNAL), dict[str, Any](), 0.0
    newest: dict[str, dict[str, Any]] = {}
    for line in journal.read():
        if "began" in line:
            call, seconds_of_call = line, 0.0
        elif "name" in line:
            newest[line["name"]] = line
            seconds_of_call += line.get("seconds", 0.0)
    if not call:
        raise UserError(f"{output_dir}: nothing was transcribed to it; expected the --output-dir of a call")
    own = [line for line in newest.values() if line.get("key") == call["key"]]
    num_failed, num_done = (sum(name in line for line in own) for name in ("fault", "seconds"))
    seconds = sum(line.get("seconds", 0.0) for line in own)
    left = max(0.0, call["seconds_left"] - seconds_of_call)
    failed = f", {num_failed:,} failed" if num_failed else ""
    print(f"recordings  {num_done:,} of {call['recordings']:,} done{failed}")
    print(f"audio       {seconds / 3600:.2f} of {(seconds + left) / 3600:.2f} hours")
    if num_done + num_failed >= call["recordings"]:
        print("state       finished")
    elif not is_claimed(journal.path.parent):
        print("state       interrupted; the same call resumes it")
    else:
        elapsed = max(journal.path.stat().st_mtime - call["began"], 1e-3)
        minutes = round(left / seconds_of_call * elapsed / 60) if seconds_of_call else None
        print("state       running" + ("" if minutes is None else f", about {max(1, minutes)} min left"))
