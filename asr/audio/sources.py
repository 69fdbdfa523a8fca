"""Recordings on their way in: files, their parts and arrays, read in blocks; reading ahead in a thread."""

from __future__ import annotations

import contextlib
import io
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Annotated, Any, BinaryIO, Literal, Protocol, TypeVar, cast

import numpy as np
import pydantic

from asr.audio import reading as audio
from asr.audio.reading import AudioContent
from asr.errors import UserError

# S samples

BLOCK_SECONDS = 1.0
STANDARD_INPUT = "-"
Item = TypeVar("Item")


class Fetch(Protocol):
    """A function that fetches a file from elsewhere, such as a ByteRange."""

    def __call__(self) -> bytes: ...


@dataclass(frozen=True)
class Recording:
    """A recording on its way in, or a part of one: a file, samples, or what fetches a file."""

    path: str | Path = ""
    """Path as given or found; "-" for standard input, "" for samples."""
    id: str = ""
    """Id of its transcript, and where its outputs go below a folder; without one, the stem of the path."""
    start: float = 0.0
    """Seconds."""
    duration: float | None = None
    """Seconds; None: up to the end."""
    channel: int | None = None
    """Counted from 0; None: their mean."""
    content: np.ndarray | IO[bytes] | Fetch | None = None
    """Mono samples, an opened file, or what fetches a file from elsewhere; `path` is then its name. None: the
    file at `path`."""
    sample_rate: int | None = None
    """Sample rate of `samples`."""
    is_utterance: bool = False
    """Cut out as one utterance by somebody; cut no further unless it is very long."""
    on_read: Callable[[float], None] | None = None
    """Called with the seconds read so far, after each block; an exception that it raises ends the reading."""

    @property
    def name(self) -> str:
        """The id of its transcript."""
        return self.id or Path(self.path).stem


AudioFile = str | Path | Recording
AudioInput = Any
"""A path or Recording; an array or tensor, with its sample rate; (array, rate); a file as bytes or opened; or
a dictionary of Hugging Face's datasets: array and sampling_rate, or bytes and path."""
Channels = Literal["mix", "separate"] | Annotated[int, pydantic.Field(ge=1)]


def make_recording(given: AudioInput, sample_rate: int | None = None) -> Recording:
    """Turn anything that holds audio into a recording."""
    if isinstance(given, Mapping):
        values = given.get("array", given.get("raw"))
        if values is not None:
            given = (np.asarray(values), given.get("sampling_rate"))
        elif given.get("bytes") is not None:
            given = Recording(str(given.get("path") or ""), content=io.BytesIO(given["bytes"]))
        else:
            given = given.get("path")
    if isinstance(given, tuple) and len(given) == 2 and sample_rate is None:
        given, sample_rate = given
    if callable(getattr(given, "numpy", None)):  # a tensor, wherever it is
        given = given.detach().cpu().float().numpy() if given.is_floating_point() else given.cpu().numpy()
    if isinstance(given, np.ndarray):
        return make_samples(given, sample_rate)
    if sample_rate is not None:
        raise UserError("sample_rate belongs to an array of samples; a file tells its own")
    if isinstance(given, Recording):
        return given
    if isinstance(given, str | Path):
        return Recording(given)
    if isinstance(given, bytes | bytearray | memoryview):
        return Recording(content=io.BytesIO(given))
    if callable(getattr(given, "read", None)) and not isinstance(given, io.TextIOBase):
        return Recording(str(getattr(given, "name", "")), content=given)
    raise UserError(
        f"audio of type {type(given).__name__}: expected a path, an array or tensor with its sample_rate, "
        "(array, sample_rate), bytes of a file, a file opened in binary mode, or a dictionary with array and "
        "sampling_rate, or bytes"
    )


def make_samples(audio_S: np.ndarray, sample_rate: int | None) -> Recording:
    """Check samples: mono audio in [-1, 1] alone, as integers would be noise at full blast."""
    rates = range(audio.MIN_SAMPLE_RATE, audio.MAX_SAMPLE_RATE + 1)
    if not isinstance(sample_rate, int | np.integer) or int(sample_rate) not in rates:
        raise UserError(
            f"an array with sample_rate {sample_rate!r}: expected Hz, transcribe(array, sample_rate=16000)"
        )
    if audio_S.ndim == 2 and 1 in audio_S.shape:  # as torchaudio and soundfile give one channel
        audio_S = audio_S.reshape(-1)
    if audio_S.ndim != 1 or audio_S.dtype.kind != "f":
        raise UserError(
            f"an array of shape {audio_S.shape} and type {audio_S.dtype}: expected one channel, (samples,), "
            "of floats in [-1, 1]; take the mean of the channels, divide 16-bit integers by 32768"
        )
    if len(audio_S) and not np.abs(audio_S).max() <= audio.MAX_LEVEL:
        raise UserError("an array with samples that are not numbers, or far outside of [-1, 1]; check it")
    return Recording(content=audio_S.astype(np.float32, copy=False), sample_rate=int(sample_rate))


