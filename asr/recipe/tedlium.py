"""TED-LIUM, releases 2 and 3: talks as SPHERE files, their segments and texts as NIST's stm."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from asr.audio.reading import read_info
from asr.data.manifest import Utterance, write_manifest
from asr.data.text_lines import open_lines
from asr.errors import UserError
from asr.recipe.corpora import check_counts, find_files, widen
from asr.transcripts.readers import read_stm

# The segments of train begin and end too tightly. Those of dev and test stay, since results are by them.
WIDENED_BY = (0.15, 0.1)  # seconds before and after, as Kaldi does it


def prepare_talks(
    folder: Path, output_dir: Path, num_talks: Mapping[str, int], num_utterances: Mapping[str, int]
) -> None:
    """Write train.jsonl, dev.jsonl and test.jsonl of `folder`/{train,dev,test}/{sph,stm}."""
    talks = {split: list(find_files(folder / split / "stm", ".stm")) for split in ("train", "dev", "test")}
    check_counts(folder, {split: len(paths) for split, paths in talks.items()}, num_talks, "talks")
    splits = {
        split: [utterance for path in paths for utterance in _read_talk(path, split == "train")]
        for split, paths in talks.items()
    }
    check_counts(folder, {split: len(found) for split, found in splits.items()}, num_utterances)
    for split, utterances in splits.items():
        write_manifest(output_dir / f"{split}.jsonl", utterances)


def _read_talk(stm: Path, is_widened: bool) -> Iterator[Utterance]:
    audio = stm.parents[1] / "sph" / f"{stm.stem}.sph"
    seconds = read_info(audio).seconds
    if seconds is None:
        raise UserError(f"{audio}: its header does not tell its length; get a complete copy")
    with open_lines(stm) as lines:
        entries = [entry for _, _, entry in read_stm(lines, "reference", []) if entry.text is not None]
    exact = [(e.start or 0.0, min(seconds, (e.start or 0.0) + (e.duration or 0.0))) for e in entries]
    spans = widen(exact, *WIDENED_BY, seconds) if is_widened else exact
    for entry, (first, last), (start, end) in zip(entries, exact, spans, strict=True):
        if end <= start:
            raise UserError(f"{stm}: a segment at {first:.2f} s, but {audio.name} ends at {seconds:.2f} s")
        yield Utterance(
            id=f"{stm.stem}-{int(100 * first):07d}-{int(100 * last):07d}",
            audio=str(audio),
            start=start,
            duration=round(end - start, 6),
            text=clean_talk(entry.text or ""),
            speaker=stm.stem,
            language="en",
        )


def clean_talk(text: str) -> str:
    """Remove variants of pronunciation, (2), pauses and the id at the end; "it 's" becomes "it's"."""
    text = re.sub(r"\(\d\)|<sil>", "", text)
    text = " ".join(re.sub(r"\([^ ]*\)$", "", text.strip()).split())
    return re.sub(r"(\S+) ('\S*)", r"\1\2", text).translate(str.maketrans("{}", "[]"))
