"""Sources of audio in blocks of samples: files, their parts, arrays; reading ahead in a thread."""

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
from typing import IO, Annotated, Any, Literal, TypeVar

import numpy as np
import pydantic

from asr.audio import reading as audio
from asr.audio.containers import AudioContent
from asr.errors import UserError

# S samples

BLOCK_SECONDS = 1.0
Item = TypeVar("Item")


@dataclass(frozen=True)
class AudioPart:
    """A file, or a part of one, and what to call it."""

    path: str | Path
    start: float = 0.0
    """Seconds."""
    duration: float | None = None
    """Seconds; None: up to the end."""
    channel: int | None = None
    """Counted from 0; None: their mean."""
    id: str | None = None
    """Id of the transcript; None: the stem of the path."""
    on_read: Callable[[float], None] | None = None
    """Called with the seconds read so far, after each block; an exception that it raises ends the reading."""
    load: Callable[[], bytes] | None = None
    """Fetches the file where it lies elsewhere; `path` is then its name in messages."""
    is_utterance: bool = False
    """Cut out as one utterance by somebody; cut no further unless it is very long."""


@dataclass(frozen=True)
class Samples:
    """Audio that is in memory."""

    audio_S: np.ndarray
    sample_rate: int


@dataclass(frozen=True)
class Content:
    """A file that is in memory, or opened."""

    file: IO[bytes]
    name: str = ""


AudioFile = str | Path | AudioPart
Source = AudioFile | Samples | Content
AudioInput = Any
"""A path or AudioPart; an array or tensor, with its sample rate; (array, rate); a file as bytes or opened; or
a dictionary of Hugging Face's datasets: array and sampling_rate, or bytes and path."""
Channels = Literal["mix", "separate"] | Annotated[int, pydantic.Field(ge=1)]


def make_source(given: AudioInput, sample_rate: int | None = None) -> Source:
    """Turn anything that holds audio into a source."""
    if isinstance(given, Mapping):
        values = given.get("array", given.get("raw"))
        if values is not None:
            given = (np.asarray(values), given.get("sampling_rate"))
        elif given.get("bytes") is not None:
            given = Content(io.BytesIO(given["bytes"]), str(given.get("path") or ""))
        else:
            given = given.get("path")
    if isinstance(given, tuple) and len(given) == 2 and sample_rate is None:
        kinds = ", ".join(type(part).__name__ for part in given)
        given, sample_rate = given
        if not hasattr(given, "ndim"):
            raise UserError(f"a pair of ({kinds}): expected (array, sample_rate)")
    if callable(getattr(given, "numpy", None)):  # a tensor, wherever it is
        given = given.detach().cpu().float().numpy() if given.is_floating_point() else given.cpu().numpy()
    if isinstance(given, np.ndarray):
        return make_samples(given, sample_rate)
    if sample_rate is not None:
        raise UserError("sample_rate belongs to an array of samples; a file tells its own")
    if isinstance(given, bytes | bytearray | memoryview):
        return Content(io.BytesIO(given))
    if isinstance(given, io.TextIOBase):
        raise UserError("a file opened as text: expected one opened in binary mode, open(path, 'rb')")
    if callable(getattr(given, "read", None)):
        return Content(given, str(getattr(given, "name", "")))
    if isinstance(given, str | Path | AudioPart | Samples | Content):
        return given
    raise UserError(
        f"audio of type {type(given).__name__}: expected a path, an array or tensor with its sample_rate, "
        "(array, sample_rate), bytes of a file, a file opened in binary mode, or a dictionary with array and "
        "sampling_rate, or bytes"
    )


def make_samples(audio_S: np.ndarray, sample_rate: int | None) -> Samples:
    """Check samples: mono audio in [-1, 1] alone, as integers would be noise at full blast."""
    if sample_rate is None:
        raise UserError("an array needs its sample_rate: transcribe(array, sample_rate=16000)")
    if not isinstance(sample_rate, int | np.integer):
        raise UserError(f"sample rate {sample_rate!r}: expected Hz, as in (array, 16000)")
    if audio_S.ndim == 2 and 1 in audio_S.shape:  # as torchaudio and soundfile give one channel
        audio_S = audio_S.reshape(-1)
    if audio_S.ndim != 1 or audio_S.dtype.kind != "f":
        raise UserError(
            f"an array of shape {audio_S.shape} and type {audio_S.dtype}: expected one channel, (samples,), "
            "of floats in [-1, 1]; take the mean of the channels, divide 16-bit integers by 32768"
        )
    limit = audio.MAX_LEVEL
    if len(audio_S) and not (audio_S.min() >= -limit and audio_S.max() <= limit):
        raise UserError("an array with samples that are not numbers, or far outside of [-1, 1]; check it")
    return Samples(audio_S.astype(np.float32, copy=False), int(sample_rate))


