"""Lines of text files, pipes and standard input; other encodings and endless lines get clear answers."""

from __future__ import annotations

import codecs
import contextlib
import os
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from asr.errors import UserError, shorten
from asr.files import unpack

BLANKS = " \t\r\n\v\f"  # white space that no text needs; all else, such as U+00A0, belongs to it
MAX_LINE_BYTES = 50_000_000  # a transcript of some days, with the times of all words, as one JSON record


@dataclass(frozen=True)
class Lines:
    """The lines of a text file, with the name that messages call it by."""

    name: str
    folder: str
    """Relative audio paths start here."""
    numbered: Iterator[tuple[int, str]]
    """(number, line without its line feed); blank lines too."""

    def error(self, number: int, message: str) -> UserError:
        return UserError(f"{self.name}:{number}: {message}")


@contextlib.contextmanager
def open_lines(path: str | Path) -> Iterator[Lines]:
    """The lines of a file, pipe or standard input ("-"). UTF-8, or what a byte order mark says."""
    path = str(path)
    name = "standard input" if path == "-" else path
    folder = "." if path == "-" else os.path.dirname(os.path.abspath(path))
    try:
        with _open(path) as file:
            yield Lines(name, folder, _decode_lines(name, unpack(file, name)))
    except OSError as error:
        raise UserError(f"{name}: cannot read the file ({error.strerror})") from None


def read_text_lines(path: str | Path) -> Iterator[tuple[str, str]]:
    """(path:number, stripped line) of each line that is not blank."""
    with open_lines(path) as lines:
        for number, line in lines.numbered:
            if stripped := line.strip(BLANKS):
                yield f"{path}:{number}", stripped


def _open(path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    if path == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    if stat.S_ISDIR(os.stat(path).st_mode):
        raise UserError(f"{path}: a folder; expected a text file")
    return open(path, "rb")


_MARKS = (  # the longer ones first: UTF-32 begins as UTF-16 does
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def _decode_lines(name: str, file: IO[bytes]) -> Iterator[tuple[int, str]]:
    head = file.read(4)
    mark, encoding = next(((m, e) for m, e in _MARKS if head.startswith(m)), (b"", "utf-8"))
    carry = head[len(mark) :]
    newline = "\n".encode(encoding)
    read: Callable[[], bytes] = lambda: file.read(1 << 20)  # noqa: E731
    for number, raw in enumerate(_split_bytes(name, carry, read, newline), start=1):
        yield number, _decode(name, number, raw, encoding)


def _split_bytes(name: str, carry: bytes, read: Callable[[], bytes], newline: bytes) -> Iterator[bytes]:
    """Lines without their ends. A line that is too long is refused before memory holds it."""
    width, number, pending = len(newline), 0, [carry]
    pending_size = len(carry)
    while True:
        block = read()
        if block and newline not in block and pending_size + len(block) <= MAX_LINE_BYTES and width == 1:
            pending.append(block)
            pending_size += len(block)
            continue
        data = b"".join([*pending, block])
        begin = position = 0
        while (position := data.find(newline, position)) >= 0:
            if (position - begin) % width:  # the end of one character and the beginning of the next
                position += 1
                continue
            number += 1
            yield data[begin:position]
            begin = position = position + width
        pending = [data[begin:]]
        pending_size = len(pending[0])
        if pending_size > MAX_LINE_BYTES:
            raise UserError(
                f"{name}:{number + 1}: the line is longer than {MAX_LINE_BYTES:,} bytes and begins with "
                f"{shorten(pending[0][:100])}; expected shorter lines of text"
            )
        if not block:
            break
    if pending[0]:
        yield pending[0]


def _decode(name: str, number: int, raw: bytes, encoding: str) -> str:
    if encoding == "utf-8" and b"\0" in raw:
        wide = raw.count(b"\0") * 3 > len(raw)
        what = "UTF-16 without a byte order mark" if wide else "a binary file"
        raise UserError(
            f"{name}:{number}: NUL at byte {raw.index(0) + 1}; is it {what}? expected UTF-8 text: "
            + ("convert it, as by `iconv -f utf-16le -t utf-8`" if wide else "give a text file")
        )
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        rest = raw[error.start : error.start + 20]
        raise UserError(
            f"{name}:{number}: byte {error.start + 1} is not {encoding.upper()} ({shorten(rest)}); "
            f"convert the file, as by `iconv -f latin1 -t utf-8` if it is Latin-1"
        ) from None
