"""Load Moonshine models from its runtime's files, Hugging Face folders, runs, and installed packages."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

import asr.moonshine
from asr.errors import UserError
from asr.features.filters import FeaturesConfig
from asr.features.front_end import FrontEnd
from asr.files import make_folder
from asr.models.layers import check_weights, without_weights
from asr.models.speech_model import SpeechModel, SpeechModelConfig, build_model
from asr.moonshine.family import NAMES, ORT_FILES, decoding, find_run
from asr.moonshine.installed import check_installed, find_installed
from asr.moonshine.sizes import HEADS, TURNED, MoonshineDecoderConfig, MoonshineEncoderConfig, MoonshineSizes
from asr.moonshine.tokens import name_tokens, order_rows
from asr.moonshine.weights import find_sizes, read_pieces, read_weights
from asr.system.run_config import BatchConfig, DataConfig, RunConfig
from asr.system.system import System, load_system
from asr.text.tokenizer import Tokenizer, TokenizerConfig

if TYPE_CHECKING:
    from asr.audio.segmentation import SegmentationConfig
    from asr.config import Precision
    from asr.decoding.hypothesis import ChecksConfig
    from asr.moonshine.encoder_decoder import MoonshineDecoder
    from asr.transcription.transcribe import Recognizer

log = logging.getLogger(__name__)

# Below this mean log-probability of a recording's tokens, not counting repetitions, it is hardly English.
MIN_LOG_PROBABILITY = -1.1
MAX_SECONDS = 30.0  # longest segment; on longer ones the model starts to repeat itself
HUB_FILES = ["config.json", "model.safetensors", "tokenizer.json"]
OUTPUT = "decoder.output.weight"  # tied to the embeddings

# Our name of each part of the model to theirs; commas separate parts that we join.
PARTS = {
    "_1.": "1.",
    "_2.": "2.",
    "_3.": "3.",
    "encoder.convolution": "encoder.conv",
    "encoder.group_norm": "encoder.groupnorm",
    "encoder.norm": "encoder.layer_norm",
    "decoder.embedding": "decoder.embed_tokens",
    "cross_attention_block.norm": "post_attention_layernorm",
    "self_attention_block.norm": "input_layernorm",
    "attention_block.norm": "input_layernorm",
    "cross_attention.project_queries": "encoder_attn.q_proj",
    "cross_attention.project_memory": "encoder_attn.k_proj,v_proj",
    "cross_attention.project_out": "encoder_attn.o_proj",
    "self_attention": "attention",
    "attention.project_in": "self_attn.q_proj,k_proj,v_proj",
    "attention.project_out": "self_attn.o_proj",
    "feed_forward.expand": "mlp.fc1",
    "feed_forward.contract": "mlp.fc2",
}
LAST_NORMS = {"encoder": "post_attention_layernorm", "decoder": "final_layernorm"}
# Theirs have no bias in norms and attention. Ours start at zero, and training may change them.
NO_BIAS = re.compile(r"(?<!group_)(?:norm|attention\.project_\w+)\.bias")


def load_source(source: str | Path) -> System:
    """Load a model in evaluation mode, on the CPU, in float32."""
    path = find_files(source)
    if (folder := find_run(path)) is not None:
        return load_system(folder)
    if not Path(source).exists() and (path / ORT_FILES[0]).is_file():
        check_installed(path)
    theirs = read_weights(path)
    sizes = find_sizes(theirs, path)
    config = make_config(sizes, str(source))
    with without_weights():
        model = cast(SpeechModel, build_model(config.model, config.features.num_features, sizes.vocab_size))
    model.load_state_dict(rename_weights(model, theirs, path), assign=True)
    cast("MoonshineDecoder", model.decoder).tie()
    try:
        tokenizer = Tokenizer("moonshine", name_tokens(read_pieces(path), sizes.vocab_size))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return System(config, tokenizer, FrontEnd(config.features), model.eval(), is_published=True)


def make_config(sizes: MoonshineSizes, source: str) -> RunConfig:
    """Return the settings of a run that has such a model."""
    return RunConfig(
        output_dir=source,
        start_from=source,
        data=DataConfig(train=source, dev=source),
        tokenizer=TokenizerConfig(type="moonshine"),
        features=FeaturesConfig(type="samples"),
        batches=BatchConfig(max_utterance_seconds=MAX_SECONDS),
        model=SpeechModelConfig(
            encoder=MoonshineEncoderConfig(sizes=sizes),
            decoder=MoonshineDecoderConfig(sizes=sizes),
            ctc_weight=0.0,
        ),
    )


def rename_weights(model: SpeechModel, theirs: Mapping[str, Tensor], source: Path) -> dict[str, Tensor]:
    """Convert their weights to our names and layouts; there must be exactly the model's weights."""
    own = {name: tuple(weight.shape) for name, weight in model.state_dict().items() if name != OUTPUT}
    left, weights = dict(theirs), dict[str, Tensor]()
    for name, shape in own.items():
        parts = find_names(name)
        if parts[0] not in theirs and NO_BIAS.search(name):
            weights[name] = torch.zeros(shape)
        elif all(part in left for part in parts) and len({left[part].shape[1:] for part in parts}) == 1:
            weights[name] = _fit(name, [left.pop(part) for part in parts], model.encoder.output_dim)
    found = {name: tuple(weight.shape) for name, weight in (weights | left).items()}
    check_weights(source, found, dict(own), "The file is damaged, or is no Moonshine of the first generation")
    return weights | {OUTPUT: weights["decoder.embedding.weight"]}


