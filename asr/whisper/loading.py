"""Load Whisper checkpoints from Hugging Face folders, single files, and fine-tuned runs."""

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
from asr.system.system import System, load_system
from asr.text.tokenizer import EOS_ID, SOS_ID
from asr.whisper.encoder_decoder import WhisperDecoder
from asr.whisper.family import NAMES, decoding, find_hub_name, find_run
from asr.whisper.sizes import WhisperSizes
from asr.whisper.weights import build_sizes, get_weights, make_system, name_sizes, split_weights
from asr.whisper.whisper_tokenizer import (
    END,
    read_huggingface_vocabulary,
    read_json,
    units_of,
    write_huggingface_vocabulary,
)
from asr.whisper.windows import find_sizes

if TYPE_CHECKING:
    from asr.audio.segmentation import SegmentationConfig
    from asr.config import Precision
    from asr.decoding.hypothesis import ChecksConfig
    from asr.transcription.transcribe import Recognizer

log = logging.getLogger(__name__)

PATTERNS = ["*.json", "model.safetensors", "model-*.safetensors"]  # files to download from the hub
PICKLED = "pytorch_model.bin"
THEIR_OUTPUT = "proj_out.weight"  # tied to the embeddings
MAPPINGS = 8  # per file; each is released with the last of its tensors


def load_source(source: str | Path) -> System:
    """Load a model in evaluation mode, on the CPU; weights stay memory-mapped, in the file's precision."""
    path = find_files(source)
    if path.is_file():
        from asr.whisper.single_files import read_file

        return read_file(path)
    if (path / "config.json").is_file():
        return read_huggingface(path)
    if (folder := find_run(path)) is not None:
        return read_run(folder)
    raise UserError(
        f"{path}: no Whisper model in this folder; expected one of Hugging Face (config.json, "
        "model.safetensors), or the run directory of a fine-tuned one"
    )


def read_run(folder: Path) -> System:
    """Read a fine-tuned model for decoding: callers write the prompts, and only the decoder is used."""
    system = load_system(folder)
    cast(WhisperDecoder, system.model.decoder).take_prompts()
    system.model.ctc_head = system.model.guided_attention = None
    return system


# --- the interface of a family ----------------------------------------------------------------------


def load(
    source: str | Path | System,
    device: str = "auto",
    precision: Precision = "auto",
    segmentation: SegmentationConfig | None = None,
    checks: ChecksConfig | None = None,
) -> Recognizer:
    """Return the recognizer that `asr.load_model` wraps."""
    from asr.system.decoding_resources import DecodingResources
    from asr.transcription.transcribe import Recognizer
    from asr.whisper.manners import WhisperManners

    system = source if isinstance(source, System) else load_source(source)
    resources = DecodingResources(decoding=decoding)
    given = device, precision, segmentation, checks
    return Recognizer(system, *given, resources=resources, manners=WhisperManners, family=asr.whisper)


def describe(source: str) -> dict[str, Any]:
    """Describe a model and its sizes."""
    system = load_source(source)
    sizes, weights = find_sizes(system), get_weights(system).values()
    dtypes = {str(weight.dtype).removeprefix("torch.") for weight in weights}
    return {
        "files": str(find_files(source)),
        "parameters": sum(weight.numel() for weight in weights),
        "precision": ", ".join(sorted(dtypes)),
        "languages": "many" if sizes.is_multilingual else "English",
        **sizes.model_dump(),
    }


def convert(source: str, target: Path, dtype: torch.dtype | None) -> None:
    """Write a model as a Hugging Face folder or, if the target ends in `.pt`, as an openai-whisper file."""
    from asr.system.shipping import round_weights

    system = load_source(source)
    weights = get_weights(system)
    if dtype is not None:
        weights = round_weights(weights, dtype)
    if target.suffix != ".pt":
        write_model(target, system, weights)
        return
    if target.exists():
        raise UserError(f"{target}: already exists; give a new file")
    tree = {"dims": name_sizes(find_sizes(system), "OpenAI"), "model_state_dict": split_weights(weights)}
    with replace_file(target) as file:
        torch.save(tree, file)


def find_weights(source: str | Path) -> Path:
    """Return a file that changes whenever the model does."""
    path = find_files(source)
    if path.is_file():
        return path
    folder = path if (path / "config.json").exists() else find_run(path) or path
    return next(iter(_find_weights(folder)), folder / "config.json")


# --- the hub ----------------------------------------------------------------------------------------


