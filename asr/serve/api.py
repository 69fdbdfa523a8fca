"""The formats of OpenAI's audio API, as pure functions from form fields to bodies, events and errors."""

from __future__ import annotations

import base64
import itertools
import json
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

import pydantic
import pydantic_core

from asr.audio.segmentation import SegmentationConfig
from asr.config import Config, explain_problem
from asr.errors import shorten, suggest
from asr.transcripts.transcript import Segment, Transcript, Word
from asr.transcripts.writers import format_transcript

MEDIA_TYPES = {"text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}


class ApiError(Exception):
    """An error of the API, as the client gets it."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        # Without this header the official client retries after 408, 409, 429 and every 5xx.
        self.headers = {"x-should-retry": "true" if status in (408, 429, 503) else "false", **(headers or {})}

    def describe(self) -> dict[str, object]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        return {"message": self.message, "type": kind, "param": self.param, "code": self.code}


def refuse(param: str, message: str, code: str | None = None) -> ApiError:
    return ApiError(400, f"{param}: {message}", param, code)


def too_long(max_seconds: float) -> ApiError:
    return ApiError(413, f"file: longer than {max_seconds:g} s of audio; split it", "file")


# Prompts and keywords are limited because tokenizing them blocks the requests of other clients.
Prompt = Annotated[str, pydantic.Field(max_length=10_000)]
ShortText = Annotated[str, pydantic.Field(max_length=100)]
Name = Annotated[str, pydantic.Field(min_length=1, max_length=100)]
MAX_KNOWN_SPEAKERS = 4

# --- requests -------------------------------------------------------------------------------------


class ServerVad(Config):
    """Settings of voice activity detection, which splits files and finds the turns of live sessions."""

    type: Literal["server_vad"]
    threshold: float | None = pydantic.Field(default=None, gt=0.15, lt=1)
    """Probability at which speech begins."""
    prefix_padding_ms: int | None = pydantic.Field(default=None, ge=0, le=10_000)
    """Audio kept before and after speech."""
    silence_duration_ms: int | None = pydantic.Field(default=None, ge=100, le=10_000)
    """Length of a pause that ends a segment."""

    def apply(self, config: SegmentationConfig) -> SegmentationConfig:
        changed = {
            "speech_threshold": self.threshold,
            "padding_seconds": self.prefix_padding_ms and self.prefix_padding_ms / 1000,
            "max_pause_seconds": self.silence_duration_ms and self.silence_duration_ms / 1000,
        }
        return config.with_rules(**{name: value for name, value in changed.items() if value is not None})


TranscriptionFormat = Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"]


class TranslationForm(Config):
    """Form fields of a request for a translation into English."""

    model: str
    prompt: Prompt = ""
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: float = pydantic.Field(default=0.0, ge=0, le=0)
    """Only 0 is accepted; where decoding fails at 0, higher temperatures are tried automatically."""


class TranscriptionForm(TranslationForm):
    """Form fields of a request for a transcription."""

    language: ShortText | None = None
    keywords: tuple[ShortText, ...] = ()
    timestamp_granularities: tuple[Literal["word", "segment"], ...] = ()
    stream: bool = False
    include: tuple[Literal["asr.segments"], ...] = ()
    """Adds events with words and confidences to a stream; the web page uses them."""
    chunking_strategy: ServerVad | None = None
    """None means auto."""
    response_format: TranscriptionFormat = "json"  # type: ignore[assignment]
    known_speaker_names: tuple[Name, ...] = ()
    known_speaker_references: tuple[str, ...] = ()
    """Data URLs of recordings, one for each known speaker, who speaks alone in it."""

    def find_known_speakers(self) -> dict[str, bytes]:
        """Return the recording of each known speaker as bytes. Raises ApiError."""
        names, urls = self.known_speaker_names, self.known_speaker_references
        if names and self.response_format != "diarized_json":
            raise refuse("known_speaker_names", "expected response_format diarized_json")
        if not len(urls) == len(names) == len(set(names)) <= MAX_KNOWN_SPEAKERS:
            problem = f"{len(urls)} for {len(names)} names; expected one for each name, at most "
            raise refuse("known_speaker_references", f"{problem}{MAX_KNOWN_SPEAKERS}, and each name once")
        files = {}
        for name, url in zip(names, urls, strict=True):
            kind, _, content = url.partition(";base64,")
            lines = content.split() if kind[:5] == "data:" else []
            try:
                files[name] = base64.b64decode("".join(lines) or "-", validate=True)
            except ValueError:
                raise refuse("known_speaker_references", "expected data:audio/wav;base64,FILE") from None
        return files

    @pydantic.field_validator("chunking_strategy", mode="before")
    @classmethod
    def _read_chunking(cls, value: Any) -> Any:
        """Accept an object as JSON, as users of curl send it, and as fields, as the official client does."""
        if value == "auto":
            return None
        try:
            return pydantic_core.from_json(value) if isinstance(value, str) else value
        except ValueError:
            raise ValueError("expected auto, or an object of type server_vad") from None


LISTS = {name for name, field in TranscriptionForm.model_fields.items() if field.default == ()}
Form = TypeVar("Form", bound=TranslationForm)


def parse_form(fields: Iterable[tuple[str, str]], form_class: type[Form]) -> Form:
    """Parse and check the text fields of a form. Raises ApiError."""
    values: dict[str, Any] = {}
    for name, value in fields:
        key, _, inner = name.removesuffix("[]").partition("[")
        if key not in form_class.model_fields:
            raise refuse(key, f"unknown field; {suggest(key, form_class.model_fields)}", "unknown_parameter")
        if key in LISTS:
            values.setdefault(key, []).append(value)
        elif inner and isinstance(values.setdefault(key, {}), dict):
            values[key][inner.removesuffix("]")] = value
        elif key in values:
            raise refuse(key, "is given twice; send it once")
        else:
            values[key] = value
    try:
        return form_class.model_validate(values, strict=False)  # because every field arrives as text
    except pydantic.ValidationError as error:
        raise describe_error(error) from None


def describe_error(error: pydantic.ValidationError) -> ApiError:
    """Describe the first problem, with the name of its field."""
    problem = error.errors(include_url=False, include_context=False)[0]
    param = ".".join(map(str, problem["loc"])) or "the request"
    if problem["type"] == "missing":
        return refuse(param, "is missing; add it", "missing_required_parameter")
    return refuse(param, f"{shorten(problem['input'])}: {explain_problem(problem)}")


# --- a transcript that was edited on the page -----------------------------------------------------


class EditedTranscript(Config):
    """A transcript edited on the web page, and the format in which the page wants it as a file."""

    format: Literal["txt", "srt", "vtt", "json"]
    transcript: Transcript

    @pydantic.field_validator("transcript")
    @classmethod
    def _check_times(cls, given: Transcript) -> Transcript:
        spans = [(0.0, given.duration), *((one.start, one.end) for one in given.segments)]
        spans += [(one.start, one.end) for one in given.words]
        if not all(0 <= start <= end <= 1e6 for start, end in spans):
            raise ValueError("expected times from 0 to 1,000,000 s and no end before its start")
        return given


def write_edited(body: bytes) -> str:
    """Return the content of the file that the page requests. Raises ApiError."""
    try:
        edited = EditedTranscript.model_validate_json(body.decode("utf-8", "replace"))
    except pydantic.ValidationError as error:
        raise describe_error(error) from None
    return format_transcript(edited.format, edited.transcript)


# --- answers --------------------------------------------------------------------------------------


def format_body(
    transcript: Transcript, form: TranslationForm, task: str, language: str
) -> dict[str, Any] | str:
    """Return the body in the requested format: a JSON object or text. `language` is its English name."""
    if form.response_format == "text":
        return transcript.text + "\n"
    if form.response_format in ("srt", "vtt"):
        return format_transcript(form.response_format, transcript)
    if form.response_format == "json":
        return describe_text(transcript)
    granularities = form.timestamp_granularities if isinstance(form, TranscriptionForm) else ()
    body: dict[str, Any] = {"task": task, "duration": round(transcript.duration, 3)}
    body |= describe_text(transcript)
    if form.response_format == "diarized_json":
        return body | {"segments": list(map(describe_turn, itertools.count(), transcript.segments))}
    body["language"] = language
    if "word" in granularities:
        body["words"] = [name_as_openai(word) for word in transcript.words]
    if "segment" in granularities or not granularities:
        body["segments"] = [describe_segment(number, one) for number, one in enumerate(transcript.segments)]
    return body


def describe_text(transcript: Transcript) -> dict[str, object]:
    warnings = {"warnings": list(transcript.warnings)} if transcript.warnings else {}
    return {"text": transcript.text, "usage": describe_usage(transcript.duration), **warnings}


def describe_usage(seconds: float) -> dict[str, object]:
    return {"type": "duration", "seconds": math.ceil(seconds)}


def name_as_openai(word: Word) -> dict[str, object]:
    """Describe a word as OpenAI does, plus its confidence."""
    described = word.to_dict()
    return {"word": described.pop("text"), **described}


def describe_segment(number: int, segment: Segment) -> dict[str, object]:
    return {
        "id": number,
        "seek": int(segment.start * 100),  # frames of 10 ms
        "start": round(segment.start, 3),
        "end": round(segment.end, 3),
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": segment.temperature or 0.0,
        "avg_logprob": segment.average_log_probability,
        "compression_ratio": round(segment.compression_ratio, 4),
        "no_speech_prob": segment.no_speech_probability,
    }


def describe_turn(number: int, segment: Segment) -> dict[str, object]:
    """Describe a segment with its speaker, in the form that serves in a body and as an event."""
    own = describe_segment(number, segment)
    named = {"type": "transcript.text.segment", "id": str(number), "speaker": segment.speaker or ""}
    return named | {name: own[name] for name in ("start", "end", "text")}


def format_event(event: Mapping[str, object]) -> str:
    """Format a server-sent event."""
    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n"


LAST_EVENT = "data: [DONE]\n\n"
