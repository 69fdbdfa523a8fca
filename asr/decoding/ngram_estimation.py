"""N-grams from sentences, by interpolated modified Kneser-Ney smoothing (Chen and Goodman 1999).

All counts are kept in memory, as fits transcripts and texts of some ten million words. Nothing is pruned.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence

from asr.decoding.arpa import END, NO_PROBABILITY, START, UNKNOWN, Arpa, Ngram
from asr.errors import UserError

# For counts of 1, 2, and 3 or more, where there are too few n-grams to estimate discounts from.
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)


def estimate_ngrams(sentences: Iterable[Sequence[str]], order: int, vocabulary: Collection[str] = ()) -> Arpa:
    """Words of `vocabulary` that do not occur share what is left for the unknown; so does <unk>."""
    counts = count_ngrams(sentences, order)
    if not counts[0]:
        raise UserError("n-grams are estimated from sentences, but there are none")
    counts = [*map(_adjust, counts, counts[1:]), counts[-1]]
    counts[0].pop((START,), None)  # never predicted, only a context
    words = dict.fromkeys([END, *sorted(word for (word,) in counts[0]), *vocabulary, UNKNOWN])
    words.pop(START, None)

    # Level 0: all words alike.
    lower: dict[Ngram, float] = {(): 1 / len(words)}
    weights: list[dict[Ngram, float]] = []
    levels: list[dict[Ngram, float]] = []
    for level in counts:
        lower, weight = _interpolate(level, lower)
        levels.append(lower)
        weights.append(weight)
    rest = weights[0][()] / len(words)
    unigrams: dict[Ngram, float] = {(word,): levels[0].get((word,), rest) for word in words}
    levels[0] = {(START,): 0.0} | unigrams
    orders = []
    for index, level_probabilities in enumerate(levels):
        longer = weights[index + 1] if index + 1 < order else {}
        orders.append(
            {
                ngram: (_log10(probability), _log10(longer.get(ngram, 1.0)))
                for ngram, probability in level_probabilities.items()
            }
        )
    return Arpa(orders)


def count_ngrams(sentences: Iterable[Sequence[str]], order: int) -> list[Counter[Ngram]]:
    """Count each n-gram of each order; a sentence has one start and one end."""
    counts: list[Counter[Ngram]] = [Counter() for _ in range(order)]
    for sentence in sentences:
        words = (START, *sentence, END)
        if {START, END} & set(sentence):
            raise UserError(f"{' '.join(sentence)[:60]!r}: {START} and {END} stand for start and end; remove")
        for size, counter in enumerate(counts, start=1):
            counter.update(zip(*(words[begin:] for begin in range(size)), strict=False))
    return counts


def _adjust(counts: Counter[Ngram], longer: Counter[Ngram]) -> Counter[Ngram]:
    """Kneser-Ney: in how many contexts, not how often; but nothing stands before a start."""
    contexts = Counter(ngram[1:] for ngram in longer)
    return Counter({ngram: counts[ngram] if ngram[0] == START else contexts[ngram] for ngram in counts})


def _interpolate(
    counts: Counter[Ngram], lower: dict[Ngram, float]
) -> tuple[dict[Ngram, float], dict[Ngram, float]]:
    """The probability of each n-gram, and for each context the weight of the next lower order."""
    discounts = _discounts(counts)
    totals: dict[Ngram, float] = defaultdict(float)
    left: dict[Ngram, float] = defaultdict(float)
    for ngram, count in counts.items():
        totals[ngram[:-1]] += count
        left[ngram[:-1]] += discounts[min(count, 3) - 1]
    weights = {context: left[context] / total for context, total in totals.items()}
    probabilities = {
        ngram: (count - discounts[min(count, 3) - 1]) / totals[ngram[:-1]]
        + weights[ngram[:-1]] * lower[ngram[1:]]
        for ngram, count in counts.items()
    }
    return probabilities, weights


def _discounts(counts: Counter[Ngram]) -> tuple[float, ...]:
    """Discounts of counts of 1, 2, and 3 or more, from the numbers of n-grams that occur 1 to 4 times."""
    having = Counter(min(count, 5) for count in counts.values())
    if not all(having[count] for count in (1, 2, 3)):
        return FALLBACK_DISCOUNTS
    share = having[1] / (having[1] + 2 * having[2])
    found = tuple(n - (n + 1) * share * having[n + 1] / having[n] for n in (1, 2, 3))
    return found if all(0 <= value <= n for n, value in enumerate(found, start=1)) else FALLBACK_DISCOUNTS


def _log10(probability: float) -> float:
    return math.log10(probability) if probability > 0 else NO_PROBABILITY
