"""Checkpoints of Whisper: folders of Hugging Face, single files, and runs that fine-tuned one."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

import asr.whisper
from asr.errors import UserError, shorten, suggest
from asr.files import make_folder, replace_file, usual_mode
from asr.whisper.encoder_decoder import WhisperSystem
from asr.whisper.family import (
    NAMES,
    WhisperDecoderConfig,
    WhisperEncoderConfig,
    decoding,
    find_hub_name,
    find_run,
)
from asr.whisper.sizes import WhisperSizes
from asr.whisper.weights import (
    build_sizes,
    get_weights,
    make_system,
    name_sizes,
    rename_weights,
    split_weights,
)
from asr.whisper.whisper_tokenizer import (
    name_tokens,
    order_tokens,
    read_huggingface_vocabulary,
    read_json,
    read_names,
    write_huggingface_vocabulary,
)

if TYPE_CHECKING:
    from asr.audio.segmentation import SegmentationConfig
    from asr.config import Precision
    from asr.decoding.hypothesis import ChecksConfig
    from asr.models.layers import Net
    from asr.system.run_config import RunConfig
    from asr.system.system import System
    from asr.text.tokenizer import Tokenizer
    from asr.transcription.transcribe import Recognizer

log = logging.getLogger(__name__)

PATTERNS = ["*.json", "model.safetensors", "model-*.safetensors"]  # to fetch of a model on the hub
PICKLED = "pytorch_model.bin"
OUTPUT = "proj_out.weight"  # the embeddings once more
MAPPINGS = 8  # of each file


def load_whisper(source: str | Path) -> WhisperSystem:
    """Load a model in evaluation mode, on the CPU; weights stay mapped from the file, in its precision."""
    path = find_files(source)
    if path.is_file():
        from asr.whisper.single_files import read_file

        return read_file(path)
    if (path / "config.json").is_file():
        return read_huggingface(path)
    if (folder := find_run(path)) is not None:
        return _read_run(folder)
    raise UserError(
        f"{path}: no Whisper model in this folder; expected one of Hugging Face (config.json, "
        "model.safetensors), or the run directory of a fine-tuned one"
    )


# --- what the core asks of a family -----------------------------------------------------------------


def load(
    source: str | Path | WhisperSystem,
    device: str = "auto",
    precision: Precision = "auto",
    segmentation: SegmentationConfig | None = None,
    checks: ChecksConfig | None = None,
) -> Recognizer:
    """A recognizer, as `asr.load_model` wraps it."""
    from asr.system.decoding_resources import DecodingResources
    from asr.transcription.transcribe import Recognizer
    from asr.whisper.manners import WhisperManners

    system = source if isinstance(source, WhisperSystem) else load_whisper(source)
    resources = DecodingResources(decoding=decoding)
    given = device, precision, segmentation, checks
    return Recognizer(system, *given, resources=resources, manners=WhisperManners, family=asr.whisper)


def describe(source: str) -> dict[str, Any]:
    """Describe a model and its sizes."""
    system = load_whisper(source)
    weights = get_weights(system).values()
    dtypes = {str(weight.dtype).removeprefix("torch.") for weight in weights}
    return {
        "files": str(find_files(source)),
        "parameters": sum(weight.numel() for weight in weights),
        "precision": ", ".join(sorted(dtypes)),
        "languages": "many" if system.sizes.is_multilingual else "English",
        **system.sizes.model_dump(),
    }


def convert(source: str, target: Path, dtype: torch.dtype | None) -> None:
    """Write a model as a folder of Hugging Face, or, to a target `.pt`, as a file of openai-whisper."""
    from asr.system.shipping import round_weights

    system = load_whisper(source)
    weights = get_weights(system)
    if dtype is not None:
        weights = round_weights(weights, dtype)
    if target.suffix != ".pt":
        write_model(target, system, weights)
        return
    if target.exists():
        raise UserError(f"{target}: exists already; give a new file")
    tree = {"dims": name_sizes(system.sizes, "OpenAI"), "model_state_dict": split_weights(weights)}
    with replace_file(target) as file:
        torch.save(tree, file)


def find_weights(source: str | Path) -> Path:
    """A file that changes when the model does."""
    path = find_files(source)
    if path.is_file():
        return path
    folder = path if (path / "config.json").exists() else find_run(path) or path
    return next(iter(_find_weights(folder)), folder / "config.json")


# --- the hub ----------------------------------------------------------------------------------------


def find_files(source: str | Path) -> Path:
    """The file or folder of a model; for a name on the hub, its folder in the cache, fetched if need be."""
    if Path(source).exists():
        return Path(source)
    if (name := find_hub_name(str(source))) is None:
        raise UserError(
            f"{source}: no such file or folder, and no name of a Whisper model; give the path of one, its "
            f"name on the hub, such as openai/whisper-base, or one of {', '.join(NAMES)}"
        )
    return _fetch(name)


def _fetch(name: str) -> Path:
    """Fetch a model from the hub, unless it is in the cache."""
    from asr.hub import fetch_model

    near = "" if name in NAMES.values() else suggest(name, NAMES.values(), "")
    hint = (
        f"{near and '; '}{near}. Run `hf download {name}` where there is a network, or give the path of a "
        "Whisper model (--model, or ASR_MODEL in the environment)"
    )
    return fetch_model(
        name,
        PATTERNS,
        lambda folder: (folder / "config.json").is_file() and bool(_find_weights(folder)),
        lambda: log.info("%s is not in the cache of Hugging Face yet; fetching it", name),
        hint,
    )


# --- Hugging Face -----------------------------------------------------------------------------------


def read_huggingface(folder: Path) -> WhisperSystem:
    """Read config.json, weights as safetensors, and a vocabulary."""
    settings, source = read_json(folder / "config.json"), str(folder / "config.json")
    generation = folder / "generation_config.json"
    heads = read_json(generation).get("alignment_heads") if generation.is_file() else None
    sizes = build_sizes(settings, str(folder), "Hugging Face", alignment_heads=heads or None)
    for name, expected in _name_constants(sizes).items():
        if (value := settings.get(name, expected)) != expected:
            raise UserError(f"{source}: {name} is {shorten(value)}, but Whisper has {shorten(expected)}")
    theirs = {name.removeprefix("model."): weight for name, weight in _read_weights(folder).items()}
    output, embedding = theirs.pop(OUTPUT, None), theirs.get("decoder.embed_tokens.weight")
    if not (output is None or embedding is None or torch.equal(output.float(), embedding.float())):
        raise UserError(f"{folder}: {OUTPUT} differs from the embeddings; in Whisper they are the same")
    weights = rename_weights(sizes, theirs, str(folder), "Hugging Face")
    return make_system(folder, sizes, read_huggingface_vocabulary(folder), weights)


def write_model(folder: Path, system: WhisperSystem, weights: Mapping[str, Tensor]) -> None:
    """Write a folder that transformers reads too. The config comes last: a folder with one is complete."""
    sizes, tokenizer = system.sizes, system.tokenizer
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), tokenizer.end)
    ids["decoder_start_token_id"] = tokenizer.start
    generation: dict[str, Any] = {**ids, "alignment_heads": sizes.alignment_heads, "return_timestamps": False}
    generation |= {"no_timestamps_token_id": tokenizer.no_times, "is_multilingual": sizes.is_multilingual}
    if sizes.is_multilingual:
        generation["lang_to_id"] = {f"<|{code}|>": id for code, id in tokenizer.languages.items()}
        generation["task_to_id"] = tokenizer.tasks
    special = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "<|endoftext|>")
    processor = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": sizes.num_mels}
    config = {"architectures": ["WhisperForConditionalGeneration"], **ids, **_name_constants(sizes)}
    trees = {
        "preprocessor_config.json": processor,
        "tokenizer_config.json": {"tokenizer_class": "WhisperTokenizer", **special},
        "generation_config.json": generation,
        "config.json": config | name_sizes(sizes, "Hugging Face"),
    }
    make_folder(folder)
    if any(folder.iterdir()):
        raise UserError(f"{folder}: is not empty; give a new folder")
    theirs = {f"model.{name}": weight for name, weight in split_weights(weights, "Hugging Face").items()}
    try:
        with usual_mode(folder / "model.safetensors"):
            save_file(theirs, folder / "model.safetensors", {"format": "pt"})
        write_huggingface_vocabulary(folder, tokenizer)
        for file, tree in trees.items():
            (folder / file).write_text(json.dumps(tree, indent=2), encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder}: cannot write a model there ({error})") from None


def _name_constants(sizes: WhisperSizes) -> dict[str, Any]:
    """Constants of Hugging Face's config that every Whisper has."""
    return {
        "model_type": "whisper",
        "activation_function": "gelu",
        "scale_embedding": False,
        "encoder_ffn_dim": 4 * sizes.dim,
        "decoder_ffn_dim": 4 * sizes.dim,
    }


