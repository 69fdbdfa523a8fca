"""What pages say of published results is what the hypotheses next to them contain."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from asr.recipe.scores import read_table, score_texts
from asr.scoring.result import Score
from asr.scoring.scored_files import score_systems

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


@dataclass(frozen=True)
class Shown:
    """Rates in percent; by itself it is WER with two digits."""

    wer: float
    score: Score | None = None

    def __getattr__(self, name: str) -> float:
        """low and high, the interval, and cer: computed where they are shown."""
        return 100 * float(getattr(self.score if name == "cer" else self.score.interval, name))

    def __format__(self, form: str) -> str:
        return format(self.wer, form or ".2f")


@functools.cache
def find(source: str) -> Shown:
    """Score TABLE#COLUMN, of one speaker by TABLE#COLUMN@SPEAKER; or read dev by STUDY:METHOD or STUDY:METHOD@RUN."""
    if "#" not in source:
        study, method, name = [*re.split("[:@]", source), ""][:3]
        run = next(run for run in read_json(study)["runs"] if name in (run["name"], ""))
        return Shown(100 * run["methods"]["dev"][method]["wer"])
    table, column, speaker = [*re.split("[#@]", source), ""][:3]
    references, hypotheses = read_cached(table)
    own = {id: f for id, f in references.items() if speaker in (f.get("speaker"), "")}
    found = score_texts(own, hypotheses[column])
    return Shown(100 * found.error_rate, found)


@functools.cache
def read_cached(table: str) -> Any:
    return read_table(RECIPES / f"{table}.jsonl.gz")


@functools.cache
def read_json(folder: str) -> Any:
    return json.loads((RECIPES / folder / "results.json").read_text(encoding="utf-8"))


def read_page(name: str) -> str:
    """The page as one line, without bold type."""
    text = (RECIPES / name).read_text(encoding="utf-8")
    return " ".join(text.replace("**", "").split())


CLAIMS = yaml.safe_load(Path(__file__).with_name("pages.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", sorted({claim["page"] for claim in CLAIMS}))
def test_pages_say_what_the_hypotheses_hold(page: str) -> None:
    text, missing = read_page(page), []
    for claim in (claim for claim in CLAIMS if claim["page"] == page):
        for row, column in claim.get("rows", {"": ""}).items():
            sources = [source.replace("COLUMN", column) for source in claim["sources"]]
            said = claim["text"].replace("ROW", row.strip()).format(*map(find, sources))
            if not re.search(re.escape(said).replace("…", "[^|]+"), text):
                missing.append((said, sources))
    assert not missing


@pytest.mark.parametrize(
    ("study", "heading", "dev"),
    [
        ("attention_guide", "## CTC-guided window", ()),
        ("attention_clock", "## Learned monotonic window", ("clock", "clock_windows")),
    ],
)
def test_the_page_of_attention_says_how_wer_grows_with_length(
    study: str, heading: str, dev: tuple[str, ...]
) -> None:
    """Rows of each variant: runs, WER of 3 to 7, 10, 15 and 30 digits with a beam of 10, and greedily."""
    page = (RECIPES / "guided_attention.md").read_text(encoding="utf-8")
    part = page.split(heading)[1].split("\n## ")[0]
    published = read_json(f"fsdd/studies/{study}")
    by_beam = [published["lengths"][f"WER on test by the number of words, beam {beam}"] for beam in (10, 1)]
    rows = re.findall(r"^\| (\w+)(?: \(prior alone\))? \| (\d) \| (\d.*) \|$", part, re.MULTILINE)
    assert {name for name, _, _ in rows} == {system["name"] for system in published["systems"]}
    for name, runs, figures in rows:
        assert int(runs) == sum(run["variant"] == name for run in published["runs"])
        found = []
        for lengths in by_beam:
            short = [lengths[name][str(count)] for count in range(3, 8)]
            found.append(sum(one["errors"] for one in short) / sum(one["words"] for one in short))
            found += [lengths[name][count]["wer"] for count in ("10", "15", "30")]
        assert figures.replace("*", "") == " | ".join(f"{100 * rate:.2f}" for rate in found)
    rates = {run["name"]: f"{100 * run['methods']['dev']['attention']['wer']:.2f}" for run in published["runs"]} if dev else {}  # fmt: skip
    for name in dev:
        seeds = [rates[f"{name}{seed}"] for seed in ("", "-seed-1", "-seed-2")]
        assert "{}, {} and {}".format(*seeds) in part


def test_the_page_of_attention_says_how_far_word_times_are_off() -> None:
    page = (RECIPES / "guided_attention.md").read_text(encoding="utf-8")
    _, columns = read_table(RECIPES / "fsdd/studies/word_times/word_times.jsonl.gz")

    def read_times(name: str) -> np.ndarray:
        times = " ".join(columns[name].values())
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


def test_the_page_of_speechocean762_says_what_whisper_has() -> None:
    """By the rules for English."""
    page = read_page("speechocean762/experiments.md")
    table = str(RECIPES / "speechocean762/studies/test.jsonl.gz")
    _, systems, _ = score_systems(
        table, [f"{table}#whisper_tiny.{name}" for name in ("base_en", "beam_5")], normalize="english"
    )
    base, tuned = (100 * system.score.error_rate for system in systems)
    assert f"{base:.2f} %" in page and f"{tuned:.2f} %" in page and f"{base - tuned:.1f} points less" in page
