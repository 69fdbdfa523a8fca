"""Train variants of one system with the same budget and seeds, and compare them: a study.

Studies are in studies.yaml beside recipe.py; class Study says what they hold. The variants take the place of
the recipe's systems, in a study with folds once for each speaker who is left out, and its stages do the rest.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import torch

from asr.data.manifest import Utterance, read_manifest, write_manifest
from asr.errors import UserError
from asr.features.front_end import FrontEnd
from asr.models import build_model
from asr.recipe.definition import Recipe, Study, SystemConf
from asr.recipe.experiment import Experiment
from asr.recipe.stages import check_only, choose_stages, run_recipe
from asr.recipe.systems import load_conf
from asr.system.run_config import RunConfig

logger = logging.getLogger(__name__)

TOLERANCE = 0.1  # of the number of parameters
NUM_TOKENS = 32  # to count parameters with: the real number comes from the training texts and changes little


def run_study(experiment: Experiment) -> None:
    """Train and compare the variants of the experiment's study. What is done already is skipped."""
    study = experiment.study
    assert study is not None
    choose_stages(replace(experiment, only=()), None)  # for its checks
    variants = load_variants(study, experiment.recipe)
    if study.folds is None:
        check_only(experiment, variants)
    for stage in ("download", "prepare"):
        run_recipe(replace(experiment, only=()), stage)
    cases = build_cases(study, variants, experiment.data_dir)
    recipe = experiment.recipe.model_copy(update={"systems": cases})
    run_recipe(replace(experiment, recipe=recipe))


# --- variants -----------------------------------------------------------------------------------


def load_variants(study: Study, recipe: Recipe) -> dict[str, SystemConf]:
    """Load the conf of each variant; refuse sizes that cannot be compared."""
    base = recipe.find_systems().get(study.system)
    if base is None:
        raise UserError(f"system = {study.system}: no {study.system}.yaml in {recipe.conf_dir}")
    variants = {}
    for name, own in study.variants.items():
        overrides = (*base.overrides, *study.all, *own)
        variants[name] = SystemConf(path=base.path, overrides=overrides, variant=name)
        config, wanted = load_conf(variants[name]), study.parameters
        if config.start_from is not None and wanted is None:
            continue  # sizes may come with the weights, when training starts
        count = count_parameters(config)
        logger.info("%-28s %9s parameters", name, f"{count:,}")
        if wanted is not None and abs(count - wanted) > TOLERANCE * wanted:
            raise UserError(
                f"variant {name} has {count:,} parameters; expected {wanted:,} give or take {TOLERANCE:.0%}. "
                "Change its sizes, or `parameters` of the study"
            )
    return variants


def count_parameters(config: RunConfig) -> int:
    with torch.device("meta"):
        model = build_model(config.model, FrontEnd(config.features).num_features, NUM_TOKENS)
    return sum(parameter.numel() for parameter in model.parameters())


def build_cases(study: Study, variants: dict[str, SystemConf], data_dir: Path) -> dict[str, SystemConf]:
    """Build the systems to train, by name. Folds need the prepared manifests, and write parts of them."""
    if study.folds is None:
        return variants
    return {
        f"{name}_without_{speaker}": leave_out(conf, speaker, data_dir)
        for name, conf in variants.items()
        for speaker in find_speakers(data_dir / "test.jsonl")
    }


def find_speakers(manifest: Path) -> list[str]:
    """Find all speakers, in the order of their names."""
    speakers = {utterance.speaker for utterance in read_manifest(manifest)}
    if None in speakers or len(speakers) < 2:
        raise UserError(
            f"{manifest}: folds leave out speakers; expected a speaker of each utterance, and two"
        )
    return sorted(map(str, speakers))


def leave_out(conf: SystemConf, speaker: str, data_dir: Path) -> SystemConf:
    """Change the conf to train and choose without the speaker, and write the manifests for it."""
    data = load_conf(conf).data
    train, dev = Path(data.train_paths[0]), Path(data.dev)

    def write_others(path: Path, *sources: str) -> str:
        name = f"{path.stem}_without_{speaker}.jsonl"
        found = (data_dir / p.name if p.parent == path.parent else p for p in map(Path, sources))
        whole = read_manifest(*found)  # those of another recipe stay in its folder
        write_unless_equal(data_dir / name, [u for u in whole if u.speaker != speaker])
        return path.with_name(name).as_posix()

    paths = {"train": write_others(train, *data.train_paths), "dev": write_others(dev, data.dev)}
    overrides = [f"data.{key}={json.dumps(path)}" for key, path in paths.items()]
    return SystemConf(
        path=conf.path, overrides=(*conf.overrides, *overrides), variant=conf.variant, left_out=speaker
    )


def write_unless_equal(path: Path, utterances: list[Utterance]) -> None:
    """Write a manifest; leave one alone that says the same, as another process may be training on it."""
    if not path.exists() or list(read_manifest(path)) != utterances:
        write_manifest(path, utterances)
