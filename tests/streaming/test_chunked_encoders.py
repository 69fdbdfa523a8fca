"""Chunk by chunk an encoder gives what the masked whole gives, and at full context what the usual one gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from encoder_examples import randomize_norms
from hypothesis import given, settings, strategies as st
from torch import Tensor

from asr.models.encoders import (
    AttentionEncoderConfig,
    ConformerEncoderConfig,
    TransformerEncoderConfig,
    build_encoder,
)
from asr.streaming.chunked_encoders import ChunkedEncoder, Chunks, EncoderState

# B utterances or sessions, T frames or steps, F features, D dimension

SIZES: dict[str, Any] = {"dim": 16, "num_layers": 2, "num_heads": 2, "feed_forward_dim": 24}
NUM_FEATURES = 11
KINDS = ("transformer", "conformer", "causal")


def make_config(kind: str, factor: int = 4, **options: Any) -> AttentionEncoderConfig:
    sizes = SIZES | {"subsampling": {"factor": factor, "channels": 3}, "positions": "rotary"}
    if kind == "transformer":
        return TransformerEncoderConfig(**sizes, chunk=options)
    convolution = "causal" if kind == "causal" else "chunk"
    return ConformerEncoderConfig(**sizes, kernel=5, chunk={"convolution": convolution} | options)


def build(kind: str, factor: int = 4, **options: Any) -> ChunkedEncoder:
    torch.manual_seed(0)
    encoder = build_encoder(make_config(kind, factor, **options), NUM_FEATURES).double().eval()
    assert isinstance(encoder, ChunkedEncoder)
    randomize_norms(encoder)
    return encoder


def encode_by_steps(encoder: ChunkedEncoder, features_TF: Tensor, chunks: Chunks) -> Tensor:
    state, encoded, size = encoder.start(1, chunks), [], chunks.steps * encoder.subsampling_factor
    for first in range(0, len(features_TF), size):
        part_TF = features_TF[first : first + size]
        encoded_BTD, lengths_B, state = encoder.step(part_TF[None], torch.tensor([len(part_TF)]), state)
        encoded.append(encoded_BTD[0, : lengths_B[0]])
    return torch.cat(encoded)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    factor=st.sampled_from([1, 2, 4, 8]),
    size=st.integers(1, 7),
    left=st.integers(0, 5),
    num_frames=st.integers(1, 90),
)
def test_chunk_by_chunk_is_the_masked_whole(
    kind: str, factor: int, size: int, left: int, num_frames: int
) -> None:
    encoder, chunks = build(kind, factor), Chunks(size, left)
    features_TF = torch.randn(num_frames, NUM_FEATURES, dtype=torch.float64)
    with torch.no_grad():
        whole_BTD, lengths_B = encoder(features_TF[None], torch.tensor([num_frames]), chunks)
        stepped_TD = encode_by_steps(encoder, features_TF, chunks)
    assert len(stepped_TD) == lengths_B[0]
    torch.testing.assert_close(stepped_TD, whole_BTD[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_in_single_precision_and_far_from_the_start(kind: str) -> None:
    encoder = build(kind).float()
    features_BTF = torch.randn(1, 6_001, NUM_FEATURES)
    with torch.no_grad():
        whole_BTD, _ = encoder(features_BTF, torch.tensor([6_001]), Chunks(8, 4))
        stepped_TD = encode_by_steps(encoder, features_BTF[0], Chunks(8, 4))
    torch.testing.assert_close(stepped_TD, whole_BTD[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_in_mixed_precision(kind: str) -> None:
    """Training and steps; new sessions, in float32 so far, join those that have gone on."""
    encoder = build(kind).float()
    features_BTF = torch.randn(1, 48, NUM_FEATURES)
    with torch.autocast("cpu", torch.bfloat16):
        whole_BTD, _ = encoder(features_BTF, torch.tensor([48]), Chunks(3, 2))
        whole_BTD.float().square().sum().backward()
        stepped_TD = encode_by_steps(encoder, features_BTF[0], Chunks(3, 2))
        frames_BTF, lengths_B = features_BTF[:, :12], torch.tensor([12])
        _, _, older = encoder.step(frames_BTF, lengths_B, encoder.start(1, Chunks(3, 2)))
        joined = EncoderState.join([encoder.start(1, Chunks(3, 2)), older])
        encoder.step(frames_BTF.repeat(2, 1, 1), lengths_B.repeat(2), joined)
    torch.testing.assert_close(stepped_TD.float(), whole_BTD[0].float(), rtol=0, atol=0.1)


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    chunks=st.builds(Chunks, st.integers(1, 5), st.integers(0, 3)),
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_sessions_at_different_positions_in_one_batch(
    kind: str, chunks: Chunks, lengths: list[int], seed: int
) -> None:
    """Sessions begin and end as they like; each step joins some of them, and the padding holds anything."""
    encoder, size = build(kind), 4 * chunks.steps
    chance = torch.Generator().manual_seed(seed)
    features = [torch.randn(length, NUM_FEATURES, dtype=torch.float64) for length in lengths]
    states: list[EncoderState] = [encoder.start(1, chunks) for _ in lengths]
    done, encoded = [0] * len(lengths), [list[Tensor]() for _ in lengths]
    with torch.no_grad():
        while waiting := [row for row in range(len(lengths)) if done[row] < lengths[row]]:
            order = torch.randperm(len(waiting), generator=chance).tolist()
            rows = [waiting[index] for index in order][: 1 + int(torch.randint(4, (), generator=chance))]
            parts = [features[row][done[row] : done[row] + size] for row in rows]
            features_BTF = torch.full((len(rows), size, NUM_FEATURES), torch.nan, dtype=torch.float64)
            for part, into in zip(parts, features_BTF, strict=True):
                into[: len(part)] = part
            lengths_B = torch.tensor([len(part) for part in parts])
            joined = EncoderState.join([states[row] for row in rows])
            encoded_BTD, steps_B, joined = encoder.step(features_BTF, lengths_B, joined)
            for place, row in enumerate(rows):
                states[row] = joined.split()[place]
                encoded[row].append(encoded_BTD[place, : steps_B[place]])
                done[row] += size
        for row, features_TF in enumerate(features):
            whole_BTD, _ = encoder(features_TF[None], torch.tensor([lengths[row]]), chunks)
            torch.testing.assert_close(torch.cat(encoded[row]), whole_BTD[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_each_utterance_of_a_masked_batch_as_if_alone(kind: str) -> None:
    """Values, and gradients that are finite."""
    encoder, lengths = build(kind), [45, 9, 1, 32]
    features_BTF = torch.randn(4, 45, NUM_FEATURES, dtype=torch.float64)
    encoded_BTD, steps_B = encoder(features_BTF, torch.tensor(lengths), Chunks(3, 1))
    for row, length in enumerate(lengths):
        alone_BTD, _ = encoder(features_BTF[row : row + 1, :length], torch.tensor([length]), Chunks(3, 1))
        torch.testing.assert_close(encoded_BTD[row, : steps_B[row]], alone_BTD[0], rtol=0, atol=1e-6)
    encoded_BTD.square().sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in encoder.parameters())


@pytest.mark.parametrize("kind", ["transformer", "conformer"])
def test_full_context_is_the_usual_encoder_to_the_bit(kind: str) -> None:
    """With the weights of a model that has no chunks, whose names are the same."""
    chunked = build(kind).float()
    usual = build_encoder(make_config(kind).model_copy(update={"chunk": None}), NUM_FEATURES).eval()
    assert not isinstance(usual, ChunkedEncoder)
    usual.load_state_dict(chunked.state_dict())
    features_BTF, lengths_B = torch.randn(3, 50, NUM_FEATURES), torch.tensor([50, 31, 7])
    with torch.no_grad():
        expected_BTD, expected_B = usual(features_BTF, lengths_B)
        encoded_BTD, steps_B = chunked(features_BTF, lengths_B)
        limitless_BTD, _ = chunked(features_BTF, lengths_B, Chunks(20, 0))
    assert torch.equal(encoded_BTD, expected_BTD) and torch.equal(steps_B, expected_B)
    for row, steps in enumerate(steps_B.tolist()):
        torch.testing.assert_close(limitless_BTD[row, :steps], expected_BTD[row, :steps], rtol=0, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(kind=st.sampled_from(KINDS), size=st.integers(1, 4), left=st.integers(0, 2), frame=st.integers(0, 63))
def test_a_frame_changes_its_chunk_and_later_ones_alone(kind: str, size: int, left: int, frame: int) -> None:
    encoder = build(kind)
    features_BTF = torch.randn(1, 64, NUM_FEATURES, dtype=torch.float64)
    changed_BTF = features_BTF.clone()
    changed_BTF[0, frame] += 10
    with torch.no_grad():
        before_BTD, after_BTD = (
            encoder(features, torch.tensor([64]), Chunks(size, left))[0]
            for features in (features_BTF, changed_BTF)
        )
    changed = (before_BTD - after_BTD)[0].abs().sum(-1).nonzero()[:, 0]
    assert len(changed) and int(changed.min()) >= frame // 4 // size * size


def test_draws_of_training() -> None:
    """Half of the batches see everything; sizes and chunks before are even; a seed gives them again."""
    encoder = build("conformer", steps=(2, 5), full=0.5).train()

    def draw() -> list[Chunks | None]:
        torch.manual_seed(1)
        return [encoder.draw_chunks(20) for _ in range(1_000)]

    drawn = draw()
    assert drawn == draw()
    assert 450 < drawn.count(None) < 550
    sizes = [chunks.steps for chunks in drawn if chunks is not None]
    assert {size: sizes.count(size) > 80 for size in set(sizes)} == dict.fromkeys((2, 3, 4, 5), True)
    assert {chunks.left for chunks in drawn if chunks is not None and chunks.steps == 5} == set(range(5))
    features_BTF, lengths_B = torch.randn(1, 40, NUM_FEATURES).double(), torch.tensor([40])
    encoded = [encoder.eval()(features_BTF, lengths_B)[0] for _ in range(2)]
    assert torch.equal(*encoded), "nothing is drawn in evaluation"


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("transformer", {"positions": "sinusoid"}, "set positions: rotary"),
        ("conformer", {"window": (3, 3)}, "chunk and window"),
        ("conformer", {"chunk": {"steps": (5, 2)}}, "fewest, most"),
        ("transformer", {"chunk": {"convolution": "causal"}}, "without a Conformer"),
    ],
)
def test_settings_that_do_not_go_together(kind: str, options: dict[str, Any], message: str) -> None:
    config = type(make_config(kind))
    with pytest.raises(Exception, match=message):
        config(**{"chunk": {}, "positions": "rotary"} | options)
