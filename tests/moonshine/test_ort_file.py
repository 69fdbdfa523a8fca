"""Reading ONNX Runtime files, also hostile ones."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ort_examples import ModelWriter, make_graph, write_ort, write_tables

from asr.errors import UserError
from asr.moonshine.ort_file import MAX_BYTES, OrtFile
from asr.moonshine.weights import read_weights

TENSORS = {
    "whole": np.arange(6, dtype=np.float32).reshape(2, 3),
    "small": np.arange(4, dtype=np.uint8),
    "signed": np.array([[-128, 127]], np.int8),
    "number": np.array(7, np.uint8),
}


def test_tensors_and_nodes(tmp_path: Path) -> None:
    nodes = [("first", "MatMul", ["x", "whole"]), ("second", "Shape", ["x"])]
    branch = make_graph({"inner": np.ones(2, np.float32)}, [("third", "Add", ["y", "inner"])])
    write_ort(tmp_path / "a.ort", make_graph({**TENSORS, "shape": np.arange(3)}, nodes, branch))
    file = OrtFile(tmp_path / "a.ort", ["MatMul", "Add"])
    assert [(node.name, node.inputs) for node in file.nodes] == [
        ("first", ["x", "whole"]),
        ("third", ["y", "inner"]),
    ]
    assert file.tensors.keys() == {*TENSORS, "inner"}, "integers of the graph's arithmetic are left out"
    for name, values in TENSORS.items():
        assert np.array_equal(file.tensors[name], values) and file.tensors[name].dtype == values.dtype


def refuse(path: Path, data: bytes, message: str) -> None:
    path.write_bytes(data)
    with pytest.raises(UserError, match=message) as caught:
        OrtFile(path, ["MatMul"])
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ({0: "a", 2: [3], 3: 1, 4: bytes(8)}, r"a has 8 bytes for the sizes \[3\]"),
        ({0: "a", 2: [-1, -2], 3: 1, 4: bytes(8)}, r"for the sizes \[-1, -2\]"),
        ({0: "a", 2: [0, 2**62], 3: 1, 4: b""}, "for the sizes"),
        ({0: "a", 2: [1] * 9, 3: 1, 4: bytes(4)}, "9 elements at byte"),
        ({0: "a" * 2_000, 2: [1], 3: 1, 4: bytes(4)}, "2,000 elements at byte"),
    ],
)
def test_damaged_tensors(tensor: dict[int, Any], message: str, tmp_path: Path) -> None:
    refuse(tmp_path / "a.ort", write_tables({1: {7: {0: [tensor]}}}), message)


def test_other_files(tmp_path: Path) -> None:
    for data in (b"", b"abc", bytes(100), struct.pack("<I4s", 2**31, b"ORTM"), b"\x08\0\0\0ORTM"):
        refuse(tmp_path / "a.ort", data, "truncated or damaged, download it again")
    with pytest.raises(UserError, match="cannot read the file"):
        OrtFile(tmp_path / "none.ort", [])


TENSOR = {0: "a", 2: [1_000_000], 3: 2, 4: bytes(1_000_000)}
NODE = {0: "node", 5: "MatMul", 8: ["x" * 900] * 1_000}
GRAPH = {0: [], 2: [NODE] * 20_000}


@pytest.mark.parametrize(
    "graph",
    [
        {0: [TENSOR] * 50_000},
        {0: [TENSOR | {3: 0}] * 50_000, 2: [NODE]},
        {2: [{5: "x"}] * 50_000},
        {2: [NODE] * 20_000},
        {2: [{5: "If", 10: [{0: "else_branch", 7: GRAPH}] * 10_000}] * 3},
        {2: [{5: "If", 10: [{0: "x"}] * 20_000}] * 20_000},
        {0: [{**TENSOR, 0: name} for name in "abc"]},
    ],
    ids=["tensors", "unread", "nodes", "inputs", "branches", "attributes", "whole"],
)
def test_what_is_pointed_at_many_times(graph: dict[int, Any], tmp_path: Path) -> None:
    """Time and memory grow with the size of the file, not with how many offsets point to the same place."""
    data = write_tables({1: {7: graph}})
    started = time.process_time()
    tracemalloc.start()
    if len(graph.get(0, ())) == 3:
        (tmp_path / "a.ort").write_bytes(data)
        assert len(OrtFile(tmp_path / "a.ort", []).tensors) == 3
    else:
        refuse(tmp_path / "a.ort", data, "up to|over 20,000 tables|duplicate")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * len(data) + MAX_BYTES + 10_000_000
    assert time.process_time() - started < 10


@pytest.mark.parametrize("is_base", [False, True])
def test_a_thousand_mutations(is_base: bool, tmp_path: Path) -> None:
    """Each mutation gives either a model or one clear error, never another error."""
    ModelWriter(dim=8, is_base=is_base).write(tmp_path)
    random = np.random.default_rng(1)
    paths = [tmp_path / "encoder_model.ort", tmp_path / "decoder_model_merged.ort"]
    wholes = [path.read_bytes() for path in paths]
    # Half of the changes hit what is no weights: offsets, counts and names.
    structure = [find_structure(whole) for whole in wholes]
    refused = 0
    for number in range(500):
        place = number % 2
        path, whole = paths[place], wholes[place]
        path.write_bytes(mutate(whole, structure[place], random))
        try:
            weights = read_weights(tmp_path)
            assert all(weight.dtype.is_floating_point for weight in weights.values())
        except UserError as error:
            assert str(tmp_path) in str(error)
            refused += 1
        path.write_bytes(whole)
    assert 200 < refused < 500


def find_structure(data: bytes) -> np.ndarray:
    """The positions of bytes with zeros nearby, which offsets and counts have."""
    is_zero = np.frombuffer(data, np.uint8) == 0
    return np.flatnonzero(np.convolve(is_zero, np.ones(4), "same") >= 2)


def mutate(data: bytes, structure: np.ndarray, random: np.random.Generator) -> bytes:
    changed = bytearray(data)
    kind = random.integers(4)
    if kind == 0:
        return data[: random.integers(len(data))]
    for _ in range(random.integers(1, 4)):
        place = int(random.choice(structure))
        value = int(random.choice([0, 1, 127, 128, 255])) if kind == 1 else int(random.integers(256))
        width = 4 if kind == 3 else 1
        changed[place : place + width] = bytes([value] * width)
    return bytes(changed[: len(data)])
