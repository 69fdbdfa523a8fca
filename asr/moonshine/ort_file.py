"""Read weights and nodes from an ONNX Runtime file (`.ort`), a tree of FlatBuffers tables. Nothing is run.

Each offset is checked against the file size before it is read. Because tables may be referenced any number of
times, the number of visits and the total size of all weights are limited.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from asr.errors import UserError
from asr.files import read_limited

MAX_BYTES = 64_000_000
MAX_VISITS = 20_000  # visits to tables, texts and vectors; the largest known file takes 6,079
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

    Places are offsets from the start of the file. Fields and elements are numbers, or pointers to anything
    else. A missing field has place 0.
    """

    def __init__(self, path: Path, operators: Collection[str]) -> None:
        self.tensors: dict[str, np.ndarray] = {}
        self.nodes: list[OrtNode] = []
        self._path, self._operators = path, operators
        self._data = read_limited(path, MAX_BYTES, "which no Moonshine model has")
        self._visits_left, self._bytes_left = MAX_VISITS, len(self._data)
        if self._data[4:8] != b"ORTM":
            self._refuse("it does not have ORTM at byte 4, as files of ONNX Runtime do")
        session = self._table(self._follow(0))
        model = self._table(self._follow(session[SESSION_MODEL]))
        for branch in self._read_graph(self._follow(model[MODEL_GRAPH])):
            self._read_graph(branch)

    def _read_graph(self, place: int) -> list[int]:
        """Add the contents of a graph; return the places of its subgraphs."""
        branches = []
        graph = self._table(place)
        for tensor in self._tables(graph[GRAPH_TENSORS]):
            self._read_tensor(tensor)
        for node in self._tables(graph[GRAPH_NODES]):
            operator = self._text(node[NODE_OPERATOR])
            if operator in self._operators:
                self.nodes.append(OrtNode(self._text(node[NODE_NAME]), self._texts(node[NODE_INPUTS])))
            elif operator == "If":
                for attribute in self._tables(node[NODE_ATTRIBUTES]):
                    if self._text(attribute[ATTRIBUTE_NAME]) == BRANCH:
                        branches.append(self._follow(attribute[ATTRIBUTE_GRAPH]))
        return branches

    def _read_tensor(self, fields: list[int]) -> None:
        dtype = DTYPES.get(self._read("<i", fields[TENSOR_TYPE])[0]) if fields[TENSOR_TYPE] else None
        if dtype is None:
            return
        name = self._text(fields[TENSOR_NAME])
        start, num_dims = self._find_vector(fields[TENSOR_SHAPE], 8, MAX_DIMS)
        shape = self._read(f"<{num_dims}q", start)
        start, num_bytes = self._find_vector(fields[TENSOR_VALUES], 1, self._bytes_left)
        self._bytes_left -= num_bytes
        if min(shape, default=1) < 1 or math.prod(shape) * dtype.itemsize != num_bytes:
            self._refuse(f"{name[:80]} has {num_bytes:,} bytes for the sizes {list(shape)}")
        if name in self.tensors:
            self._refuse(f"duplicate {name[:80]}")
        self.tensors[name] = np.ndarray(shape, dtype, self._data, start)

    def _table(self, place: int) -> list[int]:
        """Return the places of a table's fields, up to MAX_FIELDS; later ones are unknown."""
        self._visit()
        layout = place - self._read("<i", place)[0]
        num_fields = min(self._read("<H", layout)[0] // 2 - 2, MAX_FIELDS)
        offsets = self._read(f"<{max(num_fields, 0)}H", layout + 4)
        places = [place + offset if offset else 0 for offset in offsets]
        return places + [0] * (MAX_FIELDS - len(places))

    def _tables(self, place: int) -> list[list[int]]:
        return [self._table(self._follow(pointer)) for pointer in self._pointers(place)]

    def _texts(self, place: int) -> list[str]:
        return [self._text(pointer) for pointer in self._pointers(place)]

    def _pointers(self, place: int) -> range:
        """Return the places of a vector's elements, which are pointers."""
        start, count = self._find_vector(place, 4, self._visits_left)
        return range(start, start + 4 * count, 4)

    def _text(self, place: int) -> str:
        start, count = self._find_vector(place, 1, MAX_NAME_BYTES)
        return self._data[start : start + count].decode("utf-8", "replace")

    def _find_vector(self, place: int, width: int, most: int) -> tuple[int, int]:
        """Return the place of a vector's first element, and the number of elements of `width` bytes each."""
        self._visit()
        if place == 0:
            return 0, 0
        start = self._follow(place)
        count = int(self._read("<I", start)[0])
        if count > most:
            self._refuse(f"{count:,} elements at byte {start:,}, where up to {most:,} can be")
        self._require(start + 4, count * width)
        return start + 4, count

    def _follow(self, place: int) -> int:
        """Return the place that a pointer refers to."""
        return place + int(self._read("<I", place)[0])

    def _read(self, form: str, place: int) -> tuple[Any, ...]:
        self._require(place, struct.calcsize(form))
        return struct.unpack_from(form, self._data, place)

    def _require(self, place: int, num_bytes: int) -> None:
        if not 0 <= place <= len(self._data) - num_bytes:
            self._refuse(f"it has {len(self._data):,} bytes, but {num_bytes:,} should be at byte {place:,}")

    def _visit(self) -> None:
        self._visits_left -= 1
        if self._visits_left < 0:
            self._refuse(f"over {MAX_VISITS:,} tables and vectors")

    def _refuse(self, what: str) -> NoReturn:
        raise UserError(f"{self._path}: {what}; the file is truncated or damaged, download it again")
