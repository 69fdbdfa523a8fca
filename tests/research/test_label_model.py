"""Models of labels, with every encoder: padding, pooling, losses by loops in float64; and that each one can learn."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from model_examples import NUM_FEATURES, SYSTEMS, VOCAB_SIZE, Utterances, make_utterances, mark_relatives
from torch import Tensor

from asr.models import build_model
from asr.research import FIRST_LABEL_ID, FrameLabelsConfig, LabelModel, RecordingLabelConfig
from asr.text import PAD_ID, UNK_ID

# B batch, T frames or encoded steps, N labels of an utterance, L all labels, D dimension

FEATURE_LENGTHS = [83, 61, 40, 24, 75]
KINDS: dict[str, dict[str, Any]] = {
    "mean": {"type": "recording_label", "label": "speaker", "pooling": "mean"},
    "attention": {"type": "recording_label", "label": "speaker", "pooling": "attention"},
    "frames": {"type": "frame_labels", "label_smoothing": 0.1},
}

every_kind = pytest.mark.parametrize("kind", KINDS)
# One system for each encoder.
ENCODERS = {config.encoder.model_dump_json(): name for name, config in reversed(SYSTEMS.items())}.values()
every_encoder = pytest.mark.parametrize("encoder", mark_relatives(ENCODERS))


def build_example(kind: str, encoder: str = "transformer-ctc") -> LabelModel:
    tree = KINDS[kind] | {"encoder": SYSTEMS[encoder].encoder.model_dump(mode="json")}
    config_class = FrameLabelsConfig if kind == "frames" else RecordingLabelConfig
    torch.manual_seed(0)
    config = config_class.model_validate_json(json.dumps(tree))
    model = build_model(config, NUM_FEATURES, VOCAB_SIZE).eval()
    assert isinstance(model, LabelModel)
    return model


def make_batch(model: LabelModel, kind: str, padding: float = 0.0) -> Utterances:
    """Any labels, as many as the model gives."""
    counts = [1] * len(FEATURE_LENGTHS)
    if kind == "frames":
        counts = [math.ceil(length / model.subsampling_factor) for length in FEATURE_LENGTHS]
    return make_utterances(FEATURE_LENGTHS, counts, padding)


# --- scores -------------------------------------------------------------------------------------


@every_encoder
@every_kind
@torch.no_grad()
def test_an_utterance_is_the_same_alone_and_in_a_batch(kind: str, encoder: str) -> None:
    model = build_example(kind, encoder)
    batch = make_batch(model, kind, padding=float("nan"))
    scores_BNL, counts_B = model.label(*batch[:2])
    assert counts_B.tolist() == batch.token_lengths_B.tolist()
    assert scores_BNL.size(2) == VOCAB_SIZE - FIRST_LABEL_ID
    for row, count in enumerate(counts_B.tolist()):
        alone_1NL, alone_counts_1 = model.label(*batch.alone(row)[:2])
        assert alone_counts_1.tolist() == [count]
        torch.testing.assert_close(scores_BNL[row, :count], alone_1NL[0, :count], rtol=0, atol=1e-5)


@every_kind
@torch.no_grad()
def test_pooling_is_that_of_a_loop(kind: str) -> None:
    """Over the steps of each utterance, in float64."""
    model = build_example(kind)
    batch = make_batch(model, kind)
    encoded_BTD, lengths_B = model.encoder(*batch[:2])
    scores_BNL, _ = model.label(*batch[:2])
    weights, bias = model.output.weight.double(), model.output.bias.double()
    for row, length in enumerate(lengths_B.tolist()):
        steps = [encoded_BTD[row, step].double() for step in range(length)]
        if kind == "frames":
            pooled = steps
        else:
            shares = [1.0] * length
            if kind == "attention":
                query = model.get_submodule("query")
                shares = [
                    math.exp(float(query.weight[0].double() @ step + query.bias[0].double()))  # type: ignore[operator, index]
                    for step in steps
                ]
            pooled = [sum(s * step for s, step in zip(shares, steps, strict=True)) / sum(shares)]  # type: ignore[list-item]
        for place, vector in enumerate(pooled):
            torch.testing.assert_close(
                scores_BNL[row, place].double(), weights @ vector + bias, rtol=0, atol=1e-5
            )


# --- losses -------------------------------------------------------------------------------------


@every_kind
@torch.no_grad()
def test_losses_are_those_of_a_loop(kind: str) -> None:
    """Smoothed cross-entropy and right labels, in float64; unseen labels have no loss and are never right."""
    model = build_example(kind)
    batch = make_batch(model, kind)
    batch.tokens_BU[1, 0] = UNK_ID
    losses = model(*batch)
    smoothing = KINDS[kind].get("label_smoothing", 0.0)
    scores_BNL, counts_B = model.label(*batch[:2])
    total, right = 0.0, 0
    for row, count in enumerate(counts_B.tolist()):
        for place in range(count):
            scores = [float(score) for score in scores_BNL[row, place].double()]
            target = int(batch.tokens_BU[row, place]) - FIRST_LABEL_ID
            if (row, place) == (1, 0):
                continue
            right += max(range(len(scores)), key=scores.__getitem__) == target
            normalizer = math.log(sum(math.exp(score) for score in scores))
            total += (1 - smoothing) * (normalizer - scores[target])
            total += smoothing * sum(normalizer - score for score in scores) / len(scores)
    assert float(losses.total) == pytest.approx(total, rel=1e-5)
    assert int(losses.parts["accuracy"]) == right
    assert losses.num_tokens == model.count_targets(batch.token_lengths_B) == int(counts_B.sum())


@every_kind
@torch.no_grad()
def test_losses_of_a_batch_are_the_sums_of_each_alone(kind: str) -> None:
    """And padding of the targets, as halving a batch leaves it, changes nothing."""
    model = build_example(kind, "lstm-ctc")
    batch = make_batch(model, kind, padding=7.0)
    wider = batch._replace(tokens_BU=torch.nn.functional.pad(batch.tokens_BU, (0, 3), value=PAD_ID))
    each = [model(*batch.alone(row)) for row in range(len(FEATURE_LENGTHS))]
    for together in (model(*batch), model(*wider)):
        assert together.num_tokens == sum(losses.num_tokens for losses in each)
        torch.testing.assert_close(together.total, sum(losses.total for losses in each), rtol=1e-5, atol=0)
        assert int(together.parts["accuracy"]) == sum(int(losses.parts["accuracy"]) for losses in each)


@pytest.mark.parametrize("label", ["name", "extras", "extras.", "Speaker"])
def test_fields_that_no_manifest_has(label: str) -> None:
    encoder = SYSTEMS["lstm-ctc"].encoder
    with pytest.raises(ValueError, match="label"):
        RecordingLabelConfig(type="recording_label", label=label, encoder=encoder)
    with pytest.raises(ValueError, match="label"):
        FrameLabelsConfig(type="frame_labels", label=label, encoder=encoder)


# --- learning -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("encoder", mark_relatives(["transformer-ctc", "conformer-ctc", "lstm-ctc"]))
@every_kind
def test_ten_utterances_are_learnt_without_error(kind: str, encoder: str) -> None:
    """Of noise: nothing but the labels themselves can be learnt."""
    model = build_example(kind, encoder).train()
    lengths = [40 + 4 * number for number in range(10)]
    counts = [math.ceil(n / model.subsampling_factor) if kind == "frames" else 1 for n in lengths]
    batch = make_utterances(lengths, counts, seed=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    for _ in range(150):
        losses = model(*batch)
        optimizer.zero_grad()
        (losses.total / losses.num_tokens).backward()
        optimizer.step()
        if int(losses.parts["accuracy"]) == losses.num_tokens:
            break
    scores_BNL, counts_B = model.eval().label(*batch[:2])
    said: list[Tensor] = [row[:n] for row, n in zip(scores_BNL.argmax(-1), counts_B.tolist(), strict=True)]
    assert [(ids + FIRST_LABEL_ID).tolist() for ids in said] == batch.references()
