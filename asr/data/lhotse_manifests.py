"""Manifests of lhotse in: cuts, or supervisions with the recordings beside them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from asr.data.manifest import Utterance, build_utterance
from asr.data.records import keep_scalars, read_objects, warn_of_losses
from asr.data.text_lines import Lines, open_lines
from asr.errors import UserError, shorten


def is_lhotse(record: object) -> bool:
    """Recognise the first record of a file: a cut or a supervision."""
    if not isinstance(record, dict):
        return False
    return str(record.get("type")).endswith("Cut") or {"recording_id", "start", "duration"} <= record.keys()


def read_lhotse(path: str | Path) -> Iterator[Utterance]:
    """An utterance for each supervision, in the order of the file.

    Recordings of supervisions come from the file of the same name with recordings instead of supervisions.
    Relative audio starts at the folder of the manifest or, as lhotse has it, at the current one.
    """
    recordings: dict[str, dict[str, Any]] | None = None
    losses: Counter[str] = Counter()
    with open_lines(path) as lines:
        for number, record in read_objects(lines):
            if "recording_id" in record:
                if recordings is None:
                    recordings = _read_recordings(Path(path))
                recording = recordings.get(str(record["recording_id"]))
                if recording is None:
                    raise lines.error(
                        number, f"no recording {shorten(record['recording_id'])} beside it; give all of them"
                    )
                yield _build(lines, number, record, recording, 0.0, losses)
            elif isinstance(record.get("recording"), dict):
                yield from _read_cut(lines, number, record, losses)
            else:
                losses[f"are left out, as {record.get('type')} without a recording"] += 1
    warn_of_losses(path, losses)


def _read_cut(lines: Lines, number: int, cut: Mapping[str, Any], losses: Counter[str]) -> Iterator[Utterance]:
    """The supervisions of a cut, whose times count from its start. One without any has no text."""
    start, supervisions = cut.get("start"), cut.get("supervisions")
    if not isinstance(start, (int, float)) or not isinstance(supervisions, (list, type(None))):
        raise lines.error(
            number, f"cut {shorten(cut.get('id'))}: expected a start and a list of supervisions"
        )
    for supervision in supervisions or [{"id": cut.get("id"), "start": 0, "duration": cut.get("duration")}]:
        if not isinstance(supervision, dict):
            raise lines.error(number, f"supervision {shorten(supervision)}: expected an object")
        channel = {"channel": cut.get("channel")} | supervision
        yield _build(lines, number, channel, cut["recording"], start, losses)


def _build(
    lines: Lines,
    number: int,
    supervision: Mapping[str, Any],
    recording: Mapping[str, Any],
    shift: float,
    losses: Counter[str],
) -> Utterance:
    source = f"{lines.name}:{number}"
    if recording.get("transforms"):
        raise UserError(
            f"{source}: recording {shorten(recording.get('id'))} is changed when it is read (transforms); "
            "store the audio as it shall be, by lhotse's save_audios"
        )
    audio, channel = _find_audio(source, recording, supervision.get("channel"))
    if not os.path.isabs(audio):
        beside = os.path.join(lines.folder, audio)
        audio = beside if os.path.exists(beside) else os.path.abspath(audio)
    start, custom = supervision.get("start"), supervision.get("custom")
    known = keep_scalars(custom if isinstance(custom, dict) else {}, losses, "custom.")
    losses["lose their alignment"] += bool(supervision.get("alignment"))
    if supervision.get("gender") is not None:
        known.setdefault("gender", supervision["gender"])
    fields = {
        "id": supervision.get("id"),
        "audio": audio,
        "start": round(shift + start, 9) if isinstance(start, (int, float)) else start,
        "duration": supervision.get("duration"),
        "channel": channel,
        "text": supervision.get("text"),
        "speaker": supervision.get("speaker"),
        "language": supervision.get("language"),
        "extras": known,
    }
    return build_utterance(source, fields)


def _find_audio(source: str, recording: Mapping[str, Any], channels: object) -> tuple[str, int | None]:
    """The file with the channel, and which of its channels that is, counted from 1; None: its only one."""
    wanted = channels if isinstance(channels, list) else [0 if channels is None else channels]
    own = recording.get("sources")
    for item in own if isinstance(own, list) else []:
        if not isinstance(item, dict) or not isinstance(item.get("channels"), list):
            continue
        if not set(map(str, wanted)) <= set(map(str, item["channels"])):
            continue
        if item.get("type") != "file" or not isinstance(item.get("source"), str):
            raise UserError(
                f"{source}: its audio is of type {shorten(item.get('type'))}; expected file: commands are "
                "not run and addresses not opened. Store the audio by lhotse's save_audios"
            )
        if len(wanted) > 1:
            if len(wanted) < len(item["channels"]):
                raise UserError(f"{source}: {len(wanted)} of its channels are meant; expected one, or all")
            return item["source"], None
        position = list(map(str, item["channels"])).index(str(wanted[0]))
        return item["source"], position + 1 if len(item["channels"]) > 1 else None
    raise UserError(
        f"{source}: recording {shorten(recording.get('id'))} has no file with channel {shorten(wanted)}"
    )


def _read_recordings(supervisions: Path) -> dict[str, dict[str, Any]]:
    path = supervisions.with_name(supervisions.name.replace("supervisions", "recordings"))
    if path == supervisions or not path.exists():
        raise UserError(
            f"{supervisions}: supervisions tell no audio; expected a file named ...supervisions... and the "
            "recordings beside it, named ...recordings...; or give the cuts"
        )
    with open_lines(path) as lines:
        return {str(record.get("id")): record for _, record in read_objects(lines)}
