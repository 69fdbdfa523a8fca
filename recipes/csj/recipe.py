"""CSJ, the Corpus of Spontaneous Japanese: lectures by more than 1,400 people, about 650 hours.

Texts come without blanks: error rates count characters. Dialogues are left out, as from published results.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from asr.data import Utterance, read_lines, write_manifest
from asr.data.manifest import shorten
from asr.errors import UserError
from asr.recipe import Recipe, check_counts, find_files, limit_repeats, share_systems

logger = logging.getLogger(__name__)

EVALUATION = {
    "eval1": "A01M0110 A01M0137 A01M0097 A04M0123 A04M0121 A04M0051 A03M0156 A03M0112 A03M0106 A05M0011",
    "eval2": "A01M0056 A03F0072 A02M0012 A03M0016 A06M0064 A06F0135 A01F0034 A01F0063 A01F0001 A01M0141",
    "eval3": "S00M0112 S00F0066 S00M0213 S00F0019 S00M0079 S01F0105 S00F0152 S00M0070 S00M0008 S00F0148",
}
# Talks by a speaker of eval2.
EXCLUDED = {"S05M0613", "R00M0187", "D01M0019", "D04M0056", "D02M0028", "D03M0017"}
NUM_TALKS = {"eval1": 10, "eval2": 10, "eval3": 10}
COUNTS = {"dev": 4_000, "eval1": 1_272, "eval2": 1_292, "eval3": 1_385}
NUM_DEV = 4_000  # first training utterances by ID
MAX_GAP, MAX_SECONDS = 0.5, 10.0
# An abbreviation whose kana or letters contain one of these is a number, so each word has its own text.
NUMBERS = re.compile("ゼロ|[０零一二三四五六七八九十百千．]")


@dataclass
class Segment:
    """Speech between two pauses."""

    channel: str
    start: float
    end: float
    words: list[str] = field(default_factory=list)


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write train.jsonl, dev.jsonl, test.jsonl, and the parts of test, eval1.jsonl to eval3.jsonl."""
    if corpus_dir is None:
        raise UserError("pass --corpus-dir FOLDER with the .wav and .sdb files")
    audio = {path.stem.upper(): path for path in find_files(corpus_dir, ".wav")}
    talks = {path.stem.upper(): path for path in find_files(corpus_dir, ".sdb")}
    if not talks:
        raise UserError(
            f"{corpus_dir}: no .sdb file; expected MORPH/SDB/core/A01F0055.sdb or dvd3/A01F0055/A01F0055.sdb"
        )
    names = {name: text.split() for name, text in EVALUATION.items()}
    ready = {name: talks[name] for name in talks if name in audio}
    if missing := [name for name in talks if name not in audio and not name.startswith("D")]:
        logger.warning("%s: %s talks have no .wav, such as %s", corpus_dir, len(missing), missing[0])
    counts = {name: sum(talk in ready for talk in wanted) for name, wanted in names.items()}
    check_counts(corpus_dir, counts, NUM_TALKS, "talks")
    tested = {talk for wanted in names.values() for talk in wanted}
    train = sorted(
        (u for talk in ready if talk not in tested | EXCLUDED for u in read_talk(ready[talk], audio[talk])),
        key=lambda utterance: utterance.id,
    )
    sets = {
        name: [u for talk in wanted for u in read_talk(ready[talk], audio[talk])]
        for name, wanted in names.items()
    }
    sets = {
        "train": limit_repeats(train[NUM_DEV:]),
        "dev": train[:NUM_DEV],
        "test": [utterance for found in sets.values() for utterance in found],
        **sets,
    }
    check_counts(corpus_dir, {name: len(found) for name, found in sets.items()}, COUNTS)
    for name, utterances in sets.items():
        write_manifest(output_dir / f"{name}.jsonl", utterances)


def read_talk(sdb: Path, audio: Path) -> Iterator[Utterance]:
    """Build the utterances of a talk, joined across short pauses and without masked names."""
    talk = sdb.stem.upper()
    for start, end, text in join_segments(read_segments(sdb)):
        if text and "×" not in text:
            yield Utterance(
                id=f"{talk}_{round(1000 * start):07d}_{round(1000 * end):07d}",
                audio=str(audio),
                start=start,
                duration=round(end - start, 6),
                text=text,
                speaker=talk,
                language="ja",
            )


def read_segments(sdb: Path) -> Iterator[Segment]:
    """Read short-unit words from tab-separated columns; an abbreviation may span several lines."""
    segment, place, tagged = None, "", list[list[str]]()
    for number, _, raw in read_lines(sdb):
        columns = raw.decode("cp932", "replace").rstrip("\r").split("\t")
        match = re.match(r"\d+ (\d+\.\d+)-(\d+\.\d+) (\w)", columns[3] if len(columns) > 11 else "")
        if match is None:
            raise UserError(
                f"{sdb}:{number}: expected a word with its times in 12 columns, found {shorten(columns)}"
            )
        key = columns[3][: match.end()]
        if key != place:
            if segment is not None:
                yield segment
            segment, place = Segment(match[3], float(match[1]), float(match[2])), key
        assert segment is not None
        if not columns[11].strip():  # part of speech; lines without one are not words
            continue
        tagged.append(columns)
        joined = "".join(line[5] for line in tagged)
        if "(A " in joined and joined.count("(") > joined.count(")"):
            continue  # skip to the end of the abbreviation
        segment.words += [word for word in map(clean_word, _take_words(joined, tagged)) if word]
        tagged = []
    if segment is not None:
        yield segment


def _take_words(joined: str, lines: list[list[str]]) -> list[str]:
    if "(A " not in joined:
        return [joined]
    return [line[9] for line in lines] if NUMBERS.search(joined) else [re.sub(r"\(A .*?;", "", joined)]


def clean_word(word: str) -> str:
    """Remove the tags, which are in ASCII, but keep fillers and fragments inside them; then apply the
    substitutions of Kaldi's csj2kaldi4m.pl, with んー twice for んーー."""
    word = re.sub("・$", "", re.sub(r"[\x00-\x7f]", "", word))
    for old, new in (
        ("んー", "ん"),
        ("ンー", "ン"),
        ("んー", "ん"),
        ("ンー", "ン"),
        ("ヮ", "ワ"),
        ("ゎ", "わ"),
    ):
        word = word.replace(old, new)
    return "０" if word in ("ゼロ", "零") else word


def join_segments(segments: Iterable[Segment]) -> Iterator[tuple[float, float, str]]:
    """Join segments across pauses of up to 0.5 s, to at most 10 s; yield start, end and text."""
    joined: Segment | None = None
    for segment in segments:
        if (
            joined is None
            or segment.start - joined.end > MAX_GAP
            or joined.end - joined.start > MAX_SECONDS
            or segment.channel != joined.channel
        ):
            if joined is not None:
                yield joined.start, joined.end, "".join(joined.words)
            joined = Segment(segment.channel, segment.start, segment.end, segment.words)
        else:
            joined.end, joined.words = segment.end, joined.words + segment.words
    if joined is not None:
        yield joined.start, joined.end, "".join(joined.words)


RECIPE = Recipe(
    license="paid, of NINJAL",
    hours=600.0,
    prepare=prepare,
    source="order it at https://clrd.ninjal.ac.jp/csj/",
    chosen_by="cer",
    systems=share_systems(__file__, "train.select_by=cer"),
)
