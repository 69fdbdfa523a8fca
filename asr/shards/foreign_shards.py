"""Index tar files that others wrote, webdataset's and lhotse's Shar, where they lie."""

from __future__ import annotations

import itertools
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pydantic

from asr.audio.reading import AUDIO_SUFFIXES, measure_seconds
from asr.data.manifest import build_utterance
from asr.data.packed import INDEX_NAME, MAX_MEMBER_BYTES, PackedUtterance
from asr.data.records import keep_scalars, name_fields
from asr.data.text_lines import parse_json, read_lines
from asr.errors import UserError, shorten
from asr.files import claim_folder, hash_file
from asr.shards.packing import PackReport, finish_shard, hash_id, write_folder_index
from asr.shards.shards import Failure, SafeName, ShardInfo

MAX_RECORD_BYTES = 1_000_000
_SHAR = re.compile(r"(\w+)\.([0-9]+)\.tar")
_CHECK_NAME: pydantic.TypeAdapter[str] = pydantic.TypeAdapter(SafeName)

Member = tuple[str, int, bytes]  # name, where its content begins, content
Found = tuple[str, "PackedUtterance | UserError"]  # id, and what there is of it


def index_folder(folder: Path, report: Callable[[int], object] = lambda size: None) -> PackReport:
    """Write an index for each tar file in a folder, or up to two folders below, and that of the folder.

    The tar files stay as they are. Of lhotse's Shar, recording.*.tar is read beside cuts.*.jsonl or
    cuts.*.jsonl.gz, and other fields, such as features, are left alone. `report` gets the bytes of each tar
    file that is done.
    """
    paths = [path for depth in ("*", "*/*", "*/*/*") for path in sorted(folder.glob(f"{depth}.tar"))]
    paths = [path for path in paths if path.name.startswith("recording.") or _find_cuts(path) is None]
    if not paths:
        raise UserError(f"{folder}: no .tar file there or in a folder below; give the folder of the shards")
    seen: set[int] = set()
    infos = []
    with claim_folder(folder):
        for path in paths:
            infos.append(_index_shard(path, folder, seen))
            report(path.stat().st_size)
        if not any(info.utterances for info in infos):
            messages = [failure.message for info in infos for failure in info.failed]
            messages.append("expected audio files with a .json or .txt of the same name")
            raise UserError(f"{folder}: no utterance in its tar files; {messages[0]}")
        write_folder_index(folder, infos)
    return PackReport(tuple(infos), 0)


def _find_cuts(path: Path) -> Path | None:
    """The cuts of a tar file of lhotse's Shar; None: it is another one."""
    match = _SHAR.fullmatch(path.name)
    names = (f"cuts.{match[2]}.jsonl.gz", f"cuts.{match[2]}.jsonl") if match else ()
    return next((path.with_name(name) for name in names if path.with_name(name).is_file()), None)


def _index_shard(path: Path, folder: Path, seen: set[int]) -> ShardInfo:
    name = path.relative_to(folder).as_posix()
    index_name = name.removesuffix(".tar").replace("/", "-") + ".jsonl"
    try:
        _CHECK_NAME.validate_python(name)
    except pydantic.ValidationError:
        raise UserError(f"{path}: expected a name of letters, digits, '.', '-' and '_'; rename it") from None
    if index_name == INDEX_NAME:
        raise UserError(f"{path}: its index would be named as that of the folder; rename it")
    cuts = _find_cuts(path)
    rows, failed = [], []
    for id, found in _read_samples(path) if cuts is None else _read_shar(path, cuts):
        if isinstance(found, PackedUtterance) and hash_id(id) in seen:
            found = UserError(f"{path}: the id {id} stands there twice; each needs its own")
        if isinstance(found, UserError):
            failed.append(Failure(id=id, message=str(found)))
        else:
            seen.add(hash_id(id))
            rows.append(found)
    return finish_shard(folder, name, rows, failed, index_name, path.stat().st_size, hash_file(path))


def _read_members(path: Path) -> Iterator[Member]:
    """The files of a tar file in their order."""
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # else it keeps all headers
                if not member.isreg() or member.issparse():
                    continue
                if member.size > MAX_MEMBER_BYTES:
                    raise UserError(f"{path}: {shorten(member.name)} is too large for audio")
                file = tar.extractfile(member)
                assert file is not None
                yield member.name, member.offset_data, file.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"{path}: not a plain tar file, or damaged ({error}); unpack it to .tar") from None


