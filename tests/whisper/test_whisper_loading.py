"""Whisper models in every form: all give the same weights, and hostile or damaged ones a clear error."""

from __future__ import annotations

import functools
import json
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from torch import Tensor
from whisper_examples import (
    SIZES,
    VOCABULARY,
    make_weights,
    write_huggingface,
    write_huggingface_vocabulary,
    write_openai,
)

from asr.cli import main
from asr.errors import UserError
from asr.families import find_family
from asr.whisper import (
    find_files,
    load_whisper,
    read_checkpoint,
    rename_weights,
    require_language,
    write_ranks,
)

WEIGHTS = make_weights()


@functools.cache
def expected_weights() -> dict[str, Tensor]:
    """By our names; test_whisper_model.py shows that they compute what Whisper computes."""
    from test_whisper_model import CONFIG

    return rename_weights(CONFIG, dict(WEIGHTS), "the test")


def write_openai_with_ranks(folder: Path) -> Path:
    write_ranks(folder / "gpt2.tiktoken", VOCABULARY)
    return write_openai(folder / "tiny.en.pt", WEIGHTS)


def convert(folder: Path, target: str) -> Path:
    source = write_openai_with_ranks(folder)
    assert main(["convert", str(source), str(folder / target)]) == 0
    return folder / target


