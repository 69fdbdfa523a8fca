"""Speech that nobody spoke: voices of espeak-ng in rooms with noise, for recipes that make their corpus.

The voices of dev and test have other timbres than those of train, in the same accents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from asr.audio.reading import resample, write
from asr.data.manifest import Utterance
from asr.data.speech_synthesis import synthesize

SAMPLE_RATE = 16_000
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


def speak_split(
    split: str,
    num_utterances: int,
    folder: Path,
    prefix: str,
    say: Callable[[np.random.Generator], tuple[list[str], str]],
    rates: tuple[int, int] = RATES,
) -> Iterator[Utterance]:
    """Speak into PREFIX-SPLIT-NUMBER.wav; `say` gives the words of an utterance, and how to speak them."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in tqdm(range(num_utterances), desc=split, disable=None, leave=False):
        # A generator for each utterance: its samples depend on nothing before it.
        generator = np.random.default_rng([index, *split.encode()])
        voice = choose_voice(split, generator)
        words, spoken = say(generator)
        audio = record(spoken, voice, generator, rates)
        path = folder / f"{prefix}-{split}-{index:04d}.wav"
        write(path, audio, SAMPLE_RATE)
        yield Utterance(
            id=path.stem,
            audio=str(path),
            duration=len(audio) / SAMPLE_RATE,
            text=" ".join(words),
            speaker=voice,
            language="en",
        )


def choose_voice(split: str, generator: np.random.Generator) -> str:
    """One of train, dev or test."""
    variant = int(generator.integers(len(VARIANTS[split])))
    accent = ACCENTS[(2 * variant + generator.integers(2)) % len(ACCENTS)]
    return f"{accent}+{VARIANTS[split][variant]}"


def record(
    text: str, voice: str, generator: np.random.Generator, rates: tuple[int, int] = RATES
) -> np.ndarray:
    """The text as a microphone somewhere in a room might hear it; `rates`: words a minute, least and most."""
    bounds = (rates, PITCHES, PITCH_RANGES)
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
