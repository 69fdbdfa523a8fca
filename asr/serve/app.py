"""The HTTP app: routes, and what stands around them: keys, limits, request ids, logs, metrics, shutdown"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders, UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from asr import __version__
from asr.errors import UserError
from asr.serve.api import (
    JSON_FORMATS,
    MEDIA_TYPES,
    ApiError,
    EventStream,
    TranscriptionForm,
    TranslationForm,
    describe_api,
    format_body,
    format_event,
    parse_form,
    refuse,
)
from asr.serve.jobs import Job, ServedModel, TooLongError, Upload, end_tasks
from asr.serve.limits import Admission, Keys
from asr.serve.metrics import Metrics
from asr.serve.realtime import Session, describe_unknown, run_session
from asr.serve.scheduler import Client, Scheduler, WithdrawnError
from asr.serve.settings import ServeConfig
from asr.transcription.families import Family
from asr.transcription.transcriber import Transcriber
from asr.transcripts.transcript import Segment, Transcript

logger = logging.getLogger(__name__)

PAGE = Path(__file__).parent / "page"
MAX_FIELDS = 100
MAX_FIELD_BYTES = 1 << 16  # of a text field
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'self'; media-src 'self' blob:; object-src 'none'; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
}


LoadedModel = tuple[Transcriber, Family | None]


class Service:
    """What all requests share: models, keys, limits, counts."""

    def __init__(self, models: dict[str, LoadedModel], config: ServeConfig, keys: Keys) -> None:
        self.config, self.keys = config, keys
        self.admission = Admission(config)
        self.metrics = Metrics(self.admission)
        self.draining = asyncio.Event()
        self.created = int(time.time())
        self.models = {name: self._serve(name, *loaded) for name, loaded in models.items()}

    def _serve(self, name: str, transcriber: Transcriber, family: Family | None) -> ServedModel:
        def report(batch: Any) -> None:
            self.metrics.note_batch(name, batch)

        scheduler = Scheduler(transcriber, self.config.batch_size, self.config.max_batch_seconds, report)
        options = None if family is None else getattr(self.config, family.section)
        model = ServedModel(name, scheduler, self.config.batch_size, family, options)
        model.make_request()  # refuses settings that do not fit, and loads what is decoded with
        return model

    def find_model(self, name: str) -> ServedModel:
        if name not in self.models:
            message = f"model: {describe_unknown(name, self.models)}"
            raise ApiError(404, message, "model", "model_not_found")
        return self.models[name]

    @property
    def speed(self) -> float:
        """Seconds of audio in a second, of the slowest model that has been used."""
        return min((m.scheduler.speed for m in self.models.values() if m.scheduler.speed), default=0.0)

    def find_fault(self) -> str:
        """Why no request should be sent here; "" if all is well."""
        if self.admission.is_draining:
            return "shutting down"
        for name, model in self.models.items():
            if not model.scheduler.is_alive:
                return f"the inference thread of {name} has ended"
            if (seconds := model.scheduler.stuck_seconds()) > self.config.stuck_seconds:
                return f"{name} has been at one batch for {seconds:.0f} s"
        return ""

    def drain(self) -> None:
        """Take nothing new; live sessions end after what they have."""
        self.admission.is_draining = True
        self.draining.set()

    @property
    def is_idle(self) -> bool:
        return not self.admission.num_requests and not self.admission.clients

    def close(self) -> None:
        for model in self.models.values():
            model.scheduler.close()


# --- files ----------------------------------------------------------------------------------------


async def transcribe(request: Request) -> Response:
    return await _serve_file(request, TranscriptionForm, "transcribe")


async def translate(request: Request) -> Response:
    return await _serve_file(request, TranslationForm, "translate")


async def _serve_file(request: Request, form_class: type[TranslationForm], task: str) -> Response:
    """The whole path of an upload: admission, form, file, job, answer."""
    service: Service = request.app.state.service
    client = Client(request.state.key)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(service.admission.admit_request(client.key, service.speed))
        form, file = await _read_form(request, form_class, stack)
        model = service.find_model(form.model)
        own = _own_settings(form) if isinstance(form, TranscriptionForm) else {}
        asked = model.make_request(task=task if task != "transcribe" else None, prompt=form.prompt, **own)
        segmentation = None
        if isinstance(form, TranscriptionForm) and form.chunking_strategy != "auto":
            segmentation = form.chunking_strategy.apply(model.transcriber.segmentation)
        upload = await run_in_threadpool(Upload, file.file, file.filename or "")
        stack.callback(upload.close)
        await file.close()
        limit = service.config.max_audio_seconds
        if (upload.seconds or 0.0) > limit:
            raise as_api_error(TooLongError(), limit)
        stack.enter_context(
            service.admission.admit_file(client, min(upload.likely_seconds, limit), model.scheduler.speed)
        )
        request.state.log |= {"model": model.name, "file_bytes": upload.num_bytes}
        job = Job(model, client, upload, asked, segmentation, limit)
        stack.callback(job.cancel)
        started = time.monotonic()
        if isinstance(form, TranscriptionForm) and form.stream:
            return EventResponse(_stream(service, request, job, form, started), stack.pop_all())
        try:
            transcript = await _unless_disconnected(request, job)
        except Exception as error:
            raise as_api_error(error, limit) from error
        request.state.log["audio_seconds"] = round(transcript.duration, 3)
        service.metrics.first_words.observe(time.monotonic() - started)
        language = model.languages.get(transcript.language or "", "unknown")
        body = format_body(transcript, form, task, language, service.config.subtitles)
    if form.response_format in JSON_FORMATS:
        return JSONResponse(body)
    headers = {"x-asr-warnings": json.dumps(transcript.warnings)} if transcript.warnings else {}
    return Response(body, media_type=MEDIA_TYPES[form.response_format], headers=headers)


def _own_settings(form: TranscriptionForm) -> dict[str, object]:
    languages = [form.language, *form.languages]
    return {
        "language": next((language for language in languages if language), None),
        "hotwords": form.keywords,
    }


async def _read_form(
    request: Request, form_class: type[TranslationForm], stack: contextlib.AsyncExitStack
) -> tuple[Any, UploadFile]:
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        raise ApiError(400, f"content type {kind!r:.80}: expected multipart/form-data, as `curl -F` sends it")
    data = await stack.enter_async_context(
        request.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES)
    )
    files = {name: value for name, value in data.multi_items() if isinstance(value, UploadFile)}
    texts = [(name, value) for name, value in data.multi_items() if isinstance(value, str)]
    form = parse_form(texts, form_class)
    if "file" not in files:
        what = f"came as {next(iter(files))!r:.80}" if files else "is missing; with curl, -F file=@talk.mp3"
        raise refuse("file", what, "missing_required_parameter")
    return form, files["file"]


async def _unless_disconnected(request: Request, job: Job) -> Transcript:
    """The transcript; cancels the job where the client leaves before."""

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    work, leaving = asyncio.create_task(job.transcript()), asyncio.create_task(leave())
    try:
        await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        await end_tasks(work, leaving)


class EventResponse(StreamingResponse):
    """Server-sent events; what they need is let go at their end, or where the client leaves."""

    def __init__(self, events: AsyncGenerator[str], stack: contextlib.AsyncExitStack) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            await super().__call__(scope, receive, send)


async def _stream(
    service: Service, request: Request, job: Job, form: TranscriptionForm, started: float
) -> AsyncGenerator[str]:
    stream, is_first = EventStream(form), True
    async with contextlib.aclosing(job.events()) as events:
        try:
            async for event in events:
                if is_first:
                    service.metrics.first_words.observe(time.monotonic() - started)
                    is_first = False
                if isinstance(event, Segment):
                    yield stream.add(event, job.separator)
                else:
                    request.state.log["audio_seconds"] = round(event.duration, 3)
                    yield stream.end(event)
        except Exception as error:
            fault = as_api_error(error, service.config.max_audio_seconds)
            request.state.log |= {"error": fault.message, "error_status": fault.status}
            if fault.status >= 500:
                service.metrics.failures.inc()
                logger.exception("a stream failed", extra={"fields": request.state.log})
            yield format_event(fault.body)


def as_api_error(error: Exception, max_seconds: float = math.inf) -> ApiError:
    """What went wrong with a file: the client's fault where the message says so, else ours."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, TooLongError):
        return ApiError(413, f"file: longer than {max_seconds:g} s of audio; send it in parts", "file")
    if isinstance(error, UserError):
        return ApiError(400, str(error), "file", "unsupported_file")
    if isinstance(error, (WithdrawnError, ClientDisconnect)):
        return ApiError(499, "cancelled", code="cancelled")
    if isinstance(error, OSError):
        message = f"the server cannot write the file to its disk ({error.strerror})"
        return ApiError(503, message, code="no_room", headers={"retry-after": "60"})
    return ApiError(500, "the server failed at this request; its log says more", code="internal_error")


