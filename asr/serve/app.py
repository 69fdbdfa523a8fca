"""The HTTP app: its routes, and the whole path of an uploaded file"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from asr import __version__
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
    too_long,
)
from asr.serve.gate import Gate, as_api_error, note_fault
from asr.serve.jobs import Job, ServedModel, Upload, end_tasks
from asr.serve.limits import Keys
from asr.serve.realtime import run_session
from asr.serve.scheduler import Client
from asr.serve.server_settings import ServeConfig
from asr.serve.service import LoadedModel, Service
from asr.transcripts.transcript import Segment, Transcript

PAGE = Path(__file__).parent / "page"
MAX_FIELDS = 100
MAX_FIELD_BYTES = 1 << 16  # of a text field


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
        given: dict[str, object] = {"task": task, "prompt": form.prompt}
        segmentation = None
        if isinstance(form, TranscriptionForm):
            language = form.language or next(filter(None, form.languages), None)
            given |= {"task": None, "language": language, "hotwords": form.keywords}
            if form.chunking_strategy != "auto":
                segmentation = form.chunking_strategy.apply(model.transcriber.segmentation)
        asked = model.make_request(**given)
        upload = await run_in_threadpool(Upload, file.file, file.filename or "")
        stack.callback(upload.close)
        await file.close()
        limit = service.config.max_audio_seconds
        if (upload.seconds or 0.0) > limit:
            raise too_long(limit)
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
            raise as_api_error(error) from error
        request.state.log["audio_seconds"] = round(transcript.duration, 3)
        service.metrics.first_words.observe(time.monotonic() - started)
        language = model.languages.get(transcript.language or "", "unknown")
        body = format_body(transcript, form, task, language, service.config.subtitles)
    if form.response_format in JSON_FORMATS:
        return JSONResponse(body)
    headers = {"x-asr-warnings": json.dumps(transcript.warnings)} if transcript.warnings else {}
    return Response(body, media_type=MEDIA_TYPES[form.response_format], headers=headers)


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
            fault = as_api_error(error)
            request.state.log["error_status"] = fault.status
            note_fault(service, fault, request.state.log)
            yield format_event(fault.body)


# --- live -----------------------------------------------------------------------------------------


async def serve_realtime(websocket: WebSocket) -> None:
    """The key, the model and a place are checked before the socket is accepted."""
    service: Service = websocket.app.state.service
    query = websocket.query_params
    client = Client(websocket.state.key, is_live=True)
    if query.get("intent", "transcription") != "transcription":
        raise refuse("intent", f"{query['intent']!r:.80}: there are transcription sessions alone")
    model = service.find_model(query.get("model") or next(iter(service.models)))
    with service.admission.admit_session(client):
        offered = websocket.scope.get("subprotocols", [])
        await websocket.accept(subprotocol="realtime" if "realtime" in offered else None)
        await run_session(websocket, service, model, client)


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


async def _pass_on(request: Request, error: Exception) -> Response:
    raise error  # the gate answers


# --- the app --------------------------------------------------------------------------------------

ROUTES: list[Route | WebSocketRoute] = [
    Route("/v1/audio/transcriptions", transcribe, methods=["POST"]),
    Route("/v1/audio/translations", translate, methods=["POST"]),
    Route("/v1/models", list_models),
    Route("/openapi.json", show_api),
    Route("/health", show_health),
    Route("/ready", show_ready),
    Route("/metrics", show_metrics),
    WebSocketRoute("/v1/realtime", serve_realtime),
]


def build_app(models: dict[str, LoadedModel], config: ServeConfig, keys: Keys | None = None) -> Starlette:
    """The app for loaded models, each under its name; the first is the default one of live sessions."""
    service = Service(models, config, keys or Keys())
    others = [Route("/v1/models/{name:path}", show_model), Mount("/", StaticFiles(directory=PAGE, html=True))]
    app = Starlette(
        routes=[*ROUTES, *others],
        middleware=[Middleware(Gate, service=service, routes=[route.path for route in ROUTES])],
        exception_handlers={HTTPException: _pass_on},
    )
    app.state.service = service
    return app
