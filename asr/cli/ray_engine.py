"""`asr transcribe --engine ray`: many recordings by several processes, here or on a cluster; its status."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from asr.audio.reading import Damage
from asr.audio.sources import Recording
from asr.cli.options import limit_threads
from asr.cli.transcription_job import (
    TranscriptionJob,
    TranscriptionOptions,
    load_transcriber,
    make_request,
    measure_recording,
)
from asr.errors import UserError, plural
from asr.files import claim_folder, hash_file
from asr.jobs.ray_pool import PoolOptions, RayPool
from asr.jobs.work_units import PartFolder, WorkUnit, hash_json, plan_units, read_status
from asr.transcription.output_folder import OutputFolder, stamp_recording
from asr.transcription.settings import find_weights
from asr.transcripts.transcript import Segment, Transcript

logger = logging.getLogger(__name__)

PARTS = ".asr-transcribe-parts"

TRANSCRIPT: pydantic.TypeAdapter[Transcript] = pydantic.TypeAdapter(Transcript)
TRANSCRIPT.rebuild(_types_namespace={"Damage": Damage})  # of which its module has the name alone


class TranscriptionWork:
    """Work of a worker: it holds the model, and turns recordings into rows."""

    def __init__(self, options: TranscriptionOptions, threads: int) -> None:
        limit_threads(threads)
        self._recognizer = load_transcriber(options)
        self._request = make_request(options, self._recognizer)

    def __call__(self, recordings: Sequence[Recording]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for _, result in self._recognizer.transcribe_events(recordings, self._request):
            if isinstance(result, UserError):
                rows.append({"error": str(result), "kind": "unreadable"})
            elif not isinstance(result, Segment):
                rows.append({"transcript": dataclasses.asdict(result)})
        return rows


def transcribe_on_ray(
    job: TranscriptionJob,
    options: TranscriptionOptions,
    folder: OutputFolder,
    recordings: Sequence[Recording],
    wanted: Sequence[Recording],
    pool_options: PoolOptions,
) -> None:
    """Write a transcript of each of `wanted`, out of the parts of the units that all `recordings` make.

    A unit is all done or not at all, so that its texts do not depend on what an earlier call has finished.
    """
    names = {recording.name for recording in wanted}
    seconds = [measure_recording(recording) for recording in recordings]
    units = plan_units([_describe(recording) for recording in recordings], seconds)
    parts = PartFolder(folder.folder / PARTS, _make_key(options.model, folder.made_by))

    def take(unit: WorkUnit, rows: Sequence[Mapping[str, Any]]) -> None:
        for recording, row in zip(recordings[unit.start : unit.end], rows, strict=True):
            if recording.name in names:
                failed = "error" in row
                job.take(
                    recording,
                    UserError(row["error"]) if failed else TRANSCRIPT.validate_python(row["transcript"]),
                )

    with claim_folder(parts.folder):
        left = []
        for unit in units:
            if not any(recording.name in names for recording in recordings[unit.start : unit.end]):
                continue
            rows = parts.read(unit)
            if rows is None:
                left.append(unit)
            else:
                take(unit, rows)
        parts.announce(units, left)
        if not left:
            return
        logger.info("%s of %s to do", plural(len(left), "unit"), f"{len(units):,}")
        uses_gpus = str(folder.made_by["arithmetic"]).endswith("cuda")
        with (
            RayPool[Recording](pool_options, uses_gpus) as pool,
            job.show_progress(sum(unit.seconds for unit in left)) as progress,
        ):
            logger.info("%s with %s each", plural(pool.num_workers, "worker"), plural(pool.threads, "thread"))
            items = [recordings[unit.start : unit.end] for unit in left]
            for number, rows in pool.run(items, lambda threads: TranscriptionWork(options, threads)):
                unit = left[number]
                ids = [recording.name for recording in items[number]]
                rows = [{"id": id} | row for id, row in zip(ids, rows, strict=True)]
                parts.write(unit, rows)
                take(unit, rows)
                progress.advance(unit.seconds)


def _describe(recording: Recording) -> str:
    """Name all that a transcript depends on besides model and settings, for the name of its unit."""
    return hash_json(
        [recording.name, stamp_recording(recording), recording.start, recording.duration, recording.channel]
    )


def _make_key(model: str, made_by: Mapping[str, Any]) -> str:
    """The model by its content, since a cluster's machines have files of other times; then all settings."""
    settings = {name: value for name, value in made_by.items() if name != "model"}
    return f"{hash_file(find_weights(model))[:16]}-{hash_json(settings)}"


def show_status(output_dir: str) -> None:
    """Print how far the job of an output folder is."""
    status = read_status(Path(output_dir) / PARTS)
    failed = f", {status.failed_items:,} of them failed" if status.failed_items else ""
    print(f"units       {status.done_units:,} of {status.num_units:,} done")
    print(f"recordings  {status.done_items:,} of {status.num_items:,} done{failed}")
    print(f"audio       {status.done_seconds / 3600:.2f} of {status.seconds / 3600:.2f} hours")
    if status.done_units == status.num_units:
        print("state       finished")
    elif not status.is_running:
        print("state       interrupted; the same call goes on with the rest")
    else:
        left = "" if status.eta_seconds is None else f", about {_format_duration(status.eta_seconds)} left"
        print(f"state       running{left}")


def _format_duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes or 1} min"
