"""Strings of one to seven English digits by espeak-ng: 68 voices, in rooms with noise.

Needs no corpus: the recipe makes its own, the same samples on each run. The 12 voices of test and the 8 of
dev have other timbres than the 48 of train, in the same accents.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from asr.audio import resample, write
from asr.manifest import Utterance, write_manifest
from asr.speech_synthesis import synthesize

LICENCE = "none needed: nobody's recording is in it (espeak-ng itself is under GPL 3)"
HOURS = 0.98
URLS = ()

SAMPLE_RATE = 16_000
WORDS = ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")
NUM_UTTERANCES = {"train": 1_500, "dev": 200, "test": 200}
SMOKE = {"NUM_UTTERANCES": {"train": 32, "dev": 8, "test": 8}}
STRING_LENGTHS = (1, 7)  # digits, least and most
ACCENTS = (
    *("en-us", "en", "en-gb-scotland", "en-029"),
    *("en-gb-x-rp", "en-us-nyc", "en-gb-x-gbclan", "en-gb-x-gbcwmd"),
)
# Timbres of espeak-ng, without its robots and monsters. Each speaks in two of the accents.
VARIANTS = {
    "train": (
        *("f1", "f2", "f4", "Alicia", "Annie", "belinda", "steph", "grandma", "anika"),
        *("m1", "m2", "m3", "m4", "m6", "adam", "boris", "david", "Denis", "Diogo"),
        *("Gene", "john", "Michael", "paul", "robert"),
    ),
    "dev": ("f5", "shelby", "m7", "quincy"),
    "test": ("f3", "Andrea", "Lee", "ed", "pablo", "travis"),
}
RATES = (120, 220)  # words a minute
PITCHES = (25, 75)  # of espeak-ng's 0 to 100, around the pitch of the voice
PITCH_RANGES = (20, 80)
EDGE_SECONDS = (0.1, 0.5)  # before and after the speech
REVERBERATION_SECONDS = (0.1, 0.5)  # until the echo has fallen by 60 dB: a car to a living room
ECHO_DB = (-20.0, -3.0)  # of all echoes together, against the direct sound
SIGNAL_TO_NOISE_DB = (10.0, 30.0)
NOISE_COLOUR = (0.0, 1.0)  # exponent of 1/f in amplitude: 0 white, 1 brown
PEAK_DB = (-24.0, -1.0)  # of the whole


def download(target_dir: Path) -> Path:
    """Nothing to fetch."""
    return target_dir


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Speak into audio/ and write train.jsonl, dev.jsonl and test.jsonl."""
    for split in NUM_UTTERANCES:
        write_manifest(output_dir / f"{split}.jsonl", _speak_split(split, output_dir / "audio" / split))


def _speak_split(split: str, folder: Path) -> Iterator[Utterance]:
    folder.mkdir(parents=True, exist_ok=True)
    for index in tqdm(range(NUM_UTTERANCES[split]), desc=split, disable=None, leave=False):
        # A generator for each utterance: its samples depend on nothing before it.
        generator = np.random.default_rng([index, *split.encode()])
        voice = _choose_voice(split, generator)
        length = generator.integers(*STRING_LENGTHS, endpoint=True)
        words = [WORDS[digit] for digit in generator.integers(len(WORDS), size=length)]
        audio = _record(" ".join(words).lower(), voice, generator)
        path = folder / f"digits-{split}-{index:04d}.wav"
        write(path, audio, SAMPLE_RATE)
        yield Utterance(
            id=path.stem,
            audio=str(path),
            duration=len(audio) / SAMPLE_RATE,
            text=" ".join(words),
            speaker=voice,
            language="en",
        )


def _choose_voice(split: str, generator: np.random.Generator) -> str:
    variant = int(generator.integers(len(VARIANTS[split])))
    accent = ACCENTS[(2 * variant + generator.integers(2)) % len(ACCENTS)]
    return f"{accent}+{VARIANTS[split][variant]}"


def _record(text: str, voice: str, generator: np.random.Generator) -> np.ndarray:
    """The text as a microphone somewhere in a room might hear it."""
    bounds = (RATES, PITCHES, PITCH_RANGES)
    rate, pitch, pitch_range = (int(generator.integers(low, high, endpoint=True)) for low, high in bounds)
    spoken, spoken_rate = synthesize(text, voice, rate, pitch, pitch_range)
    speech = resample(np.trim_zeros(spoken), spoken_rate, SAMPLE_RATE)
    before, after = (round(generator.uniform(*EDGE_SECONDS) * SAMPLE_RATE) for _ in range(2))
    audio = _add_noise(_add_room(np.pad(speech, (before, after)), generator), generator)
    peak = 10 ** (generator.uniform(*PEAK_DB) / 20)
    return audio * (peak / np.abs(audio).max())


def _add_room(audio: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Echoes: noise that decays exponentially, as in a room without any shape."""
    seconds = generator.uniform(*REVERBERATION_SECONDS)
    time = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    response = generator.normal(size=len(time)) * 10 ** (-3 * time / seconds)
    response *= 10 ** (generator.uniform(*ECHO_DB) / 20) / np.linalg.norm(response)
    response[0] = 1.0
    size = _fast_size(len(audio) + len(response))
    return np.fft.irfft(np.fft.rfft(audio, size) * np.fft.rfft(response, size), size)[: len(audio)]


def _add_noise(audio: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Stationary noise between white and brown, at a level against the speech."""
    size = _fast_size(len(audio))
    frequency = np.maximum(np.fft.rfftfreq(size, 1 / SAMPLE_RATE), 50.0)  # Hz; no rumble below that
    spectrum = np.fft.rfft(generator.normal(size=size)) * frequency ** -generator.uniform(*NOISE_COLOUR)
    noise = np.fft.irfft(spectrum, size)[: len(audio)]
    ratio = 10 ** (generator.uniform(*SIGNAL_TO_NOISE_DB) / 20)
    return audio + noise * np.sqrt(np.mean(audio**2) / np.mean(noise**2)) / ratio


def _fast_size(size: int) -> int:
    """The next power of two: a length with a large prime factor makes the FFT ten times slower."""
    return 1 << (size - 1).bit_length()
