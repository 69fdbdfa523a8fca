"""Live transcription: chunks of samples in, text out while someone speaks.

The segment that is being spoken is decoded again, from its start, each time that STEP_SECONDS more of it
have come. Words on which two decodings in a row agree are shown as such (local agreement); the last of them
is still held back, as it may go on. A pause, or the longest segment, ends a segment: it is decoded as a
whole, and that text is final, as good as that of a file. In a pause this is done as soon as the segment is
the one that a longer pause would end, so that its text is there by then. When decoding falls behind the
audio, only whole segments are decoded.

Why decoding again, and not an encoder that works by chunks: any model can do it, also one trained on whole
utterances with full attention and statistics over the utterance. It costs more: a segment of S seconds is
decoded S / STEP_SECONDS times, so the real-time factor is about S / (2 * STEP_SECONDS) times that of a file.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, TextIO, cast

import numpy as np

from asr.audio.ffmpeg import open_ffmpeg
from asr.audio.reading import mix, read_blocks, resample_pieces
from asr.audio.segmentation import AudioSegment, Segmenter
from asr.errors import AudioError, UserError
from asr.transcription.transcribe import Request, Transcriber
from asr.transcripts.transcript import Segment, Word, keep_words

logger = logging.getLogger(__name__)

STEP_SECONDS = 0.5  # of new audio between two decodings of a segment: less is sooner, and costs more
MAX_PAUSE_SECONDS = 1.0  # a longer one ends a segment, also where that of a file may have longer ones
OPENING_SECONDS = 30.0  # of speech, by which the language is detected
BEHIND_SECONDS = 3.0  # a delay that is worth a warning; at a third of it, decoding has caught up
CLEAR_LINE = "\r\x1b[K"


@dataclass(frozen=True)
class LiveText:
    """Text known after some audio."""

    agreed: tuple[Word, ...]
    """Words of the segment that is being spoken, on which two decodings agree: these stay until it ends."""
    tentative: tuple[Word, ...]
    """Partial words after the stable ones; the next decoding may change them."""
    seconds: float
    """Seconds of audio that had come."""
    segment: Segment | None = None
    """The segment that ended here: its text is final. Times count from the first sample."""
    separator: str = " "
    """Between two words, in the detected language."""

    def join(self, words: Iterable[Word]) -> str:
        return self.separator.join(word.text for word in words)


class LiveTranscriber:
    """Recognizer of live audio: mono samples in chunks of any length; keeps no more audio than a segment.

    `push` returns what became known by this chunk, `finish` what is left. Not for several threads at once.
    """

    def __init__(
        self,
        recognizer: Transcriber,
        request: Request | None = None,
        max_pause_seconds: float = MAX_PAUSE_SECONDS,
    ) -> None:
        self.recognizer = recognizer
        self.request = request or Request()
        self.sample_rate = recognizer.sample_rate
        rules = recognizer.segmentation.with_rules()
        pause = min(max_pause_seconds, rules.max_pause_seconds)
        rules = rules.with_rules(
            max_pause_seconds=pause, padding_seconds=min(rules.padding_seconds, pause / 2)
        )
        self._segmenter = Segmenter(self.sample_rate, rules, is_live=True)
        self._last: list[Word] = []  # the newest decoding of the segment that is being spoken
        self._agreed: list[Word] = []
        self._final_until = 0.0  # end of the last word of the segment before
        self._decoded_until = 0.0
        self._paused_at = 0.0  # end of the newest segment that was decoded in a pause
        self._prepared: tuple[AudioSegment, Segment] | None = None
        self._seconds_in: dict[str, float] = {}  # by language, of finished segments

    def push(self, samples_S: np.ndarray, is_late: bool = False) -> list[LiveText]:
        """`is_late`: more audio waits already, so that only segments that end here are decoded."""
        if samples_S.ndim != 1 or samples_S.dtype.kind != "f" or not np.isfinite(samples_S).all():
            raise UserError(
                f"a chunk of shape {samples_S.shape} and type {samples_S.dtype}: expected finite mono "
                "samples, (samples,), of floats in [-1, 1]"
            )
        texts = [self._end(segment) for segment in self._segmenter.push(samples_S.astype(np.float32))]
        seconds = self._segmenter.seconds
        if is_late:
            return texts
        if (ending := self._segmenter.ending()) is not None:
            if self._paused_at != ending.end:
                self._paused_at = self._decoded_until = ending.end
                texts.append(self._prepare(ending))
        elif seconds - self._decoded_until >= STEP_SECONDS:
            self._decoded_until = seconds
            if (current := self._segmenter.current()) is not None:
                texts.append(self._update(self._recognize(current, self._usual_language, is_tentative=True)))
        return texts

    def finish(self) -> list[LiveText]:
        """Return what was not final yet, after the last chunk."""
        return [self._end(segment) for segment in self._segmenter.finish()]

    def _prepare(self, ending: AudioSegment) -> LiveText:
        """Decode a segment that will end unless someone goes on to speak."""
        found = self._recognize(ending, self._language_of_whole, is_tentative=True)
        # Without warnings there would have been no second attempts either.
        self._prepared = None if found.warnings else (ending, found)
        return self._update(found)

    def _update(self, found: Segment) -> LiveText:
        """Text to show after a segment has been decoded before its end."""
        words = self._new_words(found.words)
        num_agreed = _count_common(self._last, words)
        self._last = words
        if _count_common(self._agreed, words) == len(self._agreed):
            num_agreed = max(len(self._agreed), min(num_agreed, len(words) - 1))
            self._agreed, tentative = words[:num_agreed], words[num_agreed:]
        else:  # what was shown as agreed stays, until the whole segment is decoded
            tentative = [word for word in words if word.middle > self._agreed[-1].end]
        separator = self.recognizer.separator_in(found.language)
        return LiveText(tuple(self._agreed), tuple(tentative), self._segmenter.seconds, separator=separator)

    def _end(self, segment: AudioSegment) -> LiveText:
        """Decode a whole segment, if that is not done yet."""
        whole = self._take_prepared(segment)
        if whole is None:
            whole = self._recognize(segment, self._language_of_whole)
        if whole.language is not None:
            seconds = segment.end - segment.start
            self._seconds_in[whole.language] = self._seconds_in.get(whole.language, 0.0) + seconds
        cut = segment.cut_after
        # What begins at a cut is whole in the next segment, which overlaps this one.
        words = [w for w in self._new_words(whole.words) if cut is None or w.middle < cut]
        if words:
            self._final_until = words[-1].end
        self._last, self._agreed = [], []
        separator = self.recognizer.separator_in(whole.language)
        ended = keep_words(whole, words, separator)
        return LiveText((), (), self._segmenter.seconds, ended, separator)

    def _take_prepared(self, segment: AudioSegment) -> Segment | None:
        prepared, self._prepared = self._prepared, None
        if prepared is None or segment.cut_after is not None:
            return None
        ending, found = prepared
        is_same = ending.start == segment.start and len(ending.audio_S) == len(segment.audio_S)
        return found if is_same else None

    def _recognize(self, segment: AudioSegment, language: str | None, is_tentative: bool = False) -> Segment:
        """Recognize a segment; a language that is not given is told by the segment itself."""
        request = self.recognizer.tentatively(self.request) if is_tentative else self.request
        if language is not None:
            request = self.recognizer.in_language(request, language)
        (found,) = self.recognizer.recognize([segment], request)
        return found

    @property
    def _language_of_whole(self) -> str | None:
        is_known = sum(self._seconds_in.values()) >= OPENING_SECONDS
        return self._usual_language if is_known else None

    @property
    def _usual_language(self) -> str | None:
        """Language of most of the speech so far, as a short segment may sound like any."""
        return max(self._seconds_in, key=self._seconds_in.__getitem__, default=None)

    def _new_words(self, words: Iterable[Word]) -> list[Word]:
        """Words after the previous segment. Between decodings times move a little, less than half a word."""
        return [word for word in words if word.middle > self._final_until]


def _count_common(before: list[Word], after: list[Word]) -> int:
    """Count the words that both begin with."""
    pairs = zip(before, after, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a.text != b.text), min(len(before), len(after)))


def transcribe_live(
    chunks: Iterable[np.ndarray],
    transcriber: LiveTranscriber,
    sample_rate: int,
    is_late: Callable[[], bool] = lambda: False,
) -> Iterator[LiveText]:
    """Transcribe chunks that come at `sample_rate`, resampled on the way where the model has another.

    `is_late` tells whether more audio waits. What came before an error is decoded to its end.
    """
    try:
        for piece in resample_pieces(chunks, sample_rate, transcriber.sample_rate):
            yield from transcriber.push(piece, is_late())
    except UserError:
        yield from transcriber.finish()
        raise
    yield from transcriber.finish()


# --- writing --------------------------------------------------------------------------------------


class Delay:
    """How long the audio that is being decoded had to wait in a pipe."""

    def __init__(self) -> None:
        self.seconds = self.most = self.audio_seconds = 0.0
        self._is_behind = False

    def watch(self, pieces: Iterable[np.ndarray], sample_rate: int, pipe: PipeReader) -> Iterator[np.ndarray]:
        """The same pieces; says when decoding falls behind, and when it has caught up."""
        for piece in pieces:
            self.audio_seconds += len(piece) / sample_rate
            self.seconds = time.monotonic() - pipe.arrived
            self.most = max(self.seconds, self.most)
            if not self._is_behind and self.seconds > BEHIND_SECONDS:
                self._is_behind = True
                logger.warning(
                    "decoding is %.1f s behind the audio: whole segments only until it has caught up; "
                    "nothing is lost, and a smaller model is faster",
                    self.seconds,
                )
            elif self._is_behind and self.seconds < BEHIND_SECONDS / 3:
                self._is_behind = False
                logger.info("decoding has caught up with the audio")
            yield piece


def write_live(texts: Iterable[LiveText], out: TextIO, as_json: bool, delay: Delay) -> None:
    """Write each text: a line for each segment that is final.

    A terminal shows below it what may still change. As JSON there is a line for each text in which anything
    is new or has changed.
    """
    is_terminal = out.isatty()
    shown = ["", ""]
    for text in texts:
        line = text.join((*text.agreed, *text.tentative)) if text.segment is None else text.segment.text
        newest = [text.join(text.agreed), text.join(text.tentative)]
        if as_json:
            if text.segment is not None or newest != shown:
                out.write(json.dumps(_describe(text, line, delay), ensure_ascii=False) + "\n")
        elif text.segment is not None:
            out.write((CLEAR_LINE if is_terminal else "") + (line + "\n" if line else ""))
        elif is_terminal:
            width = shutil.get_terminal_size().columns - 1
            out.write(CLEAR_LINE + line[-width:])
        shown = newest
        out.flush()


def _describe(text: LiveText, line: str, delay: Delay) -> dict[str, object]:
    ended = text.segment
    return {
        "seconds": round(text.seconds, 3),
        "text": line,
        "final": [] if ended is None else [word.to_dict() for word in ended.words],
        "agreed": [word.to_dict() for word in text.agreed],
        "tentative": [word.to_dict() for word in text.tentative],
        "segment_ends": ended is not None,
        "warnings": [] if ended is None else list(ended.warnings),
        "behind": round(delay.seconds, 2),
    }


# --- from a pipe: a thread takes out what comes, so that whoever records never waits --------------

NAME = Path("standard input")
PCM_RATE = 16_000  # Hz
PIECE_BYTES = PCM_RATE // 10 * 2  # of PCM that is handed on at once
HEAD_BYTES = 4096
# A day of PCM is three gigabytes. Only after two hours behind, whoever records has to wait.
MAX_WAITING_BYTES = 1 << 28
# FFmpeg looks at so much before it decodes, for what the header does not tell.
PROBE = {"probesize": "32768", "analyzeduration": "100000"}


class PipeReader:
    """Reader of a pipe; keeps what comes until it is read, with the time when it came."""

    def __init__(self, source: BinaryIO) -> None:
        # Not the buffer of standard input, which would be locked when the program ends.
        self._source = getattr(source, "raw", source)
        self._waiting: deque[tuple[bytes, float]] = deque()
        self._num_waiting = 0
        self._changed = threading.Condition()
        self._is_over = False
        self._error: OSError | None = None
        self.arrived = time.monotonic()
        """Arrival time of the chunk that was read last."""
        threading.Thread(target=self._drain, name="live-input", daemon=True).start()

    @property
    def waiting_bytes(self) -> int:
        return self._num_waiting

    def read(self, size: int) -> bytes:
        """Read what came next, at most so much, as soon as there is any; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_over)
            if not self._waiting:
                if self._error is not None:
                    raise UserError(f"{NAME}: cannot be read ({self._error.strerror})")
                return b""
            content, self.arrived = self._waiting.popleft()
            if len(content) > size:
                self._waiting.appendleft((content[size:], self.arrived))
                content = content[:size]
            self._num_waiting -= len(content)
            self._changed.notify_all()
            return content

    def peek(self, size: int) -> bytes:
        """The first bytes, or all there are until the end, without taking them."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_waiting >= size or self._is_over)
            return b"".join(content for content, _ in self._waiting)[:size]

    def _drain(self) -> None:
        try:
            while (content := self._source.read(1 << 16)) != b"":
                if content is None:  # a pipe that does not block
                    time.sleep(0.01)
                    continue
                with self._changed:
                    if self._num_waiting > MAX_WAITING_BYTES:
                        logger.warning("%s: too much waits to be decoded; the pipe has to wait", NAME)
                        self._changed.wait_for(lambda: self._num_waiting <= MAX_WAITING_BYTES)
                    self._waiting.append((content, time.monotonic()))
                    self._num_waiting += len(content)
                    self._changed.notify_all()
        except OSError as error:
            self._error = error
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()


def read_live(
    pipe: PipeReader, sample_rate: int, channel: int | None = None
) -> tuple[Iterator[np.ndarray], int]:
    """Mono pieces as they come, and their rate: that of raw PCM, else the one that is wanted."""
    head = pipe.peek(HEAD_BYTES)
    if is_container(head):
        return _read_stream(pipe.read, head, sample_rate, channel), sample_rate
    if channel is not None:
        raise UserError(
            "--channels: raw PCM on standard input has one; leave it out, or give it a WAV header"
        )
    return decode_pcm(iter(lambda: pipe.read(PIECE_BYTES), b"")), PCM_RATE


def decode_pcm(chunks: Iterable[bytes]) -> Iterator[np.ndarray]:
    """float32 samples of raw mono PCM: 16-bit little-endian, in chunks that may end within a sample."""
    rest = b""
    for chunk in chunks:
        content = rest + chunk
        whole = len(content) - len(content) % 2
        rest = content[whole:]
        if whole:
            yield np.frombuffer(content[:whole], "<i2").astype(np.float32) / 32768


# --- raw, or a format ---------------------------------------------------------------------------

# First bytes of what FFmpeg reads. MP3 and AAC without a tag have none, but each frame tells its length.
_CONTAINERS = (
    *(b"RIFF", b"RIFX", b"RF64", b"riff", b"FORM", b"caff", b"fLaC", b"OggS", b"NIST", b"ID3", b".snd"),
    *(b"wvpk", b"#!AMR", b"MAC ", b"TTA1", b"FLV\x01", b"Creative Voice"),
    *(b"\x1a\x45\xdf\xa3", b"\x30\x26\xb2\x75"),  # Matroska and WebM; ASF, which is WMA
)
# FFmpeg makes noise of the first, and ends in the others where it would have to go back.
_NOT_STREAMED = (b"RIFX", b"wvpk", b"caff")
_MP3_KILOBITS = (
    (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)


def is_container(head: bytes) -> bool:
    """Tell a stream that names its format from raw PCM. `head`: the first 4 kB."""
    if head.startswith(_CONTAINERS) or head[4:8] == b"ftyp" or head[::188][:3] == b"GGG":  # MP4, MPEG-TS
        return True
    place = num_frames = 0
    while (length := _measure_frame(head[place : place + 6])) > 0 and num_frames < 3:
        num_frames, place = num_frames + 1, place + length
    return num_frames == 3


def _measure_frame(header: bytes) -> int:
    """Bytes of a frame of MP3 or of AAC (ADTS) that begins so; 0 where none does."""
    if len(header) < 6 or header[0] != 0xFF or header[1] < 0xE0:
        return 0
    if header[1] & 0xF6 == 0xF0:  # ADTS
        return (header[3] & 3) << 11 | header[4] << 3 | header[5] >> 5
    version, layer, padding = header[1] >> 3 & 3, header[1] >> 1 & 3, header[2] >> 1 & 1
    bitrate, rate = header[2] >> 4, header[2] >> 2 & 3
    if version == 1 or layer != 1 or bitrate in (0, 15) or rate == 3:
        return 0
    is_first = version == 3  # MPEG-1; the others have half the samples a frame
    kilobits = _MP3_KILOBITS[0 if is_first else 1][bitrate - 1]
    hertz = (44_100, 48_000, 32_000)[rate] // {3: 1, 2: 2, 0: 4}[version]
    return (144_000 if is_first else 72_000) * kilobits // hertz + padding


# --- formats ------------------------------------------------------------------------------------


def _read_stream(
    read: Callable[[int], bytes], head: bytes, sample_rate: int, channel: int | None
) -> Iterator[np.ndarray]:
    """float32 (samples,) as soon as they can be decoded. `read` gives the next bytes, b"" at the end.

    Where FFmpeg has to go back, as in an MP4 with its index at the end, it is read to its end first.
    """
    from av.error import FFmpegError

    faults = (FFmpegError, ValueError, OSError)
    with tempfile.TemporaryFile(buffering=0) as copy, contextlib.ExitStack() as stack:
        is_kept = True  # until decoding has begun

        def read_kept(size: int) -> bytes:
            content = read(size)
            if is_kept:
                copy.write(content)
            return content

        try:
            if head.startswith(_NOT_STREAMED):
                raise ValueError
            media = stack.enter_context(open_ffmpeg(SimpleNamespace(read=read_kept), **PROBE))
            pieces = _decode(media, channel)
            first = next(pieces, np.zeros(0, np.float32))
        except AudioError:
            raise
        except faults:
            logger.info("%s: cannot be decoded as it comes; it is read to its end first", NAME)
            while read_kept(1 << 16):
                pass
            content = cast(BinaryIO, copy)
            yield from read_blocks(NAME, sample_rate, block_seconds=1.0, channel=channel, content=content)
            return
        is_kept = False
        try:
            rate = media.streams.audio[0].codec_context.sample_rate
            yield from resample_pieces(itertools.chain([first], pieces), rate, sample_rate)
        except faults as error:
            raise AudioError(f"{NAME}: cannot be decoded any further ({error})") from None


def _decode(media: Any, channel: int | None) -> Iterator[np.ndarray]:
    import av

    if not media.streams.audio:
        raise AudioError(f"{NAME}: has no sound track; give audio, or a video with sound")
    to_float: Any = av.AudioResampler(format="fltp")  # keeps rate and channels
    for frame in media.decode(audio=0):
        for one in to_float.resample(frame):
            frames_TC = one.to_ndarray().T
            if channel is not None and channel >= frames_TC.shape[1]:
                raise AudioError(
                    f"{NAME}: has {frames_TC.shape[1]} channels; --channels {channel + 1} is none of them"
                )
            yield mix(frames_TC, channel, NAME)
