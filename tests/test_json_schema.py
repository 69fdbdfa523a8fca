"""docs/json-output.md describes the JSON of a transcript: every field, and no other."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from asr.transcripts.transcript import Segment, Transcript, Word
from asr.transcripts.writers import format_transcript

PAGE = Path(__file__).resolve().parents[1] / "docs" / "json-output.md"
TYPES = {
    "string": (str,),
    "number": (int, float),
    "number or null": (int, float, type(None)),
    "object": (dict,),
    "array": (list,),
    "array of strings": (list,),
}
WORD = Word("one", 0.5, 1.0, 0.9)
BARE = Transcript("a", "a.wav", 2.0, (Segment(0.5, 1.0, "one"),))
FULL = Transcript(
    id="a",
    audio="a.wav",
    duration=2.0,
    segments=(Segment(0.5, 1.0, "one", (WORD,), 0.9, "greedy", ("doubt",), 2, -0.1, 0.2, 0.4, (5, 6)),),
    speaker="Ann",
    warnings=("cut short",),
    language="en",
    language_probability=0.8,
    model="whisper-base",
    out_of_domain="not speech",
    compute_type="int8 on cpu",
)
HIDDEN = {"separator"}  # of no use next to the text


def described(section: str) -> dict[str, tuple[str, str]]:
    """Field to type and meaning, as the page has them."""
    part = PAGE.read_text(encoding="utf-8").partition(f"## {section}\n")[2].partition("\n##")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([\w ]+) \| (.*) \|$", part, flags=re.MULTILINE)
    return {name: (kind, meaning) for name, kind, meaning in rows}


def records(transcript: Transcript) -> dict[str, dict[str, Any]]:
    record = json.loads(format_transcript("json", transcript))
    segment = record["segments"][0]
    word = (segment["words"] or [None])[0]
    return {"Recording": record, "Segment": segment, "Word": word}


@pytest.mark.parametrize("section", ["Recording", "Segment", "Word"])
def test_the_page_has_every_field_and_no_other(section: str) -> None:
    page, record = described(section), records(FULL)[section]
    assert list(record) == [name for name in page if name in record], "in the order of the page"
    assert set(record) == set(page)
    for name, value in record.items():
        assert isinstance(value, TYPES[page[name][0]]), name
    bare = records(BARE)[section]
    if bare is not None:
        assert set(bare) == {name for name, (_, meaning) in page.items() if not meaning.startswith("*if*")}
        nulls = {name for name, value in bare.items() if value is None}
        assert nulls <= {name for name, (kind, _) in page.items() if kind == "number or null"}


@pytest.mark.parametrize(
    ("section", "kind"), [("Recording", Transcript), ("Segment", Segment), ("Word", Word)]
)
def test_nothing_that_is_known_is_left_out(section: str, kind: type) -> None:
    fields = {field.name for field in dataclasses.fields(kind)}
    if kind is Segment:  # the transcript has its language
        fields -= {
            "language",
            "language_probability",
            "token_scores",
            "tokens",
            "diarized",
        }  # that is `speaker`
    assert fields - HIDDEN <= set(described(section))


def test_a_dictionary_is_what_json_holds() -> None:
    for transcript in (BARE, FULL):
        assert json.loads(format_transcript("jsonl", transcript)) == transcript.to_dict()
