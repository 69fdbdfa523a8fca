"""Batches: the same bits with any number of workers, resumable, one broken file costs one utterance."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import soundfile
import torch

from asr.audio import reading as audio_files
from asr.batches.augment import Augmenter
from asr.batches.builder import Batch, BatchBuilder, Inputs, needed_frames
from asr.batches.loader import BatchLoader, UtteranceLoader, translate_worker_errors
from asr.batches.order import ProcessShare
from asr.data import Manifest, Utterance, write_manifest
from asr.errors import UserError
from asr.features.front_end import FeaturesConfig, FrontEnd, speech_spans
from asr.system.run_config import AugmentConfig, BatchConfig, NoiseConfig, SpecAugmentConfig
from asr.text.normalization import TextConfig
from asr.text.tokenizer import Tokenizer, TokenizerConfig
from asr.train.learner import halve_largest

RATE = 16_000
WORDS = ["ZERO", "ONE", "TWO", "THREE", "FOUR"]
CONFIG = BatchConfig(max_seconds=4.0, max_utterances=6, max_utterance_seconds=1.5, num_workers=0)
SPEC_AUGMENT = SpecAugmentConfig(time_warp=3, num_frequency_masks=1, num_time_masks=2, frequency_mask_width=8)
AUGMENT = AugmentConfig(
    speed=(0.9, 1.0, 1.1),
    noise=NoiseConfig(probability=0.5, kinds=("white", "pink")),
    spec_augment=SPEC_AUGMENT,
)


def write_corpus(folder: Path, num_utterances: int, seconds: tuple[float, float] = (0.3, 1.2)) -> Manifest:
    stream = np.random.default_rng(0)
    utterances = []
    for number in range(num_utterances):
        audio = stream.uniform(-0.1, 0.1, int(RATE * stream.uniform(*seconds)))
        path = folder / f"{number:03d}.wav"
        soundfile.write(path, audio, RATE)
        utterances.append(
            Utterance(
                id=f"u{number:03d}",
                audio=str(path),
                duration=len(audio) / RATE,
                text=WORDS[number % len(WORDS)],
            )
        )
    write_manifest(folder / "train.jsonl", utterances)
    return Manifest.open(folder / "train.jsonl")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return write_corpus(tmp_path_factory.mktemp("corpus"), 40)


@pytest.fixture
def large_manifest(tmp_path: Path) -> Manifest:
    """Enough utterances that one of them may be broken."""
    return write_corpus(tmp_path, 120, seconds=(0.2, 0.3))


def build_inputs(augment: AugmentConfig = AUGMENT, **others: Any) -> Inputs:
    tokenizer = Tokenizer.train(TokenizerConfig(), WORDS)
    front_end = FrontEnd(FeaturesConfig(num_mels=20))
    return Inputs(front_end, tokenizer, TextConfig(), augment, **others)


def build(
    manifest: Manifest, inputs: Inputs | None = None, *, share: ProcessShare | None = None, **config: Any
) -> BatchLoader:
    return BatchLoader(
        manifest, inputs or build_inputs(), CONFIG.model_copy(update=config), seed=1, share=share or ProcessShare(),
    )  # fmt: skip


def assert_equal(batches: Iterable[Batch], expected: Iterable[Batch]) -> None:
    """Batches are equal bit for bit."""
    for batch, other in zip(batches, expected, strict=True):
        for name, value in vars(batch).items():
            assert value is not None or getattr(other, name) is None, name
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, getattr(other, name)), name
            else:
                assert value == getattr(other, name), name


def features_by_id(batches: Iterable[Batch]) -> dict[str, torch.Tensor]:
    return {
        name: batch.features_BTF[row, : batch.feature_lengths_B[row]]
        for batch in batches
        for row, name in enumerate(batch.ids)
    }


def break_files(manifest: Manifest, *positions: int) -> None:
    for position in positions:
        Path(manifest[position].audio).write_bytes(b"RIFF, but not really")


def test_batch_holds_the_utterances_it_names(manifest: Manifest) -> None:
    inputs, seen = build_inputs(AugmentConfig()), []
    for batch in build(manifest, inputs).epoch_batches(0):
        assert batch.features_BTF.shape == (len(batch), batch.feature_lengths_B.max(), 20)
        assert batch.tokens_BU.shape == (len(batch), batch.token_lengths_B.max())
        assert batch.tokens_BU.dtype == batch.token_lengths_B.dtype == torch.int64
        total = 0.0
        for row, name in enumerate(batch.ids):
            utterance = manifest[int(name[1:])]
            assert utterance.id == name and utterance.text == batch.texts[row]
            length = int(batch.token_lengths_B[row])
            assert inputs.tokenizer.decode(batch.tokens_BU[row, :length].tolist()) == utterance.text
            assert (batch.tokens_BU[row, length:] == inputs.tokenizer.pad_id).all()
            audio = audio_files.read(utterance.audio, RATE)
            features, _ = inputs.front_end(torch.from_numpy(audio)[None], torch.tensor([len(audio)]))
            length = int(batch.feature_lengths_B[row])
            assert torch.equal(batch.features_BTF[row, :length], features[0])
            assert not batch.features_BTF[row, length:].any()
            total += len(audio) / RATE
        assert batch.audio_seconds == pytest.approx(total)
        assert batch.padded_size == len(batch) * int(batch.feature_lengths_B.max())
        seen += batch.ids
    assert sorted(seen) == [utterance.id for utterance in manifest]


def test_batches_know_where_speech_was_before_it_was_masked(manifest: Manifest) -> None:
    """And halves of a batch too; where nothing is masked the features show it."""
    plain = AUGMENT.model_copy(update={"spec_augment": SpecAugmentConfig()})
    masks = AUGMENT.model_copy(update={"spec_augment": SpecAugmentConfig(num_time_masks=4)})
    unmasked, masked = (
        list(build(manifest, build_inputs(config)).epoch_batches(0)) for config in (plain, masks)
    )
    for batch, other in zip(unmasked, masked, strict=True):
        assert batch.speech_spans_B2 is None and other.speech_spans_B2 is not None
        expected = speech_spans(batch.features_BTF, batch.feature_lengths_B)
        assert torch.equal(other.speech_spans_B2, expected)
    whole = max(masked, key=len)
    halves = [half.speech_spans_B2 for half in halve_largest([whole])]
    assert torch.equal(torch.cat([half for half in halves if half is not None]), whole.speech_spans_B2)


def test_utterance_with_a_start(tmp_path: Path) -> None:
    [utterance] = write_corpus(tmp_path, 1, seconds=(2.0, 2.0))
    write_manifest(tmp_path / "b.jsonl", [utterance.model_copy(update={"start": 1.0, "duration": 0.5})])
    inputs = build_inputs()
    [batch] = build(Manifest.open(tmp_path / "b.jsonl"), inputs).evaluation_batches()
    part = torch.from_numpy(audio_files.read(utterance.audio, RATE)[RATE : RATE * 3 // 2])
    assert torch.equal(batch.features_BTF, inputs.front_end(part[None], torch.tensor([RATE // 2]))[0])


@pytest.mark.gpu
def test_pin_memory(manifest: Manifest) -> None:
    pinned = next(build(manifest).epoch_batches(0)).pin_memory()
    assert all(value.is_pinned() for value in vars(pinned).values() if isinstance(value, torch.Tensor))
    assert pinned.to("cuda").features_BTF.is_cuda


def test_workers_change_nothing(manifest: Manifest) -> None:
    inputs = build_inputs()
    torch.set_num_threads(2)  # workers have one each
    expected = list(build(manifest, inputs).epoch_batches(1))
    assert len(expected) > 5
    assert_equal(build(manifest, inputs, num_workers=2).epoch_batches(1), expected)


@pytest.mark.parametrize(("num_workers", "rank"), [(0, 0), (2, 1)])
def test_resume_continues_exactly(manifest: Manifest, num_workers: int, rank: int) -> None:
    share = ProcessShare(rank, 2)
    whole = list(build(manifest, share=share).epoch_batches(2))
    assert len(whole) > 3
    resumed = build(manifest, share=share, num_workers=num_workers).epoch_batches(2, start=6)
    assert_equal(resumed, whole[3:])
    assert not list(build(manifest, share=share).epoch_batches(2, start=2 * len(whole)))


def test_the_batch_of_an_utterance_does_not_matter(manifest: Manifest) -> None:
    """Other limits, so other batches, but the same augmented features for each utterance."""
    loaders = build(manifest), build(manifest, max_utterances=3, max_seconds=10.0)
    expected, found = (features_by_id(loader.epoch_batches(0)) for loader in loaders)
    assert expected.keys() == found.keys()
    assert all(torch.equal(features, found[name]) for name, features in expected.items())


def test_the_global_random_numbers_are_left_alone(manifest: Manifest) -> None:
    before = torch.get_rng_state()
    for num_workers in (0, 1):
        list(build(manifest, build_inputs(), num_workers=num_workers).epoch_batches(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_limits_hold_for_the_changed_durations(manifest: Manifest) -> None:
    """At half the speed, durations double, both in the plan and in the batches."""
    for batch in build(manifest, build_inputs(AugmentConfig(speed=(0.5,)))).epoch_batches(0):
        assert len(batch) * batch.feature_lengths_B.max() * 0.01 <= CONFIG.max_seconds
        seconds = sum(manifest[int(name[1:])].duration for name in batch.ids)
        assert batch.audio_seconds == pytest.approx(2 * seconds, abs=0.01)


def test_evaluation_has_each_utterance_once_and_unchanged(manifest: Manifest) -> None:
    expected = features_by_id(build(manifest, build_inputs(AugmentConfig())).epoch_batches(0))
    shares = [ProcessShare(rank, 2) for rank in (0, 1)]
    ranks = [list(build(manifest, share=share, min_seconds=0.5).evaluation_batches()) for share in shares]
    found = features_by_id(batch for rank in ranks for batch in rank)
    assert found.keys() == expected.keys() and sum(len(batch) for rank in ranks for batch in rank) == 40
    assert all(torch.equal(features, expected[name]) for name, features in found.items())
    for rank in ranks:
        longest = [int(batch.feature_lengths_B.max()) for batch in rank]
        assert longest == sorted(longest, reverse=True)


def test_labels_are_those_of_the_time_in_the_file(manifest: Manifest) -> None:
    """Played at half the speed in training, a moment comes twice as late; evaluation changes nothing."""
    asked: list[np.ndarray] = []

    def find(utterance: Utterance, times_T: np.ndarray) -> list[str]:
        asked.append(times_T)
        return ["ONE"] * len(times_T)

    inputs = replace(
        build_inputs(AugmentConfig(speed=(0.5,))),
        tokenizer=Tokenizer.train(TokenizerConfig(type="labels"), WORDS),
        labels=cast(Any, SimpleNamespace(at=find)),
        step_times=lambda num_steps: 0.01 * np.arange(num_steps),
    )
    loader = build(manifest, inputs)
    for batches, step in (loader.epoch_batches(0), 0.005), (loader.evaluation_batches(), 0.01):
        asked.clear()
        assert sum(map(len, batches)) == len(asked) == 40
        for times_T in asked:
            np.testing.assert_allclose(times_T, step * np.arange(len(times_T)))


@pytest.mark.parametrize(
    ("config", "others", "message"),
    [
        ({"min_seconds": 0.5}, {}, "batches.min_seconds"),
        ({"max_utterance_seconds": 0.8}, {}, "batches.max_utterance_seconds"),
        ({}, {"num_encoded_frames": lambda lengths: lengths // 10}, "fewer frames"),
    ],
)
def test_what_cannot_be_trained_on_is_left_out_and_said(
    manifest: Manifest, caplog: pytest.LogCaptureFixture, config: dict, others: dict, message: str
) -> None:
    inputs = build_inputs(AugmentConfig(), **others)

    def is_out(utterance: Utterance) -> bool:
        tokens = inputs.tokenizer.encode(utterance.text or "")
        frames = int(inputs.num_encoded_frames(torch.tensor(round((utterance.duration - 0.025) / 0.01 + 1))))
        is_long = utterance.duration > config.get("max_utterance_seconds", 9)
        return is_long or utterance.duration < config.get("min_seconds", 0) or frames < needed_frames(tokens)

    out = [utterance.id for utterance in manifest if is_out(utterance)]
    assert 5 < len(out) < 35
    used = [name for batch in build(manifest, inputs, **config).epoch_batches(0) for name in batch.ids]
    assert sorted(used) == sorted({utterance.id for utterance in manifest} - set(out))
    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert message in warning and f"{len(out)} of 40" in warning and ", ".join(out[:5]) in warning


def test_frames_are_counted_at_the_fastest_speed(manifest: Manifest) -> None:
    """Every epoch leaves out the same utterances, whatever their speed."""
    used = {}
    for speeds in [(1.0,), (2.0,), (0.5, 2.0)]:
        inputs = build_inputs(AugmentConfig(speed=speeds), num_encoded_frames=lambda lengths: lengths // 10)
        used[speeds] = {name for batch in build(manifest, inputs).epoch_batches(0) for name in batch.ids}
    assert used[2.0,] == used[0.5, 2.0] < used[1.0,]


def test_nothing_left_to_train_on(manifest: Manifest) -> None:
    with pytest.raises(UserError, match=r"train\.jsonl: none of the 40 utterances"):
        next(build(manifest, min_seconds=1.4).epoch_batches(0))


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_broken_file_costs_one_utterance(
    large_manifest: Manifest, num_workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    break_files(large_manifest, 7)
    loader = build(large_manifest, num_workers=num_workers)
    for epoch in (0, 1):
        batches = list(loader.epoch_batches(epoch))
        assert len(batches) == len(loader.plan_epoch(epoch))
        assert sum(map(len, batches)) == 119
        [skipped] = [item for batch in batches for item in batch.skipped]
        assert skipped.id == "u007" and skipped.audio.endswith("007.wav") and "007.wav" in skipped.message
    assert caplog.text.count("utterance u007 is left out: ") == 1


def test_an_utterance_with_fewer_frames_than_planned_is_skipped(large_manifest: Manifest) -> None:
    """The file may be somewhat shorter than the manifest says; here the last frame is missing, and needed."""
    path, utterances = large_manifest.paths[0], list(large_manifest)
    text = "ONE" * 6 + "TW"  # 20 frames
    utterances[3] = utterances[3].model_copy(update={"duration": 0.215, "text": text})
    write_manifest(path, utterances)
    soundfile.write(utterances[3].audio, np.random.default_rng(0).uniform(-0.1, 0.1, int(0.21 * RATE)), RATE)
    loader = build(Manifest.open(path), build_inputs(AugmentConfig()))
    [skipped] = [item for batch in loader.epoch_batches(0) for item in batch.skipped]
    assert skipped.id == "u003" and "19 frames after the encoder, but 20 are needed" in skipped.message


def test_a_batch_of_broken_files_comes_empty(large_manifest: Manifest) -> None:
    """All processes have to take the same number of steps."""
    break_files(large_manifest, 7)
    [empty] = [
        batch for batch in build(large_manifest, max_utterances=1).evaluation_batches() if not len(batch)
    ]
    assert empty.features_BTF.shape == (0, 0, 20) and empty.tokens_BU.shape == (0, 0)
    assert empty.skipped[0].id == "u007" and empty.audio_seconds == 0


@pytest.mark.parametrize("mode", ["epoch_batches", "evaluation_batches"])
def test_too_many_broken_files_stop_the_run(large_manifest: Manifest, mode: str) -> None:
    break_files(large_manifest, *range(7, 67, 10))
    arguments = [0] if mode == "epoch_batches" else []
    with pytest.raises(UserError, match=r"6 of 120 utterances cannot be used, more than 5"):
        list(getattr(build(large_manifest), mode)(*arguments))


@pytest.mark.parametrize(
    ("num_utterances", "allowed"), [(1, 0), (4, 2), (10, 5), (100, 5), (599, 5), (600, 6), (10_000, 100)]
)
def test_how_many_utterances_may_be_broken(num_utterances: int, allowed: int) -> None:
    """The limit is 1 %, but in a small manifest 5 or half of it."""
    loader = UtteranceLoader("corpus", [], num_utterances, build_inputs(), CONFIG)
    loader.require_few_skipped(allowed)
    with pytest.raises(UserError, match=f"{allowed + 1} of {num_utterances} .* more than {allowed};"):
        loader.require_few_skipped(allowed + 1)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_changed_manifest_is_one_clear_error(large_manifest: Manifest, num_workers: int) -> None:
    batches = build(large_manifest, num_workers=num_workers).epoch_batches(0)
    next(batches)
    with large_manifest.paths[0].open("a") as file:
        file.write("\n")
    with pytest.raises(UserError, match="has changed") as caught:
        list(batches)
    assert "Traceback" not in str(caught.value)
    assert not multiprocessing.active_children(), "Python waits for them at its end"


def test_a_dead_worker_is_a_clear_error(manifest: Manifest) -> None:
    main = os.getpid()

    def die(lengths: torch.Tensor) -> torch.Tensor:
        if os.getpid() != main:
            os.kill(os.getpid(), signal.SIGKILL)
        return lengths

    batches = build(manifest, build_inputs(num_encoded_frames=die), num_workers=2).epoch_batches(0)
    with pytest.raises(UserError, match=r"process died.*batches\.num_workers"), translate_worker_errors():
        list(batches)


def test_workers_end_after_an_error_of_any_kind(manifest: Manifest) -> None:
    def train() -> None:
        batches = build(manifest, num_workers=1).epoch_batches(0)  # as long as a traceback keeps this frame
        next(batches)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught, translate_worker_errors():
        train()
    assert caught.tb
    assert not multiprocessing.active_children(), "Python waits for them at its end"


@pytest.mark.parametrize(
    ("tokens", "frames"), [([], 1), ([5], 1), ([5, 6, 5], 3), ([5, 5], 3), ([5, 5, 5, 6, 6], 8)]
)
def test_frames_that_ctc_needs(tokens: list[int], frames: int) -> None:
    assert needed_frames(tokens) == frames
    if tokens:  # PyTorch's CTC agrees: finite with so many frames, infinite with one less
        for length, is_finite in [(frames, True), (frames - 1, False)]:
            losses = torch.nn.functional.ctc_loss(
                torch.zeros(frames, 1, 10).log_softmax(2), torch.tensor([tokens]), [length], [len(tokens)]
            )
            assert bool(torch.isfinite(losses)) == is_finite


def test_builder_can_be_sent_to_another_process(manifest: Manifest) -> None:
    """Not every system forks."""
    inputs = build_inputs(
        AugmentConfig(speed=(0.9, 1.1)), num_encoded_frames=partial(torch.floor_divide, other=2)
    )
    builder = BatchBuilder(manifest, inputs, Augmenter(inputs.augment, 0, RATE))
    batch, other = (built[0, np.array([0])] for built in (builder, pickle.loads(pickle.dumps(builder))))
    assert isinstance(batch, Batch) and isinstance(other, Batch)
    assert batch.ids == ("u000",) and torch.equal(batch.features_BTF, other.features_BTF)
