"""Training of models of labels by the same loop: what it learns from, resuming, selection, faults in the data."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from label_examples import KINDS, SPEAKERS, build_run, write_labelled_tones
from training_examples import assert_equal_bits, read_log, run_until_killed

from asr.batches import Batch
from asr.data import Utterance, read_manifest, write_manifest
from asr.errors import UserError
from asr.research import SILENCE
from asr.system import RunConfig, find_checkpoints, load_any_system
from asr.text import SPECIAL_TOKENS
from asr.train import Process, TrainingData, prepare_system, train

every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_labelled_tones(tmp_path_factory.mktemp("recordings"))


@pytest.fixture
def corpus(recordings: Path, tmp_path: Path) -> Path:
    """Manifests of its own, which a test may change."""
    for split in ("train", "dev"):
        write_manifest(tmp_path / f"{split}.jsonl", read_manifest(recordings / f"{split}.jsonl"))
    return tmp_path


def change_manifest(path: Path, **fields: Any) -> None:
    """Of the last utterance."""
    utterances = list(read_manifest(path))
    last = Utterance.model_validate(utterances[-1].model_dump() | fields)
    write_manifest(path, [*utterances[:-1], last])


# --- targets ------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("subsampling", "middle"), [("conv2d", 0.0), ("stack", 1.5)])
@pytest.mark.parametrize("speed", ["0.7", "1.0", "1.4"])
def test_steps_are_labelled_where_the_tones_are(
    corpus: Path, speed: str, subsampling: str, middle: float
) -> None:
    """At any speed the label is a word where it is loud, and no shift by a frame or two makes that truer."""
    overrides = [f"augment.speed=[{speed}]", f"model.encoder.subsampling.type={subsampling}"]
    overrides += ["augment.spec_augment={}", "features.cmvn=none"]
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
                places = 4 * np.arange(count) + middle + shift
                is_loud = np.interp(places, np.arange(length), loudness_T) > threshold
                agreed[index] += np.sum(is_loud == (names != SILENCE))
            total += count
            spoken = [name for name, before in zip(names, [SILENCE, *names], strict=False) if name != before]
            assert " ".join(name for name in spoken if name != SILENCE) == batch.texts[row]
    assert shifts[int(agreed.argmax())] == 0
    assert agreed.max() / total > 0.85


# --- the loop -----------------------------------------------------------------------------------


@pytest.mark.slow
@every_kind
def test_resuming_is_exact(kind: str, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(build_run(corpus, kind, f"output_dir={corpus}/whole"))
    run_until_killed(monkeypatch, 8, lambda: train(build_run(corpus, kind)))
    assert find_checkpoints(corpus / "run")[-1].name == "step-00000006"
    assert_equal_bits(whole, train(build_run(corpus, kind)))


@pytest.mark.parametrize("kind", ["recording", pytest.param("frames", marks=pytest.mark.slow)])
def test_it_learns_and_the_best_on_dev_is_kept(kind: str, corpus: Path) -> None:
    config = build_run(corpus, kind, "train.steps=40", "train.validate_every=20", "train.keep_best=1")
    folder = train(config)
    dev, chosen = read_log(corpus / "run", "dev"), read_log(corpus / "run", "model")[0]
    assert all({"loss", "accuracy"} <= line.keys() and "wer" not in line for line in dev)
    assert read_log(corpus / "run", "train")[0]["accuracy"] <= 1
    best = max(line["accuracy"] for line in dev)
    assert chosen["accuracy"] == best > (0.99 if kind == "recording" else 0.9)
    assert chosen["steps"] == [min(dev, key=lambda line: (-line["accuracy"], line["loss"]))["step"]]
    assert load_any_system(folder).tokenizer.type == "labels"


# --- faults -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "overrides", "message"),
    [
        ("recording", ["train.select_by=wer"], "a model of type recording_label has accuracy, loss"),
        ("frames", ["tokenizer.type=characters"], "set tokenizer.type: labels"),
        ("frames", ["model.label=speaker"], "model.label"),
        ("frames", ["model.pooling=mean"], "pooling"),
        ("recording", ["tokenizer.vocab_size=9"], "type = labels takes no vocab_size"),
    ],
)
def test_settings_that_do_not_go_together(
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


def test_one_label_is_nothing_to_tell_apart(corpus: Path) -> None:
    with pytest.raises(UserError, match="'en' is its only label"):
        for split in ("train", "dev"):
            utterances = [
                item.model_copy(update={"language": "en"})
                for item in read_manifest(corpus / f"{split}.jsonl")
            ]
            write_manifest(corpus / f"{split}.jsonl", utterances)
        train(build_run(corpus, "recording", "model.label=language"))


@pytest.mark.slow
def test_a_label_that_training_has_not_counts_as_an_error(
    corpus: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change_manifest(corpus / "dev.jsonl", speaker="stranger")
    with caplog.at_level(logging.WARNING):
        train(build_run(corpus, "recording", "train.steps=40", "train.validate_every=40"))
    assert "training had none of 1 labels that stand there, which count as errors: stranger" in caplog.text
    assert read_log(corpus / "run", "model")[0]["accuracy"] == pytest.approx(5 / 6)
