"""State shared by all requests: the served models, keys, limits and counts, and whether all is well"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from asr.serve.api import ApiError
from asr.serve.jobs import ServedModel, describe_unknown
from asr.serve.limits import Admission, Keys
from asr.serve.metrics import Metrics
from asr.serve.scheduler import Scheduler
from asr.serve.server_settings import ServeConfig
from asr.transcription.families import Family
from asr.transcription.transcribe import Transcriber

LoadedModel = tuple[Transcriber, Family | None]


class Service:
    """The state of the server."""

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
        model = ServedModel(name, scheduler, family, options)
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
        """The reason why no request should be sent here; "" if all is well."""
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
