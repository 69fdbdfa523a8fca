"""Detect from a file's bytes what no library tells: not audio, MP3 with a length, cut Ogg, MP4 that lies."""

from __future__ import annotations

import math
import os
import re
import struct
from collections import defaultdict
from typing import BinaryIO

import numpy as np

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

# What is given by its own name is read, or refused, by what is in it. In a folder, other files are no fault.
# fmt: off
AUDIO_SUFFIXES = frozenset((
    ".aac", ".ac3", ".aif", ".aifc", ".aiff", ".amr", ".ape", ".au", ".avi", ".caf", ".dts", ".flac", ".flv",
    ".gsm", ".m4a", ".m4b", ".m4v", ".mka", ".mkv", ".mov", ".mp1", ".mp2", ".mp3", ".mp4", ".mpeg", ".mpg",
    ".mts", ".oga", ".ogg", ".ogv", ".opus", ".ra", ".rf64", ".rm", ".snd", ".sph", ".spx", ".tta", ".vob",
    ".voc", ".w64", ".wav", ".wave", ".weba", ".webm", ".wma", ".wmv", ".wv",
))
# fmt: on

_LONGEST_OGG_PAGE = 65_307  # bytes


def name_other_kind(head: bytes) -> str | None:
    """Name a kind of file that people mistake for audio; None: it may be audio."""
    for start, kind in _OTHER_KINDS.items():
        if head.lstrip().startswith(start):
            return kind
    is_text = not head.translate(None, _TEXT_BYTES)
    return f"text (it starts with {head[:40].decode()!r})" if is_text else None


def inspect_ogg_end(file: BinaryIO) -> tuple[bool, bool]:
    """Find out whether the last page of an Ogg file is cut, and whether it is of another stream."""
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
    """Find out whether the first frame of an MP3 file tells how many follow, and those make up the file.

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


# --- MP4 and MOV --------------------------------------------------------------------------------

_MP4_PARENTS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf")
# Boxes to look into, and how many bytes: of stsc all up to a million runs, of the others their first numbers.
_MP4_TABLES = {b"stsc": 12 << 20} | dict.fromkeys((b"hdlr", b"stsz", b"stts", b"stco", b"co64", b"trun"), 16)
_MAX_MP4_BOXES = 1 << 20


def count_claimed_samples(file: BinaryIO) -> float:
    """Count the samples for which FFmpeg allocates 24 to 40 bytes each on the word of an MP4 header alone.

    Those whose sizes are in a table have at least its bytes; those of one size, or of a fragment, need none.
    Infinite where the header is compressed, or has too many boxes; 0 for files of other kinds.
    """
    end = os.fstat(file.fileno()).st_size
    track: dict[bytes, list[bytes]] = defaultdict(list)
    tracks, waiting, num_boxes = [track], [(0, end, track)], 0
    while waiting:
        place, end, track = waiting.pop()
        while place + 8 <= end:
            file.seek(place)
            length, kind, long_length = struct.unpack(">I4sQ", file.read(16).ljust(16, b"\0"))
            start = place + (16 if length == 1 else 8)
            place = min(place + {0: end - place, 1: long_length}.get(length, length), end)
            num_boxes += 1
            if kind == b"cmov" or num_boxes > _MAX_MP4_BOXES:
                return math.inf
            if place < start:
                break
            if kind in _MP4_TABLES:
                file.seek(start)
                track[kind].append(file.read(min(place - start, _MP4_TABLES[kind])))
            elif kind in _MP4_PARENTS:
                if kind == b"trak":
                    tracks.append(defaultdict(list))
                waiting.append((start, place, tracks[-1] if kind == b"trak" else track))
    return sum(map(_count_track_samples, tracks))


def _count_track_samples(track: dict[bytes, list[bytes]]) -> float:
    def number(content: bytes, index: int) -> int:
        return int.from_bytes(content[4 * index : 4 * index + 4], "big")

    num_samples: float = sum(number(table, 2) for table in track[b"stsz"] if number(table, 1))
    handlers, times = {handler[8:12] for handler in track[b"hdlr"]}, track[b"stts"]
    is_sound = b"soun" in handlers <= {b"soun", b"url ", b"alis"}
    if is_sound and times and all(number(table, 1) == number(table, 3) == 1 for table in times):
        # PCM, a sample of which is a frame: FFmpeg reads it in pieces of chunks.
        num_chunks, num_samples = sum(number(table, 1) for table in track[b"stco"] + track[b"co64"]), 0.0
        for table in track[b"stsc"]:
            runs = np.frombuffer(table[8 : len(table) - (len(table) - 8) % 12], ">u4").reshape(-1, 3)
            firsts = np.append(runs[:, 0].astype(np.float64), num_chunks + 1)
            pieces = np.ceil(runs[:, 1] / 1024)
            num_samples += float((np.maximum(np.diff(firsts), 0) * pieces).sum())
    return num_samples + sum(number(table, 1) for table in track[b"trun"])
