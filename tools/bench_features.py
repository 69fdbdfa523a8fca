"""Measure the time of this and other front ends per hour of audio, and the differences of their features.

All compute 80 mel bands of 25 ms windows every 10 ms. The audio is noise in memory, so no decoding is
timed. The contenders take turns call by call, so that a busy moment of the machine affects all of them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

import kaldi_native_fbank
import librosa
import numpy as np
import torch
import torchaudio
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from asr.features.front_end import FeaturesConfig, FrontEnd

RATE = 16_000
FILE_SECONDS = 10
BATCH_SIZE = 16
SPECTROGRAM = {"n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 80, "center": False}

Contender = Callable[[torch.Tensor], object]  # takes (batch, samples) in [-1, 1]


def build_contenders() -> dict[str, Contender]:
    kaldi = FrontEnd(FeaturesConfig(cmvn="none"))  # without normalization, like the others
    whisper = FrontEnd(FeaturesConfig(convention="whisper"))
    spectrogram = torchaudio.transforms.MelSpectrogram(RATE, **SPECTROGRAM)

    def with_lengths(front_end: FrontEnd) -> Contender:
        return lambda audio_BS: front_end(audio_BS, torch.full((len(audio_BS),), audio_BS.shape[1]))[0]

    return {
        "asr FrontEnd (kaldi)": with_lengths(kaldi),
        "asr FrontEnd (whisper)": with_lengths(whisper),
        "torchaudio MelSpectrogram + log": lambda audio_BS: spectrogram(audio_BS).clamp_(min=1e-10).log_(),
        "torchaudio compliance.kaldi.fbank": lambda audio_BS: [kaldi_fbank(audio_S) for audio_S in audio_BS],
        "librosa melspectrogram + log": lambda audio_BS: np.log(
            np.maximum(librosa.feature.melspectrogram(y=audio_BS.numpy(), sr=RATE, **SPECTROGRAM), 1e-10)
        ),
        "kaldi-native-fbank": lambda audio_BS: [native_fbank(audio_S) for audio_S in audio_BS],
    }


def kaldi_fbank(audio_S: torch.Tensor) -> torch.Tensor:
    return torchaudio.compliance.kaldi.fbank(audio_S[None] * 32768, num_mel_bins=80, dither=0.0)


def native_fbank(audio_S: torch.Tensor) -> np.ndarray:
    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.dither = 0.0
    options.mel_opts.num_bins = 80
    computer = kaldi_native_fbank.OnlineFbank(options)
    computer.accept_waveform(RATE, (audio_S * 32768).numpy())
    computer.input_finished()
    return np.stack([computer.get_frame(i) for i in range(computer.num_frames_ready)])


def whisper_formula(audio_S: torch.Tensor) -> torch.Tensor:
    """Log-mel as Whisper computes it, with librosa's filters."""
    window_W = torch.hann_window(400)
    spectrum = torch.stft(audio_S, 400, 160, window=window_W, return_complex=True)[:, :-1]
    filters = torch.from_numpy(librosa.filters.mel(sr=RATE, n_fft=400, n_mels=80))
    log_mel = (filters @ spectrum.abs().square()).clamp(min=1e-10).log10()
    return ((torch.maximum(log_mel, log_mel.max() - 8) + 4) / 4).T


def measure(
    contenders: dict[str, Contender], batches: list[torch.Tensor], rounds: int, progress: tqdm
) -> dict[str, list[float]]:
    """Seconds per hour of audio, one number per call."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for round_number in range(rounds + 1):
        for audio_BS in batches:
            hours = audio_BS.numel() / RATE / 3600
            # In changing order, because the first contender finds the audio outside of the cache.
            for name, compute in random.sample(list(contenders.items()), len(contenders)):
                start = time.perf_counter()
                compute(audio_BS)
                if round_number:  # the first one warms up
                    times[name].append((time.perf_counter() - start) / hours)
        progress.update()
    return times


def print_agreement(contenders: dict[str, Contender], audio_BS: torch.Tensor) -> None:
    kaldi, whisper = (contenders[f"asr FrontEnd ({name})"](audio_BS)[0] for name in ("kaldi", "whisper"))
    print("\nLargest difference of any number:")
    for name, ours, theirs in (
        ("kaldi, torchaudio compliance.kaldi.fbank", kaldi, kaldi_fbank(audio_BS[0])),
        ("kaldi, kaldi-native-fbank", kaldi, torch.from_numpy(native_fbank(audio_BS[0]))),
        ("whisper, Whisper's formula", whisper, whisper_formula(audio_BS[0])),
    ):
        print(f"  {name:42}{(ours - theirs).abs().max():.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=4.0, help="audio per round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="calls per contender (default: %(default)s)")
    args = parser.parse_args()
    num_files = max(BATCH_SIZE, round(args.minutes * 60 / FILE_SECONDS) // BATCH_SIZE * BATCH_SIZE)
    generator = torch.Generator().manual_seed(0)
    audio_BS = 0.1 * torch.randn(num_files, FILE_SECONDS * RATE, generator=generator)
    cases = {
        f"single files of {FILE_SECONDS} s": list(audio_BS.split(1)),
        f"batches of {BATCH_SIZE} x {FILE_SECONDS} s": list(audio_BS.split(BATCH_SIZE)),
    }
    contenders = build_contenders()
    progress = tqdm(total=2 * len(cases) * (args.rounds + 1), leave=False)
    tables = []
    # librosa uses OpenBLAS. A second thread does not make it faster, but keeps a core busy after each call,
    # which slows the next contender.
    with threadpool_limits(1, user_api="blas"):
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            for case, batches in cases.items():
                tables.append((case, num_threads, measure(contenders, batches, args.rounds, progress)))
    progress.close()
    for case, num_threads, times in tables:
        print(f"\n{case}, {num_threads} thread{'s' * (num_threads > 1)}: seconds per hour of audio")
        print(f"{'':36}{'median':>8}{'ratio':>8}{'least':>10}{'ratio':>8}")
        ours = next(iter(times.values()))
        for name, values in times.items():
            median, least = statistics.median(values), min(values)
            ratios = median / statistics.median(ours), least / min(ours)
            print(f"  {name:34}{median:8.3f}{ratios[0]:8.2f}{least:10.3f}{ratios[1]:8.2f}")
    print_agreement(contenders, audio_BS)


if __name__ == "__main__":
    main()
