"""Published results: figures follow from the hypotheses next to them, and all pages and commands agree on them."""

from __future__ import annotations

import functools
import json
import re
import runpy
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from asr.cli import main
from asr.recipe import round_figures
from asr.recipe.report import TABLE
from asr.recipe.scores import Texts, describe_score, pool, read_table, score_runs, setup_name, write_table
from asr.scoring.result import percent

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
PUBLISHED = sorted(RECIPES.rglob("results.json"))
NAMES = ["-".join(path.relative_to(RECIPES).parts[:-1]) for path in PUBLISHED]


def read_json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def score_lengths(tables: list[Any], runs: list[dict[str, Any]], beam: int) -> dict[str, Any]:
    """Score each variant on the utterances of each number of words, from the tables of all splits."""
    references = {id: fields for own, _ in tables for id, fields in own.items()}
    hypotheses: dict[str, Any] = defaultdict(dict)
    for run in runs:
        suffix = "" if beam == run["decoding_config"]["beam"] else f"_beam_{beam}"
        for _, columns in tables:
            hypotheses[run["name"]] |= columns[setup_name(run["name"] + suffix, run["decoding"])]
    by_length: dict[int, Any] = defaultdict(dict)
    for id, fields in references.items():
        by_length[len(fields["text"].split())][id] = fields
    variants = {run["variant"]: [own for own in runs if own["variant"] == run["variant"]] for run in runs}
    return {
        name: {str(n): describe_score(pool(own, by_length[n], hypotheses)) for n in sorted(by_length)}
        for name, own in variants.items()
    }


@functools.cache
def read_once(path: Path) -> Any:
    return read_table(path)


def find_wrong_figures(folder: Path) -> list[str]:
    """What a fresh scoring of the hypotheses in `folder` finds otherwise than results.json says."""
    published = round_figures(read_json(folder / "results.json"))
    fresh = round_figures(score_runs(folder / TABLE, published["baseline"], published["runs"]))
    wrong = [name for name in fresh if fresh[name] != published[name]]
    tables = [read_table(folder / TABLE)]
    others = sorted(folder.parent.glob("*.jsonl.gz")) if "lengths" in published else ()
    for path in others:  # longer strings, with columns STUDY.RUN.SETUP
        references, columns = read_once(path)
        prefix = f"{folder.name}."
        if own := {
            name.removeprefix(prefix): texts for name, texts in columns.items() if name.startswith(prefix)
        }:
            tables.append((references, own))
    for title, lengths in published.get("lengths", {}).items():
        found = score_lengths(tables, published["runs"], int(title.rpartition(" ")[2]))
        wrong += [title] * (round_figures(found) != lengths)
    return wrong


@pytest.mark.parametrize("path", PUBLISHED, ids=NAMES)
def test_published_figures_equal_a_fresh_scoring(path: Path) -> None:
    assert find_wrong_figures(path.parent) == []


def test_published_rates_of_meetings_equal_a_fresh_scoring() -> None:
    tool = runpy.run_path(str(RECIPES.parent / "tools" / "score_meetings.py"))
    score_rows, views = tool["score_rows"], tool["VIEWS"]
    for path in sorted((RECIPES / "conversations" / "results").glob("*.rttm.json.gz")):
        published = read_json(path.with_name(path.name.replace(".rttm.json.gz", ".json")))
        for collar, rows in published["collars"].items():
            assert json.loads(json.dumps(score_rows(path, float(collar)))) == rows, path.name
        for title, rows in published.get("views", {}).items():
            found = score_rows(path, tool["COLLARS"][-1], **views[title])
            assert json.loads(json.dumps(found)) == rows, (path.name, title)


