"""Classifiers, with every encoder: pooling and losses by loops in float64; what they learn from; problems in the data."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from label_examples import KINDS, SPEAKERS, build_run, write_labeled_tones
from model_examples import NUM_FEATURES, SYSTEMS, VOCAB_SIZE, Utterances, make_utterances, mark_relatives
from training_examples import assert_equal_bits, read_log, run_until_killed

from asr.batches.builder import Batch
from asr.data import Utterance, read_manifest, write_manifest
from asr.errors import UserError
from asr.families import find_checkpoints
from asr.models.speech_model import build_model
from asr.research.classifiers import FIRST_LABEL_ID, FrameLabelsConfig, LabelModel, RecordingLabelConfig
from asr.research.labels import SILENCE
from asr.system.run_config import RunConfig
from asr.system.system import load_any_system
from asr.text.tokenizer import PAD_ID, SPECIAL_TOKENS, UNK_ID
from asr.train.distributed import Process
from asr.train.loop import train
from asr.train.preparation import prepare_system
from asr.train.training_data import TrainingData

# B batch, T frames or encoded steps, N labels of an utterance, L all labels, D dimension

FEATURE_LENGTHS = [83, 61, 40, 24, 75]
MODELS: dict[str, dict[str, Any]] = {
    "recording": {"type": "recording_label", "label": "speaker"},
    "frames": {"type": "frame_labels"},
}

every_kind = pytest.mark.parametrize("kind", MODELS)
# A config for each encoder.
ENCODERS = {config.encoder.model_dump_json(): name for name, config in reversed(SYSTEMS.items())}.values()
every_encoder = pytest.mark.parametrize("encoder", mark_relatives(ENCODERS))


def build_example(kind: str, encoder: str = "transformer-ctc") -> LabelModel:
    tree = MODELS[kind] | {"encoder": SYSTEMS[encoder].encoder.model_dump(mode="json")}
    config_class = FrameLabelsConfig if kind == "frames" else RecordingLabelConfig
    torch.manual_seed(0)
    config = config_class.model_validate_json(json.dumps(tree))
    model = build_model(config, NUM_FEATURES, VOCAB_SIZE).eval()
    assert isinstance(model, LabelModel)
    return model


def make_batch(model: LabelModel, kind: str, padding: float = 0.0) -> Utterances:
    """Random labels, as many as the model predicts."""
    counts = [1] * len(FEATURE_LENGTHS)
    if kind == "frames":
        counts = [math.ceil(length / model.subsampling_factor) for length in FEATURE_LENGTHS]
    return make_utterances(FEATURE_LENGTHS, counts, padding)


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
def test_pooling_equals_a_loop(kind: str) -> None:
    """A loop over the steps of each utterance, in float64."""
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


@every_kind
@torch.no_grad()
def test_losses_equal_a_loop(kind: str) -> None:
    """Cross-entropy and right labels, in float64; unseen labels have no loss and are never right.

    Padding changes nothing, neither of the features nor of the targets, where halving a batch leaves it.
    """
    model = build_example(kind, "lstm-ctc")
    batch = make_batch(model, kind, padding=7.0)
    batch.tokens_BU[1, 0] = UNK_ID
    wider = batch._replace(tokens_BU=torch.nn.functional.pad(batch.tokens_BU, (0, 3), value=PAD_ID))
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
            total += normalizer - scores[target]
    for losses in (model(*batch), model(*wider)):
        assert float(losses.total) == pytest.approx(total, rel=1e-5)
        assert int(losses.parts["accuracy"]) == right
        assert losses.num_tokens == model.count_targets(batch.token_lengths_B) == int(counts_B.sum())


every_run = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_labeled_tones(tmp_path_factory.mktemp("recordings"))


@pytest.fixture
def corpus(recordings: Path, tmp_path: Path) -> Path:
    """A copy of the manifests, which the test may change."""
    for split in ("train", "dev"):
        write_manifest(tmp_path / f"{split}.jsonl", read_manifest(recordings / f"{split}.jsonl"))
    return tmp_path


def change_manifest(path: Path, **fields: Any) -> None:
    """Set a field of the last utterance."""
    utterances = list(read_manifest(path))
    last = Utterance.model_validate(utterances[-1].model_dump() | fields)
    write_manifest(path, [*utterances[:-1], last])


def load_training_batches(config: RunConfig) -> tuple[list[Batch], Sequence[str]]:
    process = Process(0, 1, torch.device("cpu"))
    system = prepare_system(config, process)
    groups = TrainingData(system, process).epoch(0, 0)
    return [batch for group in groups for batch in group], system.tokenizer.tokens


def test_a_recording_has_the_label_of_its_field(corpus: Path) -> None:
    batches, tokens = load_training_batches(build_run(corpus, "recording"))
    assert sorted(tokens[len(SPECIAL_TOKENS) :]) == sorted(SPEAKERS)
    for batch in batches:
        assert batch.token_lengths_B.tolist() == [1] * len(batch)
        speakers = [list(SPEAKERS)[int(name.rpartition("-")[2]) % 2] for name in batch.ids]
        assert [tokens[id] for id in batch.tokens_BU[:, 0].tolist()] == speakers


@pytest.mark.parametrize("speed", ["0.7", "1.0", "1.4"])
def test_steps_are_labeled_where_the_tones_are(corpus: Path, speed: str) -> None:
    """At any speed the label is a word where it is loud, and no shift by a frame or two makes that truer."""
    overrides = [f"augment.speed=[{speed}]", "augment.spec_augment={}", "features.cmvn=none"]
    batches, tokens = load_training_batches(build_run(corpus, "frames", *overrides))
    shifts = [-2, -1, 0, 1, 2]
    agreed, total = np.zeros(len(shifts)), 0
    for batch in batches:
        for row, count in enumerate(batch.token_lengths_B.tolist()):
            length = int(batch.feature_lengths_B[row])
            assert count == -(-length // 4)
            names = np.array([tokens[id] for id in batch.tokens_BU[row, :count].tolist()])
            loudness_T = batch.features_BTF[row, :length].amax(-1).numpy()
            threshold = np.percentile(loudness_T, [10, 90]).mean()
            for index, shift in enumerate(shifts):
                places = 4 * np.arange(count) + shift
                is_loud = np.interp(places, np.arange(length), loudness_T) > threshold
                agreed[index] += np.sum(is_loud == (names != SILENCE))
            total += count
            spoken = [name for name, before in zip(names, [SILENCE, *names], strict=False) if name != before]
            assert " ".join(name for name in spoken if name != SILENCE) == batch.texts[row]
    assert shifts[int(agreed.argmax())] == 0
    assert agreed.max() / total > 0.85


@pytest.mark.slow
@every_run
def test_resuming_is_exact(kind: str, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(build_run(corpus, kind, f"output_dir={corpus}/whole"))
    run_until_killed(monkeypatch, 8, lambda: train(build_run(corpus, kind)))
    assert find_checkpoints(corpus / "run")[-1].name == "step-00000006"
    assert_equal_bits(whole, train(build_run(corpus, kind)))


@pytest.mark.parametrize("kind", ["recording", pytest.param("frames", marks=pytest.mark.slow)])
def test_it_learns_and_keeps_the_best_model_on_dev(kind: str, corpus: Path) -> None:
    config = build_run(corpus, kind, "train.steps=40", "train.validate_every=20", "train.keep_best=1")
    folder = train(config)
    dev, chosen = read_log(corpus / "run", "dev"), read_log(corpus / "run", "model")[0]
    assert all({"loss", "accuracy"} <= line.keys() and "wer" not in line for line in dev)
    assert read_log(corpus / "run", "train")[0]["accuracy"] <= 1
    best = max(line["accuracy"] for line in dev)
    assert chosen["accuracy"] == best > (0.99 if kind == "recording" else 0.9)
    assert chosen["steps"] == [min(dev, key=lambda line: (-line["accuracy"], line["loss"]))["step"]]
    assert load_any_system(folder).tokenizer.type == "labels"


@pytest.mark.parametrize(
    ("kind", "overrides", "message"),
    [
        ("recording", ["train.select_by=wer"], "a model of type recording_label has accuracy, loss"),
        ("frames", ["tokenizer.type=characters"], "set tokenizer.type: labels"),
        ("frames", ["model.label=speaker"], "model.label"),
        ("recording", ["tokenizer.vocab_size=9"], "type = labels takes no vocab_size"),
    ],
)
def test_incompatible_settings_are_refused(
    kind: str, overrides: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        build_run(tmp_path, kind, *overrides)


@pytest.mark.parametrize("split", ["train", "dev"])
def test_a_missing_label_is_named_before_training(split: str, corpus: Path) -> None:
    change_manifest(corpus / f"{split}.jsonl", speaker=None)
    with pytest.raises(UserError, match=f"utterance {split}-[0-9]+ has no speaker"):
        train(build_run(corpus, "recording"))
    assert not (corpus / "run" / "log.jsonl").exists()


@pytest.mark.slow
def test_a_label_missing_in_training_counts_as_an_error(
    corpus: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change_manifest(corpus / "dev.jsonl", speaker="stranger")
    with caplog.at_level(logging.WARNING):
        train(build_run(corpus, "recording", "train.steps=40", "train.validate_every=40"))
    assert "1 labels did not occur in training, so they count as errors: stranger" in caplog.text
    assert read_log(corpus / "run", "model")[0]["accuracy"] == pytest.approx(5 / 6)
