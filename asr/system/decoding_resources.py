"""Language models and lexica for shallow fusion: found, loaded, estimated, bundled with a model."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pydantic
import torch

from asr.config import Config, dump_config, load_config
from asr.data.sentences import read_sentences
from asr.decoding.hypothesis import DecodingConfig, FusionModel
from asr.decoding.ngram import (
    Arpa,
    Lexicon,
    ShallowFusion,
    build_ngram_model,
    collect_words,
    estimate_ngrams,
    read_arpa,
    token_vocabulary,
    write_arpa,
)
from asr.errors import UserError
from asr.files import replace_file
from asr.models import LanguageModel, Model
from asr.system.checkout import find_shipped
from asr.system.checkpoint import System, find_model, load_any_system
from asr.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

BUNDLED_DECODING = "decoding.yaml"
LANGUAGE_MODEL, NGRAM_FILE, LEXICON_FILE = "language_model", "ngrams.arpa", "lexicon.txt"
NGRAMS = "ngrams"  # name of the n-grams of training texts, among language models
ORDER = {"words": 3, "tokens": 6}


@dataclass(frozen=True)
class DecodingResources:
    """Files that tell which texts are likely or possible, and how to decode with them."""

    language_model: str | None = None
    lexicon: str | None = None
    decoding: DecodingConfig | None = None
    """Settings that go with them; None: the default, with a weight of the language model."""
    min_log_probability: float | None = None
    """As in `BundledDecoding`."""
    trained_for: str = ""

    @property
    def files(self) -> dict[str, Path]:
        """List the files by their kind."""
        found = {}
        if self.language_model is not None:
            path = Path(self.language_model)
            found["language_model"] = path if path.is_file() else find_model(path) / "model.safetensors"
        if self.lexicon is not None:
            found["lexicon"] = Path(self.lexicon)
        return found

    def load(self, system: System, device: torch.device) -> FusionModel | None:
        """Load them all, on the device of the speech model."""
        parts: list[FusionModel] = []
        if self.language_model is not None:
            language_model = load_language_model(self.language_model, system.tokenizer)
            if isinstance(language_model, torch.nn.Module):
                language_model.to(device)
            parts.append(language_model)
        if self.lexicon is not None:
            words = collect_words(read_sentences(self.lexicon, system.config.text))
            parts.append(Lexicon(system.tokenizer, words))
        return ShallowFusion(parts) if len(parts) > 1 else parts[0] if parts else None


class BundledDecoding(Config):
    """decoding.yaml in the folder of a model: how it is decoded, unless told otherwise."""

    decoding: DecodingConfig = DecodingConfig()
    """How the text is found."""
    language_model: str | None = None
    """Added by shallow fusion: an ARPA file, or the folder of a language model, in the same folder."""
    lexicon: str | None = None
    """File in the same folder; its words, and no others, can be decoded."""
    min_log_probability: float | None = pydantic.Field(default=None, lt=0)
    """Mean over the tokens of a recording at all speeds, under the decoder where it goes token by token, else
    under CTC. Below, a warning says that this is probably not what the model was trained for; null: never."""
    trained_for: str = ""
    """What that is, in a few words, for the warning."""

    @pydantic.field_validator("language_model", "lexicon")
    @classmethod
    def _is_here(cls, name: str | None) -> str | None:
        if name is not None and (name in (".", "..") or Path(name).name != name):
            raise ValueError("expected the name of what is in the same folder, without /")
        return name

    def describe(self) -> str:
        """The settings that are not the default."""
        settings = self.decoding.model_dump() | {
            "language_model": self.language_model,
            "lexicon": self.lexicon,
        }
        usual = DecodingConfig().model_dump()
        parts = [f"{name} {value}" for name, value in settings.items() if value != usual.get(name)]
        return ", ".join(parts) or "as by default"

    def find_resources(self, folder: Path) -> DecodingResources:
        for key, name in (("language_model", self.language_model), ("lexicon", self.lexicon)):
            if name is not None and not (folder / name).exists():
                raise UserError(
                    f"{folder / BUNDLED_DECODING}: {key} = {name}: not there; copy it there, or remove "
                    "the line"
                )
        language_model, lexicon = (
            None if name is None else str(folder / name) for name in (self.language_model, self.lexicon)
        )
        return DecodingResources(
            language_model, lexicon, self.decoding, self.min_log_probability, self.trained_for
        )


def load_bundled_decoding(folder: Path) -> BundledDecoding | None:
    """Load the decoding settings bundled with a model folder, if it has any."""
    path = folder / BUNDLED_DECODING
    return load_config(BundledDecoding, path) if path.is_file() else None


def find_resources(
    folder: Path | None,
    language_model: str | None = None,
    lexicon: str | None = None,
    method: object = None,
    pairs: Sequence[str] = (),
) -> DecodingResources:
    """Find the files that were named; without these and a decoding method, those bundled with the model.

    `folder`: of the model; None: it was not trained here. `pairs`: key=value, which may name the method too.
    """
    if language_model is not None and not find_shipped(language_model).exists():
        raise UserError(f"{language_model}: not there; expected an ARPA file or the folder of a run")
    if lexicon is not None and not os.path.isfile(lexicon):
        raise UserError(f"{lexicon}: no such file; expected one with the words that may occur")
    bundled = None if folder is None else load_bundled_decoding(folder)
    if folder is None or bundled is None:
        return DecodingResources(language_model, lexicon)
    method = method or any(pair.partition("=")[0].strip() == "decoding.method" for pair in pairs)
    given = {"language model": language_model, "lexicon": lexicon, "decoding method": method}
    if named := [name for name, value in given.items() if value]:
        logger.info("decoding: %s is ignored, since a %s is given", folder / BUNDLED_DECODING, named[0])
        return DecodingResources(language_model, lexicon)
    logger.info("decoding: %s (%s)", bundled.describe(), folder / BUNDLED_DECODING)
    return bundled.find_resources(folder)


def load_language_model(path: str | Path, tokenizer: Tokenizer) -> FusionModel:
    """Load a language model for shallow fusion over the tokens of `tokenizer`, which is the speech model's.

    `path` is an ARPA file, of tokens or of words, or the folder of a language model with that tokenizer. The
    same characters or words may have other numbers there, which follow how frequent they were in the texts.
    """
    path = Path(path)
    if path.is_file():
        try:
            return build_ngram_model(read_arpa(path), tokenizer)
        except UserError as error:
            raise UserError(f"{path}: {error}".replace(f"{path}: {path}", str(path), 1)) from None
    system = load_any_system(find_model(path))
    if not isinstance(system.model, LanguageModel):
        raise UserError(
            f"{path}: a model of type {system.config.model.type}; expected a language model, that is, "
            "an ARPA file or a run with model.type: language"
        )
    if system.tokenizer != tokenizer:
        own = system.tokenizer
        if (
            own.type == tokenizer.type
            and own.type in ("characters", "words")
            and set(own.tokens) == set(tokenizer.tokens)
        ):
            ids = {token: id for id, token in enumerate(own.tokens)}
            system.model.renumber([ids[token] for token in tokenizer.tokens])
            return system.model
        raise UserError(
            f"{path}: its tokenizer ({system.tokenizer.type}, {len(system.tokenizer)} tokens) is not that of "
            f"the speech model ({tokenizer.type}, {len(tokenizer)}); train it with the same data.train, text "
            "and tokenizer, or put the tokenizer.json of the speech model, without its line fingerprint, "
            "into its output_dir before"
        )
    return system.model


# --- of training texts ---------------------------------------------------------------------------


def build_resources(
    system: System, texts: Sequence[str], language_models: Sequence[Path]
) -> dict[str, FusionModel]:
    """Build, by name, a lexicon of the texts with n-grams of them, and with each language model."""
    lexicon = Lexicon(system.tokenizer, collect_words(texts))
    models = {NGRAMS: build_ngram_model(estimate_arpa(system, texts), system.tokenizer)}
    loaded = {folder.name: load_language_model(folder, system.tokenizer) for folder in language_models}
    return {name: ShallowFusion([model, lexicon]) for name, model in {**models, **loaded}.items()}


def estimate_arpa(system: System[Model], texts: Sequence[str]) -> Arpa:
    """N-grams of words where a token stands between words, else of tokens."""
    tokenizer = system.tokenizer
    if tokenizer.space_id is not None:
        return estimate_ngrams([text.split() for text in texts], ORDER["words"], [])
    tokens = token_vocabulary(tokenizer.tokens)
    lines = [[tokens[id] for id in tokenizer.encode(text)] for text in texts]
    return estimate_ngrams(lines, ORDER["tokens"], tokens)


def write_lexicon(folder: Path, texts: Sequence[str]) -> str:
    """Write the words of the texts; returns the name of the file."""
    with replace_file(folder / LEXICON_FILE) as file:
        file.writelines(f"{word}\n".encode() for word in collect_words(texts))
    return LEXICON_FILE


def write_ngrams(folder: Path, system: System[Model], texts: Sequence[str]) -> str:
    """Write the n-grams of the texts; returns the name of the file."""
    write_arpa(folder / NGRAM_FILE, estimate_arpa(system, texts))
    return NGRAM_FILE


def write_bundled_decoding(folder: Path, bundled: BundledDecoding) -> None:
    with replace_file(folder / BUNDLED_DECODING) as file:
        file.write(dump_config(bundled).encode())
    logger.info("decoding: %s", bundled.describe())


def copy_resources(bundled: BundledDecoding, source: Path, folder: Path) -> None:
    for name in filter(None, (bundled.language_model, bundled.lexicon)):
        copy = shutil.copytree if (source / name).is_dir() else shutil.copyfile
        copy(source / name, folder / name)
