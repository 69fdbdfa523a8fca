"""The HTTP app: its routes, and around them the checks, limits, log lines and metrics of each request."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import json
import logging
import math
import re
import time
import uuid
from collections.abc import AsyncGenerator, Collection, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from asr.errors import UserError
from asr.serve.api import (
    LAST_EVENT,
    MEDIA_TYPES,
    ApiError,
    TranscriptionForm,
    TranslationForm,
    describe_segment,
    describe_text,
    describe_turn,
    format_body,
    format_event,
    name_as_openai,
    parse_form,
    refuse,
    too_long,
    write_edited,
)
from asr.serve.realtime import run_session
from asr.serve.scheduler import Client, GoneError, WithdrawnError
from asr.serve.service import Keys, ServeConfig, Service, end_tasks, open_upload, transcribe_upload
from asr.transcription.transcribe import Recognizer
from asr.transcripts.transcript import Segment, Transcript

logger = logging.getLogger(__name__)

PAGE = Path(__file__).parent / "page"
MAX_FIELDS = 100
MAX_TEXT_BYTES = 8 << 20  # all text fields together; enough for four recordings of known speakers
MAX_EDITED_MB = 4.0  # size of an edited transcript; four hours of speech take about 3 MB
MAX_UPLOAD_SECONDS = 600.0  # time in which a request has to arrive
QUIET_ROUTES = ("/health", "/ready", "/metrics")  # polled so often that they would flood the log
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'self'; media-src 'self' blob:; object-src 'none'; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
}


# --- files ----------------------------------------------------------------------------------------


async def _serve_file(request: Request, form_class: type[TranslationForm], task: str) -> Response:
    """Handle an upload from admission to the response."""
    service: Service = request.app.state.service
    client = Client(request.state.key)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(service.admit_request(client.key))
        form, file = await _read_form(request, form_class, stack)
        model = service.find_model(form.model)
        given: dict[str, object] = {"task": task, "prompt": form.prompt}
        vad, known_speakers = None, {}
        if isinstance(form, TranscriptionForm):
            given |= {"task": None, "language": form.language, "hotwords": form.keywords}
            vad, known_speakers = form.chunking_strategy, form.find_known_speakers()
        asked = model.make_request(**given)
        upload, seconds = await run_in_threadpool(open_upload, file.file, file.filename or "the file")
        limit, client.expected_seconds = service.config.max_audio_seconds, seconds
        if seconds > limit:
            raise too_long(limit)
        stack.enter_context(service.admit_client(client))
        request.state.log["model"] = model.name
        if form.response_format == "diarized_json":
            asked = await run_in_threadpool(service.diarize, asked, known_speakers)
        events = transcribe_upload(model, client, upload, asked, limit, vad)
        if isinstance(form, TranscriptionForm) and form.stream:
            return EventResponse(_stream(request, events, form), stack.pop_all())
        try:
            transcript = await _unless_disconnected(request, events)
        except Exception as error:
            raise as_api_error(error) from error
        request.state.log["audio_seconds"] = round(transcript.duration, 3)
        language = model.languages.get(transcript.language or "", "unknown")
        body = format_body(transcript, form, task, language)
    if isinstance(body, dict):
        return JSONResponse(body)
    headers = {"x-asr-warnings": json.dumps(transcript.warnings)} if transcript.warnings else {}
    return Response(body, media_type=MEDIA_TYPES[form.response_format], headers=headers)


class FormReader(MultiPartParser):
    """A form parser that limits the text fields, which it keeps in memory, to MAX_TEXT_BYTES in total."""

    text_bytes = 0

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._current_part.file is None:
            self.text_bytes += end - start
            if self.text_bytes > MAX_TEXT_BYTES:
                raise MultiPartException(f"the text fields are larger than {MAX_TEXT_BYTES >> 20} MB")
        super().on_part_data(data, start, end)


def _limit_body(request: Request, most_mb: float, param: str | None = None) -> Request:
    """Limit the bytes and the arrival time of a request, whatever its header promises."""
    num_bytes, deadline = 0, time.monotonic() + MAX_UPLOAD_SECONDS

    async def receive() -> Message:
        nonlocal num_bytes
        try:
            message = await asyncio.wait_for(request.receive(), deadline - time.monotonic())
        except asyncio.TimeoutError:
            problem = f"the request took longer than {MAX_UPLOAD_SECONDS:g} s to arrive"
            raise ApiError(408, problem, code="too_slow") from None
        num_bytes += len(message.get("body", b""))
        if num_bytes > 1e6 * most_mb:
            raise ApiError(413, f"the request is larger than {most_mb:g} MB", param, "too_large")
        return message

    return Request(request.scope, receive)


async def _read_form(
    request: Request, form_class: type[TranslationForm], stack: contextlib.AsyncExitStack
) -> tuple[Any, UploadFile]:
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        raise ApiError(400, f"content type {kind!r:.80}: expected multipart/form-data, as `curl -F` sends it")
    limits = {"max_files": 1, "max_fields": MAX_FIELDS, "max_part_size": MAX_TEXT_BYTES}
    body = _limit_body(request, request.app.state.service.config.max_upload_mb, "file").stream()
    try:
        data = await FormReader(request.headers, body, **limits).parse()
    except MultiPartException as error:
        raise ApiError(400, error.message) from None
    stack.push_async_callback(data.close)
    fields = [(name, value) for name, value in data.multi_items() if isinstance(value, str)]
    form, file = parse_form(fields, form_class), data.get("file")
    if not isinstance(file, UploadFile):
        raise refuse("file", "is missing; with curl, -F file=@talk.mp3", "missing_required_parameter")
    return form, file


Events = AsyncGenerator[tuple[Segment | Transcript, str]]


async def _unless_disconnected(request: Request, events: Events) -> Transcript:
    """Return the transcript, or cancel the transcription if the client disconnects first."""

    async def finish() -> Transcript:
        async with contextlib.aclosing(events):
            *_, (last, _) = [event async for event in events]
        assert isinstance(last, Transcript)
        return last

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    work, leaving = asyncio.create_task(finish()), asyncio.create_task(leave())
    try:
        await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        await end_tasks(work, leaving)


class EventResponse(StreamingResponse):
    """Server-sent events; closes `stack` when they end or the client disconnects."""

    def __init__(self, events: AsyncGenerator[str], stack: contextlib.AsyncExitStack) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            await super().__call__(scope, receive, send)


async def _stream(request: Request, events: Events, form: TranscriptionForm) -> AsyncGenerator[str]:
    """Yield the events of one transcription, whose deltas add up to its text."""
    number, has_text = 0, False
    async with contextlib.aclosing(events):
        try:
            async for event, separator in events:
                if isinstance(event, Transcript):
                    request.state.log["audio_seconds"] = round(event.duration, 3)
                    # Speakers are only known at the end, so all segments are sent there.
                    turns = event.segments if form.response_format == "diarized_json" else ()
                    for number, segment in enumerate(turns):
                        yield format_event(describe_turn(number, segment))
                        if form.include:
                            yield format_event(_describe(number, segment))
                    done = {"type": "transcript.text.done", **describe_text(event)}
                    if form.include:
                        done |= {"language": event.language, "duration": round(event.duration, 3)}
                    yield format_event(done) + LAST_EVENT
                    return
                if event.text:
                    delta = (separator if has_text else "") + event.text
                    has_text = True
                    yield format_event({"type": "transcript.text.delta", "delta": delta})
                if form.include:
                    yield format_event(_describe(number, event))
                number += 1
        except Exception as error:
            problem = as_api_error(error)
            request.state.log["error_status"] = problem.status
            note_error(problem, request.state.log)
            yield format_event({"error": problem.describe()})


def _describe(number: int, segment: Segment) -> dict[str, object]:
    described = {"words": [name_as_openai(word) for word in segment.words], "speaker": segment.speaker}
    return {"type": "asr.segment", **describe_segment(number, segment), **described}


# --- other routes ---------------------------------------------------------------------------------


async def serve_realtime(websocket: WebSocket) -> None:
    """Serve a live session; key, model and capacity are checked before the socket is accepted."""
    service: Service = websocket.app.state.service
    query = websocket.query_params
    client = Client(websocket.state.key, is_live=True)
    if query.get("intent", "transcription") != "transcription":
        raise refuse("intent", f"{query['intent']!r:.80}: only transcription sessions are supported")
    model = service.find_model(query.get("model") or next(iter(service.models)))
    with service.admit_client(client):
        offered = websocket.scope.get("subprotocols", [])
        await websocket.accept(subprotocol="realtime" if "realtime" in offered else None)
        await run_session(websocket, service, model, client)


async def show_models(request: Request) -> Response:
    service: Service = request.app.state.service
    has_speakers = service.has_speakers()
    described = [
        {"id": name, "object": "model", "created": service.created, "owned_by": "asr"}
        | {"languages": list(model.languages), "language_names": list(model.languages.values())}
        | {"default": name == next(iter(service.models)), "speakers": has_speakers}
        for name, model in service.models.items()
    ]
    if (name := request.path_params.get("name")) is None:
        return JSONResponse({"object": "list", "data": described})
    service.find_model(name)
    return JSONResponse(next(one for one in described if one["id"] == name))


async def show_ready(request: Request) -> Response:
    obstacle = request.app.state.service.find_obstacle()
    return PlainTextResponse(f"{obstacle or 'ready'}\n", 503 if obstacle else 200)


async def write_transcript(request: Request) -> Response:
    """Return a transcript edited on the web page as the file that `asr transcribe` would write."""
    with request.app.state.service.admit_request(request.state.key):
        body = await _limit_body(request, MAX_EDITED_MB).body()
        return PlainTextResponse(await run_in_threadpool(write_edited, body))


async def show_metrics(request: Request) -> Response:
    return PlainTextResponse(request.app.state.service.describe_metrics())


async def _pass_on(request: Request, error: Exception) -> Response:
    raise error  # Gate turns it into a response


transcribe = functools.partial(_serve_file, form_class=TranscriptionForm, task="transcribe")
translate = functools.partial(_serve_file, form_class=TranslationForm, task="translate")
ROUTES: list[Route | WebSocketRoute | Mount] = [
    Route("/v1/audio/transcriptions", transcribe, methods=["POST"]),
    Route("/v1/audio/translations", translate, methods=["POST"]),
    Route("/v1/asr/transcript", write_transcript, methods=["POST"]),
    Route("/v1/models", show_models),
    Route("/health", PlainTextResponse("ok\n")),
    Route("/ready", show_ready),
    Route("/metrics", show_metrics),
    WebSocketRoute("/v1/realtime", serve_realtime),
    Route("/v1/models/{name:path}", show_models),
    Mount("/", StaticFiles(directory=PAGE, html=True)),
]


def build_app(models: dict[str, Recognizer], config: ServeConfig, keys: Keys | None = None) -> Starlette:
    """Build the app for loaded models, by name; live sessions use the first by default."""
    service = Service(models, config, keys or Keys())
    gate = [Middleware(Gate, service=service)]
    app = Starlette(routes=ROUTES, middleware=gate, exception_handlers={HTTPException: _pass_on})
    app.state.service = service
    return app


class DrainingServer(uvicorn.Server):
    """A server that, after a signal, refuses new requests with 503 until those in progress are finished."""

    def __init__(self, config: uvicorn.Config, service: Service, drain_seconds: float) -> None:
        super().__init__(config)
        self._service, self._seconds, self._drain_until = service, drain_seconds, math.inf

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._service.is_draining or not self._service.num_requests:
            super().handle_exit(sig, frame)
        self._service.is_draining = True
        self._drain_until = time.monotonic() + self._seconds

    async def on_tick(self, counter: int) -> bool:
        is_idle = self._service.is_draining and not self._service.num_requests
        return await super().on_tick(counter) or is_idle or time.monotonic() > self._drain_until


# --- around all routes ----------------------------------------------------------------------------


class Gate:
    """Middleware that checks key and origin of each request, gives it an id, and logs and counts it."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        started, status = time.monotonic(), 499  # stays 499 if the client leaves before a response
        log: dict[str, object] = {"request_id": uuid.uuid4().hex, "route": scope["path"][:200]}
        state = scope.setdefault("state", {})
        state |= {"log": log, "key": ""}

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = str(log["request_id"])
                headers.update(SECURITY_HEADERS)
            elif message["type"] == "websocket.accept":
                status = 101
            await send(message)

        try:
            self._check(scope, state)
            await self._app(scope, receive, send_on)
        except asyncio.CancelledError:
            if scope["type"] != "http" or status != 499 or not self._service.is_draining:
                raise
            await answer(ApiError(503, "the server has been shut down"))(scope, receive, send_on)
        except Exception as error:
            problem = as_api_error(error)
            if isinstance(error, UserError):  # about settings, because errors about files are ApiErrors
                problem = ApiError(400, str(error))
            note_error(problem, log)
            if status == 499:
                await answer(problem)(scope, receive, send_on)
        finally:
            seconds = time.monotonic() - started
            route = scope["path"] if scope["path"] in [one.path for one in ROUTES] else "other"
            self._service.answers[route, status] += 1
            level = logging.DEBUG if route in QUIET_ROUTES else logging.INFO
            fields = log | {"key": state["key"], "status": status, "seconds": round(seconds, 3)}
            logger.log(level, "request %s", json.dumps(fields, ensure_ascii=False))

    def _check(self, scope: Scope, state: dict[str, Any]) -> None:
        """Refuse a wrong host, origin or key."""
        headers = Headers(scope=scope)
        origin, host = headers.get("origin"), headers.get("host", "")
        if not self._service.keys and not _is_own_host(host, self._service.config.hosts):
            message = f"host {host!r:.80} is not allowed; add it to the server's setting hosts"
            raise ApiError(403, message, code="host_not_allowed")
        allowed = (None, f"http://{host}", f"https://{host}", *self._service.config.origins)
        if origin not in allowed:
            message = f"pages from {origin!r:.80} are not allowed; add it to the server's setting origins"
            raise ApiError(403, message, code="origin_not_allowed")
        if scope["path"].startswith("/v1/"):
            state["key"] = self._service.keys.identify(_find_key(headers, scope.get("subprotocols", [])))


