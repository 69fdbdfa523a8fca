"""What is weighed in beside the speech model: files that are named, or that come with the model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pydantic
import torch

from asr.config import Config, load_config
from asr.data.sentences import read_sentences
from asr.decoding.fusion import FusionModel, Together
from asr.decoding.hypothesis import DecodingConfig
from asr.decoding.lexicon import Lexicon, collect_words
from asr.errors import UserError
from asr.system.checkpoint import System, find_model, load_language_model
from asr.transcription.families import find_family

logger = logging.getLogger(__name__)

OWN_DECODING = "decoding.yaml"


@dataclass(frozen=True)
class Knowledge:
    """Files that say what texts are likely or possible, beside the speech model."""

    language_model: str | None = None
    lexicon: str | None = None
    decoding: DecodingConfig | None = None
    """That goes with them; None: the default, with a weight of the language model."""
    min_log_probability: float | None = None
    """As in `OwnDecoding`."""
    trained_for: str = ""

    @property
    def files(self) -> dict[str, Path]:
        """By what they are."""
        found = {}
        if self.language_model is not None:
            path = Path(self.language_model)
            found["language_model"] = path if path.is_file() else find_model(path) / "model.safetensors"
        if self.lexicon is not None:
            found["lexicon"] = Path(self.lexicon)
        return found

    def load(self, system: System, device: torch.device) -> FusionModel | None:
        """What a beam weighs in, on the device of the speech model."""
        parts: list[FusionModel] = []
        if self.language_model is not None:
            language_model = load_language_model(self.language_model, system.tokenizer)
            if isinstance(language_model, torch.nn.Module):
                language_model.to(device)
            parts.append(language_model)
        if self.lexicon is not None:
            words = collect_words(read_sentences(self.lexicon, system.config.text))
            parts.append(Lexicon(system.tokenizer, words))
        return Together(parts) if len(parts) > 1 else parts[0] if parts else None


class OwnDecoding(Config):
    """decoding.yaml in the folder of a model: how it is decoded, unless told otherwise."""

    decoding: DecodingConfig = DecodingConfig()
    """How the text is found."""
    language_model: str | None = None
    """What is weighed in: an ARPA file, or the folder of a language model, in the same folder."""
    lexicon: str | None = None
    """File in the same folder whose words, and no others, are said."""
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
        """What is not as by default."""
        settings = self.decoding.model_dump() | {
            "language_model": self.language_model,
            "lexicon": self.lexicon,
        }
        usual = DecodingConfig().model_dump()
        parts = [f"{name} {value}" for name, value in settings.items() if value != usual.get(name)]
        return ", ".join(parts) or "as by default"

    def find(self, folder: Path) -> Knowledge:
        for key, name in (("language_model", self.language_model), ("lexicon", self.lexicon)):
            if name is not None and not (folder / name).exists():
                raise UserError(
                    f"{folder / OWN_DECODING}: {key} = {name}: not there; copy it there, or remove the line"
                )
        language_model, lexicon = (
            None if name is None else str(folder / name) for name in (self.language_model, self.lexicon)
        )
        return Knowledge(language_model, lexicon, self.decoding, self.min_log_probability, self.trained_for)


def load_own_decoding(model: str | Path) -> OwnDecoding | None:
    """That of a model folder, if it has one."""
    if find_family(model) is not None:
        return None
    path = find_model(model) / OWN_DECODING
    return load_config(OwnDecoding, path) if path.is_file() else None


def find_knowledge(
    model: str | Path,
    language_model: str | None = None,
    lexicon: str | None = None,
    method: object = None,
    pairs: Sequence[str] = (),
) -> Knowledge:
    """The files that were named; where neither these nor a method of decoding were, those of the model.

    `pairs`: key=value, among which may be the method too.
    """
    own = load_own_decoding(model)
    if own is None:
        return Knowledge(language_model, lexicon)
    place = find_model(model)
    method = method or any(pair.partition("=")[0].strip() == "decoding.method" for pair in pairs)
    given = {"language model": language_model, "lexicon": lexicon, "method of decoding": method}
    if named := [what for what, value in given.items() if value]:
        logger.info("decoding: %s is left aside, since a %s is given", place / OWN_DECODING, named[0])
        return Knowledge(language_model, lexicon)
    logger.info("decoding: %s (%s)", own.describe(), place / OWN_DECODING)
    return own.find(place)
