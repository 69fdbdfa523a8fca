"""Sentences to learn from: the transcripts of a manifest, or the lines of a plain text file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from asr.data.manifest import read_manifest
from asr.data.text_lines import read_text_lines
from asr.errors import UserError
from asr.text.normalization import TextConfig, normalize_for_training


def read_sentences(path: str | Path, config: TextConfig) -> Iterator[str]:
    """Of a manifest, or of a file named .txt."""
    if Path(path).suffix == ".txt":
        return read_text_file(path, config)
    texts = ((f"text of utterance {utterance.id}", utterance.text) for utterance in read_manifest(path))
    return _normalize(texts, config)


def read_text_file(path: str | Path, config: TextConfig) -> Iterator[str]:
    """Each line of UTF-8 text that is not blank."""
    return _normalize(read_text_lines(path), config)


def _normalize(texts: Iterable[tuple[str, str | None]], config: TextConfig) -> Iterator[str]:
    """As for training; what is empty then is passed over."""
    for place, text in texts:
        try:
            sentence = normalize_for_training(text or "", config)
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
        if sentence:
            yield sentence
