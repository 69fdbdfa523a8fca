"""A recipe from end to end: evaluated, compared, reported and published; the report as text."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from recipe_examples import make_experiment, write_tones_recipe

from asr.cli import main
from asr.errors import UserError
from asr.recipe import run_recipe
from asr.recipe.report import SMOKE_WARNING, TABLE, tabulate_comparisons
from asr.recipe.scores import read_table, score_runs, write_table
from asr.scoring.counting import count_word_errors


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, tones: Path) -> Path:
    """A folder in which the recipe of tones has been run once, with everything in `all`."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("done")
    recipes_dir = write_tones_recipe(folder, tones)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asr.train.monitor.draw_learning_curve", lambda path, panels: path.touch())
        run_recipe(make_experiment(recipes_dir, output_dir=folder / "all"))
    return folder


@pytest.fixture
def copy(done: Path, tmp_path: Path) -> Path:
    """One that a test may change; its trainings count as done elsewhere, so it is run from the recipes there."""
    shutil.copytree(done, tmp_path, dirs_exist_ok=True)
    return tmp_path


def read_results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "all" / "runs" / "report" / "results.json").read_text())
    return found


def test_results_say_all_that_is_needed_to_repeat_them(done: Path) -> None:
    results = read_results(done)
    assert results["corpus"] == "tones" and results["smoke"] is False
    assert [run["name"] for run in results["runs"]] == ["ctc_lstm", "transformer"]
    for run in results["runs"]:
        assert run["seed"] == 0 and run["parameters"] > 1000 and run["real_time_factor"] > 0
        assert run["training"]["updates"] == 4 and run["training"]["seconds"] > 0
        assert {"command", "commit", "machine", "torch", "python"} <= run["training"].keys() & run[
            "evaluation"
        ].keys()
    ways = [set(run["methods"]["test"]) for run in results["runs"]]
    assert ways[0] == {"ctc_greedy", "ctc_beam"} and ways[1] == ways[0] | {"attention", "rescoring", "joint"}
    names = {path.name for path in (done / "all" / "runs" / "report").glob("[!.]*")}
    assert names == {"report.md", "results.json", TABLE}
    for run in results["runs"]:
        log = (done / "all" / "runs" / run["name"] / "log.jsonl").read_text()
        dev = [line for line in map(json.loads, log.splitlines()) if line["kind"] == "dev"]
        assert run["dev_curve"] == {str(line["step"]): line["wer"] for line in dev} != {}
    assert str(done) not in json.dumps(results), "no private paths"


def test_dev_chooses_the_way_of_decoding(done: Path) -> None:
    for run in read_results(done)["runs"]:
        dev = {way: rates["wer"] for way, rates in run["methods"]["dev"].items()}
        assert dev[run["decoding"]] == min(dev.values())
        assert run["wer"] == run["methods"]["test"][run["decoding"]]["wer"]


def test_further_references_count(copy: Path) -> None:
    """One utterance of the recipe has two; with what was heard as the second, it has no error."""
    results = read_results(copy)
    rule = "References: up to 2 of an utterance, compared with the one that gives the fewest errors."
    assert rule in (copy / "all" / "runs" / "report" / "report.md").read_text()
    folder = copy / "all" / "runs" / "report"
    references, hypotheses = read_table(folder / TABLE)
    ((first, fields),) = ((id, own) for id, own in references.items() if "reference_2" in own)
    assert results["test"]["references"] == 2 and fields["reference_2"] == fields["text"]
    run = results["runs"][0]
    heard = hypotheses[f"{run['name']}.{run['decoding']}"]
    references[first]["reference_2"] = heard[first]
    write_table(folder / TABLE, references, hypotheses)
    del references[first], heard[first]
    pairs = [(references[id]["text"], heard[id]) for id in references]
    fresh = score_runs(folder / TABLE, "ctc_lstm", results["runs"])
    assert fresh["runs"][0]["errors"] == count_word_errors(pairs).errors


