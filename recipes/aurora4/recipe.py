"""Aurora-4: WSJ0 with noises added, in 14 conditions of noise and microphone.

The files have no header, so they are converted to FLAC next to the manifests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import numpy as np

from asr.audio import write
from asr.data import Utterance, read_decoded, write_manifest
from asr.errors import UserError
from asr.recipe import (
    WITHOUT_TAGS,
    Recipe,
    build_whole,
    check_counts,
    find_files,
    index_wsj,
    normalize_prompt,
    read_prompts,
    share_systems,
)

SAMPLE_RATE = 16_000
CONDITIONS = "0123456789abcd"  # last character of an ID; 0 to 6 are from the first microphone
LISTS = {
    "train": {"1": "training_multicondition_16k.list"},
    "train_clean": {"0": "training_clean_sennh_16k.list"},
    "dev": {c: f"devtest{n:02}_0330_16k.list" for n, c in enumerate(CONDITIONS, 1)},
    "test": {c: f"test{n:02}_0330_16k.list" for n, c in enumerate(CONDITIONS, 1)},
}
COUNTS = {"dev": 4_620, "test": 4_620}
DOUBLED = "408o0302.wv2"  # second microphone of an utterance that is also listed from the first
KNOWN_HEADERS = (b"RIFF", b"NIST", b"fLaC")


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write train.jsonl (multi), train_clean.jsonl, dev.jsonl, test.jsonl, and their audio into `audio`."""
    if corpus_dir is None:
        raise UserError("pass --corpus-dir FOLDER with Aurora-4 and WSJ0")
    lists = {path.name.lower(): path for path in find_files(corpus_dir, "_16k.list", "_sennh_16k.list")}
    if "test01_0330_16k.list" not in lists:
        raise UserError(f"{corpus_dir}: no test01_0330_16k.list; expected AURORA/lists below it")
    root = lists["test01_0330_16k.list"].parents[1]
    files = _index(root)
    sets: dict[str, dict[str, Path]] = {}
    for name, of in LISTS.items():
        if missing := sorted(set(of.values()) - lists.keys()):
            raise UserError(f"{root}: the list {missing[0]} of {name} is missing; get a complete copy")
        sets[name] = {id: path for c, file in of.items() for id, path in _read_list(lists[file], files, c)}
    check_counts(root, {name: len(found) for name, found in sets.items()}, COUNTS)
    texts = read_prompts(corpus_dir, index_wsj(corpus_dir), {id[:8] for ids in sets.values() for id in ids})
    for name, found in sets.items():
        folder = output_dir / "audio" / name
        write_manifest(output_dir / f"{name}.jsonl", _build(found, texts, folder))


def _index(root: Path) -> dict[str, list[Path]]:
    """Index files by each lower-case suffix of their path with at least two parts."""
    found = defaultdict(list)
    for path in find_files(root, ".wv1", ".wv2", ".wav", ".raw"):
        parts = path.relative_to(root).as_posix().lower().split("/")
        for begin in range(max(1, len(parts) - 1)):
            found["/".join(parts[begin:])].append(path)
    return found


def _read_list(path: Path, files: Mapping[str, list[Path]], condition: str) -> Iterator[tuple[str, Path]]:
    """Yield IDs and files; copies differ in the parent folders."""
    for number, line in read_decoded(path, "latin-1"):
        name = PurePosixPath(line.split()[0].replace("\\", "/").lower().lstrip("./"))
        if name.name == DOUBLED:
            continue
        ends = ("/".join(name.parts[begin:]) for begin in range(max(1, len(name.parts) - 1)))
        found = next((files[end] for end in ends if files.get(end)), [])
        if len(found) != 1:
            where = f"matches {found[0]} and {found[1]}" if found else "there is no such file"
            raise UserError(f"{path}:{number}: {name}: {where}; get a complete copy, unpacked as it came")
        yield f"{name.stem}{condition}", found[0]


def _build(files: Mapping[str, Path], texts: Mapping[str, str], folder: Path) -> Iterator[Utterance]:
    folder.mkdir(parents=True, exist_ok=True)
    for id, path in files.items():
        text = normalize_prompt(texts[id[:8]])
        yield build_whole(
            _convert(path, folder / f"{id}.flac"), id=id, text=text, speaker=id[:3], language="en"
        )


def _convert(path: Path, target: Path) -> Path:
    """Convert headerless big-endian 16-bit samples to FLAC; files with a header stay."""
    if target.exists():  # from an interrupted preparation
        return target
    content = path.read_bytes()
    if content[:4] in KNOWN_HEADERS:
        return path
    if len(content) < 2 or len(content) % 2:
        raise UserError(f"{path}: {len(content)} bytes are not 16-bit samples; get a complete copy")
    write(target, np.frombuffer(content, ">i2").astype(np.float32) / 32768, SAMPLE_RATE)
    return target


RECIPE = Recipe(
    license="of ELRA, and of the Linguistic Data Consortium for WSJ0",
    hours=30.0,
    prepare=prepare,
    source="order aurora4a and aurora4b of ELRA (http://aurora.hsnr.de/aurora-4.html), license LDC93S6A or B",
    systems=share_systems(__file__, WITHOUT_TAGS),
)