def describe_source(source: Source) -> tuple[str, str, float]:
    """The id of its transcript, its path ("" for an array), and the time of its first sample."""
    if isinstance(source, Samples):
        return "", "", 0.0
    if isinstance(source, Content):
        return Path(source.name).stem, source.name, 0.0
    if isinstance(source, AudioPart):
        return source.id or Path(source.path).stem, str(source.path), source.start
    return Path(source).stem, str(source), 0.0


def split_channels(source: Source, channels: Channels) -> list[Source]:
    """Split a source into what is transcribed by itself: the mean of all channels, each of them, or one."""
    if channels == "mix" or isinstance(source, Samples):
        return [source]
    if isinstance(source, Content):
        raise UserError("channels of a file in memory: only their mean is read; write it to disk first")
    part = source if isinstance(source, AudioPart) else AudioPart(source)
    if part.channel is not None:
        return [part]
    if channels != "separate":
        return [replace(part, channel=channels - 1)]
    try:
        num_channels = audio.read_info(part.path, _load(part)).num_channels
    except UserError:
        return [part]  # what is wrong is said when it is read
    if not 1 < num_channels <= audio.MAX_MIXED_CHANNELS:
        return [part]
    return [replace(part, channel=channel) for channel in range(num_channels)]


def read_source(
    source: Source, sample_rate: int, on_damage: audio.OnDamage | None = None
) -> Iterator[np.ndarray]:
    """float32 (samples,) in blocks. Silence is no error here: nothing is said in it."""
    if isinstance(source, Samples):
        samples = audio.resample(source.audio_S, source.sample_rate, sample_rate)
        size = round(BLOCK_SECONDS * sample_rate)
        yield from (samples[first : first + size] for first in range(0, len(samples), size))
        return
    with _open(source) as (part, content):
        seconds = 0.0
        for block in audio.read_blocks(
            part.path,
            sample_rate,
            block_seconds=BLOCK_SECONDS,
            start=part.start,
            duration=part.duration,
            channel=part.channel,
            allow_silence=True,
            on_damage=on_damage,
            content=content,
        ):
            seconds += len(block) / sample_rate
            if part.on_read is not None:
                part.on_read(seconds)
            yield block


def _load(part: AudioPart) -> bytes | None:
    return None if part.load is None else part.load()


@contextlib.contextmanager
def _open(source: AudioFile | Content) -> Iterator[tuple[AudioPart, AudioContent | None]]:
    """The part to read, and its file where it has no path: on disk, since decoders jump about in it."""
    if not isinstance(source, Content):
        part = source if isinstance(source, AudioPart) else AudioPart(source)
        yield part, _load(part)
        return
    name = source.name or "the audio in memory"
    with tempfile.TemporaryFile(buffering=0) as copy:
        try:
            shutil.copyfileobj(source.file, copy)
        except OSError as error:
            raise UserError(f"{name}: cannot be read ({error.strerror})") from None
        yield AudioPart(name), copy


class _End:
    """Mark behind the last item, or in place of the rest when there was an error."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def read_ahead(items: Iterable[Item], max_waiting: int) -> Generator[Item]:
    """The same items, made in a thread while the caller works on those before; at most so many wait.

    Close the iterator (contextlib.closing) to end the thread before the items do.
    """
    waiting: queue.Queue[Item | _End] = queue.Queue(max_waiting)
    is_closed = threading.Event()

    def put(item: Item | _End) -> None:
        while not is_closed.is_set():
            try:
                return waiting.put(item, timeout=0.1)
            except queue.Full:
                continue

    def work() -> None:
        end = _End()
        try:
            for item in items:
                put(item)
                if is_closed.is_set():
                    return
        except BaseException as error:
            end = _End(error)
        put(end)

    thread = threading.Thread(target=work, name="read-ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := waiting.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        is_closed.set()
        thread.join()
