"""Studies: turn variants of a system, and their folds without one speaker each, into systems to train."""

from __future__ import annotations

import json
from pathlib import Path

from asr.data.manifest import read_manifest, write_manifest
from asr.errors import UserError, suggest
from asr.recipe.definition import Recipe, Study, SystemConf
from asr.recipe.experiment import load_conf


def load_variants(study: Study, recipe: Recipe) -> dict[str, SystemConf]:
    """Build the conf of each variant."""
    systems = recipe.find_varied_systems()
    if study.system not in systems:
        hint = suggest(study.system, systems)
        raise UserError(f"system = {study.system}: no system of {recipe.name}; {hint}")
    base = systems[study.system]
    return {
        name: base.model_copy(
            update={"overrides": (*base.overrides, *study.all, *overrides), "variant": name}
        )
        for name, overrides in study.variants.items()
    }


def build_folds(variants: dict[str, SystemConf], data_dir: Path) -> dict[str, SystemConf]:
    """Build a system for each variant and left-out test speaker, and write the manifests that it reads."""
    speakers = find_speakers(data_dir / "test.jsonl")
    return {
        f"{name}_without_{speaker}": leave_out(conf, speaker, data_dir)
        for name, conf in variants.items()
        for speaker in speakers
    }


def find_speakers(manifest: Path) -> list[str]:
    """Return all speakers, sorted by name."""
    speakers = {utterance.speaker for utterance in read_manifest(manifest)}
    if None in speakers or len(speakers) < 2:
        raise UserError(
            f"{manifest}: folds leave out a speaker each; expected a speaker of each utterance, and two"
        )
    return sorted(map(str, speakers))


def leave_out(conf: SystemConf, speaker: str, data_dir: Path) -> SystemConf:
    """Change the conf to train and validate without the speaker, and write its manifests."""
    data = load_conf(conf).data
    overrides = []
    for key, sources in (("train", data.train_paths), ("dev", [data.dev])):
        folder = Path(sources[0]).parent
        name = f"{Path(sources[0]).stem}_without_{speaker}.jsonl"
        # Manifests in data/NAME move to data_dir; manifests of another recipe stay in its folder.
        manifests = [data_dir / p.name if p.parent == folder else p for p in map(Path, sources)]
        write_manifest(data_dir / name, (u for u in read_manifest(*manifests) if u.speaker != speaker))
        overrides.append(f"data.{key}={json.dumps((folder / name).as_posix())}")
    return conf.model_copy(update={"overrides": (*conf.overrides, *overrides), "left_out": speaker})
