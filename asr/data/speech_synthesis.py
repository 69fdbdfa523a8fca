"""Text to speech by espeak-ng, for corpora and tests without recordings: equal requests, equal samples."""

from __future__ import annotations

import ctypes
import difflib
import functools
import importlib
import locale
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from asr.errors import UserError

MAX_CHARACTERS = 10_000  # some fifteen minutes of speech

# Names and values of espeak-ng's speak_lib.h.
_OUTPUT_SYNCHRONOUS = 2  # the callback runs inside espeak_Synth: no thread, no sound card
_DONT_EXIT = 0x8000  # without it a missing data file ends the process
_POSITION_CHARACTER = 1
_UTF8 = 1
_PARAMETERS = {"rate": 1, "volume": 2, "pitch": 3, "pitch_range": 4}
_LIMITS = {"rate": (80, 450), "pitch": (0, 100), "pitch_range": (0, 100)}
_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
_VOLUME = 30  # of 100, where the loud voices clip; some still do at 50
_SEED = 1  # of the breath and noise in voices; any number but 0, which stands for the time of day

_lock = threading.Lock()  # espeak-ng has one global state


def synthesize(
    text: str, voice: str = "en-us", rate: int = 175, pitch: int = 50, pitch_range: int = 50
) -> tuple[np.ndarray, int]:
    """The spoken text: float32 mono audio in [-1, 1], and its sample rate.

    `voice` is one of `list_voices`; `rate` is in words a minute, 80 to 450; `pitch` and `pitch_range` are
    from 0 to 100. The samples depend on nothing but the arguments: not on what was spoken before, not on
    the process.
    """
    if not text.strip() or "\0" in text or len(text) > MAX_CHARACTERS:
        raise UserError(f"cannot speak {text[:40]!r}: expected 1 to {MAX_CHARACTERS:,} characters, not blank")
    _require_voice(voice)
    settings = {"rate": rate, "pitch": pitch, "pitch_range": pitch_range}
    for name, value in settings.items():
        low, high = _LIMITS[name]
        if not low <= value <= high:
            raise UserError(f"{name} = {value}: expected a whole number from {low} to {high}")
    blocks: list[bytes] = []

    @_Callback
    def collect(samples: int | None, num_samples: int, _events: int | None) -> int:
        if samples and num_samples > 0:
            blocks.append(ctypes.string_at(samples, 2 * num_samples))
        return 0

    with _lock, _fresh_library() as (library, sample_rate):
        library.espeak_SetSynthCallback(collect)
        _require_success(library.espeak_SetVoiceByName(voice.encode()), f"voice {voice}")
        for name, value in (settings | {"volume": _VOLUME}).items():
            _require_success(library.espeak_SetParameter(_PARAMETERS[name], value, 0), f"{name} = {value}")
        encoded = text.encode()
        status = library.espeak_Synth(
            encoded, ctypes.c_size_t(len(encoded) + 1), 0, _POSITION_CHARACTER, 0, _UTF8, None, None
        )
        _require_success(status, "speaking")
    return np.frombuffer(b"".join(blocks), dtype=np.int16).astype(np.float32) / 32768, sample_rate


def list_voices(language: str = "en") -> list[str]:
    """Every voice of a language: each of its accents alone (`en-us`) and with each variant (`en-us+f3`)."""
    accents, variants = _installed_voices()
    own = [name for name in accents if name == language or name.startswith(f"{language}-")]
    if not own:
        raise UserError(f"no voice for the language {language!r}; expected a code such as en, de or he")
    return own + [f"{accent}+{variant}" for accent in own for variant in variants]


@contextmanager
def _fresh_library() -> Iterator[tuple[ctypes.CDLL, int]]:
    """espeak-ng, newly loaded, and its sample rate.

    Its noise and the flutter of its voices go on from one utterance to the next, in variables that no call
    resets. Loading the library anew does, at 2 ms.
    """
    loader = _import_loader()
    system = ctypes.CDLL(None)
    system.dlclose.argtypes = [ctypes.c_void_p]
    library = ctypes.CDLL(loader.get_library_path())
    character_type = locale.setlocale(locale.LC_CTYPE)  # espeak-ng sets its own
    try:
        data_path = str(loader.get_data_path()).encode()
        sample_rate = library.espeak_Initialize(_OUTPUT_SYNCHRONOUS, 0, data_path, _DONT_EXIT)
        if sample_rate <= 0:
            raise UserError(
                f"espeak-ng cannot read its data in {loader.get_data_path()}; "
                "install it again: pip install --force-reinstall espeakng-loader"
            )
        library.espeak_ng_SetRandSeed(ctypes.c_long(_SEED))
        system.srand(_SEED)  # some of its voices take their noise from the C library
        yield library, sample_rate
        library.espeak_Terminate()
    finally:
        locale.setlocale(locale.LC_CTYPE, character_type)
        system.dlclose(library._handle)


def _require_success(status: int, what: str) -> None:
    if status != 0:
        raise UserError(f"espeak-ng failed at {what} (status {status})")


def _require_voice(voice: str) -> None:
    """espeak-ng itself takes an unknown variant for none."""
    accents, variants = _installed_voices()
    accent, plus, variant = voice.partition("+")
    for name, known in ((accent, accents), (variant, variants)):
        if name not in known and (plus or known is accents):
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "`list_voices` names them"
            raise UserError(f"unknown voice {voice!r}: there is no {name!r}; {hint}")


@functools.cache
def _installed_voices() -> tuple[list[str], list[str]]:
    """Names of accents and of variants, sorted."""
    data = Path(_import_loader().get_data_path())
    accents = sorted(path.name.lower() for path in (data / "lang").rglob("*") if path.is_file())
    variants = sorted(path.name for path in (data / "voices" / "!v").iterdir())
    return accents, variants


def _import_loader() -> Any:
    try:
        return importlib.import_module("espeakng_loader")
    except ImportError:
        raise UserError(
            "speaking needs espeak-ng, which is not installed; run: pip install espeakng-loader"
        ) from None
