"""TED-LIUM, release 2: English talks, 207 hours, cut into segments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from asr.audio import read_info
from asr.data import Utterance, open_lines, write_manifest
from asr.errors import UserError
from asr.recipe import (
    Recipe,
    check_counts,
    download as download_archive,
    extract,
    find_corpus,
    find_files,
    share_systems,
    widen,
)
from asr.transcripts.readers import read_stm

URLS = (
    "https://www.openslr.org/resources/19/TEDLIUM_release2.tar.gz",
    "https://openslr.elda.org/resources/19/TEDLIUM_release2.tar.gz",
)
MAX_ARCHIVE_BYTES = 60_000_000_000

NUM_TALKS = {"train": 1_495, "dev": 8, "test": 11}
NUM_UTTERANCES = {"dev": 507, "test": 1_155}
# Training segments are cut too tightly. Dev and test segments stay, because results depend on them.
WIDENED_BY = (0.15, 0.1)  # seconds before and after, as in Kaldi


def download(target_dir: Path) -> Path:
    """Fetch and unpack the archive; return the corpus folder."""
    archive = target_dir / "TEDLIUM_release2.tar.gz"
    download_archive(URLS, archive, None, max_bytes=MAX_ARCHIVE_BYTES)  # the publisher gives no SHA-256
    extract(archive, target_dir / "tedlium2", max_bytes=MAX_ARCHIVE_BYTES)
    return target_dir / "tedlium2"


def prepare(
    corpus_dir: Path | None,
    output_dir: Path,
    num_talks: Mapping[str, int] = NUM_TALKS,
    num_utterances: Mapping[str, int] = NUM_UTTERANCES,
) -> None:
    """Write train.jsonl, dev.jsonl and test.jsonl; the audio stays where it is."""
    root = find_corpus(corpus_dir, "test/stm")
    talks = {split: list(find_files(root / split / "stm", ".stm")) for split in ("train", "dev", "test")}
    check_counts(root, {split: len(paths) for split, paths in talks.items()}, num_talks, "talks")
    splits = {
        split: [utterance for path in paths for utterance in _read_talk(path, split == "train")]
        for split, paths in talks.items()
    }
    check_counts(root, {split: len(found) for split, found in splits.items()}, num_utterances)
    for split, utterances in splits.items():
        write_manifest(output_dir / f"{split}.jsonl", utterances)


def _read_talk(stm: Path, is_widened: bool) -> Iterator[Utterance]:
    audio = stm.parents[1] / "sph" / f"{stm.stem}.sph"
    seconds = read_info(audio).seconds
    if seconds is None:
        raise UserError(f"{audio}: its header does not give its length; get a complete copy")
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
    """Remove pronunciation variants, (2), pauses and the final ID; "it 's" becomes "it's"."""
    text = re.sub(r"\(\d\)|<sil>", "", text)
    text = " ".join(re.sub(r"\([^ ]*\)$", "", text.strip()).split())
    return re.sub(r"(\S+) ('\S*)", r"\1\2", text).translate(str.maketrans("{}", "[]"))


RECIPE = Recipe(
    license="CC BY-NC-ND 3.0 (openslr.org/19)",
    hours=207.0,
    prepare=prepare,
    urls=URLS,
    download=download,
    systems=share_systems(__file__, "tokenizer.type=bpe", "tokenizer.vocab_size=500"),
)