def _is_own_host(host: str, hosts: Collection[str]) -> bool:
    """Accept only IP addresses, localhost and listed names, to prevent DNS rebinding by web pages."""
    name = re.sub(r":\d*$", "", host.lower())
    try:
        return name == "localhost" or name in hosts or bool(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return False


def _find_key(headers: Headers, subprotocols: Sequence[str]) -> str | None:
    """Find the key in the header or, because browsers cannot set it for a WebSocket, in a subprotocol."""
    kind, _, key = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return key.strip()
    prefix = "openai-insecure-api-key."
    return next((one.removeprefix(prefix) for one in subprotocols if one.startswith(prefix)), None)


def note_error(problem: ApiError, log: dict[str, object]) -> None:
    """Add an error to the log line of its request, with a traceback if it is internal."""
    log["error"] = problem.message
    if problem.code == "internal_error":
        logger.exception("request %s failed", log["request_id"])


def answer(problem: ApiError) -> JSONResponse:
    return JSONResponse({"error": problem.describe()}, problem.status, problem.headers)


def as_api_error(error: Exception) -> ApiError:
    """Turn an exception into an API error: 4xx if the client caused it, otherwise 5xx."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail), headers=error.headers)
    if isinstance(error, UserError):
        return ApiError(400, str(error), "file", "unsupported_file")
    if isinstance(error, GoneError):
        return ApiError(503, "this model no longer works; restart the server", code="unavailable")
    if isinstance(error, (WithdrawnError, ClientDisconnect)):
        return ApiError(499, "cancelled", code="cancelled")
    if isinstance(error, OSError):
        message = f"the server cannot store the file on its disk ({error.strerror})"
        return ApiError(503, message, code="no_room", headers={"retry-after": "60"})
    return ApiError(500, "internal error; see the server's log for the traceback", code="internal_error")
