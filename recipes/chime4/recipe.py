"""CHiME-4: sentences of WSJ0 read to a tablet with six microphones in bus, café, pedestrian area, street.

Training is on each microphone by itself, dev and test on the track of one microphone. There are also dev
and test of five microphones (all but the second, which faces backwards) joined by delay and sum.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from asr.data import Utterance, read_decoded, write_manifest
from asr.errors import UserError
from asr.recipe import (
    WITHOUT_TAGS,
    Recipe,
    build_whole,
    check_counts,
    find_corpus,
    index_wsj,
    normalize_prompt,
    read_dots,
    read_prompts,
    share_systems,
    write_beamformed,
)

COUNTS = {
    "train": 52_428,
    **{
        f"{part}_{kind}": n for part, n in {"dt05": 1_640, "et05": 1_320}.items() for kind in ("real", "simu")
    },
}
ENVIRONMENTS = ("bus", "caf", "ped", "str")
AUDIO = "data/audio/16kHz"

Files = dict[str, Path]


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write train.jsonl, dev.jsonl, test.jsonl and their parts dt05_real.jsonl to et05_simu.jsonl; also, with
    audio, the sets of five microphones (dt05_real_5mics.jsonl and so on) if they exist."""
    root = find_corpus(corpus_dir, "data/transcriptions")
    sets = {
        f"{part}_{kind}": _find_track(root, part, kind)
        for part in ("dt05", "et05")
        for kind in ("real", "simu")
    }
    real, simu = (_find_training(root, kind) for kind in ("real", "simu"))
    check_counts(
        root, {name: len(files) for name, files in sets.items()} | {"train": len(real) + len(simu)}, COUNTS
    )
    prompts = {id: id.split("_")[1].lower() for id in simu}  # 011_011C0201_BUS.CH1
    wsj0 = root / "data" / "WSJ0"  # or in the given folder
    index = index_wsj(wsj0 if wsj0.is_dir() else corpus_dir or root)
    texts = read_prompts(root, index, prompts.values())
    manifests = {name: list(_build(root, name, files)) for name, files in sets.items()}
    manifests["dev"] = manifests["dt05_real"] + manifests["dt05_simu"]
    manifests["test"] = manifests["et05_real"] + manifests["et05_simu"]
    for name, files in sets.items():
        if tracks := _find_five(root, name, files):
            joined = write_beamformed(tracks, output_dir / "audio" / f"{name}_5mics")
            manifests[f"{name}_5mics"] = list(_build(root, name, joined))
    train = list(_build(root, "tr05_real", real))
    train += (_build_one(id, path, texts[prompts[id]], "SIMU") for id, path in simu.items())
    for name, utterances in {"train": train, **manifests}.items():
        write_manifest(output_dir / f"{name}.jsonl", utterances)


def _find_training(root: Path, kind: str) -> Files:
    """Find all six microphones of the tablet; CH0 is a close-talking microphone."""
    folders = [root / AUDIO / "isolated" / f"tr05_{place}_{kind}" for place in ENVIRONMENTS]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.CH[1-6].wav"))}


def _find_track(root: Path, part: str, kind: str) -> Files:
    """Find the files of the one-microphone track, or the files that its list names."""
    track = root / AUDIO / "isolated_1ch_track"
    if track.is_dir():
        folders = [track / f"{part}_{place}_{kind}" for place in ENVIRONMENTS]
        return {path.stem: path for folder in folders for path in sorted(folder.glob("*.wav"))}
    files = {}
    for number, line in read_decoded(_find_list(root, f"{part}_{kind}_1ch_track.list")):
        match = re.fullmatch(r"(\w+/(\w+)\.CH[1-6]\.wav)", line)
        if match is None:
            raise UserError(
                f"{root}: {part}_{kind}_1ch_track.list:{number}: expected dt05_bus_real/NAME.CH4.wav"
            )
        files[match[2]] = root / AUDIO / "isolated" / match[1]
    return files


def _find_five(root: Path, name: str, files: Files) -> dict[str, list[Path]]:
    """Find the five microphones of each utterance; none if the folder of all microphones is missing."""
    tracks = {}
    for id in files:
        place = id.rpartition("_")[2].lower()
        folder = root / AUDIO / "isolated" / f"{name[:4]}_{place}_{name[5:]}"
        if not folder.is_dir():
            return {}
        tracks[id] = [folder / f"{id}.CH{number}.wav" for number in (1, 3, 4, 5, 6)]
    return tracks


def _find_list(root: Path, name: str) -> Path:
    path = root / "data" / "annotations" / name
    if not path.exists():
        raise UserError(
            f"{root}: neither {AUDIO}/isolated_1ch_track nor data/annotations/{name}; the et05 "
            "annotations were published later, in CHiME4_diff"
        )
    return path


def _build(root: Path, name: str, files: Mapping[str, Path]) -> Iterator[Utterance]:
    source = root / "data" / "transcriptions" / f"{name}.dot_all"
    texts = read_dots(source)
    for id, path in files.items():
        key = id.partition(".")[0].lower()
        if key not in texts:
            raise UserError(f"{source}: no transcript of {key}; get a complete copy")
        yield _build_one(id, path, texts[key], name[-4:].upper())


def _build_one(id: str, path: Path, text: str, kind: str) -> Utterance:
    return build_whole(
        path,
        id=f"{id}_{kind}",
        text=normalize_prompt(text),
        speaker=id.partition("_")[0],
        language="en",
        extras={"environment": id.partition(".")[0].rpartition("_")[2].lower(), "kind": kind.lower()},
    )


RECIPE = Recipe(
    license="of the Linguistic Data Consortium",
    hours=190.0,
    prepare=prepare,
    source="license LDC2017S24 and WSJ0 at https://catalog.ldc.upenn.edu (https://www.chimechallenge.org)",
    systems=share_systems(__file__, WITHOUT_TAGS),
)
