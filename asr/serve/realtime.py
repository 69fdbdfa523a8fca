"""A live transcription session: OpenAI's realtime API, with text while someone is still speaking.

A thread passes the audio to `transcribe_live`, as `asr transcribe --stream` does. Each item of the API is
one segment, which ends at a pause, or at a commit if the client finds the turns itself.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import io
import json
import logging
import queue
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pydantic
from anyio import to_thread
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from asr.config import Config
from asr.errors import UserError, shorten
from asr.serve.api import (
    ApiError,
    Prompt,
    ServerVad,
    ShortText,
    describe_error,
    describe_usage,
    name_as_openai,
    refuse,
)
from asr.serve.live import MAX_PAUSE_SECONDS, LiveText, LiveTranscriber, listen, transcribe_live
from asr.serve.scheduler import Client, WithdrawnError
from asr.serve.service import THREADS, ServedModel, Service, describe_unknown, end_tasks
from asr.transcripts.transcript import Segment, Word

logger = logging.getLogger(__name__)

PIECE_SECONDS = 0.1  # audio is passed on in pieces of this length
MAX_BACKLOG = 300  # pieces in the inbox (30 s); with more, no further event is read from the client
GONE = "websocket.disconnect"
SEND_SECONDS = 20.0  # a client that takes longer to read one event is disconnected


# --- settings of a session ------------------------------------------------------------------------


class AudioFormat(Config):
    """16-bit little-endian samples of one channel, or mu-law or A-law at 8 kHz."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] = "audio/pcm"
    rate: int = pydantic.Field(default=24_000, ge=8_000, le=48_000)
    """Sampling rate in Hz, for audio/pcm only."""

    @property
    def hertz(self) -> int:
        return self.rate if self.type == "audio/pcm" else 8_000

    def decode(self, content: bytes) -> np.ndarray:
        import soundfile

        subtype = {"audio/pcm": "PCM_16", "audio/pcmu": "ULAW", "audio/pcma": "ALAW"}[self.type]
        raw: dict[str, Any] = {"format": "RAW", "endian": "LITTLE", "samplerate": self.hertz, "channels": 1}
        return soundfile.read(io.BytesIO(content), dtype="float32", subtype=subtype, **raw)[0]


class SessionTranscription(Config):
    model: ShortText | None = None
    language: ShortText | None = None
    prompt: Prompt = ""


class InputOptions(Config):
    format: AudioFormat = AudioFormat()
    noise_reduction: None = None
    transcription: SessionTranscription = SessionTranscription()
    turn_detection: ServerVad | None = ServerVad(type="server_vad")


class AudioOptions(Config):
    input: InputOptions = InputOptions()


class SessionOptions(Config):
    """The `session` of a `session.update` event."""

    type: Literal["transcription"] = "transcription"
    audio: AudioOptions = AudioOptions()
    include: tuple[Literal["asr.partial", "asr.words"], ...] = ()


# --- the session ----------------------------------------------------------------------------------

# What the inbox holds apart from audio and settings: end this turn, discard this turn, end the session.
_COMMIT, _CLEAR, _FINISH = "commit", "clear", "finish"
Settings = tuple[ServedModel, SessionOptions]
TRANSCRIPTION = "conversation.item.input_audio_transcription"


class _ClearedError(Exception):
    """Ends a turn whose audio is discarded."""


@dataclass
class _Turn:
    """The audio between two commits, or the whole session if there are none."""

    settings: Settings
    offset: float  # start of the turn, in seconds of the session
    seconds: float = 0.0
    ended_by: object = None
    item: str = ""  # id of the item being spoken; "" during a pause
    segments: list[Segment] = field(default_factory=list)
    """Final segments of the current item, if the client commits."""
    separator: str = " "

    @property
    def input(self) -> InputOptions:
        return self.settings[1].audio.input

    def shift(self, word: Word) -> Word:
        """Count the times of a word from the start of the session."""
        return replace(word, start=self.offset + word.start, end=self.offset + word.end)


