"""The studies of the recipes: every variant builds; tools/study.py reports what the runs have left."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from recipe_examples import COMMON, SYSTEMS, make_job, write_conf, write_tones_recipe

from asr.config import load_config
from asr.errors import UserError
from asr.recipe.results import read_texts, write_texts
from asr.recipe.stages import run_recipe
from asr.run import RunConfig

ROOT = Path(__file__).resolve().parents[1]
STUDIES = sorted((ROOT / "recipes").glob("*/*.yaml"))


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("study", ROOT / "tools" / "study.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["study"] = module  # pydantic looks the annotations up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_variant_of_a_study_builds(
    tool: ModuleType, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    study = load_config(tool.Study, path)
    assert study.corpus == path.parent.name
    configs = tool.load_variants(study)  # refuses sizes that differ
    assert len(configs) == len(study.variants)
    systems = {name: config.model_dump(exclude={"output_dir"}) for name, config in configs.items()}
    assert len({json.dumps(tree, default=str) for tree in systems.values()}) == len(systems), (
        "two are the same"
    )
    assert len({(config.train.steps, config.seed) for config in configs.values()}) == 1, "equal budgets"
    if study.parameters is not None:
        counts = [tool.count_parameters(config) for config in configs.values()]
        assert max(abs(count - study.parameters) for count in counts) <= 0.1 * study.parameters


def test_the_manifests_of_the_studies_are_those_of_the_recipe() -> None:
    """What fsdd's recipe writes, and nothing else."""
    recipe = (ROOT / "recipes" / "fsdd" / "recipe.py").read_text()
    for path in STUDIES:
        for name in re.findall(r"data/fsdd/(\w+)\.jsonl", path.read_text()):
            assert name == "train" or f'"{name}"' in recipe


def write_study(tmp_path: Path, text: str) -> Path:
    conf = write_conf(tmp_path, "ctc_lstm", COMMON.format(name="ctc_lstm") + SYSTEMS["ctc_lstm"])
    path = tmp_path / "study.yaml"
    path.write_text(f"corpus: tones\nconf: {conf}\n{text}")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("baseline: c\nvariants: {a: [seed=1], b: []}", "baseline = c is none of the variants: a, b"),
        (
            "baseline: a\nparameters: 1000000\nvariants: {a: [], b: []}",
            "variant a has [0-9,]+ parameters; expected 1,000,000 give or take 10%",
        ),
        (
            "baseline: a\nlengths_method: attention\nvariants: {a: [], b: []}",
            "lengths_method is about lengths, and there are none",
        ),
        ("baseline: a\nvariants: {a: [], b: [model.encoder.dims=3]}", "unknown key model.encoder.dims"),
    ],
)
def test_a_study_that_cannot_be(tool: ModuleType, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tool.load_variants(load_config(tool.Study, write_study(tmp_path, text)))


def test_parameters_are_counted(tool: ModuleType, tmp_path: Path) -> None:
    """Of one bidirectional layer of 16 cells, by hand."""
    write_study(tmp_path, "")
    config = RunConfig.load(tmp_path / "conf" / "tones" / "ctc_lstm.yaml")
    convolutions = (1 * 4 * 9 + 4) + (4 * 4 * 9 + 4)
    project = (5 * 4 * 16 + 16) + 2 * 16
    cells = 2 * (4 * 16 * (16 + 16) + 2 * 4 * 16) + 2 * 32
    head = 32 * tool.NUM_TOKENS + tool.NUM_TOKENS
    assert tool.count_parameters(config) == convolutions + project + cells + head


def test_a_report(tool: ModuleType, tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From training to tables; the texts of the longer utterances are made up, so that their rates are known."""
    monkeypatch.chdir(tmp_path)
    recipes_dir = write_tones_recipe(tmp_path, tones)
    job = make_job(recipes_dir, output_dir=tmp_path / "out", seeds=(0, 1), only=("ctc_lstm",))
    run_recipe(job)
    study = tool.Study(
        corpus="tones",
        conf="conf/tones/ctc_lstm.yaml",
        baseline="ctc_lstm",
        variants={"ctc_lstm": (), "transformer": ()},
        lengths=("long",),
        lengths_method="ctc_greedy",
    )
    references = {"x": {"text": "ONE TWO SIX TEN ONE"}, "y": {"text": "TEN TEN TEN TEN TEN"}}
    lines = [
        {"id": id, "audio": str(tones / "dev-0.wav"), "duration": 0.5, "text": fields["text"]}
        for id, fields in references.items()
    ]
    (job.data_dir / "long.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for run, wrong in (("ctc_lstm", "ONE TWO SIX TEN"), ("ctc_lstm-seed-1", "ONE TWO SIX TEN ONE")):
        texts = {"x": {"text": wrong}, "y": references["y"]}
        write_texts(job.runs_dir / run / "evaluation" / "long.ctc_greedy.jsonl", texts)

    scores = tool.measure_lengths(job, study)
    assert scores["ctc_lstm"][5].error_rate == pytest.approx(1 / 20), "one word of two runs of ten"
    test = read_texts(job.results_dir / "reference.jsonl")
    lengths = {len(fields["text"].split()) for fields in test.values()}
    assert set(scores["ctc_lstm"]) == lengths | {5}
    words = sum(scores["ctc_lstm"][length].counts.reference_length for length in lengths)
    assert words == 2 * sum(len(fields["text"].split()) for fields in test.values())

    tool.report(job, study, tmp_path / "report")
    table = (tmp_path / "report" / "table.md").read_text().splitlines()
    assert table[0].startswith("| variant | parameters | updates to 50% |") and len(table) == 3
    assert table[2].startswith("| ctc_lstm | ") and "never" in table[2]
    assert "5.00 " in (tmp_path / "report" / "lengths.md").read_text()
    svg = (tmp_path / "report" / "lengths.svg").read_text()
    assert svg.startswith("<svg") and "ctc_lstm" in svg and "words in the utterance" in svg
    tool.publish(job, study, tmp_path / "report", tmp_path / "published")
    assert {"results.json", "table.md", "lengths.svg", "ctc_lstm-seed-1.long.ctc_greedy.jsonl"} <= {
        path.name for path in (tmp_path / "published").iterdir()
    }


def test_the_first_validation_below_a_rate(tool: ModuleType, tmp_path: Path) -> None:
    lines = [
        {"kind": "train", "step": 1, "loss": 1.0},
        *({"kind": "dev", "step": 10 * n, "wer": wer} for n, wer in enumerate((0.9, 0.4, 0.6, 0.15))),
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = tool.find_validations(tmp_path / "log.jsonl")
    assert {rate: line["step"] for rate, line in found.items()} == {0.5: 10, 0.2: 30}
