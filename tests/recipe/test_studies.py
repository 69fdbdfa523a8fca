"""The studies of the recipes: every variant builds; the report says what the runs have left."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recipe_examples import COMMON, RECIPE, SYSTEMS, write_conf, write_tones_recipe

from asr.cli import main
from asr.data import Utterance, read_manifest, write_manifest
from asr.errors import UserError
from asr.recipe import (
    NUM_TOKENS,
    TABLE,
    Experiment,
    Recipe,
    Study,
    SystemConf,
    Texts,
    beam_suffix,
    build_cases,
    count_parameters,
    describe_score,
    find_rates,
    find_speakers,
    format_page,
    join_left_out,
    load_conf,
    load_recipe,
    load_study,
    load_variants,
    pool,
    publish_study,
    read_runs,
    read_table,
    read_texts,
    read_validations,
    reread,
    run_recipe,
    run_study,
    score_lengths,
    score_study,
    score_texts,
    write_study_report,
    write_table,
    write_texts,
)
from asr.scoring import score, score_files
from asr.system import RunConfig

ROOT = Path(__file__).resolve().parents[2]
STUDIES = sorted((ROOT / "recipes").glob("*/*.yaml"))
PUBLISHED = sorted((ROOT / "recipes").glob("*/studies/*/study.json"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_variant_of_a_study_builds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    recipe = load_recipe(path.parent.name)
    study = load_study(recipe, path.stem)
    variants = load_variants(study, recipe)  # refuses sizes that differ
    configs = {name: load_conf(conf) for name, conf in variants.items()}
    assert len(configs) == len(study.variants)
    systems = {name: config.model_dump(exclude={"output_dir"}) for name, config in configs.items()}
    assert len({json.dumps(tree, default=str) for tree in systems.values()}) == len(systems), (
        "two are the same"
    )
    assert len({(config.train.steps, config.seed) for config in configs.values()}) == 1, "equal budgets"
    if study.parameters is not None:
        counts = [count_parameters(config) for config in configs.values()]
        assert max(abs(count - study.parameters) for count in counts) <= 0.1 * study.parameters


def test_the_manifests_of_the_studies_are_those_of_the_recipe() -> None:
    """What fsdd's recipe writes, and nothing else."""
    recipe = (ROOT / "recipes" / "fsdd" / "recipe.py").read_text()
    for path in STUDIES:
        for name in re.findall(r"data/fsdd/(\w+)\.jsonl", path.read_text()):
            assert name == "train" or f'"{name}"' in recipe


def test_the_baseline_of_leave_one_out_is_that_of_the_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    recipe = load_recipe("fsdd")
    for name, conf in load_variants(load_study(recipe, "leave_one_out"), recipe).items():
        config = load_conf(conf)
        own = RunConfig.load(f"conf/fsdd/{name}.yaml")
        for section in ("tokenizer", "features", "augment", "batches", "model", "optim"):
            assert getattr(config, section) == getattr(own, section), f"{name}: {section}"