class Session:
    """Handles the events of one client and answers with `send`, which must not run in the event loop."""

    def __init__(
        self,
        models: dict[str, ServedModel],
        model: ServedModel,
        client: Client,
        send: Callable[[dict[str, object]], None],
    ) -> None:
        self._models, self._client, self._send_event = models, client, send
        self._settings = model, SessionOptions()
        self._inbox: queue.Queue[Any] = queue.Queue()
        self._inbox.put(self._settings)
        self._has_audio = False  # since the last commit
        self._last_item: str | None = None
        self._id = _make_id("sess")

    @property
    def is_behind(self) -> bool:
        """True while so much audio is waiting that no more should be read from the client."""
        return self._inbox.qsize() > MAX_BACKLOG

    # --- events of the client -----------------------------------------------------------------------

    def handle(self, text: str) -> None:
        """Handle one event, and answer an invalid one with an error event."""
        event: Any = None
        try:
            with contextlib.suppress(ValueError, RecursionError):
                event = json.loads(text)
            if not isinstance(event, dict):
                event = {}
                raise refuse("event", "is not a JSON object", "invalid_json")
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
                raise refuse("type", f"{shorten(kind)} is not an event of a transcription session")
        except (pydantic.ValidationError, ApiError, UserError) as error:
            problem = describe_error(error) if isinstance(error, pydantic.ValidationError) else error
            problem = problem if isinstance(problem, ApiError) else ApiError(400, str(problem))
            self._send("error", error=problem.describe() | {"event_id": event.get("event_id")})

    def _update(self, session: object) -> None:
        """Change the settings that the event contains, and keep the others."""
        if not isinstance(session, dict):
            raise refuse("session", "is missing or not an object; add it")
        model, options = self._settings
        merged = _merge(options.model_dump(mode="json"), session)
        options = SessionOptions.model_validate_json(json.dumps(merged))
        if (name := options.audio.input.transcription.model) is not None:
            if name not in self._models:
                raise refuse("session.audio.input.transcription.model", describe_unknown(name, self._models))
            model = self._models[name]
        self._listen(model, options)  # raises an error if the settings do not suit the model
        self._settings = model, options
        self._inbox.put(self._settings)
        self.describe("session.updated")

    def _append(self, audio: object) -> None:
        try:
            content = base64.b64decode(audio if isinstance(audio, str) else "?", validate=True)
        except ValueError:
            raise refuse("audio", "is missing or not base64; send encoded samples") from None
        audio_format = self._settings[1].audio.input.format
        if audio_format.type == "audio/pcm" and len(content) % 2:
            raise refuse("audio", f"{len(content)} bytes are not a whole number of 16-bit samples")
        samples = audio_format.decode(content)
        size = round(PIECE_SECONDS * audio_format.hertz)
        for first in range(0, len(samples), size):
            self._inbox.put(samples[first : first + size])
        self._has_audio = self._has_audio or bool(len(samples))

    def expire(self, seconds: float) -> None:
        """Tell the client, which sends nothing, that the session ends."""
        problem = f"nothing came for {seconds:g} s, so the session ends; open another one when there is audio"
        self._send("error", error=ApiError(408, problem, code="session_expired").describe())

    def close(self) -> None:
        """End the session at once, because the client has left."""
        for model in self._models.values():
            model.scheduler.cancel(self._client)
        self._inbox.put(_FINISH)

    # --- recognizing --------------------------------------------------------------------------------

    def work(self) -> None:
        """Transcribe turn after turn until the session ends."""
        seconds, settings, ended_by = 0.0, self._inbox.get(), None
        while ended_by != _FINISH:
            turn = _Turn(settings, seconds)
            self._take_turn(turn)
            seconds, ended_by = seconds + turn.seconds, turn.ended_by
            settings = ended_by if isinstance(ended_by, tuple) else settings

    def _take_turn(self, turn: _Turn) -> None:
        """Transcribe the audio up to the next event that ends a turn, or up to an error."""
        try:
            live, chunks = self._listen(*turn.settings), self._chunks(turn)
            for text in transcribe_live(
                chunks, live, turn.input.format.hertz, lambda: not self._inbox.empty()
            ):
                self._take_text(turn, text)
            if turn.input.turn_detection is None and turn.seconds:
                self._complete(turn, turn.segments, turn.seconds)
        except _ClearedError:
            self._send("input_audio_buffer.cleared")
        except WithdrawnError:
            raise
        except Exception as error:
            problem = ApiError(500, "the server failed to transcribe this turn", code="transcription_failed")
            if isinstance(error, UserError):
                problem = ApiError(400, str(error), code="transcription_failed")
            else:
                logger.exception("a live turn failed")
            item, turn.item = turn.item or _make_id("item"), ""
            self._send(f"{TRANSCRIPTION}.failed", item_id=item, content_index=0, error=problem.describe())

    def _chunks(self, turn: _Turn) -> Iterator[np.ndarray]:
        while isinstance(message := self._inbox.get(), np.ndarray):
            turn.seconds += len(message) / turn.input.format.hertz
            yield message
        turn.ended_by = message
        if message == _CLEAR:
            raise _ClearedError

    def _listen(self, model: ServedModel, options: SessionOptions) -> LiveTranscriber:
        audio, pause = options.audio.input, None
        vad = audio.turn_detection
        transcriber = model.scheduler.transcriber_for(self._client)
        if vad is not None:
            transcriber.segmentation = vad.apply(transcriber.segmentation)
            pause = vad.silence_duration_ms and vad.silence_duration_ms / 1000
        fields = audio.transcription
        request = model.make_request(language=fields.language, prompt=fields.prompt)
        return listen(transcriber, request, pause or MAX_PAUSE_SECONDS)

    def _take_text(self, turn: _Turn, text: LiveText) -> None:
        turn.separator = text.separator
        segment, words = text.segment, text.stable + text.partial
        if turn.input.turn_detection is None:
            turn.segments += [segment] if segment is not None else []
            return
        if not turn.item and (words or (segment is not None and segment.text)):
            turn.item = _make_id("item")
            start = words[0].start if words else segment.start if segment is not None else 0.0
            milliseconds = round(1000 * (turn.offset + start))
            self._send("input_audio_buffer.speech_started", audio_start_ms=milliseconds, item_id=turn.item)
        if segment is None:
            if words and "asr.partial" in turn.settings[1].include:
                stable, partial = text.join(text.stable), text.join(text.partial)
                self._send("asr.partial", item_id=turn.item, stable=stable, text=partial)
        elif turn.item:
            milliseconds = round(1000 * (turn.offset + segment.end))
            self._send("input_audio_buffer.speech_stopped", audio_end_ms=milliseconds, item_id=turn.item)
            self._complete(turn, [segment], segment.end - segment.start)

    def _complete(self, turn: _Turn, segments: list[Segment], seconds: float) -> None:
        """Send all events about an item whose text is final."""
        item = turn.item or _make_id("item")
        self._send("input_audio_buffer.committed", item_id=item, previous_item_id=self._last_item)
        content = [{"type": "input_audio", "transcript": None}]
        described = {"id": item, "object": "realtime.item", "type": "message", "status": "completed"}
        message = described | {"role": "user", "content": content}
        for kind in ("added", "done"):
            self._send(f"conversation.item.{kind}", item=message, previous_item_id=self._last_item)
        location: dict[str, Any] = {"item_id": item, "content_index": 0}
        text = ""
        for segment in segments:
            if segment.text:
                delta = (turn.separator if text else "") + segment.text
                self._send(f"{TRANSCRIPTION}.delta", **location, delta=delta)
                text += delta
        if "asr.words" in turn.settings[1].include:
            words = [name_as_openai(turn.shift(word)) for segment in segments for word in segment.words]
            self._send("asr.words", item_id=item, words=words)
        self._send(f"{TRANSCRIPTION}.completed", **location, transcript=text, usage=describe_usage(seconds))
        self._last_item, turn.item = item, ""

    # --- events of the server -----------------------------------------------------------------------

    def describe(self, kind: str) -> None:
        """Send the settings of the session."""
        model, options = self._settings
        session = options.model_dump(mode="json")
        session["audio"]["input"]["transcription"]["model"] = model.name
        self._send(kind, session={"id": self._id, "object": "realtime.transcription_session", **session})

    def _send(self, kind: str, **values: object) -> None:
        self._send_event({"type": kind, "event_id": _make_id("event"), **values})


