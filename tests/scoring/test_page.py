"""The page shows the numbers of the score, holds any text safely, and its script searches and plays."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from asr.scoring.counting import score
from asr.scoring.page import Report, build_page, write_report
from asr.scoring.scored_files import ScoredFile
from asr.transcripts.readers import Entry, TranscriptFile

NASTY = '</script><script>alert(1)</script> & <b>"it\'s" -->'


def build_report(
    references: dict[str, Entry], hypotheses: dict[str, dict[str, Entry]], comparisons: tuple[str, ...] = ()
) -> Report:
    systems = []
    for name, entries in hypotheses.items():
        result = score(
            {id: entry.text or "" for id, entry in references.items()},
            {id: entry.text for id, entry in entries.items()},
            resamples=100,
        )
        systems.append(ScoredFile(name, f"{name}.trn", "trn", result, entries))
    settings = {"unit": "words", "normalize": "none", "align": "levenshtein"}
    by_room = [{"hall": system.score} for system in systems]
    file = TranscriptFile("ref.trn", "trn", references)
    return Report(file, tuple(systems), comparisons, ("a note",), settings, {"room": by_room})


EXAMPLE = build_report(
    {"u1": Entry("the cat sat", speaker="s1"), "u2": Entry("hello world"), "u3": Entry("שלום עולם")},
    {
        "one": {"u1": Entry("the hat sat sat"), "u2": Entry("hello world"), "u3": Entry("שלום")},
        "two": {"u1": Entry("the cat sat"), "u2": Entry("hallo world")},
    },
    ("one is better than two",),
)


def parse(report: Report, folder: str = "/") -> tuple[dict[str, Any], list[Any]]:
    """What the page gives to its script: the report and the records of utterances."""
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", "".join(build_page(report, folder)), re.DOTALL)
    assert len(scripts) == 3
    return json.loads(scripts[0]), json.loads(scripts[1])


def test_the_page_is_whole_and_needs_no_other_file() -> None:
    page = "".join(build_page(EXAMPLE, "/"))
    assert not re.search(r"@import|url\(|http|\b(src|href)=", page)
    assert not re.search(r"innerHTML|\beval\b|document\.write", page)


def test_the_numbers_are_those_of_the_score() -> None:
    report, _ = parse(EXAMPLE)
    titles, *rows = report["summary"]
    counted = ["words", "correct", "sub", "del", "ins", "WER %", "95 % interval", "CER %", "SER %"]
    assert titles == ["system", "utterances", *counted]
    for row, system in zip(rows, EXAMPLE.systems, strict=True):
        own, interval, counts = system.score, system.score.interval, system.score.counts
        assert interval is not None
        numbers = (3, 7, counts.correct, counts.substitutions, counts.deletions, counts.insertions)
        assert row[:7] == [system.name, *map(str, numbers)]
        assert row[7:9] == [
            f"{100 * own.error_rate:.2f}",
            f"{100 * interval.low:.2f} to {100 * interval.high:.2f}",
        ]
    assert (report["verdicts"], report["notes"]) == (["one is better than two"], ["a note"])
    scores = [system.score for system in EXAMPLE.systems]
    rates = [[own.error_rate, own.interval.low, own.interval.high] for own in scores if own.interval]
    assert report["rates"] == rates and len(rates) == 2
    assert report["by"] == [["room", [["hall", 3, 7, rates]]]], "side by side"


def test_records_hold_the_alignments_of_every_system() -> None:
    report, records = parse(EXAMPLE)
    assert report["names"] == ["one", "two"]
    found = {record[0]: record for record in records}
    assert list(found) == ["u3", "u1", "u2"]  # most errors first
    id, speaker, errors, length, audio, span, alignments = found["u1"]
    assert (id, speaker, errors, length, audio, span) == ("u1", "s1", 2, 3, None, [0, None])
    said = [step[1] for step in alignments[0] if step[1] is not None]
    heard = [step[2] for step in alignments[0] if step[2] is not None]
    assert (said, heard) == (["the", "cat", "sat"], ["the", "hat", "sat", "sat"])
    assert sorted(step[0] for step in alignments[0]) == ["c", "c", "i", "s"]
    assert alignments[0][0] == ["c", "the", "the"]
    assert found["u3"][6][1] == [["d", "שלום", None], ["d", "עולם", None]]


def test_no_text_is_taken_for_markup() -> None:
    entries = {NASTY: {NASTY: Entry(NASTY.replace("alert", "<!--"))}}
    report, records = parse(build_report({NASTY: Entry(NASTY, speaker=NASTY)}, entries, (NASTY,)))
    assert records[0][0] == report["verdicts"][0] == NASTY


def test_audio_is_named_as_seen_from_the_page(tmp_path: Path) -> None:
    audio = tmp_path / "a dir" / "u 1.wav"
    audio.parent.mkdir()
    soundfile.write(audio, np.zeros(160), 16_000)
    references = {
        "u1": Entry("the cat", audio=str(audio), start=1.0, duration=2.5),
        "u2": Entry("x", audio=str(tmp_path / "missing.wav")),
        "u3": Entry("X", audio=str(audio.with_suffix(".sph"))),
        "u4": Entry("x", start=1.0),
    }
    report = build_report(references, {"one": {"u1": Entry("the hat"), "u2": Entry("x"), "u3": Entry("x")}})
    target = tmp_path / "out" / "report.html"
    write_report(str(target), report)
    assert target.read_text(encoding="utf-8") == "".join(build_page(report, str(target.parent)))
    found = {record[0]: record for record in parse(report, str(target.parent))[1]}
    assert found["u1"][4:6] == ["../a%20dir/u%201.wav", [1.0, 3.5]]
    assert found["u1"][6] == [[["c", "the", "the"], ["s", "cat", "hat"]]]
    assert found["u2"][4] is None and found["u3"][4] is None
    assert found["u3"][6] == [[["x", "X", "x"]]], "only case differs"
    assert found["u4"][5] == [1.0, None], "up to the end of the file"


def test_long_corpora_are_cut_and_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asr.scoring.page.MAX_UTTERANCES", 2)
    report, records = parse(EXAMPLE)
    assert report["utterances"] == "Utterances: 3, the 2 with most errors"
    assert [record[0] for record in records] == ["u3", "u1"]


# A browser's document, as far as the script of the page uses it.
DOCUMENT = """
class Element {
  constructor(tag) { this.tag = tag; this.children = []; this.text = ""; this.listeners = {}; this.dataset = {}; this.style = {}; this.value = ""; }
  set textContent(text) { this.text = text; this.children = []; }
  get textContent() { return this.text + this.children.map(c => typeof c === "string" ? c : c.textContent).join(""); }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  addEventListener(name, call) { this.listeners[name] = call; }
  play() { log.push(["play", this.src, this.currentTime]); }
  pause() { log.push(["pause"]); }
}
const log = [], byId = {};
const listHeads = [0, 1, 2, 3].map(key => { const e = new Element("th"); e.dataset.key = String(key); return e; });
globalThis.location = {href: "file:///x/report.html"};
globalThis.document = {
  getElementById: id => byId[id] ??= new Element(id), createElement: tag => new Element(tag),
  querySelectorAll: () => listHeads,
};
document.getElementById("report").textContent = REPORT;
document.getElementById("records").textContent = RECORDS;
document.getElementById("player").hidden = true;
"""
AXES = {  # highest rate: the ticks
    12.94: [0, 5, 10, 15],
    44.16: [0, 10, 20, 30, 40, 50],
    5.0: [0, 1, 2, 3, 4, 5],
    0.0: [0, 0.2, 0.4, 0.6, 0.8, 1],
    230.0: [0, 50, 100, 150, 200, 250],
}
SCENE = """
const rows = () => body.children.map(row => row.children[0].textContent).join();
log.push(["summary", byId.summary.textContent, document.title]);
log.push(["all", rows(), body.children[0].children[4].textContent]);
const tables = byId.summary.children.filter(c => c.className === "wide").map(wide => wide.children[0].children);
log.push(["classes", ...tables.map(([head, main]) => [head.children.at(-1), ...main.children].map(
  row => row.children.map(cell => cell.className).join(" ")))]);
