"""tools/convert_pt.py: pickled models as folders of safetensors; hostile files give a clear error, run nothing."""

from __future__ import annotations

import os
import pickle
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from whisper_examples import SIZES, VOCABULARY, make_weights, write_huggingface, write_openai, write_ranks

from asr.cli import main
from asr.errors import UserError
from asr.whisper import build_sizes, load_whisper, rename_weights

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import convert_pt

WEIGHTS = make_weights()


def test_both_forms_are_the_same_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = build_sizes({**SIZES, "n_vocab": len(WEIGHTS["decoder.token_embedding.weight"])}, "the test")
    expected = rename_weights(sizes, WEIGHTS, "the test")
    pickled = write_huggingface(tmp_path / "old", WEIGHTS, form="pickled")
    path = write_openai(tmp_path / "tiny.en.pt", WEIGHTS)
    assert convert_pt.main([str(path), str(tmp_path / "none")]) == 2
    assert "gpt2.tiktoken" in capsys.readouterr().err
    write_ranks(tmp_path / "gpt2.tiktoken", VOCABULARY)
    for number, source in enumerate((path, pickled)):
        assert convert_pt.main([str(source), str(tmp_path / str(number))]) == 0
        system = load_whisper(tmp_path / str(number))
        assert system.tokenizer.vocabulary == VOCABULARY
        for name, weight in expected.items():
            torch.testing.assert_close(system.model.state_dict()[name], weight, rtol=0, atol=0)


def test_a_model_is_written_as_openai_has_it(tmp_path: Path) -> None:
    """`asr convert FOLDER FILE.pt`: the weights and sizes that openai-whisper loads."""
    folder = write_huggingface(tmp_path / "tiny.en", WEIGHTS)
    assert main(["convert", str(folder), str(tmp_path / "tiny.en.pt")]) == 0
    tree = torch.load(tmp_path / "tiny.en.pt", weights_only=True)
    assert tree["dims"].items() >= SIZES.items() and tree["model_state_dict"].keys() == WEIGHTS.keys()
    assert all(torch.equal(tree["model_state_dict"][name], weight) for name, weight in WEIGHTS.items())
    assert main(["convert", str(folder), str(tmp_path / "tiny.en.pt")]) == 2


def test_ranks_in_a_file(tmp_path: Path) -> None:
    vocabulary = (*VOCABULARY, b"")  # as the multilingual one, which ends with an empty token
    write_ranks(tmp_path / "ranks", vocabulary)
    assert convert_pt.read_ranks(tmp_path / "ranks") == vocabulary
    for damaged in ("no base64!\n", "YQ== x\n", "YQ== 1\n", "", "YQ== 0\nYQ== 1\n", "YQ== " + "9" * 5000):
        (tmp_path / "ranks").write_text(damaged)
        with pytest.raises(UserError, match="ranks"):
            convert_pt.read_ranks(tmp_path / "ranks")


def refuse(path: Path, message: str) -> None:
    """A clear error, and little memory on the way there."""
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=message):
            convert_pt.read_openai(path)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def write_archive(path: Path, content: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("tiny/data.pkl", content)
        archive.writestr("tiny/version", "3\n")
    return path


class _Code:
    """Unpickled, it would make a folder."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("is_hidden", [False, True])
def test_a_pickle_with_code_runs_nothing(tmp_path: Path, protocol: int, is_hidden: bool) -> None:
    tree = {"dims": dict(SIZES), "model_state_dict": {"x": _Code(tmp_path / "executed")}}
    content = pickle.dumps(tree if is_hidden else _Code(tmp_path / "executed"), protocol=protocol)
    path = write_archive(tmp_path / "tiny.pt", content)
    refuse(path, "would run code .*nothing was run")
    assert not (tmp_path / "executed").exists()


def test_archives_that_ask_for_memory(tmp_path: Path) -> None:
    """A terabyte of zeros, by a call that PyTorch itself lets pass; a bomb; one number as a large matrix."""
    zeros = b"\x80\x02cbuiltins\nbytearray\n\x8a\x06\x00\x00\x00\x00\x00\x01\x85R."
    refuse(write_archive(tmp_path / "tiny.pt", zeros), "would run code .*bytearray")
    refuse(write_archive(tmp_path / "bomb.pt", bytes(60_000_000), zipfile.ZIP_DEFLATED), "compressed archive")
    repeated = torch.zeros(1, 1).expand(len(VOCABULARY) + 1608, 10**9)
    wide = WEIGHTS | {"decoder.token_embedding.weight": repeated}
    refuse(write_openai(tmp_path / "wide.pt", wide), "bytes of weights in a smaller file")
    shared = dict.fromkeys(WEIGHTS, torch.zeros(500, 500))
    refuse(write_openai(tmp_path / "shared.pt", shared), "bytes of weights in a smaller file")


def test_sizes_that_are_no_sizes(tmp_path: Path) -> None:
    for change, message in (
        ({"n_audio_state": 64}, "'n_audio_state': 64"),
        ({"n_text_ctx": 10**5000}, "or damaged"),
    ):
        refuse(write_openai(tmp_path / "tiny.pt", WEIGHTS, SIZES | change), message)
    (tmp_path / "page.pt").write_text("<html>")
    refuse(tmp_path / "page.pt", "or damaged")
