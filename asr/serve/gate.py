"""Around all routes: key, origin, size and time of each request; its id, log line and place in the metrics"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import time
import uuid
from collections.abc import Collection, Sequence
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from asr.errors import UserError
from asr.serve.api import ApiError
from asr.serve.limits import shutting_down
from asr.serve.scheduler import WithdrawnError
from asr.serve.service import Service

logger = logging.getLogger(__name__)

QUIET_ROUTES = ("/health", "/ready", "/metrics")  # whose log lines would drown the others
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'self'; media-src 'self' blob:; object-src 'none'; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
}


class Gate:
    """Key, origin, size and time of each request; its id, its line in the log, its place in the metrics."""

    def __init__(self, app: ASGIApp, service: Service, routes: Collection[str]) -> None:
        """`routes`: those that metrics tell apart."""
        self._app, self._service, self._routes = app, service, routes

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
            guarded = self._limit(scope, receive) if scope["type"] == "http" else receive
            await self._app(scope, guarded, send_on)
        except asyncio.CancelledError:  # at the end of the time to drain
            if scope["type"] != "http" or status != 499 or not self._service.admission.is_draining:
                raise
            await answer(shutting_down())(scope, receive, send_on)
        except Exception as error:
            fault = as_api_error(error)
            if isinstance(error, UserError):  # of settings: one about a file is an ApiError already
                fault = ApiError(400, str(error))
            note_fault(self._service, fault, log)
            if status == 499:
                await answer(fault)(scope, receive, send_on)
        finally:
            seconds = time.monotonic() - started
            route = scope["path"] if scope["path"] in self._routes else "other"
            self._service.metrics.requests.labels(route, str(status)).observe(seconds)
            level = logging.DEBUG if route in QUIET_ROUTES else logging.INFO
            fields = log | {"key": state["key"], "status": status, "seconds": round(seconds, 3)}
            logger.log(level, "request", extra={"fields": fields})

    def _check(self, scope: Scope, state: dict[str, Any]) -> None:
        """Refuse a wrong host, origin or key."""
        headers = Headers(scope=scope)
        origin, host = headers.get("origin"), headers.get("host", "")
        if not self._service.keys and not _is_own_host(host, self._service.config.hosts):
            message = f"host {host!r:.80} is unknown to this server; its setting hosts adds names"
            raise ApiError(403, message, code="host_not_allowed")
        allowed = (None, f"http://{host}", f"https://{host}", *self._service.config.origins)
        if origin not in allowed:
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
            if declared.isdecimal() and int(declared) > most:
                raise too_large
            try:
                message = await asyncio.wait_for(receive(), max(0.01, deadline - time.monotonic()))
            except asyncio.TimeoutError:
                problem = f"the request took longer than {config.max_upload_seconds:g} s to arrive"
                raise ApiError(408, problem, code="too_slow") from None
            num_bytes += len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            if num_bytes > most:
                raise too_large
            return message

        return receive_counted


def _is_own_host(host: str, hosts: Collection[str]) -> bool:
    """Accept IP addresses, localhost and listed names: a web page can rebind any other to this machine."""
    name = re.sub(r":\d*$", "", host.lower())
    try:
        return name == "localhost" or name in hosts or bool(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return False


def _find_key(headers: Headers, subprotocols: Sequence[str]) -> str | None:
    """Find the key in the header or, as browsers cannot send one with a socket, in a subprotocol."""
    kind, _, key = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return key.strip()
    prefix = "openai-insecure-api-key."
    return next((one.removeprefix(prefix) for one in subprotocols if one.startswith(prefix)), None)


def note_fault(service: Service, fault: ApiError, log: dict[str, object]) -> None:
    """Count and log what went wrong, where it was caught."""
    log["error"] = fault.message
    if fault.code == "internal_error":
        service.metrics.failures.inc()
        logger.exception("a request failed", extra={"fields": log})
    else:
        service.metrics.rejected.labels(fault.code or str(fault.status)).inc()


def answer(fault: ApiError) -> JSONResponse:
    return JSONResponse(fault.body, fault.status, fault.headers)


def as_api_error(error: Exception) -> ApiError:
    """Turn an exception into an answer: the client's fault where the message says so, else ours."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail), headers=error.headers)
    if isinstance(error, UserError):
        return ApiError(400, str(error), "file", "unsupported_file")
    if isinstance(error, (WithdrawnError, ClientDisconnect)):
        return ApiError(499, "cancelled", code="cancelled")
    if isinstance(error, OSError):
        message = f"the server cannot write the file to its disk ({error.strerror})"
        return ApiError(503, message, code="no_room", headers={"retry-after": "60"})
    return ApiError(500, "the server failed at this request; its log says more", code="internal_error")
