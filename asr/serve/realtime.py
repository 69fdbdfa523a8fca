"""A live transcription session: events of OpenAI's realtime API in and out, text as someone speaks

A thread takes the audio through `transcribe_live`, as `asr transcribe --stream` does. What ends a segment
ends an item: a pause, or the commit of a client that finds the turns itself.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import io
import json
import logging
import queue
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from asr.audio.segmentation import SegmentationConfig
from asr.config import Config
from asr.errors import UserError
from asr.serve.api import (
    ApiError,
    Prompt,
    ServerVad,
    ShortText,
    describe_fault,
    describe_usage,
    name_as_openai,
    refuse,
)
from asr.serve.live import MAX_PAUSE_SECONDS, LiveText, LiveTranscriber, transcribe_live
from asr.serve.scheduler import Client, WithdrawnError
from asr.serve.service import ServedModel, Service, describe_unknown, end_tasks
from asr.transcription.transcribe import Request
from asr.transcripts.transcript import Segment, Word

logger = logging.getLogger(__name__)

PIECE_SECONDS = 0.1  # of audio that is handed on at once
MAX_BACKLOG = 300  # pieces that wait; then the client has to
MAX_OUTBOX_BYTES = 1 << 20  # that a client may leave unread


# --- what a client may ask for --------------------------------------------------------------------


class Pcm(Config):
    """Format of 16-bit little-endian samples of one channel."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: int = pydantic.Field(default=24_000, ge=8_000, le=48_000)

    def decode(self, content: bytes) -> np.ndarray:
        return np.frombuffer(content, "<i2").astype(np.float32) / 32768


class G711(Config):
    """8 kHz in 8 bits: mu-law or A-law."""

    type: Literal["audio/pcmu", "audio/pcma"]

    @property
    def rate(self) -> int:
        return 8_000

    def decode(self, content: bytes) -> np.ndarray:
        import soundfile

        subtype = "ULAW" if self.type == "audio/pcmu" else "ALAW"
        raw: dict[str, Any] = {"format": "RAW", "subtype": subtype, "samplerate": self.rate, "channels": 1}
        return soundfile.read(io.BytesIO(content), dtype="float32", **raw)[0]


class SessionTranscription(Config):
    model: ShortText | None = None
    language: ShortText | None = None
    prompt: Prompt = ""


class InputOptions(Config):
    format: Annotated[Pcm | G711, pydantic.Field(discriminator="type")] = Pcm()
    noise_reduction: None = None
    transcription: SessionTranscription = SessionTranscription()
    turn_detection: ServerVad | None = ServerVad(type="server_vad")


class AudioOptions(Config):
    input: InputOptions = InputOptions()


class SessionOptions(Config):
    """Fields of `session.update`."""

    type: Literal["transcription"] = "transcription"
    audio: AudioOptions = AudioOptions()
    include: tuple[Literal["asr.tentative", "asr.words"], ...] = ()


# --- the session ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Settings:
    """Settings of the audio that follows."""

    model: ServedModel
    options: SessionOptions

    def make_request(self) -> Request:
        asked = self.options.audio.input.transcription
        return self.model.make_request(language=asked.language, prompt=asked.prompt)

    def make_segmentation(self) -> SegmentationConfig:
        vad, usual = self.options.audio.input.turn_detection, self.model.transcriber.segmentation
        return usual if vad is None else vad.apply(usual)


# Beside audio and settings in the inbox: the audio so far is a turn, is to be forgotten, is the last.
_COMMIT, _CLEAR, _FINISH = "commit", "clear", "finish"


class _ClearedError(Exception):
    """Ends a turn whose audio is to be forgotten."""


@dataclass
class _Turn:
    """The audio between two commits, or of a whole session that has none."""

    settings: _Settings
    offset: float
    """Seconds of the session before it."""
    seconds: float = 0.0
    item: str = ""
    """Id of the one that is being spoken; "" in a pause."""
    segments: list[Segment] = field(default_factory=list)
    """Final segments of the current item, of a client that commits."""
    separator: str = " "

    def shift(self, word: Word) -> Word:
        """The same with times from the start of the session."""
        return replace(word, start=self.offset + word.start, end=self.offset + word.end)

    @property
    def options(self) -> InputOptions:
        return self.settings.options.audio.input


