"""Positions and windows as ablations: each is a matter of the config, and each does what its name says."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from asr.models import SpeechModel, build_model
from asr.system import RunConfig

# B batch, T frames and steps, F features, U tokens, V vocabulary

CONF = Path(__file__).resolve().parents[2] / "conf" / "fsdd" / "transformer.yaml"
NUM_FEATURES, VOCAB_SIZE = 40, 21
# One step for each frame, which sees no other frame before attention does.
ENCODER = "dim: 32, num_layers: 1, num_heads: 2, feed_forward_dim: 32, subsampling: {type: stack, factor: 1}"
DECODER = "dim: 32, num_layers: 1, num_heads: 2, feed_forward_dim: 32"

POSITIONS = ["{type: rotary}", "{type: none}"] + [
    f"{{type: {kind}, combine: {combine}}}"
    for kind, combine in itertools.product(("sinusoid", "fourier", "learned"), ("add", "concatenate"))
]
WINDOWS = [16, 64, None]


def build(encoder: str = "type: transformer", *overrides: str) -> SpeechModel:
    torch.manual_seed(0)
    config = RunConfig.load(
        CONF,
        [f"model.encoder={{{encoder}, {ENCODER}}}", f"model.decoder={{{DECODER}}}", *overrides],
    )
    model = build_model(config.model, NUM_FEATURES, VOCAB_SIZE).eval().double()
    assert isinstance(model, SpeechModel)
    return model


def encode(model: SpeechModel, features_TF: Tensor) -> Tensor:
    with torch.no_grad():
        return model.encode(features_TF[None], torch.tensor([len(features_TF)]))[0][0]


def score(model: SpeechModel, tokens: list[int], encoded_TD: Tensor) -> Tensor:
    decoder: Any = model.decoder
    with torch.no_grad():
        return decoder(torch.tensor([tokens]), encoded_TD[None], torch.tensor([len(encoded_TD)]))[0][0]


def noise(num_frames: int) -> Tensor:
    return torch.randn(num_frames, NUM_FEATURES, dtype=torch.float64)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("kind", ["transformer", "conformer"])
def test_positions_of_an_encoder(kind: str, positions: str) -> None:
    """Without any, attention sees a set of steps: turned round, they give the same, turned round."""
    # The kernel of one step leaves the order to attention.
    encoder = f"type: {kind}, positions: {positions}" + (", kernel: 1" if kind == "conformer" else "")
    model, features_TF = build(encoder), noise(12)
    turned_TD = encode(model, features_TF.flip(0)).flip(0)
    knows_order = not torch.allclose(turned_TD, encode(model, features_TF), rtol=0, atol=1e-9)
    assert knows_order == ("none" not in positions)


@pytest.mark.parametrize("positions", POSITIONS)
def test_positions_of_a_decoder(positions: str) -> None:
    """Without any, what comes next depends on the tokens so far, and not on their order."""
    model = build("type: transformer", f"model.decoder.positions={positions}")
    encoded_TD = encode(model, noise(12))
    one, other = (score(model, [2, *middle, 7], encoded_TD)[-1] for middle in ([8, 9, 10], [10, 8, 9]))
    knows_order = not torch.allclose(one, other, rtol=0, atol=1e-9)
    assert knows_order == ("none" not in positions)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", ["transformer", "conformer"])
def test_windows_of_an_encoder(kind: str, window: int | None) -> None:
    """So many steps in all, the step itself among them: half of them before it."""
    sides = None if window is None else [window // 2, window // 2 - 1]
    shown = "null" if sides is None else str(sides)
    encoder = f"type: {kind}, window: {shown}" + (", kernel: 1" if kind == "conformer" else "")
    model, features_TF, changed = build(encoder), noise(150), 75
    other_TF = features_TF.clone()
    other_TF[changed] += 1
    is_moved_T = (encode(model, features_TF) - encode(model, other_TF)).abs().amax(-1) > 1e-9
    left, right = sides or (150, 150)
    expected = [changed - right <= step <= changed + left for step in range(150)]
    assert is_moved_T.tolist() == expected


@pytest.mark.parametrize("window", WINDOWS)
def test_windows_of_a_decoder(window: int | None) -> None:
    """A token sees so many before it and itself."""
    model = build("type: transformer", f"model.decoder.window={'null' if window is None else window}")
    encoded_TD = encode(model, noise(12))
    tokens = torch.randint(5, VOCAB_SIZE, (100,)).tolist()
    other = [*tokens[:10], 5 + (tokens[10] - 4) % (VOCAB_SIZE - 5), *tokens[11:]]
    is_moved_U = (score(model, tokens, encoded_TD) - score(model, other, encoded_TD)).abs().amax(-1) > 1e-9
    assert is_moved_U.tolist() == [10 <= place <= 10 + (window or 100) for place in range(100)]


@pytest.mark.parametrize("window", [1, 16])
@pytest.mark.parametrize("positions", ["{type: rotary}", "{type: sinusoid}"])
def test_a_window_step_by_step(window: int, positions: str) -> None:
    """With a cache, a token at a time or several, the scores are those of all tokens at once."""
    model = build(
        "type: transformer", f"model.decoder.window={window}", f"model.decoder.positions={positions}"
    )
    encoded_TD, decoder = encode(model, noise(12)), model.decoder
    tokens_U = torch.randint(5, VOCAB_SIZE, (40,))
    expected_UV = score(model, tokens_U.tolist(), encoded_TD)
    state = decoder.start(encoded_TD[None], torch.tensor([len(encoded_TD)]))  # type: ignore[union-attr, operator]
    with torch.no_grad():
        found = [decoder.step(part[None], state)[0][0] for part in tokens_U.split([1, 1, 1, 20, 1, 1, 15])]  # type: ignore[union-attr, operator]
    torch.testing.assert_close(torch.cat(found), expected_UV, rtol=0, atol=1e-9)


def test_sizes_are_a_matter_of_the_config() -> None:
    small, large = (build("type: transformer", f"model.decoder.num_layers={count}") for count in (1, 3))
    sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in (small, large)]
    layer = sum(parameter.numel() for parameter in small.decoder.layers[0].parameters())  # type: ignore[union-attr, index, operator]
    assert sizes[1] - sizes[0] == 2 * layer
