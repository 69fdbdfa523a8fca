"""The style of pages and docstrings: short sentences, whole phrases, American spelling, the field's terms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
PAGES += [path for path in (ROOT / "recipes").rglob("*.md") if not {"results", "studies"} & {*path.parts}]
CODE = [path for folder in ("asr", "tools", "recipes") for path in (ROOT / folder).rglob("*.py")]
MOST_WORDS, MEAN_WORDS = 35, 18
FRAGMENT = re.compile(r"(Of|That|Where|When|As|By|With|For|To|From|In|On|At|What|Whose|How|Whether) ")
# British spelling, and words that are no longer used or used by nobody in this field.
AVOIDED = re.compile(
    r"\b(licence\b(?! in the corpus)|colour\w*|behaviour\w*|neighbour\w*|learnt|labelled|centred?|normalis\w+|recognis\w+|quantis\w+"
    r"|synthesis(?:e|ed|er)|lest|anew|dearer|in vain|besides|of before|goes on)\b",
    re.IGNORECASE,
)


def find_sentences(text: str) -> Iterator[str]:
    """Sentences of paragraphs and list items; tables, headings and code have none."""
    text = re.sub(r"```.*?```", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"^\s*(\||#|!\[|<).*$", "\n", text, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", text):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
        plain = re.sub(r"`[^`]*`", "CODE", plain)
        yield from re.split(r"(?<=[.!?:])[\"')*]*\s+(?=[\"'(*]*[A-Z0-9])", plain)


def count_words(sentence: str) -> int:
    return len(re.findall(r"[A-Za-z0-9][\w'.,%-]*", sentence))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short(page: Path) -> None:
    sentences = [one for one in find_sentences(page.read_text(encoding="utf-8")) if count_words(one) >= 3]
    assert not [one for one in sentences if count_words(one) > MOST_WORDS]
    assert sum(map(count_words, sentences)) <= MEAN_WORDS * len(sentences) or len(sentences) < 5


def test_docstrings_are_whole_phrases() -> None:
    """A first line that only makes sense after the name above it is none."""
    fragments = []
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef | ast.Module):
                text = ast.get_docstring(node) or ""
                if FRAGMENT.match(text):
                    fragments.append(f"{path.relative_to(ROOT)}: {text.splitlines()[0]}")
    assert not fragments, "\n".join(fragments)


def test_words_are_those_of_the_field_and_of_america() -> None:
    found = []
    for path in {*PAGES, *CODE, *(ROOT / "tests").rglob("*.py")} - {Path(__file__)}:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if (match := AVOIDED.search(line)) and "did you mean license" not in line:
                found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")
    assert not found, "\n".join(found)
