"""Checkpoints of Whisper: folders of Hugging Face, files of OpenAI, runs that fine-tuned one.

Whatever the form, the weights get our names, which join projections that go together.
"""

from __future__ import annotations

import json
import logging
import pickletools
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pydantic
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from asr.config import describe_fault
from asr.errors import UserError, suggest
from asr.features.front_end import FeaturesConfig, FrontEnd
from asr.files import make_folder, usual_mode
from asr.models.layers import without_weights
from asr.whisper.encoder_decoder import Whisper, WhisperSystem
from asr.whisper.family import (
    NAMES,
    Task,
    WhisperDecoderConfig,
    WhisperEncoderConfig,
    WhisperSizes,
    find_hub_name,
    find_run,
)
from asr.whisper.whisper_tokenizer import (
    Vocabulary,
    WhisperTokenizer,
    name_tokens,
    order_tokens,
    read_huggingface_vocabulary,
    read_json,
    read_names,
    read_ranks,
    require_english,
    write_huggingface_vocabulary,
    write_ranks,
)

if TYPE_CHECKING:
    from asr.models import Model
    from asr.system.checkpoint import System
    from asr.system.run_config import RunConfig
    from asr.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

MAX_HEADER_BYTES = 10_000_000  # of safetensors, and of a pickle: that of large-v3 has 0.2 MB
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DAMAGED = "the file is damaged or not of torch.save; download it again"
# The files of the package openai-whisper that hold its vocabularies.
RANKS = {True: "multilingual.tiktoken", False: "gpt2.tiktoken"}
# What to fetch of a model on the hub; the pickled weights only where there are no others.
PATTERNS = ("*.json", "model.safetensors", "model-*.safetensors")
PICKLED = "pytorch_model.bin"
OUTPUT = "proj_out.weight"

Form = Literal["OpenAI", "Hugging Face"]
_FORMS: tuple[Form, ...] = ("OpenAI", "Hugging Face")
# Our name of a size to those of the forms.
_SIZES = {
    "num_mels": ("n_mels", "num_mel_bins"),
    "vocab_size": ("n_vocab", "vocab_size"),
    "dim": ("n_audio_state", "d_model"),
    "max_steps": ("n_audio_ctx", "max_source_positions"),
    "encoder_heads": ("n_audio_head", "encoder_attention_heads"),
    "encoder_layers": ("n_audio_layer", "encoder_layers"),
    "max_tokens": ("n_text_ctx", "max_target_positions"),
    "decoder_heads": ("n_text_head", "decoder_attention_heads"),
    "decoder_layers": ("n_text_layer", "decoder_layers"),
}
# Our name of a part of the model, or of a layer, to those of the forms; commas part those that we join.
_PARTS = {
    "layers": ("blocks.", "layers."),
    "positions": ("positional_embedding", "embed_positions.weight"),
    "embedding": ("token_embedding", "embed_tokens"),
    "convolution_1": ("conv1", "conv1"),
    "convolution_2": ("conv2", "conv2"),
    "encoder.norm": ("ln_post", "layer_norm"),
    "decoder.norm": ("ln", "layer_norm"),
    "attention_block.norm": ("attn_ln", "self_attn_layer_norm"),
    "attention.project_in": ("attn.query,key,value", "self_attn.q_proj,k_proj,v_proj"),
    "attention.project_out": ("attn.out", "self_attn.out_proj"),
    "cross_attention_block.norm": ("cross_attn_ln", "encoder_attn_layer_norm"),
    "cross_attention.project_queries": ("cross_attn.query", "encoder_attn.q_proj"),
    "cross_attention.project_memory": ("cross_attn.key,value", "encoder_attn.k_proj,v_proj"),
    "cross_attention.project_out": ("cross_attn.out", "encoder_attn.out_proj"),
    "feed_forward_block.norm": ("mlp_ln", "final_layer_norm"),
    "feed_forward.expand": ("mlp.0", "fc1"),
    "feed_forward.contract": ("mlp.2", "fc2"),
}
# Whisper's keys have no bias. Ours have one, but as it is the same for all keys, no softmax sees it.
NO_BIAS = ""
_WITHOUT_BIAS = ("key", "k_proj")


