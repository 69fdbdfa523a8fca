"""The page shows the numbers of the score, holds any text safely, and its script searches and plays."""

from __future__ import annotations

import dataclasses
import html.parser
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.scoring import Report, ScoredFile, build_page, score, write_report
from asr.transcripts import Entry, TranscriptFile, Word

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
    settings = {"unit": "words", "normalize": "none", "align": "jiwer"}
    by_length = [{"1-5": system.score} for system in systems]
    file = TranscriptFile("ref.trn", "trn", references)
    return Report(file, tuple(systems), comparisons, ("a note",), settings, {"length": by_length})


EXAMPLE = build_report(
    {"u1": Entry("the cat sat", speaker="s1"), "u2": Entry("hello world"), "u3": Entry("שלום עולם")},
    {
        "one": {"u1": Entry("the hat sat sat"), "u2": Entry("hello world"), "u3": Entry("שלום")},
        "two": {"u1": Entry("the cat sat"), "u2": Entry("hallo world")},
    },
    ("one is better than two",),
)


class Outline(html.parser.HTMLParser):
    """Tags that are open, what is inside scripts, and every address that the page names."""

    VOID = ("meta", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.scripts: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attributes if name in ("src", "href", "data")]
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] == "td":
            self.cells.append(data)


def parse(report: Report, folder: str = "/") -> Outline:
    outline = Outline()
    outline.feed("".join(build_page(report, folder)))
    assert outline.open == []
    return outline


def test_the_page_is_whole_and_needs_no_other_file() -> None:
    outline = parse(EXAMPLE)
    assert outline.addresses == []
    assert not re.search(r"innerHTML|\beval\b|document\.write", outline.scripts[2])
    page = "".join(build_page(EXAMPLE, "/"))
    assert "@import" not in page and "url(" not in page and "http" not in page.replace("http-equiv", "")
    assert "one is better than two" in page and "a note" in page


def test_the_numbers_are_those_of_the_score() -> None:
    cells = parse(EXAMPLE).cells
    for system in EXAMPLE.systems:
        row = cells[cells.index(system.name) :]
        counts = system.score.counts
        assert row[1:7] == [
            str(n) for n in (3, 7, counts.correct, counts.substitutions, counts.deletions, counts.insertions)
        ]
        assert row[7] == f"{100 * system.score.error_rate:.2f}"
        interval = system.score.interval
        assert interval is not None and row[8] == f"{100 * interval.low:.2f} to {100 * interval.high:.2f}"
        assert row[10] == f"{100 * system.score.sentence_error_rate:.2f}"


def test_bars_and_dots_stand_on_one_scale() -> None:
    page = "".join(build_page(EXAMPLE, "/"))
    top = float(re.findall("WER from 0 to (.*?) %", page)[0]) / 100
    chart = page[page.index('id="intervals"') :].split("</table>")[0]
    places = re.findall(r'left: (.*?)%; right: (.*?)%"></i><b style="left: (.*?)%', chart)
    for system, (left, right, dot) in zip(EXAMPLE.systems, places, strict=True):
        interval = system.score.interval
        assert interval is not None
        expected = (interval.low, interval.high, system.score.error_rate)
        shown = float(left), 100 - float(right), float(dot)
        assert shown == pytest.approx([100 * value / top for value in expected], abs=0.1)


def test_records_hold_the_alignments_of_every_system() -> None:
    names, records, _ = parse(EXAMPLE).scripts
    assert json.loads(names) == ["one", "two"]
    found = {record[0]: record for record in json.loads(records)}
    assert list(found) == ["u3", "u1", "u2"]  # most errors first
    id, speaker, errors, length, audio, span, alignments = found["u1"]
    assert (id, speaker, errors, length, audio, span) == ("u1", "s1", 2, 3, None, [0, None])
    said = [step[1] for step in alignments[0] if step[1] is not None]
    heard = [step[2] for step in alignments[0] if step[2] is not None]
    assert (said, heard) == (["the", "cat", "sat"], ["the", "hat", "sat", "sat"])
    assert sorted(step[0] for step in alignments[0]) == ["c", "c", "i", "s"]
    assert alignments[0][0] == ["c", "the", "the", None]
    assert found["u3"][6][1] == [["d", "שלום", None, None], ["d", "עולם", None, None]]


def test_no_text_is_taken_for_markup() -> None:
    report = build_report(
        {NASTY: Entry(NASTY, speaker=NASTY)},
        {NASTY: {NASTY: Entry(NASTY.replace("alert", "<!--"))}},
        (NASTY,),
    )
    outline = parse(report)
    assert len(outline.scripts) == 3
    assert json.loads(outline.scripts[1])[0][0] == NASTY


def test_audio_is_named_as_seen_from_the_page_and_words_have_times(tmp_path: Path) -> None:
    audio = tmp_path / "a dir" / "u 1.wav"
    audio.parent.mkdir()
    soundfile.write(audio, np.zeros(160), 16_000)
    heard = Entry("the hat", words=(Word("the", 1.25, 1.5, 1.0), Word("hat", 1.5, 2.0, 1.0)))
    references = {
        "u1": Entry("the cat", audio=str(audio), start=1.0, duration=2.5),
        "u2": Entry("x", audio=str(tmp_path / "missing.wav")),
        "u3": Entry("X", audio=str(audio.with_suffix(".sph"))),
        "u4": Entry("x", start=1.0),
    }
    report = build_report(references, {"one": {"u1": heard, "u2": Entry("x"), "u3": Entry("x")}})
    target = tmp_path / "out" / "report.html"
    write_report(str(target), report)
    text = target.read_text(encoding="utf-8")
    records = json.loads(text.split('id="records">')[1].split("</script>")[0])
    found = {record[0]: record for record in records}
    assert found["u1"][4:6] == ["../a%20dir/u%201.wav", [1.0, 3.5]]
    assert found["u1"][6] == [[["c", "the", "the", 1.25], ["s", "cat", "hat", 1.5]]]
    assert found["u2"][4] is None and found["u3"][4] is None
    assert found["u3"][6] == [[["x", "X", "x", None]]], "only case differs"
    assert found["u4"][5] == [1.0, None], "up to the end of the file"


