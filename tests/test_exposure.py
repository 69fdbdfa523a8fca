"""What the decoder is shown in place of the true tokens: how often, where, and which."""

from __future__ import annotations

import pytest
import torch

from asr.models.exposure import ExposureConfig, corrupt, token_similarity
from asr.tokenizer import SOS_ID, UNK_ID

# B batch, U tokens, V vocabulary

NUM_SPECIAL, VOCAB_SIZE = 5, 30


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def random_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Start token and tokens; only the tokens of the first 1800 rows may change."""
    inputs_BU = torch.randint(NUM_SPECIAL, VOCAB_SIZE, (2000, 21))
    inputs_BU[:, 0] = SOS_ID
    can_change_BU = inputs_BU != SOS_ID
    can_change_BU[1800:] = False
    return inputs_BU, can_change_BU


def similarity() -> torch.Tensor:
    return token_similarity(torch.randn(VOCAB_SIZE, 16), NUM_SPECIAL)


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
    corrupted_BU = corrupt(inputs_BU, can_change_BU, config, similarity(), UNK_ID)
    before_BU = inputs_BU.roll(1, dims=1)
    is_changed_BU = corrupted_BU != inputs_BU
    is_dropped_BU = corrupted_BU == UNK_ID
    is_repeated_BU = is_changed_BU & (corrupted_BU == before_BU)
    assert not is_changed_BU[~can_change_BU].any()
    tolerance = 0.01  # some six standard deviations; a random replacement may equal the token before
    by_chance = 1 / (VOCAB_SIZE - NUM_SPECIAL)
    assert share(is_dropped_BU) == pytest.approx(config.drop, abs=tolerance)
    expected_repeats = config.repeat * (1 - by_chance) + config.replace * by_chance
    assert share(is_repeated_BU) == pytest.approx(expected_repeats, abs=tolerance)
    expected_changes = config.replace + config.drop + config.repeat * (1 - by_chance)
    assert share(is_changed_BU) == pytest.approx(expected_changes, abs=tolerance)


def test_only_drop_says_a_special_token() -> None:
    inputs_BU, can_change_BU = random_inputs()
    inputs_BU[:, 5] = UNK_ID  # unknown words in the references are replaced like others
    config = ExposureConfig(replace=0.5, repeat=0.4)
    corrupted_BU = corrupt(inputs_BU, can_change_BU, config, similarity(), UNK_ID)
    is_special_BU = (corrupted_BU < NUM_SPECIAL) & can_change_BU
    assert (corrupted_BU[is_special_BU] == UNK_ID).all()
    assert not is_special_BU[:, 1:5].any()
    assert not is_special_BU[:, 7:].any()
    assert (corrupted_BU[:1800, 5] != UNK_ID).any()


def test_a_repeated_token_is_the_one_before() -> None:
    inputs_BU, can_change_BU = random_inputs()
    corrupted_BU = corrupt(inputs_BU, can_change_BU, ExposureConfig(repeat=0.99), similarity(), UNK_ID)
    is_kept_BU = corrupted_BU == inputs_BU
    is_repeated_BU = corrupted_BU == inputs_BU.roll(1, dims=1)
    assert (is_kept_BU | is_repeated_BU).all()
    assert is_kept_BU[:, 1].all()  # before the first token there is only the start token


def test_similar_tokens_are_likelier_confused() -> None:
    embeddings_VD = torch.randn(VOCAB_SIZE, 16)
    embeddings_VD[9] = 3 * embeddings_VD[8] + 0.1 * torch.randn(16)  # 8 and 9 point the same way
    inputs_BU = torch.full((500, 20), 8)
    can_change_BU = torch.ones_like(inputs_BU, dtype=torch.bool)
    similarity_VV = token_similarity(embeddings_VD, NUM_SPECIAL)
    corrupted_BU = corrupt(inputs_BU, can_change_BU, ExposureConfig(replace=0.5), similarity_VV, UNK_ID)
    replaced = corrupted_BU[corrupted_BU != 8]
    counts_V = replaced.bincount(minlength=VOCAB_SIZE)
    assert replaced.numel() / inputs_BU.numel() == pytest.approx(0.5, abs=0.03)
    assert counts_V.argmax() == 9
    assert (counts_V > 0).sum() > 3  # others too


def test_config_leaves_some_tokens_true() -> None:
    with pytest.raises(ValueError, match=r"replace \+ drop \+ repeat = 1.1 must be below 1"):
        ExposureConfig(replace=0.5, drop=0.3, repeat=0.3)


def test_nothing_is_corrupted_by_default() -> None:
    assert not ExposureConfig().corrupts
    assert not ExposureConfig(scheduled_sampling=0.5).corrupts
    assert ExposureConfig(drop=0.1).corrupts
