"""Transformer layers against PyTorch's; decoding step by step; no token sees a later one; decoders without attention."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
import torch
from decoding_examples import build_talker, random_encoded, search
from encoder_examples import randomize_norms
from model_examples import build_example, make_utterances
from torch import nn

from asr.config import build_config
from asr.decoding.hypothesis import DecodingConfig
from asr.errors import UserError
from asr.models.decoders import DecoderLayer, TransformerDecoder, TransformerDecoderConfig
from asr.models.encoders import (
    ConformerEncoderConfig,
    EncoderLayer,
    SubsamplingConfig,
    TransformerEncoderConfig,
    build_encoder,
)
from asr.models.layers import length_mask
from asr.models.speech_model import SpeechModelConfig
from asr.system.run_config import RunConfig

# B batch, T encoded steps, U tokens, D model dimension, V vocabulary

SIZE: dict[str, Any] = {"dim": 16, "num_layers": 2, "num_heads": 4, "feed_forward_dim": 24}
LENGTHS = torch.tensor([9, 5, 1])
VOCAB_SIZE = 12

POSITIONS = ["sinusoid", "rotary", "none"]


def copy_attention(theirs: nn.MultiheadAttention, state: dict[str, torch.Tensor], kind: str) -> None:
    """Copy our self- or cross-attention parameters to PyTorch's layer."""
    for part in ("weight", "bias"):
        if kind == "self":
            packed = state[f"project_in.{part}"]
        else:
            packed = torch.cat([state[f"project_queries.{part}"], state[f"project_memory.{part}"]])
        getattr(theirs, f"in_proj_{part}").data = packed
        getattr(theirs.out_proj, part).data = state[f"project_out.{part}"]


def copy_feed_forward(theirs: Any, ours: Any) -> None:
    theirs.linear1.load_state_dict(ours.feed_forward.expand.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.contract.state_dict())