def write_study(tmp_path: Path, text: str) -> Recipe:
    """The study `s` beside a recipe with one system."""
    write_conf(tmp_path, "ctc_lstm", COMMON.format(name="ctc_lstm") + SYSTEMS["ctc_lstm"])
    recipes_dir = tmp_path / "recipes"
    (recipes_dir / "tones").mkdir(parents=True, exist_ok=True)
    (recipes_dir / "tones" / "recipe.py").write_text(RECIPE.format(tones="", fields=""))
    (recipes_dir / "tones" / "s.yaml").write_text(f"question: which?\nsystem: ctc_lstm\n{text}")
    return load_recipe("tones", recipes_dir)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("baseline: c\nvariants: {a: [seed=1], b: []}", "baseline = c is none of the variants: a, b"),
        (
            "baseline: a\nparameters: 1000000\nvariants: {a: [], b: []}",
            "variant a has [0-9,]+ parameters; expected 1,000,000 give or take 10%",
        ),
        (
            "baseline: a\nfolds: speaker\nlengths: [long]\nvariants: {a: [], b: []}",
            "longer utterances of speakers left out are not measured",
        ),
        ("baseline: a\nfolds: 1\nvariants: {a: [], b: []}", "folds = 1"),
        (
            "baseline: a\nlength_beams: [1]\nvariants: {a: [], b: []}",
            "lengths and length_beams belong together",
        ),
        ("baseline: a\nvariants: {a: [], b: [model.encoder.dims=3]}", "unknown key model.encoder.dims"),
    ],
)
def test_a_study_that_cannot_be(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        recipe = write_study(tmp_path, text)
        load_variants(load_study(recipe, "s"), recipe)


def test_a_study_that_is_not_there(tmp_path: Path) -> None:
    recipe = write_study(tmp_path, "baseline: a\nvariants: {a: [], b: []}")
    with pytest.raises(UserError, match=r"no study 'ss' of tones; did you mean tones/s\?"):
        load_study(recipe, "ss")
    study = load_study(recipe, "s").model_copy(update={"system": "lstm"})
    with pytest.raises(UserError, match=r"system = lstm: no lstm\.yaml in "):
        load_variants(study, recipe)


def test_parameters_are_counted(tmp_path: Path) -> None:
    """Of one bidirectional layer of 16 cells, by hand."""
    write_study(tmp_path, "")
    config = RunConfig.load(tmp_path / "conf" / "tones" / "ctc_lstm.yaml")
    convolutions = (1 * 4 * 9 + 4) + (4 * 4 * 9 + 4)
    project = (5 * 4 * 16 + 16) + 2 * 16
    cells = 2 * (4 * 16 * (16 + 16) + 2 * 4 * 16) + 2 * 32
    head = 32 * NUM_TOKENS + NUM_TOKENS
    assert count_parameters(config) == convolutions + project + cells + head


def test_a_wrong_variant_is_told_before_anything_is_prepared(tones: Path, tmp_path: Path) -> None:
    recipe = load_recipe("tones", write_tones_recipe(tmp_path, tones))
    study = Study(question="?", system="ctc_lstm", baseline="short", variants={"short": (), "long": ()})
    experiment = Experiment(recipe, tmp_path / "out", only=("shor",), study="s")
    with pytest.raises(UserError, match="--only shor: no such variant; did you mean short"):
        run_study(experiment, study)
    assert not (tmp_path / "out").exists()


# --- from training to the report ----------------------------------------------------------------


@pytest.mark.slow
def test_a_report(tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From training to the page; the texts of the longer utterances are made up, so that their rates are known."""
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("tones", write_tones_recipe(tmp_path, tones))
    experiment = Experiment(recipe, tmp_path / "out", seeds=(0, 1), only=("ctc_lstm",), study="s")
    run_recipe(experiment)
    study = Study(
        question="which?",
        system="ctc_lstm",
        baseline="ctc_lstm",
        variants={"ctc_lstm": (), "transformer": ()},
        lengths=("long",),
        length_beams=(3, 10),
        methods=("attention", "ctc_greedy"),
    )
    references = {"x": {"text": "ONE TWO SIX TEN ONE"}, "y": {"text": "TEN TEN TEN TEN TEN"}}
    lines = [
        {"id": id, "audio": str(tones / "dev-0.wav"), "duration": 0.5, "text": fields["text"]}
        for id, fields in references.items()
    ]
    (experiment.data_dir / "long.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for run, wrong in (("ctc_lstm", "ONE TWO SIX TEN"), ("ctc_lstm-seed-1", "ONE TWO SIX TEN ONE")):
        texts = {"x": {"text": wrong}, "y": references["y"]}
        write_texts(experiment.runs_dir / run / "evaluation" / "long.ctc_greedy.jsonl", texts)

    cases = build_cases(study, load_variants(study, recipe), experiment.data_dir)
    runs = read_runs(experiment, cases, study.methods)
    assert [(run["name"], run["variant"]) for run in runs] == [
        ("ctc_lstm", "ctc_lstm"),
        ("ctc_lstm-seed-1", "ctc_lstm"),
    ]
    assert {run["decoding"] for run in runs} == {"ctc_greedy"}, "the first that CTC offers"
    with pytest.raises(UserError, match=r"ctc_lstm was decoded by ctc_greedy.*there is none: attention"):
        read_runs(experiment, cases, ("attention",))
    scores = score_lengths(experiment, runs, study.lengths, beam=10)
    assert scores["ctc_lstm"]["5"]["wer"] == pytest.approx(1 / 20), "one word of two runs of ten"
    test, _ = read_table(experiment.results_dir / TABLE)
    lengths = {str(len(fields["text"].split())) for fields in test.values()}
    assert set(scores["ctc_lstm"]) == lengths | {"5"}
    words = sum(scores["ctc_lstm"][length]["words"] for length in lengths)
    assert words == 2 * sum(len(fields["text"].split()) for fields in test.values())

    write_study_report(experiment, study, cases, tmp_path / "report")
    page = (tmp_path / "report" / "report.md").read_text()
    assert page.startswith("# s\n\nwhich?\n\n`asr recipe study tones/s --only ctc_lstm --seeds 0,1`: 6 ")
    assert "| variant | parameters | updates to 50% |" in page and "| never | never |" in page
    assert "| 5.00 [" in page, "of the five words"
    assert "## WER on test by the number of words, beam 3" in page
    svg = (tmp_path / "report" / "lengths_beam_3.svg").read_text()
    assert "<svg" in svg and "ctc_lstm" in svg and "words in the utterance" in svg
    assert not (tmp_path / "report" / "attention.png").exists(), "CTC does not look"
    publish_study(experiment, study, tmp_path / "report")
    assert {path.name for path in experiment.published_dir.iterdir()} == {
        *("study.json", "report.md", "curves.svg", "test.jsonl.gz", "long.jsonl.gz"),
        *(f"lengths_beam_{beam}.svg" for beam in (3, 10)),
    }
    _, longer = read_table(experiment.published_dir / "long.jsonl.gz")
    names = [run["name"] for run in runs]
    assert set(longer) == {f"{name}{beam}.ctc_greedy" for name in names for beam in ("", "_beam_3")}
    for run in runs:  # the checkpoint reads as the log says
        folder = experiment.runs_dir / run["name"]
        for line in read_validations(folder / "log.jsonl"):
            again = reread(folder, line["step"], list(read_manifest(experiment.data_dir / "dev.jsonl")))
            assert again == pytest.approx({"loss": line["loss"], "wer": line["wer"]}, rel=1e-5)


def test_folds_are_the_manifests_without_one_speaker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    conf = write_conf(tmp_path, "ctc_lstm", COMMON.format(name="ctc_lstm") + SYSTEMS["ctc_lstm"])
    variants = {name: SystemConf(path=conf, overrides=(f"seed={n}",)) for n, name in enumerate("ab")}
    people = dict.fromkeys(("train", "dev", "test"), ("ann", "bob", "bob", "cem"))
    for split, speakers in people.items():
        spoken = [
            Utterance(id=f"{split}{n}", audio="/a.wav", duration=1.0, text="YES", speaker=speaker)
            for n, speaker in enumerate(speakers)
        ]
        write_manifest(tmp_path / "data" / f"{split}.jsonl", spoken)
    study = Study(
        question="who?",
        system="ctc_lstm",
        baseline="a",
        folds="speaker",
        variants={"a": (), "b": ("seed=1",)},
    )
    cases = build_cases(study, variants, tmp_path / "data")
    assert list(cases) == [f"{name}_without_{who}" for name in "ab" for who in ("ann", "bob", "cem")]
    for case in cases.values():
        for split in ("train", "dev"):
            path = Path(getattr(load_conf(case).data, split))
            assert path.parent == Path("data/tones"), (
                "as the conf says it; a experiment moves it to its folder"
            )
            kept = [u.id for u in read_manifest(tmp_path / "data" / path.name)]
            assert kept == [f"{split}{n}" for n in range(4) if people[split][n] != case.left_out]
    assert_rewrites_only_what_changes(study, variants, tmp_path / "data", "train_without_ann.jsonl", "bob")


def test_folds_keep_what_another_recipe_spoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second training manifest lies in its own folder, under the name that the first one has, too."""
    monkeypatch.chdir(tmp_path)
    conf = write_conf(tmp_path, "ctc_lstm", COMMON.format(name="ctc_lstm") + SYSTEMS["ctc_lstm"])
    both = "data.train=[data/tones/train.jsonl, other/train.jsonl]"
    variants = {name: SystemConf(path=conf, overrides=(both, f"seed={n}")) for n, name in enumerate("ab")}
    for folder, speakers in {"data": ("ann", "bob"), "other": ("robot", "bot")}.items():
        spoken = [
            Utterance(id=f"{folder}-{speaker}", audio="/a.wav", duration=1.0, text="YES", speaker=speaker)
            for speaker in speakers
        ]
        for split in ("train", "dev", "test"):
            write_manifest(tmp_path / folder / f"{split}.jsonl", spoken)
    study = Study(
        question="who?", system="ctc_lstm", baseline="a", folds="speaker", variants=dict.fromkeys("ab", ())
    )
    build_cases(study, variants, tmp_path / "data")
    kept = [u.id for u in read_manifest(tmp_path / "data" / "train_without_ann.jsonl")]
    assert kept == ["data-bob", "other-robot", "other-bot"]
    assert [u.id for u in read_manifest(tmp_path / "data" / "dev_without_ann.jsonl")] == ["data-bob"]


def assert_rewrites_only_what_changes(
    study: Study, variants: dict[str, SystemConf], data_dir: Path, name: str, speaker: str
) -> None:
    """A second process must not change what the first one trains on; new utterances must."""
    before = (data_dir / name).stat().st_mtime_ns
    build_cases(study, variants, data_dir)
    assert (data_dir / name).stat().st_mtime_ns == before
    new = Utterance(id="new", audio="/a.wav", duration=1.0, text="YES", speaker=speaker)
    write_manifest(data_dir / "train.jsonl", [*read_manifest(data_dir / "train.jsonl"), new])
    build_cases(study, variants, data_dir)
    assert "new" in {u.id for u in read_manifest(data_dir / name)}


SPEAKERS = {"train": ("ann", "bob", "cem", "dee"), "dev": ("eva", "ann"), "test": ("fay", "gil")}


def write_speakers(data_dir: Path) -> None:
    for split, speakers in SPEAKERS.items():
        spoken = [
            Utterance(id=f"{split}{n}", audio="/a.wav", duration=1.0, text="YES", speaker=speaker)
            for n, speaker in enumerate(speakers)
        ]
        write_manifest(data_dir / f"{split}.jsonl", spoken)


def test_cross_validation_deals_the_speakers_of_train_and_dev(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is held out once; nobody is in both parts; test is in none."""
    monkeypatch.chdir(tmp_path)
    conf = write_conf(tmp_path, "ctc_lstm", COMMON.format(name="ctc_lstm") + SYSTEMS["ctc_lstm"])
    write_speakers(tmp_path / "data")
    study = Study(
        question="which?", system="ctc_lstm", baseline="a", folds=3, variants={"a": (), "b": ("seed=1",)}
    )
    variants = {name: SystemConf(path=conf, overrides=study.variants[name]) for name in "ab"}
    cases = build_cases(study, variants, tmp_path / "data")
    assert list(cases) == [f"{name}_without_fold_{n}" for name in "ab" for n in (1, 2, 3)]
    held = {}
    for case in cases.values():
        data = load_conf(case).data
        assert Path(data.train).parent == Path("data/tones") and case.fold is not None
        assert Path(data.dev).name == case.fold.name, "what is tested chooses the checkpoints too"
        learned, own = (
            {(u.id, u.speaker) for u in read_manifest(tmp_path / "data" / Path(path).name)}
            for path in (data.train, data.dev)
        )
        assert not {who for _, who in learned} & {who for _, who in own}
        assert {id for id, _ in learned | own} == {f"train{n}" for n in range(4)} | {"dev0", "dev1"}
        assert held.setdefault(case.left_out, own) == own, "the same for all variants"
    assert sorted(who for own in held.values() for _, who in own) == [
        "ann",
        "ann",
        "bob",
        "cem",
        "dee",
        "eva",
    ]
    fold = cases["a_without_fold_1"].fold
    assert fold is not None
    speaker = str(next(read_manifest(fold)).speaker)
    assert_rewrites_only_what_changes(study, variants, tmp_path / "data", fold.name, speaker)
    with pytest.raises(
        UserError, match=r"folds = 6 of train and dev in .*: 5 speakers .* cannot fill 6 parts"
    ):
        build_cases(study.model_copy(update={"folds": 6}), variants, tmp_path / "data")


@pytest.mark.slow
def test_cross_validation(tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole tool: figures of all folds together, on utterances of train and dev alone."""
    monkeypatch.chdir(tmp_path)
    folder = write_tones_recipe(tmp_path, tones)
    (folder / "tones" / "recipe.py").write_text(
        RECIPE.format(tones=tones, fields="").replace("read_manifest(Path", "name_all(split, Path")
        + "\ndef name_all(split, path):\n"
        "    for number, utterance in enumerate(read_manifest(path)):\n"
        "        update = {'id': f'{split}-{number}', 'speaker': f'{split}-{number % 3}'}\n"
        "        yield utterance.model_copy(update=update)\n"
    )
    (folder / "tones" / "folds.yaml").write_text(
        "question: which?\nsystem: ctc_lstm\nbaseline: long\nfolds: 2\n"
        "variants: {long: [], short: [train.steps=2]}\n"
    )
    options = ("--recipes-dir", "recipes", "--seeds", "0,1", "--publish")
    assert main(["recipe", "study", "tones/folds", *options]) == 0
    published_dir = folder / "tones" / "studies" / "folds"
    published = json.loads((published_dir / "study.json").read_text())
    known = [
        u for split in ("train", "dev") for u in read_manifest(tmp_path / f"data/tones-folds/{split}.jsonl")
    ]
    assert read_table(published_dir / TABLE)[0].keys() == {utterance.id for utterance in known}
    words = sum(len((utterance.text or "").split()) for utterance in known)
    assert [variant["words"] for variant in published["variants"]] == [2 * words] * 2, "two seeds"
    for variant in ("long", "short"):
        own = [run for run in published["runs"] if run["variant"] == variant]
        assert sum(run["words"] for run in own) == 2 * words and len(own) == 4
    (comparison,) = published["comparisons"]
    assert (comparison["system"], comparison["baseline"]) == ("short", "long")
    assert find_wrong_figures(published_dir) == []
    page = (published_dir / "report.md").read_text()
    assert "| left out | long: WER % | short: WER % |\n" in page and "| fold_2 | " in page
    assert "the test set of the corpus is not read" in page


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
    (folder / "tones" / "voices.yaml").write_text(
        "question: who?\nsystem: transformer\nbaseline: long\nfolds: speaker\n"
        "variants: {long: [], short: [train.steps=2, model.decoder=null, model.ctc_weight=1.0, "
        "model.guided_attention=null]}\n"
    )

    def run(*options: str) -> int:
        return main(["recipe", "study", "tones/voices", "--recipes-dir", "recipes", *options])

    assert run("--only", "shor") == 2
    assert "asr: --only shor: no such variant; did you mean short?" in capsys.readouterr().err
    assert run("--smoke", "--publish") == 2
    assert run("--publish", "--jobs", "2") == 0
    runs_dir, published_dir = tmp_path / "runs" / "tones-voices", folder / "tones" / "studies" / "voices"
    names = [f"{variant}_without_{speaker}" for variant in ("long", "short") for speaker in ("ann", "bob")]
    published = json.loads((published_dir / "study.json").read_text())
    assert [run["name"] for run in published["runs"]] == names
    assert [len(run["known_speakers"]) > 0 for run in published["runs"]] == [True] * 4
    assert find_wrong_figures(published_dir) == []
    page = (published_dir / "report.md").read_text()
    assert "| left out | long: WER % | the others | short: WER % | the others |" in page
    assert (published_dir / "attention.png").stat().st_size < 200_000
    assert "| all | " in capsys.readouterr().out

    before = {name: (runs_dir / name / "model" / "model.safetensors").stat().st_mtime_ns for name in names}
    assert run() == 0
    after = {name: (runs_dir / name / "model" / "model.safetensors").stat().st_mtime_ns for name in names}
    assert before == after, "all was done"


def test_publishing_spares_other_folders(tmp_path: Path) -> None:
    recipe = write_study(tmp_path, "baseline: a\nvariants: {a: [], b: []}")
    experiment = Experiment(recipe, study="s")
    experiment.published_dir.mkdir(parents=True)
    (experiment.published_dir / "precious.jsonl").write_text("{}")
    with pytest.raises(UserError, match=r"has files, but no study\.json of an earlier study"):
        publish_study(experiment, load_study(recipe, "s"), tmp_path)
    assert (experiment.published_dir / "precious.jsonl").exists()


def test_speakers_must_be_known(tones: Path) -> None:
    with pytest.raises(UserError, match="expected a speaker of each utterance, and two"):
        find_speakers(tones / "dev.jsonl")


# --- figures ------------------------------------------------------------------------------------


def find_wrong_figures(folder: Path) -> list[str]:
    """What a fresh scoring of the hypotheses in `folder` finds otherwise than study.json says."""
    published = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    fresh = json.loads(json.dumps(score_study(folder, published["baseline"], published["runs"])))
    wrong = [name for name in fresh if fresh[name] != published[name]]
    for title, lengths in published["lengths"].items():
        beam = int(title.rpartition("beam ")[2])
        for variant in dict.fromkeys(run["variant"] for run in published["runs"]):
            own = [run for run in published["runs"] if run["variant"] == variant]
            found = score_published_lengths(folder, own, beam)
            wrong += [title] * (json.loads(json.dumps(found)) != lengths[variant])
    return wrong


def score_published_lengths(folder: Path, runs: list[dict[str, Any]], beam: int) -> dict[str, object]:
    """The runs of a variant, one for each seed, as the studies of lengths have them."""
    by_length: dict[str, dict[str, dict[str, str]]] = {}
    references: Texts = {}
    heard: dict[str, Texts] = {run["name"]: {} for run in runs}
    for path in folder.glob("*.jsonl.gz"):
        own, hypotheses = read_table(path)
        references |= own
        for run in runs:
            suffix = "" if beam == run["decoding_config"]["beam"] else beam_suffix(beam)
            heard[run["name"]] |= hypotheses[f"{run['name']}{suffix}.{run['decoding']}"]
    for id, fields in references.items():
        by_length.setdefault(str(len(fields["text"].split())), {})[id] = fields
    return {
        length: describe_score(pool(runs, by_length[length], heard)) for length in sorted(by_length, key=int)
    }


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.parts[-2])
def test_published_figures_equal_a_fresh_scoring(path: Path) -> None:
    assert find_wrong_figures(path.parent) == []


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.parts[-2])
def test_published_pages_say_what_the_studies_found(path: Path) -> None:
    page = path.with_name("report.md").read_text(encoding="utf-8")
    pictures = {name: shown for shown, name in re.findall(r"!\[(.*)\]\((.*)\)", page)}
    assert page == format_page(json.loads(path.read_text(encoding="utf-8")), pictures)


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.parts[-2])
def test_published_studies_are_whole_meant_and_small(path: Path) -> None:
    published = json.loads(path.read_text(encoding="utf-8"))
    assert published["smoke"] is False
    corpus, name = published["corpus"], published["study"]
    commands = (f"python tools/study.py recipes/{corpus}/{name}.yaml", f"asr recipe study {corpus}/{name}")
    for run in published["runs"]:
        for origin in (run["training"], run["evaluation"]):
            assert origin["command"].startswith(commands) and origin["commit"] and origin["machine"]
    page = path.with_name("report.md").read_text(encoding="utf-8")
    for variant in published["variants"]:
        assert f"{100 * variant['wer']:.2f}" in page
    for text in (page, path.read_text(encoding="utf-8")):
        assert "/tmp" not in text and "/home" not in text and "/work" not in text
    assert sum(file.stat().st_size for file in path.parent.iterdir()) < 2_500_000


