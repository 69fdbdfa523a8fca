"""What a score knows beyond its counts: groups, intervals, lists of errors, tables."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from asr.errors import UserError
from asr.scoring.alignments import Operation
from asr.scoring.counting import score
from asr.scoring.result import Counts, Score, align_lines, format_table
from asr.transcripts.subtitles import measure_width

REFERENCES = {"a-1": "the cat sat on the mat", "a-2": "hello world", "b-1": "one two three", "b-2": "yes"}
HYPOTHESES = {"a-1": "the cat sat on mat", "b-1": "one too three four", "b-2": "yes"}
SPEAKERS = {id: id[0] for id in REFERENCES}


@pytest.fixture
def small() -> Score:
    return score(REFERENCES, HYPOTHESES, speakers=SPEAKERS)


def test_utterances(small) -> None:
    utterance = small.utterances[2]
    assert (utterance.id, utterance.speaker, utterance.is_missing) == ("b-1", "b", False)
    assert utterance.counts == Counts(2, 1, 0, 1)
    assert utterance.operations == [
        Operation("correct", "one", "one"),
        Operation("substitution", "two", "too"),
        Operation("correct", "three", "three"),
        Operation("insertion", None, "four"),
    ]
    assert small.utterances[1].hypothesis == ""


@pytest.mark.parametrize("align", ["levenshtein", "sclite"])
def test_lists_of_errors_add_up_to_the_counts(align) -> None:
    rng = np.random.default_rng(0)
    texts = [[" ".join(rng.choice(list("abcd"), rng.integers(0, 9))) for _ in range(50)] for _ in range(2)]
    found = score(*texts, align=align)
    counts = found.counts
    totals = [counter.total() for counter in found.error_counts.values()]
    assert totals == [counts.substitutions, counts.deletions, counts.insertions]
    steps = [step for utterance in found.utterances for step in utterance.operations]
    for pair, times in found.error_counts["confusions"].items():
        assert steps.count(Operation("substitution", *pair)) == times


def test_groups(small) -> None:
    assert {name: group.counts for name, group in small.group(small.speakers).items()} == {
        "a": Counts(5, 0, 3, 0),
        "b": Counts(3, 1, 0, 1),
    }
    by_length = small.group([True, False, True, False])
    assert {key: group.ids for key, group in by_length.items()} == {
        True: ("a-1", "b-1"),
        False: ("a-2", "b-2"),
    }
    assert by_length[False].missing == ("a-2",)


def test_groups_of_other_utterances_are_refused(small) -> None:
    for keys in (["a"], ["a"] * 5):
        with pytest.raises(UserError, match=f"{len(keys)} keys for 4 utterances"):
            small.group(keys)


def test_bleu_of_several_references_does_not_read_the_marks_of_sclite() -> None:
    found = score({"a": "{ X / y } b"}, {"a": "x b"}, alternatives={"a": ["z b"]}, align="sclite")
    with pytest.raises(UserError, match="BLEU with several references"):
        found.bleu()


def test_speakers_are_drawn_where_they_are_known(small) -> None:
    assert small.resampled_by == "speaker"
    assert small.group(small.speakers)["a"].resampled_by == "utterance"
    assert score(REFERENCES, HYPOTHESES).resampled_by == "utterance"
    # Speakers who differ widely: whole speakers come out further apart than utterances one by one.
    rng = np.random.default_rng(0)
    said = ["a b c d e f g h"] * 400
    heard = [
        " ".join(w if rng.random() > (n // 20) / 40 else "x" for w in text.split())
        for n, text in enumerate(said)
    ]
    widths = []
    for speakers in ([n // 20 for n in range(400)], None):
        interval = score(said, heard, speakers=speakers).interval
        widths.append(interval.high - interval.low)
    assert widths[0] > 2 * widths[1]


def test_no_interval_without_resamples_or_of_a_single_utterance() -> None:
    said = [" ".join("abcdef")] * 100
    assert score(said, said, resamples=0).interval is score(said[:1], ["a b c x"]).interval is None


def test_table(small) -> None:
    plain = score(REFERENCES, HYPOTHESES, resamples=0)
    assert str(plain).splitlines() == [
        "utterances  words  correct  sub  del  ins  WER %  95 % interval  CER %  SER %",
        "         4     12        8    1    3    1  41.67                 42.86  75.00",
    ]
    lines = format_table(small.group(small.speakers), "speaker").splitlines()
    assert [line.split()[0] for line in lines] == ["speaker", "a", "b"]


def test_columns_stay_below_each_other_in_any_script() -> None:
    said, heard, marks = align_lines(
        [
            Operation("substitution", "你好", "你"),
            Operation("correct", "x", "x"),
            Operation("substitution", "e\u0301te\u0301", "ete"),
            Operation("insertion", None, "straße"),
        ]
    )
    assert said == "REF:  你好 x E\u0301TE\u0301 ******* "
    assert heard == "HYP:  你   x ETE STRASSE "
    assert marks == "Eval: S      S   I       "
    assert len({measure_width(line) for line in (said, heard, marks)}) == 1


def test_dict_is_what_json_can_write(small) -> None:
    written = json.loads(json.dumps(small.to_dict()))
    assert written["error_rate"] == small.error_rate == 5 / 12
    assert written["interval"] is None
    assert small.why_no_interval == "no interval: 2 speakers, at least 3 are needed"
    alone = dataclasses.replace(small, speakers=None)
    assert alone.to_dict()["interval"] == [alone.interval.low, alone.interval.high]
    assert alone.why_no_interval == dataclasses.replace(small, resamples=0).why_no_interval == ""
    assert (written["utterances"], written["speakers"], written["missing_hypotheses"]) == (4, 2, 1)
    assert (written["sentence_errors"], written["sentence_error_rate"]) == (3, 0.75)
    assert (written["substitutions"], written["deletions"], written["insertions"]) == (1, 3, 1)
    empty = score([""], ["a"]).to_dict()
    assert json.loads(json.dumps(empty, allow_nan=False))["error_rate"] is None  # infinity is no JSON
