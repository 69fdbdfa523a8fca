"""A recipe from end to end: evaluated, compared, reported and published; the report as text."""

from __future__ import annotations

import gzip
import html.parser
import json
import logging
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import soundfile
import torch
from recipe_examples import COMMON, SYSTEMS, make_experiment, write_conf, write_tones_recipe

from asr.cli import main
from asr.errors import UserError
from asr.recipe import (
    SMOKE_WARNING,
    TABLE,
    draw_curves,
    format_html,
    format_markdown,
    read_table,
    read_validations,
    run_recipe,
    score_results,
    tabulate_comparisons,
    write_table,
)
from asr.scoring import count_word_errors, score


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, tones: Path) -> Path:
    """A folder in which the recipe of tones has been run once, with everything in `all`."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("done")
    recipes_dir = write_tones_recipe(folder, tones)
    run_recipe(make_experiment(recipes_dir, output_dir=folder / "all"))
    return folder


@pytest.fixture
def copy(done: Path, tmp_path: Path) -> Path:
    """One that a test may change; its trainings count as done elsewhere, so it is run from the recipes there."""
    shutil.copytree(done, tmp_path, dirs_exist_ok=True)
    return tmp_path


def read_results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "all" / "runs" / "results" / "results.json").read_text())
    return found


class Page(html.parser.HTMLParser):
    """Links and pictures of a page, and whether its tags are closed in their order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [
            str(value) for name, value in attrs if name in ("src", "href") and tag in ("img", "audio")
        ]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


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
    assert set(results["runs"][0]["ways"]["test"]) == {"ctc_greedy", "ctc_beam"}
    assert set(results["runs"][1]["ways"]["test"]) == {
        *("ctc_greedy", "ctc_beam", "attention", "rescoring", "joint")
    }


def test_dev_chooses_the_way_of_decoding(done: Path) -> None:
    for run in read_results(done)["runs"]:
        dev = {way: rates["wer"] for way, rates in run["ways"]["dev"].items()}
        assert dev[run["decoding"]] == min(dev.values())
        assert run["wer"] == run["ways"]["test"][run["decoding"]]["wer"]


def test_the_figures_are_those_of_the_hypotheses(done: Path) -> None:
    with gzip.open(done / "all" / "runs" / "results" / "test.jsonl.gz", "rt") as file:
        lines = list(map(json.loads, file))
    references = {line["id"]: line["text"] for line in lines}
    assert len(references) == 6
    for run in read_results(done)["runs"]:
        heard = {line["id"]: line[f"{run['name']}.{run['decoding']}"] for line in lines}
        assert run["wer"] == count_word_errors((references[name], heard[name]) for name in references).rate


def test_further_references_count(copy: Path) -> None:
    """One utterance of the recipe has two; with what was heard as the second, it has no error."""
    results = read_results(copy)
    rule = "References: up to 2 of an utterance, compared with the one that gives the fewest errors."
    for name in ("report.md", "report.html"):
        assert rule in (copy / "all" / "runs" / "report" / name).read_text()
    folder = copy / "all" / "runs" / "results"
    references, hypotheses = read_table(folder / TABLE)
    ((first, fields),) = ((id, own) for id, own in references.items() if "reference_2" in own)
    assert results["test"]["references"] == 2 and fields["reference_2"] == fields["text"]
    run = results["runs"][0]
    heard = hypotheses[f"{run['name']}.{run['decoding']}"]
    references[first]["reference_2"] = heard[first]["text"]
    write_table(folder / TABLE, references, hypotheses)
    del references[first], heard[first]
    pairs = [(references[id]["text"], heard[id]["text"]) for id in references]
    assert (
        score_results(folder, "ctc_lstm", results["runs"])["runs"][0]["errors"]
        == count_word_errors(pairs).errors
    )


def test_the_page_is_whole_and_its_links_lead_to_files(done: Path) -> None:
    folder = done / "all" / "runs" / "report"
    text = (folder / "report.html").read_text()
    page = Page(text)
    assert page.open == []
    for source in page.sources:
        assert not source.startswith(("/", "http", "..")), "the folder can be moved"
        assert (folder / unquote(source)).stat().st_size > 100
    assert sum(source.endswith(".png") for source in page.sources) == 3, "three maps of the one decoder"
    recordings = [source for source in page.sources if source.endswith(".wav")]
    assert recordings and soundfile.info(folder / unquote(recordings[0])).duration > 0.3
    for part in ("<svg", "Learning curves", "with guided attention", "ctc_lstm", "asr recipe run tones"):
        assert part in text
    assert "SMOKE" not in text


