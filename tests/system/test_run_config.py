"""RunConfig: incompatible settings, and numbers that no machine has memory for."""

from __future__ import annotations

import pytest
from system_examples import DECODER, OVERRIDES

from asr.config import Config, _known_keys, build_config
from asr.decoding.hypothesis import DecodingConfig
from asr.errors import UserError
from asr.models.speech_model import require_memory
from asr.system.run_config import RunConfig

LORA_OF_LSTM = "model={encoder: {type: lstm, dim: 8}, ctc_weight: 1.0, lora: {rank: 2}}"


def build(*overrides: str) -> RunConfig:
    return build_config(RunConfig, [*OVERRIDES, *DECODER, *overrides])


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("[lowercase]", "[lowercase, uppercase]", "text.training: lowercase and uppercase exclude"),
        ("{num_frequency_masks: 1, frequency_mask_width: 20}", "{num_frequency_masks: 1}", "27 is wider than the 20 f"),
        ("99", "100", "end_updates = 100 is not before train.steps = 100"),
        ("144", "145", "145.0 becomes 161.111 at the slowest augment.speed, more than .* 160.0"),
    ],
)  # fmt: skip
def test_incompatible_settings_are_refused(right: str, wrong: str, message: str) -> None:
    settings = {
        "text": ("text.training",),
        "27": ("augment.spec_augment",),
        "end": ("model.guided_attention.prior.end_updates", "train.steps=100"),
        "145": ("batches.max_utterance_seconds", "augment.speed=[0.9, 1.1]"),
    }
    key, *others = next(found for start, found in settings.items() if message.startswith(start))
    build(*others, f"{key}={right}")
    with pytest.raises(UserError, match=message):
        build(*others, f"{key}={wrong}")


def test_disabled_masks_may_be_wide() -> None:
    build("augment.spec_augment.frequency_mask_width=500")


@pytest.mark.parametrize("value", ["1000000000", "9" * 19, "1e308"])
def test_huge_numbers_give_an_error_message(value: str) -> None:
    """Every setting of a foreign config is checked before memory is allocated."""
    refused = []
    for key in dict.fromkeys(key for key, _ in _known_keys(RunConfig)):
        try:
            config = build("model.encoder.type=conformer", f"{key}={value}")
            if key.startswith(("model.", "features.")):
                require_memory(config.model, config.features.num_features, vocab_size=20)
        except UserError:
            refused.append(key)
    sizes = (
        "encoder.dim",
        "encoder.num_layers",
        "encoder.subsampling.channels",
        "encoder.kernel",
        "decoder.dim",
    )
    assert {f"model.{size}" for size in sizes} <= set(refused)


def test_a_model_larger_than_the_memory_is_not_built() -> None:
    config = build(
        "model.encoder.dim=90000", "model.encoder.feed_forward_dim=90000", "model.encoder.num_layers=99"
    )
    with pytest.raises(UserError, match=r"its weights take 19,2\d\d GB, and this machine has"):
        require_memory(config.model, 20, 20)


def test_low_rank_without_projections_is_refused() -> None:
    with pytest.raises(UserError, match=r"model.lora updates attention, and this model has none"):
        require_memory(build(LORA_OF_LSTM, "model.decoder=null").model, 20, 20)


@pytest.mark.parametrize(("config", "name"), [(DecodingConfig, "beam"), (DecodingConfig, "samples")])
def test_hypotheses_are_bounded(config: type[Config], name: str) -> None:
    assert config(**{name: 1000})
    with pytest.raises(UserError, match=f"{name} = 1001: expected less than or equal to 1000"):
        config(**{name: 1001})
