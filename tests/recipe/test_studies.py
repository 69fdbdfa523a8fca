"""The studies of the recipes: every variant builds; the report says what the runs have left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recipe_examples import COMMON, RECIPE, SYSTEMS, write_conf, write_tones_recipe

from asr.cli import main
from asr.config import load_config
from asr.data import Utterance, read_manifest, write_manifest
from asr.errors import UserError
from asr.recipe import Experiment, Recipe, Study, SystemConf, load_recipe, load_study, run_recipe
from asr.recipe.definition import Studies
from asr.recipe.evaluation import choose_setup
from asr.recipe.experiment import load_conf
from asr.recipe.report import TABLE
from asr.recipe.scores import read_table, score_runs
from asr.recipe.studies import build_folds, load_variants
from asr.system.run_config import RunConfig

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "recipes").glob("*/studies.yaml"))
STUDIES = [(path.parent.name, name) for path in FILES for name in load_config(Studies, path).studies]


@pytest.mark.parametrize(("corpus", "name"), STUDIES)
def test_every_variant_of_a_study_builds(corpus: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    recipe = load_recipe(corpus)
    study = load_study(recipe, name)
    variants = load_variants(study, recipe)
    configs = {name: load_conf(conf) for name, conf in variants.items()}
    assert len(configs) == len(study.variants)
    systems = {name: config.model_dump(exclude={"output_dir"}) for name, config in configs.items()}
    different = {json.dumps(tree, default=str) for tree in systems.values()}
    assert len(different) == len(systems), "two are the same"
    assert len({(config.train.steps, config.seed) for config in configs.values()}) == 1, "equal budgets"


def test_the_baseline_of_leave_one_out_is_that_of_the_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    recipe = load_recipe("fsdd")
    for name, conf in load_variants(load_study(recipe, "leave_one_out"), recipe).items():
        config = load_conf(conf)
        own = RunConfig.load(f"conf/fsdd/{name}.yaml")
        for section in ("tokenizer", "features", "augment", "batches", "model", "optim"):
            assert getattr(config, section) == getattr(own, section), f"{name}: {section}"


def write_study(tmp_path: Path, text: str) -> Recipe:
    """The study `s` next to a recipe with one system."""
    write_conf(tmp_path, "ctc_lstm", COMMON.format(name="ctc_lstm") + SYSTEMS["ctc_lstm"])
    recipes_dir = tmp_path / "recipes"
    (recipes_dir / "tones").mkdir(parents=True, exist_ok=True)
    (recipes_dir / "tones" / "recipe.py").write_text(RECIPE.format(tones="", fields=""))
    lines = f"question: which?\nsystem: ctc_lstm\n{text}".splitlines()
    studies = "studies:\n  s:\n" + "".join(f"    {line}\n" for line in lines)
    (recipes_dir / "tones" / "studies.yaml").write_text(studies)
    return load_recipe("tones", recipes_dir)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("baseline: c\nvariants: {a: [seed=1], b: []}", "baseline = c is none of the variants: a, b"),
        ("baseline: a\nfolds: 1\nvariants: {a: [], b: []}", "folds = 1: expected 'speaker'"),
        ("baseline: a\nvariants: {a: [], b: [model.encoder.dims=3]}", "unknown key model.encoder.dims"),
    ],
)
def test_a_study_that_cannot_be(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        recipe = write_study(tmp_path, text)
        for conf in load_variants(load_study(recipe, "s"), recipe).values():
            load_conf(conf)


def test_a_study_that_is_not_there(tmp_path: Path) -> None:
    recipe = write_study(tmp_path, "baseline: a\nvariants: {a: [], b: []}")
    with pytest.raises(UserError, match=r"no study 'ss' of tones; did you mean tones/s\?"):
        load_study(recipe, "ss")
    study = load_study(recipe, "s").model_copy(update={"system": "lstm"})
    with pytest.raises(UserError, match=r"system = lstm: no system of tones; did you mean ctc_lstm\?"):
        load_variants(study, recipe)


# --- from training to the report ----------------------------------------------------------------


def test_a_report(tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("asr.train.monitor.draw_learning_curve", lambda path, panels: path.touch())
    recipe = load_recipe("tones", write_tones_recipe(tmp_path, tones))
    variants, methods = {"long": (), "short": ("train.steps=2",)}, ("attention", "ctc_greedy")
    about = {"name": "s", "question": "which?", "system": "ctc_lstm", "baseline": "long"}
    study = Study(**about, variants=variants, methods=methods)
    experiment = Experiment(recipe, tmp_path / "out", seeds=(0, 1), only=("long",), study=study)
    run_recipe(experiment)

    results = json.loads((experiment.report_dir / "results.json").read_text())
    runs = results["runs"]
    assert [(run["name"], run["variant"]) for run in runs] == [("long", "long"), ("long-seed-1", "long")]
    assert {run["decoding"] for run in runs} == {"ctc_greedy"}, "the first that CTC offers"
    with pytest.raises(UserError, match="methods = attention: the system offers ctc_greedy, ctc_beam"):
        choose_setup(dict.fromkeys(("ctc_greedy", "ctc_beam")), "wer", ("attention",))  # type: ignore[arg-type]
    page = (experiment.report_dir / "report.md").read_text()
    assert page.startswith("# s\n\nwhich?\n\n`asr recipe study tones/s --only long --seeds 0,1`: 5 ")
    assert "\n| long | " in page


def test_folds_are_the_manifests_without_one_speaker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest of another recipe is read in its folder, under the name that the first one has, too."""
    monkeypatch.chdir(tmp_path)
    conf = write_conf(tmp_path, "ctc_lstm", COMMON.format(name="ctc_lstm") + SYSTEMS["ctc_lstm"])
    both = "data.train=[data/tones/train.jsonl, other/train.jsonl]"
    variants = {name: SystemConf(path=conf, overrides=(both, f"seed={n}")) for n, name in enumerate("ab")}
    people = {
        "train": "ann bob bob cem",
        "dev": "ann bob bob cem",
        "test": "ann bob cem",
        "other": "robot bot",
    }
    for split, speakers in people.items():
        spoken = [
            Utterance(id=f"{split}-{n}-{who}", audio="/a.wav", duration=1.0, text="YES", speaker=who)
            for n, who in enumerate(speakers.split())
        ]
        folder = Path("other") if split == "other" else Path("moved")
        write_manifest(folder / f"{split.replace('other', 'train')}.jsonl", spoken)
    cases = build_folds(variants, Path("moved"))
    assert list(cases) == [f"{name}_without_{who}" for name in "ab" for who in ("ann", "bob", "cem")]
    for case in cases.values():
        for key, splits in {"train": ("train", "other"), "dev": ("dev",)}.items():
            path = Path(getattr(load_conf(case).data, key))
            assert path.parent == Path("data/tones"), "as the conf says it; a run moves it to its folder"
            spoken = [f"{s}-{n}-{who}" for s in splits for n, who in enumerate(people[s].split())]
            kept = [u.id for u in read_manifest(Path("moved") / path.name)]
            assert kept == [id for id in spoken if not id.endswith(f"-{case.left_out}")]


