"""The front end: agreement with Kaldi and Whisper, independence from the batch."""

from __future__ import annotations

import copy
import functools
import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import kaldi_native_fbank
import librosa
import numpy as np
import pytest
import torch

import asr.features.front_end
from asr.features.filters import FeaturesConfig, compute_kaldi_filters
from asr.features.front_end import FrontEnd

KALDI_TOLERANCE = 1e-3  # float32 rounding in Kaldi itself: its own implementations differ by as much
RATE = 16_000

# One of each path through the front end.
CPU_INFO = Path("/proc/cpuinfo")
IS_INTEL = CPU_INFO.exists() and "GenuineIntel" in CPU_INFO.read_text()

EVERY_PATH: dict[str, dict[str, Any]] = {
    "log_mel": {},
    "mfcc": {"type": "mfcc", "num_mels": 23, "cmvn": "utterance"},
    "odd sizes": {"window_ms": 31.3, "shift_ms": 7.7, "num_mels": 50, "cmvn": "utterance"},
    "running": {"cmvn": "running"},
    "whisper": {"convention": "whisper"},
    "whisper normalized": {"convention": "whisper", "num_mels": 128, "cmvn": "utterance"},
}


@functools.lru_cache
def make_speech(seconds: float, seed: int = 0, sample_rate: int = RATE) -> torch.Tensor:
    """A voice-like sound: a buzz of changing pitch with changing loudness, over noise."""
    random = np.random.default_rng(seed)
    time = np.arange(round(seconds * sample_rate)) / sample_rate
    pitch = 120 + 40 * np.sin(2 * np.pi * 0.7 * time + random.uniform(0, 6))
    phase = 2 * np.pi * np.cumsum(pitch) / sample_rate
    buzz = sum(np.cos(k * phase + random.uniform(0, 6)) / k for k in range(1, 15))
    loudness = 0.05 + 0.1 * (1 + np.sin(2 * np.pi * 3 * time))
    return torch.from_numpy(buzz * loudness * 0.3 + 0.003 * random.standard_normal(len(time))).float()


def build(**fields: Any) -> FrontEnd:
    return FrontEnd(FeaturesConfig.model_validate_json(json.dumps({"cmvn": "none", **fields})))


def compute_alone(front_end: FrontEnd, audio_S: torch.Tensor) -> torch.Tensor:
    features_BTF, feature_lengths_B = front_end(audio_S[None], torch.tensor([len(audio_S)]))
    assert features_BTF.shape == (1, feature_lengths_B.item(), front_end.num_features)
    return features_BTF[0]


