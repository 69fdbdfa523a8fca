"""Every setting of a run changes something, or is refused where it would do nothing."""

from __future__ import annotations

import functools
import itertools
import json
import types
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
import torch

from asr.batches import Augmenter, plan_epoch
from asr.config import Config, build_config
from asr.decoding import DecodingConfig
from asr.errors import UserError
from asr.features import FrontEnd, fit_front_end
from asr.models import build_model, is_low_rank
from asr.system import RunConfig
from asr.text import Tokenizer, normalize_for_scoring, normalize_for_training
from asr.train import build_optimizer, learning_rate_at

NUM_FEATURES, VOCAB_SIZE = 8, 12
DATA = ["output_dir=run", "data.train=a.jsonl", "data.dev=b.jsonl"]
LAYERS = "dim: 8, num_layers: 1, num_heads: 2, feed_forward_dim: 8"
ENCODER = f"model.encoder={{type: transformer, {LAYERS}, subsampling: {{channels: 2}}}}"
DECODER = f"model.decoder={{{LAYERS}}}"
GUIDED = ["model.decoder.num_layers=2", "model.guided_attention={trim_silence: false}"]
RECURRENT = "dim: 8, num_layers: 2"
LSTM = f"model.encoder={{type: lstm, {RECURRENT}, subsampling: {{channels: 2}}}}"
LABELS = [
    LSTM,
    "model.type=recording_label",
    "model.label=speaker",
    "tokenizer.type=labels",
    "train.select_by=loss",
]

BASES: dict[str, list[str]] = {
    "hybrid": [ENCODER, DECODER],
    "guided": [
        *(ENCODER, DECODER, *GUIDED, "model.guided_attention.schedule=exponential"),
        *("model.guided_attention.path=ctc", "model.guided_attention.ctc_threshold=1000"),
    ],
    "linear": [
        *(ENCODER, DECODER, *GUIDED, "model.guided_attention.schedule=linear"),
        "model.guided_attention.steps=9",
    ],
    "prior": [ENCODER, DECODER, "model.attention_prior={keep_updates: 2, end_updates: 5, trim_silence: false}"],
    "guide": [ENCODER, DECODER, "model.attention_guide={ctc_threshold: 1000}"],
    "clock": [ENCODER, DECODER, "model.attention_clock={}"],
    "fourier": [ENCODER, DECODER, *(f"model.{part}.positions.type=fourier" for part in ("encoder", "decoder"))],
    "learned": [ENCODER, DECODER, *(f"model.{part}.positions.type=learned" for part in ("encoder", "decoder"))],
    "ctc": [LSTM, "model.ctc_weight=1.0", "model.decoder=null"],
    "conformer": [f"model.encoder={{type: conformer, {LAYERS}, kernel: 3}}", "model.decoder={type: attention, dim: 8}"],
    "location": [LSTM, "model.decoder={type: attention, dim: 8, attention: {dim: 8, location: {kernel: 3}}}"],
    "intra": [
        f"model.encoder={{type: intra_attention, {RECURRENT}, subsampling: {{type: stack}}}}",
        "model.decoder={type: intra_attention, dim: 8, attention: {dim: 8}}",
    ],
    "summary": [
        "model.encoder={type: convolutional, dim: 8, num_layers: 1, feed_forward_dim: 8, kernel: 3, subsampling: {type: stack}}",
        "model.decoder={type: single_summary, dim: 8}",
        "model.ctc_weight=0.0",
    ],
    "parallel_length": [ENCODER, f"model.decoder={{type: parallel_length, {LAYERS}}}"],
    "parallel_end": [ENCODER, f"model.decoder={{type: parallel_end, {LAYERS}}}"],
    "mask_ctc": [ENCODER, f"model.decoder={{type: mask_ctc, {LAYERS}}}", "model.lora={rank: 2}"],
    "language": [f"model={{type: language, {LAYERS}}}", "train.select_by=loss"],
    "label": LABELS,
    "mfcc": [ENCODER, DECODER, "features={type: mfcc, num_mels: 23}"],
    "reduction": [ENCODER, DECODER, "features.reduction={type: pca, dim: 8}", "optim={schedule: cosine}"],
    "whisper": [ENCODER, DECODER, "features={convention: whisper}", "optim={schedule: constant}"],
    "masks": [ENCODER, DECODER, "augment={spec_augment: {num_time_masks: 2, num_frequency_masks: 1}, noise: {probability: 0.9}}"],
    "words": [ENCODER, DECODER, "tokenizer={type: words, vocab_size: 8}"],
}  # fmt: skip

