"""Published results: their figures follow from the hypotheses beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asr.recipe import (
    TABLE,
    Texts,
    find_language_model,
    format_markdown,
    read_table,
    score_results,
    write_table,
)

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = sorted(ROOT.glob("recipes/*/results/results.json"))


def find_wrong_figures(folder: Path) -> list[str]:
    """What a fresh scoring of the hypotheses in `folder` finds otherwise than results.json says."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    fresh = score_results(folder, results["baseline"], results["runs"])
    return [
        name
        for name in ("test", "runs", "comparisons")
        if json.loads(json.dumps(fresh[name])) != results[name]
    ]


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.parts[-3])
def test_published_figures_equal_a_fresh_scoring(path: Path) -> None:
    assert find_wrong_figures(path.parent) == []


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.parts[-3])
def test_published_reports_say_what_the_results_say(path: Path) -> None:
    """And no more: what chose the settings is not in them."""
    page = path.with_name("report.md").read_text(encoding="utf-8")
    assert page == format_markdown(json.loads(path.read_text(encoding="utf-8")))
    assert "nothing was chosen" not in page


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.parts[-3])
def test_published_results_are_whole_and_meant(path: Path) -> None:
    results = json.loads(path.read_text(encoding="utf-8"))
    assert results["smoke"] is False
    for run in results["runs"]:
        for origin in (run["training"], run["evaluation"]):
            assert origin["command"].startswith(f"asr recipe run {results['corpus']}")
            assert origin["commit"] and origin["machine"]
    assert (
        "/tmp" not in path.read_text() and "/home" not in path.read_text() and "/work" not in path.read_text()
    )


SUMMARIES = [
    {
        "name": name,
        "system": name,
        "seed": 0,
        "decoding": "joint",
        "ways": {"test": {"joint": {}, "attention": {}}},
    }
    for name in ("ctc_lstm", "transformer")
]


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """Results of two systems on ten utterances of two words."""
    hypotheses: dict[str, Texts] = {}
    for name, wrong, count in (("ctc_lstm", "YES", 5), ("transformer", "NO NO", 1)):
        hypotheses[f"{name}.joint"] = {f"u{n}": {"text": wrong if n < count else "YES NO"} for n in range(10)}
        hypotheses[f"{name}.attention"] = {f"u{n}": {"text": "YES"} for n in range(10)}
    write_table(tmp_path / TABLE, {f"u{n}": {"text": "YES NO"} for n in range(10)}, hypotheses)
    found = {"baseline": "ctc_lstm", **score_results(tmp_path, "ctc_lstm", SUMMARIES)}
    (tmp_path / "results.json").write_text(json.dumps(found))
    return tmp_path


def test_figures_of_made_up_results(made_up: Path) -> None:
    """By hand: 5 deletions and 1 substitution among 20 words; 15 and 1 x (Y E S: 3) of 60 characters."""
    results = json.loads((made_up / "results.json").read_text())
    assert [(run["errors"], run["words"], run["wer"]) for run in results["runs"]] == [
        (5, 20, 0.25),
        (1, 20, 0.05),
    ]
    assert [run["cer"] for run in results["runs"]] == [15 / 60, 3 / 60]
    for run in results["runs"]:
        low, high = run["cer_interval"]
        assert 0 <= low < run["cer"] < high <= 1
        assert run["ways"]["test"]["attention"] == {"wer": 0.5, "cer": 0.5}
        assert 0 <= run["interval"][0] < run["wer"] < run["interval"][1] <= 1
    assert results["test"] == {"utterances": 10, "words": 20, "resampled_by": "utterance"}
    (comparison,) = results["comparisons"]
    assert (comparison["system"], comparison["baseline"]) == ("transformer", "ctc_lstm")
    assert comparison["difference"] == pytest.approx(-0.2) and 0 < comparison["p"] < 1
    assert find_wrong_figures(made_up) == []


@pytest.mark.parametrize("name", ["text", "transformer.joint", "ctc_lstm.attention"])
def test_a_changed_text_is_noticed(made_up: Path, name: str) -> None:
    references, hypotheses = read_table(made_up / TABLE)
    texts = references if name == "text" else hypotheses[name]
    texts["u5"]["text"] = texts["u5"]["text"].replace("YES", "NO")
    write_table(made_up / TABLE, references, hypotheses)
    assert find_wrong_figures(made_up) != []


def test_a_changed_figure_is_noticed(made_up: Path) -> None:
    path = made_up / "results.json"
    path.write_text(path.read_text().replace("0.25", "0.2", 1))
    assert find_wrong_figures(made_up) != []


def test_the_table_keeps_texts_and_their_lack(tmp_path: Path) -> None:
    """Empty is not absent: a fold has texts of its own utterances alone."""
    references = {"a": {"text": "ja", "speaker": "x", "reference_2": "jo"}, "b": {"text": "", "speaker": "y"}}
    hypotheses = {"run.joint": {"a": {"text": ""}}, "run.ctc": {"b": {"text": "\u2028ü"}}}
    write_table(tmp_path / TABLE, references, hypotheses)
    assert read_table(tmp_path / TABLE) == (references, hypotheses)


@pytest.mark.parametrize(
    ("setup", "language_model"),
    [
        ("joint", None),
        ("joint+speeds", None),
        ("ctc_beam+ngrams", "ngrams"),
        ("joint+language_model+speeds", "language_model"),
    ],
)
def test_the_language_model_in_the_name_of_a_setup(setup: str, language_model: str | None) -> None:
    assert find_language_model(setup) == language_model