@dataclass(frozen=True)
class Checkpoint:
    """Content of the files of a model, whatever their form."""

    form: str
    sizes: WhisperSizes
    vocabulary: Vocabulary | None
    """None where the files have none."""
    weights: dict[str, Tensor]
    """By our names, in the precision of the file."""
    is_fine_tuned: bool = False
    """Whether a run trained it: on audio of its real length, without silence up to 30 s."""
    language: str | None = None
    """Of the texts that a run trained it on."""


def load_whisper(source: str | Path, *, dtype: torch.dtype | None = torch.float32) -> WhisperSystem:
    """Load a model in evaluation mode, on the CPU. Weights that are in `dtype` stay mapped.

    Without a `dtype`, each weight is in that of the file, for a recognizer that rounds them.
    """
    checkpoint = read_checkpoint(source)
    sizes, weights = checkpoint.sizes, checkpoint.weights
    tokenizer = build_tokenizer(checkpoint, str(source))
    front_end = FrontEnd(FeaturesConfig(convention="whisper", num_mels=sizes.num_mels))
    if dtype is not None:
        for name, weight in weights.items():
            weights[name] = weight.to(dtype)  # in place, so that there are never two of all
    model = Whisper.of(sizes, weights)
    return WhisperSystem(sizes, tokenizer, front_end, model, checkpoint.is_fine_tuned, checkpoint.language)


def read_checkpoint(source: str | Path, vocabulary: str | Path | None = None) -> Checkpoint:
    """Read the files of a model, whatever their form. `vocabulary`: a file or folder to take it from."""
    path = find_files(source)
    try:
        checkpoint = _read(path)
        if vocabulary is None:
            return checkpoint
        given = Path(vocabulary)
        return replace(checkpoint, vocabulary=_read_vocabulary(given))
    except OSError as error:
        raise UserError(f"{error.filename or path}: cannot read it ({error.strerror})") from None


def _read(path: Path) -> Checkpoint:
    if path.is_dir():
        if (path / "config.json").is_file():
            return read_huggingface(path)
        if (folder := find_run(path)) is not None:
            return read_run(folder)
        raise UserError(
            f"{path}: no Whisper model in this folder; expected one of Hugging Face (config.json, "
            "model.safetensors), or the run directory of a fine-tuned one"
        )
    with open(path, "rb") as file:
        begin = file.read(4)
    if begin == b"PK\x03\x04":
        return read_openai(path)
    if begin == b"lmgg":
        raise UserError(
            f"{path}: a ggml file of whisper.cpp, which is read after a conversion: "
            f"python tools/convert_ggml.py {path} FOLDER"
        )
    raise UserError(
        f"{path}: no .pt file of OpenAI, by its first bytes; it may be cut off, or a page that was saved "
        "instead"
    )


def _read_vocabulary(path: Path) -> Vocabulary:
    vocabulary = read_huggingface_vocabulary(path) if path.is_dir() else read_ranks(path)
    if vocabulary is None:
        raise UserError(f"{path}: no vocabulary there; expected vocab.json or tokenizer.json")
    return vocabulary


def build_tokenizer(checkpoint: Checkpoint, source: str) -> WhisperTokenizer:
    if checkpoint.vocabulary is None:
        raise UserError(
            f"{source}: there is no vocabulary in or beside this model. Put "
            f"{RANKS[checkpoint.sizes.is_multilingual]} into the same folder (the package openai-whisper has "
            "it in whisper/assets), or give a file or Hugging Face folder that has one: "
            "asr convert MODEL FOLDER --vocabulary PATH"
        )
    try:
        return WhisperTokenizer.of(checkpoint.vocabulary, checkpoint.sizes.vocab_size)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def require_language(source: str | Path, language: str | None, task: Task) -> None:
    """Refuse what an English-only model does not support, before its weights are fetched or loaded."""
    if language in (None, "en") and task == "transcribe":
        return
    is_file = Path(source).exists()
    if not (read_checkpoint(source).sizes.is_multilingual if is_file else not str(source).endswith(".en")):
        require_english(language, task)


