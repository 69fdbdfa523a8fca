"""Validate a manifest record by record, and compute its statistics."""

from __future__ import annotations

import functools
import itertools
import os
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from tqdm import tqdm

from asr.audio.reading import TOLERANCE_SECONDS, measure_seconds, read_blocks, read_info
from asr.data.manifest import Utterance, parse_utterance, with_absolute_audio
from asr.data.manifest_readers import is_shards, open_shards
from asr.data.text_lines import parse_json, read_lines
from asr.data.utterance_audio import Content, fetch
from asr.errors import UserError, shorten
from asr.text.normalization import SAFE_RULES, Rule, normalize
from asr.text.tokenizer import Tokenizer

# A duration may be this much shorter than its file, because many are rounded, and headers count the padding
# of lossy codecs. It may exceed the file by TOLERANCE_SECONDS, which is what reading allows.
LACKING_SECONDS = 0.1
MAX_UNKNOWN_SHOWN = 20
FETCHED_TOGETHER = 64  # audio files fetched from shards at once

CheckAudio = Literal["no", "header", "decode"]


@dataclass(frozen=True)
class Problem:
    """One problem with one line of a manifest."""

    line: int  # in shards, the number of the utterance in shard order
    id: str | None  # None if not even the id could be read
    kind: str
    message: str


def validate(
    path: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    rules: Sequence[Rule] = SAFE_RULES,
    check_audio: CheckAudio = "header",
    progress: bool = False,
) -> Iterator[Problem]:
    """Yield all problems of a manifest or folder of shards; a bad record does not hide later problems.

    With a tokenizer, each utterance needs a text that can be encoded after normalization with `rules`.
    `check_audio` reads each file's header, or decodes each utterance, which also detects damaged and silent
    files; both verify the SHA-256 of shards.
    """
    records = _read_shards(path, check_audio != "no") if is_shards(path) else _read_lines(path)
    if progress:  # disable=None: shown only on a terminal
        records = iter(tqdm(records, total=count_records(path), desc=str(path), disable=None))
    audio_checks = _AudioChecks(decode=check_audio == "decode")
    line_of_id: dict[int, int] = {}  # keyed by hash: 64 random bits do not collide in practice
    for number, utterance, content in records:
        if isinstance(utterance, Problem):
            yield utterance
            continue
        first = line_of_id.setdefault(hash(utterance.id), number)
        if first != number:
            yield Problem(number, utterance.id, "duplicate-id", f"the id was already used on line {first}")
        if check_audio != "no":
            yield from audio_checks.check(number, utterance, content)
        for kind, message in _check_text(utterance.text, tokenizer, rules):
            yield Problem(number, utterance.id, kind, message)
    yield from audio_checks.finish()


def count_records(path: str | Path) -> int:
    """Count the records of a manifest, or the utterances in a folder of shards."""
    return len(open_shards(path)) if is_shards(path) else sum(1 for _ in read_lines(path))


_Record = tuple[int, "Utterance | Problem", Content]


def _read_lines(path: str | Path) -> Iterator[_Record]:
    folder = os.path.dirname(os.path.abspath(path))
    for number, _, line in read_lines(path):
        try:
            yield number, with_absolute_audio(parse_utterance(line), folder), None
        except UserError as error:
            yield number, Problem(number, _find_id(line), "unreadable-record", str(error)), None


def _read_shards(path: str | Path, with_audio: bool) -> Iterator[_Record]:
    number = 1
    for shard in open_shards(path).shards:
        if with_audio:
            try:
                shard.check_content()
            except UserError as error:
                yield number, Problem(number, None, "changed-shard", str(error)), None
        try:
            items = list(shard.utterances())
        except UserError as error:
            yield number, Problem(number, None, "unreadable-record", str(error)), None
            items = []
        for start in range(0, len(items), FETCHED_TOGETHER):
            some = items[start : start + FETCHED_TOGETHER]
            contents = fetch(some) if with_audio else [None] * len(some)
            yield from zip(itertools.count(number + start), some, contents, strict=False)
        number += shard.info.utterances


