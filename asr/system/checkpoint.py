"""A checkpoint is a folder that describes itself: weights, config, tokenizer, and how far training had come.

    model.safetensors     weights to use
    training.safetensors  what only training needs: moments of the optimizer, raw weights beside an average
    config.yaml           the effective settings
    tokenizer.json
    state.json            step, scores, versions
    decoding.yaml         optional: how the model is decoded, with its language model and lexicon

Folders are written aside and renamed, so that one which exists is whole. Nothing in them is unpickled.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, cast

import pydantic
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from typing_extensions import TypeVar

from asr import __version__
from asr.config import Config, describe_config, dump_config, find_differences, load_config
from asr.data.packed import read_sentences
from asr.decoding.hypothesis import DecodingConfig, FusionModel
from asr.decoding.ngram import Lexicon, ShallowFusion, build_ngram_model, collect_words, read_arpa
from asr.errors import UserError, suggest
from asr.features.front_end import FrontEnd
from asr.files import (
    CHECKOUT,
    describe_missing,
    find_families,
    find_shipped,
    read_limited,
    require_local,
    usual_mode,
)
from asr.models import LanguageModel, Model, SpeechModel, build_model
from asr.models.layers import without_weights
from asr.models.speech_model import merge_low_rank
from asr.system.run_config import RunConfig
from asr.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MODEL_PREFIX = "model."
MAX_STATE_BYTES = 10_000_000
PUBLISHED = ("recipes/*/results/*", "recipes/*/studies/*")  # what `--publish` writes says nothing of the code

ModelType = TypeVar("ModelType", bound=Model, default=SpeechModel, covariant=True)


@dataclass(frozen=True)
class System(Generic[ModelType]):
    """A model and all that turns audio or text into its input: what a checkpoint restores."""

    config: RunConfig
    tokenizer: Tokenizer
    front_end: FrontEnd
    """A default one, which is not used, where the model reads no audio."""
    model: ModelType


def save_checkpoint(
    folder: Path,
    system: System[Model],
    state: Mapping[str, Any],
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write the folder, whole or not at all. `weights` (an average, say) stand for those of the model.

    Versions in `state` stay: a copy of a model was made by what made the model.
    """
    write_checkpoint(folder, system, state, copy_tensors(system, weights))


def copy_tensors(
    system: System[Model],
    weights: Mapping[str, Tensor] | None = None,
    training: Mapping[str, Tensor] | None = None,
) -> dict[str, dict[str, Tensor]]:
    """Copy the tensors of a checkpoint to memory, by file, so that training may go on meanwhile."""
    weights = system.model.state_dict() if weights is None else weights
    tensors = {f"{MODEL_PREFIX}{name}": tensor for name, tensor in weights.items()}
    files = {"model.safetensors": tensors}
    if training is not None:
        files["training.safetensors"] = dict(training)
    # Copies too since safetensors refuses two names for one memory, as tied embeddings have.
    return {
        file: {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in own.items()}
        for file, own in files.items()
    }


def write_checkpoint(
    folder: Path,
    system: System[Model],
    state: Mapping[str, Any],
    files: Mapping[str, dict[str, Tensor]],
) -> None:
    """Write the folder, whole or not at all. `files`: from `copy_tensors`."""
    require_local(folder)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for name, tensors in files.items():
            with usual_mode(temporary / name):
                save_file(tensors, temporary / name)
        (temporary / "config.yaml").write_text(dump_config(system.config), encoding="utf-8")
        system.tokenizer.save(temporary / "tokenizer.json")
        (temporary / "state.json").write_text(json.dumps({**versions(), **state}, indent=2), encoding="utf-8")
        for file in temporary.iterdir():
            _flush_to_disk(file)
        replaced = folder.with_name(f".{folder.name}.replaced.tmp")
        shutil.rmtree(replaced, ignore_errors=True)
        if folder.exists():
            folder.rename(replaced)
        temporary.rename(folder)
        _flush_to_disk(folder.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"{folder}: cannot write this checkpoint ({reason}); those before it are as they were. "
            "Make room and run the same command again: it goes on from the last one"
        ) from None


class BackgroundWriter(ThreadPoolExecutor):
    """Writes checkpoints beside the training, one after the other. The end of its block waits for them."""

    def __init__(self) -> None:
        super().__init__(1)
        self._last: Future[None] | None = None

    def begin(self, write: Callable[[], None]) -> None:
        self._last = self.submit(write)

    def wait(self) -> None:
        """Wait until what was begun is on the disk; raises what went wrong there."""
        if self._last is not None:
            self._last.result()