def test_the_table_has_the_figures(done: Path) -> None:
    text = (done / "all" / "runs" / "report" / "report.md").read_text()
    for run in read_results(done)["runs"]:
        row = next(
            line for line in text.splitlines() if line.startswith(f"| {run['name']} | {100 * run['wer']:.2f}")
        )
        assert f"{100 * run['interval'][0]:.2f} to {100 * run['interval'][1]:.2f}" in row
        low, high = run["cer_interval"]
        assert (
            f"| {100 * run['cer']:.2f} | {100 * low:.2f} to {100 * high:.2f} |" in row
            and f"{run['parameters'] / 1e6:.2f}M" in row
        )
    assert "## Against ctc_lstm" in text and "| transformer | ctc_lstm | " in text


def test_nothing_is_done_twice(done: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = {path: path.stat().st_mtime_ns for path in (done / "all").rglob("*") if path.is_file()}
    caplog.set_level(logging.INFO)
    run_recipe(make_experiment(done / "recipes", output_dir=done / "all"))
    assert {path: path.stat().st_mtime_ns for path in (done / "all").rglob("*") if path.is_file()} == before
    said = [record.getMessage() for record in caplog.records if record.name == "asr.recipe.tasks"]
    assert len(said) == 10 and all(": skipped, " in line for line in said)


@pytest.mark.slow
def test_one_system_again_is_compared_with_the_other(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    """--only trains one; what is up to date of the others stays in the comparison, what is not is left out."""
    folder = copy / "all"
    experiment = make_experiment(copy / "recipes", output_dir=folder, only=("transformer",))
    run_recipe(experiment, "compare")
    assert [run["name"] for run in read_results(copy)["runs"]] == ["ctc_lstm", "transformer"]
    (folder / "runs" / "ctc_lstm" / ".evaluate.done").unlink()
    caplog.set_level(logging.INFO)
    run_recipe(experiment, "compare")
    assert [run["name"] for run in read_results(copy)["runs"]] == ["transformer"]
    assert "left out of the comparison, since evaluate ctc_lstm: it has not been done" in caplog.text
    run_recipe(experiment, "report")
    assert "Against" not in (folder / "runs" / "report" / "report.md").read_text()


def test_publishing_is_asked_for(copy: Path) -> None:
    published = copy / "recipes" / "tones" / "results"
    assert not published.exists()
    (published).mkdir()
    (published / "notes.md").write_text("mine")
    run_recipe(make_experiment(copy / "recipes", output_dir=copy / "all", publish=True))
    names = {path.name for path in published.iterdir()}
    assert names == {"results.json", TABLE, "report.md", "notes.md"}
    assert (published / "results.json").read_text() == (copy / "all/runs/results/results.json").read_text()
    assert str(copy) not in (published / "results.json").read_text(), "no private paths"


def test_systems_scored_by_other_rules_are_not_compared(copy: Path) -> None:
    text = COMMON.format(name="transformer") + SYSTEMS["transformer"] + "text: {scoring: [lowercase]}\n"
    write_conf(copy, "transformer", text)
    experiment = make_experiment(copy / "recipes", output_dir=copy / "all")
    with pytest.raises(UserError, match=r"ctc_lstm.yaml and .*transformer.yaml: their references differ"):
        run_recipe(experiment)


def test_an_unreadable_recording_stops_the_evaluation(copy: Path) -> None:
    manifest = copy / "all" / "test.jsonl"
    lines = manifest.read_text().splitlines()
    record = json.loads(lines[0]) | {"audio": "gone.wav"}
    manifest.write_text("\n".join([json.dumps(record), *lines[1:]]) + "\n")
    experiment = make_experiment(copy / "recipes", output_dir=copy / "all", only=("ctc_lstm",))
    with pytest.raises(
        UserError, match=r"test.jsonl: 1 utterances cannot be read, so nothing is scored; dev-0: "
    ):
        run_recipe(experiment, "evaluate")


def test_smoke_results_cannot_be_mistaken(tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                          capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    recipes_dir = str(write_tones_recipe(tmp_path, tones))
    arguments = ["recipe", "run", "tones", "--smoke", "--only", "ctc_lstm", "--recipes-dir", recipes_dir]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert SMOKE_WARNING in shown and "# tones (smoke test)" in shown
    assert SMOKE_WARNING in Path("runs/tones-smoke/report/report.html").read_text()
    assert json.loads(Path("runs/tones-smoke/results/results.json").read_text())["smoke"] is True
    assert not Path("runs/tones").exists() and not Path("data/tones").exists()
    assert main([*arguments, "--publish"]) == 2
    assert "results of a smoke run mean nothing" in capsys.readouterr().err


# --- text of the report -------------------------------------------------------------------------


def make_run(name: str, system: str, seed: int, wer: float) -> dict[str, Any]:
    origin = {"command": "asr recipe run x", "commit": "abc", "machine": "a | b", "device": "cpu (1 thread)",
              "asr": "1", "torch": "2", "numpy": "3", "python": "4"}  # fmt: skip
    return {
        "name": name, "system": system, "seed": seed, "wer": wer, "interval": [wer / 2, wer * 2], "cer": wer / 3, "cer_interval": [wer / 4, wer],
        "decoding": "joint", "parameters": 1_234_567, "real_time_factor": 0.05, "guided_attention": False,
        "training": {"seconds": 4000.0, "updates": 1200, **origin}, "evaluation": origin,
        "ways": {"dev": {"joint": {"wer": wer}}, "test": {"joint": {"wer": wer, "real_time_factor": 0.05}}},
    }  # fmt: skip


RESULTS = {
    "corpus": "x<y", "smoke": False, "command": "asr recipe run x", "baseline": "a",
    "test": {"utterances": 130, "words": 773, "resampled_by": "speaker"},
    "runs": [make_run("a", "a", 0, 0.2), make_run("b", "b", 0, 0.1), make_run("b-seed-1", "b", 1, 0.15)],
    "comparisons": [{"system": "<b>", "baseline": "a", "difference": -0.1, "interval": None, "p": 0.012, "verdict": "better"}],
}  # fmt: skip


def test_markdown() -> None:
    lines = format_markdown(RESULTS).splitlines()
    assert (
        "| b | 10.00 | 5.00 to 20.00 | 3.33 | 2.50 to 10.00 | joint | 1.23M | 67 min, 1,200 updates | 0.050 |"
        in lines
    )
    assert "| b, mean of 2 seeds | 12.50 | 10.00 to 15.00 |  |  |  |  |  |  |" in lines
    rows = [line for line in lines if line.startswith("| ")]
    assert [row.split(" ")[1] for row in rows[1:4]] == ["b", "b-seed-1", "a"], "the best first"
    assert all(row.count("|") == rows[0].count("|") for row in rows[:5]), "no cell breaks the table"


def test_html_escapes_what_it_shows(tmp_path: Path) -> None:
    (row,) = score({"u<1>": "A & E F B"}, {"u<1>": "A E F <C> D"}).worst()
    maps = {"u<1>": {"a": tmp_path / "maps" / "u<1>.png"}}
    text = format_html(
        RESULTS, "<svg></svg>", maps, {"a": [(row, tmp_path / "audio" / "u 1.wav")], "b": []}, tmp_path
    )
    page = Page(text)
    assert page.open == [] and page.sources == ["maps/u%3C1%3E.png", "audio/u%201.wav"]
    assert "<h1>x&lt;y</h1>" in text and "&lt;b&gt;</td>" in text and "without guided attention" in text
    assert "A <del>&amp;</del> E F <ins>&lt;C&gt;</ins> <ins>D</ins>" in text and "No errors." in text


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


# --- curves -------------------------------------------------------------------------------------


def test_curves_are_drawn_from_logs(tmp_path: Path) -> None:
    lines = [
        {"step": 1, "kind": "train", "loss": 3.0},
        {"step": 2, "kind": "dev", "wer": 0.9, "audio_hours": 0.5},
        {"step": 4, "kind": "dev", "wer": 0.4, "audio_hours": 1.0},
        {"step": 4, "kind": "model", "wer": 0.3},
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_validations(log) == lines[1:3]
    logs = {"good": log, "not yet begun": tmp_path / "none"}
    svg = draw_curves(logs)
    assert svg == draw_curves(logs), "the same each time"
    for part in ("good", "updates", "hours of audio"):
        assert part in svg
    assert svg.startswith("<svg") and "not yet begun" not in svg
