"""A folder of transcripts: outputs are atomic, never overwrite other files, and a second call resumes.

The journal in the folder records once what outputs depend on, and then writes two lines for each recording,
before and after its outputs are written. From it a later call knows which outputs are complete, and which
audio, model and settings they belong to. While a recording is being decoded, its finished segments are kept
in a journal of their own, from which a later call resumes.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import logging
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from asr import __version__
from asr.audio.segmentation import STANDARD_INPUT, AudioSegment, Recording
from asr.data.storage import ByteRange
from asr.errors import UserError
from asr.families import find_family, find_model
from asr.files import replace_file, require_local

logger = logging.getLogger(__name__)

MAX_NAME_BYTES = 235  # the limit of file systems, 255, minus what the temporary name adds
STATE = ".asr-transcribe"  # subfolder for the journals
JOURNAL = f"{STATE}/journal.jsonl"

Line = dict[str, Any]
Place = tuple[float | None, ...]  # channel, start and end of a segment


class OutputFolder:
    """A folder for transcripts, with a record of what it already contains."""

    def __init__(self, folder: str | Path, formats: Sequence[str], made_by: Mapping[str, Any]) -> None:
        """`made_by` is all that the text depends on, as JSON. If it changes, nothing counts as done."""
        self.folder = Path(folder)
        self.state = self.folder / STATE
        self._formats = list(formats)
        self._made_by = json.loads(json.dumps(made_by))
        self._key = hash_json(self._made_by)
        self._journal = self.folder / JOURNAL
        self._announced: dict[str, Line] = {}  # newest line that names each output
        self._newest: dict[str, Line] = {}  # newest line of each recording, by its name
        self._lock = threading.Lock()
        self._segments: dict[str, dict[Place, Any]] = {}  # finished segments of each recording, by its name
        self._is_introduced = False
        for line in read_journal(self._journal):
            if "made_by" in line:
                self._is_introduced = self._is_introduced or line.get("key") == self._key
            elif {"name", "key", "audio", "stamp", "clip"} <= line.keys():
                self._note(line)

    def paths(self, recording: Recording) -> dict[str, Path]:
        """Return the output path of each format."""
        return {name: self.folder / f"{recording.name}.{name}" for name in self._formats}

    def check(self) -> None:
        """Refuse a folder that is not writable, before any work is done."""
        require_local(self.folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.folder).close()
        except OSError as error:
            raise UserError(
                f"{self.folder}: cannot write to it ({error.strerror}); choose another --output-dir"
            ) from None

    def is_done(self, recording: Recording) -> bool:
        """Return True if all outputs are complete and belong to this audio, model and settings."""
        made = self._outputs_made(recording)
        outputs = map(self._relative, self.paths(recording).values())
        return all(output in made and made[output] == stamp_file(self.folder / output) for output in outputs)

    def find_work(
        self, recordings: Sequence[Recording]
    ) -> tuple[list[Recording], dict[str, tuple[str, str]]]:
        """Return the recordings left to do, and by name the kind of failure and a message for failed ones.

        Audio that an earlier call with the same settings could not read is not read again until it changes.
        """
        todo, problems = [], dict[str, tuple[str, str]]()
        for recording in recordings:
            if self.is_done(recording):
                continue
            try:
                self.require_free(recording)
            except UserError as error:
                problems[recording.name] = "failed", str(error)
                continue
            if problem := self.find_problem(recording):
                again = "skipped because the file has not changed since; `touch` it to try again"
                problems[recording.name] = "failed before", f"{problem} ({again})"
            else:
                todo.append(recording)
        return todo, problems

    def find_problem(self, recording: Recording) -> str | None:
        """Return why an earlier call with the same settings failed, wholly or in part; None if it did not."""
        line = self._newest.get(recording.name, {})
        made = line.get("outputs") or {}
        outputs = map(self._relative, self.paths(recording).values()) if made else ()
        is_there = all(stamp_file(self.folder / output) == made.get(output, 0) for output in outputs)
        return line.get("error") if is_there and self._is_same(line, recording) else None

    def note_error(self, recording: Recording, message: str) -> None:
        """Record an error in audio. A pipe, or a file that cannot be opened, is not recorded but retried."""
        path = recording.path
        is_readable = os.path.isfile(path) and os.access(path, os.R_OK)
        if is_readable or isinstance(recording.content, ByteRange):
            self._add(self._describe(recording) | {"error": message})

    def write(
        self, recording: Recording, contents: Mapping[str, str], seconds: float, problem: str = ""
    ) -> None:
        """Write the outputs: `contents` maps formats to text, for `seconds` of audio.

        With a `problem`, they cover only part of the audio, so a later call may replace them.
        """
        self.require_free(recording)
        paths, line, others = self.paths(recording), self._describe(recording), self._outputs_made(recording)
        for path in paths.values():
            # Left by a call that was killed while writing.
            for remains in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
                with contextlib.suppress(OSError):
                    remains.unlink()
        outputs = [self._relative(path) for path in paths.values()]
        self._add(line | {"outputs": dict.fromkeys(outputs)})
        for name, path in paths.items():
            with replace_file(path) as file:
                file.write(contents[name].encode())
        made = others | {output: stamp_file(self.folder / output) for output in outputs}
        self._add(line | {"outputs": made} | ({"error": problem} if problem else {"seconds": seconds}))
        self._segments.pop(recording.name, None)
        with contextlib.suppress(OSError):
            self._segment_journal(recording).unlink()

    def require_free(self, recording: Recording) -> None:
        """Refuse names that are too long, and paths at which a file of other origin would be overwritten."""
        for path in self.paths(recording).values():
            if len(os.fsencode(path.name)) > MAX_NAME_BYTES:
                raise UserError(
                    f"{path.name}: the name of the output is longer than {MAX_NAME_BYTES} bytes; "
                    "rename the recording"
                )
            there, output = stamp_file(path), self._relative(path)
            if there is None:
                continue
            line = self._announced.get(output)
            if line is None:
                problem = "already exists, and was not written here by `asr transcribe`"
            elif line["outputs"][output] not in (None, there):
                problem = "was changed after `asr transcribe` wrote it"
            elif line["audio"] != os.path.abspath(recording.path) and os.path.lexists(line["audio"]):
                problem = f"belongs to another recording, {line['audio']}"
            else:
                continue
            raise UserError(f"{path}: {problem}; move it away or choose another --output-dir")

    def _outputs_made(self, recording: Recording) -> Line:
        """Return the outputs of earlier calls for the same audio and settings, in any format."""
        line = self._newest.get(recording.name, {})
        return dict(line["outputs"]) if "seconds" in line and self._is_same(line, recording) else {}

    # --- finished segments of a recording in progress ---------------------------------------------

    def find_segment(self, segment: AudioSegment) -> Any:
        """Return what an earlier call decoded for the same segment, or None."""
        with self._lock:
            return self._open_segments(segment.recording).get(_place(segment))

    def add_segment(self, segment: AudioSegment, value: Line) -> None:
        """Keep the result of a segment until the outputs of its recording are written."""
        recording = segment.recording
        if recording.path == STANDARD_INPUT:  # a pipe cannot be read again, so nothing can be resumed
            return
        with self._lock:
            known, journal = self._open_segments(recording), self._segment_journal(recording)
            if _place(segment) in known:
                return
            if not known:
                append_line(journal, {"of": self._describe(recording)})
            append_line(journal, {"place": _place(segment), "value": value})
            known[_place(segment)] = None  # the value is in the file, and this call needs it no more

    def _open_segments(self, recording: Recording) -> dict[Place, Any]:
        if recording.name not in self._segments:
            known: dict[Place, Any] = {}
            is_same = False
            for line in read_journal(self._segment_journal(recording)):
                if "of" in line:
                    known = {}
                    is_same = line["of"] == self._describe(recording)
                elif is_same and isinstance(line.get("place"), list):
                    known[tuple(line["place"])] = line.get("value")
            if known:
                logger.info("%s: %d segments were finished by an earlier call", recording.path, len(known))
            self._segments[recording.name] = known
        return self._segments[recording.name]

    def _segment_journal(self, recording: Recording) -> Path:
        return self.state / f"{hash_json(recording.name)}.jsonl"

    # --- journal --------------------------------------------------------------------------------

    def _describe(self, recording: Recording) -> Line:
        is_whole = not recording.start and recording.duration is None
        return {
            "name": recording.name,
            "key": self._key,
            "audio": os.path.abspath(recording.path),
            "stamp": stamp_recording(recording),
            "clip": None if is_whole else [recording.start, recording.duration],
        }

    def _is_same(self, line: Line, recording: Recording) -> bool:
        """Return True if a line has the same audio and settings; missing audio is never the same."""
        return line.items() >= self._describe(recording).items() and line["stamp"] is not None

    def _relative(self, path: Path) -> str:
        return os.path.relpath(path, self.folder)

    def _note(self, line: Line) -> None:
        if isinstance(outputs := line.get("outputs"), dict):
            self._announced |= dict.fromkeys(outputs, line)
        self._newest[line["name"]] = line

    def _add(self, line: Line) -> None:
        if not self._is_introduced:
            append_line(self._journal, {"key": self._key, "made_by": self._made_by})
            self._is_introduced = True
        append_line(self._journal, line)
        self._note(line)


def read_journal(path: Path) -> Iterator[Line]:
    """Read JSON Lines, skipping lines that a killed process left incomplete."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for text in file:
                with contextlib.suppress(ValueError, RecursionError):
                    if isinstance(line := json.loads(text), dict):
                        yield line
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{path}: cannot read it ({error.strerror}); choose another --output-dir") from None


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    text = json.dumps(line) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab+") as file:
            # If the last line is incomplete, end it first.
            if file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                text = "\n" + text
            file.write(text.encode())
    except OSError as error:
        raise UserError(f"{path}: cannot write the file ({error.strerror})") from None


