"""Moonshine compared with transformers: random weights, and published ones if ASR_MOONSHINE has them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from asr.decoding.greedy import sample
from asr.decoding.hypothesis import DecodingConfig, SearchRules
from asr.moonshine.loading import load_source
from asr.moonshine.manners import MoonshineManners
from asr.moonshine.tokens import order_rows
from asr.moonshine.weights import read_weights
from asr.text.tokenizer import UNK_ID

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

FOLDER = os.environ.get("ASR_MOONSHINE")
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "base": {
        "hidden_size": 416,
        "intermediate_size": 1664,
        "encoder_num_hidden_layers": 8,
        "decoder_num_hidden_layers": 8,
        "partial_rotary_factor": 0.62,
    },
}


def make_theirs(size: str) -> Any:
    settings = SIZES[size]
    if "partial_rotary_factor" in settings:
        rope = {"rope_theta": 10_000.0, "rope_type": "default", "partial_rotary_factor": 0.62}
        settings = settings | {"rope_parameters": rope}
    return transformers.MoonshineForConditionalGeneration(transformers.MoonshineConfig(**settings)).eval()


@torch.inference_mode()
def compare(theirs: Any, system: Any) -> None:
    """Encoded steps within 1e-4, and scores of each next token."""
    audio_BS = torch.randn(2, 40_000, generator=torch.Generator().manual_seed(1)) * 0.1
    ids_BU = torch.randint(3, 32_000, (2, 12), generator=torch.Generator().manual_seed(2))
    expected_BTD = theirs.model.encoder(audio_BS).last_hidden_state
    encoded_BTD, lengths_B = system.model.encode(*system.front_end(audio_BS, torch.tensor([40_000] * 2)))
    assert expected_BTD.shape == encoded_BTD.shape and lengths_B.tolist() == [expected_BTD.size(1)] * 2
    torch.testing.assert_close(encoded_BTD, expected_BTD, atol=1e-4, rtol=1e-4)
    expected_BUV = theirs(input_values=audio_BS, decoder_input_ids=ids_BU).logits
    scores_BUV, _ = system.model.decoder(ids_BU + 2, encoded_BTD, lengths_B)
    for scores_UV, expected_UV in zip(scores_BUV, expected_BUV, strict=True):
        torch.testing.assert_close(scores_UV, order_rows(expected_UV.T).T, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("size", SIZES)
def test_random_weights(size: str, tmp_path: Path) -> None:
    """A folder that transformers writes is read; no weight is a zero or one that would hide a mistake."""
    torch.manual_seed(0)
    theirs = make_theirs(size)
    for weight in theirs.parameters():
        torch.nn.init.normal_(weight, 0.3 if weight.dim() == 1 else 0.0, 0.08)
    theirs.save_pretrained(tmp_path)
    pieces = [b"<unk>", b"<s>", b"</s>", *(bytes([byte]) for byte in range(256)), b"\xe2\x96\x81a"]
    (tmp_path / "tokenizer.bin").write_bytes(b"".join(bytes([len(piece)]) + piece for piece in pieces))
    compare(theirs, load_source(tmp_path))


@pytest.mark.skipif(not FOLDER, reason="ASR_MOONSHINE is not set: the folder of tiny/ and base/")
@pytest.mark.parametrize("size", SIZES)
def test_published_weights(size: str) -> None:
    folder = Path(str(FOLDER)) / size
    theirs, system = make_theirs(size), load_source(folder)
    weights = {f"model.{name}": weight for name, weight in read_weights(folder).items()}
    assert not theirs.load_state_dict(weights, strict=False).unexpected_keys
    theirs.tie_weights()
    compare(theirs, system)


@pytest.mark.skipif(not FOLDER, reason="ASR_MOONSHINE is not set: the folder of tiny/ and base/")
@pytest.mark.parametrize("size", SIZES)
def test_texts(size: str, clips: list[np.ndarray]) -> None:
    """The same tokens of 50 clips of speech, alone and in batches."""
    folder = Path(str(FOLDER)) / size
    theirs, system = make_theirs(size), load_source(folder)
    theirs.load_state_dict({f"model.{name}": own for name, own in read_weights(folder).items()}, strict=False)
    theirs.tie_weights()
    manners = MoonshineManners(system)
    for first in range(0, len(clips), 10):
        part = clips[first : first + 10]
        batch = search(manners, part)
        for clip, own in zip(part, batch, strict=True):
            assert search(manners, [clip]) == [own]
            (found,) = theirs.generate(input_values=torch.from_numpy(clip)[None], max_new_tokens=len(own) + 1)
            expected = [id + 2 for id in found.tolist() if id > 2]
            limit = int(system.model.limit_tokens(manners.encode([clip]).lengths_B))
            assert own == expected[: len(own)] and (len(own) in (len(expected), limit))


def search(manners: MoonshineManners, clips: list[np.ndarray]) -> list[list[int]]:
    """Where a text may also end at once, as theirs may."""
    encoded = replace(manners.encode(clips), rules=SearchRules(first=UNK_ID + 1))
    nbest = sample(encoded, DecodingConfig(beam=1), max_repeats=None)
    return [list(texts[0].tokens) for texts in nbest]


@pytest.fixture(scope="module")
def clips() -> list[np.ndarray]:
    """Real speech where ASR_CORPORA has AN4."""
    corpora = os.environ.get("ASR_CORPORA")
    if not corpora:
        pytest.skip("ASR_CORPORA is not set: the folder with an4/")
    paths = sorted(Path(corpora).glob("an4/**/*.sph"))[:50]
    assert len(paths) == 50
    return [soundfile.read(path, dtype="float32")[0] for path in paths]
