"""Jobs: an uploaded file to its transcript, read and joined in a thread of its own, recognized in turn."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from asr.audio.reading import read_info
from asr.audio.segmentation import SegmentationConfig
from asr.audio.sources import Recording
from asr.config import Config
from asr.errors import UserError
from asr.serve.api import too_long
from asr.serve.scheduler import Client, Scheduler, WithdrawnError
from asr.transcription.families import Family
from asr.transcription.transcribe import Request, Transcriber
from asr.transcripts.transcript import Segment, Transcript

USUAL_BYTES_PER_SECOND = 4_000  # of compressed speech; to guess a length that no header tells


@dataclass(frozen=True)
class ServedModel:
    """A loaded model, under the name that clients know."""

    name: str
    scheduler: Scheduler
    family: Family | None
    """None: the model was trained here."""
    options: Config | None
    """Of the family, for requests that say nothing about it."""

    @property
    def transcriber(self) -> Transcriber:
        return self.scheduler.transcriber

    @functools.cached_property
    def languages(self) -> dict[str, str]:
        """Code to name of those that can be asked for."""
        known = {}
        for code, name in self.family.languages.items() if self.family is not None else ():
            with contextlib.suppress(UserError):
                self.make_request(language=code)
                known[code] = name
        return known

    def make_request(self, **given: object) -> Request:
        """Replace the usual options by what is given (language, prompt ...); refuse what does not fit."""
        given = {name: value for name, value in given.items() if value not in (None, "", ())}
        options = self.options
        if given and (options is None or not given.keys() <= type(options).model_fields.keys()):
            raise UserError(f"{', '.join(given)}: the model {self.name} knows no such thing; leave it out")
        if given and options is not None:
            options = type(options)(**{**options.model_dump(), **given})
        decoding, language_model = self.transcriber.usual_decoding()
        request = Request(decoding, language_model, self.scheduler.batch_size, options, tokens=True)
        self.transcriber.check(request)
        self.transcriber.check_live(request)  # whose segments are those of files, too
        return request


def describe_unknown(name: str, models: dict[str, ServedModel]) -> str:
    return f"{name!r:.80} is not served here; there are {', '.join(models)}"


class Upload:
    """An uploaded file on disk, deleted by `close`. Its name is only shown, never opened."""

    def __init__(self, content: IO[bytes], name: str) -> None:
        self.name = name or "the file"
        self._file = tempfile.NamedTemporaryFile(prefix="asr-")  # noqa: SIM115 (closed by `close`)
        try:
            shutil.copyfileobj(content, self._file, 1 << 20)
            self._file.flush()
            self.path = Path(self._file.name)
            self.num_bytes = os.path.getsize(self.path)
            self.seconds: float | None = None
            """By its header; None where that does not tell."""
            with contextlib.suppress(UserError):  # what is wrong is said when it is read
                self.seconds = read_info(self.path).seconds
        except BaseException:
            self.close()
            raise

    @property
    def likely_seconds(self) -> float:
        return self.seconds or self.num_bytes / USUAL_BYTES_PER_SECOND

    def close(self) -> None:
        self._file.close()

    def clean(self, message: str) -> str:
        """A message about the file on disk as one about the file that was sent."""
        return message.replace(str(self.path), self.name)


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel them, and wait until they are gone; nobody asks for their results."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # or asyncio would complain that nobody has looked at it


Event = Segment | Transcript | Exception
"""A final segment; at the end the transcript, or why there is none."""


class Job:
    """A file that is being transcribed. Made and awaited on the event loop."""

    def __init__(
        self,
        model: ServedModel,
        client: Client,
        upload: Upload,
        request: Request,
        segmentation: SegmentationConfig | None = None,
        max_seconds: float = math.inf,
    ) -> None:
        self.client = client
        self.separator = model.transcriber.separator
        """Between the texts of two segments, in the language of the newest one."""
        self._model = model
        self._upload = upload
        self._request = request
        self._segmentation = segmentation
        self._max_seconds = max_seconds
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        client.expected_seconds = min(upload.likely_seconds, max_seconds)
        threading.Thread(target=self._work, name="file", daemon=True).start()

    async def events(self) -> AsyncGenerator[Segment | Transcript]:
        """Segments as they become final, then the transcript. Raises what went wrong; cancels when left."""
        try:
            while True:
                event = await self._events.get()
                if isinstance(event, Exception):
                    raise event
                yield event
                if isinstance(event, Transcript):
                    return
        finally:
            self.cancel()

    async def transcript(self) -> Transcript:
        async with contextlib.aclosing(self.events()) as events:
            async for event in events:
                if isinstance(event, Transcript):
                    return event
        raise AssertionError("a job ends with a transcript or an error")

    def cancel(self) -> None:
        self._model.scheduler.cancel(self.client)

    # --- in the thread ----------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._transcribe()
        except Exception as error:
            self._put(error)
        finally:
            self._upload.close()

    def _transcribe(self) -> None:
        transcriber = self._model.scheduler.transcriber_for(self.client)
        if self._segmentation is not None:
            transcriber.segmentation = self._segmentation
        recording = Recording(self._upload.path, Path(self._upload.name).stem, on_read=self._count)
        for _, result in transcriber.transcribe_events([recording], self._request):
            if isinstance(result, Segment):
                self.separator = transcriber.separator_in(result.language)
            if isinstance(result, Transcript):
                result = replace(
                    result,
                    audio=self._upload.name,
                    warnings=tuple(map(self._upload.clean, result.warnings)),
                    incomplete=result.incomplete
                    and replace(result.incomplete, message=self._upload.clean(result.incomplete.message)),
                )
            elif isinstance(result, UserError):
                result = UserError(self._upload.clean(str(result)))
            self._put(result)

    def _count(self, seconds: float) -> None:
        """Count a block, in the reading thread."""
        if self.client.is_cancelled:
            raise WithdrawnError
        if seconds > self._max_seconds:
            raise too_long(self._max_seconds)
        self.client.expected_seconds = max(self.client.expected_seconds, seconds)

    def _put(self, event: Event) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
