"""A file of whisper.cpp, `ggml-*.bin`, as a folder of Hugging Face, which `asr transcribe --model` reads.

python tools/convert_ggml.py ggml-base.en.bin FOLDER

The file holds sizes, mel filters, vocabulary and weights, one after the other.

All numbers are little-endian. Whatever the file declares is compared with the bytes that are left of it
before any memory is asked for; weights in full or half precision stay mapped from the file.
"""

from __future__ import annotations

import argparse
import math
import mmap
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from asr.errors import UserError
from asr.features import compute_whisper_filters
from asr.whisper import WhisperSystem, build_sizes, make_system, rename_weights, write_model

MAGIC = b"lmgg"
SIZES = (
    *("n_vocab", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer"),
    *("n_text_ctx", "n_text_state", "n_text_head", "n_text_layer", "n_mels"),
)
MAX_NAME_BYTES = 200
MAX_TOKEN_BYTES = 10_000
BLOCK = 32  # weights that share a scale in a quantized tensor
FLOAT32, FLOAT16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 = 0, 1, 2, 3, 6, 7, 8
PLAIN: dict[int, np.dtype] = {FLOAT32: np.dtype("<f4"), FLOAT16: np.dtype("<f2")}
# A block of a quantized tensor: its scale, in some its lowest value or the fifth bits, then the weights.
_SCALE, _LOWEST, _FIFTH, _HALVES = (
    ("scale", "<f2"),
    ("lowest", "<f2"),
    ("fifth", "u1", 4),
    ("halves", "u1", 16),
)
BLOCKS = {
    Q4_0: np.dtype([_SCALE, _HALVES]),
    Q4_1: np.dtype([_SCALE, _LOWEST, _HALVES]),
    Q5_0: np.dtype([_SCALE, _FIFTH, _HALVES]),
    Q5_1: np.dtype([_SCALE, _LOWEST, _FIFTH, _HALVES]),
    Q8_0: np.dtype([_SCALE, ("wholes", "i1", BLOCK)]),
}


def read_ggml(path: Path) -> WhisperSystem:
    file = MappedFile(path)
    if file.take(4, "the magic number").tobytes() != MAGIC:
        raise UserError(f"{path}: does not begin as a model of whisper.cpp does; is it one (ggml-*.bin)?")
    sizes = dict(zip(SIZES, file.integers(len(SIZES), "the sizes"), strict=True))
    file.integers(1, "the type of the file")  # each tensor says its own
    converted = build_sizes(sizes, str(path))
    _check_filters(file, converted.num_mels)
    vocabulary = _read_vocabulary(file, converted.vocab_size)
    theirs: dict[str, Tensor] = {}
    while file.left:
        name, weight = _read_tensor(file)
        theirs[name] = weight
    return make_system(path, converted, vocabulary, rename_weights(converted, theirs, str(path)))


class MappedFile:
    """A file in memory as it lies on the disk, read from its start to its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes = self._map(0, 0)
        self._place = 0

    def _map(self, start: int, num_bytes: int) -> np.ndarray:
        """Map a part from a page's start, or all of it for 0; private to us, so that training may write."""
        try:
            with open(self.path, "rb") as file:
                pages = mmap.mmap(file.fileno(), num_bytes, access=mmap.ACCESS_COPY, offset=start)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"{self.path}: cannot read it ({reason})") from None
        return np.frombuffer(pages, np.uint8)

    def map_apart(self, num_bytes: int, what: str) -> np.ndarray:
        """Take bytes that need not stay mapped as long as others do."""
        self.take(num_bytes, what)
        begin = (self._place - num_bytes) % mmap.ALLOCATIONGRANULARITY
        return self._map(self._place - num_bytes - begin, begin + num_bytes)[begin:]

    @property
    def left(self) -> int:
        return len(self._bytes) - self._place

    @property
    def rest(self) -> memoryview:
        """The bytes left, for many small steps: their slices cost a tenth of `take`."""
        return self._bytes[self._place :].data

    def take(self, num_bytes: int, what: str) -> np.ndarray:
        if not 0 <= num_bytes <= self.left:
            raise UserError(
                f"{self.path}: {what} should have {num_bytes:,} bytes, but {self.left:,} are left; "
                "the file is cut off or damaged, download it again"
            )
        self._place += num_bytes
        return self._bytes[self._place - num_bytes : self._place]

    def integers(self, count: int, what: str) -> list[int]:
        return self.numbers("<i4", count, what)

    def numbers(self, kind: str, count: int, what: str) -> list[int]:
        """Whole numbers of a type of numpy."""
        numbers: list[int] = self.take(np.dtype(kind).itemsize * count, what).view(kind).tolist()
        return numbers


