"""Moonshine's model, tokens and decoding, with small random weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from ort_examples import TEXTS, draw, train_pieces
from safetensors.torch import save_file

import asr
from asr.audio.segmentation import SegmentationConfig
from asr.decoding.hypothesis import ChecksConfig
from asr.errors import UserError
from asr.families import Convertible, find_family
from asr.features.front_end import FeaturesConfig, FrontEnd
from asr.moonshine.encoder_decoder import MIN_FRAMES, MoonshineEncoder, cut_windows
from asr.moonshine.family import ORT_FILES
from asr.moonshine.loading import load_source
from asr.moonshine.manners import FineLinear, MoonshineManners
from asr.moonshine.tokens import name_tokens, order_rows
from asr.moonshine.weights import read_weights
from asr.system.system import System
from asr.text.tokenizer import EOS_ID, SOS_ID, UNK_ID, Tokenizer


@pytest.fixture(scope="module")
def system(folder: Path) -> System:
    return load_source(folder)


def encode(system: System, rows: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    encoded = MoonshineManners(system).encode(rows)
    return encoded.encoded_BTD, encoded.lengths_B


# --- front end --------------------------------------------------------------------------------------


def test_samples_as_features() -> None:
    """Frames follow each other; the last sample of the last frame may be missing."""
    front_end = FrontEnd(FeaturesConfig(type="samples"))
    audio_BS = torch.arange(1.0, 321.0)[None]
    for num_samples, num_frames in ((0, 0), (62, 0), (63, 1), (64, 1), (126, 1), (127, 2), (320, 5)):
        features_BTF, lengths_B = front_end(audio_BS[:, :num_samples], torch.tensor([num_samples]))
        assert features_BTF.shape == (1, num_frames, 64) and lengths_B.tolist() == [num_frames]
        kept = min(num_samples, 64 * num_frames)
        assert torch.equal(features_BTF.flatten()[:kept], audio_BS[0, :kept])
        assert not features_BTF.flatten()[kept:].any()


@pytest.mark.parametrize("settings", [{"cmvn": "utterance"}, {"window_ms": 25.0}])
def test_settings_that_samples_do_not_have(settings: dict[str, object]) -> None:
    with pytest.raises(UserError, match="type samples has adjacent frames"):
        FeaturesConfig(type="samples", **settings)


# --- encoder ----------------------------------------------------------------------------------------


def test_windows_are_a_convolution() -> None:
    x_BCT, weight_DCK = torch.randn(2, 5, 23), torch.randn(4, 5, 7)
    windows = cut_windows(x_BCT.mT.contiguous(), 7, 3)
    expected = torch.nn.functional.conv1d(x_BCT, weight_DCK, stride=3).mT
    torch.testing.assert_close(windows @ weight_DCK.mT.flatten(1).T, expected)


def test_company_changes_nothing(system: System) -> None:
    rows = [draw(1.0), draw(2.7, 1), draw(0.3, 2)]
    together_BTD, lengths_B = encode(system, rows)
    for row, own in enumerate(rows):
        alone_BTD, (length,) = encode(system, [own])
        assert length == lengths_B[row] == ((((len(own) - 127) // 64 + 1 - 7) // 3 + 1) - 3) // 2 + 1
        torch.testing.assert_close(together_BTD[row, :length], alone_BTD[0, :length], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("num_samples", [0, 1, 63, 500, 893, 894, 895])
def test_short_audio(num_samples: int, system: System) -> None:
    """Audio shorter than one step has no steps and an empty text."""
    _, (length,) = encode(system, [draw(1.0)[:num_samples]])
    assert length == (num_samples >= 64 * MIN_FRAMES - 1)


def test_positions_turn_pairs_of_neighbors(system: System) -> None:
    """Loading reorders the rows of a head, so that our rotation computes the same as theirs."""
    encoder = system.model.encoder
    assert isinstance(encoder, MoonshineEncoder)
    rotary = encoder.layers[0].attention.rotary
    x = torch.randn(1, 1, 9, 64)
    halves = torch.cat(
        [torch.arange(0, 32, 2), torch.arange(32, 48), torch.arange(1, 32, 2), torch.arange(48, 64)]
    )
    rotary = type(rotary)(64, 32)
    turned = rotary(x[..., halves])[..., halves.argsort()]
    angles = torch.arange(9.0)[:, None] * 10_000 ** (-torch.arange(0, 32, 2) / 32)
    pairs = torch.view_as_complex(x[..., :32].unflatten(-1, (-1, 2)).contiguous())
    expected = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)
    torch.testing.assert_close(turned, torch.cat([expected, x[..., 32:]], dim=-1), atol=1e-5, rtol=1e-5)


# --- tokens -----------------------------------------------------------------------------------------


def test_pieces_of_words() -> None:
    """Texts are split into the same pieces as sentencepiece splits them into."""
    processor, pieces = train_pieces()
    tokenizer = Tokenizer("moonshine", name_tokens(pieces, 300))
    assert len(tokenizer) == 300
    for text in (*TEXTS, "bearable", "Überall ♪", "<s> <0x41> <<ST_1>>"):
        ids = tokenizer.encode(text)
        assert [id - 2 for id in ids] == processor.encode(text), text
        assert tokenizer.decode(ids) == text.removesuffix(" ♪"), "music signs are no text"
        assert tokenizer.find_unknown(text) == []
    assert tokenizer.encode("") == [] and tokenizer.decode([299, 298, UNK_ID + 200]) == ""


def test_rows_in_the_order_of_the_tokens() -> None:
    rows = order_rows(torch.arange(300.0)[:, None])[:, 0].int().tolist()
    assert (rows[SOS_ID], rows[EOS_ID], rows[UNK_ID]) == (1, 2, 0)
    assert rows[5:] == [*range(3, 298)] and sorted(rows) == [*range(300)]


@pytest.mark.parametrize("count", [100, 301])
def test_pieces_of_another_model(count: int) -> None:
    with pytest.raises(UserError, match="do they match the model"):
        name_tokens([b"x"] * count, 300)


# --- the family -------------------------------------------------------------------------------------


def test_texts_and_options(folder: Path) -> None:
    family = find_family(folder)
    assert family is not None and family.name == "Moonshine"
    assert family.describe(str(folder))["dim"] == 256
    model = asr.load_model(
        folder, precision="float32", checks=ChecksConfig.off(), segmentation=SegmentationConfig(method="none")
    )
    audio = draw(3.0)
    words = model.transcribe(audio, sample_rate=16_000)
    again = model.transcribe(audio, sample_rate=16_000, beam=3)
    assert words.segments and words.segments[0].tokens and again.segments[0].tokens
    with pytest.raises(UserError, match=r"'de': Moonshine knows English only; for other languages"):
        model.transcribe(audio, sample_rate=16_000, language="de")
    assert model.transcribe(audio, sample_rate=16_000, language="English").text == words.text
    with pytest.raises(UserError, match="Moonshine models do not support this option"):
        model.transcribe(audio, sample_rate=16_000, task="translate")


def test_copies(folder: Path, system: System, tmp_path: Path) -> None:
    """`asr convert` writes a folder with 8 bits per weight that loads the same model, and writes nothing else."""
    family = find_family(folder)
    assert isinstance(family, Convertible)
    (folder / "other.txt").write_text("not of the model")
    family.convert(str(folder), tmp_path / "copy", None)
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {*ORT_FILES}
    assert find_family(tmp_path / "copy") is family
    again = load_source(tmp_path / "copy")
    assert again.tokenizer == system.tokenizer
    weights = again.model.state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in system.model.state_dict().items())
    with pytest.raises(UserError, match="is not empty"):
        family.convert(str(folder), tmp_path / "copy", None)
    with pytest.raises(UserError, match="keeps its precision; leave --dtype out"):
        family.convert(str(folder), tmp_path / "half", torch.float16)
    (tmp_path / "copy" / ORT_FILES[1]).write_bytes(b"")
    with pytest.raises(UserError, match="truncated or damaged"):
        family.convert(str(tmp_path / "copy"), tmp_path / "damaged", None)
    assert not (tmp_path / "damaged").exists()


def test_folders_of_hugging_face(folder: Path, tmp_path: Path) -> None:
    """They give the same model; weights of another model are refused."""
    whole = read_weights(folder)
    settings = {"model_type": "moonshine", "hidden_size": 256, "partial_rotary_factor": 1.0}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "tokenizer.bin").write_bytes((folder / "tokenizer.bin").read_bytes())
    save_file({f"model.{name}": weight for name, weight in whole.items()}, tmp_path / "model.safetensors")
    family = find_family(tmp_path)
    assert family is not None and family.name == "Moonshine"
    ours, theirs = load_source(tmp_path).model.state_dict(), load_source(folder).model.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    for name, wrong in (
        ("encoder.conv2.weight", torch.zeros(512, 256, 5)),
        ("encoder.layers.0.self_attn.q_proj.weight", torch.zeros(256, 200)),
        ("decoder.layers.0.self_attn.v_proj.weight", None),
        ("decoder.extra.weight", torch.zeros(2)),
    ):
        weights = {key: weight for key, weight in (whole | {name: wrong}).items() if weight is not None}
        save_file({f"model.{key}": weight for key, weight in weights.items()}, tmp_path / "model.safetensors")
        with pytest.raises(UserError, match="no Moonshine of the first generation"):
            load_source(tmp_path)


def test_rest_of_rounding() -> None:
    """The second product removes the error that 8 bits cause in the input."""
    linear = torch.nn.Linear(64, 32)
    linear.weight.data.sign_()  # which 8 bits hold
    x = torch.randn(50, 64) * torch.tensor([30.0, *[0.1] * 63])
    error = (FineLinear(linear)(x) - linear(x)).abs().max()
    assert error < 0.02 * (FineLinear(linear).linear(x) + linear.bias - linear(x)).abs().max()