def test_the_report_is_whole(done: Path) -> None:
    folder = done / "all" / "runs" / "report"
    page = (folder / "report.md").read_text()
    for part in ("# tones\n", "asr recipe run tones`: ", "| transformer | ctc_lstm | "):
        assert part in page
    assert "SMOKE" not in page
    headings = re.findall(r"^## (.*)", page, re.MULTILINE)
    assert headings == ["Comparison with ctc_lstm", "Runs", "Notes"], "results first"
    assert f"Reported on {read_results(done)['date']}. Configs: [ctc_lstm](" in page
    links = dict(re.findall(r"\[([^\]]*)\]\(([^)]*)\)", page))
    assert len(links) == 2 and all((folder / path).is_file() for path in links.values())
    assert (folder / links["transformer"]).samefile(done / "conf" / "tones" / "transformer.yaml")
    for run in read_results(done)["runs"]:
        for rate, (low, high) in ((run["wer"], run["interval"]), (run["cer"], run["cer_interval"])):
            assert f"| {100 * rate:.2f} | {100 * low:.2f} to {100 * high:.2f} |" in page


def test_nothing_is_done_twice(done: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = {path: path.stat().st_mtime_ns for path in (done / "all").rglob("*") if path.is_file()}
    caplog.set_level(logging.INFO, "asr.recipe")
    run_recipe(make_experiment(done / "recipes", output_dir=done / "all"))
    assert {path: path.stat().st_mtime_ns for path in (done / "all").rglob("*") if path.is_file()} == before
    assert len(caplog.messages) == 6 and all(": skipped, " in line for line in caplog.messages)


def test_what_is_out_of_date_is_not_compared(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By `--stage report` alone; the report has the systems that the command names."""
    folder = copy / "all"
    run_recipe(make_experiment(copy / "recipes", output_dir=folder, only=("transformer",)), "report")
    assert [run["name"] for run in read_results(copy)["runs"]] == ["transformer"]
    (folder / "runs" / "transformer" / "evaluation" / "test.jsonl.gz").unlink()
    caplog.set_level(logging.INFO)
    run_recipe(make_experiment(copy / "recipes", output_dir=folder), "report")
    assert [run["name"] for run in read_results(copy)["runs"]] == ["ctc_lstm"]
    assert "left out of the comparison: transformer: missing: " in caplog.text
    assert "Comparison" not in (folder / "runs" / "report" / "report.md").read_text()


def test_systems_with_other_rules_for_texts_are_not_compared(copy: Path) -> None:
    table = copy / "all" / "runs" / "transformer" / "evaluation" / "test.jsonl.gz"
    references, hypotheses = read_table(table)
    write_table(table, {id: {**own, "text": "OTHER"} for id, own in references.items()}, hypotheses)
    with pytest.raises(UserError, match=r"their references differ after text\.scoring"):
        run_recipe(make_experiment(copy / "recipes", output_dir=copy / "all"), "report", force=True)


def test_an_unreadable_recording_stops_the_evaluation(copy: Path) -> None:
    manifest = copy / "all" / "test.jsonl"
    lines = manifest.read_text().splitlines()
    record = json.loads(lines[0]) | {"audio": "gone.wav"}
    manifest.write_text("\n".join([json.dumps(record), *lines[1:]]) + "\n")
    experiment = make_experiment(copy / "recipes", output_dir=copy / "all", only=("ctc_lstm",))
    message = r"test.jsonl: 1 utterances cannot be read, so nothing is scored; dev-0: "
    with pytest.raises(UserError, match=message):
        run_recipe(experiment, "evaluate")


def test_smoke_results_cannot_be_mistaken(tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                          capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("asr.train.monitor.draw_learning_curve", lambda path, panels: path.touch())
    recipes_dir = str(write_tones_recipe(tmp_path, tones))
    arguments = ["recipe", "run", "tones", "--smoke", "--only", "ctc_lstm", "--recipes-dir", recipes_dir]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert SMOKE_WARNING in shown and "# tones (smoke test)" in shown
    assert json.loads(Path("runs/tones-smoke/report/results.json").read_text())["smoke"] is True
    assert not Path("runs/tones").exists() and not Path("data/tones").exists()


@pytest.mark.parametrize(
    ("first", "second", "verdict", "sign"), [(0.02, 0.04, "better", "-"), (0.05, 0.03, "worse", "+")]
)
def test_a_difference_has_the_sign_of_its_interval(
    first: float, second: float, verdict: str, sign: str
) -> None:
    ends = [first - second - 0.01, first - second + 0.01]
    found = {"system": "new", "baseline": "old", "difference": first - second, "interval": ends}
    table = tabulate_comparisons({"comparisons": [{**found, "p": 0.00001, "verdict": verdict}]})
    low, high = {"-": ("-3.00", "-1.00"), "+": ("+1.00", "+3.00")}[sign]
    assert table[1] == ("new", "old", f"{sign}2.00", f"{low} to {high}", "< 0.0001", verdict)
