"""AISHELL-2: 1,991 people read Mandarin into telephones and a microphone, 1,000 hours.

Training data is of iOS telephones; dev and test come from iOS, from Android and from a microphone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from asr.data import Utterance, read_texts, write_manifest
from asr.errors import UserError
from asr.recipe import (
    Recipe,
    build_whole,
    check_counts,
    find_folder,
    require_unpacked,
    share_systems,
    warn_of_shortfall,
)

COUNTS = {"train_all": 1_008_702, "dev": 2_500, "test_ios": 5_000, "test_android": 5_000, "test_mic": 5_000}
BAD = {"IC0803W0380"}
TRAIN = ("AISHELL-2/iOS/data", "iOS/data", "AISHELL-2/iOS/train", "iOS/train")
EVALUATION = (
    "AISHELL-DEV-TEST-SET",
    "AISHELL2-2018A-EVAL",
    "AISHELL-2/AISHELL-DEV-TEST-SET",
    "AISHELL-2",
    ".",
)

Line = tuple[Path, str, str]  # audio, ID and text


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write train.jsonl (no Latin letters), train_all.jsonl, dev.jsonl, test.jsonl and test_CHANNEL.jsonl."""
    if corpus_dir is None or not corpus_dir.is_dir():
        raise UserError(f"{corpus_dir}: expected a folder with AISHELL-2 and AISHELL-DEV-TEST-SET in it")
    sets = {
        "train_all": _read(corpus_dir, *TRAIN),
        "dev": _read(corpus_dir, *(f"{folder}/iOS/dev" for folder in EVALUATION)),
    }
    for channel in ("ios", "android", "mic"):
        folders = [f"{folder}/{channel}/test" for folder in EVALUATION]
        if channel == "ios" or find_folder(corpus_dir, *folders):
            sets[f"test_{channel}"] = _read(corpus_dir, *folders)
        else:
            warn_of_shortfall(corpus_dir, f"test without {folders[0]}")
    counts = {name: len(lines) for name, lines in sets.items()}
    check_counts(corpus_dir, counts, {name: count for name, count in COUNTS.items() if name in counts})
    sets["train"] = [line for line in sets["train_all"] if not re.search("[A-Z]", line[2])]
    sets["test"] = [line for name, lines in sets.items() if name.startswith("test_") for line in lines]
    for name, lines in sets.items():
        write_manifest(output_dir / f"{name}.jsonl", _build(lines))


def _read(corpus_dir: Path, *paths: str) -> list[Line]:
    """Read the lines of the first existing folder, for IDs that are in both lists."""
    folder = find_folder(corpus_dir, *paths)
    if folder is None:
        raise UserError(f"{corpus_dir}: none of {', '.join(paths)}; pass the folder above AISHELL-2")
    if not (folder / "wav").is_dir():
        require_unpacked(folder)
    files, texts = read_texts(folder / "wav.scp", "\t"), read_texts(folder / "trans.txt", "\t")
    lines = []
    for id, name in files.items():
        path = Path(os.path.normpath(folder / name))
        if not path.is_relative_to(folder):
            raise UserError(f"{folder / 'wav.scp'}: {name} leads out of its folder; expected wav/...")
        if id in texts and id not in BAD:
            lines.append((path, id, texts[id].upper()))
    return lines


def _build(lines: Iterable[Line]) -> Iterator[Utterance]:
    for path, id, text in lines:
        yield build_whole(path, id=id, text=text, speaker=path.parent.name, language="zh")


RECIPE = Recipe(
    license="for non-commercial research, by application",
    hours=1000.0,
    prepare=prepare,
    source="apply for it at https://www.aishelltech.com/aishell_2",
    chosen_by="cer",
    systems=share_systems(__file__, "train.select_by=cer"),
)