# --- live -----------------------------------------------------------------------------------------


async def serve_realtime(websocket: WebSocket) -> None:
    """The key, the model and a place are checked before the socket is accepted."""
    service: Service = websocket.app.state.service
    query = websocket.query_params
    client = Client(websocket.state.key, is_live=True)
    try:
        if query.get("intent", "transcription") != "transcription":
            raise refuse("intent", f"{query['intent']!r:.80}: there are transcription sessions alone")
        name = query.get("model") or next(iter(service.models))
        model = service.find_model(name)
        with service.admission.admit_session(client):
            offered = websocket.scope.get("subprotocols", [])
            await websocket.accept(subprotocol="realtime" if "realtime" in offered else None)
            await run_session(
                websocket,
                lambda send: Session(service.models, model, client, service.config, send),
                service.draining,
            )
    except ApiError as error:
        service.metrics.rejected.labels(error.code or "request").inc()
        await websocket.send_denial_response(JSONResponse(error.body, error.status, error.headers))


# --- small routes ---------------------------------------------------------------------------------


def _describe_model(service: Service, model: ServedModel) -> dict[str, object]:
    own = {"languages": list(model.languages), "default": model.name == next(iter(service.models))}
    return {"id": model.name, "object": "model", "created": service.created, "owned_by": "asr", **own}