def find_names(name: str) -> list[str]:
    """Return their names of the parts that make up one of our weights."""
    name = name.replace("feed_forward_block.norm", LAST_NORMS[name.partition(".")[0]])
    for ours, theirs in PARTS.items():
        name = name.replace(ours, theirs)
    path, _, kind = name.rpartition(".")
    block, dot, parts = path.rpartition(".")
    return [f"{block}{dot}{part}.{kind}" for part in parts.split(",")]


def _fit(name: str, parts: list[Tensor], dim: int) -> Tensor:
    """Build one of our weights: convolutions multiply windows, and rotary positions rotate half heads."""
    if "convolution_" in name and parts[0].dim() == 3:
        return parts[0].mT.flatten(1).contiguous()
    if name == "decoder.embedding.weight":
        return order_rows(parts[0])
    if name.endswith("attention.project_in.weight") and parts[0].shape == parts[1].shape == (dim, dim):
        # Their rotary pairs are adjacent, ours half a head apart.
        turned, others = torch.arange(TURNED), torch.arange(TURNED, dim // HEADS)
        halves = zip((turned[0::2], turned[1::2]), others.chunk(2), strict=True)
        order = torch.cat([half for pair in halves for half in pair])
        parts = [*(part.unflatten(0, (HEADS, -1))[:, order].flatten(0, 1) for part in parts[:2]), parts[2]]
    return torch.cat(parts) if len(parts) > 1 else parts[0]


# --- the interface of a family ----------------------------------------------------------------------


def load(
    source: str | Path,
    device: str = "auto",
    precision: Precision = "auto",
    segmentation: SegmentationConfig | None = None,
    checks: ChecksConfig | None = None,
) -> Recognizer:
    """Return the recognizer that `asr.load_model` wraps."""
    from asr.moonshine.manners import MoonshineManners
    from asr.system.decoding_resources import DecodingResources
    from asr.transcription.transcribe import Recognizer

    resources = DecodingResources(
        decoding=decoding,
        min_log_probability=MIN_LOG_PROBABILITY,
        trained_for="English only; `--language CODE` without --model uses whisper-base, which knows others",
    )
    given = device, precision, segmentation, checks
    system = load_source(source)
    return Recognizer(system, *given, resources=resources, manners=MoonshineManners, family=asr.moonshine)


def describe(source: str) -> dict[str, Any]:
    """Describe a model and its sizes."""
    system = load_source(source)
    model: Any = system.config.model
    return {
        "files": str(find_files(source)),
        "parameters": sum(weight.numel() for weight in system.model.parameters()),
        "languages": "English",
        **model.encoder.sizes.model_dump(),
    }


def convert(source: str, target: Path, dtype: torch.dtype | None) -> None:
    """Copy the files of a published model, most of which have 8 bits per weight; or write that of a run."""
    from asr.system.shipping import write_model_folder

    path = find_files(source)
    if (folder := find_run(path)) is not None:
        write_model_folder(folder, target, dtype or torch.float32)
        return
    if dtype is not None:
        raise UserError(f"{source}: a published Moonshine model keeps its precision; leave --dtype out")
    load_source(source)  # so that nothing but a whole model is copied
    make_folder(target)
    if any(target.iterdir()):
        raise UserError(f"{target}: is not empty; give a new folder")
    try:
        for name in (*ORT_FILES, *HUB_FILES):
            if (path / name).is_file():
                shutil.copyfile(path / name, target / name)
    except OSError as error:
        raise UserError(f"{target}: cannot write a model there ({error})") from None


def find_weights(source: str | Path) -> Path:
    """Return a file that changes whenever the model does."""
    path = find_files(source)
    names = (path / ORT_FILES[1], path / "model.safetensors")
    return next((file for file in names if file.is_file()), find_run(path) or path)


def find_files(source: str | Path) -> Path:
    """Return the folder of a model; a name is looked up in installed packages, then on the hub."""
    if Path(source).exists():
        return Path(source)
    if (folder := find_installed(str(source))) is not None:
        return folder
    from asr.hub import fetch_model

    name = NAMES.get(str(source), str(source))
    hint = f". Run `hf download {name}` where there is a network, or give the path of a Moonshine model"
    return fetch_model(
        name,
        HUB_FILES,
        lambda folder: (folder / "config.json").is_file() and (folder / "model.safetensors").is_file(),
        lambda: log.info("%s is not in the Hugging Face cache yet; downloading it", name),
        hint,
    )
