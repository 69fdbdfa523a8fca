"""Decoding resources: how to decode a model, and the language model and word list to combine it with."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pydantic

from asr.config import Config, find_differences, load_config
from asr.decoding.hypothesis import DecodingConfig, FusionModel
from asr.errors import UserError, shorten
from asr.families import Family, find_model
from asr.files import find_shipped
from asr.text.normalization import TextConfig
from asr.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

BUNDLED_DECODING = "decoding.yaml"


class DecodingResources(Config):
    """Default decoding settings of a model, and files that say which texts are likely or possible.

    A model folder may contain them as decoding.yaml, which names files in the same folder.
    """

    decoding: DecodingConfig | None = None
    """Settings of the search; null: the default, with a weight for the language model."""
    language_model: str | None = None
    """Language model for shallow fusion: an ARPA file, or the folder of a language model."""
    words: str | None = None
    """File of words; only these words can be decoded."""
    min_log_probability: float | None = pydantic.Field(default=None, lt=0)
    """Limit for the mean log-probability of the tokens of a recording at all speeds, under an autoregressive
    decoder or else CTC. Below it, a warning says that the model was not trained for such audio."""
    trained_for: str = ""
    """Description of the training data in a few words, for the warning."""

    @property
    def files(self) -> dict[str, Path]:
        """The files by kind: language_model, lexicon."""
        found = {}
        if self.language_model is not None:
            path = Path(self.language_model)
            found["language_model"] = path if path.is_file() else find_model(path) / "model.safetensors"
        if self.words is not None:
            found["words"] = Path(self.words)
        return found

    def describe(self) -> str:
        """Describe the settings that differ from the defaults."""
        decoding = self.decoding or DecodingConfig()
        changed = find_differences(DecodingConfig(), decoding).items()
        settings = [
            f"{key} {value if isinstance(value, str) else shorten(value)}" for key, (_, value) in changed
        ]
        settings += [f"{kind} {Path(getattr(self, kind)).name}" for kind in self.files]
        return ", ".join(settings) or "as by default"

    def load(self, tokenizer: Tokenizer, text: TextConfig, device: torch.device) -> FusionModel:
        """Load the files, at least one of which must be set, onto the device of the speech model."""
        import torch

        from asr.data.sentences import read_sentences
        from asr.language_models.fusion import ShallowFusion
        from asr.language_models.ngram import WordList, read_word_list

        parts: list[FusionModel] = []
        if self.language_model is not None:
            language_model = load_language_model(self.language_model, tokenizer)
            if isinstance(language_model, torch.nn.Module):
                language_model.to(device)
            parts.append(language_model)
        if self.words is not None:
            words = read_word_list(self.words, read_sentences(self.words, text))
            parts.append(WordList(tokenizer, words))
        return parts[0] if len(parts) == 1 else ShallowFusion(parts)


def load_bundled_decoding(folder: Path) -> DecodingResources | None:
    """Load decoding.yaml from a model folder; None if there is none."""
    path = folder / BUNDLED_DECODING
    if not path.is_file():
        return None
    bundled, found = load_config(DecodingResources, path), {}
    for key in ("language_model", "words"):
        if (name := getattr(bundled, key)) is not None:
            if name in (".", "..") or Path(name).name != name or not (folder / name).exists():
                raise UserError(
                    f"{path}: {key} = {name}: expected the name of a file or folder next to it; copy it "
                    "there, or remove the line"
                )
            found[key] = str(folder / name)
    return bundled.model_copy(update=found)


def find_resources(
    folder: Path | None,
    language_model: str | None = None,
    words: str | None = None,
    method: object = None,
    pairs: Sequence[str] = (),
    family: Family | None = None,
) -> DecodingResources:
    """Return the named files or, if neither files nor a decoding method are named, the model's own.

    `folder` is the model's, or None for a published model of a `family`. `pairs` are key=value settings,
    which may name the decoding method too.
    """
    for path in (language_model, words):
        if path is not None and not os.path.exists(find_shipped(path)):
            raise UserError(f"{path}: no such file or folder")
    bundled = None if folder is None else load_bundled_decoding(folder)
    usual = None if family is None else family.decoding
    named = DecodingResources(decoding=usual, language_model=language_model, words=words)
    method = method or any(pair.partition("=")[0].strip() == "decoding.method" for pair in pairs)
    if bundled is None:
        return named
    if language_model or words or method:
        logger.info("decoding: %s/decoding.yaml is ignored, because other decoding is requested", folder)
        return named
    logger.debug("decoding: %s (%s/decoding.yaml)", bundled.describe(), folder)
    return bundled


def load_language_model(path: str | Path, tokenizer: Tokenizer) -> FusionModel:
    """Load a language model for shallow fusion over the tokens of the speech model's `tokenizer`.

    `path` is an ARPA file of tokens or words, or the folder of a language model with the same tokens. Tokens
    that are characters or words may be numbered differently there, because ids follow frequency in the texts.
    """
    from asr.language_models.ngram import build_ngram_model, read_arpa

    path = Path(path)
    if path.is_file():
        arpa = read_arpa(path)
        try:
            return build_ngram_model(arpa, tokenizer)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
    from asr.language_models.language_model import LanguageModel
    from asr.system.system import load_any_system

    system = load_any_system(find_model(path))
    own = system.tokenizer
    if not isinstance(system.model, LanguageModel):
        raise UserError(
            f"{path}: a model of type {system.config.model.type}; expected an ARPA file or a run with "
            "model.type: language"
        )
    if own == tokenizer:
        return system.model
    is_numbering = own.type == tokenizer.type in ("characters", "words")
    if not is_numbering or set(own.tokens) != set(tokenizer.tokens):
        raise UserError(
            f"{path}: its tokenizer ({own.type}, {len(own)} tokens) differs from the speech model's "
            f"({tokenizer.type}, {len(tokenizer)}); train it with the same data.train, text and tokenizer"
        )
    ids = {token: id for id, token in enumerate(own.tokens)}
    system.model.renumber([ids[token] for token in tokenizer.tokens])
    return system.model