def pad(audio: list[torch.Tensor], extra: int = 0, value: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    lengths_B = torch.tensor([len(audio_S) for audio_S in audio])
    audio_BS = torch.full((len(audio), int(lengths_B.max()) + extra), value)
    for padded_S, audio_S in zip(audio_BS, audio, strict=True):
        padded_S[: len(audio_S)] = audio_S
    return audio_BS, lengths_B


def assert_same(features: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal bit for bit where MKL runs on Intel CPUs; elsewhere rounding may depend on the row."""
    if torch.backends.mkl.is_available() and IS_INTEL:
        assert torch.equal(features, expected)
    else:
        torch.testing.assert_close(features, expected, atol=1e-5, rtol=1e-5)


KALDI_SETTINGS = [
    {},
    {"sample_rate": 8000},
    {"num_mels": 23},
    {"window_ms": 32.0, "shift_ms": 8.0},
    {"sample_rate": 22050, "window_ms": 20.0, "num_mels": 60},
]


def read_online(computer: Any, audio_S: torch.Tensor, sample_rate: int) -> torch.Tensor:
    computer.accept_waveform(sample_rate, (audio_S * 32768).numpy())
    computer.input_finished()
    return torch.from_numpy(np.stack([computer.get_frame(i) for i in range(computer.num_frames_ready)]))


@pytest.mark.parametrize("fields", KALDI_SETTINGS, ids=str)
@pytest.mark.parametrize("type", ["log_mel", "mfcc"])
def test_agrees_with_torchaudio_and_kaldi_native_fbank(
    type: str, fields: dict[str, Any], torchaudio: ModuleType
) -> None:
    front_end = build(type=type, **fields)
    config = front_end.config
    audio_S = make_speech(1.7, sample_rate=config.sample_rate)
    edges = {"low_freq": 20.0, "high_freq": 0.0}
    frames = {"preemphasis_coefficient": 0.97, "dither": 0.0}
    frames |= {"frame_length": config.window_ms, "frame_shift": config.shift_ms}
    options = {"sample_frequency": config.sample_rate, "num_mel_bins": config.num_mels, **edges, **frames}
    scaled_1S = audio_S[None] * 32768
    online: Any
    if type == "mfcc":
        expected = torchaudio.compliance.kaldi.mfcc(scaled_1S, num_ceps=13, **options)
        online, compute_online = kaldi_native_fbank.MfccOptions(), kaldi_native_fbank.OnlineMfcc
        online.use_energy = False
    else:
        expected = torchaudio.compliance.kaldi.fbank(scaled_1S, **options)
        online, compute_online = kaldi_native_fbank.FbankOptions(), kaldi_native_fbank.OnlineFbank
    own = {"samp_freq": config.sample_rate, "preemph_coeff": 0.97, "dither": 0.0}
    own |= {"frame_length_ms": config.window_ms, "frame_shift_ms": config.shift_ms}
    for name, value in own.items():
        setattr(online.frame_opts, name, value)
    for name, value in {"num_bins": config.num_mels, **edges}.items():
        setattr(online.mel_opts, name, value)
    features = compute_alone(front_end, audio_S)
    torch.testing.assert_close(features, expected, atol=KALDI_TOLERANCE, rtol=0)
    online_features = read_online(compute_online(online), audio_S, config.sample_rate)
    torch.testing.assert_close(features, online_features, atol=KALDI_TOLERANCE, rtol=0)


def test_icefall_agrees_with_kaldi_native_fbank() -> None:
    """With snip_edges = false, high_freq = -400 and samples from -1 to 1, as in icefall and sherpa-onnx."""
    online = kaldi_native_fbank.FbankOptions()
    online.frame_opts.dither, online.frame_opts.snip_edges = 0.0, False
    online.mel_opts.num_bins, online.mel_opts.high_freq = 80, -400.0
    audio_S = torch.cat([make_speech(1.7), torch.zeros(3_000)])
    computer = kaldi_native_fbank.OnlineFbank(online)
    computer.accept_waveform(16_000, audio_S.numpy())
    computer.input_finished()
    expected_TF = np.stack([computer.get_frame(i) for i in range(computer.num_frames_ready)])
    features_TF = compute_alone(build(convention="icefall", cmvn="none"), audio_S)
    shifted_TF = torch.from_numpy(expected_TF) + 2 * math.log(32768)
    torch.testing.assert_close(features_TF, shifted_TF, atol=KALDI_TOLERANCE, rtol=0)


@pytest.mark.parametrize("offset", [0.0, 0.05], ids=["no offset", "a constant added to the audio"])
def test_rounds_no_worse_than_torchaudio(offset: float, torchaudio: ModuleType) -> None:
    audio_S = make_speech(3.0) + offset
    frames = np.lib.stride_tricks.sliding_window_view(audio_S.double().numpy() * 32768, 400)[::160]
    frames = frames - frames.mean(axis=1, keepdims=True)
    frames = frames - 0.97 * np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    power = np.abs(np.fft.rfft(frames * np.hanning(400) ** 0.85, n=512)) ** 2
    exact = np.log(power @ compute_kaldi_filters(np.arange(257) * 31.25, 20, 8000, 80))
    theirs = torchaudio.compliance.kaldi.fbank(audio_S[None] * 32768, num_mel_bins=80, dither=0.0)
    our_error = np.abs(compute_alone(build(), audio_S).numpy() - exact)
    their_error = np.abs(theirs.numpy() - exact)
    assert our_error.mean() <= 1.1 * their_error.mean()
    assert our_error.max() <= max(1e-4, 2 * their_error.max())


@pytest.mark.parametrize("audio_S", [torch.zeros(8000), make_speech(0.5) * 1e-7], ids=["silence", "near it"])
def test_silence_is_kaldis_floor(audio_S: torch.Tensor, torchaudio: ModuleType) -> None:
    expected = torchaudio.compliance.kaldi.fbank(audio_S[None] * 32768, num_mel_bins=80, dither=0.0)
    torch.testing.assert_close(compute_alone(build(), audio_S), expected, atol=KALDI_TOLERANCE, rtol=0)


def compute_whisper_reference(audio_S: torch.Tensor, num_mels: int) -> np.ndarray:
    """Whisper's formula in float64."""
    window = 0.5 * (1 - np.cos(2 * np.pi * np.arange(400) / 400))
    padded = np.pad(audio_S.double().numpy(), 200, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, 400)[::160][:-1]
    power = np.abs(np.fft.rfft(frames * window)) ** 2
    mel = power @ librosa.filters.mel(sr=16000, n_fft=400, n_mels=num_mels, dtype=np.float64).T
    log_mel = np.log10(np.maximum(mel, 1e-10))
    return (np.maximum(log_mel, log_mel.max() - 8) + 4) / 4


@pytest.mark.parametrize("num_mels", [80, 128])
@pytest.mark.parametrize("num_samples", [201, 320, 16_000, 16_001, 47_999])
def test_agrees_with_whisper_formula(num_samples: int, num_mels: int) -> None:
    audio_S = make_speech(3.0)[:num_samples]
    features = compute_alone(build(convention="whisper", num_mels=num_mels), audio_S)
    np.testing.assert_allclose(features, compute_whisper_reference(audio_S, num_mels), atol=1e-4)


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", EVERY_PATH)
def test_same_alone_and_in_any_batch(name: str, num_threads: int) -> None:
    front_end = build(**EVERY_PATH[name])
    seconds = [1.0, 0.31, 20.6, 0.05, 2.345, 0.2, 0.001, 1.5]  # one is longer than a block, one has no frame
    audio = [make_speech(s, seed) for seed, s in enumerate(seconds)]
    alone = [compute_alone(front_end, audio_S) for audio_S in audio]
    for order in ([0, 1, 3, 4, 5, 6, 7], [2, 0], [5, 6, 3, 1], [7] * 9):
        # Not-a-number behind the end: whoever looks there will show it.
        audio_BS, lengths_B = pad([audio[i] for i in order], extra=777, value=float("nan"))
        features_BTF, feature_lengths_B = front_end(audio_BS, lengths_B)
        for position, i in enumerate(order):
            length = int(feature_lengths_B[position])
            assert_same(features_BTF[position, :length], alone[i])
            assert not features_BTF[position, length:].any()


def test_audio_that_starts_later_has_the_same_frames() -> None:
    audio_S = torch.rand(45 * RATE) - 0.5  # some blocks long, cut at different places
    front_end = build()
    features = compute_alone(front_end, audio_S)
    for frames in (1, 7, 1500, 2234):
        assert_same(compute_alone(front_end, audio_S[160 * frames :]), features[frames:])


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    audio_BS, lengths_B = pad([make_speech(3.0, 1), make_speech(1.0, 2), make_speech(2.5, 3)])
    expected, _ = build()(audio_BS, lengths_B)
    monkeypatch.setattr(asr.features.front_end, "CPU_ROWS", asr.features.front_end.ROW_MULTIPLE)
    assert_same(build()(audio_BS, lengths_B)[0], expected)


def test_threads_do_not_disturb_each_other() -> None:
    front_end = build()
    audio = [make_speech(1.0, seed) for seed in range(8)]
    expected = [compute_alone(front_end, audio_S) for audio_S in audio]
    with ThreadPoolExecutor(max_workers=4) as pool:
        for features, alone in zip(
            pool.map(lambda i: compute_alone(front_end, audio[i % 8]), range(40)), expected * 5, strict=True
        ):
            assert_same(features, alone)


@pytest.mark.parametrize("name", EVERY_PATH)
@pytest.mark.parametrize("num_samples", [0, 1, 200, 201, 399, 400, 560])
def test_num_frames_is_the_number_of_frames(name: str, num_samples: int) -> None:
    front_end = build(**EVERY_PATH[name])
    audio_BS, lengths_B = torch.rand(2, num_samples) - 0.5, torch.tensor([num_samples, 0])
    features_BTF, feature_lengths_B = front_end(audio_BS, lengths_B)
    assert features_BTF.shape == (2, front_end.num_frames(num_samples), front_end.num_features)
    assert feature_lengths_B.tolist() == [front_end.num_frames(num_samples), 0]
    assert features_BTF.isfinite().all()


KALDI_FRAMES = {399: 0, 400: 1, 559: 1, 560: 2, 16_000: 98}
WHISPER_FRAMES = {200: 0, 201: 1, 320: 2, 16_000: 100}


@pytest.mark.parametrize(("convention", "counts"), [("kaldi", KALDI_FRAMES), ("whisper", WHISPER_FRAMES)])
def test_num_frames(convention: str, counts: dict[int, int]) -> None:
    front_end = build(convention=convention)
    assert front_end.num_frames(torch.tensor([*counts])).tolist() == [*counts.values()]


def test_mixed_precision_of_the_model_does_not_reach_the_front_end() -> None:
    front_end, audio_S = build(type="mfcc"), make_speech(1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = compute_alone(front_end, audio_S)
    assert torch.equal(mixed, compute_alone(front_end, audio_S))


@pytest.mark.parametrize("name", EVERY_PATH)
def test_inference_mode_and_training_can_take_turns(name: str) -> None:
    front_end, audio_S = build(**EVERY_PATH[name]), make_speech(0.5)
    with torch.inference_mode():  # the first call of all: what it keeps must be of use later
        inferred = compute_alone(front_end, audio_S)
    assert_same(compute_alone(front_end, audio_S), inferred)


@pytest.mark.gpu
@pytest.mark.parametrize("name", EVERY_PATH)
def test_gpu_agrees_with_cpu(name: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    front_end = build(**EVERY_PATH[name])
    audio_BS, lengths_B = pad([make_speech(s, 1) for s in (1.0, 3.0, 0.01)], extra=99)
    expected, expected_lengths = front_end(audio_BS, lengths_B)
    features_BTF, feature_lengths_B = copy.deepcopy(front_end).cuda()(audio_BS.cuda(), lengths_B.cuda())
    assert torch.equal(feature_lengths_B.cpu(), expected_lengths)
    torch.testing.assert_close(features_BTF.cpu(), expected, atol=KALDI_TOLERANCE, rtol=0)


def test_utterance_cmvn() -> None:
    features = compute_alone(build(cmvn="utterance"), make_speech(3.0)).double()
    torch.testing.assert_close(features.mean(0), torch.zeros(80).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(features.std(0, correction=0), torch.ones(80).double(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("num_samples", [400, 16_000])
def test_utterance_cmvn_of_silence_is_zero(num_samples: int) -> None:
    features = compute_alone(build(cmvn="utterance"), torch.zeros(num_samples))
    torch.testing.assert_close(features, torch.zeros_like(features), atol=1e-2, rtol=0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"convention": "whisper", "type": "mfcc"}, "type is mfcc"),
        ({"convention": "whisper", "sample_rate": 8000}, "sample_rate is 8000"),
        ({"type": "mfcc", "num_ceps": 24, "num_mels": 23}, "num_ceps is 24"),
        ({"window_ms": 1.0, "shift_ms": 1.0}, "window_ms 1"),
        ({"window_ms": 5000.0}, "window_ms 5000"),
        ({"shift_ms": 26.0}, "shift_ms 26"),
        ({"shift_ms": 0.01}, "shift_ms 0.01"),
        ({"num_mels": 128}, "num_mels 128"),
    ],
    ids=str,
)
def test_config_names_what_is_in_conflict(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FeaturesConfig.model_validate(fields)