def describe(source: str) -> dict[str, Any]:
    checkpoint = read_checkpoint(source)
    counts = {
        part: sum(weight.numel() for name, weight in checkpoint.weights.items() if name.startswith(part))
        for part in ("encoder", "decoder")
    }
    dtypes = {str(weight.dtype).removeprefix("torch.") for weight in checkpoint.weights.values()}
    return {
        "files": str(find_files(source)),
        "form": checkpoint.form,
        "parameters": sum(counts.values()),
        "parameters of": counts,
        "precision": ", ".join(sorted(dtypes)),
        "languages": "many" if checkpoint.sizes.is_multilingual else "English",
        "text tokens": "none in these files" if (known := checkpoint.vocabulary) is None else len(known),
        **checkpoint.sizes.model_dump(),
    }


# --- names on the hub -------------------------------------------------------------------------------


def find_files(source: str | Path) -> Path:
    """The file or folder of a model; for a name on the hub, its folder in the cache, fetched if need be."""
    if Path(source).exists():
        return Path(source)
    if (hub_name := find_hub_name(str(source))) is None:
        raise _no_model(str(source))
    return _fetch(hub_name)


def find_whisper_weights(source: str | Path) -> Path:
    """A file that changes when the model does."""
    path = find_files(source)
    if path.is_dir() and (run := find_run(path)) is not None and not (path / "config.json").exists():
        path = run
    return next(iter(_find_weights(path)), path / "config.json") if path.is_dir() else path