log.push(["groups", tables[1][0].children[0].children.map(cell => [cell.colSpan ?? 1, cell.textContent])]);
log.push(["ticks", tables[0][0].children[0].children.at(-1).children[0].children.map(tick => [tick.textContent, tick.style.left])]);
log.push(["marks", tables[1][1].children[0].children.at(-1).children[0].children.filter(
  mark => mark.className === "rate").map(mark => mark.style.left)]);
log.push(["errors", tables[2][1].children.map(row => [row.children[0].children[0].className, row.children[0].textContent,
  ...row.children.slice(1).flatMap(cell => [cell.textContent, cell.style.background])])]);
log.push(["axes", ...AXES.map(highest => findTicks([[0, null, highest / 100]]))]);
log.push(["silent", byId.hint.hidden, records.some(record => record[4])]);
search.value = "HALLO"; search.listeners.input(); log.push(["search", rows(), byId.found.textContent]);
search.value = ""; wrong.checked = true; search.listeners.input(); log.push(["wrong", rows()]);
wrong.checked = false; heads[0].listeners.click(); log.push(["by id", rows()]);
heads[0].listeners.click(); log.push(["by id, down", rows()]);
log.push(["hidden", player.hidden, heads.map(head => head.ariaSort)]);
const words = body.children[1].children[4].children[0].children[2].children.filter(c => c.tag === "span");
words.at(-1).listeners.click(); player.listeners.loadedmetadata();
player.currentTime = 3.6; player.listeners.timeupdate();
console.log(JSON.stringify(log));
"""


@pytest.mark.skipif(
    shutil.which("node") is None, reason="node, which runs the script of the page, is missing"
)
def test_the_script_draws_searches_sorts_and_plays(tmp_path: Path) -> None:
    report, listed = parse(EXAMPLE)
    second = next(record for record in listed if record[0] == "u2")
    second[4:6] = ["audio/u2.wav", [1.0, 3.5]]
    listed[1][6][0] += [["i", None, "uh"]] * 4
    listed[2][6][1] += [["i", None, "uh"]] * 2
    given = DOCUMENT.replace("REPORT", json.dumps(json.dumps(report)))
    given = given.replace("RECORDS", json.dumps(json.dumps(listed)))
    script = "".join(build_page(EXAMPLE, "/")).rpartition("<script>")[2].partition("</script>")[0]
    (tmp_path / "page.js").write_text(
        given + script.replace('"use strict";', "") + SCENE.replace("AXES", json.dumps([*AXES]))
    )
    answer = subprocess.run(["node", tmp_path / "page.js"], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    found = {entry[0]: entry[1:] for entry in json.loads(answer.stdout)}
    summary, title = found["summary"]
    assert title == "ref.trn: one, two"
    assert "roomutteranceswordsWER %95 % intervalWER %95 % interval" in summary
    cells = [cell for row in report["summary"] for cell in row]
    assert all(text in summary for text in (title, "a note", "one is better than two", *cells))
    assert found["axes"] == [*AXES.values()]
    shown, alignment = found["all"]
    assert shown == "u3,u1,u2"
    assert alignment.split() == ["one", "שלום", "עולם", "two", "שלום", "עולם"]
    for classes in found["classes"]:
        assert len(set(classes)) == 1, "headings are aligned with their cells"
        assert classes[0].split()[:2] == ["text", "number"]
    assert found["groups"] == [[[3, ""], [2, "one"], [2, "two"], [1, ""]]]
    (ticks,) = found["ticks"]
    *_, (last, end) = ticks
    highest = max(rate[2] for rate in report["rates"])
    assert ticks[0] == ["0", "0%"] and end == "100%" and highest <= float(last) / 100
    rates = [100 * 100 * rate[0] / float(last) for rate in report["rates"]]
    assert [float(left.rstrip("%")) for left in found["marks"][0]] == pytest.approx(rates)
    full, half, quarter, none = (f"rgb(var(--heat) / {share:.3f})" for share in (0.6, 0.3, 0.15, 0))
    assert found["errors"][0] == [
        ["chip ins", "uh", "4", full, "2", half],
        ["chip del", "עולם", "1", quarter, "1", quarter],
        ["chip sub", "cat → sat", "1", quarter, "0", none],
        ["chip ins", "hat", "1", quarter, "0", none],
        ["chip sub", "hello → hallo", "0", none, "1", quarter],
        ["chip del", "שלום", "0", none, "1", quarter],
    ], "one color scale for all systems"
    assert found["search"] == ["u2", "1 found"]
    assert found["wrong"] == ["u3,u1,u2"]
    assert (found["by id"], found["by id, down"]) == (["u1,u2,u3"], ["u3,u2,u1"])
    assert found["hidden"] == [True, ["descending", "none", "none", "none"]]
    assert found["silent"] == [False, True]
    assert (found["play"], found["pause"]) == (["file:///x/audio/u2.wav", 1], [])


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not installed")
def test_the_page_fits_a_phone(tmp_path: Path) -> None:
    """The name of a system and its rates are seen without a scroll, and no table is wider than the page."""
    playwright = pytest.importorskip("playwright.sync_api")
    name = "a_system_with_a_rather_long_name"
    report = build_report(EXAMPLE.reference.entries, {name: EXAMPLE.reference.entries, "other": {}})
    write_report(str(tmp_path / "page.html"), report)
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 360, "height": 640})
        page.goto(f"file://{tmp_path}/page.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        ends = page.locator(".cards td:visible").evaluate_all(
            "all => all.map(one => [one.dataset.head, one.getBoundingClientRect().right])"
        )
        browser.close()
    assert {"WER %", "95 % interval"} <= {head for head, _ in ends} and max(end for _, end in ends) <= 360