def test_encoder_layer_equals_torch() -> None:
    torch.manual_seed(0)
    ours = EncoderLayer(TransformerEncoderConfig(**SIZE)).double().eval()
    randomize_norms(ours)
    theirs = nn.TransformerEncoderLayer(
        16, 4, 24, activation="gelu", norm_first=True, batch_first=True
    ).double()
    copy_attention(theirs.self_attn, ours.attention.state_dict(), "self")
    copy_feed_forward(theirs, ours)
    theirs.norm1.load_state_dict(ours.attention_block.norm.state_dict())
    theirs.norm2.load_state_dict(ours.feed_forward_block.norm.state_dict())
    x_BTD = torch.randn(3, 9, 16, dtype=torch.float64)
    mask_BT = length_mask(LENGTHS, 9)
    expected_BTD = theirs.eval()(x_BTD, src_key_padding_mask=~mask_BT)
    torch.testing.assert_close(ours(x_BTD, mask_BT)[mask_BT], expected_BTD[mask_BT], rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_decoder_layer_equals_torch(causal: bool) -> None:
    torch.manual_seed(0)
    ours = DecoderLayer(TransformerDecoderConfig(**SIZE), memory_dim=16).double().eval()
    randomize_norms(ours)
    theirs = nn.TransformerDecoderLayer(
        16, 4, 24, activation="gelu", norm_first=True, batch_first=True
    ).double()
    copy_attention(theirs.self_attn, ours.self_attention.state_dict(), "self")
    copy_attention(theirs.multihead_attn, ours.cross_attention.state_dict(), "cross")
    copy_feed_forward(theirs, ours)
    theirs.norm1.load_state_dict(ours.self_attention_block.norm.state_dict())
    theirs.norm2.load_state_dict(ours.cross_attention_block.norm.state_dict())
    theirs.norm3.load_state_dict(ours.feed_forward_block.norm.state_dict())
    x_BUD, encoded_BTD = torch.randn(3, 6, 16).double(), torch.randn(3, 9, 16).double()
    mask_BT = length_mask(LENGTHS, 9)
    token_mask_BU = length_mask(torch.tensor([6, 2, 5]), 6)
    masks = {"tgt_mask": torch.ones(6, 6, dtype=torch.bool).triu(1)}  # True: out of sight
    if not causal:
        masks = {"tgt_key_padding_mask": ~token_mask_BU}
    expected_BUD = theirs.eval()(x_BUD, encoded_BTD, memory_key_padding_mask=~mask_BT, **masks)
    memory = ours.cross_attention.precompute_kv(encoded_BTD, mask_BT)
    found_BUD, _ = ours(x_BUD, memory, None, (), None if causal else token_mask_BU)
    is_seen_BU = token_mask_BU | causal
    torch.testing.assert_close(found_BUD[is_seen_BU], expected_BUD[is_seen_BU], rtol=0, atol=1e-12)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("kind", [TransformerEncoderConfig, ConformerEncoderConfig])
def test_encoder_knows_the_order_by_its_positions_alone(kind: Any, positions: str) -> None:
    """Steps turned round give the same, turned round, where it has none. A kernel of 1 leaves order to attention."""
    torch.manual_seed(0)
    options = {"kernel": 1} if kind is ConformerEncoderConfig else {}
    subsampling = SubsamplingConfig(factor=1)
    config = kind(**SIZE, positions=positions, subsampling=subsampling, **options)
    encoder, x_BTF = build_encoder(config, 20).eval().double(), torch.randn(1, 12, 20, dtype=torch.float64)
    encoded_BTD, turned_BTD = (encoder(x, torch.tensor([12]))[0] for x in (x_BTF, x_BTF.flip(1)))
    is_alike = torch.allclose(turned_BTD.flip(1), encoded_BTD, rtol=0, atol=1e-9)
    assert is_alike == (positions == "none")


# --- decoder ------------------------------------------------------------------------------------


def build_decoder(memory_dim: int = 10, **options: Any) -> TransformerDecoder:
    torch.manual_seed(0)
    config = TransformerDecoderConfig(**(SIZE | options))
    return TransformerDecoder(config, memory_dim, VOCAB_SIZE).eval()


def random_steps() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, 9, 10, generator=torch.Generator().manual_seed(1)), LENGTHS


@pytest.mark.parametrize("split", [[1] * 9, [2, 1, 3, 1, 2]], ids=str)
@pytest.mark.parametrize("window", [1, 2, 8])
def test_step_by_step_with_a_window(window: int, split: list[int]) -> None:
    """Each token sees itself and `window` tokens before it, whether they come alone or together."""
    decoder = build_decoder(window=window, num_layers=1)
    tokens_BU = torch.randint(VOCAB_SIZE, (3, 9))
    full_BUV, _ = decoder(tokens_BU, *random_steps())
    state = decoder.start(*random_steps())
    steps = [decoder.step(part, state)[0] for part in tokens_BU.split(split, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), full_BUV, rtol=0, atol=1e-5)
    other_BU = (tokens_BU + 1) % VOCAB_SIZE
    for place in range(9):
        unseen = torch.arange(9) < place - window
        beyond_BUV, _ = decoder(torch.where(unseen, other_BU, tokens_BU), *random_steps())
        torch.testing.assert_close(beyond_BUV[:, place], full_BUV[:, place], rtol=0, atol=1e-6)
        first = torch.arange(9) == max(place - window, 0)
        within_BUV, _ = decoder(torch.where(first, other_BU, tokens_BU), *random_steps())
        assert (within_BUV[:, place] - full_BUV[:, place]).abs().max() > 1e-4


