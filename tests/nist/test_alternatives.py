"""Texts are read as NIST sclite reads them: case, alternatives, tags; golden counts are its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import Phase, given, settings, strategies as st

from asr.errors import UserError
from asr.scoring.counting import score
from asr.scoring.nist import sclite
from asr.scoring.nist.sclite import read_as_sclite
from asr.scoring.options import Align
from asr.scoring.significance import compare_scores

needs_sclite = pytest.mark.skipif(
    shutil.which("sctk") is None, reason="sclite is missing; apt-get install sctk"
)

MARKS = "a B b c (uh) C;t c* Uh b- -b bc cb (b-) (-b) - B-;t"
MARKED = MARKS.split()

GOLDEN: dict[Align, Any] = yaml.safe_load(Path(__file__).with_name("sclite_counts.yaml").read_text("utf-8"))


def count(reference: str, hypothesis: str, align: Align = "sclite") -> tuple[int, int, int, int]:
    counts = score([reference], [hypothesis], align=align, resamples=0).counts
    return counts.correct, counts.substitutions, counts.deletions, counts.insertions


def cost(counts: tuple[int, ...]) -> int:
    return 4 * counts[1] + 3 * (counts[2] + counts[3])


@pytest.mark.parametrize("align", GOLDEN)
def test_marks_are_read_as_sclite_reads_them(align: Align) -> None:
    for reference, hypothesis, expected in GOLDEN[align]:
        assert count(reference, hypothesis, align) == tuple(expected), (reference, hypothesis)


def test_optional_words_are_shown_and_need_their_brackets() -> None:
    found = score(["a (uh) b"], ["a b"], align="sclite-D")
    assert (found.references, found.hypotheses) == (("a (uh) b",), ("a (uh) b",))
    assert found.all_references == (("a (uh) b",),)
    for options in ({"normalize": "basic"}, {"unit": "characters"}):
        with pytest.raises(UserError, match="sclite-D: expected unit words and no normalization"):
            score(["a"], ["a"], align="sclite-D", **options)


def make_texts(words: list[str]) -> st.SearchStrategy[str]:
    def offer(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.lists(inner, min_size=1, max_size=3).map(lambda parts: "{ " + " / ".join(parts) + " }")

    plain = st.lists(st.sampled_from(words), min_size=1, max_size=3).map(" ".join)
    return st.lists(st.recursive(plain, offer, max_leaves=4), max_size=4).map(" ".join)


def run_sclite(pairs: list[tuple[str, str]], options: str = "") -> list[tuple[int, ...]]:
    with tempfile.TemporaryDirectory() as folder:
        for name, side in (("ref", 0), ("hyp", 1)):
            lines = (f"{pair[side]} (s-{number})\n" for number, pair in enumerate(pairs))
            Path(folder, name).write_text("".join(lines))
        arguments = f"-r ref trn -h hyp trn -i spu_id -o pra stdout {options}"
        command = ["sctk", "sclite", *arguments.split()]
        output = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^id: \(s-(\d+)\)\nScores: \(#C #S #D #I\) ([\d ]+)$", output, re.MULTILINE)
    counts = {int(number): tuple(map(int, line.split())) for number, line in found}
    return [counts[number] for number in range(len(pairs))]


@needs_sclite
@settings(max_examples=2, phases=[Phase.generate])  # shrinking would start sclite for minutes
@pytest.mark.parametrize("options", ["", "-D", "-F", "-F -D"])
@given(data=st.data())
def test_random_texts_with_marks_count_as_in_sclite(data: st.DataObject, options: str) -> None:
    """With null words, alignments of the same cost may differ in what they count; without, nothing may."""
    align = {"": "sclite", "-D": "sclite-D", "-F": "sclite-F", "-F -D": "sclite-FD"}[options]
    texts = make_texts(data.draw(st.sampled_from([MARKED, [*MARKED, "@"]])))
    pairs = data.draw(st.lists(st.tuples(texts, texts), min_size=20, max_size=40))
    for (reference, hypothesis), theirs in zip(pairs, run_sclite(pairs, options), strict=True):
        ours = count(reference, hypothesis, align)
        if "@" in reference + hypothesis:
            # Missing optional words count as correct and still cost something.
            assert "-D" in options or cost(ours) == cost(theirs), (reference, hypothesis)
        else:
            assert ours == theirs, (reference, hypothesis)


@pytest.mark.parametrize("text", ["a { b", "a } b", "a{b / c}", "{ }", "{ / }", "{ a / { } }", "{ " * 5000])
def test_braces_that_sclite_cannot_read_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"utterance 1: .*expected alternatives as in sclite's"):
        score([text], ["a"], align="sclite")
    assert score([text], [text]).error_rate == 0  # jiwer knows no marks


def test_alternatives_are_chosen_among_words_only_and_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="need unit words"):
        score(["{ a / b }"], ["b"], align="sclite", unit="characters")
    assert score(["A;x"], ["a"], align="sclite", unit="characters").error_rate == 0
    monkeypatch.setattr(sclite, "MAX_CELLS", 10)
    with pytest.raises(UserError, match="too long to align"):
        read_as_sclite("{ a / b } c d e", "a b c d")
    assert read_as_sclite("a;x " * 9, "a " * 9)  # no alternatives, no limit


def test_systems_that_chose_other_alternatives_are_compared() -> None:
    references = ["{ going to / gonna } eat now please", "Yes"] * 9
    first = score(references, ["gonna eat now please", "no"] * 9, align="sclite")
    second = score(references, ["going to drink now please", "yes"] * 9, align="sclite")
    assert first.references != second.references and first.all_references == tuple(
        (text,) for text in references
    )
    comparison = compare_scores(first, second)
    # Each utterance is one segment: their words have other places.
    assert comparison.matched_pairs["segments"] == 18
    assert (first.counts.errors, second.counts.errors) == (9, 9)
