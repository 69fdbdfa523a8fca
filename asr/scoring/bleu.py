"""Corpus BLEU, by sacrebleu with its defaults: counts that can be added up, and the score of their sums."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from asr.errors import UserError

NUM_COUNTS = 10
"""Right n-grams of length 1 to 4, all n-grams of length 1 to 4, words of hypotheses, words of references."""


def load_sacrebleu() -> Any:
    try:
        import sacrebleu
    except ImportError as error:
        raise UserError("BLEU is computed by sacrebleu, which is not here; pip install sacrebleu") from error
    return sacrebleu


def count_bleu(pairs: Sequence[tuple[str | Sequence[str], str]]) -> list[int]:
    """Count the n-grams of (reference, hypothesis) pairs; a reference may be several texts."""
    if not pairs:
        return [0] * NUM_COUNTS
    references, hypotheses = zip(*pairs, strict=True)
    texts = ([text] if isinstance(text, str) else text for text in references)
    found = load_sacrebleu().corpus_bleu(list(hypotheses), list(itertools.zip_longest(*texts)))
    return [*found.counts, *found.totals, found.sys_len, found.ref_len]


def compute_bleu(counts: Sequence[float]) -> float:
    """0 to 100, of the sum of the counts of all parts of a corpus."""
    correct, totals, (length, reference_length) = counts[:4], counts[4:8], map(int, counts[8:])
    metric = load_sacrebleu().metrics.BLEU
    score = metric.compute_bleu(
        correct=[int(count) for count in correct],
        total=[int(count) for count in totals],
        sys_len=length,
        ref_len=reference_length,
        smooth_method="exp",
        max_ngram_order=4,
    ).score
    return float(score)
