"""Reproducible text to speech with espeak-ng, for corpora and tests without recordings.

Synthetic corpora place its voices in rooms with noise. The voices of dev and test have other timbres than the
training voices, in the same accents.
"""

from __future__ import annotations

import ctypes
import functools
import locale
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from asr.audio.reading import resample, write
from asr.data.manifest import Utterance
from asr.errors import UserError, import_extra, suggest

# Names and values of espeak-ng's speak_lib.h.
_OUTPUT_SYNCHRONOUS = 2  # the callback runs inside espeak_Synth: no thread, no sound card
_DONT_EXIT = 0x8000  # otherwise a missing data file ends the process
_POSITION_CHARACTER = 1
_UTF8 = 1
_IPA = 0x02 | ord("_") << 8  # phones in IPA, with a character between them
_PARAMETERS = {"rate": 1, "volume": 2, "pitch": 3, "pitch_range": 4}
_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
_VOLUME = 30  # on a scale to 100; loud voices clip at 100, and some still do at 50
_SEED = 1  # seed of the breath and noise in voices; 0 would mean the time of day

_NOT_PHONES = re.compile(r"\([a-z-]+\)|[ˈˌ‖_\s]")  # language switches such as "(fr)", stress and pauses

_lock = threading.Lock()  # espeak-ng has one global state


def synthesize(
    text: str, voice: str = "en-us", rate: int = 175, pitch: int = 50, pitch_range: int = 50
) -> tuple[np.ndarray, int]:
    """Speak a text: return float32 mono audio in [-1, 1], and its sample rate.

    `voice` is an accent (`en-us`), optionally with a timbre (`en-us+f3`). `rate` is in words per minute, 80
    to 450; `pitch` and `pitch_range` are from 0 to 100. The samples depend only on the arguments, not on
    earlier calls or the process.
    """
    _require_voice(voice)
    settings = {"rate": rate, "pitch": pitch, "pitch_range": pitch_range, "volume": _VOLUME}
    blocks: list[bytes] = []

    @_Callback
    def collect(samples: int | None, num_samples: int, _events: int | None) -> int:
        if samples and num_samples > 0:
            blocks.append(ctypes.string_at(samples, 2 * num_samples))
        return 0

    with _lock, _fresh_library() as (library, sample_rate):
        library.espeak_SetSynthCallback(collect)
        _require_success(library.espeak_SetVoiceByName(voice.encode()), f"voice {voice}")
        for name, value in settings.items():
            _require_success(library.espeak_SetParameter(_PARAMETERS[name], value, 0), f"{name} = {value}")
        encoded = text.encode()
        status = library.espeak_Synth(
            encoded, ctypes.c_size_t(len(encoded) + 1), 0, _POSITION_CHARACTER, 0, _UTF8, None, None
        )
        _require_success(status, "speaking")
    return np.frombuffer(b"".join(blocks), dtype=np.int16).astype(np.float32) / 32768, sample_rate


def pronounce(words: Iterable[str], voice: str = "en-us") -> list[tuple[str, ...]]:
    """Return the phones of each word in IPA, without stress, spoken in isolation; () for silence."""
    _require_voice(voice)
    spoken: list[tuple[str, ...]] = []  # a list, because a generator would hold the lock between two words
    with _lock, _fresh_library() as (library, _):
        spell = library.espeak_TextToPhonemes
        spell.argtypes = [ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, ctypes.c_int]
        spell.restype = ctypes.c_char_p
        _require_success(library.espeak_SetVoiceByName(voice.encode()), f"voice {voice}")
        for word in words:
            rest = ctypes.c_char_p(word.lower().encode())  # upper-case words may be spelled out
            phones: list[str] = []
            while rest.value:  # each call converts one clause
                phones += _NOT_PHONES.sub(" ", spell(ctypes.byref(rest), _UTF8, _IPA).decode()).split()
            spoken.append(tuple(phones))
    return spoken