@pytest.mark.parametrize("path", PUBLISHED, ids=NAMES)
def test_published_reports_have_the_figures(path: Path) -> None:
    """Of each system WER, CER and their intervals, of each comparison difference and interval; and its pictures."""
    results, page = read_json(path), path.with_name("report.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    for system in results["systems"]:
        shown = [percent(rate) for rate in (system["wer"], *system["interval"], system["cer"])]
        own = [row for row in rows if row.startswith(f"| {system['name']} | ")]
        assert any(all(figure in row for figure in shown) for row in own), system["name"]
    for found in results["comparisons"]:
        shown = [f"{100 * rate:+.2f}" for rate in (found["difference"], *found["interval"])]
        row = next(row for row in rows if row.startswith(f"| {found['system']} | {found['baseline']} | "))
        assert " to ".join(shown[1:]) in row and f"| {shown[0]} |" in row and found["verdict"] in row
    for name in re.findall(r"!\[.*\]\((.*)\)", page):
        assert path.with_name(name).stat().st_size > 1000


@pytest.mark.parametrize("path", PUBLISHED, ids=NAMES)
def test_published_results_are_whole_meant_and_small(path: Path) -> None:
    results = read_json(path)
    corpus, study = results["corpus"], results.get("study")
    assert results["smoke"] is False and path.is_relative_to(RECIPES / corpus)
    commands = (f"asr recipe run {corpus}",)
    if study:
        commands = (
            f"python tools/study.py recipes/{corpus}/{study}.yaml",
            f"asr recipe study {corpus}/{study}",
        )
    for run in results["runs"]:
        for origin in (run["training"], run["evaluation"]):
            assert origin["command"].startswith(commands) and origin["commit"] and origin["machine"]
    for text in (path.read_text(encoding="utf-8"), path.with_name("report.md").read_text(encoding="utf-8")):
        assert "/tmp" not in text and "/home" not in text and "/work" not in text
    assert sum(file.stat().st_size for file in path.parent.iterdir()) < 2_500_000


RESULTS = runpy.run_path(str(RECIPES.parent / "tools" / "make_results.py"))


@pytest.fixture(scope="module")
def page() -> str:
    return str(RESULTS["make_page"]())


def test_the_page_of_all_results_follows_from_the_files(page: str) -> None:
    message = "make it again: python tools/make_results.py"
    assert (RECIPES / "RESULTS.md").read_text(encoding="utf-8") == page, message


def test_recipes_with_published_hypotheses_say_so(capsys: pytest.CaptureFixture[str], page: str) -> None:
    """`asr recipe list`, recipes/README.md and RESULTS.md name the same recipes."""
    tables = [*RECIPES.glob("*/**/test*.jsonl.gz"), *RECIPES.glob("*/results/*.rttm.json.gz")]
    published = {path.relative_to(RECIPES).parts[0] for path in tables}
    assert main(["recipe", "list", "--recipes-dir", str(RECIPES)]) == 0
    listed = re.findall(r"^(\w+) .*?  (yes|no) ", capsys.readouterr().out, re.MULTILINE)
    assert {name for name, has_results in listed if has_results == "yes"} == published
    readme = (RECIPES / "README.md").read_text(encoding="utf-8")
    assert readme == RESULTS["renew_list"](readme), "make it again: python tools/make_results.py"
    assert {name for name, _ in listed if f"| {name} |" in page or f"({name}/README.md)" in page} == published


def test_the_readme_has_published_rates(page: str) -> None:
    """Each WER with its interval, of any number of digits, is a row of the same corpus in RESULTS.md."""
    published = re.findall(r"^\| (\w+) \| .*? \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|", page, re.MULTILINE)
    readme = (RECIPES.parent / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*?) ?\| .* \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|", readme, re.MULTILINE)
    corpus, count = "", 0
    for title, *figures in rows:
        if link := re.search(r"recipes/(\w+)/", title):
            corpus = link[1]
        own = [rates for name, *rates in published if name == corpus]
        count += any(all(map(is_rounded, figures, rates)) for rates in own)
    assert count == len(rows) >= 7, rows


def is_rounded(shown: str, exact: str) -> bool:
    digits = len(shown.partition(".")[2])
    return abs(float(shown) - float(exact)) <= 0.5 * 10**-digits + 1e-9


# --- figures by hand ----------------------------------------------------------------------------


def make_run(name: str, variant: str, seed: int = 0, left_out: str | None = None) -> dict[str, Any]:
    own = {"name": name, "variant": variant, "seed": seed, "left_out": left_out, "decoding": "joint"}
    return own | {"decoding_config": {"beam": 10}, "methods": {"test": {"joint": {}}}}


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """Two speakers with two utterances each, of two words."""
    said = {f"{who}{n}": {"text": "YES NO", "speaker": who} for who in ("ann", "bob") for n in (0, 1)}
    write_table(tmp_path / TABLE, said, {})
    return tmp_path


def write_heard(folder: Path, run: dict[str, Any], texts: dict[str, str]) -> dict[str, Any]:
    references, hypotheses = read_table(folder / TABLE)
    heard = {id: texts.get(id, "YES NO") for id in references}
    write_table(folder / TABLE, references, hypotheses | {f"{run['name']}.joint": heard})
    return run


def test_figures_of_systems(tmp_path: Path) -> None:
    """By hand: 5 deletions and 1 substitution among 20 words; 15 and 1 x (Y E S: 3) of 60 characters."""
    hypotheses: dict[str, Texts] = {}
    runs = [make_run(name, name) for name in ("ctc_lstm", "transformer")]
    for name, wrong, count in (("ctc_lstm", "YES", 5), ("transformer", "NO NO", 1)):
        hypotheses[f"{name}.joint"] = {f"u{n}": wrong if n < count else "YES NO" for n in range(10)}
        hypotheses[f"{name}.attention"] = {f"u{n}": "YES" for n in range(10)}
    write_table(tmp_path / TABLE, {f"u{n}": {"text": "YES NO"} for n in range(10)}, hypotheses)
    for run in runs:
        run["methods"]["test"]["attention"] = {"wer": 0.1}
    results = score_runs(tmp_path / TABLE, "ctc_lstm", runs)
    figures = [(run["errors"], run["words"], run["wer"], run["cer"]) for run in results["runs"]]
    assert figures == [(5, 20, 0.25, 15 / 60), (1, 20, 0.05, 3 / 60)]
    for run, system in zip(results["runs"], results["systems"], strict=True):
        for rate, ends in (("wer", "interval"), ("cer", "cer_interval")):
            assert 0 <= run[ends][0] < run[rate] < run[ends][1] <= 1
            assert (system[rate], system[ends]) == (run[rate], run[ends])
        assert run["methods"]["test"]["attention"] == {"wer": 0.5, "cer": 0.5}
    assert results["test"] == {"utterances": 10, "words": 20, "resampled_by": "utterance"}
    (comparison,) = results["comparisons"]
    assert (comparison["system"], comparison["baseline"]) == ("transformer", "ctc_lstm")
    assert comparison["difference"] == pytest.approx(-0.2) and 0 < comparison["p"] < 1


def test_figures_of_folds(made_up: Path) -> None:
    """By hand: each run counts for the two utterances of the speaker whom it does not know."""
    ann, bob = {"ann0": "YES", "bob0": "NO", "bob1": "NO"}, {"bob0": "NO NO", "bob1": "NO NO NO"}
    runs = [
        write_heard(made_up, make_run("x_ann", "x", 0, "ann"), ann),
        write_heard(made_up, make_run("x_bob", "x", 0, "bob"), bob),
        write_heard(made_up, make_run("y_ann", "y", 0, "ann"), {}),
        write_heard(made_up, make_run("y_bob", "y", 0, "bob"), {"ann0": "", "bob0": "MAYBE"}),
    ]
    found = score_runs(made_up / TABLE, "y", runs)
    assert [(run["errors"], run["words"]) for run in found["runs"]] == [(1, 4), (3, 4), (0, 4), (2, 4)]
    known = [(run["known_speakers"]["errors"], run["known_speakers"]["words"]) for run in found["runs"]]
    assert known == [(2, 4), (0, 4), (0, 4), (2, 4)]
    assert [(v["name"], v["errors"], v["words"]) for v in found["systems"]] == [("x", 4, 8), ("y", 2, 8)]
    assert found["test"] == {"utterances": 4, "words": 8, "resampled_by": "speaker"}
    (comparison,) = found["comparisons"]
    assert (comparison["system"], comparison["baseline"]) == ("x", "y")
    assert comparison["difference"] == pytest.approx(0.25)


def test_only_seeds_that_both_have_are_compared(made_up: Path) -> None:
    runs = [
        write_heard(made_up, make_run("x", "x"), {}),
        write_heard(made_up, make_run("y", "y"), {"ann0": "NO"}),
        write_heard(made_up, make_run("y1", "y", 1), {"ann0": "", "ann1": ""}),
        write_heard(made_up, make_run("z1", "z", 1), {}),
    ]
    found = score_runs(made_up / TABLE, "x", runs)
    assert [(own["name"], own["wer"]) for own in found["systems"]] == [("x", 0.0), ("y", 5 / 16), ("z", 0.0)]
    (comparison,) = found["comparisons"]
    assert comparison["system"] == "y" and comparison["difference"] == pytest.approx(1 / 8)


def test_the_table_keeps_texts_and_their_lack(tmp_path: Path) -> None:
    """Empty is not absent: a fold has texts of its own utterances alone."""
    references = {"a": {"text": "ja", "speaker": "x", "reference_2": "jo"}, "b": {"text": "", "speaker": "y"}}
    hypotheses = {"run.joint": {"a": ""}, "run.ctc": {"b": "\u2028ü"}}
    write_table(tmp_path / TABLE, references, hypotheses)
    assert read_table(tmp_path / TABLE) == (references, hypotheses)