def remove_unfinished(output_dir: Path) -> None:
    """Remove what a training that was killed while it wrote has left; nobody else may be writing there."""
    for pattern in (".model.*.tmp", "checkpoints/.step-*.tmp"):
        for folder in output_dir.glob(pattern):
            shutil.rmtree(folder, ignore_errors=True)


def load_system(folder: str | Path) -> System:
    """The speech model of a checkpoint, ready to use: in evaluation mode, on the CPU."""
    return require_speech(load_any_system(folder), folder)


def require_speech(system: System[Model], folder: str | Path) -> System:
    """Return the same system, if its model makes text of audio."""
    if not isinstance(system.model, SpeechModel):
        raise UserError(
            f"{folder}: a model of type {system.config.model.type}; expected one of type speech, which makes "
            "one text of a recording"
        )
    return cast(System, system)


def load_any_system(folder: str | Path, *, to_train: bool = False) -> System[Model]:
    """The model of a checkpoint, of whatever kind.

    To train it further, as it was trained so far; else changes of low rank are merged into its weights.
    """
    folder = Path(folder)
    config = RunConfig.load(folder / "config.yaml")
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    front_end = FrontEnd(config.features)
    tensors = dict(read_tensors(folder / "model.safetensors"))
    _require_sizes_of_weights(config, front_end.num_features, len(tokenizer), tensors, folder)
    model = build_model(config.model, front_end.num_features, len(tokenizer))
    model.load_state_dict(_take_weights(model, tensors, MODEL_PREFIX, folder))
    if not to_train:
        merge_low_rank(model)
    return System(config, tokenizer, front_end, model.eval())


def load_state(folder: Path) -> dict[str, Any]:
    path = folder / "state.json"
    text = read_limited(path, MAX_STATE_BYTES, "too large to be the state of a training")
    with contextlib.suppress(ValueError):
        if isinstance(state := json.loads(text), dict):
            return state
    raise UserError(f"{path}: not a JSON object; the checkpoint is damaged, take another one")


def read_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Read the tensors of a file one after the other."""
    try:
        with safe_open(path, framework="pt") as file:
            for name in sorted(file.keys()):
                yield name, file.get_tensor(name)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; give the folder of a run or of a checkpoint") from None
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: not a whole safetensors file ({error}); take another checkpoint") from None


def average_weights(folders: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the models' weights, for `save_checkpoint`."""
    sums: dict[str, Tensor] = {}
    for folder in folders:
        for name, tensor in read_tensors(folder / "model.safetensors"):
            if name.startswith(MODEL_PREFIX):
                sums[name] = sums.get(name, 0) + tensor.double()
    return {name.removeprefix(MODEL_PREFIX): (total / len(folders)).float() for name, total in sums.items()}


def find_checkpoints(output_dir: Path) -> list[Path]:
    """Find the checkpoints of a training, the oldest first."""
    return sorted((output_dir / "checkpoints").glob("step-*"))


def find_model(path: str | Path) -> Path:
    """The folder to load for a run (its final model, else its last checkpoint) or for a checkpoint itself."""
    path = find_shipped(path)
    for folder in (path, path / "model"):
        if (folder / "model.safetensors").is_file():
            return folder
    if checkpoints := find_checkpoints(path):
        return checkpoints[-1]
    expected = "give the output_dir of a training or one of its checkpoints"
    for family in find_families():
        expected = suggest(str(path), family.model_names, f"{expected}, or the name of a {family.name} model")
    raise UserError(f"{path}: no model here; {expected}{describe_missing()}")


@functools.cache
def find_commit() -> str:
    """Find the commit of this package at the first call: the checkout may change while a process runs."""
    return describe_commit(CHECKOUT)