def _fetch(name: str) -> Path:
    """Fetch a model from the hub, unless it is in the cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, allow_patterns=[*PATTERNS, PICKLED], local_files_only=True))
        if (folder / "config.json").is_file() and _find_weights(folder):
            return folder
    except HFValidationError:  # such as ../whisper, which is a path
        raise _no_model(name) from None
    except LocalEntryNotFoundError:
        pass
    log.info("%s is not in the cache of Hugging Face yet; fetching it", name)
    try:
        folder = Path(snapshot_download(name, allow_patterns=[*PATTERNS]))
        if not _find_weights(folder):
            folder = Path(snapshot_download(name, allow_patterns=[*PATTERNS, PICKLED]))
    except Exception as error:  # network, hub and disk fail in many ways
        reason = str(error).split("\n")[0][:200]
        advice = f"With a network run the command again, or `hf download {name}` where there is one."
        if name not in NAMES.values() and (near := suggest(name, NAMES.values(), "")):
            advice = near[0].upper() + near[1:]
        raise UserError(
            f"{name}: not in the cache, and the hub does not have it ({type(error).__name__}: {reason}). "
            f"{advice} Without a network give the path of a Whisper model, a .pt file or a folder, instead "
            "of the name (`asr transcribe` takes it from --model, or from ASR_MODEL in the environment)"
        ) from None
    return folder


def _no_model(name: str) -> UserError:
    return UserError(
        f"{name}: no such file or folder, and no name of a Whisper model; give the path of one, its name on "
        f"the hub, such as openai/whisper-base, or one of {', '.join(NAMES)}"
    )


# --- sizes and names of weights ---------------------------------------------------------------------


def build_sizes(theirs: Mapping[str, Any], source: str, form: Form = "OpenAI", **more: Any) -> WhisperSizes:
    """Read the sizes as OpenAI or Hugging Face names them."""
    values = {ours: theirs.get(names[_FORMS.index(form)]) for ours, names in _SIZES.items()} | more
    try:  # by way of JSON, whose lists may fill tuples
        return WhisperSizes.model_validate_json(json.dumps(values))
    except pydantic.ValidationError as error:
        raise UserError(f"{source}: {describe_fault(error)}; is it a Whisper model?") from None


def name_sizes(sizes: WhisperSizes, form: Form) -> dict[str, Any]:
    """The sizes by the names of a form."""
    return {names[_FORMS.index(form)]: getattr(sizes, ours) for ours, names in _SIZES.items()}


def find_names(name: str, form: Form) -> list[str]:
    """Their names of what makes up one of our weights."""
    column = _FORMS.index(form)
    side, _, rest = name.partition(".")
    if rest.startswith("positions"):
        return [f"{side}.{_PARTS['positions'][column]}"]
    place = f"{side}."
    part, _, kind = rest.rpartition(".")
    if part.startswith("layers."):
        _, index, part = part.split(".", 2)
        place += f"{_PARTS['layers'][column]}{index}."
    part = part.removeprefix("self_")
    theirs = (_PARTS.get(part) or _PARTS[f"{side}.{part}"])[column]
    block, dot, parts = theirs.rpartition(".")
    return [
        NO_BIAS if kind == "bias" and one in _WITHOUT_BIAS else f"{place}{block}{dot}{one}.{kind}"
        for one in parts.split(",")
    ]


def rename_weights(
    sizes: WhisperSizes, theirs: Mapping[str, Tensor], source: str, form: Form = "OpenAI"
) -> dict[str, Tensor]:
    """Rename all weights that the sizes ask for, and no others, each of the shape that they ask for.

    Sizes that the weights do not have are refused before memory is asked for.
    """
    with without_weights():
        expected = Whisper(sizes).state_dict()
    del expected["decoder.output.weight"]  # the embeddings
    names = {name: find_names(name, form) for name in expected}
    if unknown := theirs.keys() - {part for parts in names.values() for part in parts}:
        raise UserError(f"{source}: unknown weights, {min(unknown)[:80]!r} for one; is it a Whisper model?")
    for name, parts in names.items():
        shape = (len(expected[name]) // len(parts), *expected[name].shape[1:])
        for part in parts:
            if part != NO_BIAS:
                _check_weight(theirs, part, shape, source)
    ours: dict[str, Tensor] = {}
    for name, parts in names.items():
        found = [theirs[part] for part in parts if part != NO_BIAS]
        if NO_BIAS in parts:
            found.insert(parts.index(NO_BIAS), torch.zeros_like(found[0]))
        ours[name] = torch.cat(found) if len(found) > 1 else found[0]
    return ours


def split_weights(ours: Mapping[str, Tensor], form: Form = "OpenAI") -> dict[str, Tensor]:
    """Weights by the names of a form, as `rename_weights` takes them."""
    theirs: dict[str, Tensor] = {}
    for name, weight in ours.items():
        part_names = find_names(name, form)
        theirs |= zip(part_names, weight.chunk(len(part_names)), strict=True)
    theirs.pop(NO_BIAS, None)
    return {name: weight.contiguous() for name, weight in theirs.items()}


def _check_weight(theirs: Mapping[str, Tensor], name: str, shape: tuple[int, ...], source: str) -> None:
    if (weight := theirs.get(name)) is None:
        raise UserError(f"{source}: weights are missing, {name} for one; is it a complete Whisper model?")
    if tuple(weight.shape) != shape or weight.dtype not in DTYPES:
        raise UserError(
            f"{source}: {name} has shape {tuple(weight.shape)} and type {weight.dtype}, but expected "
            f"{shape} of floating point; the file is damaged, or its sizes are those of another model"
        )


# --- Hugging Face -----------------------------------------------------------------------------------


def read_huggingface(folder: Path) -> Checkpoint:
    """Read config.json, weights as safetensors or pickled, and a vocabulary."""
    settings, source = read_json(folder / "config.json"), str(folder / "config.json")
    if settings.get("model_type") != "whisper":
        raise UserError(f"{source}: model_type is {str(settings.get('model_type'))[:40]}; expected whisper")
    heads = None
    if (generation := folder / "generation_config.json").is_file():
        heads = read_json(generation).get("alignment_heads") or None
    sizes = build_sizes(settings, str(folder), "Hugging Face", alignment_heads=heads)
    for name, expected in _name_constants(sizes).items():
        if settings.get(name, expected) != expected:
            raise UserError(f"{source}: {name} is {str(settings[name])[:40]}, but Whisper has {expected}")
    theirs = {name.removeprefix("model."): weight for name, weight in _read_weights(folder).items()}
    output, embedding = theirs.pop(OUTPUT, None), theirs.get("decoder.embed_tokens.weight")
    if not (output is None or embedding is None or torch.equal(output.float(), embedding.float())):
        raise UserError(f"{folder}: {OUTPUT} differs from the embeddings; in Whisper they are the same")
    weights = rename_weights(sizes, theirs, str(folder), "Hugging Face")
    return Checkpoint("Hugging Face", sizes, read_huggingface_vocabulary(folder), weights)


def write_huggingface(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a folder that transformers reads too. The config comes last: a folder with one is complete."""
    sizes, tokenizer = checkpoint.sizes, build_tokenizer(checkpoint, str(folder))
    ids = {"bos_token_id": tokenizer.end, "eos_token_id": tokenizer.end, "pad_token_id": tokenizer.end}
    ids["decoder_start_token_id"] = tokenizer.start
    generation: dict[str, Any] = {**ids, "alignment_heads": sizes.alignment_heads, "return_timestamps": False}
    generation |= {"no_timestamps_token_id": tokenizer.no_times, "is_multilingual": sizes.is_multilingual}
    if sizes.is_multilingual:
        generation["lang_to_id"] = {f"<|{code}|>": id for code, id in tokenizer.languages.items()}
        generation["task_to_id"] = tokenizer.tasks
    processor = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": sizes.num_mels}
    special = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "<|endoftext|>")
    config = {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], **ids}
    config |= name_sizes(sizes, "Hugging Face") | _name_constants(sizes)
    make_folder(folder)
    try:
        if any(folder.iterdir()):
            raise UserError(f"{folder}: is not empty; give a new folder")
        weights = split_weights(checkpoint.weights, "Hugging Face")
        with usual_mode(folder / "model.safetensors"):
            save_file(
                {f"model.{name}": weight for name, weight in weights.items()},
                folder / "model.safetensors",
                {"format": "pt"},
            )
        write_huggingface_vocabulary(folder, tokenizer)
        for file, tree in (
            ("preprocessor_config.json", processor),
            ("tokenizer_config.json", {"tokenizer_class": "WhisperTokenizer", **special}),
            ("generation_config.json", generation),
            ("config.json", config),
        ):
            (folder / file).write_text(json.dumps(tree, indent=2), encoding="utf-8")
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{folder}: cannot write a model there ({reason})") from None