@pytest.mark.parametrize("positions", POSITIONS)
def test_selected_beams_go_on_as_if_they_had_been_there_from_the_start(positions: str) -> None:
    decoder = build_decoder(positions=positions)
    tokens_BU = torch.randint(VOCAB_SIZE, (3, 6))
    encoded_BTD, lengths_B = random_steps()
    state = decoder.start(encoded_BTD, lengths_B)
    for part in tokens_BU[:, :4].split([1, 1, 2], dim=1):
        decoder.step(part, state)
    rows = torch.tensor([2, 0, 0, 1, 2])
    state.select_beams(rows)
    state.select_utterances(rows)
    scores_BUV, _ = decoder.step(tokens_BU[rows, 4:], state)
    expected_BUV, _ = decoder(tokens_BU[rows], encoded_BTD[rows], lengths_B[rows])
    torch.testing.assert_close(scores_BUV, expected_BUV[:, 4:], rtol=0, atol=1e-5)


def test_weights_of_the_named_layers_and_heads_only() -> None:
    decoder = build_decoder(num_layers=3)
    tokens_BU = torch.randint(VOCAB_SIZE, (3, 4))
    everything = dict.fromkeys(range(3), (0, 1, 2, 3))
    _, all_weights = decoder(tokens_BU, *random_steps(), everything)
    scores_BUV, some = decoder(tokens_BU, *random_steps(), {2: (3, 0), 0: (1,)})
    plain_BUV, none = decoder(tokens_BU, *random_steps())
    assert none == {}
    assert sorted(some) == [0, 2]
    assert torch.equal(scores_BUV, plain_BUV)
    torch.testing.assert_close(some[2], all_weights[2][:, [3, 0]])
    torch.testing.assert_close(some[0], all_weights[0][:, [1]])
    torch.testing.assert_close(some[2].sum(-1), torch.ones(3, 2, 4))


# --- configuration ------------------------------------------------------------------------------


@pytest.mark.parametrize("config_class", [ConformerEncoderConfig, TransformerDecoderConfig])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 30}, "dim = 30 is not a multiple of num_heads = 4"),
        ({"dim": 12, "positions": "rotary"}, "rotary positions: dim"),
        ({"dim": 9, "num_heads": 3, "positions": "sinusoid"}, "sinusoid positions: dim"),
    ],
)
def test_config_names_what_does_not_fit(config_class: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_class(**options)


# --- without attention --------------------------------------------------------------------------


@torch.inference_mode()
def test_without_attention_no_steps_are_attended_to() -> None:
    without, attending = build_talker("single-summary-hybrid", 0, -2.0), build_talker("attention-location")
    for method, beam in itertools.product(("attention", "joint", "rescoring"), (1, 4)):
        config = DecodingConfig(method=method, beam=beam)
        for hypotheses in search(without, *random_encoded(without, [9, 6]), config):
            assert hypotheses[0].attended_steps == ()
            assert math.isfinite(hypotheses[0].log_probability)
        for hypotheses in search(attending, *random_encoded(attending, [9, 6]), config):
            assert len(hypotheses[0].attended_steps) == len(hypotheses[0].tokens) + 1


@torch.no_grad()
def test_without_attention_none_is_measured() -> None:
    batch = make_utterances([60, 40], [3, 2])
    parts = build_example("single-summary")(*batch).parts
    assert parts.keys() == {"cross_entropy", "correct"}


DECODER_SETTINGS = ["model.encoder.type=lstm", "model.decoder.type=single_summary", "output_dir=run"]
DECODER_SETTINGS += ["data.train=train.jsonl", "data.dev=dev.jsonl"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.plot_every=5", "train.plot_every"),
        ("model.decoder={type: attention, attention: {location: 4}}", "kernel = 4"),
    ],
)
def test_config_says_what_does_not_go_together(setting: str, message: str) -> None:
    build_config(RunConfig, DECODER_SETTINGS)
    with pytest.raises(UserError, match=message):
        build_config(RunConfig, [*DECODER_SETTINGS, setting])


def test_a_decoder_without_a_type_is_a_transformer() -> None:
    """As in earlier configs, before there were others."""
    tree = {"encoder": {"type": "lstm"}, "decoder": {"num_layers": 2}}
    config = SpeechModelConfig.model_validate_json(json.dumps(tree))
    assert config.decoder == TransformerDecoderConfig(num_layers=2)