def describe_commit(root: Path) -> str:
    """Name the commit; -dirty where more than published results changed or is new, "unknown" without one."""
    if not (root / ".git").exists():
        return "unknown"

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        outside = [".", *(f":(exclude){path}" for path in PUBLISHED)]
        changed = git("status", "--porcelain", "--untracked-files=all", "--", *outside)
        return git("rev-parse", "--short=12", "HEAD") + "-dirty" * bool(changed)
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def versions() -> dict[str, str]:
    """Versions that made a checkpoint."""
    return {
        "asr": __version__,
        "commit": find_commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _require_sizes_of_weights(
    config: RunConfig, num_features: int, num_tokens: int, tensors: Mapping[str, Tensor], folder: Path
) -> None:
    """Compare the config with the shapes in the file before memory for a model of its sizes is asked for."""
    for key, value, _ in describe_config(config.model):
        if key.endswith("layers") and isinstance(value, int) and value > len(tensors):
            raise UserError(f"{folder}: model.{key} = {value:,}, but there are {len(tensors):,} weights")
    with without_weights():
        _take_weights(build_model(config.model, num_features, num_tokens), tensors, MODEL_PREFIX, folder)


def _take_weights(
    module: torch.nn.Module, tensors: Mapping[str, Tensor], prefix: str, folder: Path
) -> dict[str, Tensor]:
    """The tensors of a module, by its names and of its shapes."""
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    expected = module.state_dict()
    if differing := expected.keys() ^ own.keys():
        name = min(differing)
        kind = "is missing" if name in expected else "is unknown"
        raise UserError(f"{folder}: weight {name} {kind}; is config.yaml that of this model?")
    for name, tensor in own.items():
        if tensor.shape != expected[name].shape:
            raise UserError(
                f"{folder}: {name} has shape {tuple(tensor.shape)}, "
                f"but config.yaml asks for {tuple(expected[name].shape)}"
            )
    return own


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- how a model is decoded: language models and lexica for shallow fusion -----------------------

BUNDLED_DECODING = "decoding.yaml"


class DecodingResources(Config):
    """Files that tell which texts are likely or possible, and how a model is decoded unless told otherwise.

    It is also what decoding.yaml in the folder of a model holds, where files are named as in the same folder.
    """

    decoding: DecodingConfig | None = None
    """How the text is found; null: the default, with a weight of the language model."""
    language_model: str | None = None
    """Added by shallow fusion: an ARPA file, or the folder of a language model."""
    lexicon: str | None = None
    """File of words; these, and no others, can be decoded."""
    min_log_probability: float | None = pydantic.Field(default=None, lt=0)
    """Mean over the tokens of a recording at all speeds, under the decoder where it goes token by token, else
    under CTC. Below, a warning says that this is probably not what the model was trained for; null: never."""
    trained_for: str = ""
    """Description of the training data in a few words, for the warning."""

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

    def describe(self) -> str:
        """The settings that are not the default."""
        decoding = self.decoding or DecodingConfig()
        changed = find_differences(DecodingConfig(), decoding).items()
        settings = [f"{key} {value}" for key, (_, value) in changed]
        settings += [f"{kind} {Path(getattr(self, kind)).name}" for kind in self.files]
        return ", ".join(settings) or "as by default"

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


def load_bundled_decoding(folder: Path) -> DecodingResources | None:
    """Load the decoding that is bundled with a model folder, if it has any."""
    path = folder / BUNDLED_DECODING
    if not path.is_file():
        return None
    bundled, found = load_config(DecodingResources, path), {}
    for key in ("language_model", "lexicon"):
        if (name := getattr(bundled, key)) is not None:
            if name in (".", "..") or Path(name).name != name or not (folder / name).exists():
                raise UserError(
                    f"{path}: {key} = {name}: expected the name of what is in the same folder; copy it "
                    "there, or remove the line"
                )
            found[key] = str(folder / name)
    return bundled.model_copy(update=found)


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
    for path in (language_model, lexicon):
        if path is not None and not find_shipped(path).exists():
            raise UserError(f"{path}: no such file or folder")
    bundled = None if folder is None else load_bundled_decoding(folder)
    named = DecodingResources(language_model=language_model, lexicon=lexicon)
    method = method or any(pair.partition("=")[0].strip() == "decoding.method" for pair in pairs)
    if bundled is None:
        return named
    if language_model or lexicon or method:
        logger.info("decoding: %s/decoding.yaml is ignored, since other decoding is asked for", folder)
        return named
    logger.info("decoding: %s (%s/decoding.yaml)", bundled.describe(), folder)
    return bundled


def load_language_model(path: str | Path, tokenizer: Tokenizer) -> FusionModel:
    """Load a language model for shallow fusion over the tokens of `tokenizer`, which is the speech model's.

    `path` is an ARPA file, of tokens or of words, or the folder of a language model with that tokenizer. The
    same characters or words may have other numbers there, which follow how frequent they were in the texts.
    """
    path = Path(path)
    if path.is_file():
        arpa = read_arpa(path)
        try:
            return build_ngram_model(arpa, tokenizer)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
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
            f"{path}: its tokenizer ({own.type}, {len(own)} tokens) is not that of the speech model "
            f"({tokenizer.type}, {len(tokenizer)}); train it with the same data.train, text and tokenizer"
        )
    ids = {token: id for id, token in enumerate(own.tokens)}
    system.model.renumber([ids[token] for token in tokenizer.tokens])
    return system.model