async def list_models(request: Request) -> Response:
    service: Service = request.app.state.service
    models = [_describe_model(service, model) for model in service.models.values()]
    return JSONResponse({"object": "list", "data": models})


async def show_model(request: Request) -> Response:
    service: Service = request.app.state.service
    return JSONResponse(_describe_model(service, service.find_model(request.path_params["name"])))


async def show_api(request: Request) -> Response:
    return JSONResponse(describe_api(__version__))


async def show_health(request: Request) -> Response:
    return PlainTextResponse("ok\n")


async def show_ready(request: Request) -> Response:
    fault = request.app.state.service.find_fault()
    return PlainTextResponse(f"{fault or 'ready'}\n", 503 if fault else 200)


async def show_metrics(request: Request) -> Response:
    return Response(request.app.state.service.metrics.describe(), media_type="text/plain; version=0.0.4")


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        error = ApiError(error.status_code, str(error.detail), headers=error.headers)
    fault = ApiError(400, str(error)) if isinstance(error, UserError) else as_api_error(error)
    request.state.log["error"] = fault.message
    metrics: Metrics = request.app.state.service.metrics
    if fault.code == "internal_error":
        metrics.failures.inc()
        logger.error("a request failed", exc_info=error, extra={"fields": request.state.log})
    else:
        metrics.rejected.labels(fault.code or str(fault.status)).inc()
    return JSONResponse(fault.body, fault.status, fault.headers)


# --- around all routes ----------------------------------------------------------------------------


