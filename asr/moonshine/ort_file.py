"""Read weights and nodes from an ONNX Runtime file (`.ort`), a tree of FlatBuffers tables. Nothing is run.

Each offset is checked against the file size before it is read. Because tables may be referenced any number of
times, the number of visits and the total size of all weights are limited.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from asr.errors import UserError
from asr.files import read_limited

MAX_BYTES = 64_000_000
MAX_VISITS = 20_000  # visits to tables and vectors; the largest known file takes 6,079
MAX_NAME_BYTES = 1_000
MAX_DIMS = 8
MAX_FIELDS = 16
# Type numbers of weights. Constants of other types belong to the graph's arithmetic.
DTYPES: dict[int, np.dtype] = {1: np.dtype("<f4"), 2: np.dtype("u1"), 3: np.dtype("i1")}
BRANCH = "else_branch"  # the first step of a merged decoder, which has every weight

# Field numbers in onnxruntime/core/flatbuffers/schema/ort.fbs.
SESSION_MODEL = 1
MODEL_GRAPH = 7
GRAPH_TENSORS, GRAPH_NODES = 0, 2
TENSOR_NAME, TENSOR_SHAPE, TENSOR_TYPE, TENSOR_VALUES = 0, 2, 3, 4
NODE_NAME, NODE_OPERATOR, NODE_INPUTS, NODE_ATTRIBUTES = 0, 5, 8, 10
ATTRIBUTE_NAME, ATTRIBUTE_GRAPH = 0, 7


class OrtNode(NamedTuple):
    """An operation, and the names of its inputs."""

    name: str
    inputs: list[str]


class OrtFile:
    """`tensors`: views of the file's bytes, no larger than the file in total; `nodes`: of some operators.

    Pointers and places are offsets from the start of the file. A missing field is at 0.
    """

    def __init__(self, path: Path, operators: Collection[str]) -> None:
        self.tensors: dict[str, np.ndarray] = {}
        self.nodes: list[OrtNode] = []
        self._path, self._operators = path, operators
        self._data = read_limited(path, MAX_BYTES, "which no Moonshine model has")
        self._visits_left, self._bytes_left = MAX_VISITS, len(self._data)
        if self._data[4:8] != b"ORTM":
            self._refuse("it does not have ORTM at byte 4, as files of ONNX Runtime do")
        model = self._table(self._table(0)[SESSION_MODEL])
        graphs = [model[MODEL_GRAPH]]
        for graph in graphs:  # to which its branches are added
            graphs += self._read_graph(self._table(graph))

    def _read_graph(self, fields: list[int]) -> Iterator[int]:
        """Add the contents of a graph; yield the pointers to its branches."""
        for pointer in self._pointers(fields[GRAPH_TENSORS]):
            self._read_tensor(self._table(pointer))
        for pointer in self._pointers(fields[GRAPH_NODES]):
            node = self._table(pointer)
            operator = self._text(node[NODE_OPERATOR])
            if operator in self._operators:
                inputs = [self._text(name) for name in self._pointers(node[NODE_INPUTS])]
                self.nodes.append(OrtNode(self._text(node[NODE_NAME]), inputs))
            elif operator == "If":
                attributes = [self._table(one) for one in self._pointers(node[NODE_ATTRIBUTES])]
                yield from (
                    one[ATTRIBUTE_GRAPH] for one in attributes if self._text(one[ATTRIBUTE_NAME]) == BRANCH
                )

    def _read_tensor(self, fields: list[int]) -> None:
        dtype = DTYPES.get(self._read("<i", fields[TENSOR_TYPE])[0]) if fields[TENSOR_TYPE] else None
        if dtype is None:
            return
        name = self._text(fields[TENSOR_NAME])
        start, num_dims = self._vector(fields[TENSOR_SHAPE], 8, MAX_DIMS)
        shape = self._read(f"<{num_dims}q", start)
        start, num_bytes = self._vector(fields[TENSOR_VALUES], 1, self._bytes_left)
        self._bytes_left -= num_bytes
        if min(shape, default=1) < 1 or math.prod(shape) * dtype.itemsize != num_bytes:
            self._refuse(f"{name[:80]} has {num_bytes:,} bytes for the sizes {list(shape)}")
        if name in self.tensors:
            self._refuse(f"duplicate {name[:80]}")
        self.tensors[name] = np.ndarray(shape, dtype, self._data, start)

    def _table(self, pointer: int) -> list[int]:
        """Return the places of a table's fields, up to MAX_FIELDS; later ones are unknown."""
        place = self._follow(pointer)
        layout = place - self._read("<i", place)[0]
        num_fields = min(max(self._read("<H", layout)[0] // 2 - 2, 0), MAX_FIELDS)
        offsets = self._read(f"<{num_fields}H", layout + 4)
        places = [place + offset if offset else 0 for offset in offsets]
        return places + [0] * (MAX_FIELDS - num_fields)

    def _pointers(self, pointer: int) -> range:
        """Return the places of a vector's elements, which are pointers."""
        start, count = self._vector(pointer, 4, self._visits_left)
        return range(start, start + 4 * count, 4)

    def _text(self, pointer: int) -> str:
        start, count = self._vector(pointer, 1, MAX_NAME_BYTES)
        return self._data[start : start + count].decode("utf-8", "replace")

    def _vector(self, pointer: int, width: int, most: int) -> tuple[int, int]:
        """Return the place of a vector's first element, and the number of elements of `width` bytes each."""
        if pointer == 0:
            return 0, 0
        start = self._follow(pointer)
        count = int(self._read("<I", start)[0])
        if count > most:
            self._refuse(f"{count:,} elements at byte {start:,}, where up to {most:,} can be")
        self._require(start + 4, count * width)
        return start + 4, count

    def _follow(self, pointer: int) -> int:
        """Return the place of a table or vector."""
        self._visits_left -= 1
        if self._visits_left < 0:
            self._refuse(f"over {MAX_VISITS:,} tables and vectors")
        return pointer + int(self._read("<I", pointer)[0])

    def _read(self, form: str, place: int) -> tuple[Any, ...]:
        self._require(place, struct.calcsize(form))
        return struct.unpack_from(form, self._data, place)

    def _require(self, place: int, num_bytes: int) -> None:
        if not 0 <= place <= len(self._data) - num_bytes:
            self._refuse(f"it has {len(self._data):,} bytes, but {num_bytes:,} should be at byte {place:,}")

    def _refuse(self, what: str) -> NoReturn:
        raise UserError(f"{self._path}: {what}; the file is truncated or damaged, download it again")
