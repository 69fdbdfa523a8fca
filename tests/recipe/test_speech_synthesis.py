"""Speech that depends on its request alone; voices that differ; clear words for wrong requests."""

from __future__ import annotations

import locale
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from asr.errors import UserError
from asr.recipe import pronounce, synthesize

# Plain, with breath from espeak-ng's generator, with noise from the C library's, by the Klatt synthesizer.
VOICES = ["en-us", "en-gb-scotland+f3", "en-us+whisperf", "en+Reed", "en-us+klatt2", "he"]


DIGEST = """
import hashlib, sys
from asr.recipe import synthesize
def digest(voice):
    return hashlib.sha256(synthesize("one two three", voice)[0].tobytes()).hexdigest()
"""


def test_samples_depend_on_the_request_alone() -> None:
    scope: dict[str, Any] = {}
    exec(DIGEST, scope)
    digest = scope["digest"]
    forwards = {voice: digest(voice) for voice in VOICES}
    backwards = {voice: digest(voice) for voice in reversed(VOICES)}
    command = [sys.executable, "-c", DIGEST + "for voice in sys.argv[1:]: print(digest(voice))", *VOICES[2:]]
    other_process = subprocess.run(command, check=True, capture_output=True, text=True)
    assert forwards == backwards
    assert other_process.stdout.split() == [forwards[voice] for voice in VOICES[2:]]
    assert len(set(forwards.values())) == len(VOICES)


def test_audio_is_sane() -> None:
    audio, sample_rate = synthesize("zero one two three four five six seven eight nine")
    assert sample_rate == 22_050 and audio.dtype == np.float32 and audio.ndim == 1
    assert 2 < len(audio) / sample_rate < 5
    assert 0.05 < np.abs(audio).max() < 0.99


def test_rate_pitch_and_range_are_heard() -> None:
    slow, _ = synthesize("one two three four", rate=120)
    fast, _ = synthesize("one two three four", rate=240)
    assert len(slow) > 1.5 * len(fast)
    low, high = (estimate_pitch(*synthesize("nine one nine", pitch=pitch)) for pitch in (10, 90))
    assert high > 1.3 * low
    flat, lively = (synthesize("nine one nine", pitch_range=value)[0] for value in (0, 100))
    assert len(flat) != len(lively) or not np.array_equal(flat, lively)


def estimate_pitch(audio: np.ndarray, sample_rate: int) -> float:
    """Hz, by the lag at which the audio resembles itself most, 50 to 400 Hz."""
    spectrum = np.fft.rfft(audio, 2 * len(audio))
    correlation = np.fft.irfft(np.abs(spectrum) ** 2)
    shortest, longest = sample_rate // 400, sample_rate // 50
    return sample_rate / (shortest + np.argmax(correlation[shortest:longest]))


def test_words_are_pronounced_one_by_one() -> None:
    """As espeak-ng's own program has them (`espeak-ng -v en-us -q --ipa --sep=_ tomato`), without stress."""
    words = ["tomato", "READ", "two words", "...", "thing"]
    spoken = ["t ə m eɪ ɾ oʊ", "ɹ iː d", "t uː w ɜː d z", "", "θ ɪ ŋ"]
    assert pronounce(words, "en-us") == [tuple(phones.split()) for phones in spoken]
    assert pronounce(["tomato"], "en") == [("t", "ə", "m", "ɑː", "t", "əʊ")]


def test_the_locale_stays() -> None:
    before = locale.setlocale(locale.LC_ALL)
    synthesize("one")
    assert locale.setlocale(locale.LC_ALL) == before


@pytest.mark.parametrize("voice", ["en-uss", "en-us+f33", "en-us+", "en-us+../../en"])
def test_unknown_voices(voice: str) -> None:
    """espeak-ng itself would take another one."""
    with pytest.raises(UserError, match=rf"unknown voice '{re.escape(voice)}': there is no "):
        synthesize("one", voice)