class _AudioChecks:
    """Checks that require the audio files."""

    def __init__(self, decode: bool) -> None:
        self._decode = decode
        # Cached, because utterances of one recording are usually adjacent.
        self._measure: Callable[[str], float] = functools.lru_cache(maxsize=1000)(measure_seconds)
        self._in_parts: set[int] = set()
        self._shorter: list[tuple[int, Problem]] = []

    def check(self, number: int, utterance: Utterance, content: Content) -> Iterator[Problem]:
        """Check one utterance; `content` is its audio file if that is in a shard."""
        place = number, utterance.id
        audio = utterance.audio
        if content is None and not os.path.isfile(audio):
            yield Problem(*place, "missing-audio", f"{audio}: no such file")
            return
        try:
            if isinstance(content, UserError):
                raise content
            seconds = self._measure(audio) if content is None else measure_seconds(audio, content)
            if self._decode:
                rate, part = read_info(audio, content).sample_rate, (utterance.start, utterance.duration)
                channel = utterance.channel_index
                for _ in read_blocks(
                    audio, rate, start=part[0], duration=part[1], channel=channel, content=content
                ):
                    pass
        except UserError as error:
            yield Problem(*place, "broken-audio", str(error))
            return
        end = utterance.start + utterance.duration
        has_seconds = f"{end:.3f} s, but {audio} has {seconds:.3f} s"
        if utterance.start > 0:
            self._in_parts.add(hash(audio))
        if end - seconds > TOLERANCE_SECONDS:
            yield Problem(*place, "wrong-duration", f"ends at {has_seconds}")
        elif utterance.start == 0 and end - seconds < -LACKING_SECONDS:
            message = f"ends at {has_seconds}, and the rest is not used"
            self._shorter.append((hash(audio), Problem(*place, "wrong-duration", message)))

    def finish(self) -> Iterator[Problem]:
        """Report utterances that end before their recording, unless its later parts are used, too."""
        yield from (problem for recording, problem in self._shorter if recording not in self._in_parts)


def _find_id(line: bytes) -> str | None:
    record = parse_json(line)
    name = record.get("id") if isinstance(record, dict) else None
    return name if isinstance(name, str) and name.isprintable() else None


def _check_text(
    text: str | None, tokenizer: Tokenizer | None, rules: Sequence[Rule]
) -> Iterator[tuple[str, str]]:
    if text is not None and not text.strip():
        yield "empty-text", f"text = {shorten(text)}: no words"
    elif tokenizer is not None and text is None:
        yield "empty-text", "has no text to learn from"
    elif tokenizer is not None and text is not None:
        try:
            unknown = tokenizer.find_unknown(normalize(text, rules))
        except UserError as error:
            yield "unknown-characters", str(error)
            return
        if unknown:
            shown = ", ".join(
                f"{shorten(unit)} (U+{ord(unit):04X})" if len(unit) == 1 else shorten(unit)
                for unit in unknown[:MAX_UNKNOWN_SHOWN]
            )
            yield "unknown-characters", f"{len(unknown)} that the tokenizer does not know: {shown}"


# --- statistics ---------------------------------------------------------------------------------

PERCENTILES = (0, 1, 5, 25, 50, 75, 95, 99, 100)


class Statistics(NamedTuple):
    """Statistics of a manifest."""

    utterances: int
    hours: float
    words: int  # separated by white space
    without_text: int
    hours_by_speaker: dict[str, float]  # largest first, without utterances of unknown speakers
    hours_by_language: dict[str, float]
    seconds: dict[str, float]  # mean and percentiles


def compute_statistics(utterances: Iterable[Utterance]) -> Statistics:
    """Compute statistics in one pass, with 8 bytes of memory per utterance."""
    durations = array("d")
    speakers, languages = defaultdict[str | None, float](float), defaultdict[str | None, float](float)
    words = without_text = 0
    for utterance in utterances:
        durations.append(utterance.duration)
        speakers[utterance.speaker] += utterance.duration / 3600
        languages[utterance.language] += utterance.duration / 3600
        without_text += utterance.text is None
        words += len((utterance.text or "").split())
    seconds = np.array(durations or [0.0])
    numbers = zip(PERCENTILES, np.percentile(seconds, PERCENTILES).tolist(), strict=True)
    return Statistics(
        len(durations),
        float(seconds.sum()) / 3600,
        words,
        without_text,
        _most_first(speakers),
        _most_first(languages),
        {"mean": float(seconds.mean())} | {f"{percent} %": value for percent, value in numbers},
    )


def _most_first(hours: Mapping[str | None, float]) -> dict[str, float]:
    known = [(name, value) for name, value in hours.items() if name is not None]
    return dict(sorted(known, key=lambda item: (-item[1], item[0])))