@contextmanager
def _fresh_library() -> Iterator[tuple[ctypes.CDLL, int]]:
    """Load a fresh copy of espeak-ng; yield it and its sample rate.

    The state of its noise and voice flutter carries over from one utterance to the next, in variables that no
    call resets. Loading the library again resets them and takes 2 ms.
    """
    loader = _import_loader()
    system = ctypes.CDLL(None)
    system.dlclose.argtypes = [ctypes.c_void_p]
    library = ctypes.CDLL(loader.get_library_path())
    character_type = locale.setlocale(locale.LC_CTYPE)  # espeak-ng changes it
    try:
        data_path = str(loader.get_data_path()).encode()
        sample_rate = library.espeak_Initialize(_OUTPUT_SYNCHRONOUS, 0, data_path, _DONT_EXIT)
        library.espeak_ng_SetRandSeed(ctypes.c_long(_SEED))
        system.srand(_SEED)  # some voices use noise from the C library
        yield library, sample_rate
        library.espeak_Terminate()
    finally:
        locale.setlocale(locale.LC_CTYPE, character_type)
        system.dlclose(library._handle)


def _require_success(status: int, what: str) -> None:
    if status != 0:
        raise UserError(f"espeak-ng failed at {what} (status {status})")


def _require_voice(voice: str) -> None:
    """Refuse unknown voices, because espeak-ng itself ignores an unknown variant."""
    accents, variants = _installed_voices()
    accent, plus, variant = voice.partition("+")
    for name, known in ((accent, accents), (variant, variants)):
        if name not in known and (plus or known is accents):
            raise UserError(f"unknown voice {voice!r}: there is no {name!r}; {suggest(name, known)}")


@functools.cache
def _installed_voices() -> tuple[list[str], list[str]]:
    """Return the sorted names of accents and variants."""
    data = Path(_import_loader().get_data_path())
    accents = sorted(path.name.lower() for path in (data / "lang").rglob("*") if path.is_file())
    variants = sorted(path.name for path in (data / "voices" / "!v").iterdir())
    return accents, variants


def _import_loader() -> Any:
    return import_extra("espeakng_loader", "speaking with espeak-ng", "digits")


# --- corpora: voices in rooms with noise --------------------------------------------------------

SAMPLE_RATE = 16_000
ACCENTS = (
    *("en-us", "en", "en-gb-scotland", "en-029"),
    *("en-gb-x-rp", "en-us-nyc", "en-gb-x-gbclan", "en-gb-x-gbcwmd"),
)
# Timbres of espeak-ng without its robots and monsters. Each is used with two of the accents.
VARIANTS = {
    "train": (
        *("f1", "f2", "f4", "Alicia", "Annie", "belinda", "steph", "grandma", "anika"),
        *("m1", "m2", "m3", "m4", "m6", "adam", "boris", "david", "Denis", "Diogo"),
        *("Gene", "john", "Michael", "paul", "robert"),
    ),
    "dev": ("f5", "shelby", "m7", "quincy"),
    "test": ("f3", "Andrea", "Lee", "ed", "pablo", "travis"),
}
RATES = (120, 220)  # words per minute
PITCHES = (25, 75)  # on espeak-ng's scale from 0 to 100, where 50 is the pitch of the voice
PITCH_RANGES = (20, 80)
EDGE_SECONDS = (0.1, 0.5)  # before and after the speech
REVERBERATION_SECONDS = (0.1, 0.5)  # until the echo has decayed by 60 dB, as from a car to a living room
ECHO_DB = (-20.0, -3.0)  # level of all echoes together, relative to the direct sound
SIGNAL_TO_NOISE_DB = (10.0, 30.0)
NOISE_COLOUR = (0.0, 1.0)  # exponent of 1/f in amplitude: 0 white, 1 brown
PEAK_DB = (-24.0, -1.0)  # peak of the recording, relative to full scale