def _make_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:24]}"


def _merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Replace values; inside sections, only those that `new` contains."""
    merged = dict(old)
    for key, value in new.items():
        is_section = isinstance(old.get(key), dict) and isinstance(value, dict)
        merged[key] = _merge(old[key], value) if is_section else value
    return merged


# --- the socket -----------------------------------------------------------------------------------


async def run_session(websocket: WebSocket, service: Service, model: ServedModel, client: Client) -> None:
    """Run a session until the client leaves or no longer reads."""
    loop = asyncio.get_running_loop()
    in_thread = functools.partial(to_thread.run_sync, abandon_on_cancel=True, limiter=THREADS)

    def send(event: dict[str, object]) -> None:
        """Send an event and wait until it is sent, so that a slow reader slows down only its own session."""
        if loop.is_closed():  # the transcribing thread may outlive the event loop
            raise WithdrawnError
        text = json.dumps(event, ensure_ascii=False)
        try:
            asyncio.run_coroutine_threadsafe(websocket.send_text(text), loop).result(SEND_SECONDS)
        except Exception:
            raise WithdrawnError from None

    session = Session(service.models, model, client, send)

    async def receive() -> None:
        await in_thread(session.describe, "session.created")
        seconds = service.config.max_idle_seconds
        try:
            while (message := await asyncio.wait_for(websocket.receive(), seconds))["type"] != GONE:
                await in_thread(session.handle, message.get("text") or "")
                while session.is_behind:
                    await asyncio.sleep(0.05)
        except asyncio.TimeoutError:
            await in_thread(session.expire, seconds)

    tasks = [asyncio.create_task(work) for work in (receive(), in_thread(session.work))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        session.close()
        await end_tasks(*tasks)
        if websocket.client_state is WebSocketState.CONNECTED:
            with contextlib.suppress(RuntimeError, WebSocketDisconnect, asyncio.TimeoutError):
                await asyncio.wait_for(websocket.close(), 1)