def test_long_corpora_are_cut_and_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asr.scoring.page.MAX_UTTERANCES", 2)
    page = "".join(build_page(EXAMPLE, "/"))
    assert "Utterances: 3, the 2 with most errors" in page
    assert [record[0] for record in json.loads(parse(EXAMPLE).scripts[1])] == ["u3", "u1"]


def test_no_errors_and_no_words() -> None:
    perfect = build_report({"u1": Entry("a")}, {"one": {"u1": Entry("a")}})
    assert "confusions" not in "".join(build_page(perfect, "/"))
    parse(build_report({"u1": Entry("")}, {"one": {"u1": Entry("a b")}}))  # an infinite rate


# A browser's document, as far as the script of the page uses it.
DOCUMENT = """
class Element {
  constructor(tag) { this.tag = tag; this.children = []; this.text = ""; this.listeners = {}; this.dataset = {}; this.value = ""; }
  set textContent(text) { this.text = text; this.children = []; }
  get textContent() { return this.text + this.children.map(c => typeof c === "string" ? c : c.textContent).join(""); }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  addEventListener(name, call) { this.listeners[name] = call; }
  play() { log.push(["play", this.src, this.currentTime]); }
  pause() { log.push(["pause"]); }
}
const log = [], byId = {};
const heads = [0, 1, 2, 3].map(key => { const e = new Element("th"); e.dataset.key = String(key); return e; });
globalThis.location = {href: "file:///x/report.html"};
globalThis.document = {
  getElementById: id => byId[id] ??= new Element(id), createElement: tag => new Element(tag),
  querySelectorAll: () => heads,
};
document.getElementById("names").textContent = NAMES;
document.getElementById("records").textContent = RECORDS;
"""
SCENE = """
const rows = () => body.children.map(row => row.children[0].textContent).join();
log.push(["all", rows(), body.children[0].children[4].textContent]);
search.value = "HALLO"; search.listeners.input(); log.push(["search", rows(), byId.found.textContent]);
search.value = ""; wrong.checked = true; search.listeners.input(); log.push(["wrong", rows()]);
wrong.checked = false; heads[0].listeners.click(); log.push(["by id", rows()]);
heads[0].listeners.click(); log.push(["by id, down", rows()]);
const words = body.children[1].children[4].children[0].children.filter(c => c.tag === "span");
words.at(-1).listeners.click(); player.listeners.loadedmetadata();
player.currentTime = 3.6; player.listeners.timeupdate();
console.log(JSON.stringify(log));
"""


@pytest.mark.skipif(
    shutil.which("node") is None, reason="node, which runs the script of the page, is missing"
)
def test_the_script_searches_sorts_and_plays(tmp_path: Path) -> None:
    names, records, script = parse(EXAMPLE).scripts
    listed = json.loads(records)
    second = next(record for record in listed if record[0] == "u2")
    second[4:6] = ["audio/u2.wav", [1.0, 3.5]]
    second[6][0][-1][3] = 2.25
    given = DOCUMENT.replace("NAMES", json.dumps(names)).replace("RECORDS", json.dumps(json.dumps(listed)))
    (tmp_path / "page.js").write_text(given + script.replace('"use strict";', "") + SCENE)
    answer = subprocess.run(["node", tmp_path / "page.js"], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    log = json.loads(answer.stdout)
    assert log[0][:2] == ["all", "u3,u1,u2"]
    assert log[0][2].split() == ["one:", "שלום", "עולם", "two:", "שלום", "עולם"]
    assert log[1] == ["search", "u2", "1 found"]
    assert log[2] == ["wrong", "u3,u1,u2"]
    assert log[3:5] == [["by id", "u1,u2,u3"], ["by id, down", "u3,u2,u1"]]
    assert log[5:] == [["play", "file:///x/audio/u2.wav", 2.25], ["pause"]]


def test_groups_have_a_table_each() -> None:
    by = {"speaker": [{"ann": system.score, "bob <b>": system.score} for system in EXAMPLE.systems]}
    page = "".join(build_page(dataclasses.replace(EXAMPLE, by={**EXAMPLE.by, **by}), "."))
    table = page[page.index("<h2>By speaker</h2>") :].split("</table>")[0]
    assert table.count("<td>ann</td>") == len(EXAMPLE.systems) == 2 and "bob &lt;b&gt;" in table
    assert "<h2>By length</h2>" in page


def test_confusions_have_a_cell_each() -> None:
    report = build_report({"u1": Entry("a b c d d")}, {"one": {"u1": Entry("a x c y y")}})
    table = re.findall(r'<table class="heat">(.*?)</table>', "".join(build_page(report, "/")))[0]
    rows = [
        re.findall(r"<th>.*?<bdi>(.*?)</bdi>|<td[^>]*>(\d*)</td>", row) for row in table.split("<tr>")[2:]
    ]
    assert re.findall(r"<span><bdi>(.*?)</bdi>", table) == ["y", "x"]
    assert [[unit or count for unit, count in row] for row in rows] == [["d", "2", ""], ["b", "", "1"]]