class EspeakVoices:
    """espeak-ng voices in English accents; `rates` are the lowest and highest words per minute."""

    def __init__(self, rates: tuple[int, int] = RATES):
        self._rates = rates

    def choose(self, split: str, generator: np.random.Generator) -> str:
        """Choose a voice for an utterance of train, dev or test."""
        variant = int(generator.integers(len(VARIANTS[split])))
        accent = ACCENTS[(2 * variant + generator.integers(2)) % len(ACCENTS)]
        return f"{accent}+{VARIANTS[split][variant]}"

    def speak(self, text: str, voice: str, generator: np.random.Generator) -> np.ndarray:
        """Speak at SAMPLE_RATE, without room acoustics."""
        bounds = (self._rates, PITCHES, PITCH_RANGES)
        rate, pitch, pitch_range = (int(generator.integers(low, high, endpoint=True)) for low, high in bounds)
        spoken, spoken_rate = synthesize(text, voice, rate, pitch, pitch_range)
        return resample(np.trim_zeros(spoken), spoken_rate, SAMPLE_RATE)


def speak_split(
    split: str,
    num_utterances: int,
    folder: Path,
    prefix: str,
    compose: Callable[[np.random.Generator], tuple[list[str], str]],
    voices: Any,
) -> Iterator[Utterance]:
    """Write PREFIX-SPLIT-NUMBER.wav files; `compose` returns the words of an utterance and its spoken form.

    `voices` is an EspeakVoices, or an object with the same methods.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for index in tqdm(range(num_utterances), desc=split, disable=None, leave=False):
        # Each utterance has its own generator, so its samples do not depend on earlier ones.
        generator = np.random.default_rng([index, *split.encode()])
        voice = voices.choose(split, generator)
        words, spoken = compose(generator)
        audio = _record(voices.speak(spoken, voice, generator), generator)
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


def _record(speech: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Simulate a recording of the speech by a microphone in a noisy room."""
    before, after = (round(generator.uniform(*EDGE_SECONDS) * SAMPLE_RATE) for _ in range(2))
    audio = add_noise(add_room(np.pad(speech, (before, after)), generator), generator)
    peak = 10 ** (generator.uniform(*PEAK_DB) / 20)
    return audio * (peak / np.abs(audio).max())


def add_room(
    audio: np.ndarray, generator: np.random.Generator, echo_db: tuple[float, float] = ECHO_DB
) -> np.ndarray:
    """Add echoes: exponentially decaying noise, as in an idealized room."""
    seconds = generator.uniform(*REVERBERATION_SECONDS)
    time = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    response = generator.normal(size=len(time)) * 10 ** (-3 * time / seconds)
    response *= 10 ** (generator.uniform(*echo_db) / 20) / np.linalg.norm(response)
    response[0] = 1.0
    size = _fast_size(len(audio) + len(response))
    return np.fft.irfft(np.fft.rfft(audio, size) * np.fft.rfft(response, size), size)[: len(audio)]


def add_noise(audio: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Add stationary noise between white and brown at a random signal-to-noise ratio."""
    size = _fast_size(len(audio))
    frequency = np.maximum(
        np.fft.rfftfreq(size, 1 / SAMPLE_RATE), 50.0
    )  # Hz; limits rumble at lower frequencies
    spectrum = np.fft.rfft(generator.normal(size=size)) * frequency ** -generator.uniform(*NOISE_COLOUR)
    noise = np.fft.irfft(spectrum, size)[: len(audio)]
    ratio = 10 ** (generator.uniform(*SIGNAL_TO_NOISE_DB) / 20)
    return audio + noise * np.sqrt(np.mean(audio**2) / np.mean(noise**2)) / ratio


def _fast_size(size: int) -> int:
    """Return the next power of two, because large prime factors make the FFT ten times slower."""
    return 1 << (size - 1).bit_length()
