"""Detect from first and last bytes what no library tells: not audio, MP3 with a length, Ogg cut short."""

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

# First bytes of what FFmpeg reads. MP3 and AAC without a tag have none, but each frame tells its length.
_CONTAINERS = (
    *(b"RIFF", b"RIFX", b"RF64", b"riff", b"FORM", b"caff", b"fLaC", b"OggS", b"NIST", b"ID3", b".snd"),
    *(b"wvpk", b"#!AMR", b"MAC ", b"TTA1", b"FLV\x01", b"Creative Voice"),
    *(b"\x1a\x45\xdf\xa3", b"\x30\x26\xb2\x75"),  # Matroska and WebM; ASF, which is WMA
)
_MP3_KILOBITS = (
    (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)

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


def is_container(head: bytes) -> bool:
    """Tell a stream that names its format from raw PCM. `head`: the first 4 kB."""
    if head.startswith(_CONTAINERS) or head[4:8] == b"ftyp" or head[::188][:3] == b"GGG":  # MP4, MPEG-TS
        return True
    place = num_frames = 0
    while (length := _measure_frame(head[place : place + 6])) > 0 and num_frames < 3:
        num_frames, place = num_frames + 1, place + length
    return num_frames == 3


def _measure_frame(header: bytes) -> int:
    """Bytes of a frame of MP3 or of AAC (ADTS) that begins so; 0 where none does."""
    if len(header) < 6 or header[0] != 0xFF or header[1] < 0xE0:
        return 0
    if header[1] & 0xF6 == 0xF0:  # ADTS
        return (header[3] & 3) << 11 | header[4] << 3 | header[5] >> 5
    version, layer, padding = header[1] >> 3 & 3, header[1] >> 1 & 3, header[2] >> 1 & 1
    bitrate, rate = header[2] >> 4, header[2] >> 2 & 3
    if version == 1 or layer != 1 or bitrate in (0, 15) or rate == 3:
        return 0
    is_first = version == 3  # MPEG-1; the others have half the samples a frame
    kilobits = _MP3_KILOBITS[0 if is_first else 1][bitrate - 1]
    hertz = (44_100, 48_000, 32_000)[rate] // {3: 1, 2: 2, 0: 4}[version]
    return (144_000 if is_first else 72_000) * kilobits // hertz + padding


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