def _place(segment: AudioSegment) -> Place:
    return segment.recording.channel, segment.start, segment.end


def stamp_recording(recording: Recording) -> list[int | str] | None:
    """Return a stamp that changes when the audio does; None if there is no audio."""
    content = recording.content
    if isinstance(content, ByteRange):
        return [content.offset, content.size, content.version]
    return stamp_file(recording.path)


def stamp_file(path: str | Path) -> list[int | str] | None:
    """Return size and modification time of a file; None if it does not exist."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return [status.st_size, status.st_mtime_ns]


def hash_json(value: Any) -> str:
    """Hash a JSON value to 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def open_folder(to: str, formats: Sequence[str], job: Any, is_elsewhere: bool) -> tuple[OutputFolder, Any]:
    """Open the output folder of a TranscriptionJob, and return it and the job with device and precision set.

    Outputs that an earlier call made on another device or with another precision are redone. `is_elsewhere`
    means that a cluster does the work, whose devices this machine may lack.
    """
    from asr.models.precision import choose_device, resolve_precision

    model, family = job.model, find_family(job.model)
    device = choose_device(job.device, is_elsewhere)
    precision = resolve_precision(job.settings.precision, device, family is not None and family.prefers_int8)
    weights = find_model(model) / "model.safetensors" if family is None else family.find_weights(model)
    stamps = {
        name: [os.path.realpath(path), path.stat().st_size, path.stat().st_mtime_ns]
        for name, path in {"model": weights, **job.resources.files}.items()
    }
    values = job.settings.model_dump(mode="json", exclude={"precision"})
    made_by: dict[str, Any] = {"settings": values, "compute_type": f"{precision} on {device.type}"}
    made_by["has_words"] = job.has_words
    if job.speakers is not None:
        files = [job.speakers.speaker_model or "", *(own.partition("=")[2] for own in job.speakers.enroll)]
        made_by["speakers"] = {**vars(job.speakers), "files": list(map(stamp_file, files))}
        if job.speakers.same_speakers and job.speakers.voices is None:
            made_by["call"] = os.urandom(16).hex()  # labels mean nothing to another call
    folder = OutputFolder(to, formats, {"version": __version__, **stamps, **made_by})
    folder.check()
    settings = job.settings.model_copy(update={"precision": precision})
    return folder, replace(job, settings=settings, device=str(device))