def _name_constants(sizes: WhisperSizes) -> dict[str, Any]:
    """What Hugging Face's config states of any Whisper."""
    return {
        "activation_function": "gelu",
        "scale_embedding": False,
        "encoder_ffn_dim": 4 * sizes.dim,
        "decoder_ffn_dim": 4 * sizes.dim,
    }


def _find_weights(folder: Path) -> list[Path]:
    """The files of the weights; none where there are none."""
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    parts = sorted(folder.glob("model-*-of-*.safetensors"))
    return parts or [path for path in (folder / PICKLED,) if path.is_file()]


def _read_weights(folder: Path) -> dict[str, Tensor]:
    paths = _find_weights(folder)
    if not paths:
        raise UserError(f"{folder}: no weights; expected model.safetensors or {PICKLED} beside config.json")
    if paths[0].name == PICKLED:
        return _check_tensors(read_pickled(paths[0]), paths[0])
    return {name: weight for path in paths for name, weight in read_safetensors(path).items()}


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, mapped into memory."""
    try:
        with open(path, "rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
        if header_bytes > MAX_HEADER_BYTES:
            raise UserError(f"{path}: a header of {header_bytes:,} bytes; it is no complete safetensors file")
        with safe_open(path, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: not a complete safetensors file ({error}); download it again") from None


# --- OpenAI -----------------------------------------------------------------------------------------

# All that a dict of tensors needs. PyTorch's own list is longer, and has things that fill the memory.
HARMLESS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch FloatStorage",
    "torch HalfStorage",
    "torch BFloat16Storage",
}


def read_openai(path: Path) -> Checkpoint:
    """Read a .pt file. The vocabulary is taken from a file of `RANKS` in the same folder, if it is there."""
    tree = read_pickled(path)
    dims = tree.get("dims")
    if not isinstance(dims, dict):
        raise UserError(f"{path}: no sizes in it (dims); expected a .pt file of OpenAI's Whisper")
    if dims.get("n_text_state") != dims.get("n_audio_state"):
        raise UserError(f"{path}: encoder and decoder of different widths, which Whisper never has")
    sizes = build_sizes(dims, str(path))
    theirs = _check_tensors(tree.get("model_state_dict"), path)
    ranks = path.parent / RANKS[sizes.is_multilingual]
    vocabulary = read_ranks(ranks) if ranks.is_file() else None
    return Checkpoint("OpenAI", sizes, vocabulary, rename_weights(sizes, theirs, str(path)))


def write_openai(path: Path, checkpoint: Checkpoint) -> None:
    """Write a .pt file, and the vocabulary beside it."""
    sizes, tokenizer = checkpoint.sizes, build_tokenizer(checkpoint, str(path))
    ranks = path.parent / RANKS[sizes.is_multilingual]
    make_folder(path.parent)
    if path.exists():
        raise UserError(f"{path}: exists already; give a new file")
    dims = name_sizes(sizes, "OpenAI") | {"n_text_state": sizes.dim}
    try:
        if not ranks.exists():
            write_ranks(ranks, tokenizer.vocabulary)
        torch.save({"dims": dims, "model_state_dict": split_weights(checkpoint.weights)}, path)
    except (OSError, RuntimeError) as error:
        raise UserError(f"{path}: cannot write a model there ({error})") from None


def read_pickled(path: Path) -> dict[str, Any]:
    """The dict that a file of torch.save holds; tensors are mapped from the file, nothing is executed."""
    try:
        _check_archive(path)
        tree = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except UserError:
        raise
    except Exception as error:  # PyTorch says in many ways, and at length, what is wrong
        raise UserError(f"{path}: {DAMAGED} ({type(error).__name__})") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path}: holds no dict of weights; expected a Whisper checkpoint")
    return tree


def _check_tensors(tensors: Any, path: Path) -> dict[str, Tensor]:
    """Names to tensors that are no larger than the file: else a few bytes could ask for any memory."""
    if not isinstance(tensors, Mapping):
        raise UserError(f"{path}: no weights in it; expected a Whisper checkpoint")
    sizes: dict[tuple[int, int], int] = {}  # of tensors by their place: tied ones share theirs
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise UserError(f"{path}: not all of its weights are tensors with a name; {DAMAGED}")
        num_bytes = tensor.numel() * tensor.element_size()
        sizes[tensor.data_ptr(), num_bytes] = num_bytes
    num_bytes = sum(sizes.values())
    if num_bytes > path.stat().st_size:
        raise UserError(f"{path}: {num_bytes:,} bytes of weights in a smaller file; {DAMAGED}")
    return dict(tensors)


def _check_archive(path: Path) -> None:
    """Check that the archive holds plain bytes, and its pickle only what makes tensors."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise UserError(f"{path}: a compressed archive, as torch.save never writes it; {DAMAGED}")
        if sum(entry.file_size for entry in entries) > path.stat().st_size:
            raise UserError(f"{path}: declares more bytes than it has; {DAMAGED}")
        pickles = [entry for entry in entries if entry.filename.endswith("data.pkl")]
        if len(pickles) != 1 or pickles[0].file_size > MAX_HEADER_BYTES:
            raise UserError(f"{path}: no index of tensors, or a huge one; {DAMAGED}")
        content = archive.read(pickles[0])
    try:
        used = [_find_call(opcode.name, argument) for opcode, argument, _ in pickletools.genops(content)]
    except ValueError:
        raise UserError(f"{path}: {DAMAGED}") from None
    if unknown := {name for name in used if name is not None} - HARMLESS:
        raise UserError(
            f"{path}: would run code ({min(unknown)[:60]}); nothing was run. Weights need none: do not use "
            "this file, take safetensors, or a file of a source that you trust"
        )