def _check_filters(file: MappedFile, num_mels: int) -> None:
    """The file brings its own; they are those that we compute, or it is not Whisper's."""
    bands, bins = file.integers(2, "the size of the mel filters")
    filters_MK = file.take(4 * bands * bins, "the mel filters").view("<f4")
    expected_KM = compute_whisper_filters(np.arange(201) * 40.0, 0.0, 8000.0, num_mels)
    if (bands, bins) != (num_mels, 201) or not np.allclose(filters_MK, expected_KM.T.ravel(), atol=1e-5):
        raise UserError(f"{file.path}: its mel filters are not Whisper's, so its features would be others")


def _read_vocabulary(file: MappedFile, max_tokens: int) -> tuple[bytes, ...]:
    (count,) = file.integers(1, "the size of the vocabulary")
    if count > max_tokens:
        raise UserError(
            f"{file.path}: {count:,} tokens of text, but only {max_tokens:,} in all; it is damaged"
        )
    rest, place, tokens = file.rest, 0, []
    for number in range(count):
        length = int.from_bytes(rest[place : place + 4], "little")
        if length > MAX_TOKEN_BYTES:
            raise UserError(f"{file.path}: token {number} has {length:,} bytes; the file is damaged")
        tokens.append(bytes(rest[place + 4 : place + 4 + length]))
        place += 4 + length
    file.take(place, "the vocabulary")
    if tokens[-1:] == [b"<|endoftext|>"]:  # the English vocabulary has the first special token too
        tokens.pop()
    return tuple(tokens)


def _read_tensor(file: MappedFile) -> tuple[str, Tensor]:
    num_dims, name_bytes, kind = file.integers(3, "the head of a tensor")
    if not (1 <= num_dims <= 3 and 0 < name_bytes <= MAX_NAME_BYTES and (kind in PLAIN or kind in BLOCKS)):
        raise UserError(
            f"{file.path}: a tensor of {num_dims} dimensions and type {kind} is none that is read here "
            "(f32, f16, q4_0, q4_1, q5_0, q5_1, q8_0); the file is damaged, or quantized in another way"
        )
    shape = file.integers(num_dims, "the shape of a tensor")[::-1]
    name = file.take(name_bytes, "the name of a tensor").tobytes().decode("utf-8", errors="replace")
    if min(shape) < 1:
        raise UserError(f"{file.path}: {name} has shape {shape}; the file is damaged")
    count = math.prod(shape)
    if kind in PLAIN:
        weights = file.map_apart(count * PLAIN[kind].itemsize, name).view(PLAIN[kind])
    else:
        if shape[-1] % BLOCK:
            raise UserError(f"{file.path}: {name} has rows of {shape[-1]}, no multiple of {BLOCK}")
        weights = _dequantize(file.take(count // BLOCK * BLOCKS[kind].itemsize, name).view(BLOCKS[kind]))
    if name in ("encoder.conv1.bias", "encoder.conv2.bias"):
        shape = [count]  # written with a second dimension of 1
    return name, torch.from_numpy(weights).view(shape)


def _dequantize(blocks: np.ndarray) -> np.ndarray:
    """(N,) float32 of N / 32 blocks: scale * weight + lowest; without a lowest, weights are around 0."""
    names = blocks.dtype.names or ()
    scale_N1 = blocks["scale"].astype(np.float32)[:, None]
    if "wholes" in names:
        return (scale_N1 * blocks["wholes"]).ravel()
    halves = blocks["halves"]
    whole = np.concatenate([halves & 15, halves >> 4], axis=1).astype(np.float32)
    middle = 8
    if "fifth" in names:
        whole += 16 * np.unpackbits(blocks["fifth"], axis=1, bitorder="little")
        middle = 16
    if "lowest" in names:
        return (scale_N1 * whole + blocks["lowest"].astype(np.float32)[:, None]).ravel()
    return (scale_N1 * (whole - middle)).ravel()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="file of whisper.cpp, in full or half precision or quantized")
    parser.add_argument("folder", type=Path, help="where to write the model; a new folder")
    args = parser.parse_args(arguments)
    try:
        write_model(args.folder, read_ggml(args.file))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(args.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
