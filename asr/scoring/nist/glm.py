"""Global mapping files (GLM): rewrite words before scoring, as csrfilt.sh -dh of NIST's toolkit does.

;; the first line shows what begins a comment
* case_sensitive = 'F'
OKAY => O. K. / [ ] __ [ ]           a rule, and what must stand to its left and right
AIN'T => [{ARE NOT / HAVE NOT}] / [ ] __ [ ]
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from asr.data.text_lines import BLANKS, open_lines
from asr.errors import shorten
from asr.transcripts.readers import Entry, TranscriptFile
from asr.transcripts.transcript import Word

_TRUE = ("T", "YES", "TRUE")
_TO_UPPER = {letter: letter - 32 for letter in range(ord("a"), ord("z") + 1)}
_QUOTED = re.compile("[\"']([^\"']*)[\"']")
_CONDITION = re.compile(r";;\s+INPUT_DEPENDENT_APPLICATION\s*=")
_FIRST_OPTIONAL = re.compile(r"(\(\s+[^()\s]+\s+)([^()\s]+)")
_HYPHEN = re.compile(r"([^( ])-(?=[^) ])")


class Rule(NamedTuple):
    """`pattern` becomes `replacement` between `left` and `right`, which stay."""

    pattern: str
    replacement: str
    left: str
    right: str


class GlobalMapping:
    """The rules of a file."""

    def __init__(self, rules: Iterable[Rule], is_case_sensitive: bool) -> None:
        self._is_case_sensitive = is_case_sensitive
        self._rules: dict[str, list[Rule]] = {}
        for rule in rules:
            pattern, left, right = map(self._fold, (rule.pattern, rule.left, rule.right))
            if pattern:
                self._rules.setdefault(pattern[0], []).append(Rule(pattern, rule.replacement, left, right))

    def rewrite(self, text: str) -> str:
        """The text in upper case (A to Z), after the first rule that fits at each character, in order.

        A rule applies to the original text, not to the output of others; blanks are before and after the
        text, and around each bracket of optional words. Then words are split at their hyphens.
        """
        text = f"  {' '.join(text.split())}  ".translate(_TO_UPPER).replace("(", "( ").replace(")", " )")
        folded, parts, position = self._fold(text), [], 0
        while position < len(text):
            rule = self._find_rule(folded, position)
            parts.append(text[position] if rule is None else rule.replacement)
            position += 1 if rule is None else len(rule.pattern)
        text = _HYPHEN.sub(r"\1 ", "".join(parts))
        while (spread := _FIRST_OPTIONAL.sub(r"\1) ( \2", text)) != text:  # (A B) is (A) (B)
            text = spread
        return re.sub(r"\s+\)", ")", re.sub(r"\(\s+", "(", " ".join(text.split())))

    def _find_rule(self, text: str, position: int) -> Rule | None:
        for rule in self._rules.get(text[position], ()):
            left = position - len(rule.left)
            if (
                text.startswith(rule.pattern, position)
                and left >= 0
                and text.startswith(rule.left, left)
                and text.startswith(rule.right, position + len(rule.pattern))
            ):
                return rule
        return None

    def _fold(self, text: str) -> str:
        return text if self._is_case_sensitive else text.translate(_TO_UPPER)


def apply_mapping(mapping: GlobalMapping, file: TranscriptFile) -> TranscriptFile:
    """Rewrite all texts of a file, or word by word those whose times are known."""
    return replace(file, entries={id: _rewrite(mapping, entry) for id, entry in file.entries.items()})


def _rewrite(mapping: GlobalMapping, entry: Entry) -> Entry:
    words: list[Word] = []
    for word in entry.words:
        rewritten = mapping.rewrite(word.text)
        parts = [rewritten] if "{" in rewritten else rewritten.split()  # alternatives stay together
        step = (word.end - word.start) / max(len(parts), 1)
        for number, part in enumerate(parts):
            start = word.start + step * number
            words.append(replace(word, text=part, start=start, end=start + step))
    text = " ".join(word.text for word in words) if words else entry.text and mapping.rewrite(entry.text)
    return replace(entry, words=tuple(words), text=text)


# --- files --------------------------------------------------------------------------------------


def read_mapping(path: str | Path) -> GlobalMapping:
    """Read the rules of a file. What would rewrite only one side, or drop words, is refused."""
    rules: list[Rule] = []
    is_case_sensitive = True
    mark = ""
    with open_lines(path) as lines:
        for number, line in lines.numbered:
            if number == 1:
                mark = line.split(maxsplit=1)[0] if line[:1].strip(BLANKS) else ""
                if not mark or "=>" in line:
                    raise lines.error(1, f"{shorten(line)}: expected the mark of comments, such as ;;")
            if _CONDITION.match(line):
                raise lines.error(number, f"{shorten(line)}: expected rules for all files; remove the others")
            line = line.rstrip(BLANKS)
            if number == 1 or line.startswith(mark):
                continue
            if line.startswith("*"):
                if (value := _QUOTED.search(line)) is None:
                    raise lines.error(number, f"{shorten(line)}: expected * name = 'value'")
                if re.match(r"\*\s*FORMAT\b", line, re.IGNORECASE) and value[1] != "NIST1":
                    raise lines.error(number, f"format {shorten(value[1])}: expected NIST1")
                if "CASE_SENSITIVE" in line.upper():
                    is_case_sensitive = value[1].upper() in _TRUE
                if "COPY_NO_HIT" in line.upper() and value[1].upper() not in _TRUE:
                    raise lines.error(number, f"{shorten(line)}: expected T, as words without a rule stay")
            elif rule := line.partition(mark)[0].rstrip(BLANKS):
                if "=>" not in rule:
                    raise lines.error(number, f"{shorten(rule)}: expected a rule, FOUND => REPLACEMENT")
                rules.append(parse_rule(rule))
    return GlobalMapping(rules, is_case_sensitive)


def parse_rule(line: str) -> Rule:
    """Read FOUND => REPLACEMENT / LEFT __ RIGHT as rfilter1 does: brackets or quotes around a part keep its
    blanks, and the last slash that is in no brackets begins the contexts."""
    arrow, slash, slot = line.index("=>"), line.rfind("/"), -1
    if slash >= 0:
        if line.find("]", slash) < line.find("[", slash):  # [ or no bracket after ]: the slash is inside
            slash = -1
        else:
            slot = line.find("_", slash)
    pattern = _strip_bounds(line[:arrow].strip(BLANKS))
    replacement = _read_part(line, arrow, slash)
    if slot < 0:
        return Rule(pattern, replacement, "", "")
    return Rule(pattern, replacement, _read_part(line, slash, slot), _read_part(line, slot, -1))


def _read_part(line: str, start: int, stop: int) -> str:
    """Read the text after the word at `start`, up to `stop`, or to the end."""
    part = (line[start:] if stop < 0 else line[start:stop]).rstrip(BLANKS)
    words = re.split(f"[{BLANKS}]+", part, maxsplit=1)
    return _strip_bounds(words[1]) if len(words) > 1 else ""


def _strip_bounds(part: str) -> str:
    return part[1:-1] if len(part) > 1 and part[0] + part[-1] in ("[]", '""') else part
