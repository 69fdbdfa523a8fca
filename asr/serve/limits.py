"""Limits: API keys, and seconds of audio that may wait"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import math
import re
from collections.abc import Iterator
from pathlib import Path

from asr.errors import UserError
from asr.serve.api import ApiError
from asr.serve.scheduler import Client
from asr.serve.server_settings import ServeConfig


class Keys:
    """API keys by the SHA-256 of each; without any, everybody may ask."""

    def __init__(self, digests: dict[str, str] | None = None) -> None:
        """`digests`: the name of a key to the SHA-256 of it, in hexadecimal."""
        self._digests = digests or {}

    def __bool__(self) -> bool:
        return bool(self._digests)

    @classmethod
    def load(cls, path: str | Path) -> Keys:
        """A file with a line `name:sha256` for each key."""
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"{path}: cannot read these keys ({reason}); give a text file") from None
        digests = {}
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, _, digest = line.strip().partition(":")
            if not re.fullmatch(r"[\w.-]+", name) or not re.fullmatch(r"[0-9a-f]{64}", digest):
                raise UserError(
                    f"{path}:{number}: expected NAME:SHA256, the hexadecimal digest of a key; "
                    "`printf %s KEY | sha256sum` computes it"
                )
            digests[name] = digest
        if not digests:
            raise UserError(f"{path}: holds no key; add a line NAME:SHA256, or leave --keys out")
        return cls(digests)

    def identify(self, given: str | None) -> str:
        """The name of a key; "" where none is needed. Takes as long whether or not it is known."""
        if not self._digests:
            return ""
        digest = hashlib.sha256((given or "").encode("utf-8", "surrogateescape")).hexdigest()
        found = [name for name, known in self._digests.items() if hmac.compare_digest(known, digest)]
        if not found or not given:
            problem = "wrong API key" if given else "no API key; send the header Authorization: Bearer KEY"
            raise ApiError(401, problem, code="invalid_api_key")
        return found[0]


class Admission:
    """Admission: requests that are served or wait, and whether more may come."""

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self.clients: set[Client] = set()
        self.num_requests = 0
        self.is_draining = False

    def waiting_seconds(self, key: str | None = None) -> float:
        """Seconds of audio that wait, of all keys or of one."""
        return sum(one.waiting_seconds for one in self.clients if key is None or one.key == key)

    @property
    def num_sessions(self) -> int:
        return sum(one.is_live for one in self.clients)

    @contextlib.contextmanager
    def admit_request(self, key: str, speed: float) -> Iterator[None]:
        """Admit a request before its upload is read, which would be sent in vain."""
        self._require_open()
        if self.num_requests >= self._config.max_requests:
            raise busy(503, "too many requests at once", self.waiting_seconds(), speed)
        self._require_room(key, 0.0, speed)
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1

    @contextlib.contextmanager
    def admit_file(self, client: Client, seconds: float, speed: float) -> Iterator[None]:
        """Admit a file of known length. A server with no work takes every file that is allowed at all."""
        self._require_room(client.key, seconds, speed)
        with self._hold(client):
            yield

    @contextlib.contextmanager
    def admit_session(self, client: Client) -> Iterator[None]:
        self._require_open()
        if self.num_sessions >= self._config.max_sessions:
            raise busy(503, f"{self.num_sessions} live sessions are served, which is all there can be", 0, 0)
        with self._hold(client):
            yield

    @contextlib.contextmanager
    def _hold(self, client: Client) -> Iterator[None]:
        self.clients.add(client)
        try:
            yield
        finally:
            self.clients.discard(client)

    def _require_open(self) -> None:
        if self.is_draining:
            raise shutting_down()

    def _require_room(self, key: str, seconds: float, speed: float) -> None:
        own, all_waiting = self.waiting_seconds(key), self.waiting_seconds()
        if key and own and own + seconds > self._config.max_key_seconds:
            raise busy(429, f"{own:.0f} s of audio of yours wait already", own, speed)
        if all_waiting and all_waiting + seconds > self._config.max_waiting_seconds:
            raise busy(503, f"{all_waiting:.0f} s of audio wait already", all_waiting, speed)


def shutting_down() -> ApiError:
    return ApiError(503, "the server is shutting down", code="draining", headers={"retry-after": "5"})


def busy(status: int, message: str, waiting_seconds: float, speed: float) -> ApiError:
    """`speed`: seconds of audio recognized in a second."""
    retry = min(max(math.ceil(waiting_seconds / speed), 1), 60) if speed else 5
    headers = {"retry-after": str(retry)}
    return ApiError(status, f"{message}; try again in {retry} s", code="overloaded", headers=headers)
