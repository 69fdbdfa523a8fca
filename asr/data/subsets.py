"""Split a manifest without dividing speakers, and derive speakers from paths."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from asr.data.manifest import Utterance, read_manifest, write_manifest
from asr.errors import UserError

REST = "rest"
MAX_REPEATS = 3  # in a pattern: matching time is exponential in this, and unbounded if groups repeat
Unit = Literal["speaker", "utterance"]


def parse_share(text: str) -> float | int | str:
    """Parse the share of a part: a fraction of the hours ("0.1"), a number of units ("20"), or "rest"."""
    if text == REST:
        return REST
    try:
        share = float(text) if "." in text else int(text)
    except ValueError:
        share = 0
    if share <= 0 or (isinstance(share, float) and not share < 1):
        raise UserError(f"share {text!r}: expected a fraction such as 0.1, a number such as 20, or {REST}")
    return share


def split_manifest(
    path: str | Path,
    shares: Mapping[str, float | int | str],
    output_dir: str | Path,
    *,
    by: Unit | None = None,
    seed: int = 0,
) -> dict[str, int]:
    """Write each utterance of `path` to one of `output_dir`/NAME.jsonl; returns their number in each part.

    A share is a fraction of the hours, a number of units, or "rest". A unit, which is never divided, is a
    speaker or an utterance; without `by`, it is a speaker if speakers are known. The split depends only on
    names, durations and seed, not on the order of lines.
    """
    _check_shares(shares)
    outputs = {name: Path(output_dir) / f"{name}.jsonl" for name in shares}
    if Path(path).resolve() in {output.resolve() for output in outputs.values()}:
        raise UserError(f"{path}: a part would overwrite the input; choose another folder or name")
    by = by or choose_unit(path, shares)
    microseconds: defaultdict[str, int] = defaultdict(int)  # integers, so that order does not matter
    for utterance in read_manifest(path):
        microseconds[_unit(utterance, by)] += round(utterance.duration * 1e6)
    chosen = assign_units(microseconds, shares, seed)
    counts = {}
    for name, output in outputs.items():
        part = (utterance for utterance in read_manifest(path) if chosen.get(_unit(utterance, by)) == name)
        counts[name] = write_manifest(output, part)
    return counts


def choose_unit(path: str | Path, shares: Mapping[str, float | int | str]) -> Unit:
    """Return "speaker" if all are known, "utterance" if none is; then a share must not count speakers."""
    known = Counter(utterance.speaker is not None for utterance in read_manifest(path))
    if known[True] and known[False]:
        raise UserError(f"{path}: {known[False]:,} utterances have no speaker; add it, or split by utterance")
    for name, share in shares.items():
        if isinstance(share, int) and not known[True]:
            raise UserError(
                f"{path}: no speakers are known, so {name}={share} would be {share} of {known[False]:,} "
                f"utterances. {name}=0.1 takes a tenth of the hours, --by utterance counts utterances, and "
                "`asr manifest convert --speaker-from folder` reads speakers from the paths"
            )
    return "speaker" if known[True] else "utterance"


def name_speakers(utterances: Iterable[Utterance], rule: str) -> Iterator[Utterance]:
    """Derive each speaker from the audio path: its folder, or the group of a regular expression."""
    expected = f"--speaker-from {rule}: expected folder, or a regular expression"
    try:
        pattern = re.compile(r"([^/]+)/[^/]*$" if rule == "folder" else rule)
    except re.error as error:
        raise UserError(f"{expected} ({error})") from None
    bare = re.sub(r"\\.|\[\^?\]?[^]]*\]", "x", rule)  # escapes and sets match one character
    if pattern.groups != 1 or re.search(r"\)[*+?{]", bare) or len(re.findall("[*+{]", bare)) > MAX_REPEATS:
        raise UserError(f"{expected} with one group, not repeated, and at most {MAX_REPEATS} of *, + and {{")

    def find(path: str) -> str:
        if not (match := pattern.search(path)) or not match[1]:
            raise UserError(f"--speaker-from {rule}: does not match {path}; correct the pattern")
        return match[1]

    return (item.model_copy(update={"speaker": find(item.audio)}) for item in utterances)


def assign_units(
    durations: Mapping[str, int], shares: Mapping[str, float | int | str], seed: int
) -> dict[str, str]:
    """Return the part of each unit, given the units' durations as integers of any scale."""
    ranked = sorted(durations, key=lambda unit: hashlib.sha256(f"{seed}:{unit}".encode()).digest())
    if len(ranked) < len(shares):
        raise UserError(f"{len(ranked)} speakers or utterances cannot fill {len(shares)} parts")
    chosen = {}
    for name, share in shares.items():
        if isinstance(share, int):
            if len(ranked) < share:
                raise UserError(
                    f"part {name}: needs {share} speakers or utterances, but {len(ranked)} are left"
                )
            chosen.update(dict.fromkeys(ranked[:share], name))
            ranked = ranked[share:]
    # Remaining duration of each part; the next unit goes to the part with the most.
    total = sum(durations.values())
    remaining = {name: share * total for name, share in shares.items() if isinstance(share, float)}
    if REST in shares.values():
        name = next(name for name, share in shares.items() if share == REST)
        remaining[name] = sum(durations[unit] for unit in ranked) - sum(remaining.values())
        if remaining[name] <= 0:
            raise UserError(f"nothing is left for {name}; ask for less in the other parts")
    empty = list(remaining)
    for left, unit in zip(range(len(ranked), 0, -1), ranked, strict=True):
        candidates = empty if left <= len(empty) else remaining  # the last units go to empty parts
        name = max(candidates, key=remaining.__getitem__)
        chosen[unit] = name
        remaining[name] -= durations[unit]
        if name in empty:
            empty.remove(name)
    if empty:
        raise UserError(f"nothing is left for {', '.join(empty)}; ask for less in the other parts")
    return chosen


def _unit(utterance: Utterance, by: Unit) -> str:
    if by == "utterance":
        return utterance.id
    if utterance.speaker is None:
        raise UserError(f"utterance {utterance.id} has no speaker; add the speakers, or split by utterance")
    return utterance.speaker


def _check_shares(shares: Mapping[str, float | int | str]) -> None:
    """Check that the parts together cover every utterance."""
    for name in shares:
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise UserError(f"part {name!r}: expected a plain word, because it becomes a file name")
    rest = sum(share == REST for share in shares.values())
    fractions = sum(share for share in shares.values() if isinstance(share, float))
    counted = any(isinstance(share, int) for share in shares.values())
    if not (rest == 1 and fractions < 1) and (rest or counted or abs(fractions - 1) > 1e-6):
        raise UserError(
            f"fractions add up to {fractions:g}, and {rest} are {REST}; expected 1, or one that is {REST}"
        )