def rate_texts(table: Path, name: str) -> str:
    """WER in percent, as pages have it, of a system in the table."""
    references, hypotheses = read_table(table)
    texts = ({id: fields["text"] for id, fields in own.items()} for own in (references, hypotheses[name]))
    return f"{100 * score(*texts, resamples=0).error_rate:.2f}"


def test_the_page_of_the_attention_guide_says_what_its_hypotheses_hold() -> None:
    """Rows of its tables: digits, CTC, joint, joint and guided."""
    page = (ROOT / "recipes/guided_attention.md").read_text(encoding="utf-8")
    manifests = {"3 to 7": "test", "10": "test_10", "15": "test_15", "30": "test_30"}

    def rate(folder: Path, manifest: str, decoding: str) -> str:
        return rate_texts(folder / f"{manifest}.jsonl.gz", decoding)

    rows = re.findall(r"^\| (3 to 7|10|15|30) \| (.+?) \| (.+?) \| (.+?) \| .* \|$", page, re.MULTILINE)
    assert len(rows) == 8
    for number, (digits, *rates) in enumerate(rows):
        suffix = "_window" if number >= 4 else ""
        folder = ROOT / "recipes/fsdd/studies/guide"
        decodings = [f"{name}{suffix}" for name in ("ctc_greedy", "free", "guided")]
        found = [rate(folder, manifests[digits], decoding) for decoding in decodings]
        assert [shown.strip("*") for shown in rates] == found
    folder = ROOT / "recipes/an4/studies/guide"
    joined = [float(rate(folder, "joined", decoding)) for decoding in ("free", "guided", "ctc_greedy")]
    assert "joint {:.1f} %, guided **{:.1f} %**".format(*joined) in page
    assert f"CTC greedily {joined[2]:.1f} %" in page
    dev = [rate(folder, "dev", decoding) for decoding in ("free", "guided")]
    assert "{} and {} % (32 and 31 errors)".format(*dev) in page


