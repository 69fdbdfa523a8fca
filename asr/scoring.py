"""Word and character errors between references and hypotheses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rapidfuzz.distance import Levenshtein


@dataclass(frozen=True)
class ErrorCount:
    """Least number of edits that turn hypotheses into references, and the length of the references."""

    errors: int
    length: int

    @property
    def rate(self) -> float:
        """Errors per unit of the references; of empty ones, 0 without errors and infinite with some."""
        if self.length == 0:
            return 0.0 if self.errors == 0 else float("inf")
        return self.errors / self.length


def count_word_errors(pairs: Iterable[tuple[str, str]]) -> ErrorCount:
    """Of (reference, hypothesis) pairs; words are separated by white space."""
    return _count((reference.split(), hypothesis.split()) for reference, hypothesis in pairs)


def count_character_errors(pairs: Iterable[tuple[str, str]]) -> ErrorCount:
    """Of (reference, hypothesis) pairs; a space is a character too."""
    return _count((list(reference), list(hypothesis)) for reference, hypothesis in pairs)


def _count(pairs: Iterable[tuple[list[str], list[str]]]) -> ErrorCount:
    errors = length = 0
    for reference, hypothesis in pairs:
        errors += Levenshtein.distance(reference, hypothesis)
        length += len(reference)
    return ErrorCount(errors, length)
