"""Count the recognized words of meetings that have the right speaker.

python tools/score_word_speakers.py data/conversations/test.json test_base_en.stm.gz

All words of a meeting are aligned with the reference, whoever says them. Of the recognized words, the ones
with the speaker of the reference are right, under the best one-to-one mapping of labels to speakers. Rows
group the meetings as in tools/score_meetings.py.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np
from rapidfuzz.distance import Levenshtein
from scipy.optimize import linear_sum_assignment
from score_meetings import list_rows

from asr.scoring.intervals import find_rate_interval
from asr.speakers.meeting_scores import read_meeting
from asr.text.normalization import normalize_english
from asr.transcripts.readers import Role

Said = tuple[str, str]  # a word and its speaker


def read_words(path: str, role: Role) -> dict[str, list[Said]]:
    """Return the words of each recording, turn by turn."""
    words: dict[str, list[Said]] = defaultdict(list)
    entries = read_meeting(path, role).entries.values()
    for entry in sorted(entries, key=lambda entry: entry.start or 0.0):
        words[str(entry.recording)] += [
            (w, str(entry.speaker)) for w in normalize_english(entry.text or "").split()
        ]
    return words


def match_words(reference: list[Said], hypothesis: list[Said]) -> Iterator[tuple[str, str]]:
    """Yield the speaker and the label of each word that is recognized."""
    for code in Levenshtein.opcodes([word for word, _ in reference], [word for word, _ in hypothesis]):
        if code.tag == "equal":
            said = reference[code.src_start : code.src_end], hypothesis[code.dest_start : code.dest_end]
            yield from ((speaker, label) for (_, speaker), (_, label) in zip(*said, strict=True))


def count_wrong(pairs: list[tuple[str, str]]) -> int:
    """Count the pairs whose label is not mapped to the speaker."""
    speakers, labels = (sorted(set(own)) for own in zip(*pairs, strict=True))
    counts, cells = Counter(pairs), itertools.product(speakers, labels)
    table = np.reshape([counts[cell] for cell in cells], (len(speakers), len(labels)))
    return len(pairs) - int(table[linear_sum_assignment(table, maximize=True)].sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("reference", help="turns with words, as SegLST")
    parser.add_argument("hypothesis", help="labeled transcripts, as STM")
    args = parser.parse_args()
    reference, hypothesis = read_words(args.reference, "reference"), read_words(args.hypothesis, "hypothesis")
    found = {name: list(match_words(words, hypothesis.get(name, []))) for name, words in reference.items()}
    counts = {name: (count_wrong(pairs), len(pairs)) for name, pairs in found.items() if pairs}
    for title, names in list_rows(sorted(counts)).items():
        rows = np.array([counts[name] for name in names])
        (wrong, words), interval = rows.sum(axis=0).tolist(), find_rate_interval(rows)
        limits = "" if interval is None else f" ({100 * interval.low:.1f} to {100 * interval.high:.1f})"
        print(f"{title}: {words - wrong:,} of {words:,} right, {100 * wrong / words:.1f}{limits} % wrong")


if __name__ == "__main__":
    main()
