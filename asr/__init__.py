"""Speech recognition: run dataset recipes, transcribe audio files, score WER."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asr.errors import UserError as UserError
    from asr.scoring.counting import score as score
    from asr.transcription.transcribe import load_model as load_model
    from asr.transcripts.transcript import Segment as Segment, Transcript as Transcript, Word as Word

__version__ = "0.1.0"

# What people use most, and the module that it comes from: imported when asked for, since torch takes seconds.
_PUBLIC = {
    "Segment": "asr.transcripts.transcript",
    "Transcript": "asr.transcripts.transcript",
    "UserError": "asr.errors",
    "Word": "asr.transcripts.transcript",
    "load_model": "asr.transcription.transcribe",
    "score": "asr.scoring.counting",
}

__all__ = ["Segment", "Transcript", "UserError", "Word", "__version__", "load_model", "score", "train"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    if name == "train":  # a package, which can be called
        return importlib.import_module("asr.train")
    raise AttributeError(f"module 'asr' has no attribute {name!r}")
