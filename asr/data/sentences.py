"""Read training sentences from manifests, folders of shards and text files, normalized as for training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from asr.data.manifest_readers import read_data
from asr.data.text_lines import read_text_lines
from asr.errors import UserError
from asr.text.normalization import TextConfig, normalize


def read_sentences(
    path: str | Path, config: TextConfig, max_packed: int | None = None, num_texts: int = 1
) -> Iterator[str]:
    """Read a manifest, at most `max_packed` utterances of a folder of shards, or a .txt file.

    Each utterance has `num_texts` texts.
    """
    if Path(path).suffix == ".txt":
        return read_text_file(path, config)
    texts = (
        (f"text of utterance {utterance.id}", text)
        for utterance in read_data(path, max_packed=max_packed)
        for text in (utterance.find_texts(num_texts) if num_texts > 1 else [utterance.text])
    )
    return _normalize(texts, config)


def read_text_file(path: str | Path, config: TextConfig) -> Iterator[str]:
    """Yield each line of text that is not blank."""
    return _normalize(read_text_lines(path), config)


def _normalize(texts: Iterable[tuple[str, str | None]], config: TextConfig) -> Iterator[str]:
    """Normalize as for training; texts that become empty are left out."""
    for place, text in texts:
        try:
            sentence = normalize(text or "", config.training)
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
        if sentence:
            yield sentence