class Session:
    """Understands the events of one client, and answers them by `send`, from its own thread."""

    def __init__(
        self,
        models: dict[str, ServedModel],
        model: ServedModel,
        client: Client,
        send: Callable[[dict[str, object] | None], None],
    ) -> None:
        """`send` takes None after the last event."""
        self._models, self._client, self._send_event = models, client, send
        self._settings = _Settings(model, SessionOptions())
        self._inbox: queue.Queue[Any] = queue.Queue()
        self._has_audio = False  # since the last commit
        self._last_item: str | None = None
        self._id = _make_id("sess")
        self._describe_session("session.created")
        threading.Thread(target=self._work, args=(self._settings,), name="live", daemon=True).start()

    @property
    def is_behind(self) -> bool:
        """State of a session in which so much audio waits that the client should."""
        return self._inbox.qsize() > MAX_BACKLOG

    # --- events of the client, on the event loop ----------------------------------------------------

    def handle(self, text: str) -> None:
        """Take one event. Whatever is wrong with it becomes an error event."""
        event: Any = None
        try:
            with contextlib.suppress(ValueError, RecursionError):
                event = json.loads(text)
            if not isinstance(event, dict):
                event = {}
                raise refuse("event", "is no JSON object", "invalid_json")
            kind = event.get("type")
            if kind == "session.update":
                self._update(event.get("session"))
            elif kind == "input_audio_buffer.append":
                self._append(event.get("audio"))
            elif kind in ("input_audio_buffer.commit", "input_audio_buffer.clear"):
                is_commit = kind.endswith("commit")
                if is_commit and not self._has_audio:
                    raise refuse("input_audio_buffer", "is empty", "input_audio_buffer_commit_empty")
                self._has_audio = False
                self._inbox.put(_COMMIT if is_commit else _CLEAR)
            else:
                raise refuse("type", f"{kind!r:.60} is no event of a transcription session")
        except (pydantic.ValidationError, ApiError, UserError) as error:
            fault = describe_fault(error) if isinstance(error, pydantic.ValidationError) else error
            fault = fault if isinstance(fault, ApiError) else ApiError(400, str(fault))
            self._send("error", error=fault.describe() | {"event_id": event.get("event_id")})

    def _update(self, session: object) -> None:
        """Settings that are not given stay as they are."""
        if not isinstance(session, dict):
            raise refuse("session", "is missing; give an object")
        merged = _merge(self._settings.options.model_dump(mode="json"), session)
        options = SessionOptions.model_validate_json(json.dumps(merged))
        name = options.audio.input.transcription.model
        if name is not None and name not in self._models:
            raise refuse("session.audio.input.transcription.model", describe_unknown(name, self._models))
        settings = _Settings(self._settings.model if name is None else self._models[name], options)
        settings.make_request(), settings.make_segmentation()  # refuse what does not fit
        self._settings = settings
        self._inbox.put(settings)
        self._describe_session("session.updated")

    def _append(self, audio: object) -> None:
        if not isinstance(audio, str):
            raise refuse("audio", "is missing; give base64")
        try:
            content = base64.b64decode(audio, validate=True)
        except (binascii.Error, ValueError):
            raise refuse("audio", "is not base64") from None
        input_format = self._settings.options.audio.input.format
        if isinstance(input_format, Pcm) and len(content) % 2:
            raise refuse("audio", f"{len(content)} bytes are not whole samples of 16 bits")
        samples = input_format.decode(content)
        size = round(PIECE_SECONDS * input_format.rate)
        for first in range(0, len(samples), size):
            self._inbox.put(samples[first : first + size])
        self._has_audio = self._has_audio or bool(len(samples))

    def finish(self) -> None:
        """End the session after what has come."""
        self._inbox.put(_FINISH)

    def close(self) -> None:
        """End it at once; nobody listens."""
        for model in self._models.values():
            model.scheduler.cancel(self._client)
        self._inbox.put(_FINISH)

    # --- recognizing, in the thread -----------------------------------------------------------------

    def _work(self, settings: _Settings) -> None:
        seconds, ended_by = 0.0, None
        try:
            while ended_by != _FINISH:
                turn = _Turn(settings, seconds)
                ended_by = self._take_turn(turn)
                seconds += turn.seconds
                settings = ended_by if isinstance(ended_by, _Settings) else settings
        except WithdrawnError:
            pass
        finally:
            with contextlib.suppress(WithdrawnError):
                self._send_event(None)

    def _take_turn(self, turn: _Turn) -> object:
        """The audio up to the next event that ends a turn; that event, or None after a failure."""
        ended_by: list[object] = []
        chunks = self._chunks(turn, ended_by)
        try:
            live, rate = self._make_transcriber(turn.settings), turn.options.format.rate
            for text in transcribe_live(chunks, live, rate, is_late=lambda: not self._inbox.empty()):
                self._take_text(turn, text)
            if turn.options.turn_detection is None and turn.seconds:
                self._complete(turn, turn.segments, turn.seconds)
        except _ClearedError:
            self._send("input_audio_buffer.cleared")
        except WithdrawnError:
            raise
        except Exception as error:
            if not isinstance(error, UserError):
                logger.exception("a live turn failed")
            self._fail(turn, error)
            if not ended_by and not turn.seconds:  # it will fail again
                with contextlib.suppress(_ClearedError):
                    deque(chunks, maxlen=0)
        return ended_by[0] if ended_by else None

    def _chunks(self, turn: _Turn, ended_by: list[object]) -> Iterator[np.ndarray]:
        while True:
            message = self._inbox.get()
            if not isinstance(message, np.ndarray):
                ended_by.append(message)
                if message == _CLEAR:
                    raise _ClearedError
                return
            turn.seconds += len(message) / turn.options.format.rate
            yield message

    def _take_text(self, turn: _Turn, text: LiveText) -> None:
        turn.separator = text.separator
        segment = text.segment
        if turn.options.turn_detection is None:
            turn.segments += [segment] if segment is not None else []
            return
        words = text.agreed + text.tentative
        if not turn.item and (words or (segment is not None and segment.text)):
            turn.item = _make_id("item")
            start = words[0].start if words else segment.start if segment is not None else 0.0
            milliseconds = round(1000 * (turn.offset + start))
            self._send("input_audio_buffer.speech_started", audio_start_ms=milliseconds, item_id=turn.item)
        if segment is None:
            if words and "asr.tentative" in turn.settings.options.include:
                agreed, tentative = text.join(text.agreed), text.join(text.tentative)
                self._send("asr.tentative", item_id=turn.item, agreed=agreed, text=tentative)
        elif turn.item:
            milliseconds = round(1000 * (turn.offset + segment.end))
            self._send("input_audio_buffer.speech_stopped", audio_end_ms=milliseconds, item_id=turn.item)
            self._complete(turn, [segment], segment.end - segment.start)

    def _complete(self, turn: _Turn, segments: list[Segment], seconds: float) -> None:
        """Everything about an item whose text is final."""
        item = turn.item or _make_id("item")
        self._send("input_audio_buffer.committed", item_id=item, previous_item_id=self._last_item)
        content = [{"type": "input_audio", "transcript": None}]
        described = {"id": item, "object": "realtime.item", "type": "message", "status": "completed"}
        message = described | {"role": "user", "content": content}
        for kind in ("added", "done"):
            self._send(f"conversation.item.{kind}", item=message, previous_item_id=self._last_item)
        place: dict[str, Any] = {"item_id": item, "content_index": 0}
        kind, text = "conversation.item.input_audio_transcription", ""
        for segment in segments:
            if segment.text:
                delta = (turn.separator if text else "") + segment.text
                self._send(f"{kind}.delta", **place, delta=delta)
                text += delta
        if "asr.words" in turn.settings.options.include:
            words = [name_as_openai(turn.shift(word)) for segment in segments for word in segment.words]
            self._send("asr.words", item_id=item, words=words)
        self._send(f"{kind}.completed", **place, transcript=text, usage=describe_usage(seconds))
        self._last_item, turn.item = item, ""

    def _fail(self, turn: _Turn, error: Exception) -> None:
        fault = ApiError(500, "the server failed at this; its log says more", code="transcription_failed")
        if isinstance(error, UserError):
            fault = ApiError(400, str(error), code="transcription_failed")
        kind, item = "conversation.item.input_audio_transcription.failed", turn.item or _make_id("item")
        self._send(kind, item_id=item, content_index=0, error=fault.describe())
        turn.item = ""

    def _make_transcriber(self, settings: _Settings) -> LiveTranscriber:
        vad, pause = settings.options.audio.input.turn_detection, MAX_PAUSE_SECONDS
        if vad is not None and vad.silence_duration_ms is not None:
            pause = vad.silence_duration_ms / 1000
        transcriber = settings.model.scheduler.transcriber_for(self._client)
        transcriber.segmentation = settings.make_segmentation()
        return LiveTranscriber(transcriber, settings.make_request(), pause)

    # --- events of the server -----------------------------------------------------------------------

    def _send(self, kind: str, **values: object) -> None:
        self._send_event({"type": kind, "event_id": _make_id("event"), **values})

    def _describe_session(self, kind: str) -> None:
        session = self._settings.options.model_dump(mode="json")
        session["audio"]["input"]["transcription"]["model"] = self._settings.model.name
        self._send(kind, session={"id": self._id, "object": "realtime.transcription_session", **session})