# Others try most of what these do.
RELATIVES = {
    "linear",
    "guided",
    "prior",
    "guide",
    "clock",
    "learned",
    "fourier",
    "location",
    "intra",
    "parallel_end",
}

# Values to try, where those that follow from the type are not enough.
VALUES: dict[str, list[Any]] = {
    "augment.speed": [[0.9, 1.1]],
    "augment.noise.snr_db": [[0.0, 5.0]],
    "augment.noise.kinds": [["pink"]],
    "augment.noise.recordings": [],  # tests/batches/test_augment.py
    "batches.max_utterances": [3],
    "features.high_hz": [4000.0],
    "features.sample_rate": [8000],
    "model.frozen": [["encoder"]],
    "model.guided_attention.ctc_threshold": [1.0],
    "model.guided_attention.path": ["diagonal"],
    "model.guided_attention.steps": [2],
    "model.guided_attention.layers": [[0], [3]],
    "model.guided_attention.heads": [[0]],
    "model.guided_attention.trim_silence": [],  # of spans that the batch brings: tests/models/test_losses.py
    "model.attention_prior.trim_silence": [],
    "model.attention_guide.ctc_threshold": [1.0],
    "model.encoder.window": [[1, 1]],
    "model.encoder.positions.span": [100],  # one more or less may be lost in rounding
    "model.decoder.positions.span": [100],
    "text.training": [["nfc", "lowercase", "collapse_spaces"]],
    "text.scoring": [["nfc", "strip_punctuation", "collapse_spaces"]],
    "tokenizer.vocab_size": [7],
    "tokenizer.type": ["words"],
}
# What is not tried here: it says how the process goes on, and has tests of its own.
ELSEWHERE = ("output_dir", "seed", "start_from", "data.", "train.", "batches.min_seconds", "batches.num_workers",
             "batches.max_utterance_seconds", "batches.max_tokens", "batches.window_shards")  # fmt: skip
# Without these there is no such model.
ALIKE = {"model.type", "model.label"}


def values_to_try(key: str, value: Any, annotation: Any) -> list[Any]:
    if key in VALUES:
        return VALUES[key]
    while get_origin(annotation) not in (None, Literal):
        options = [one for one in get_args(annotation) if one is not types.NoneType]
        if get_origin(annotation) is tuple or not options:
            return []
        annotation = options[0]
    if get_origin(annotation) is Literal:
        return [one for one in get_args(annotation) if one != value]
    if annotation is bool:
        return [not value]
    if annotation is int:
        return [2, 5] if value is None else [value + 1, value + 2, 2 * value]
    return [0.4 if value is None else value / 2 + 0.2] if annotation is float else []


def settings_of(config: Config, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, Config):
            yield from settings_of(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value, field.annotation


# --- what a section does ------------------------------------------------------------------------


@functools.cache
def sound() -> torch.Tensor:
    return 0.1 * torch.randn(2, 8000, generator=torch.Generator().manual_seed(0))


def use_features(config: RunConfig) -> Any:
    front_end = FrontEnd(config.features)
    lengths_B = torch.tensor([8000, 6000])
    fit_front_end(front_end, [(sound(), lengths_B)])
    generators = (
        [torch.Generator().manual_seed(seed) for seed in range(2)] if config.features.dither else None
    )
    return front_end(sound(), lengths_B, generators)


def use_augmentation(config: RunConfig) -> Any:
    augmenter = Augmenter(config.augment, 0, 16_000, 40)
    ids = tuple("abcdef")
    audio = [augmenter.augment_audio(sound()[0].numpy(), name, 1)[0].tolist() for name in ids]
    features_BTF = torch.randn(6, 90, 40, generator=torch.Generator().manual_seed(0))
    lengths_B = torch.full((6,), 90)
    return audio, augmenter.augment_features(features_BTF, lengths_B, ids, 1)[0]


def use_model(config: RunConfig) -> Any:
    torch.manual_seed(0)
    model = build_model(config.model, NUM_FEATURES, VOCAB_SIZE).train()
    for parameter in (one for name, one in model.named_parameters() if is_low_rank(name)):
        torch.nn.init.normal_(parameter)  # they start as no change
    generator = torch.Generator().manual_seed(1)
    tokens_BU = torch.randint(5, VOCAB_SIZE, (3, 6), generator=generator)
    features_BTF = torch.randn(3, 60, NUM_FEATURES, generator=generator)
    losses = []
    for step in (0, 3):
        batch = (features_BTF, torch.tensor([60, 56, 50]), tokens_BU, torch.tensor([6, 5, 4]))
        if config.model.type == "recording_label":
            batch = (*batch[:2], tokens_BU[:, :1], torch.ones(3, dtype=torch.long))
        losses.append(float(model(*batch, step).total))
    trained = [(name, part.shape) for name, part in model.named_parameters() if part.requires_grad]
    return losses, trained, getattr(model, "subsampling_factor", None)


def use_optimizer(config: RunConfig) -> Any:
    groups = build_optimizer(torch.nn.Linear(2, 2), config.optim).param_groups
    rates = [learning_rate_at(step, config.optim, 3000) for step in range(0, 3000, 7)]
    return rates, [group["weight_decay"] for group in groups]


def use_batches(config: RunConfig) -> Any:
    seconds_N = np.random.default_rng(0).uniform(1.0, 9.0, 400)
    plans = [plan_epoch(seconds_N, config.batches, 0, epoch, 1) for epoch in range(2)]
    return [[batch.tolist() for batch in plan] for plan in plans]


TEXTS = ["So, NOW then", "ONE two", "one"]


def use_text(config: RunConfig) -> Any:
    rules = (normalize_for_training, normalize_for_scoring)
    return [rule(text, config.text) for text, rule in itertools.product(TEXTS, rules)]


def use_tokenizer(config: RunConfig) -> Any:
    return Tokenizer.train(config.tokenizer, TEXTS).tokens


SECTIONS: dict[str, Callable[[RunConfig], Any]] = {
    "features": use_features,
    "augment": use_augmentation,
    "model": use_model,
    "optim": use_optimizer,
    "batches": use_batches,
    "text": use_text,
    "tokenizer": use_tokenizer,
}


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)