def check_table_of_lengths(part: str, published: dict[str, Any]) -> None:
    """Rows of each variant: runs, WER of 3 to 7, 10, 15 and 30 digits with a beam of 10, and greedily."""
    by_beam = [published["lengths"][f"WER on test by the number of words, beam {beam}"] for beam in (10, 1)]
    rows = re.findall(r"^\| (\w+)(?: \(prior alone\))? \| (\d) \| (\d.*) \|$", part, re.MULTILINE)
    assert {name for name, _, _ in rows} == {variant["name"] for variant in published["variants"]}
    for name, runs, figures in rows:
        assert int(runs) == sum(run["variant"] == name for run in published["runs"])
        found = []
        for lengths in by_beam:
            short = [lengths[name][str(count)] for count in range(3, 8)]
            found.append(sum(one["errors"] for one in short) / sum(one["words"] for one in short))
            found += [lengths[name][count]["wer"] for count in ("10", "15", "30")]
        assert figures.replace("*", "") == " | ".join(f"{100 * rate:.2f}" for rate in found)


def test_the_page_of_the_attention_clock_says_what_its_studies_found() -> None:
    page = (ROOT / "recipes/guided_attention.md").read_text(encoding="utf-8")
    part = page.split("\n## A clock of its own")[1].split("\n## ")[0]
    path = ROOT / "recipes/fsdd/studies/attention_clock/study.json"
    published = json.loads(path.read_text(encoding="utf-8"))
    check_table_of_lengths(part, published)
    dev = {run["name"]: f"{100 * run['ways']['dev']['attention']['wer']:.2f}" for run in published["runs"]}
    for name in ("clock", "clock_windows"):
        assert "{}, {} and {}".format(*(dev[f"{name}{seed}"] for seed in ("", "-seed-1", "-seed-2"))) in part
    assert f"the prior alone {dev['prior']}" in part
    open_words = ROOT / "recipes/speechocean762/studies/attention_clock"
    found = [rate_texts(open_words / TABLE, f"{name}.attention") for name in ("clock", "prior")]
    assert "has {} % on test in place of {} with the prior alone".format(*found) in part


