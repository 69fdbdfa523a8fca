"""Metrics under Prometheus' names, and a log of a JSON object on each line"""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from asr.serve.limits import Admission
from asr.serve.scheduler import BatchReport

WAITS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)  # seconds


class Metrics:
    def __init__(self, admission: Admission) -> None:
        self.registry = CollectorRegistry()
        options: Any = {"registry": self.registry}
        self.requests = Histogram(
            "asr_request_seconds", "Time of a request", ["route", "status"], buckets=WAITS, **options
        )
        self.queue = Histogram(
            "asr_queue_seconds", "Longest wait of a batch", ["model"], buckets=WAITS, **options
        )
        self.batches = Histogram(
            "asr_batch_segments", "Segments of a batch", ["model"], buckets=(1, 2, 4, 8, 16, 32), **options
        )
        self.audio = Counter("asr_audio_seconds", "Audio recognized", ["model"], **options)
        self.busy = Counter("asr_busy_seconds", "Time spent in recognizing", ["model"], **options)
        self.rejected = Counter("asr_rejected", "Requests not taken", ["reason"], **options)
        self.failures = Counter("asr_failures", "Requests that failed by our fault", **options)
        self.first_words = Histogram(
            "asr_first_word_seconds", "First words of a file after its upload", buckets=WAITS, **options
        )
        waiting = Gauge("asr_waiting_seconds", "Audio that waits", **options)
        waiting.set_function(admission.waiting_seconds)
        sessions = Gauge("asr_sessions", "Live sessions", **options)
        sessions.set_function(lambda: admission.num_sessions)

    def note_batch(self, model: str, batch: BatchReport) -> None:
        self.queue.labels(model).observe(batch.longest_wait)
        self.batches.labels(model).observe(batch.num_segments)
        self.audio.labels(model).inc(batch.audio_seconds)
        self.busy.labels(model).inc(batch.wall_seconds)

    def describe(self) -> bytes:
        return generate_latest(self.registry)


class JsonFormatter(logging.Formatter):
    """One object a line; what was given as `extra={"fields": {...}}` stands in it."""

    def format(self, record: logging.LogRecord) -> str:
        now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{now}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