class Gate:
    """Key, origin, size and time of each request; its id, its line in the log, its place in the metrics."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        started, status = time.monotonic(), 499  # the client left before an answer
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
        except ApiError as error:
            self._service.metrics.rejected.labels(error.code or str(error.status)).inc()
            await JSONResponse(error.body, error.status, error.headers)(scope, receive, send_on)
        else:
            guarded = self._limit(scope, receive) if scope["type"] == "http" else receive
            try:
                await self._app(scope, guarded, send_on)
            except Exception:
                self._service.metrics.failures.inc()
                logger.exception("a request failed", extra={"fields": log})
                if scope["type"] == "http" and status == 499:
                    fault = as_api_error(AssertionError())
                    await JSONResponse(fault.body, fault.status, fault.headers)(scope, receive, send_on)
        finally:
            seconds = time.monotonic() - started
            route = scope["path"] if scope["path"] in KNOWN_ROUTES else "other"
            self._service.metrics.requests.labels(route, str(status)).observe(seconds)
            level = logging.DEBUG if route in QUIET_ROUTES else logging.INFO
            fields = log | {"key": state["key"], "status": status, "seconds": round(seconds, 3)}
            logger.log(level, "request", extra={"fields": fields})

    def _check(self, scope: Scope, state: dict[str, Any]) -> None:
        """Whether the origin and the key are good."""
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        allowed = (None, *self._service.config.origins)
        if origin not in allowed and urlsplit(origin).netloc != headers.get("host"):
            message = f"pages of {origin!r:.80} may not use this server; its setting origins names others"
            raise ApiError(403, message, code="origin_not_allowed")
        if scope["path"].startswith("/v1/"):
            state["key"] = self._service.keys.identify(_find_key(headers, scope.get("subprotocols", [])))

    def _limit(self, scope: Scope, receive: Receive) -> Receive:
        """Counts the bytes of the body as they come, whatever the header says."""
        config = self._service.config
        most, num_bytes = round(1e6 * config.max_upload_mb), 0
        deadline = time.monotonic() + config.max_upload_seconds
        too_large = ApiError(
            413, f"the request is larger than {config.max_upload_mb:g} MB", "file", "too_large"
        )
        is_whole = False
        declared = Headers(scope=scope).get("content-length", "")

        async def receive_counted() -> Message:
            nonlocal num_bytes, is_whole
            if is_whole:
                return await receive()
            if declared.isdigit() and int(declared) > most:
                raise too_large
            try:
                message = await asyncio.wait_for(receive(), max(0.01, deadline - time.monotonic()))
            except asyncio.TimeoutError:
                message = f"the request took longer than {config.max_upload_seconds:g} s to arrive"
                raise ApiError(408, message, code="too_slow") from None
            num_bytes += len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            if num_bytes > most:
                raise too_large
            return message

        return receive_counted


def _find_key(headers: Headers, subprotocols: Sequence[str]) -> str | None:
    """In the header, or, as browsers cannot send one with a socket, in a subprotocol."""
    kind, _, key = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return key.strip()
    prefix = "openai-insecure-api-key."
    return next((one.removeprefix(prefix) for one in subprotocols if one.startswith(prefix)), None)


KNOWN_ROUTES = {
    "/v1/audio/transcriptions": transcribe,
    "/v1/audio/translations": translate,
    "/v1/models": list_models,
    "/openapi.json": show_api,
    "/health": show_health,
    "/ready": show_ready,
    "/metrics": show_metrics,
    "/v1/realtime": serve_realtime,
}
QUIET_ROUTES = ("/health", "/ready", "/metrics")


def build_app(models: dict[str, LoadedModel], config: ServeConfig, keys: Keys | None = None) -> Starlette:
    """The app for loaded models, each under its name; the first is the default one of live sessions."""
    service = Service(models, config, keys or Keys())
    routes: list[Any] = [
        Route(path, serve, methods=["POST" if path.startswith("/v1/audio") else "GET"])
        for path, serve in KNOWN_ROUTES.items()
        if serve is not serve_realtime
    ]
    routes += [
        Route("/v1/models/{name:path}", show_model),
        WebSocketRoute("/v1/realtime", serve_realtime),
        Mount("/", StaticFiles(directory=PAGE, html=True)),
    ]
    known = (ApiError, HTTPException, UserError, OSError, ClientDisconnect)
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Gate, service=service)],
        exception_handlers=dict.fromkeys(known, _answer_error),
    )
    app.state.service = service
    return app