def test_the_page_of_the_attention_guide_says_what_its_study_found() -> None:
    """By study.json, which is scored afresh; and the decoder and CTC alone by their texts."""
    page = (ROOT / "recipes/guided_attention.md").read_text(encoding="utf-8")
    folder = ROOT / "recipes/fsdd/studies/attention_guide"
    published = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    by_beam = [published["lengths"][f"WER on test by the number of words, beam {beam}"] for beam in (10, 1)]
    part = page.split("## The guide in training")[1].split("\n## ")[0]
    check_table_of_lengths(part, published)
    five = [f"{100 * lengths['guide_windows']['5']['wer']:.2f}" for lengths in by_beam]
    assert "Five digits have {} and {} %".format(*five) in part
    names = ["guide_windows", "guide_windows-seed-1", "guide_windows-seed-2"]

    def rate(name: str) -> str:
        return rate_texts(folder / TABLE, name)

    alone = [rate(f"{name}.attention") for name in names]
    assert "has {}, {} and {} % at 3 to 7 digits".format(*alone) in part
    assert f"free it has {rate('free.attention')} %" in part
    heads = [rate(f"{name}.ctc_greedy") for name in names]
    assert "greedily, {}, {} and {} %".format(*heads) in part


AN4_METHODS = {
    "CTC, greedy": "ctc_greedy",
    "decoder alone": "attention",
    "joint": "joint",
    "joint, five speeds": "joint+speeds",
    "joint, lexicon and word 3-grams": "joint+ngrams",
    "the same, five speeds": "joint+ngrams+speeds",
    "CTC beam, lexicon and word 3-grams, five speeds": "ctc_beam+ngrams+speeds",
}


def read_an4_table(section: str) -> tuple[str, list[tuple[str, str]]]:
    """A section of AN4's page, and method and figures of each row of its table."""
    page = (ROOT / "recipes/an4/README.md").read_text(encoding="utf-8")
    part = page.split(f"## {section}")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([\d.]+ .*) \|$", part, re.MULTILINE)
    assert [name for name, _ in rows] == list(AN4_METHODS)
    return part, [(AN4_METHODS[name], figures) for name, figures in rows]


def rate_an4_run(folder: Path, method: str) -> list[str]:
    """WER of the first run of a study: dev by study.json, test by the texts."""
    run = json.loads((folder / "study.json").read_text("utf-8"))["runs"][0]
    dev = f"{100 * run['ways']['dev'][method]['wer']:.2f}"
    return [dev, rate_texts(folder / TABLE, f"{run['name']}.{method}")]


def test_the_page_of_an4_says_what_the_attention_guide_has() -> None:
    studies = ROOT / "recipes/an4/studies"
    names = ("attention_guide", "lstm_guide")
    part, rows = read_an4_table("Attention guide")
    for method, figures in rows:
        found = [rate for name in names for rate in rate_an4_run(studies / name, method)]
        found.append(rate_texts(ROOT / "recipes/an4/results" / TABLE, f"transformer.{method}"))
        assert figures.replace("*", "") == " | ".join(found)
    runs = [json.loads((studies / name / "study.json").read_text("utf-8"))["runs"][0] for name in names]
    assert "As dev chose, {} and {} %".format(*(f"{100 * run['wer']:.2f}" for run in runs)) in part
    five = rate_texts(studies / "lstm_guide" / TABLE, "combination_of_five")
    assert "A combination of five" in part and f"has {five} %" in part


