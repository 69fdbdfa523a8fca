"""REVERB: sentences of WSJ in British English, in rooms; simulated (WSJCAM0) and real (MC-WSJ-AV).

Training is on clean WSJCAM0, dev and test on one distant microphone, near or far; also on all eight,
joined by delay and sum, if the task files of eight are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from asr.data import Utterance, read_decoded, write_manifest
from asr.data.manifest import shorten
from asr.errors import UserError
from asr.recipe import (
    WITHOUT_TAGS,
    Recipe,
    build_whole,
    check_counts,
    find_files,
    find_folder,
    normalize_prompt,
    read_dots,
    share_systems,
    write_beamformed,
)

COUNTS = {
    "train": 7_861,
    "dt_simu_near": 742,
    "dt_simu_far": 742,
    "dt_real_near": 90,
    "dt_real_far": 89,
    "et_simu_near": 1_088,
    "et_simu_far": 1_088,
    "et_real_near": 186,
    "et_real_far": 186,
}
DATA = {  # folder that the paths in the task files start from
    ("Sim", "dt"): "REVERB_WSJCAM0_dt/data",
    ("Sim", "et"): "REVERB_WSJCAM0_et/data",
    ("Real", "dt"): "MC_WSJ_AV_Dev",
    ("Real", "et"): "MC_WSJ_AV_Eval",
}
TASK = re.compile(r"(Sim|Real)Data_(dt|et)_for_([18])ch_(near|far)_(room\d)_([A-H])")  # A: first microphone
QUOTED = {"YIELD'", "'ROOTS'", "'WHERE", "PEOPLE'", "SIT'", "'DOMINEE", "CHURCH'"}


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write train.jsonl, dev.jsonl and test.jsonl, their parts dt_simu_near.jsonl to et_real_far.jsonl, and,
    with audio, dt_simu_near_8ch.jsonl to et_real_far_8ch.jsonl."""
    if corpus_dir is None:
        raise UserError("pass --corpus-dir FOLDER with WSJCAM0, the REVERB sets and the task files")
    texts = {
        id: normalize_prompt(text)
        for path in find_files(corpus_dir, ".dot")
        for id, text in read_dots(path).items()
    }
    for path in find_files(corpus_dir, ".mlf"):
        texts.update(read_mlf(path))
    sets: dict[str, dict[str, Path]] = {name: {} for name in COUNTS}
    arrays: dict[str, dict[str, list[Path]]] = {name: {} for name in COUNTS}
    for path in find_files(corpus_dir, *(f"_{letter}" for letter in "abcdefgh")):
        if match := TASK.fullmatch(path.name):
            sort, part, number, distance, _, letter = match.groups()
            name = f"{part}_{'simu' if sort == 'Sim' else 'real'}_{distance}"
            found = _read_task(corpus_dir, path, DATA[sort, part])
            if number == "8":
                for id, file in found.items():
                    arrays[name].setdefault(re.sub(r"_[A-H]_", "_", id), []).append(file)
            elif letter == "A":
                sets[name] |= found
    sets["train"] = {
        path.stem.lower(): path
        for path in find_files(corpus_dir, ".wv1")
        if {"primary_microphone", "si_tr"} <= {part.lower() for part in path.parts}
    }
    check_counts(corpus_dir, {name: len(files) for name, files in sets.items()}, COUNTS)
    manifests = {name: list(_build(name, files, texts)) for name, files in sets.items()}
    for name, channels in arrays.items():
        if channels:
            if incomplete := [id for id, paths in channels.items() if len(paths) != 8]:
                raise UserError(
                    f"{corpus_dir}: {len(channels[incomplete[0]])} of 8 channels of {incomplete[0]} in the "
                    "task files; get all of them"
                )
            joined = write_beamformed(channels, output_dir / "audio" / f"{name}_8ch")
            manifests[f"{name}_8ch"] = list(_build(name, joined, texts))
    for split, part in {"dev": "dt_", "test": "et_"}.items():
        manifests[split] = [u for name in COUNTS if name.startswith(part) for u in manifests[name]]
    for name, utterances in manifests.items():
        write_manifest(output_dir / f"{name}.jsonl", utterances)


def _read_task(corpus_dir: Path, task: Path, data: str) -> dict[str, Path]:
    """Find files by ID, such as c3l_SimData_dt_for_1ch_near_room1_A_c3lc0201."""
    folder = find_folder(corpus_dir, data, f"REVERB/{data}")
    if folder is None:
        raise UserError(f"{corpus_dir}: {task.name} needs {data}, which is missing")
    found = {}
    for number, line in read_decoded(task):
        match = re.fullmatch(r"/(?!.*\.\.)\S*?([^/_]+)(?:_ch\d)?\.wav", line)
        if match is None:
            raise UserError(
                f"{task}:{number}: expected a path such as /near_test/...wav, found {shorten(line)}"
            )
        key = match[1].lower()
        found[f"{key[:3]}_{task.name}_{key}"] = folder / line.lstrip("/")
    return found


def read_mlf(path: Path) -> dict[str, str]:
    """Read the texts of an HTK label file: "*/T21c0206.lab", then a word per line, and a final dot."""
    texts: dict[str, str] = {}
    id, words = None, list[str]()
    for number, line in read_decoded(path, "latin-1"):
        if line == "#!MLF!#":
            continue
        if match := re.fullmatch(r'".*?([^/"]+)\.lab"', line):
            id, words = match[1].lower(), []
        elif id is None:
            raise UserError(
                f'{path}:{number}: expected the name of an utterance, "*/NAME.lab", found {shorten(line)}'
            )
        elif line == ".":
            if words and re.fullmatch("[A-Z]", words[-1]):
                words[-1] += "."
            texts[id], id = " ".join(words), None
        else:
            word = line.replace("`", "").strip()
            words.append(word.strip("'") if word in QUOTED else word)
    return texts


def _build(name: str, files: Mapping[str, Path], texts: Mapping[str, str]) -> Iterator[Utterance]:
    for id, path in files.items():
        key = id.rpartition("_")[2]
        if key not in texts:
            raise UserError(
                f"{path}: no transcript of {key} in the .dot and .mlf files; is WSJCAM0 complete?"
            )
        if name == "train" and not texts[key].replace("<NOISE>", "").strip():
            continue  # no speech
        yield build_whole(path, id=id, text=texts[key], speaker=key[:3], language="en", extras={"set": name})


RECIPE = Recipe(
    license="of the Linguistic Data Consortium and of the challenge",
    hours=22.0,
    prepare=prepare,
    source="license LDC95S24 at https://catalog.ldc.upenn.edu, and get the sets and the task files of "
    "https://reverb2014.dereverberation.com",
    systems=share_systems(__file__, WITHOUT_TAGS),
)
