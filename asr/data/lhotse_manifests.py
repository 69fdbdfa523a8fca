"""Manifests of lhotse in: cuts, or supervisions with the recordings beside them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from asr.data.manifest import Utterance, build_utterance
from asr.data.records import keep_scalars, read_objects, warn_of_losses
from asr.data.text_lines import open_lines
from asr.errors import UserError, shorten

Object = Mapping[str, Any]


def read_lhotse(path: str | Path) -> Iterator[Utterance]:
    """An utterance for each supervision, in the order of the file.

    Recordings of supervisions come from the file of the same name with recordings instead of supervisions.
    Relative audio starts at the folder of the manifest or, as lhotse has it, at the current one.
    """
    recordings: dict[str, Object] | None = None
    losses: Counter[str] = Counter()
    with open_lines(path) as lines:
        for number, record in read_objects(lines):
            recording = record.get("recording")
            if "recording_id" in record:
                if recordings is None:
                    recordings = _read_recordings(Path(path))
                recording = recordings.get(str(record["recording_id"]))
                if recording is None:
                    raise lines.error(
                        number, f"no recording {shorten(record['recording_id'])} beside it; give all of them"
                    )
            if not isinstance(recording, dict):
                losses[f"are left out, as {record.get('type')} without a recording"] += 1
                continue
            try:
                found = [*_build_fields(lines.folder, record, recording, losses)]
            except UserError as error:
                raise lines.error(number, str(error)) from None
            yield from (build_utterance(f"{path}:{number}", fields) for fields in found)
    warn_of_losses(path, losses)


def _build_fields(
    folder: str, record: Object, recording: Object, losses: Counter[str]
) -> Iterator[dict[str, Any]]:
    """The fields of an utterance for a supervision, or for each of a cut, whose times count from its start.

    A cut without any has no text.
    """
    if recording.get("transforms"):
        raise UserError(
            f"recording {shorten(recording.get('id'))} has transforms; store it by lhotse's save_audios"
        )
    shift: Any = 0.0
    supervisions: Any = [record]
    if "recording_id" not in record:
        shift = record.get("start")
        whole = {"id": record.get("id"), "start": 0, "duration": record.get("duration")}
        supervisions = record.get("supervisions") or [whole]
    for supervision in supervisions if isinstance(supervisions, list) else [{}]:
        start = supervision.get("start") if isinstance(supervision, dict) else None
        if not isinstance(start, (int, float)) or not isinstance(shift, (int, float)):
            raise UserError(f"cut {shorten(record.get('id'))}: expected supervisions, and starts in seconds")
        audio, channel = _find_audio(recording, supervision.get("channel", record.get("channel")))
        if not os.path.isabs(audio):
            beside = os.path.join(folder, audio)
            audio = beside if os.path.exists(beside) else os.path.abspath(audio)
        custom = supervision.get("custom")
        extras = keep_scalars(custom if isinstance(custom, dict) else {}, losses, "custom.")
        losses["lose their alignment"] += bool(supervision.get("alignment"))
        if supervision.get("gender") is not None:
            extras.setdefault("gender", supervision["gender"])
        same = {name: supervision.get(name) for name in ("id", "duration", "text", "speaker", "language")}
        yield {**same, "audio": audio, "start": round(shift + start, 9), "channel": channel, "extras": extras}


def _find_audio(recording: Object, channels: object) -> tuple[str, int | None]:
    """The file with the channel, and which of its channels that is, counted from 1; None: its only one."""
    wanted = [str(one) for one in channels] if isinstance(channels, list) else [str(channels or 0)]
    own = recording.get("sources")
    for item in own if isinstance(own, list) else []:
        there = item.get("channels") if isinstance(item, dict) else None
        there = [str(one) for one in there] if isinstance(there, list) else []
        if not set(wanted) <= set(there):
            continue
        if item.get("type") != "file" or not isinstance(item.get("source"), str):
            raise UserError(
                f"audio of type {shorten(item.get('type'))} is not opened; store it by lhotse's save_audios"
            )
        if 1 < len(wanted) < len(there):
            raise UserError(f"{len(wanted)} of its channels are meant; expected one, or all")
        is_one = len(wanted) == 1 < len(there)
        return item["source"], there.index(wanted[0]) + 1 if is_one else None
    raise UserError(f"recording {shorten(recording.get('id'))} has no file with channel {', '.join(wanted)}")


def _read_recordings(supervisions: Path) -> dict[str, Object]:
    path = supervisions.with_name(supervisions.name.replace("supervisions", "recordings"))
    if path == supervisions or not path.exists():
        raise UserError(f"{supervisions}: no recordings; expected {path} beside it, or give the cuts")
    with open_lines(path) as lines:
        return {str(record.get("id")): record for _, record in read_objects(lines)}