def test_the_page_of_an4_says_what_phones_have() -> None:
    studies = ROOT / "recipes/an4/studies"
    phones = studies / "phones" / TABLE
    part, rows = read_an4_table("Phones")
    for method, figures in rows:
        found = [rate for name in ("lstm_guide", "phones") for rate in rate_an4_run(studies / name, method)]
        assert figures.replace("*", "") == " | ".join(found)
    assert f"**{rate_texts(phones, 'phones.rescoring+speeds')}** % on test" in part
    four = rate_texts(phones, "combination_of_four")
    assert f"has {four} %" in part
    for decoding, shown in (
        ("rescoring+speeds", "**{}** % (4.14 to 7.89) by rescoring"),
        ("joint+ngrams+speeds", "{}\n  (3.76 to 5.99), 37 errors"),
        ("combination_of_four", "{} % (3.11 to 6.88), as many errors"),
        ("together", "**{}** % (2.93 to 6.45): no gain"),
    ):
        assert shown.format(rate_texts(phones, f"all.{decoding}")) in part
    others = [rate_texts(phones, f"{name}.joint+ngrams+speeds") for name in ("all-seed-1", "all_characters")]
    assert "with seed 1 ({}) and with letters ({})".format(*others) in part
    all_948 = rate_texts(studies / "lstm_guide" / TABLE, "all.ctc_beam+ngrams+speeds")
    page = (ROOT / "recipes/an4/README.md").read_text(encoding="utf-8")
    assert f"{all_948} % (4.14 to 9.43)" in page
    clock = rate_texts(studies / "attention_clock" / TABLE, "clock.joint+speeds")
    assert f"**{clock}** % (4.91 to 10.52)" in page


def test_the_page_of_an4_says_what_phones_have_after_synthetic_speech() -> None:
    folder = ROOT / "recipes/an4/studies/synthetic_phones"
    page = (ROOT / "recipes/an4/README.md").read_text(encoding="utf-8")
    part = page.split("## Synthetic speech, with phones")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| ([a-zC][^|]+) \| ([\d.]+ .*) \|$", part, re.MULTILINE))
    methods = {
        "CTC beam": "ctc_beam",
        "decoder alone": "attention",
        "rescoring": "rescoring",
        "joint": "joint",
    }
    assert rows.keys() == methods.keys()
    for name, method in methods.items():
        found = [
            rate_texts(folder / "dev.jsonl.gz", f"{texts}.{method}") for texts in ("alone", "an4", "both")
        ]
        assert rows[name].replace("*", "") == " | ".join(found)
    test = rate_texts(folder / TABLE, "both.ctc_beam")
    assert f"**{test}** % (2.12 to 5.78), 27 of 773 words" in part
    together = [
        rate_texts(folder / f"{split}.jsonl.gz", f"with_joe.{name}")
        for split in ("dev", "test")
        for name in ("combination", "both.ctc_beam")
    ]
    assert "dev had {} % in place of {}, test **{}** in place of {}".format(*together) in part
    card = (ROOT / "recipes/an4/pretrained/README.md").read_text(encoding="utf-8")
    assert f"{test} %, 27 of 773 words" in card


def test_the_page_of_the_attention_guide_says_how_joined_recordings_are_read() -> None:
    page = (ROOT / "recipes/guided_attention.md").read_text(encoding="utf-8")
    folder = ROOT / "recipes/an4/studies/joined"
    decodings = {
        "pre-trained Conformer: joint": "pretrained.joint",
        "the same: joint, guided in decoding alone": "pretrained.guided",
        "guide and windows in training: joint": "guide_windows.joint",
        "the same: decoder alone": "guide_windows.attention",
    }
    heads = ["pretrained.ctc_greedy", "guide_windows.ctc_greedy"]
    part = page.split("| system and decoding | 30 s | 60 s |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| ([a-z][^|]+) \| ([\d.*]+) \| ([\d.*]+) \|$", part, re.MULTILINE)
    assert len(rows) == 6
    for name, *shown in rows:
        decoding = decodings.get(name) or heads.pop(0)
        found = [rate_texts(folder / f"{test}.jsonl.gz", decoding) for test in ("test_30s", "test_60s")]
        assert [figure.strip("*") for figure in shown] == found


def test_the_page_of_attention_says_what_other_families_have() -> None:
    page = (ROOT / "recipes/guided_attention.md").read_text(encoding="utf-8")
    part = page.split("### Other families")[1].split("\n## ")[0]
    studies = ROOT / "recipes/fsdd/studies"
    names = (
        "systems/attention_additive",
        "attention_families/additive_prior",
        "attention_families/additive_guide",
        "attention_families/additive_clock",
        "systems/attention_dot",
        "attention_families/dot_clock",
        "systems/attention_tanh",
        "attention_families/tanh_prior",
        "attention_families/tanh_clock",
        "systems/convolutional",
        "attention_families/convolutional_prior",
        "attention_families/convolutional_clock",
    )
    training = "neither|prior|prior and guide|prior and clock"
    rows = re.findall(rf"^\|.*\| ({training}) \| (\d[\d.]*) \| (.*) \|$", part, re.MULTILINE)
    for (_, rate, interval), name in zip(rows, names, strict=True):
        study, _, system = name.partition("/")
        references, hypotheses = read_table(studies / study / TABLE)
        found = score_texts(references, hypotheses[f"{system}.attention"])
        assert found.interval is not None and rate == f"{100 * found.error_rate:.2f}"
        assert interval == f"{100 * found.interval.low:.2f} to {100 * found.interval.high:.2f}"


def test_the_page_of_attention_says_how_far_word_times_are_off() -> None:
    page = (ROOT / "recipes/guided_attention.md").read_text(encoding="utf-8")
    folder = ROOT / "recipes/fsdd/studies/word_times"

    rows_by_id = read_texts(folder / "word_times.jsonl.gz")

    def read_times(name: str) -> np.ndarray:
        times = " ".join(fields[name] for fields in rows_by_id.values())
        return np.array(re.findall(r":([0-9.]+)-([0-9.]+)", times), float)

    rows = re.findall(r"^\| ([\w +]+|[\w ]+, no CTC) \| (CTC|attention) \| ([\d*].*) \|$", page, re.MULTILINE)
    runs = {
        "CTC + prior": "ctc_prior",
        "prior, no CTC": "prior_100_500",
        "clock and windows, no CTC": "clock_windows",
    }
    assert len(rows) == 4
    for run, by, figures in rows:
        errors_W2 = 1000 * abs(read_times(f"{runs[run]}.{by.lower()}") - read_times("reference"))
        found = [np.quantile(errors_W2[:, side], share) for side in (0, 1) for share in (0.5, 0.9)]
        assert len(errors_W2) == 750
        assert figures.replace("*", "") == " | ".join(f"{error:.0f}" for error in found)


