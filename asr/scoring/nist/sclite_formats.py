"""Scores as sclite writes them: pra (aligned utterances), dtl (all confusions), sgml (for sc_stats)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

from asr.scoring.alignments import Operation
from asr.scoring.result import LETTERS, Score, UtteranceScore, align_lines, most_common

PRA_HEAD = "\n\n\t\tDUMP OF SYSTEM ALIGNMENT STRUCTURE\n\nSystem name:   {}\n\nSpeakers: "


def write_pra(score: Score, title: str) -> str:
    """Every utterance: its counts, and below each other reference, hypothesis and errors."""
    speakers = _by_speaker(score)
    names = [f"{number:5}:  {speaker}" for number, speaker in enumerate(speakers)]
    lines = [PRA_HEAD.format(title), *names, ""]
    for number, (speaker, utterances) in enumerate(speakers.items()):
        lines += [f"Speaker sentences{number:4}:  {speaker}   #utts: {len(utterances)}"]
        for utterance in utterances:
            counts = utterance.counts
            numbers = (counts.correct, counts.substitutions, counts.deletions, counts.insertions)
            lines += [
                f"id: ({utterance.id})",
                f"Scores: (#C #S #D #I) {' '.join(map(str, numbers))}",
                *(align_lines(utterance.operations) if counts.correct + counts.errors else []),
                "",
            ]
    return "\n".join([*lines, ""]) + "\n"


def write_dtl(score: Score, title: str) -> str:
    """The whole system: sentences, words, and how often each unit was confused, inserted or deleted."""
    counts, total = score.counts, len(score)
    length = counts.reference_length
    lines = [f"DETAILED OVERALL REPORT FOR THE SYSTEM: {title}", "", "SENTENCE RECOGNITION PERFORMANCE", ""]
    lines += [f" sentences                                        {total:4}"]
    lines += [f" with errors                            {_percent(score.sentence_errors, total)}", ""]
    for column, name in enumerate(("substitions", "deletions", "insertions"), start=1):
        number = int((score.counts_P4[:, column] > 0).sum())
        lines += [f"   with {name:<32}{_percent(number, total)}"]
    lines += ["", "", "WORD RECOGNITION PERFORMANCE", ""]
    for name, number in (
        ("Total Error", counts.errors),
        ("Correct", counts.correct),
        ("Substitution", counts.substitutions),
        ("Deletions", counts.deletions),
        ("Insertions", counts.insertions),
    ):
        lines += [f"Percent {name:<18}=  {_percent(number, length)}"]
        lines += [""] if name in ("Total Error", "Correct") else []
    lines += [f"Percent Word Accuracy     =  {_share(length - counts.errors, length)}", "", ""]
    aligned = counts.reference_length + counts.insertions
    for name, number in (("Ref.", length), ("Hyp.", counts.hypothesis_length), ("Aligned", aligned)):
        lines += [f"{name + ' words':<26}=           ({number:4})"]
    lines += [""]
    errors = score.error_counts
    confusions, substituted, falsely = Counter[str](), Counter[str](), Counter[str]()
    for (reference, hypothesis), count in errors["confusions"].items():
        confusions[f"{reference} ==> {hypothesis}"] += count
        substituted[reference] += count
        falsely[hypothesis] += count
    lines += [*_table("CONFUSION PAIRS", confusions), *_table("INSERTIONS", errors["insertions"])]
    lines += [*_table("DELETIONS", errors["deletions"]), *_table("SUBSTITUTIONS", substituted)]
    lines[-1:] = [
        "* NOTE: The 'Substitution' words are those reference words",
        "        for which the recognizer supplied an incorrect word.",
        "",
        "",
        *_table("FALSELY RECOGNIZED", falsely),
    ]
    lines[-1:] = [
        "* NOTE: The 'Falsely Recognized' words are those hypothesis words",
        "        which the recognizer incorrectly substituted for a reference word.",
    ]
    return "\n".join([*lines, "", ""])


def _table(title: str, counter: Counter[str]) -> Iterator[str]:
    yield f"{title:<33}Total                 ({len(counter)})"
    yield f"{'':<33}With >=  1 occurrences ({len(counter)})"
    yield ""
    for rank, (name, count) in enumerate(most_common(counter), start=1):
        yield f"{rank:4}: {count:4}  ->  {name}"
    yield "     -------"
    yield f"{sum(counter.values()):10}"
    yield from ("", "", "")


def _percent(number: int, total: int) -> str:
    return f"{_share(number, total)}   ({number:4})"


def _share(number: int, total: int) -> str:
    return f"{100 * number / total if total else 0:5.1f}%"


def write_sgml(score: Score, title: str) -> str:
    """Every alignment in the markup that sc_stats, of the same tools, reads for its tests."""
    lines = [
        f'<SYSTEM title="{_attribute(title)}" ref_fname="" hyp_fname="" creation_date="" format="2.4" '
        f'frag_corr="FALSE" opt_del="FALSE" weight_ali="FALSE" weight_filename="">'
    ]
    sequence = 0
    for speaker, utterances in _by_speaker(score).items():
        lines += [f'<SPEAKER id="{_attribute(speaker)}">']
        for utterance in utterances:
            steps, id = utterance.operations, _attribute(utterance.id)
            lines += [f'<PATH id="({id})" word_cnt="{len(steps)}" sequence="{sequence}">']
            lines += [":".join(map(_step, steps)), "</PATH>"]
            sequence += 1
        lines += ["</SPEAKER>"]
    return "\n".join([*lines, "</SYSTEM>", ""])


def _step(operation: Operation) -> str:
    reference, hypothesis = (f'"{_attribute(word)}"' if word else "" for word in operation[1:])
    return f"{LETTERS[operation.kind]},{reference},{hypothesis}"


def _attribute(text: str) -> str:
    return re.sub(r'["\n]', "'", text)


def _by_speaker(score: Score) -> dict[str, list[UtteranceScore]]:
    speakers: dict[str, list[UtteranceScore]] = {}
    for utterance in score.utterances:
        speakers.setdefault(utterance.speaker or "unknown", []).append(utterance)
    return speakers


SCORE_FORMATS: dict[str, Callable[[Score, str], str]] = {
    "pra": write_pra,
    "dtl": write_dtl,
    "sgml": write_sgml,
}
