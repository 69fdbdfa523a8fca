"""asr/models/lora_int8: what is frozen gets no gradient; changes of low rank are what their formula says."""

from __future__ import annotations

import pytest
import torch
from model_examples import NUM_FEATURES, SYSTEMS, VOCAB_SIZE, make_utterances
from torch import nn

from asr.errors import UserError
from asr.models import LowRankLinear, SpeechModel, SpeechModelConfig, build_model, is_low_rank, merge_low_rank


def build(name: str, **settings: object) -> SpeechModel:
    config = SpeechModelConfig.model_validate(SYSTEMS[name].model_dump() | settings)
    torch.manual_seed(0)
    model = build_model(config, NUM_FEATURES, VOCAB_SIZE)
    assert isinstance(model, SpeechModel)
    return model


def test_a_change_of_low_rank() -> None:
    linear = nn.Linear(6, 4)
    layer, x = LowRankLinear(linear, rank=2, scale=3.0), torch.randn(5, 6)
    torch.testing.assert_close(layer(x), linear(x), msg="at first there is no change")
    nn.init.normal_(layer.up_KR)
    weight = linear.weight.double() + 3.0 * layer.up_KR.double() @ layer.down_RD.double()
    expected = x.double() @ weight.T + linear.bias.double()
    torch.testing.assert_close(layer(x).double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(layer.merged()(x).double(), expected, atol=1e-5, rtol=1e-5)
    layer(x).sum().backward()
    assert linear.weight.grad is None and linear.bias.grad is None
    assert layer.down_RD.grad is not None and layer.up_KR.grad is not None


@pytest.mark.parametrize("name", ["transformer-hybrid", "conformer-hybrid"])
def test_any_model_learns_a_change_of_low_rank(name: str) -> None:
    plain = build(name)
    model = build(name, frozen=("encoder", "decoder"), lora={"rank": 2, "alpha": 4.0})
    model.load_state_dict(plain.state_dict(), strict=False)
    assert not [key for key in plain.state_dict() if key not in model.state_dict()], "the names stay"
    batch = make_utterances([60, 40], [4, 3])
    torch.testing.assert_close(model.eval()(*batch).total, plain.eval()(*batch).total)
    learned = [key for key, parameter in model.named_parameters() if parameter.requires_grad]
    low_rank = [key for key in learned if is_low_rank(key)]
    assert low_rank and all(key.startswith("ctc_head.") for key in learned if key not in low_rank)
    assert all("attention" in key and "project_" in key for key in low_rank)

    for key, parameter in model.named_parameters():
        if key.endswith("up_KR"):
            nn.init.normal_(parameter, std=0.1)
    expected = model(*batch).total
    assert not torch.allclose(expected, plain(*batch).total)
    merge_low_rank(model)
    assert model.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(model(*batch).total, expected, atol=1e-3, rtol=1e-5)


def test_frozen_parts_get_no_gradient() -> None:
    model = build("transformer-hybrid", frozen=("encoder.layers.0", "decoder.embedding"))
    model(*make_utterances([60, 40], [4, 3])).total.backward()
    for name, parameter in model.named_parameters():
        is_frozen = name.startswith(("encoder.layers.0.", "decoder.embedding."))
        assert (parameter.grad is None) == is_frozen, name


def test_names_that_are_not_there() -> None:
    with pytest.raises(UserError, match=r"no part 'decoder.tail' in this model; it has encoder"):
        build("transformer-hybrid", frozen=("decoder.tail",))
    with pytest.raises(UserError, match=r"projections of attention, and this model has none; set lora: null"):
        build("attention-additive", lora={})
    for parts in (("",), ("encoder", "decoder", "ctc_head")):
        with pytest.raises(UserError, match="frozen leaves nothing that could be trained"):
            build("transformer-hybrid", frozen=parts)
    assert build("transformer-hybrid", frozen=("encoder", "decoder", "ctc_head"), lora={})
