"""Splits of a corpus: shortened for smoke mode, and checked for training utterances in test."""

from __future__ import annotations

import functools
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from asr.data.manifest import Manifest, Utterance, read_manifest, write_manifest
from asr.errors import UserError
from asr.recipe.experiment import PlannedRun

logger = logging.getLogger(__name__)

SPLITS = ("train", "dev", "test")


def cut_manifests(data_dir: Path) -> None:
    """Keep a few evenly spaced utterances of each manifest, so that most speakers remain."""
    for path in data_dir.glob("*.jsonl"):
        utterances = Manifest.open(path)
        count = min(len(utterances), 32 if path.stem == "train" else 8)
        write_manifest(path, [utterances[index * len(utterances) // count] for index in range(count)])


def check_test_split(runs: Sequence[PlannedRun], test: Path) -> None:
    """Reject training on test utterances, and a test set that cannot be scored."""
    tested = list(read_manifest(test))
    if any(one.text is None for one in tested) or not any((one.text or "").split() for one in tested):
        raise UserError(f"{test}: every utterance needs a text, and at least one a word, to be scored")
    shared_with = functools.cache(lambda path: find_shared(tested, read_manifest(path)))
    for run in runs:
        for key, path in run.config.data.named_paths:
            if not path.endswith(".jsonl") or not (shared := shared_with(path)):
                continue
            what = f"{len(shared):,} utterances of {path} are also in {test}, by id or audio: "
            what += ", ".join(shared[:3]) + ", ..." * (len(shared) > 3)
            if key == "train":
                raise UserError(f"{run.conf.path}: {what}. Test utterances must not be in the training data")
            logger.warning("%s: %s. So choices on dev make the test WER too low", run.conf.path, what)


def find_shared(tested: Sequence[Utterance], others: Iterable[Utterance]) -> list[str]:
    """Find the IDs of other utterances that are also in test, by ID or by overlap in the same audio."""
    ids = {utterance.id for utterance in tested}
    parts = defaultdict(list)
    for utterance in tested:
        parts[utterance.audio].append(utterance)
    return [
        other.id
        for other in others
        if other.id in ids or any(_shares_most(mine, other) for mine in parts.get(other.audio, ()))
    ]


def _shares_most(one: Utterance, other: Utterance) -> bool:
    """Return whether they overlap by more than half of the shorter one, not just at the edges."""
    if one.channel and other.channel and one.channel != other.channel:
        return False
    end = min(one.start + one.duration, other.start + other.duration)
    return end - max(one.start, other.start) > min(one.duration, other.duration) / 2
