"""Publish a model folder on the Hugging Face Hub: check its files, make the model card, upload both."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from asr.errors import UserError, shorten
from asr.files import read_limited
from asr.hub import explain_failure
from asr.scoring.result import percent, show_interval
from asr.system.decoding_resources import load_bundled_decoding
from asr.system.run_config import RunConfig

KINDS = {".safetensors", ".onnx", ".json", ".yaml", ".txt", ".arpa", ".md"}
EXPECTED = "publish a folder that `asr convert` or `asr export` wrote"
MAX_BYTES = 100_000_000  # of a header of weights, and of results
SECRET = re.compile(
    rb"\bhf_\w{30}|\bgh[pousr]_\w{36}|\bgithub_pat_\w{22}|\bAKIA[0-9A-Z]{16}\b|\bsk-[\w-]{32}|"
    rb"-----BEGIN [A-Z ]*PRIVATE KEY|://[^/\s:@\"]+:[^/\s:@\"]+@"
)
HOME = re.compile(rb"(?<![\w.:/~-])/(?:home|root|Users|mnt|media|scratch|work|workspace|tmp)/[\w.-]+")
ABSOLUTE = re.compile(rb"(?<=[\"'\s])/[\w.+-]+(?:/[\w.+-]+)+")  # settings name no absolute path at all


def find_files(folder: Path) -> dict[str, Path]:
    """Return the files of a model by their names on the hub. What must not be published is refused."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir()]
    if not any(path.suffix in (".safetensors", ".onnx") for path in found):
        raise UserError(f"{folder}: no folder with weights; {EXPECTED}")
    files = {path.relative_to(folder).as_posix(): path for path in found}
    for name, path in files.items():
        is_left_out = path.suffix not in KINDS or path.name == "training.safetensors" or "/." in f"/{name}"
        if is_left_out or path.is_symlink() or not path.is_file():
            raise UserError(f"{path}: not a file of a model that is passed on; {EXPECTED}")
        with open(path, "rb") as file:
            is_header = path.suffix == ".safetensors"  # the rest are numbers
            text = file.read(min(int.from_bytes(file.read(8), "little"), MAX_BYTES) if is_header else -1)
        if is_header and not text.startswith(b"{"):
            raise UserError(f"{path}: not a file in the format safetensors; write the model again")
        if SECRET.search(text):
            raise UserError(f"{path}: has what looks like a password or key; remove it, and revoke it, too")
        if own := (ABSOLUTE if path.suffix in (".json", ".yaml") else HOME).search(text):
            raise UserError(f"{path}: names {shorten(own[0])}, a path of one machine; remove it")
    return files


def read_results(path: str, folder: Path) -> str:
    """Return rows of Markdown for what `asr evaluate FOLDER MANIFEST --json` printed."""
    content = read_limited(path, MAX_BYTES, "too large to be results")
    try:
        record = json.loads(content)
        model, data, rows = Path(record["model"]), Path(record["manifest"]).name, ""
        for method, own in record["methods"].items():
            rate = percent(own["score"]["error_rate"])
            interval = show_interval(own["score"]["interval"], unknown="too little data")
            rows += f"| {data} | {method} | {rate} | {interval} | {own['score']['reference_length']:,} |\n"
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(f"{path}: expected what `asr evaluate {folder} MANIFEST --json` prints") from None
    if model.resolve() != folder.resolve():
        raise UserError(f"{path}: results of {model}; evaluate {folder} itself, as it may differ")
    return rows


def make_card(folder: Path, **given: str) -> str:
    """Return a model card of what a model's files say about it, and of what is `given`."""
    known = dict.fromkeys(("train", "start", "use"), "not recorded")
    if (folder / "config.yaml").is_file():
        config, own = RunConfig.load(folder / "config.yaml"), load_bundled_decoding(folder)
        known |= {"train": config.data.train_name, "start": config.start_from or "random weights"}
        known |= {"use": own.trained_for} if own and own.trained_for else {}
    template = Path(__file__).with_name("model_card.md").read_text(encoding="utf-8")
    return Template(template).substitute(known | given)


def upload(name: str, files: Mapping[str, Path], card: str, private: bool) -> str:
    """Let the model on the hub consist of these files and this card; return the address of the commit."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api = HfApi()
    try:
        api.create_repo(name, private=private, exist_ok=True)
        there = api.model_info(name)
        old = {own.rfilename for own in there.siblings or () if Path(own.rfilename).suffix in KINDS - {".md"}}
        changes: list[Any] = [CommitOperationDelete(path) for path in sorted(old - files.keys())]
        changes += [CommitOperationAdd(path, str(file)) for path, file in files.items()]
        changes += [CommitOperationAdd("README.md", card.encode())]
        if there.private == private:
            return str(api.create_commit(name, changes, commit_message="Publish a model").commit_url)
    except Exception as error:  # network and hub fail in many ways
        raise UserError(f"{name}: was not published ({explain_failure(error)})") from None
    kind = "private, so add" if there.private else "public, so leave out"
    raise UserError(f"{name}: is {kind} --private, or change that on its page of the hub")