def _describe_member(path: Path, id: str, audio: Member, fields: Mapping[str, Any]) -> PackedUtterance:
    """An utterance of an audio file in a tar file; as long as that, unless `fields` tell."""
    name, offset, content = audio
    if not content:
        raise UserError(f"{path}/{name}: the file is empty")
    if "duration" not in fields:
        fields = {**fields, "duration": measure_seconds(f"{path}/{name}", content)}
    utterance = build_utterance(f"{path}/{name}", {"id": id, "audio": name, **fields})
    return PackedUtterance(**utterance.model_dump(), offset=offset, size=len(content))


# --- webdataset -----------------------------------------------------------------------------------


def _read_samples(path: Path) -> Iterator[Found]:
    """Samples of webdataset: files that follow each other and share their name up to its first dot."""

    def split(name: str) -> tuple[str, str]:
        folder, slash, file_name = name.rpartition("/")
        stem, _, suffix = file_name.partition(".")
        return f"{folder}{slash}{stem}", f".{suffix.lower()}"

    for key, members in itertools.groupby(_read_members(path), lambda member: split(member[0])[0]):
        sample = {split(member[0])[1]: member for member in members}
        audio = next((sample[suffix] for suffix in sample if suffix in AUDIO_SUFFIXES), None)
        if audio is None:
            continue  # a text of its own, a licence
        id = key
        try:
            fields = _read_record(path, key, sample)
            id = str(fields.pop("id", None) or key)
            yield id, _describe_member(path, id, audio, fields)
        except UserError as error:
            yield id, error


def _read_record(path: Path, key: str, sample: Mapping[str, Member]) -> dict[str, Any]:
    """The fields of a sample, of its .json and its .txt."""
    fields: dict[str, Any] = {}
    if ".json" in sample:
        record = parse_json(sample[".json"][2][:MAX_RECORD_BYTES])
        if not isinstance(record, dict):
            raise UserError(f"{path}: {key}.json is not a JSON object")
        named = name_fields(record)
        known = ("id", "text", "speaker", "language")
        fields = {name: named.values[name] for name in known if name in named.values}
        own = record.get("extras")
        fields["extras"] = keep_scalars(own if isinstance(own, dict) else named.rest, Counter())
    if "text" not in fields and ".txt" in sample:
        try:
            fields["text"] = sample[".txt"][2][:MAX_RECORD_BYTES].decode().strip()
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: {key}.txt is not UTF-8 text (byte {error.start + 1})") from None
    return fields


# --- lhotse Shar ----------------------------------------------------------------------------------


def _read_shar(path: Path, cuts: Path) -> Iterator[Found]:
    """Each cut beside its pair of files: the audio and its description."""
    members = _read_members(path)
    for number, _, line in read_lines(cuts):
        cut = parse_json(line)
        if not isinstance(cut, dict) or not isinstance(cut.get("id"), str):
            raise UserError(f"{cuts}:{number}: not a cut of lhotse")
        audio, described = next(members, None), next(members, None)
        if audio is None or described is None or audio[0].rpartition(".")[0] != cut["id"]:
            there = "its end" if audio is None else shorten(audio[0])
            raise UserError(f"{path}: {there} stands where the cut {shorten(cut['id'])} of {cuts} belongs")
        try:
            fields = _read_cut(cuts, cut, described[2])
            yield cut["id"], _describe_member(path, cut["id"], audio, fields)
        except UserError as error:
            yield cut["id"], error


def _read_cut(cuts: Path, cut: Mapping[str, Any], described: bytes) -> dict[str, Any]:
    if cut.get("type") not in ("MonoCut", "MultiCut"):
        raise UserError(
            f"{cuts}: {cut['id']} is a {shorten(cut.get('type'))}; expected a MonoCut or MultiCut"
        )
    recording = parse_json(described)
    channels = recording.get("channel_ids") if isinstance(recording, dict) else None
    fields = {"start": cut.get("start", 0.0), "duration": cut.get("duration")}
    channel = cut.get("channel")
    if isinstance(channel, int) and isinstance(channels, list) and len(channels) > 1:
        fields["channel"] = channel + 1
    supervisions = [item for item in cut.get("supervisions") or [] if isinstance(item, dict)]
    texts = [item["text"] for item in supervisions if isinstance(item.get("text"), str)]
    if texts:
        fields["text"] = " ".join(texts)
    for name in ("speaker", "language"):
        values = {item.get(name) for item in supervisions if isinstance(item.get(name), str)}
        if len(values) == 1:
            fields[name] = values.pop()
    customs = [item["custom"] for item in supervisions if isinstance(item.get("custom"), dict)]
    fields["extras"] = keep_scalars(customs[0], Counter()) if customs else {}
    return fields
