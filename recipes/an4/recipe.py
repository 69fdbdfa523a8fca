"""AN4 of Carnegie Mellon University: 84 people spell names and say numbers and control words.

Recorded around 1991 with a close-talking microphone, 16 kHz. Ten speakers are the test set; of the 74
others, seven are set aside here as dev.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from asr.audio import read, read_info, write
from asr.data import Utterance, read_lines, write_manifest
from asr.errors import UserError
from asr.recipe import (
    Recipe,
    download as download_archive,
    extract,
    find_corpus,
    require_count,
    require_fingerprint,
)

URLS = (
    "http://www.speech.cs.cmu.edu/databases/an4/an4_sphere.tar.gz",
    "https://dldata-public.s3.us-east-2.amazonaws.com/an4_sphere.tar.gz",
)
SHA256 = "a0525579493735d32b60fb6fa5975dd0eaacde087b0a4eeb7f13b7ef33077b12"
MAX_ARCHIVE_BYTES = 200_000_000
MAX_CORPUS_BYTES = 400_000_000

SAMPLE_RATE = 16_000
NUM_UTTERANCES = {"train": 948, "test": 130}  # as published; dev is cut from train
NUM_WORDS = {"train": 5_442, "test": 773}
FINGERPRINT = "adea8478ff2b625429a659e908659881bb6b786d58b864a8b4960082fe237ee2"
# The first two women and the first five men in train by the SHA-256 of their names: a tenth of the
# utterances, with the same share of women as in the whole corpus.
DEV_SPEAKERS = frozenset(("fjam", "fbbh", "mmaf", "mtje", "mcel", "mnjl", "mgah"))
JOINED_SECONDS = (30, 60)  # joined dev and test recordings; the longest training utterance has 6.4 s


def download(target_dir: Path) -> Path:
    """Fetch and unpack the archive; return the corpus folder."""
    archive = target_dir / "an4_sphere.tar.gz"
    download_archive(URLS, archive, SHA256, max_bytes=MAX_ARCHIVE_BYTES)
    extract(archive, target_dir / "an4_sphere", max_bytes=MAX_CORPUS_BYTES)
    return target_dir / "an4_sphere"


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write train.jsonl, dev.jsonl, test.jsonl, and train_all.jsonl of train and dev; their audio stays.

    dev_30s.jsonl, test_60s.jsonl ... have the utterances of dev and test joined, in audio/.
    """
    root = find_corpus(corpus_dir, "etc/an4_train.transcription")
    published = {split: _read_split(root, split) for split in NUM_UTTERANCES}
    names = [str(Path(u.audio).relative_to(root)) for split in published.values() for u in split]
    require_fingerprint(root, names, SAMPLE_RATE, FINGERPRINT)
    train = published["train"]
    write_manifest(output_dir / "train.jsonl", [u for u in train if u.speaker not in DEV_SPEAKERS])
    write_manifest(output_dir / "train_all.jsonl", train)
    held_out = {"dev": [u for u in train if u.speaker in DEV_SPEAKERS], "test": published["test"]}
    for split, utterances in held_out.items():
        write_manifest(output_dir / f"{split}.jsonl", utterances)
        for seconds in JOINED_SECONDS:
            name = f"{split}_{seconds}s"
            write_manifest(output_dir / f"{name}.jsonl", _join(name, utterances, seconds, output_dir))


def _read_split(root: Path, split: str) -> list[Utterance]:
    texts = _read_transcriptions(root / "etc" / f"an4_{split}.transcription")
    names = [name for _, name in _read_lines(root / "etc" / f"an4_{split}.fileids")]
    require_count(root, f"{split} utterances", len(names), NUM_UTTERANCES[split])
    require_count(
        root, f"words of {split}", sum(len(text.split()) for text in texts.values()), NUM_WORDS[split]
    )
    return [_build_utterance(root, name, texts) for name in names]


def _build_utterance(root: Path, name: str, texts: dict[str, str]) -> Utterance:
    """Build the utterance of a line of the file list, such as an4_clstk/fash/an251-fash-b."""
    identifier = name.rpartition("/")[2]
    if not re.fullmatch(r"\w+/\w+/\w+-\w+-b", name) or identifier not in texts:
        raise UserError(f"{root}: {name[:100]!r} in the file list has no transcription")
    audio = root / "wav" / f"{name}.sph"
    speaker = identifier.split("-")[1]
    return Utterance(
        id=identifier,
        audio=str(audio),
        duration=read_info(audio).seconds,
        text=texts[identifier],
        speaker=speaker,
        language="en",
        extras={"gender": "female" if speaker.startswith("f") else "male"},
    )


def _join(name: str, utterances: list[Utterance], seconds: float, output_dir: Path) -> Iterator[Utterance]:
    """Join utterances without pauses into recordings of at most this many seconds.

    Speaker after speaker; a recording may begin with one and end with another.
    """
    parts: list[list[Utterance]] = [[]]
    for utterance in sorted(utterances, key=lambda u: str(u.speaker)):
        if parts[-1] and sum(u.duration for u in parts[-1]) + utterance.duration > seconds:
            parts.append([])
        parts[-1].append(utterance)
    (output_dir / "audio").mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(parts):
        path = output_dir / "audio" / f"{name}-{number:02d}.wav"
        audio = np.concatenate([read(u.audio, SAMPLE_RATE) for u in part])
        write(path, audio, SAMPLE_RATE)
        yield Utterance(
            id=path.stem,
            audio=str(path),
            duration=len(audio) / SAMPLE_RATE,
            text=" ".join(str(u.text) for u in part),
            speaker="+".join(dict.fromkeys(str(u.speaker) for u in part)),
            language="en",
        )


def _read_transcriptions(path: Path) -> dict[str, str]:
    """Read texts by ID from lines such as `<s> ENTER FIVE </s> (an12-fash-b)`; test has no <s> and </s>."""
    texts = {}
    for number, line in _read_lines(path):
        match = re.fullmatch(r"(?:<s> )?([A-Z ]+?)(?: </s>)? \((\S+)\)", line)
        if match is None:
            raise UserError(
                f"{path}:{number}: expected a text and its ID in parentheses, found {line[:60]!r}"
            )
        texts[match[2]] = match[1]
    return texts


def _read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of non-blank lines, with single spaces."""
    for number, _, line in read_lines(path):
        yield number, " ".join(line.decode("ascii", errors="replace").split())


RECIPE = Recipe(
    license="free for any purpose; keep the copyright notice of Carnegie Mellon University (see README.md)",
    hours=0.81,
    has_results=True,
    prepare=prepare,
    urls=URLS,
    download=download,
    download_mb=64,
    text_fusion=True,
    speeds=(0.8, 0.87, 0.93, 1.0, 1.08),
)
