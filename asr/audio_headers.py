"""Judges a file by its first bytes: is it no audio at all, does it promise more than is there?"""

from __future__ import annotations

import math
import os
import re
import struct
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

_MAX_CHUNKS = 10_000  # of a WAV file, before the sound
_MPEG_CODECS = (0x50, 0x55)  # MP2 and MP3 inside WAV
# Programs that cannot know the length, as FFmpeg and SoX writing into a pipe, put 2 GiB less a bit, or more.
_STREAMED_BYTES = 0x7FFF_0000
_LONGEST_OGG_PAGE = 65_307  # bytes
# The tables of an MP4 file with an entry for each packet, and how many entries they claim.
_MP4_TABLES = re.compile(rb"(?:stsz|stz2).{8}(.{4})|trun.{4}(.{4})", re.DOTALL)
_MAX_TABLE_BYTES = 1 << 28
_MAX_BOXES = 100_000  # of an MP4 file in fragments: a day or so


def name_other_kind(head: bytes) -> str | None:
    """What people mistake for audio; None: it may be audio."""
    for start, kind in _OTHER_KINDS.items():
        if head.lstrip().startswith(start):
            return kind
    is_text = not head.translate(None, _TEXT_BYTES)
    return f"text (it starts with {head[:40].decode()!r})" if is_text else None


def measure_promise(file: BinaryIO, head: bytes) -> float | None:
    """Promised bytes of sound over present ones; inf if the end is torn. None: not a case for libsndfile.

    libsndfile reads what there is of a file that was cut short, and says nothing. `head`: the first 4 kB.
    """
    size = os.fstat(file.fileno()).st_size
    if head.startswith(b"OggS"):
        return _measure_ogg(file, head, size)
    if head.startswith(b"NIST"):
        return _measure_sphere(head, size)
    if head.startswith(b"riff") and len(head) >= 24:  # W64, whose header counts the whole file
        return struct.unpack("<Q", head[16:24])[0] / size
    if head.startswith((b"RIFF", b"RIFX", b"RF64", b"FORM")):
        return _measure_chunks(file, head, size) if head[8:12] in (b"WAVE", b"AIFF", b"AIFC") else None
    return 1.0  # the decoders of FLAC and CAF notice


def _measure_chunks(file: BinaryIO, head: bytes, size: int) -> float | None:
    """WAV and AIFF: a list of named chunks, one of which holds the sound."""
    order = "<" if head[:4] in (b"RIFF", b"RF64") else ">"
    position, codec, promised, long_promised = 12, 0, 0, 0
    for _ in range(_MAX_CHUNKS):
        file.seek(position)
        chunk = file.read(24).ljust(24, b"\0")
        name, promised = struct.unpack(order + "4sI", chunk[:8])
        if name == b"fmt ":
            (codec,) = struct.unpack(order + "H", chunk[8:10])
        elif name == b"ds64":
            (long_promised,) = struct.unpack("<Q", chunk[16:24])
        position += 8
        if name in (b"data", b"SSND") or position >= size:
            break
        position += promised + promised % 2
    else:
        return 1.0
    present = size - position
    if present <= 0:
        return 1.0  # no samples, which needs no comparison
    (file_bytes,) = struct.unpack(order + "I", head[4:8])
    is_unfinished = promised == 0 and (file_bytes + 8 <= position or file_bytes >= _STREAMED_BYTES)
    if is_unfinished or codec in _MPEG_CODECS:
        return None
    if promised == 0xFFFF_FFFF and long_promised:
        return long_promised / present
    return 1.0 if promised >= _STREAMED_BYTES else promised / present


def _measure_sphere(head: bytes, size: int) -> float | None:
    if b"shorten" in head:
        return None
    header_size = re.match(rb"NIST_1A\n *(\d{1,9})\n", head)
    counts = dict(re.findall(rb"(sample_count|channel_count|sample_n_bytes) -\w+ (\d{1,15})\s", head))
    if header_size is None or len(counts) < 3:
        return 1.0
    return math.prod(map(int, counts.values())) / max(size - int(header_size[1]), 1)


def _measure_ogg(file: BinaryIO, head: bytes, size: int) -> float | None:
    file.seek(max(0, size - _LONGEST_OGG_PAGE))
    tail = file.read()
    page = tail[tail.rfind(b"OggS\0") :]
    if len(page) < 27 or len(page) < 27 + page[26] + sum(page[27 : 27 + page[26]]):
        return math.inf
    # Another serial number at the end: streams one after the other, of which libsndfile reads the first only.
    return 1.0 if page[14:18] == head[14:18] else None


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


def count_packets(file: BinaryIO) -> int:
    """Packets that the tables of an MP4 file list, else 0: FFmpeg makes room for as many before it looks."""
    size = os.fstat(file.fileno()).st_size
    count = position = 0
    for _ in range(_MAX_BOXES):
        if position >= size:
            break
        file.seek(position)
        length, name, long_length = struct.unpack(">I4sQ", file.read(16).ljust(16, b"\0"))
        length = {0: size - position, 1: long_length}.get(length, length)
        if length < 8 or not re.fullmatch(rb"[\w ]{4}", name):
            break
        if name != b"mdat":
            file.seek(position)
            for table in re.finditer(_MP4_TABLES, file.read(min(length, _MAX_TABLE_BYTES))):
                count += int.from_bytes(table[1] or table[2], "big")
        position += length
    return count