def find_files(source: str | Path) -> Path:
    """Return the file or folder of a model; a name on the hub is downloaded unless it is in the cache."""
    if Path(source).exists():
        return Path(source)
    if (name := find_hub_name(str(source))) is None:
        raise UserError(
            f"{source}: no such file or folder, and no name of a Whisper model; give a path, a name on the "
            f"hub, such as openai/whisper-base, or one of {', '.join(NAMES)}"
        )
    return _fetch(name)


def _fetch(name: str) -> Path:
    """Download a model from the hub, unless it is in the cache."""
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
        lambda: log.info("%s is not in the Hugging Face cache yet; downloading it", name),
        hint,
    )


# --- Hugging Face -----------------------------------------------------------------------------------


def read_huggingface(folder: Path) -> System:
    """Read config.json, weights as safetensors, and a vocabulary."""
    settings, source = read_json(folder / "config.json"), str(folder / "config.json")
    generation = folder / "generation_config.json"
    heads = read_json(generation).get("alignment_heads") if generation.is_file() else None
    sizes = build_sizes(settings, str(folder), "Hugging Face", alignment_heads=heads or None)
    for name, expected in _name_constants(sizes).items():
        if (value := settings.get(name, expected)) != expected:
            raise UserError(f"{source}: {name} is {shorten(value)}, but Whisper has {shorten(expected)}")
    theirs = {name.removeprefix("model."): weight for name, weight in _read_weights(folder).items()}
    output, embedding = theirs.pop(THEIR_OUTPUT, None), theirs.get("decoder.embed_tokens.weight")
    if not (output is None or embedding is None or torch.equal(output.float(), embedding.float())):
        raise UserError(f"{folder}: {THEIR_OUTPUT} differs from the embeddings; in Whisper they are the same")
    return make_system(folder, sizes, read_huggingface_vocabulary(folder), theirs, "Hugging Face")


def write_model(folder: Path, system: System, weights: Mapping[str, Tensor]) -> None:
    """Write a folder that transformers reads, too. The config is written last, so it marks completion."""
    sizes, special = find_sizes(system), units_of(system.tokenizer).special
    theirs = special.order()
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), theirs[EOS_ID])
    ids["decoder_start_token_id"] = theirs[SOS_ID]
    generation: dict[str, Any] = {**ids, "alignment_heads": sizes.alignment_heads, "return_timestamps": False}
    generation |= {
        "no_timestamps_token_id": theirs[special.no_times],
        "is_multilingual": sizes.is_multilingual,
    }
    if sizes.is_multilingual:
        generation["lang_to_id"] = {f"<|{code}|>": theirs[id] for code, id in special.languages.items()}
        generation["task_to_id"] = {task: theirs[id] for task, id in special.tasks.items()}
    ends = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), END)
    processor = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": sizes.num_mels}
    config = {"architectures": ["WhisperForConditionalGeneration"], **ids, **_name_constants(sizes)}
    trees = {
        "preprocessor_config.json": processor,
        "tokenizer_config.json": {"tokenizer_class": "WhisperTokenizer", **ends},
        "generation_config.json": generation,
        "config.json": config | name_sizes(sizes, "Hugging Face"),
    }
    make_folder(folder)
    if any(folder.iterdir()):
        raise UserError(f"{folder}: is not empty; give a new folder")
    named = {f"model.{name}": weight for name, weight in split_weights(weights, "Hugging Face").items()}
    try:
        with usual_mode(folder / "model.safetensors"):
            save_file(named, folder / "model.safetensors", {"format": "pt"})
        write_huggingface_vocabulary(folder, system.tokenizer)
        for file, tree in trees.items():
            (folder / file).write_text(json.dumps(tree, indent=2), encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder}: cannot write a model there ({error})") from None


def _name_constants(sizes: WhisperSizes) -> dict[str, Any]:
    """Return the settings in Hugging Face's config that are the same for every Whisper."""
    return {
        "model_type": "whisper",
        "activation_function": "gelu",
        "scale_embedding": False,
        "encoder_ffn_dim": 4 * sizes.dim,
        "decoder_ffn_dim": 4 * sizes.dim,
    }


def _find_weights(folder: Path) -> list[Path]:
    """Return the weight files in a folder, possibly none."""
    patterns = ("model.safetensors", "model-*-of-*.safetensors", PICKLED)
    return next((found for pattern in patterns if (found := sorted(folder.glob(pattern)))), [])


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Read all tensors, mapped in parts, each of which is released with the last of its tensors."""
    if not (paths := _find_weights(folder)):
        raise UserError(f"{folder}: no weights; expected model.safetensors or {PICKLED} next to config.json")
    if paths[0].name == PICKLED:
        from asr.system.pickles import check_tensors, read_pickled

        return check_tensors(read_pickled(paths[0]), paths[0], tied=THEIR_OUTPUT)
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
