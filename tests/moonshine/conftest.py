"""A folder of a small Moonshine."""

from pathlib import Path

import pytest
from ort_examples import ModelWriter, train_pieces, write_pieces


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moonshine")
    ModelWriter(dim=256, vocab_size=300).write(folder)
    write_pieces(folder / "tokenizer.bin", train_pieces()[1])
    return folder
