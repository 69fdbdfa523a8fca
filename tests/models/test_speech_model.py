"""Every system: padding, losses, schedules, half precision, odd utterances; and every one can learn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from decoding_examples import decode_by_decoder, decode_ctc_greedily
from model_examples import (
    SYSTEMS,
    Utterances,
    build_example,
    every_decoder,
    every_system,
    make_utterances,
    mark_relatives,
)
from torch import Tensor

from asr.models.decoders import Decoder
from asr.models.losses import Targets
from asr.models.speech_model import SpeechModel, SpeechModelConfig
from asr.text.tokenizer import EOS_ID

# B batch, T frames or encoded steps, U tokens, N rows of the decoder

FEATURE_LENGTHS, TOKEN_LENGTHS = [83, 61, 40, 24, 75], [6, 3, 5, 1, 0]


def example_batch(padding: float = 0.0) -> Utterances:
    return make_utterances(FEATURE_LENGTHS, TOKEN_LENGTHS, padding)


@every_system
@torch.no_grad()
def test_an_utterance_is_the_same_alone_and_in_a_batch(name: str) -> None:
    """Encoded steps, CTC log-probabilities, decoder scores and losses do not depend on padding."""
    model = build_example(name)

    def compute(batch: Utterances) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        encoded_BTD, lengths_B = model.encode(*batch[:2])
        ctc_BTV = model.ctc_log_probabilities(encoded_BTD) if model.ctc_head is not None else None
        if model.decoder is None:
            return encoded_BTD, lengths_B, ctc_BTV, None
        scores_BNV, _ = model.decoder.score_reference(Targets(*batch[2:]), (encoded_BTD, lengths_B), {})
        return encoded_BTD, lengths_B, ctc_BTV, scores_BNV

    each = [compute(example_batch().alone(row)) for row in range(len(FEATURE_LENGTHS))]
    for padding in (0.0, 1e3, float("nan")):
        encoded_BTD, lengths_B, ctc_BTV, scores_BNV = compute(example_batch(padding))
        for row, (alone_BTD, alone_lengths_B, alone_ctc_BTV, alone_BNV) in enumerate(each):
            length = int(lengths_B[row])
            assert alone_lengths_B.tolist() == [length]
            torch.testing.assert_close(encoded_BTD[row, :length], alone_BTD[0], rtol=0, atol=1e-5)
            if ctc_BTV is not None and alone_ctc_BTV is not None:
                torch.testing.assert_close(ctc_BTV[row, :length], alone_ctc_BTV[0], rtol=0, atol=1e-5)
            if scores_BNV is not None and alone_BNV is not None:
                num_rows = alone_BNV.size(1)
                assert num_rows - TOKEN_LENGTHS[row] == scores_BNV.size(1) - max(TOKEN_LENGTHS) in (0, 1)
                torch.testing.assert_close(scores_BNV[row, :num_rows], alone_BNV[0], rtol=0, atol=1e-5)


@every_system
@torch.no_grad()
def test_losses_of_a_batch_are_the_sums_of_each_alone(name: str) -> None:
    model, batch = build_example(name), example_batch(padding=7.0)
    together = model(*batch)
    each = [model(*batch.alone(row)) for row in range(len(FEATURE_LENGTHS))]
    assert together.num_tokens == sum(TOKEN_LENGTHS) + len(TOKEN_LENGTHS)
    assert together.num_tokens == sum(losses.num_tokens for losses in each)
    torch.testing.assert_close(together.total, sum(losses.total for losses in each), rtol=1e-5, atol=0)
    assert together.parts.keys() <= set(model.reported)
    for part, value in together.parts.items():
        torch.testing.assert_close(
            value.double(), sum(losses.parts[part] for losses in each).double(), rtol=1e-5, atol=1e-4
        )


@every_system
def test_total_is_the_weighted_sum_of_its_parts(name: str) -> None:
    """In training with guided attention by its schedule, in evaluation without."""
    config, model, batch = SYSTEMS[name], build_example(name), example_batch()
    guided = config.guided_attention and config.guided_attention.loss
    for is_training, step in ((False, 0), *((True, step) for step in ((0, 600, 1000) if guided else (0,)))):
        torch.manual_seed(1)
        losses = model.train(is_training)(*batch, step=step)
        weights = {
            "ctc": config.ctc_weight,
            "cross_entropy": 1 - config.ctc_weight,
            "length": 1 - config.ctc_weight,
            "guided_attention": guided.weight_at(step) if guided is not None and is_training else 0.0,
        }
        assert ("guided_attention" in losses.parts) == (weights["guided_attention"] > 0)
        expected = sum(weight * losses.parts.get(part, 0.0) for part, weight in weights.items())
        torch.testing.assert_close(losses.total.detach(), torch.as_tensor(expected), rtol=1e-6, atol=1e-5)
        assert not any(part.requires_grad for part in losses.parts.values())


@every_decoder
@torch.no_grad()
def test_correct_counts_the_tokens_that_the_decoder_predicts(name: str) -> None:
    model, batch = build_example(name), example_batch()
    assert isinstance(model.decoder, Decoder)
    inputs_BN, targets_BN = Targets(*batch[2:]).for_decoder()
    scores_BNV, _ = model.decoder(inputs_BN, *model.encode(*batch[:2]))
    model.decoder.output.bias[EOS_ID] += 100  # now every prediction is the end, right once an utterance
    assert model(*batch).parts["correct"] == len(TOKEN_LENGTHS)
    model.decoder.output.bias[EOS_ID] -= 100
    assert model(*batch).parts["correct"] == (scores_BNV.argmax(-1) == targets_BN).sum()


def assert_finite(model: SpeechModel, batch: Utterances) -> None:
    """Losses and gradients of training, in single and half precision."""
    for is_half in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_half):
            losses = model.train()(*batch)
        losses.total.backward()
        assert losses.total.isfinite()
        assert all(part.isfinite() for part in losses.parts.values())
        for name, parameter in model.named_parameters():
            assert parameter.grad is None or parameter.grad.isfinite().all(), name


@every_system
def test_utterances_of_no_frames_or_few_disturb_nobody(name: str) -> None:
    model = build_example(name)
    batch = make_utterances([0, 1, 40, 2, 0], [3, 2, 4, 0, 0])
    with torch.no_grad():
        encoded_BTD, lengths_B = model.encode(*batch[:2])
        alone_BTD, _ = model.encode(*batch.alone(2)[:2])
    assert encoded_BTD.isfinite().all()
    assert lengths_B.tolist() == [
        -(-length // model.encoder.subsampling_factor) for length in (0, 1, 40, 2, 0)
    ]
    torch.testing.assert_close(encoded_BTD[2], alone_BTD[0], rtol=0, atol=1e-5)
    assert_finite(model, batch)


@every_system
@pytest.mark.parametrize(("num_frames", "num_tokens"), [(1, 0), (4, 8)])
def test_a_batch_of_one_odd_utterance(name: str, num_frames: int, num_tokens: int) -> None:
    assert_finite(build_example(name), make_utterances([num_frames], [num_tokens]))


@every_system
def test_half_precision_is_near_single_precision(name: str) -> None:
    """Losses and gradients under autocast; dropout is off, or each would draw its own."""
    batch, losses, gradients = example_batch(), [], []
    for is_half in (False, True):
        model = build_example(name)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_half):
            computed = model(*batch)
        assert computed.total.dtype == torch.float32
        computed.total.backward()
        losses.append(computed.total.item())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert losses[1] == pytest.approx(losses[0], rel=0.01)
    assert gradients[1].isfinite().all()
    assert (gradients[1] - gradients[0]).norm() < 0.1 * gradients[0].norm()


@every_system
def test_every_parameter_learns(name: str) -> None:
    model = build_example(name).train()
    model(*example_batch()).total.backward()
    still = [
        key
        for key, parameter in model.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    ]
    assert not still


def decode(model: SpeechModel, batch: Utterances) -> dict[str, list[list[int]]]:
    """Greedily, by each head."""
    model.eval()
    decoded = {}
    with torch.inference_mode():
        encoded = model.encode(*batch[:2])
        if model.ctc_head is not None:
            decoded["ctc"] = decode_ctc_greedily(model.ctc_log_probabilities(encoded[0]), encoded[1])
        if model.decoder is not None:
            decoded["decoder"] = decode_by_decoder(model, *encoded)
    return decoded


@pytest.mark.parametrize("name", mark_relatives(SYSTEMS, SYSTEMS.keys() - {"lstm-ctc", "transformer-hybrid"}))
def test_five_utterances_are_learned_by_heart(name: str) -> None:
    random = torch.Generator().manual_seed(1)
    frames, tokens = (torch.randint(*ends, (5,), generator=random) for ends in ((24, 49), (3, 6)))
    batch = make_utterances(frames.tolist(), tokens.tolist())
    model = build_example(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2 if "lstm" in name else 6e-3, betas=(0.9, 0.98))
    for step in range(400):
        losses = model.train()(*batch, step=step)
        (losses.total / losses.num_tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9 and all(ids == batch.references() for ids in decode(model, batch).values()):
            return
    raise AssertionError(f"after {step + 1} updates: {decode(model, batch)}, not {batch.references()}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"decoder": None}, "ctc_weight = 0.3"), ({"ctc_weight": 1.0}, "ctc_weight = 1.0")],
)
def test_config_names_the_settings_in_conflict(changes: dict[str, Any], message: str) -> None:
    tree = {"encoder": {"type": "transformer"}, "decoder": {}}
    with pytest.raises(ValueError, match=message):
        SpeechModelConfig.model_validate(tree | changes)


@pytest.mark.gpu
@every_system
def test_a_gpu_computes_the_same(name: str) -> None:
    """Convolution, attention and dropout take other paths there. Convolutions round to 10 bits (TF32)."""
    losses, gradients = [], []
    for device in ("cpu", "cuda"):
        model = build_example(name).to(device)
        computed = model(*(tensor.to(device) for tensor in example_batch()))
        computed.total.backward()
        losses.append(computed.total.item())
        gradients.append(
            torch.cat([p.grad.flatten().cpu() for p in model.parameters() if p.grad is not None])
        )
        model.train()(*(tensor.to(device) for tensor in example_batch())).total.backward()
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert (gradients[1] - gradients[0]).norm() < 0.01 * gradients[0].norm()
