"""Transcribe into a folder for `asr transcribe --output-dir`, and go on where an earlier call has stopped."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import cast, get_args

import torch

from asr.audio.sources import Recording
from asr.cli.ray_engine import transcribe_on_ray
from asr.cli.transcription_job import TranscriptionJob, TranscriptionOptions
from asr.errors import UserError
from asr.jobs.ray_pool import PoolOptions
from asr.models.precision import Precision, describe_arithmetic, resolve_precision
from asr.transcription.families import find_family
from asr.transcription.output_folder import OutputFolder
from asr.transcription.settings import describe_making
from asr.transcription.transcribe import choose_device
from asr.transcripts.transcript import Transcript
from asr.transcripts.writers import format_transcript

logger = logging.getLogger(__name__)


def transcribe_to_folder(
    options: TranscriptionOptions,
    output_dir: str,
    recordings: Sequence[Recording],
    formats: Sequence[str],
    pool: PoolOptions | None,
) -> int:
    """Write the outputs of all recordings that an earlier call has not finished. Returns the exit status.

    `pool`: the processes of Ray that do it; None: this one.
    """
    folder, options = _open_folder(
        options, output_dir, formats, pool is not None and pool.address is not None
    )
    folder.check(recordings)

    def write(recording: Recording, transcript: Transcript) -> None:
        subtitles = options.settings.subtitles
        contents = {name: format_transcript(name, transcript, subtitles) for name in formats}
        folder.write(recording, contents, is_whole=not transcript.warnings)

    job = TranscriptionJob(options, write, journal=folder)
    wanted = []
    for recording in recordings:
        if folder.is_done(recording):
            job.counts["finished before"] += 1
            continue
        try:
            folder.require_free(recording)
        except UserError as error:
            job.fail(recording, str(error))
        else:
            wanted.append(recording)
    if num_done := job.counts["finished before"]:
        logger.info("%d of %d were finished by an earlier call", num_done, len(recordings))
    if pool is None:
        job.transcribe(wanted)
    else:
        transcribe_on_ray(job, options, folder, recordings, wanted, pool)
    return job.finish()


def _open_folder(
    options: TranscriptionOptions, output_dir: str, formats: Sequence[str], is_elsewhere: bool
) -> tuple[OutputFolder, TranscriptionOptions]:
    """Open the folder. An earlier call's device and precision are kept where none are asked for by name.

    `is_elsewhere`: the devices are those of a cluster, which this machine may lack.
    """
    family = find_family(options.model)

    def resolve(options: TranscriptionOptions) -> tuple[OutputFolder, TranscriptionOptions, str]:
        is_named = is_elsewhere and options.device in ("cpu", "cuda")
        device = torch.device(options.device) if is_named else choose_device(options.device)
        prefers_int8 = family is not None and family.prefers_int8
        precision = resolve_precision(options.settings.precision, device, prefers_int8)
        arithmetic = describe_arithmetic(precision, device)
        making = describe_making(options.model, options.resources, options.settings, arithmetic)
        folder = OutputFolder(output_dir, formats, making)
        return folder, options.with_precision(precision), arithmetic

    folder, resolved, arithmetic = resolve(options)
    earlier = folder.earlier_arithmetic
    if earlier is None or earlier == arithmetic:
        return folder, resolved
    precision, _, device = earlier.partition(" on ")
    if precision not in get_args(Precision):
        return folder, resolved
    wanted, place = options.settings.precision, options.device
    if wanted not in ("auto", precision) or place.partition(":")[0] not in ("auto", device):
        return folder, resolved  # asked for by name: as with any other setting, all is done anew
    logger.info("%s: goes on in %s, as it was begun", output_dir, earlier)
    as_begun = options.with_precision(cast("Precision", precision))
    try:
        return resolve(replace(as_begun, device=device if place == "auto" else place))[:2]
    except UserError as error:
        raise UserError(
            f"{output_dir}: was begun in {earlier}, which cannot go on here: {error}. Give another "
            f"--output-dir, or do all anew by --set precision={resolved.settings.precision} --device cpu"
        ) from None
