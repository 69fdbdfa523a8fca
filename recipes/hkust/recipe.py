"""HKUST: 897 telephone calls in Mandarin, 149 hours; each utterance is one channel of its call.

Texts come without blanks: error rates count characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from asr.data import Utterance, read_decoded, write_manifest
from asr.data.manifest import shorten
from asr.errors import UserError
from asr.recipe import WITHOUT_TAGS, Recipe, check_counts, find_files, limit_repeats, share_systems

NUM_CALLS = {"train": 873, "dev": 24}
COUNTS = {"test": 5_413}
NUM_DEV = 4_001  # first utterances by ID of the publisher's train; published results test on its dev
NOISES = {
    **dict.fromkeys(("{breath}", "{cough}", "{sneeze}", "{lipsmack}"), "[VOCALIZED-NOISE]"),
    "{laugh}": "[LAUGHTER]",
    "<noise>": "[NOISE]",
}


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write dev.jsonl and train.jsonl from the publisher's train, and test.jsonl from its dev."""
    if corpus_dir is None:
        raise UserError("pass --corpus-dir FOLDER with LDC2005S15 and LDC2005T32")
    audio = {split: {p.stem.lower(): p for p in _find(corpus_dir, split, ".sph")} for split in NUM_CALLS}
    texts = {
        split: [path for path in _find(corpus_dir, split, ".txt") if path.stem.lower() in files]
        for split, files in audio.items()
    }
    check_counts(corpus_dir, {split: len(calls) for split, calls in texts.items()}, NUM_CALLS, "calls")
    published = {}
    for split, files in audio.items():
        utterances = [item for path in texts[split] for item in _read_call(path, files[path.stem.lower()])]
        published[split] = sorted(utterances, key=lambda utterance: utterance.id)
    sets = {
        "train": limit_repeats(published["train"][NUM_DEV:]),
        "dev": published["train"][:NUM_DEV],
        "test": published["dev"],
    }
    check_counts(corpus_dir, {name: len(found) for name, found in sets.items()}, COUNTS)
    for name, utterances in sets.items():
        write_manifest(output_dir / f"{name}.jsonl", utterances)


def _find(corpus_dir: Path, split: str, suffix: str) -> Iterator[Path]:
    """Find the files of calls in .../audio/train or .../trans/train."""
    for path in find_files(corpus_dir, suffix):
        if path.parent.name.lower() == split and re.match(r"\d{8}_\d{6}_A", path.name, re.IGNORECASE):
            yield path


def _read_call(path: Path, audio: Path) -> Iterator[Utterance]:
    for number, line in read_decoded(path, "gb18030", "replace"):
        if line.startswith("#"):
            continue
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)\s+([AB]):(.*)", line)
        if match is None:
            raise UserError(f"{path}:{number}: expected start, end, A: or B: and text, found {shorten(line)}")
        start, end, side = float(match[1]), float(match[2]), match[3]
        text = clean(match[4])
        if text and end > start and not re.search("[AB]:", match[4]):
            yield Utterance(
                id=f"{path.stem}-{side}-{100 * start + 0.5:06.0f}-{100 * end + 0.5:06.0f}",
                audio=str(audio),
                start=start,
                duration=round(end - start, 6),
                channel="AB".index(side) + 1,
                text=text,
                speaker=f"{path.stem}-{side}",
                language="zh",
            )


def clean(text: str) -> str:
    """Remove spaces, marks and ASCII punctuation; write Latin letters in upper case and noises as [NOISE]."""
    text = re.sub(r"</?foreign[^>]*>", " ", text)
    text = re.sub(r"<noise>(.+)</noise>", r"\1", text)
    text = re.sub(r"\(\(|\)\)", " ", text)
    words = []
    for word in text.split():
        if word in NOISES:
            words.append(NOISES[word])
        else:
            words.append(re.sub(r"[.,?+-]+", "", word.lstrip("~%"), count=1).upper())
    return "".join(words)


RECIPE = Recipe(
    license="of the Linguistic Data Consortium",
    hours=149.0,
    prepare=prepare,
    source="license LDC2005S15 and LDC2005T32 at https://catalog.ldc.upenn.edu",
    chosen_by="cer",
    systems=share_systems(__file__, "features.sample_rate=8000", "train.select_by=cer", WITHOUT_TAGS),
)