@pytest.mark.slow
def test_leaving_speakers_out(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The whole tool: a run for each variant and speaker, who is in neither its train nor its dev."""
    monkeypatch.chdir(tmp_path)
    folder = write_tones_recipe(tmp_path, tones)
    (folder / "tones" / "recipe.py").write_text(
        RECIPE.format(tones=tones, fields="").replace("read_manifest(Path", "add_voices(Path")
        + "\ndef add_voices(path):\n"
        "    for number, utterance in enumerate(read_manifest(path)):\n"
        "        yield utterance.model_copy(update={'speaker': 'ann' if number % 3 else 'bob'})\n"
    )
    (folder / "tones" / "studies.yaml").write_text(
        "studies:\n  voices:\n    question: who?\n    system: transformer\n    baseline: long\n"
        "    folds: speaker\n    variants: {long: [], short: [train.steps=2, model.decoder=null, "
        "model.ctc_weight=1.0, model.guided_attention=null]}\n"
    )

    def run(*options: str) -> int:
        return main(["recipe", "study", "tones/voices", "--recipes-dir", "recipes", *options])

    assert run("--only", "shor") == 2
    assert "asr: --only shor: no system of this name; did you mean short?" in capsys.readouterr().err
    assert run() == 0
    runs_dir = tmp_path / "runs" / "tones-voices"
    published_dir = runs_dir / "report"
    names = [f"{variant}_without_{speaker}" for variant in ("long", "short") for speaker in ("ann", "bob")]
    published = json.loads((published_dir / "results.json").read_text())
    assert [run["name"] for run in published["runs"]] == names
    assert [len(run["known_speakers"]) > 0 for run in published["runs"]] == [True] * 4
    fresh = score_runs(published_dir / TABLE, published["baseline"], published["runs"])
    assert json.loads(json.dumps(fresh["systems"])) == published["systems"]
    page = (published_dir / "report.md").read_text()
    assert "| long_without_ann | " in page
    left_out = read_table(published_dir / TABLE)[1]["long-seed-0.left_out"]
    assert len(left_out) == 5, "each by the run that does not know its speaker"
    assert "| long | " in capsys.readouterr().out

    before = {name: (runs_dir / name / "model" / "model.safetensors").stat().st_mtime_ns for name in names}
    assert run() == 0
    after = {name: (runs_dir / name / "model" / "model.safetensors").stat().st_mtime_ns for name in names}
    assert before == after, "all was done"
