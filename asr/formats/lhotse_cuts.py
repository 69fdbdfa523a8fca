"""Cuts of lhotse, as JSON Lines."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from asr.data.manifest import Utterance, build_utterance
from asr.data.records import read_objects
from asr.data.text_lines import open_lines
from asr.errors import UserError, shorten
from asr.formats.source import Source


def read_cuts(path: str | Path, source: Source) -> Iterator[Utterance]:
    """An utterance for each supervision of each cut; a cut without any has no text.

    Relative audio starts at the folder of the manifest or, as lhotse has it, at the current one.
    """
    with open_lines(path) as lines:
        for number, cut in read_objects(lines):
            if not isinstance(cut.get("recording"), dict):
                source.losses[f"are left out, as {cut.get('type') or 'cuts'} without a recording"] += 1
                continue
            try:
                found = [*_build_fields(lines.folder, cut, source)]
            except UserError as error:
                raise lines.error(number, str(error)) from None
            yield from (build_utterance(f"{path}:{number}", fields) for fields in found)


def _build_fields(folder: str, cut: Mapping[str, Any], source: Source) -> Iterator[dict[str, Any]]:
    """The fields of an utterance for each supervision, whose times count from the start of the cut."""
    recording, shift = cut["recording"], cut.get("start")
    if recording.get("transforms"):
        raise UserError(
            f"recording {shorten(recording.get('id'))} has transforms; store it by lhotse's save_audios"
        )
    supervisions = cut.get("supervisions") or [
        {"id": cut.get("id"), "start": 0, "duration": cut.get("duration")}
    ]
    for supervision in supervisions if isinstance(supervisions, list) else [{}]:
        start = supervision.get("start") if isinstance(supervision, dict) else None
        if not isinstance(start, (int, float)) or not isinstance(shift, (int, float)):
            raise UserError(f"cut {shorten(cut.get('id'))}: expected supervisions, and starts in seconds")
        audio, channel = _find_audio(recording, supervision.get("channel", cut.get("channel")))
        if not os.path.isabs(audio):
            beside = os.path.join(folder, audio)
            audio = beside if os.path.exists(beside) else os.path.abspath(audio)
        custom = supervision.get("custom")
        extras = source.keep_scalars(custom if isinstance(custom, dict) else {}, "custom.")
        same = {name: supervision.get(name) for name in ("id", "duration", "text", "speaker", "language")}
        yield {**same, "audio": audio, "start": round(shift + start, 9), "channel": channel, "extras": extras}


def _find_audio(recording: Mapping[str, Any], channels: object) -> tuple[str, int | None]:
    """The file with the channels, and which of its own that is, counted from 1; None: all of them."""
    requested = channels if isinstance(channels, list) else [channels or 0]
    sources = recording.get("sources")
    for item in sources if isinstance(sources, list) else []:
        there = item.get("channels") if isinstance(item, dict) else None
        if not isinstance(there, list) or any(channel not in there for channel in requested):
            continue
        if item.get("type") != "file" or not isinstance(item.get("source"), str):
            raise UserError(
                f"audio of type {shorten(item.get('type'))} is not opened; store it by lhotse's save_audios"
            )
        if 1 < len(requested) < len(there):
            raise UserError(f"{len(requested)} of its channels are meant; expected one, or all")
        return item["source"], there.index(requested[0]) + 1 if len(requested) < len(there) else None
    raise UserError(f"recording {shorten(recording.get('id'))} has no file with channel {shorten(requested)}")
