"""Faults of a manifest, record by record, and its contents in numbers."""

from __future__ import annotations

import functools
import itertools
import math
import os
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from tqdm import tqdm

from asr.audio.reading import TOLERANCE_SECONDS, measure_seconds, read_blocks, read_info
from asr.data.manifest import Utterance, parse_utterance, with_absolute_audio
from asr.data.packed import Content, fetch, is_shards, open_shards
from asr.data.text_lines import parse_json, read_lines
from asr.errors import UserError, shorten
from asr.text.normalization import SAFE_RULES, Rule, normalize
from asr.text.tokenizer import Tokenizer

# What a duration may lack of its file: many are rounded, and headers count the padding of lossy codecs.
# Beyond the end it may reach by TOLERANCE_SECONDS, as far as reading allows.
LACKING_SECONDS = 0.1
MAX_UNKNOWN_SHOWN = 20
FETCHED_TOGETHER = 64  # audio files of shards

CheckAudio = Literal["no", "header", "decode"]
FaultKind = Literal[
    "unreadable-record",
    "changed-shard",
    "duplicate-id",
    "outside-root",
    "missing-audio",
    "broken-audio",
    "wrong-duration",
    "beyond-end",
    "empty-text",
    "unknown-characters",
    "too-many-tokens",
]


@dataclass(frozen=True)
class TextChecks:
    """Conditions that a text must meet if a model is to learn from it."""

    tokenizer: Tokenizer
    rules: Sequence[Rule] = SAFE_RULES  # `text.training` of the run
    frame_ms: float | None = None  # of the encoder: feature shift times subsampling; None: no CTC


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with one line of a manifest."""

    line: int  # of shards the number of the utterance, in the order of the shards
    id: str | None  # None if not even the id could be read
    kind: FaultKind
    message: str


def validate(
    path: str | Path,
    *,
    text_checks: TextChecks | None = None,
    check_audio: CheckAudio = "header",
    root: str | Path | None = None,
    progress: bool = False,
) -> Iterator[Fault]:
    """All faults of a manifest or a folder of shards; a bad record never hides those of the rest.

    `check_audio` reads the header of each file, or decodes each utterance, which also finds files that are
    damaged or silent; both check the SHA-256 of shards. Audio outside of `root` is reported and not opened.
    Memory is about 100 bytes a line, for the ids seen.
    """
    if root is not None and is_shards(path):
        raise UserError(f"{path}: shards hold their audio, which lies nowhere else; leave --root out")
    records: Iterable[_Record]
    records = _read_shards(path, check_audio != "no") if is_shards(path) else _read_lines(path)
    if progress:
        # disable=None: only a terminal shows it
        total = count_records(path)
        records = tqdm(records, total=total, unit=" utterances", desc=str(path), disable=None)
    audio_checks = _AudioChecks(decode=check_audio == "decode", root=root)
    line_of_id: dict[int, int] = {}  # by hash: 64 random bits do not collide in practice
    for number, utterance, content in records:
        if isinstance(utterance, Fault):
            yield utterance
            continue
        first = line_of_id.setdefault(hash(utterance.id), number)
        if first != number:
            yield Fault(number, utterance.id, "duplicate-id", f"the id was already used on line {first}")
        found = _check_text(utterance, text_checks)
        if check_audio != "no":
            found = itertools.chain(audio_checks.check(number, utterance, content), found)
        for kind, message in found:
            yield Fault(number, utterance.id, kind, message)
    yield from audio_checks.finish()


def count_records(path: str | Path) -> int:
    """Lines of a manifest, or utterances of a folder of shards."""
    return len(open_shards(path)) if is_shards(path) else sum(1 for _ in read_lines(path))


_Record = tuple[int, "Utterance | Fault", Content]


def _read_lines(path: str | Path) -> Iterator[_Record]:
    folder = os.path.dirname(os.path.abspath(path))
    for number, _, line in read_lines(path):
        try:
            yield number, with_absolute_audio(parse_utterance(line), folder), None
        except UserError as error:
            yield number, Fault(number, _find_id(line), "unreadable-record", str(error)), None


def _read_shards(path: str | Path, with_audio: bool) -> Iterator[_Record]:
    number = 1
    for shard in open_shards(path).shards:
        if with_audio:
            try:
                shard.check_content()
            except UserError as error:
                yield number, Fault(number, None, "changed-shard", str(error)), None
        try:
            items = list(shard.utterances())
        except UserError as error:
            yield number, Fault(number, None, "unreadable-record", str(error)), None
            items = []
        for start in range(0, len(items), FETCHED_TOGETHER):
            some = items[start : start + FETCHED_TOGETHER]
            contents = fetch(some) if with_audio else [None] * len(some)
            yield from zip(itertools.count(number + start), some, contents, strict=False)
        number += shard.info.utterances


class _AudioChecks:
    """Checks that need the audio file."""

    def __init__(self, decode: bool, root: str | Path | None) -> None:
        self.decode = decode
        self.root = None if root is None else os.path.realpath(root)
        # The utterances of one recording usually follow each other.
        self.measure: Callable[[str], float] = functools.lru_cache(maxsize=1000)(measure_seconds)
        self.recordings_in_parts: set[int] = set()
        self.shorter_than_file: list[tuple[int, Fault]] = []

    def check(
        self, number: int, utterance: Utterance, content: Content = None
    ) -> Iterator[tuple[FaultKind, str]]:
        """`content`: of the audio file, where that is in a shard."""
        if self.root is not None and not _is_below(utterance.audio, self.root):
            yield ("outside-root", f"{shorten(utterance.audio)} lies outside of {self.root}")
            return
        if content is None and not os.path.isfile(utterance.audio):
            yield ("missing-audio", f"{utterance.audio}: no such file")
            return
        try:
            if isinstance(content, UserError):
                raise content
            measure = self.measure if content is None else partial(measure_seconds, content=content)
            seconds = measure(utterance.audio)
            if self.decode:
                _decode(utterance, content)
        except UserError as error:
            yield ("broken-audio", str(error))
            return
        end = utterance.start + utterance.duration
        excess = end - seconds
        has_seconds = f"{utterance.audio} has {seconds:.3f} s"
        if utterance.start > 0:
            self.recordings_in_parts.add(hash(utterance.audio))
            if excess > TOLERANCE_SECONDS:
                yield ("beyond-end", f"ends at {end:.3f} s, but {has_seconds}")
        elif excess > TOLERANCE_SECONDS:
            yield ("wrong-duration", f"duration {end:.3f} s, but {has_seconds}")
        elif excess < -LACKING_SECONDS:
            message = f"duration {end:.3f} s, but {has_seconds}, of which nothing else is used"
            fault = Fault(number, utterance.id, "wrong-duration", message)
            self.shorter_than_file.append((hash(utterance.audio), fault))

    def finish(self) -> Iterator[Fault]:
        """A first part is rightly shorter than its recording if later parts are used as well."""
        for recording, fault in self.shorter_than_file:
            if recording not in self.recordings_in_parts:
                yield fault


def _decode(utterance: Utterance, content: bytes | None) -> None:
    sample_rate = read_info(utterance.audio, content).sample_rate
    for _ in read_blocks(
        utterance.audio,
        sample_rate,
        start=utterance.start,
        duration=utterance.duration,
        channel=utterance.channel_index,
        content=content,
    ):
        pass


def _is_below(path: str, root: str) -> bool:
    return os.path.commonpath([os.path.realpath(path), root]) == root


def _find_id(line: bytes) -> str | None:
    record = parse_json(line)
    name = record.get("id") if isinstance(record, dict) else None
    return name if isinstance(name, str) and name.isprintable() else None


def _check_text(utterance: Utterance, checks: TextChecks | None) -> Iterator[tuple[FaultKind, str]]:
    text = utterance.text
    if text is None:
        if checks is not None:
            yield ("empty-text", "has no text to learn from")
        return
    if not text.strip():
        yield ("empty-text", f"text = {shorten(text)}: nothing is said")
        return
    if checks is None:
        return
    try:
        text = normalize(text, checks.rules)
    except UserError as error:
        yield ("unknown-characters", str(error))
        return
    if unknown := checks.tokenizer.find_unknown(text):
        shown = ", ".join(_show_unknown(unit) for unit in unknown[:MAX_UNKNOWN_SHOWN])
        more = " ..." if len(unknown) > MAX_UNKNOWN_SHOWN else ""
        yield ("unknown-characters", f"the tokenizer does not know {shown}{more}")
    if checks.frame_ms is None:
        return
    # CTC: a frame for each token, and one for the blank between two equal ones. How many frames the edges of
    # an utterance cost depends on the model; there are never more than these.
    tokens = checks.tokenizer.encode(text)
    needed = len(tokens) + sum(a == b for a, b in itertools.pairwise(tokens))
    frames = int(utterance.duration * 1000 / checks.frame_ms + 1e-6)
    if needed > frames:
        need = f"CTC needs {needed} frames for {len(tokens)} tokens"
        yield ("too-many-tokens", f"{need}, but {utterance.duration:.3f} s are {frames}")


def _show_unknown(unit: str) -> str:
    return f"{shorten(unit)} (U+{ord(unit):04X})" if len(unit) == 1 else shorten(unit)


# --- statistics ---------------------------------------------------------------------------------

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
HISTOGRAM_BINS = 12


@dataclass(frozen=True)
class Statistics:
    """The contents of a manifest in numbers. Durations are in seconds."""

    utterances: int
    hours: float
    words: int  # separated by white space
    without_text: int
    hours_by_speaker: dict[str, float]  # most first; utterances of unknown speakers are left out
    hours_by_language: dict[str, float]
    min_seconds: float
    mean_seconds: float
    max_seconds: float
    percentiles: dict[int, float]
    histogram: list[tuple[float, int]]  # (lower edge, utterances); the last bin holds all that is longer


def compute_statistics(utterances: Iterable[Utterance]) -> Statistics:
    """One pass; memory is 8 bytes an utterance."""
    durations = array("d")
    hours_by_speaker: defaultdict[str, float] = defaultdict(float)
    hours_by_language: defaultdict[str, float] = defaultdict(float)
    words = without_text = 0
    for utterance in utterances:
        durations.append(utterance.duration)
        if utterance.speaker is not None:
            hours_by_speaker[utterance.speaker] += utterance.duration / 3600
        if utterance.language is not None:
            hours_by_language[utterance.language] += utterance.duration / 3600
        if utterance.text is None:
            without_text += 1
        else:
            words += len(utterance.text.split())
    seconds = np.array(durations if durations else [0.0])
    return Statistics(
        utterances=len(durations),
        hours=float(seconds.sum()) / 3600,
        words=words,
        without_text=without_text,
        hours_by_speaker=_most_first(hours_by_speaker),
        hours_by_language=_most_first(hours_by_language),
        min_seconds=float(seconds.min()),
        mean_seconds=float(seconds.mean()),
        max_seconds=float(seconds.max()),
        percentiles=dict(zip(PERCENTILES, np.percentile(seconds, PERCENTILES).tolist(), strict=True)),
        histogram=_histogram(np.array(durations)),
    )


def _most_first(hours: dict[str, float]) -> dict[str, float]:
    return dict(sorted(hours.items(), key=lambda item: (-item[1], item[0])))


def _histogram(seconds: np.ndarray) -> list[tuple[float, int]]:
    """Bins of a round width up to the 99th percentile: one recording of an hour must not flatten the rest."""
    if not len(seconds):
        return []
    width = _round_up(max(float(np.percentile(seconds, 99)) / (HISTOGRAM_BINS - 1), 0.001))
    bins = np.floor(seconds / width + 1e-9)  # 1.0 // 0.1 would be 9
    counts = np.bincount(np.minimum(bins, HISTOGRAM_BINS - 1).astype(np.int64))
    return [(round(index * width, 6), int(count)) for index, count in enumerate(counts)]


def _round_up(width: float) -> float:
    """The next of 1, 2, 5, 10, ... times a power of ten."""
    power = 10.0 ** math.floor(math.log10(width))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= width)