def test_the_page_of_speechocean762_says_what_its_hypotheses_hold() -> None:
    page = (ROOT / "recipes/speechocean762/README.md").read_text(encoding="utf-8")
    studies = ROOT / "recipes/speechocean762/studies"
    decodings = {
        "CTC, greedy": "ctc_greedy",
        "joint": "joint",
        "CTC beam, lexicon and word 3-grams": "ctc_beam+ngrams",
        "joint, lexicon and word 3-grams": "joint+ngrams",
    }
    row = r"^\| (\w[^|]*) \| (\d+\.\d\d \| [\d.]+ to [\d.]+) \|"
    rows = dict(re.findall(row, page.split("### Attention")[0], re.MULTILINE))
    assert rows.keys() == decodings.keys()
    first = "lstm_transformer"
    shown = {rows[name]: (first, "dev", decoding) for name, decoding in decodings.items()}
    test, whisper = re.findall(r"\*\*([\d.]+) %\*\*, ([\d.]+ to [\d.]+)", page)
    shown[" | ".join(test)] = (first, "test", "joint+ngrams")
    shown[" | ".join(whisper)] = (first, "fifth_of_test", "whisper_tiny")
    further = re.findall(
        r"^\| (dev|test) \| ([^|]*) (\| \d+\.\d\d \| [\d.]+ to [\d.]+) \|", page, re.MULTILINE
    )
    assert len(further) == 3
    for part, decoding, figures in further:
        shown[figures[2:]] = ("whisper_tiny", part, decoding.replace(" ", "_"))
    speeds = ("joint", "joint+ngrams", "joint+ngrams+speeds", "joint+ngrams+speeds")
    one_speed = ("ctc_greedy", "attention", "joint", "joint+ngrams", "joint+ngrams")
    for name, study, decoded in (
        ("guide", "attention_guide", one_speed),
        ("wide", "wide_augmentation", speeds),
        ("synthetic", "synthetic_speech", speeds),
        ("synthetic phones", "synthetic_phones", speeds[1:]),
        ("recorded voices", "recorded_voices", speeds[1:]),
        ("wide guide", "wide_guide", ("joint+ngrams+speeds", "last.joint+ngrams+speeds")),
    ):
        row = rf"^ *\| {name}, (dev|test) \| [^|]* (\| \d+\.\d\d \| [\d.]+ to [\d.]+) \|"
        for (part, figures), decoding in zip(re.findall(row, page, re.MULTILINE), decoded, strict=True):
            shown[figures[2:]] = (study, part, decoding)
    for figures, (study, part, decoding) in shown.items():
        references, hypotheses = read_table(studies / study / f"{part}.jsonl.gz")
        found = score_texts(references, hypotheses[decoding])
        assert found.interval is not None
        low, high = 100 * found.interval.low, 100 * found.interval.high
        assert figures == f"{100 * found.error_rate:.2f} | {low:.1f} to {high:.1f}"
    table = str(studies / "whisper_tiny" / TABLE)
    columns = [f"{table}#{name}" for name in ("base_en", "beam_5")]
    _, systems, _ = score_files(table, columns, normalize="english")
    for system in systems:
        assert f"{100 * system.score.error_rate:.2f} %" in page
    difference = systems[1].score.error_rate - systems[0].score.error_rate
    assert f"{-100 * difference:.1f} points\nless" in page


SPEECHOCEAN762_PHONES = {
    ("phones, dev", "CTC, greedy"): "ctc_greedy",
    ("phones, dev", "decoder alone"): "attention",
    ("phones, dev", "joint"): "joint",
    ("phones, dev", "joint, lexicon and word 3-grams"): "joint+ngrams",
    ("phones, dev", "the same, five speeds, CTC weight 0.3"): "joint+ngrams+speeds",
    ("phones, test", "joint, lexicon and word 3-grams"): "phones.joint+ngrams",
    ("phones, test", "the same, all 2.88 hours"): "all.joint+ngrams",
    ("CTC alone, dev", "CTC beam, lexicon and word 3-grams"): "ctc_phones.ctc_beam+ngrams",
    ("CTC alone, test", "CTC beam, lexicon and word 3-grams"): "ctc_phones.ctc_beam+ngrams",
    ("CTC alone, letters, dev", "CTC beam, lexicon and word 3-grams"): "ctc.ctc_beam+ngrams",
    ("CTC alone, letters, test", "CTC beam, lexicon and word 3-grams"): "ctc.ctc_beam+ngrams",
}


def test_the_page_of_speechocean762_says_what_phones_have() -> None:
    page = (ROOT / "recipes/speechocean762/README.md").read_text(encoding="utf-8")
    studies = ROOT / "recipes/speechocean762/studies"
    part = page.split("### Phones")[1].split("\n### ")[0]
    rows = re.findall(
        r"^\| ([^|]+) \| ([^|]+) \| ([\d.]+ \| [\d.]+ to [\d.]+ \| [\d.]+) \|$", part, re.MULTILINE
    )
    assert [(group, decoding) for group, decoding, _ in rows] == list(SPEECHOCEAN762_PHONES)
    for group, decoding, figures in rows:
        split = "dev" if "dev" in group else "test"
        references, hypotheses = read_table(studies / "phones" / f"{split}.jsonl.gz")
        found = score_texts(references, hypotheses[SPEECHOCEAN762_PHONES[group, decoding]])
        assert found.interval is not None
        wer, low, high, cer = (
            100 * rate
            for rate in (
                found.error_rate,
                found.interval.low,
                found.interval.high,
                found.character_error_rate,
            )
        )
        assert figures == f"{wer:.2f} | {low:.1f} to {high:.1f} | {cer:.1f}"
    for split, name in (
        ("dev", "characters.joint+ngrams"),
        ("dev", "espeak.joint+ngrams"),
        ("test", "wide.joint+ngrams+speeds"),
    ):
        assert f"{rate_texts(studies / 'phones' / f'{split}.jsonl.gz', name)} %" in part


def make_run(name: str, variant: str, seed: int, left_out: str | None) -> dict[str, object]:
    return {"name": name, "variant": variant, "seed": seed, "left_out": left_out, "decoding": "joint"}


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """Two speakers with two utterances each, of two words."""
    said = {f"{who}{n}": {"text": "YES NO", "speaker": who} for who in ("ann", "bob") for n in (0, 1)}
    write_table(tmp_path / TABLE, said, {})
    return tmp_path


def write_heard(folder: Path, run: dict[str, object], texts: dict[str, str]) -> dict[str, object]:
    references, hypotheses = read_table(folder / TABLE)
    heard = {id: {"text": texts.get(id, "YES NO")} for id in references}
    write_table(folder / TABLE, references, hypotheses | {f"{run['name']}.joint": heard})
    return run


