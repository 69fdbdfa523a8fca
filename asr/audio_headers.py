"""Reads from the first and last bytes what no library tells: not audio, MP3 with a length, Ogg cut short."""

from __future__ import annotations

import os
import re
from typing import BinaryIO

_OTHER_KINDS = {
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "a gzip archive",
    b"%PDF": "a PDF",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"<!": "an HTML page",
    b"<h": "an HTML page",
    b"<H": "an HTML page",
    b"<?": "an XML page",
}
_TEXT_BYTES = bytes(range(0x20, 0x7F)) + b"\t\n\f\r"

_LONGEST_OGG_PAGE = 65_307  # bytes


def name_other_kind(head: bytes) -> str | None:
    """What people mistake for audio; None: it may be audio."""
    for start, kind in _OTHER_KINDS.items():
        if head.lstrip().startswith(start):
            return kind
    is_text = not head.translate(None, _TEXT_BYTES)
    return f"text (it starts with {head[:40].decode()!r})" if is_text else None


def inspect_ogg_end(file: BinaryIO) -> tuple[bool, bool]:
    """Whether the last page of an Ogg file is cut, and whether it is of another stream than the first."""
    file.seek(0)
    head = file.read(18)
    if not head.startswith(b"OggS"):
        return False, False
    file.seek(max(0, os.fstat(file.fileno()).st_size - _LONGEST_OGG_PAGE))
    tail = file.read()
    page = tail[tail.rfind(b"OggS\0") :]
    is_cut = len(page) < 27 or len(page) < 27 + page[26] + sum(page[27 : 27 + page[26]])
    return is_cut, page[14:18] != head[14:18]


def has_length_tag(file: BinaryIO) -> bool:
    """Whether the first frame of an MP3 file tells how many follow, and those make up the file.

    Where much more follows, such as pictures or a second recording, FFmpeg guesses the length from it all.
    """
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    head = file.read(10).ljust(10, b"\0")
    begin = 0
    if head.startswith(b"ID3"):
        begin = 10 + sum(byte << shift for byte, shift in zip(head[6:], (21, 14, 7, 0), strict=True))
    file.seek(begin)
    tag = re.search(rb"(?:Xing|Info)\0\0\0[\3\7\x0b\x0f].{4}(.{4})", file.read(256), re.DOTALL)
    return tag is not None and size - begin < 1.05 * int.from_bytes(tag[1], "big")
