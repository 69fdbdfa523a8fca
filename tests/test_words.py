"""The style of pages and docstrings: joined sentences, whole phrases, American spelling, the field's terms."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
PAGES += [path for path in (ROOT / "recipes").rglob("*.md") if not {"results", "studies"} & {*path.parts}]
CODE = [path for folder in ("asr", "tools", "recipes") for path in (ROOT / folder).rglob("*.py")]
MOST_WORDS, SHORT, MOST_SHORT_IN_A_ROW = 40, 12, 5
FRAGMENT = re.compile(r"(Of|That|Where|When|As|By|With|For|To|From|In|On|At|What|Whose|How|Whether) ")
# British spelling, and words that are no longer used or used by nobody in this field.
AVOIDED = re.compile(
    r"\b(licence\b(?! in the corpus)|colour\w*|behaviour\w*|neighbour\w*|learnt|labelled|centred?|normalis\w+|recognis\w+|quantis\w+"
    r"|synthesis(?:e|ed|er)|lest|anew|dearer|in vain|besides?|of before|goes on|those of|(?<!page )faults?|faulty|mend(?:s|ed|ing)?"
    r"|(?:models?|weights|labels|turns) of (?:the )?speakers?)\b",
    re.IGNORECASE,
)
COINED = re.compile(
    r"is_torn|(num_)?lacking|one_voice|agree_on_name|explain_dead_workers|hold_signals_back|follow_texts|\w*guide_\w*"
    r"|AttentionGuide|remember|forget\w*|Tape|NEVER|Looking\w*|Clock|_?unjudged\w*|find_doubt|tentatively|give_way"
    r"|usual_decoding|whole_(seconds|samples)|chances|hear|heard|say|said|told|wanted"
)


def find_paragraphs(text: str) -> Iterator[str]:
    """Paragraphs and list items without their markup. Where headings, tables and code stand, one is empty."""
    text = re.sub(r"```.*?```", "\n\n#\n\n", text, flags=re.DOTALL)
    text = re.sub(r"^\s*(\||#|!\[|<).*$", "\n\n#\n\n", text, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
        if plain:
            yield re.sub(r"`[^`]*`", "CODE", plain).removeprefix("#")


def find_sentences(paragraph: str) -> list[str]:
    return re.split(r"(?<=[.!?:])[\"')*]*\s+(?=[\"'(*]*[A-Z0-9])", paragraph)


def count_words(sentence: str) -> int:
    return len(re.findall(r"[A-Za-z0-9][\w'.,%-]*", sentence))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_joined_and_not_endless(page: Path) -> None:
    """Short sentences in a row read like a list; outside of lists, thoughts that belong together are joined."""
    row: list[str] = []
    for paragraph in find_paragraphs(page.read_text(encoding="utf-8")):
        is_row = paragraph and not re.match(r"([-*]|\d+\.) ", paragraph)
        for sentence in find_sentences(paragraph):
            if (words := count_words(sentence)) > MOST_WORDS:
                warnings.warn(f"{page.name}: {words} words: {sentence}", stacklevel=1)
            row = [*row, sentence] if is_row and words <= SHORT else []
            assert len(row) <= MOST_SHORT_IN_A_ROW, "\n".join(row)


def find_strings(path: Path) -> Iterator[str]:
    """Docstrings, and the strings below fields."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        body = getattr(node, "body", None)
        for number, statement in enumerate(body if isinstance(body, list) else []):
            is_checked = number == 0 or "speakers" not in path.parts
            if is_checked and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield str(statement.value.value)


def test_docstrings_are_whole_phrases() -> None:
    """A first line that only makes sense after the name above it is none."""
    quoted = re.compile(rf"[\"'](\\\n)?{FRAGMENT.pattern}")
    paths = [path for path in CODE if quoted.search(path.read_text(encoding="utf-8"))]  # the others have none
    found = [(path, text) for path in paths for text in find_strings(path) if FRAGMENT.match(text)]
    assert not found, "\n".join(f"{path.relative_to(ROOT)}: {text.splitlines()[0]}" for path, text in found)


def test_no_coined_names() -> None:
    """Names that nobody in this field would search for, and that once were in the code."""
    for path in (path for path in (ROOT / "asr").rglob("*.py") if "speakers" not in path.parts):
        text = path.read_text(encoding="utf-8")
        if any(map(COINED.fullmatch, re.findall(r"\w+", text))):  # else parsing would take long for nothing
            nodes = list(ast.walk(ast.parse(text)))
            names = {str(getattr(node, key, "")) for node in nodes for key in ("id", "attr", "arg", "name")}
            assert not [name for name in names if COINED.fullmatch(name)], path


def test_words_are_those_of_the_field_and_of_america() -> None:
    found = []
    for path in {*PAGES, *CODE, *(ROOT / "tests").rglob("*.py")} - {Path(__file__)}:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if (match := AVOIDED.search(line)) and "did you mean license" not in line:
                found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")
    assert not found, "\n".join(found)