def _find_call(opcode: str, argument: Any) -> str | None:
    """Name what an opcode would make Python call; None for one that only brings data."""
    if opcode == "GLOBAL":
        return str(argument)
    return opcode if opcode in ("INST", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4") else None


def convert(source: str, target: Path, dtype: torch.dtype | None, vocabulary: str | None) -> None:
    """Write a model as a file of OpenAI if the target ends in .pt, else as a folder of Hugging Face."""
    from asr.system.checkpoint import round_weights

    checkpoint = read_checkpoint(source, vocabulary)
    build_tokenizer(checkpoint, source)  # so that what is written also loads
    if dtype is not None:
        checkpoint = replace(checkpoint, weights=round_weights(checkpoint.weights, dtype))
    if target.suffix == ".pt":
        write_openai(target, checkpoint)
    else:
        write_huggingface(target, checkpoint)


# --- fine-tuning ------------------------------------------------------------------------------------

TOKEN_WEIGHTS = ("decoder.embedding.weight", "decoder.output.weight")  # a row for each token


def take_over_tokenizer(config: RunConfig) -> Tokenizer | None:
    from asr.text.tokenizer import Tokenizer
    from asr.text.units import SPECIAL_TOKENS

    if not config.keep_tokenizer:
        raise UserError(
            "keep_tokenizer = false is for a start_from that was trained here; remove it: with a Whisper "
            "model, tokenizer.type says whether its tokenizer is kept"
        )
    if config.tokenizer.type != "whisper":
        return None
    source = str(config.start_from)
    return Tokenizer(
        "whisper", SPECIAL_TOKENS + name_tokens(build_tokenizer(read_checkpoint(source), source))
    )


def take_over(config: RunConfig, tokenizer: Tokenizer) -> System[Model]:
    """A system with the weights of a Whisper model in those of its parts that are of type whisper."""
    from asr.models import SpeechModelConfig, build_model
    from asr.models.lora_int8 import is_low_rank
    from asr.system.checkpoint import System
    from asr.train.preparation import complete, load_weights

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
    config = complete(config, SpeechModelConfig(encoder=encoder, decoder=decoder))
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

    load_weights(config, model, weights, is_new, "leave `sizes` out")
    return System(config, tokenizer, source.front_end, model)


def read_run(folder: Path) -> Checkpoint:
    """Read a model that a run fine-tuned, with its changes of low rank merged."""
    from asr.system.checkpoint import load_any_system

    system = load_any_system(folder)
    encoder, decoder = (getattr(system.config.model, name) for name in ("encoder", "decoder"))
    tokenizer = read_names(system.tokenizer.tokens)
    weights = {
        name: weight
        for name, weight in system.model.state_dict().items()
        if name.startswith(("encoder.", "decoder.")) and name != "decoder.output.weight"
    }
    ours = weights["decoder.embedding.weight"]
    weights["decoder.embedding.weight"] = torch.empty_like(ours)
    weights["decoder.embedding.weight"][order_tokens(tokenizer)] = ours
    language = decoder.language or ("en" if not encoder.sizes.is_multilingual else None)
    return Checkpoint(
        "a run of asr", encoder.sizes, tokenizer.vocabulary, weights, is_fine_tuned=True, language=language
    )