def split_channels(recording: Recording, channels: Channels) -> list[Recording]:
    """Split into what is transcribed by itself: the mean of all channels, each of them, or one."""
    if channels == "mix" or isinstance(recording.content, np.ndarray) or recording.channel is not None:
        return [recording]
    if recording.content is not None and not callable(recording.content):
        raise UserError("channels of a file in memory: only their mean is read; write it to disk first")
    if channels != "separate":
        return [replace(recording, channel=channels - 1)]
    try:
        num_channels = audio.read_info(recording.path, _load(recording)).num_channels
    except UserError:
        return [recording]  # what is wrong is said when it is read
    if not 1 < num_channels <= audio.MAX_MIXED_CHANNELS:
        return [recording]
    return [replace(recording, channel=channel) for channel in range(num_channels)]


def read_recording(
    recording: Recording, sample_rate: int, on_damage: audio.OnDamage | None = None
) -> Iterator[np.ndarray]:
    """float32 (samples,) in blocks. Silence is no error here: nothing is said in it."""
    if isinstance(recording.content, np.ndarray):
        assert recording.sample_rate is not None
        samples = audio.resample(recording.content, recording.sample_rate, sample_rate)
        size = round(BLOCK_SECONDS * sample_rate)
        yield from (samples[first : first + size] for first in range(0, len(samples), size))
        return
    with _open(recording) as (name, content):
        seconds = 0.0
        for block in audio.read_blocks(
            name,
            sample_rate,
            block_seconds=BLOCK_SECONDS,
            start=recording.start,
            duration=recording.duration,
            channel=recording.channel,
            allow_silence=True,
            on_damage=on_damage,
            content=content,
        ):
            seconds += len(block) / sample_rate
            if recording.on_read is not None:
                recording.on_read(seconds)
            yield block


def _load(recording: Recording) -> bytes | None:
    return recording.content() if callable(recording.content) else None


@contextlib.contextmanager
def _open(recording: Recording) -> Iterator[tuple[str | Path, AudioContent | None]]:
    """Name and content of a file; one without a path goes to the disk, since decoders jump about in it."""
    opened = recording.content
    if opened is None or callable(opened):
        yield recording.path, _load(recording)
        return
    if isinstance(opened, io.FileIO) and opened.seekable():  # on the disk, and nothing is in a buffer
        yield recording.path, cast(BinaryIO, opened)
        return
    assert not isinstance(opened, np.ndarray)
    name = "standard input" if recording.path == STANDARD_INPUT else recording.path or "the audio in memory"
    with tempfile.TemporaryFile(buffering=0) as copy:
        try:
            shutil.copyfileobj(opened, copy)
        except OSError as error:
            raise UserError(f"{name}: cannot be read ({error.strerror})") from None
        yield name, copy


def read_ahead(items: Iterable[Item], max_waiting: int) -> Generator[Item]:
    """The same items, made in a thread while the caller works on those before; at most so many wait.

    Close the iterator (contextlib.closing) to end the thread before the items do.
    """
    waiting: queue.Queue[Any] = queue.Queue(max_waiting)
    is_closed, is_over = threading.Event(), object()
    errors: list[BaseException] = []

    def put(item: Any) -> None:
        while not is_closed.is_set():
            with contextlib.suppress(queue.Full):
                return waiting.put(item, timeout=0.1)

    def work() -> None:
        try:
            for item in items:
                put(item)
                if is_closed.is_set():
                    return
        except BaseException as error:
            errors.append(error)
        put(is_over)

    thread = threading.Thread(target=work, name="read-ahead", daemon=True)
    thread.start()
    try:
        while (item := waiting.get()) is not is_over:
            yield item
        for error in errors:
            raise error
    finally:
        is_closed.set()
        thread.join()