def _make_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:24]}"


def _merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Section by section; one of another type replaces the old one."""
    merged = dict(old)
    for key, value in new.items():
        before = old.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            is_same_type = value.get("type", before.get("type")) == before.get("type")
            value = _merge(before, value) if is_same_type else value
        merged[key] = value
    return merged


# --- the socket -----------------------------------------------------------------------------------


async def run_session(websocket: WebSocket, service: Service, model: ServedModel, client: Client) -> None:
    """Run until the client leaves, the server shuts down, or the client leaves too much unread."""
    loop = asyncio.get_running_loop()
    outbox: asyncio.Queue[str | None] = asyncio.Queue()
    unread = 0

    def enqueue(text: str | None) -> None:
        nonlocal unread
        unread += len(text or "")
        outbox.put_nowait(text)

    def send(event: dict[str, object] | None) -> None:
        text = None if event is None else json.dumps(event, ensure_ascii=False)
        try:
            loop.call_soon_threadsafe(enqueue, text)
        except RuntimeError:  # the loop has ended
            raise WithdrawnError from None

    session = Session(service.models, model, client, send)

    async def receive() -> None:
        while (message := await websocket.receive())["type"] != "websocket.disconnect":
            session.handle(message.get("text") or "")
            while session.is_behind or unread > MAX_OUTBOX_BYTES:
                await asyncio.sleep(0.05)

    async def deliver() -> None:
        nonlocal unread
        while (text := await outbox.get()) is not None:
            await websocket.send_text(text)
            unread -= len(text)

    async def watch() -> None:
        """Finish where the server shuts down; end at once where nobody reads what is sent."""
        while unread <= MAX_OUTBOX_BYTES:
            if service.is_draining:
                session.finish()
            await asyncio.sleep(0.2)

    tasks = [asyncio.create_task(work()) for work in (receive, deliver, watch)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        session.close()
        await end_tasks(*tasks)
        code = 1012 if service.is_draining else 1013 if unread > MAX_OUTBOX_BYTES else 1000
        if websocket.client_state is WebSocketState.CONNECTED:
            with contextlib.suppress(RuntimeError, WebSocketDisconnect, asyncio.TimeoutError):
                await asyncio.wait_for(websocket.close(code), 1)