def test_figures_of_folds(made_up: Path) -> None:
    """By hand: each run counts for the two utterances of the speaker whom it does not know."""
    runs = [
        write_heard(made_up, make_run("x_ann", "x", 0, "ann"), {"ann0": "YES", "bob0": "NO", "bob1": "NO"}),
        write_heard(made_up, make_run("x_bob", "x", 0, "bob"), {"bob0": "NO NO", "bob1": "NO NO NO"}),
        write_heard(made_up, make_run("y_ann", "y", 0, "ann"), {}),
        write_heard(made_up, make_run("y_bob", "y", 0, "bob"), {"ann0": "", "bob0": "MAYBE"}),
    ]
    found = score_study(made_up, "y", runs)
    assert [(run["errors"], run["words"]) for run in found["runs"]] == [(1, 4), (3, 4), (0, 4), (2, 4)]
    known = [(run["known_speakers"]["errors"], run["known_speakers"]["words"]) for run in found["runs"]]
    assert known == [(2, 4), (0, 4), (0, 4), (2, 4)]
    assert [(v["name"], v["errors"], v["words"]) for v in found["variants"]] == [("x", 4, 8), ("y", 2, 8)]
    assert found["test"] == {"utterances": 4, "words": 8, "resampled_by": "speaker"}
    (comparison,) = found["comparisons"]
    assert (comparison["system"], comparison["baseline"]) == ("x", "y")
    assert comparison["difference"] == pytest.approx(0.25)


def test_what_is_heard_of_speakers_left_out(made_up: Path) -> None:
    """Texts that score as the folds together."""
    runs = [
        write_heard(made_up, make_run("x_ann", "x", 0, "ann"), {"ann0": "YES", "bob0": "MAYBE"}),
        write_heard(made_up, make_run("x_bob", "x", 0, "bob"), {"ann0": "MAYBE", "bob1": "NO"}),
    ]
    (joined,) = join_left_out(*read_table(made_up / TABLE), runs).values()
    assert {id: fields["text"] for id, fields in joined.items()} == {
        "ann0": "YES",
        "ann1": "YES NO",
        "bob0": "YES NO",
        "bob1": "NO",
    }


def test_only_seeds_that_both_have_are_compared(made_up: Path) -> None:
    runs = [
        write_heard(made_up, make_run("x", "x", 0, None), {}),
        write_heard(made_up, make_run("y", "y", 0, None), {"ann0": "NO"}),
        write_heard(made_up, make_run("y1", "y", 1, None), {"ann0": "", "ann1": ""}),
        write_heard(made_up, make_run("z1", "z", 1, None), {}),
    ]
    found = score_study(made_up, "x", runs)
    assert [(variant["name"], variant["wer"]) for variant in found["variants"]] == [
        ("x", 0.0),
        ("y", 5 / 16),
        ("z", 0.0),
    ]
    (comparison,) = found["comparisons"]
    assert comparison["system"] == "y" and comparison["difference"] == pytest.approx(1 / 8)


def test_a_changed_hypothesis_is_noticed(made_up: Path) -> None:
    runs = [write_heard(made_up, make_run(name, name, 0, None), {"ann0": "NO"}) for name in ("x", "y")]
    for run in runs:
        run["decoding_config"] = {"beam": 10}
    found = score_study(made_up, "x", runs)
    interval = found["variants"][0]["interval"]  # all utterances have two words
    lengths = {
        name: {"2": {"wer": 1 / 8, "interval": interval, "errors": 1, "words": 8}} for name in ("x", "y")
    }
    published = {"baseline": "x", "lengths": {"by words, beam 10": lengths}, **found}
    (made_up / "study.json").write_text(json.dumps(published))
    assert find_wrong_figures(made_up) == []
    write_heard(made_up, runs[1], {})
    wrong = ["runs", "variants", "comparisons", "by words, beam 10"]
    assert find_wrong_figures(made_up) == wrong


def test_the_first_validation_below_a_rate(tmp_path: Path) -> None:
    lines = [
        {"kind": "train", "step": 1, "loss": 1.0},
        *({"kind": "dev", "step": 10 * n, "wer": wer} for n, wer in enumerate((0.9, 0.4, 0.6, 0.15))),
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = find_rates(read_validations(tmp_path / "log.jsonl"))
    assert {rate: line["step"] for rate, line in found.items()} == {"0.5": 10, "0.2": 30}


def test_the_page_of_fsdd_says_what_wide_augmentation_is_worth() -> None:
    page = (ROOT / "recipes/fsdd/README.md").read_text(encoding="utf-8")
    folder = ROOT / "recipes/fsdd/studies/wide_augmentation"
    references, hypotheses = read_table(folder / TABLE)
    rows = read_rows(page.split("### More updates, wider speeds, noise")[1])
    for column, name in (
        (0, "transformer"),
        (2, "ctc_lstm"),
        (4, "five_speeds.transformer"),
        (5, "five_speeds.ctc_lstm"),
    ):
        heard = hypotheses[f"{name}-seed-0.left_out"]
        for speaker, shown in score_left_out(references, heard):
            assert rows[speaker][column] == shown


def test_the_page_of_fsdd_says_what_whisper_makes_of_voices_left_out() -> None:
    page = (ROOT / "recipes/fsdd/README.md").read_text(encoding="utf-8")
    folder = ROOT / "recipes/fsdd/studies/whisper_tiny"
    rows = read_rows(page.split("### Whisper tiny, trained further")[1])
    references, hypotheses = read_table(folder / TABLE)
    for column, name in ((0, "all_weights"), (2, "lora")):
        scores = list(score_left_out(references, hypotheses[f"{name}-seed-0.left_out"]))
        assert len(scores) == 7
        assert all(rows[speaker][column] == shown for speaker, shown in scores)


def read_rows(part: str) -> dict[str, list[str]]:
    """The tables up to the next heading: what stands behind the first column, by what stands in it."""
    lines = re.findall(r"^\|(.*)\|$", part.split("\n### ")[0], re.M)
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    return {row[0]: row[1:] for row in cells}


def score_left_out(references: Texts, heard: Texts) -> Iterator[tuple[str, str]]:
    """WER of each speaker, and of all with its interval, as pages show them."""
    for speaker in (*sorted({str(fields["speaker"]) for fields in references.values()}), "all"):
        own = {id: f for id, f in references.items() if speaker in (f["speaker"], "all")}
        found = score_texts(own, {id: heard[id] for id in own})
        shown = f"{100 * found.error_rate:.2f}"
        if speaker == "all":
            assert found.interval is not None
            shown += f" ({100 * found.interval.low:.2f} to {100 * found.interval.high:.2f})"
        yield speaker, shown
