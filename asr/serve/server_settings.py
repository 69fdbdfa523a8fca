"""Settings of the server as one typed tree"""

from __future__ import annotations

import pydantic

from asr.audio.segmentation import SegmentationConfig
from asr.decoding.checks import ChecksConfig
from asr.models.precision import Precision
from asr.transcription.settings import FamilySections
from asr.transcripts.subtitles import SubtitlesConfig


class ServeConfig(FamilySections):
    """Settings of `asr serve`."""

    checks: ChecksConfig = ChecksConfig()
    """When a decoded text is rejected, and another decoding is tried. checks=off: never."""
    segmentation: SegmentationConfig = SegmentationConfig()
    """Where long recordings are cut."""
    subtitles: SubtitlesConfig = SubtitlesConfig()
    """How srt and vtt divide the text."""
    precision: Precision = "auto"
    """Of matrix products, as in `asr transcribe`."""
    batch_size: int = pydantic.Field(default=8, ge=1)
    """Segments recognized at once, of all requests together."""
    max_batch_seconds: float = pydantic.Field(default=1.0, gt=0)
    """Of one client no more goes into a batch than is likely to be done in that time, nor of all together
    while there are live sessions. Less: short clips and live words wait less; more: long files are done
    sooner."""
    max_upload_mb: float = pydantic.Field(default=200.0, gt=0)
    """Of a request, in units of a million bytes."""
    max_upload_seconds: float = pydantic.Field(default=600.0, gt=0)
    """That a request may take to arrive."""
    max_audio_seconds: float = pydantic.Field(default=4 * 3600.0, gt=0)
    """Of a file."""
    max_requests: int = pydantic.Field(default=32, ge=1)
    """Served or arriving at once; more are told to come back. Each holds some minutes of audio in memory."""
    max_waiting_seconds: float = pydantic.Field(default=8 * 3600.0, gt=0)
    """Of audio that waits to be recognized; beyond, new files are told to come back."""
    max_key_seconds: float = pydantic.Field(default=4 * 3600.0, gt=0)
    """The same of one API key."""
    max_sessions: int = pydantic.Field(default=16, ge=1)
    """Live ones at once."""
    drain_seconds: float = pydantic.Field(default=60.0, ge=0)
    """After SIGTERM, for what has begun."""
    stuck_seconds: float = pydantic.Field(default=120.0, gt=0)
    """After which a batch counts as stuck, and the server as not ready."""
    hosts: tuple[str, ...] = ()
    """Names by which clients may address a server without keys, besides localhost and IP addresses."""
    origins: tuple[str, ...] = ()
    """Web pages of other hosts that may use the server, such as https://example.org."""
