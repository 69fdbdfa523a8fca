"""What the decoder is shown in place of the true tokens: how often, where, and which."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model_examples import NUM_FEATURES, NUM_SPECIAL, SYSTEMS, VOCAB_SIZE, make_utterances

from asr.models import (
    Decoder,
    ExposureConfig,
    SpeechModelConfig,
    Targets,
    TeacherForcing,
    TransformerDecoder,
    build_model,
    length_mask,
)
from asr.research import corrupt, expose, token_similarity
from asr.text import SOS_ID, UNK_ID

# B batch, U tokens, N rows of the decoder (tokens and the end), V vocabulary

NUM_TOKENS = 30  # of the vocabulary in the tests of `corrupt`


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def random_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Start token and tokens; only the tokens of the first 1800 rows may change."""
    inputs_BU = torch.randint(NUM_SPECIAL, NUM_TOKENS, (2000, 21))
    inputs_BU[:, 0] = SOS_ID
    can_change_BU = inputs_BU != SOS_ID
    can_change_BU[1800:] = False
    return inputs_BU, can_change_BU


def similarity() -> torch.Tensor:
    return token_similarity(torch.randn(NUM_TOKENS, 16))


def share(changed_BU: torch.Tensor) -> float:
    """Of the tokens that may change, without the first: it has none before it to repeat."""
    return changed_BU[:1800, 2:].double().mean().item()


@pytest.mark.parametrize(
    "config",
    [
        ExposureConfig(replace=0.2),
        ExposureConfig(drop=0.2),
        ExposureConfig(repeat=0.2),
        ExposureConfig(replace=0.1, drop=0.2, repeat=0.15),
    ],
    ids=["replace", "drop", "repeat", "all"],
)
def test_the_configured_shares_change_and_only_where_allowed(config: ExposureConfig) -> None:
    inputs_BU, can_change_BU = random_inputs()
    corrupted_BU = corrupt(inputs_BU, can_change_BU, config, similarity())
    before_BU = inputs_BU.roll(1, dims=1)
    is_changed_BU = corrupted_BU != inputs_BU
    is_dropped_BU = corrupted_BU == UNK_ID
    is_repeated_BU = is_changed_BU & (corrupted_BU == before_BU)
    assert not is_changed_BU[~can_change_BU].any()
    tolerance = 0.01  # some six standard deviations; a random replacement may equal the token before
    by_chance = 1 / (NUM_TOKENS - NUM_SPECIAL)
    assert share(is_dropped_BU) == pytest.approx(config.drop, abs=tolerance)
    expected_repeats = config.repeat * (1 - by_chance) + config.replace * by_chance
    assert share(is_repeated_BU) == pytest.approx(expected_repeats, abs=tolerance)
    expected_changes = config.replace + config.drop + config.repeat * (1 - by_chance)
    assert share(is_changed_BU) == pytest.approx(expected_changes, abs=tolerance)


def test_similar_tokens_are_likelier_confused() -> None:
    embeddings_VD = torch.randn(NUM_TOKENS, 16)
    embeddings_VD[9] = 3 * embeddings_VD[8] + 0.1 * torch.randn(16)  # 8 and 9 point the same way
    inputs_BU = torch.full((500, 20), 8)
    can_change_BU = torch.ones_like(inputs_BU, dtype=torch.bool)
    similarity_VV = token_similarity(embeddings_VD)
    corrupted_BU = corrupt(inputs_BU, can_change_BU, ExposureConfig(replace=0.5), similarity_VV)
    replaced = corrupted_BU[corrupted_BU != 8]
    counts_V = replaced.bincount(minlength=NUM_TOKENS)
    assert replaced.numel() / inputs_BU.numel() == pytest.approx(0.5, abs=0.03)
    assert counts_V.argmax() == 9
    assert (counts_V > 0).sum() > 3  # others too


# --- in training -----------------------------------------------------------------------------------


EXPOSED = make_utterances([60] * 10, [6] * 8 + [3, 0])
EXPOSED_INPUTS_BN, _ = Targets(*EXPOSED[2:]).for_decoder()
CAN_CHANGE_BN = length_mask(EXPOSED.token_lengths_B + 1, 7) & (EXPOSED_INPUTS_BN != SOS_ID)


def decoder_inputs(exposure: dict[str, float], monkeypatch: Any, bias_to: int | None = None) -> torch.Tensor:
    """What the decoder is trained on, (B, N)."""
    tree = SYSTEMS["lstm-hybrid"].model_dump() | {"exposure": exposure}
    torch.manual_seed(0)
    model = build_model(SpeechModelConfig.model_validate(tree), NUM_FEATURES, VOCAB_SIZE).train()
    assert model.decoder is not None
    if bias_to is not None:
        torch.nn.init.constant_(model.decoder.output.bias[bias_to], 100.0)
    calls = []

    def note(self: TransformerDecoder, tokens_BN: torch.Tensor, *arguments: Any) -> Any:
        calls.append(tokens_BN)
        return original(self, tokens_BN, *arguments)

    original = TransformerDecoder.forward
    monkeypatch.setattr(TransformerDecoder, "forward", note)
    losses = model(*EXPOSED)
    monkeypatch.undo()
    assert len(calls) == 1 + (exposure.get("scheduled_sampling", 0) > 0)
    assert losses.total.requires_grad
    return calls[-1]


def test_scheduled_sampling_shows_the_decoder_its_own_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that always says token 9 is shown 9 for all tokens, or for its share of them."""
    assert torch.equal(decoder_inputs({}, monkeypatch), EXPOSED_INPUTS_BN)
    all_BN = decoder_inputs({"scheduled_sampling": 1.0}, monkeypatch, bias_to=9)
    assert torch.equal(all_BN, EXPOSED_INPUTS_BN.masked_fill(CAN_CHANGE_BN, 9))
    half_BN = decoder_inputs({"scheduled_sampling": 0.5}, monkeypatch, bias_to=9)
    is_own_BN = half_BN != EXPOSED_INPUTS_BN
    assert (half_BN[is_own_BN] == 9).all()
    assert 0.25 < is_own_BN[CAN_CHANGE_BN].double().mean() < 0.65  # of 51; a true 9 is no change


def test_own_choices_answer_the_tokens_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice in place of token n is the likeliest one after the tokens before n."""
    tree = SYSTEMS["transformer-attention"].model_dump() | {"exposure": {"scheduled_sampling": 1.0}}
    model = build_model(SpeechModelConfig.model_validate(tree), NUM_FEATURES, VOCAB_SIZE).train()
    encoded = model.encode(*EXPOSED[:2])
    inputs_BN, targets_BN = Targets(*EXPOSED[2:]).for_decoder()
    assert isinstance(model.decoder, Decoder)
    forcing = TeacherForcing(0.0, model.config.exposure)
    exposed_BN = expose(model.decoder, inputs_BN, targets_BN, encoded, forcing)
    scores_BNV, _ = model.decoder(inputs_BN, *encoded)
    own_BN = scores_BNV.argmax(-1).roll(1, dims=1)
    assert torch.equal(exposed_BN, torch.where(CAN_CHANGE_BN, own_BN, inputs_BN))


# --- configuration ------------------------------------------------------------------------------


def test_config_leaves_some_tokens_true() -> None:
    with pytest.raises(ValueError, match=r"replace \+ drop \+ repeat = 1.1 must be below 1"):
        ExposureConfig(replace=0.5, drop=0.3, repeat=0.3)