def find_settings(name: str, sections: set[str]) -> tuple[set[str], list[str]]:
    """Those that change something, and a line for each that was accepted and does nothing."""
    base = [*DATA, *BASES[name]]
    config = build_config(RunConfig, base)
    before = functools.cache(lambda section: SECTIONS[section](config))
    effective, idle = set(), []
    for key, value, annotation in settings_of(config):
        if key.partition(".")[0] not in sections or key.startswith(ELSEWHERE) or key in ALIKE:
            continue
        for other in (one for one in values_to_try(key, value, annotation) if one != value):
            try:
                changed = build_config(RunConfig, [*base, f"{key}={json.dumps(other)}"])
                after = SECTIONS[key.partition(".")[0]](changed)
            except UserError as error:
                assert any(part in str(error) for part in key.split(".")[-2:]), f"{key} = {other}: {error}"
                continue
            if is_same(before(key.partition(".")[0]), after):
                idle.append(f"{key} = {other}")
            effective.add(key)
            if isinstance(other, int | float):
                break  # another number would show no more
    return effective, idle


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in RELATIVES else ()) for name in BASES]
)
def test_every_setting_changes_something_or_is_refused(name: str) -> None:
    """All sections once, and then those that the case is about."""
    own = {override.partition("=")[0].partition(".")[0] for override in BASES[name]} & set(SECTIONS)
    if own & {"features", "augment", "optim"}:
        own -= {"model"}  # that of the first case
    sections = set(SECTIONS) if name == "hybrid" else own
    effective, idle = find_settings(name, sections)
    assert not idle
    assert len(effective) >= 2


@pytest.mark.parametrize(
    ("base", "override", "message"),
    [
        ("ctc", "model.label_smoothing=0.2", "label_smoothing = 0.2 does nothing without a decoder"),
        ("hybrid", "features.num_ceps=20", "num_ceps = 20 does nothing without type = mfcc"),
        ("hybrid", "model.encoder.positions.span=100", "span = 100 does nothing without type = fourier or learned"),
        ("intra", "model.encoder.subsampling.channels=3", "channels = 3 does nothing without type = conv2d"),
        ("hybrid", "augment.noise.snr_db=[0.0,9.0]", "snr_db = [0.0, 9.0] does nothing without probability"),
        ("hybrid", "augment.spec_augment.time_mask_width=9", "time_mask_width = 9 does nothing without num_time_masks"),
        ("label", "text.training=[nfc]", "training = ['nfc'] does nothing without a model of texts"),
        ("language", "batches.num_workers=4", "batches.num_workers is about audio"),
    ],
)  # fmt: skip
def test_what_does_nothing_is_refused_by_name(base: str, override: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        use_model(build_config(RunConfig, [*DATA, *BASES[base], override]))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("attention", {"ctc_weight": 0.5}),
        ("rescoring", {"guide_width": 3.0}),
        ("ctc_greedy", {"length_bonus": 1.0}),
        ("ctc_greedy", {"max_tokens": 9}),
    ],
)
def test_decoding_refuses_what_the_method_ignores(method: Any, setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(UserError, match=f"{name} = .* does nothing without"):
        DecodingConfig(method=method, **setting)
    DecodingConfig(**setting)
