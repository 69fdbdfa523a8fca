"""`asr convert`: models of runs as small folders, which say by themselves how they are decoded."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import yaml
from hostile_audio import make_speechlike
from safetensors.torch import load_file, save_file
from system_examples import WORDS, save_talker
from whisper_examples import make_weights, write_huggingface

from asr import load_model
from asr.cli import main
from asr.config import build_config
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig
from asr.errors import UserError
from asr.features.front_end import FrontEnd
from asr.language_models.ngram import write_arpa
from asr.models.speech_model import build_model
from asr.recipe.evaluation import estimate_arpa
from asr.system.checkpoint import save_checkpoint
from asr.system.run_config import RunConfig
from asr.system.system import System, load_state, load_system
from asr.whisper import load_source

BELIEVE = ChecksConfig.off()
BELIEVE_OPTIONS = ["--set=checks=off"]
RATE = 16_000
FILES = {"model.safetensors", "config.yaml", "tokenizer.json", "state.json"}


@pytest.fixture(scope="module")
def audio() -> np.ndarray:
    return make_speechlike(2.0, seed=3)


@pytest.fixture
def talker(tmp_path: Path) -> Path:
    """A run whose model says random words."""
    save_talker(tmp_path / "run" / "model", "output_dir=/home/me/run", "data.train=/home/me/train.jsonl")
    return tmp_path / "run"


def convert(source: Path, folder: Path, *options: str) -> Path:
    assert main(["convert", str(source), str(folder), *options]) == 0
    return folder


def hear(folder: Path, audio: np.ndarray) -> str:
    return load_model(folder, "cpu", checks=BELIEVE).transcribe(audio, RATE).text


# --- weights ------------------------------------------------------------------------------------


def test_half_precision_takes_half_the_room_and_says_the_same(
    talker: Path, tmp_path: Path, audio: np.ndarray
) -> None:
    folder = convert(talker, tmp_path / "small", "--dtype", "float16")
    assert {path.name for path in folder.iterdir()} == FILES
    before, after = (load_file(path / "model.safetensors") for path in (talker / "model", folder))
    assert before.keys() == after.keys()
    assert {tensor.dtype for name, tensor in after.items() if name.startswith("model.")} == {torch.float16}
    assert (folder / "model.safetensors").stat().st_size < 0.6 * (
        talker / "model/model.safetensors"
    ).stat().st_size
    loaded = load_system(folder).model.state_dict()
    for name, tensor in load_system(talker / "model").model.state_dict().items():
        assert loaded[name].dtype == torch.float32
        torch.testing.assert_close(loaded[name], tensor, rtol=2**-11, atol=2**-24)  # of float16
    assert hear(folder, audio) == hear(talker, audio) != ""


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_default_keeps_every_bit_and_the_umask(
    umask: int, mode: int, talker: Path, tmp_path: Path
) -> None:
    before = os.umask(umask)
    try:
        folder = convert(talker, tmp_path / "copy")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {mode}
    given, after = (load_file(path / "model.safetensors") for path in (talker / "model", folder))
    assert given.keys() == after.keys() and all(torch.equal(given[name], after[name]) for name in given)


def test_nothing_of_the_training_and_of_the_machine_is_passed_on(talker: Path, tmp_path: Path) -> None:
    kept = {"step": 7, "audio_seconds": 3.5, "longest_seconds": 2.5, "dev_scores": {"wer": 0.5}}
    kept |= {"seconds": 1.5, "commit": "of the training"}
    path = talker / "model" / "state.json"
    made = json.loads(path.read_text())
    path.write_text(json.dumps(made | kept | {"best": [[0.5, 7]], "scaler": {}, "epoch": 3}))
    (talker / "model" / "training.safetensors").touch()
    folder = convert(talker, tmp_path / "small", "--dtype", "float16")
    assert {path.name for path in folder.iterdir()} == FILES
    assert load_state(folder) == made | kept
    text = (folder / "config.yaml").read_text()
    assert "output_dir: run\n" in text and "train: train.jsonl\n" in text and "/home" not in text


def test_whisper_in_half_precision(tmp_path: Path) -> None:
    source = write_huggingface(tmp_path / "tiny.en", make_weights())
    half = convert(source, tmp_path / "half", "--dtype", "float16")
    assert {t.dtype for t in load_file(half / "model.safetensors").values()} == {torch.float16}
    small, large = load_source(half).model.state_dict(), load_source(source).model.state_dict()
    for name, tensor in large.items():
        torch.testing.assert_close(small[name].float(), tensor, rtol=2**-11, atol=2**-24)


def test_what_cannot_be_converted(talker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = talker / "model" / "model.safetensors"
    tensors = load_file(path)
    tensors["model.ctc_head.bias"][2] = 1e6
    save_file(tensors, path)
    for source, folder, options, message in (
        ("run", "run", [], "run: is not empty"),
        ("run", "run/model/config.yaml", [], "config.yaml: is not empty"),
        (".", "new", [], "no model found"),
        ("run", "new", ["--dtype", "float16"], "ctc_head.bias"),
    ):
        assert main(["convert", str(tmp_path / source), str(tmp_path / folder), *options]) == 2
        assert message in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["run"]


# --- the decoding of a folder --------------------------------------------------------------------


def add_decoding(folder: Path, **settings: object) -> None:
    """Write decoding.yaml, and n-grams of the first five words next to it."""
    texts = [" ".join(WORDS[n : n + 2]) for n in range(4)]
    write_arpa(folder / "ngrams.arpa", estimate_arpa(load_system(folder), texts))
    content = {"decoding": settings, "language_model": "ngrams.arpa"}
    (folder / "decoding.yaml").write_text(yaml.safe_dump(content))


def test_a_folder_is_decoded_as_its_file_says(
    talker: Path, tmp_path: Path, audio: np.ndarray,
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run, folder = talker, convert(talker, tmp_path / "small")
    add_decoding(folder, method="ctc_beam", beam=7, language_model_weight=0.6, speeds=[0.9, 1.0])
    described = "method ctc_beam, beam 7, language_model_weight 0.6, speeds [0.9, 1.0]"
    described += ", language_model ngrams.arpa"
    capsys.readouterr()
    assert main(["info", str(folder)]) == 0
    assert described in capsys.readouterr().out

    wav = tmp_path / "a.wav"
    soundfile.write(wav, audio, RATE)
    audio, _ = soundfile.read(wav, dtype="float32")

    def say(*options: str) -> str:
        caplog.clear()
        with caplog.at_level(logging.DEBUG):
            assert main(["transcribe", str(wav), "--model", str(folder), *options, *BELIEVE_OPTIONS]) == 0
        return capsys.readouterr().out.strip()

    weighed = ["--language-model", str(folder / "ngrams.arpa"), "--decoding", "ctc_beam", "--beam", "7", "--set", "decoding.language_model_weight=0.6",
               "--set", "decoding.speeds=[0.9,1.0]"]  # fmt: skip
    text = say()
    assert f"decoding: {described} ({folder}/decoding.yaml)" in caplog.messages
    assert text == hear(folder, audio) != "", "from Python too"
    assert text == say(*weighed) and any("decoding.yaml is ignored" in m for m in caplog.messages)
    assert say("--decoding", "ctc_beam") == hear_plainly(run, audio, "ctc_beam") != text
    assert any("decoding.yaml is ignored" in m for m in caplog.messages)
    assert say("--set", "decoding.method=ctc_greedy") == hear_plainly(run, audio, "ctc_greedy")
    assert say("--beam", "1") == say(*weighed[:4], "--beam", "1", *weighed[6:])
    assert hear(run, audio) == hear_plainly(run, audio, "auto"), "a run itself has no decoding of its own"


def hear_plainly(folder: Path, audio: np.ndarray, method: str) -> str:
    decoding = DecodingConfig.model_validate({"method": method})
    return load_model(folder, "cpu", checks=BELIEVE).transcribe(audio, RATE, decoding=decoding).text


def test_the_decoding_is_passed_on(talker: Path, tmp_path: Path) -> None:
    first = convert(talker, tmp_path / "one")
    add_decoding(first, method="joint", language_model_weight=0.3)
    (first / "words.txt").write_text("one\n")
    with (first / "decoding.yaml").open("a") as file:
        file.write("words: words.txt\n")
    second = convert(first, tmp_path / "two", "--dtype", "float16")
    for name in ("decoding.yaml", "words.txt", "ngrams.arpa"):
        assert (second / name).read_bytes() == (first / name).read_bytes()


def test_a_language_model_comes_along(talker: Path, tmp_path: Path, audio: np.ndarray) -> None:
    settings = ["output_dir=x", "data.train=x", "data.dev=x", "model.type=language", "train.select_by=loss"]
    settings += ["tokenizer.type=words", "model.dim=16", "model.num_layers=1", "model.num_heads=2"]
    config = build_config(RunConfig, [*settings, "model.feed_forward_dim=16"])
    first = convert(talker, tmp_path / "one")
    tokenizer, front_end = load_system(first).tokenizer, FrontEnd(config.features)
    model = build_model(config.model, front_end.num_features, len(tokenizer))
    save_checkpoint(first / "grammar", System(config, tokenizer, front_end, model), {"step": 0})
    settings = {"method": "joint", "language_model_weight": 0.5}
    (first / "decoding.yaml").write_text(yaml.safe_dump({"decoding": settings, "language_model": "grammar"}))
    second = convert(first, tmp_path / "two")
    assert hear(first, audio) == hear(second, audio) != hear(talker, audio)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("words: ../x.txt", "expected the name of a file or folder next to it"),
        ("lexicon: words.txt", "unknown key lexicon .*; it is now words"),
        ("language_model: ..", "expected the name of a file or folder next to it"),
        ("decoding: {methods: joint}", "unknown key decoding.methods"),
    ],
)
def test_a_wrong_decoding_is_refused(talker: Path, text: str, message: str) -> None:
    (talker / "model" / "decoding.yaml").write_text(text)
    with pytest.raises(UserError, match=message):
        load_model(talker)