def _find_weights(folder: Path) -> list[Path]:
    """The files of the weights; none where there are none."""
    patterns = ("model.safetensors", "model-*-of-*.safetensors", PICKLED)
    return next((found for pattern in patterns if (found := sorted(folder.glob(pattern)))), [])


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of all files, mapped in parts: each leaves the memory with the last of its tensors."""
    if not (paths := _find_weights(folder)):
        raise UserError(f"{folder}: no weights; expected model.safetensors or {PICKLED} beside config.json")
    if paths[0].name == PICKLED:
        from asr.system.pickles import check_tensors, read_pickled

        return check_tensors(read_pickled(paths[0]), paths[0], tied=OUTPUT)
    weights: dict[str, Tensor] = {}
    for path in paths:
        mapped = math.inf
        try:
            for name in safe_open(path, framework="pt").keys():  # noqa: SIM118 (no mapping)
                if mapped > path.stat().st_size / MAPPINGS:
                    opened, mapped = safe_open(path, framework="pt"), 0
                weights[name] = opened.get_tensor(name)
                mapped += weights[name].nbytes
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path}: not a complete safetensors file ({error}); download it again") from None
    return weights


# --- fine-tuning ------------------------------------------------------------------------------------

TOKEN_WEIGHTS = ("decoder.embedding.weight", "decoder.output.weight")  # a row for each token


def inherit_tokenizer(config: RunConfig) -> Tokenizer | None:
    """The tokenizer of `config.start_from`; None where the run learns its own."""
    from asr.text.tokenizer import SPECIAL_TOKENS, Tokenizer

    if not config.keep_tokenizer or config.tokenizer.type != "whisper":
        return None
    return Tokenizer("whisper", SPECIAL_TOKENS + name_tokens(load_whisper(str(config.start_from)).tokenizer))


def inherit_run(config: RunConfig, tokenizer: Tokenizer) -> System[Net]:
    """A system with the weights of a Whisper model in those of its parts that are of type whisper."""
    from asr.models.adapting import is_low_rank
    from asr.models.speech_model import SpeechModelConfig, build_model
    from asr.system.system import System
    from asr.train.start_from import inherit_settings, load_weights

    source = load_whisper(str(config.start_from))
    sections = {name: getattr(config.model, name, None) for name in ("encoder", "decoder")}
    parts = tuple(f"{name}." for name, own in sections.items() if getattr(own, "type", "") == "whisper")
    if not parts:
        raise UserError(
            f"start_from = {config.start_from} is a Whisper model, but neither model.encoder nor "
            "model.decoder has type: whisper; set it"
        )
    if config.features != source.front_end.config:
        raise UserError(
            f"start_from = {config.start_from} was trained on other features; set features: "
            f"{{convention: whisper, num_mels: {source.sizes.num_mels}}} and nothing else there"
        )
    encoder, decoder = WhisperEncoderConfig(sizes=source.sizes), WhisperDecoderConfig(sizes=source.sizes)
    config = inherit_settings(config, SpeechModelConfig(encoder=encoder, decoder=decoder))
    model = build_model(config.model, source.front_end.num_features, len(tokenizer))
    weights = {name: weight for name, weight in source.model.state_dict().items() if name.startswith(parts)}
    own_tokens = tokenizer.type == "whisper"
    for name in weights.keys() & set(TOKEN_WEIGHTS):
        if own_tokens:
            weights[name] = weights[name][order_tokens(source.tokenizer)]
        else:
            del weights[name]

    def is_new(name: str) -> bool:
        return is_low_rank(name) or not name.startswith(parts) or (name in TOKEN_WEIGHTS and not own_tokens)

    hint = "leave `sizes` out, and give a decoder of Whisper the encoder of the same model"
    load_weights(config, model, weights, is_new, hint)
    return System(config, tokenizer, source.front_end, model)


def _read_run(folder: Path) -> WhisperSystem:
    """Read a model that a run fine-tuned, with its changes of low rank merged."""
    from asr.system.system import load_any_system

    system = load_any_system(folder)
    model: Any = system.config.model
    sizes, tokenizer = cast(WhisperSizes, model.encoder.sizes), read_names(system.tokenizer.tokens)
    weights = {
        name: weight
        for name, weight in system.model.state_dict().items()
        if name.startswith(("encoder.", "decoder.")) and name != "decoder.output.weight"
    }
    embedding_VD = torch.empty_like(weights["decoder.embedding.weight"])
    embedding_VD[order_tokens(tokenizer)] = weights["decoder.embedding.weight"]
    weights["decoder.embedding.weight"] = embedding_VD
    language = model.decoder.language or (None if sizes.is_multilingual else "en")
    more: dict[str, Any] = {"language": language, "text": system.text}
    return make_system(folder, sizes, tokenizer.vocabulary, weights, is_fine_tuned=True, **more)
