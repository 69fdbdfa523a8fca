"""Check the splits of a recipe before training: all new, none empty, and test apart from training."""

from __future__ import annotations

import functools
import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from asr.data.manifest import Utterance, read_manifest, write_manifest
from asr.errors import UserError
from asr.recipe.experiment import hash_file, read_record

if TYPE_CHECKING:
    from asr.recipe.experiment import Experiment
    from asr.recipe.systems import Run  # imports torch, which prepare does not need

logger = logging.getLogger(__name__)

SPLITS = ("train", "dev", "test")

Stamps = dict[str, tuple[int, int]]


# --- what prepare has left ----------------------------------------------------------------------


def is_prepared(experiment: Experiment) -> bool:
    """Return whether the recipe as it is now has been run, on whatever corpus."""
    done = read_record(experiment.data_dir / ".prepare.done").get("inputs", {})
    has_all = all((experiment.data_dir / f"{split}.jsonl").exists() for split in SPLITS)
    return has_all and done.get("recipe.py") == hash_file(experiment.recipe.path)


def stamp_manifests(data_dir: Path) -> Stamps:
    """Stamp each manifest, so that one written anew is told from one that stays."""
    stats = {path.name: path.stat() for path in data_dir.glob("*.jsonl")}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}


def find_written(data_dir: Path, before: Stamps) -> list[str]:
    """Find the manifests that are not as before; refuse splits that are old or empty."""
    after = stamp_manifests(data_dir)
    written = sorted(name for name in after if after[name] != before.get(name))
    for split in SPLITS:
        path = data_dir / f"{split}.jsonl"
        if path.name not in written:
            old = "; the file there is older, delete it or move it" if path.name in before else ""
            raise UserError(
                f"prepare has not written {path}{old}. Let prepare of the recipe write {', '.join(SPLITS)}"
            )
        if next(read_manifest(path), None) is None:
            raise UserError(
                f"{path}: prepare has written no utterance into it; let prepare of the recipe find some"
            )
    return written


def mark_partial(manifests: Iterable[Path], shortfalls: Sequence[str]) -> None:
    """Say in each utterance that its corpus was not whole."""
    for path in manifests:
        marked = (
            utterance.model_copy(update={"extras": {**utterance.extras, "partial": "; ".join(shortfalls)}})
            for utterance in read_manifest(path)
        )
        write_manifest(path, marked)


def read_shortfalls(data_dir: Path) -> list[str]:
    """Read what the prepared corpus lacks against the published one."""
    return list(read_record(data_dir / ".prepare.done").get("shortfalls", []))


# --- what systems learn from --------------------------------------------------------------------


def check_test_split(runs: Sequence[Run], test: Path) -> None:
    """Refuse to train on what is tested, and to train where nothing could be scored."""
    tested = list(read_manifest(test))
    if nameless := [utterance.id for utterance in tested if utterance.text is None]:
        raise UserError(
            f"{test}: {len(nameless):,} of {len(tested):,} utterances have no text to compare with, such as "
            f"{nameless[0]}; let prepare write their texts, or leave them out of test"
        )
    if not any((utterance.text or "").split() for utterance in tested):
        raise UserError(f"{test}: no utterance has a word in its text, so there is no error rate; add texts")
    shared_with = functools.cache(lambda path: find_shared(tested, read_manifest(path)))
    for run in runs:
        for key, path in run.config.data.named_paths:
            if not path.endswith(".jsonl") or not (shared := shared_with(path)):
                continue
            what = f"{len(shared):,} utterances of {path} are also in {test}, by id or audio: "
            what += ", ".join(shared[:3]) + ", ..." * (len(shared) > 3)
            if key == "train":
                raise UserError(
                    f"{run.conf.path}: {what}. What is learnt is no test: let prepare keep them apart, by "
                    "speaker if there are several (`asr manifest split` does that)"
                )
            logger.warning(
                "%s: %s. Dev chooses by them, so WER on test comes out too low", run.conf.path, what
            )


def find_shared(tested: Sequence[Utterance], others: Iterable[Utterance]) -> list[str]:
    """Find ids of the others that are tested too: by id, or by audio, also that of a copied file."""
    ids = {utterance.id for utterance in tested}
    sizes = {_size(utterance.audio) for utterance in tested} - {None}

    @functools.cache
    def identify(audio: str) -> str:
        """Name a file by its content; only files as large as one of test are read."""
        return hash_file(Path(audio)) if _size(audio) in sizes else audio

    parts = defaultdict(list)
    for utterance in tested:
        parts[identify(utterance.audio)].append(utterance)
    return [
        other.id
        for other in others
        if other.id in ids or any(_shares_most(mine, other) for mine in parts.get(identify(other.audio), ()))
    ]


def _size(audio: str) -> int | None:
    try:
        return os.stat(audio).st_size
    except OSError:
        return None


def _shares_most(one: Utterance, other: Utterance) -> bool:
    """Return whether the parts overlap by half of the shorter; neighbours may overlap by their edges."""
    if one.channel and other.channel and one.channel != other.channel:
        return False
    end = min(one.start + one.duration, other.start + other.duration)
    return end - max(one.start, other.start) > min(one.duration, other.duration) / 2
