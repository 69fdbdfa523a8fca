"""Read lines of text files, pipes and standard input; other encodings and endless lines are refused clearly.

`open_lines` yields decoded lines, `read_lines` bytes with their offsets.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from asr.errors import UserError, shorten
from asr.files import read_limited, unpack

BLANKS = " \t\r\n\v\f"  # white space that is stripped; other space, such as U+00A0, is part of a text
MAX_TEXT_LINE_BYTES = 50_000_000  # a JSON record of several days of transcript with word times
MAX_LINE_BYTES = 1_000_000  # for `read_lines`: about 15 hours of transcript; a longer line is not text


def parse_json(line: bytes | str) -> Any:
    """Parse JSON; return None if it is invalid."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def read_object(path: Path, max_bytes: int, reason: str) -> dict[str, Any]:
    """Read a file that is a JSON object; a file larger than `max_bytes` is refused with this reason."""
    tree = parse_json(read_limited(path, max_bytes, reason))
    if not isinstance(tree, dict):
        raise UserError(f"{path}: not a JSON object, or nested too deeply; download it again")
    return tree


@dataclass(frozen=True)
class Lines:
    """The lines of a text file, with its name for messages."""

    name: str
    folder: str  # the folder that relative audio paths refer to
    numbered: Iterator[tuple[int, str]]  # (number, line without its newline), including blank lines

    def error(self, number: int, message: str) -> UserError:
        return UserError(f"{self.name}:{number}: {message}")


@contextlib.contextmanager
def open_lines(path: str | Path) -> Iterator[Lines]:
    """Open a file, pipe or standard input ("-") as UTF-8, or as its byte order mark says."""
    path = str(path)
    name = "standard input" if path == "-" else path
    folder = "." if path == "-" else os.path.dirname(os.path.abspath(path))
    try:
        with _open(path) as file:
            yield Lines(name, folder, _decode_lines(name, unpack(file, name)))
    except OSError as error:
        raise UserError(f"{name}: cannot read the file ({error.strerror})") from None


def read_text_lines(path: str | Path) -> Iterator[tuple[str, str]]:
    """Yield (path:number, stripped line) for each line that is not blank."""
    with open_lines(path) as lines:
        for number, line in lines.numbered:
            if stripped := line.strip(BLANKS):
                yield f"{path}:{number}", stripped


_GAP = re.compile(f"[{BLANKS}]+")


def read_id_texts(lines: Lines, separator: str | None = None) -> Iterator[tuple[int, str, str]]:
    """Yield (number, ID, text) for each line that is not blank; `separator` defaults to white space.

    If a line has only an ID, its text is empty.
    """
    for number, line in lines.numbered:
        if stripped := line.strip(BLANKS):
            id, *text = stripped.split(separator, 1) if separator else _GAP.split(stripped, maxsplit=1)
            yield number, id, text[0].strip(BLANKS) if text else ""


def read_texts(path: str | Path, separator: str | None = None) -> dict[str, str]:
    """Return a dict from ID to text; each line must have both, and each ID only one text."""
    texts: dict[str, str] = {}
    with open_lines(path) as lines:
        for number, id, text in read_id_texts(lines, separator):
            if not text or texts.setdefault(id, text) != text:
                raise lines.error(number, f"expected a new id and its text, found {shorten(id)}")
    return texts


def read_decoded(
    path: str | Path, encoding: str = "utf-8", errors: str = "strict"
) -> Iterator[tuple[int, str]]:
    """Yield (number, stripped line) for each line that is not blank, in the given encoding."""
    for number, _, line in read_lines(path):
        try:
            text = line.decode(encoding, errors).strip()
        except UnicodeDecodeError:
            raise UserError(f"{path}:{number}: not {encoding.upper()} text: {shorten(line[:100])}") from None
        if text:
            yield number, text


def _open(path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    if path == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    if stat.S_ISDIR(os.stat(path).st_mode):
        raise UserError(f"{path}: is a folder; expected a text file")
    return open(path, "rb")


_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_MARKS = (  # longer ones first, because UTF-32-LE begins like UTF-16-LE
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def _decode_lines(name: str, file: io.BufferedReader) -> Iterator[tuple[int, str]]:
    """Yield numbered lines; a line that is too long is refused before all of it is in memory."""
    head = file.peek(4)
    mark, encoding = next(((m, e) for m, e in _MARKS if head.startswith(m)), (b"", "utf-8"))
    file.read(len(mark))
    # Invalid UTF-8 becomes lone surrogates, from which line and byte can be reported.
    text = io.TextIOWrapper(file, encoding, "surrogateescape", newline="\n")
    number = 1
    try:
        while line := text.readline(MAX_TEXT_LINE_BYTES + 1):
            if len(line) > MAX_TEXT_LINE_BYTES:
                raise UserError(
                    f"{name}:{number}: the line is longer than {MAX_TEXT_LINE_BYTES:,} bytes and begins with "
                    f"{shorten(line[:100])}; expected shorter lines of text"
                )
            if encoding == "utf-8":
                _require_text(name, number, line)
            yield number, line.removesuffix("\n")
            number += 1
    except UnicodeDecodeError:
        raise UserError(f"{name}:{number}: not {encoding.upper()}, although its first bytes say so") from None
    finally:
        with contextlib.suppress(ValueError):  # already closed
            text.detach()  # otherwise standard input would be closed, too


def _require_text(name: str, number: int, line: str) -> None:
    if "\0" in line:
        raise UserError(
            f"{name}:{number}: NUL at byte {line.index(chr(0)) + 1}, as in a binary file or in UTF-16 "
            "without a byte order mark; expected UTF-8 text: convert it with `iconv -f utf-16le -t utf-8`"
        )
    if not line.isascii() and (found := _NOT_UTF8.search(line)):
        start = len(line[: found.start()].encode())
        rest = line[found.start() : found.start() + 20].encode("utf-8", "surrogateescape")
        raise UserError(
            f"{name}:{number}: byte {start + 1} is not UTF-8 ({shorten(rest)}); "
            f"convert the file, with `iconv -f latin1 -t utf-8` if it is Latin-1"
        )


# --- bytes ----------------------------------------------------------------------------------


def read_lines(path: str | Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield (number, byte offset, line) for each line that is not blank, without newline and byte order mark.

    A line that is too long is cut to MAX_LINE_BYTES + 1 bytes; the rest is never in memory.
    """
    try:
        with open_regular(path) as packed, unpack(packed, path) as file:
            offset = number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                begin, offset = offset, offset + len(line)
                rest = line
                while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
                    rest = file.readline(MAX_LINE_BYTES + 1)
                    offset += len(rest)
                if number == 1 and b"\0" in line:
                    raise UserError(f"{path}: NUL at byte {line.index(0) + 1}; expected UTF-8 text")
                if number == 1 and line.startswith(codecs.BOM_UTF8):
                    line, begin = line[3:], begin + 3
                if line and not line.isspace():
                    yield number, begin, line.rstrip(b"\n")
    except OSError as error:
        raise UserError(f"{path}: cannot read the file ({error.strerror})") from None


def open_regular(path: str | Path) -> IO[bytes]:
    """Open a file for reading. Folders are refused, and so are pipes, which could block forever."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UserError(f"{path}: not a regular file; give the path of a file")
        return open(path, "rb")
    except OSError as error:
        raise UserError(f"{path}: cannot read the file ({error.strerror})") from None