FORMS: dict[str, Callable[[Path], Path]] = {
    "openai": write_openai_with_ranks,
    "hugging face": lambda folder: write_huggingface(folder / "hf", WEIGHTS),
    "hugging face, pickled": lambda folder: write_huggingface(folder / "hf", WEIGHTS, form="pickled"),
    "hugging face, sharded": lambda folder: write_huggingface(folder / "hf", WEIGHTS, form="sharded"),
    "converted to hugging face": lambda folder: convert(folder, "new/hf"),
    "converted to openai": lambda folder: convert(folder, "new/tiny.en.pt"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_model(form: str, tmp_path: Path) -> None:
    path = FORMS[form](tmp_path)
    assert find_family(path).section == "whisper"
    system = load_whisper(path)
    weights = system.model.state_dict()
    assert weights.keys() == {*expected_weights(), "decoder.output.weight"}
    for name, weight in expected_weights().items():
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=0)
    assert system.tokenizer.vocabulary == VOCABULARY and not system.tokenizer.is_multilingual
    assert len(system.tokenizer) == system.sizes.vocab_size
    assert not system.model.training and weights["encoder.norm.weight"].dtype == torch.float32
    expected_heads = ((1, 0), (2, 1)) if form.startswith("hugging") else None
    assert system.sizes.alignment_heads == expected_heads


@pytest.mark.parametrize("form", FORMS)
def test_info_of_every_form(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = FORMS[form](tmp_path)
    capsys.readouterr()
    assert main(["info", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    count = (
        sum(weight.numel() for weight in WEIGHTS.values()) + (2 + 2 * 3) * SIZES["n_audio_state"]
    )  # keys' biases
    assert told["model"]["parameters"] == count
    assert told["model"]["dim"] == 32


@torch.inference_mode()
def test_rounded_as_they_are_read(tmp_path: Path) -> None:
    """Weights of a file in half precision in 8 bits, with none of them in float32 before: the same scores."""
    halves = {name: weight.half() for name, weight in WEIGHTS.items()}
    path = write_huggingface(tmp_path / "hf", halves)
    models = [load_whisper(path, dtype=dtype).model for dtype in (torch.float32, None)]
    assert {weight.dtype for weight in models[1].state_dict().values()} == {torch.float16}
    scores = []
    for model in models:
        model.quantise(torch.float32)  # which leaves nothing of the file mapped
        encoded = model.encode(torch.ones(1, 20, 80), torch.tensor([20]))
        scores.append(model.decoder.step(torch.tensor([[3, 4]]), model.decoder.start(*encoded))[0])
    torch.testing.assert_close(scores[0], scores[1], rtol=0, atol=0)
    assert models[1].decoder.embedding.weight.dtype == torch.float16
    maps = Path("/proc/self/maps")
    assert not maps.exists() or str(path) not in maps.read_text()


# --- vocabulary -----------------------------------------------------------------------------------


def test_a_file_of_openai_needs_a_vocabulary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_openai(tmp_path / "tiny.en.pt", WEIGHTS)
    with pytest.raises(UserError, match=r"no vocabulary in or beside this model. Put gpt2.tiktoken"):
        load_whisper(path)
    assert main(["info", str(path)]) == 0
    assert "none in these files" in capsys.readouterr().out
    ranks, other = tmp_path / "ranks", tmp_path / "other"
    write_ranks(ranks, VOCABULARY)
    other.mkdir()
    write_huggingface_vocabulary(other, as_one=True)
    for number, source in enumerate([ranks, other]):
        folder = tmp_path / f"hf{number}"
        assert main(["convert", str(path), str(folder), "--vocabulary", str(source)]) == 0
        assert load_whisper(folder).tokenizer.vocabulary == VOCABULARY
    assert main(["convert", str(path), str(tmp_path / "none")]) == 2
    assert not (tmp_path / "none").exists()


def test_a_wrong_vocabulary_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write_openai(tmp_path / "tiny.en.pt", WEIGHTS))
    write_ranks(tmp_path / "ranks", VOCABULARY[:-2])
    for name, message in (("ranks", "another model"), ("none", "none: cannot read it")):
        assert main(["convert", path, str(tmp_path / "new"), "--vocabulary", str(tmp_path / name)]) == 2
        assert message in capsys.readouterr().err


# --- the hub ----------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of Hugging Face, empty, without a network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


@pytest.mark.parametrize("name", ["whisper-tiny.en", "openai/whisper-tiny.en"])
@pytest.mark.parametrize("form", ["safetensors", "pickled"])
def test_a_name_on_the_hub_is_found_in_the_cache(cache: Path, name: str, form: str) -> None:
    repository = cache / "models--openai--whisper-tiny.en"
    revision = "0123456789abcdef0123456789abcdef01234567"
    write_huggingface(repository / "snapshots" / revision, WEIGHTS, form=form)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    assert find_family(name)
    weight = load_whisper(name).model.state_dict()["decoder.embedding.weight"]
    torch.testing.assert_close(weight, WEIGHTS["decoder.token_embedding.weight"])


def test_names_as_in_other_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[str] = []
    monkeypatch.setattr("asr.whisper.loading._fetch", lambda name: asked.append(name) or tmp_path)
    for name, hub_name in (
        ("tiny", "openai/whisper-tiny"),
        ("base.en", "openai/whisper-base.en"),
        ("large", "openai/whisper-large-v3"),
        ("large-v1", "openai/whisper-large"),
        ("turbo", "openai/whisper-large-v3-turbo"),
        ("distil-large-v3", "distil-whisper/distil-large-v3"),
        ("whisper-small", "openai/whisper-small"),
    ):
        assert find_family(name)
        find_files(name)
        assert asked[-1] == hub_name
    assert not find_family("large-v4")
    (tmp_path / "tiny").mkdir()  # the folder of a run
    assert not find_family("tiny") and find_files("tiny") == Path("tiny")


def test_english_only_models_refuse_other_languages_before_loading(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("asr.whisper.loading._fetch", lambda name: pytest.fail(f"{name} was fetched"))
    english = write_openai(tmp_path / "tiny.pt", WEIGHTS)
    for model in ("base.en", "distil-small.en", "openai/whisper-tiny.en", english):
        for language, task in (("de", "transcribe"), (None, "translate")):
            with pytest.raises(UserError, match="English only"):
                require_language(model, language, task)  # type: ignore[arg-type]
        require_language(model, "en", "transcribe")
    require_language("large-v3", "de", "translate")


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", ["../whisper-missing", "-x/whisper", "whisper--x", "a/whisper..b"])
def test_a_name_that_the_hub_cannot_have(name: str) -> None:
    with pytest.raises(
        UserError, match=r"no such file or folder, and no name of a Whisper model; give the path"
    ):
        load_whisper(name)


def test_no_name_and_no_file(tmp_path: Path) -> None:
    for name in (str(tmp_path / "absent" / "model.pt"), "nonsense"):
        assert not find_family(name)
        with pytest.raises(UserError, match="no such file or folder"):
            load_whisper(name)
    (tmp_path / "page.bin").write_text("<html>")
    with pytest.raises(UserError, match=r"no \.pt file of OpenAI"):
        load_whisper(tmp_path / "page.bin")
    with pytest.raises(UserError, match="no Whisper model in this folder"):
        load_whisper(tmp_path)
    (tmp_path / "ggml.bin").write_bytes(b"lmgg")
    with pytest.raises(UserError, match=r"python tools/convert_ggml.py .*ggml.bin FOLDER"):
        load_whisper(tmp_path / "ggml.bin")


# --- hostile and damaged files ----------------------------------------------------------------------

MEMORY_LIMIT = 50_000_000


def refuse(path: Path, message: str) -> None:
    """A clear error, and little memory on the way there."""
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=message):
            load_whisper(path)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_LIMIT
    finally:
        tracemalloc.stop()


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
    path = tmp_path / "tiny.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny/data.pkl", content)
        archive.writestr("tiny/version", "3\n")
    refuse(path, "would run code .*nothing was run")
    folder = write_huggingface(tmp_path / "hf", WEIGHTS, form="pickled")
    (folder / "pytorch_model.bin").write_bytes(path.read_bytes())
    refuse(folder, "would run code .*nothing was run")
    assert not (tmp_path / "executed").exists()


def test_memory_that_a_pickle_asks_for(tmp_path: Path) -> None:
    """A terabyte of zeros, by a call that PyTorch itself lets pass."""
    path = tmp_path / "tiny.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "tiny/data.pkl", b"\x80\x02cbuiltins\nbytearray\n\x8a\x06\x00\x00\x00\x00\x00\x01\x85R."
        )
    refuse(path, "would run code .*bytearray")


def test_a_compressed_archive(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/data.pkl", bytes(100_000_000))
    refuse(path, "compressed archive")


def test_one_number_as_a_large_matrix(tmp_path: Path) -> None:
    """Views repeat the bytes of a file as often as they like."""
    wide = {
        **WEIGHTS,
        "decoder.token_embedding.weight": torch.zeros(1, 1).expand(len(VOCABULARY) + 1608, 10**9),
    }
    refuse(write_openai(tmp_path / "wide.pt", wide), "bytes of weights in a smaller file")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_audio_state": 10**12, "n_text_state": 10**12}, "dim = 1000000000000"),
        ({"n_audio_layer": 10**9}, "encoder_layers = 1000000000"),
        ({"n_audio_state": 64}, "different widths"),
        ({"n_mels": "80"}, "num_mels"),
        ({"n_text_ctx": 10**500}, "max_tokens"),
        ({"n_text_ctx": 10**5000}, "the file is damaged"),
        ({"n_audio_ctx": 750}, r"encoder.positional_embedding has shape \(1500, 32\)"),
        ({"n_text_layer": 4}, "weights are missing, decoder.blocks.3"),
        ({"n_text_layer": 2}, "unknown weights, 'decoder.blocks.2"),
    ],
)
def test_sizes_that_do_not_fit(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    refuse(write_openai(tmp_path / "tiny.pt", WEIGHTS, SIZES | change), message)


def test_weights_that_are_no_numbers_of_floating_point(tmp_path: Path) -> None:
    for wrong in (torch.ones(32, dtype=torch.int64), torch.ones(33)):
        path = write_openai(tmp_path / "tiny.pt", WEIGHTS | {"decoder.ln.bias": wrong})
        refuse(path, "decoder.ln.bias has shape|would run code .*LongStorage")


def test_settings_of_hugging_face_that_do_not_fit(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path, WEIGHTS)
    config = json.loads((folder / "config.json").read_text())
    for change, message in (
        ({"model_type": "bert"}, "model_type is bert"),
        ({"activation_function": "relu"}, "activation_function is relu, but Whisper has gelu"),
        ({"decoder_ffn_dim": 64}, "decoder_ffn_dim is 64, but Whisper has 128"),
        ({"d_model": None}, "dim = None"),
        ({"d_model": 64, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256}, "has shape"),
        ({"encoder_layers": 10**6}, "encoder_layers"),
    ):
        (folder / "config.json").write_text(json.dumps(config | change))
        refuse(folder, message)
    (folder / "config.json").write_text("[" * 1_000_000)
    refuse(folder, "nested too deep")
    (folder / "config.json").write_text(" " * 20_000_001)
    refuse(folder, "over 20,000,000 bytes")


@pytest.mark.parametrize("heads", ["[[1e400, 1]]", "[[0, 2.7]]", '[["0", "1"]]', "[[0]]", "[3]", "7"])
def test_alignment_heads_that_are_no_whole_numbers(heads: str, tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path, WEIGHTS)
    (folder / "generation_config.json").write_text(f'{{"alignment_heads": {heads}}}')
    refuse(folder, rf"{folder}: .*alignment_heads.*(expected a valid (integer|array)|is missing)")
    (folder / "generation_config.json").write_text('{"alignment_heads": [[0, 1]]}')
    assert read_checkpoint(folder).sizes.alignment_heads == ((0, 1),)


def test_weights_of_hugging_face_that_do_not_fit(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path / "hf", WEIGHTS)
    path = folder / "model.safetensors"
    whole, weights = path.read_bytes(), load_file(path)
    save_file(weights | {"proj_out.weight": weights["model.decoder.embed_tokens.weight"] + 1}, path)
    refuse(folder, "proj_out.weight differs from the embeddings")
    path.write_bytes(struct.pack("<Q", 2**40) + whole[8:])
    refuse(folder, "a header of 1,099,511,627,776 bytes")
    path.write_bytes(whole[:-1])
    refuse(folder, "not a complete safetensors file")
    path.unlink()
    refuse(folder, "no weights; expected model.safetensors")


def test_convert_writes_over_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for target in ("hf", "other.pt"):
        convert(tmp_path, target)
        assert main(["convert", str(tmp_path / "tiny.en.pt"), str(tmp_path / target)]) == 2
        assert f"{target}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("whisper-bas", "Did you mean openai/whisper-base? Without a network"),
        ("base", "or `hf download openai/whisper-base` where there is one. Without a network"),
    ],
)
def test_a_name_that_the_hub_lacks(name: str, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, local_files_only: bool = False, **__: object) -> None:
        raise LocalEntryNotFoundError("nothing") if local_files_only else OSError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(UserError) as caught:
        find_files(name)
    assert advice in str(caught.value)
