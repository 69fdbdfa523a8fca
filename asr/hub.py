"""Models from the Hugging Face Hub: taken from the cache, or downloaded and checked."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from asr.errors import UserError, shorten
from asr.files import hash_file

MAX_BYTES = 20_000_000_000  # of a model
NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(@\w[\w./-]*)?")  # user/name or user/name@revision
OUTSIDE = re.compile(r"^/|(^|/)\.\.(/|$)|[\\\0]")  # in the name of a file that would leave its folder
MARKS = {"config.yaml", "export.json"}  # each model that this toolkit writes has one of them
FILES = ["*.safetensors", "*.onnx", "*.json", "*.yaml", "*.txt", "*.arpa"]  # of such a model: no pickles
LOGIN = "check name and revision; for a private model ask for access, and run `hf auth login`"


def find_folder(name: str | Path) -> Path:
    """Return the cached folder of a model on the hub, with config.json if it is foreign; else a path."""
    config, is_name = "config.json", NAME.fullmatch(str(name))
    hint = ". Give the output_dir of a training or one of its checkpoints, or the name of a model on the hub"
    given = str(name), [config], lambda folder: (folder / config).is_file(), lambda: None, hint
    return fetch_model(*given) if is_name else Path(name)


def fetch_model(
    name: str,
    patterns: Sequence[str],
    is_complete: Callable[[Path], bool],
    announce: Callable[[], None],
    hint: str,
) -> Path:
    """Return the cached folder of a model from the hub. `announce` is called before a download."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    repository, _, revision = name.partition("@")
    model: dict[str, Any] = {"repo_id": repository, "revision": revision or None}
    try:
        with contextlib.suppress(LocalEntryNotFoundError):
            folder = Path(snapshot_download(**model, allow_patterns=[*patterns], local_files_only=True))
            if is_complete(folder) or MARKS.intersection(os.listdir(folder)):
                return folder
        return _download(model, patterns, announce)
    except UserError:
        raise
    except Exception as error:  # network, hub and disk fail in many ways
        reason = explain_failure(error)
        raise UserError(f"{name}: no such file or folder, nor on the hub ({reason}){hint}") from None


def _download(model: dict[str, Any], patterns: Sequence[str], announce: Callable[[], None]) -> Path:
    """Check the names and sizes that the hub lists, download, and compare with the hashes that it lists."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.utils import filter_repo_objects

    found = HfApi().model_info(**model, files_metadata=True, timeout=10)
    listed = {file.rfilename: file for file in found.siblings or ()}
    patterns = FILES if MARKS & listed.keys() else [*patterns]
    names = list(filter_repo_objects(listed, allow_patterns=patterns))
    outside, num_bytes = list(filter(OUTSIDE.search, names)), sum(listed[name].size or 0 for name in names)
    if outside or num_bytes > MAX_BYTES:
        raise UserError(
            f"{model['repo_id']}: refused, because the hub lists {num_bytes:,} bytes (at most {MAX_BYTES:,} "
            f"are expected) and outside of its folder {shorten(outside)}; use another model"
        )
    announce()
    marks = MARKS.intersection(names)
    for part, later in ({*names} - marks, marks), (marks, ()):  # a model that has its mark is complete
        folder = Path(snapshot_download(**model, allow_patterns=patterns, ignore_patterns=[*later]))
        for name in part:
            _require_hash(folder / name, listed[name])
    return folder


def _require_hash(path: Path, listed: Any) -> None:
    """Remove a file that differs from its listed hash: SHA-256 if it is large, otherwise Git's SHA-1."""
    if listed.lfs is not None:
        is_same = hash_file(path) == listed.lfs.sha256
    else:
        content = path.read_bytes()
        is_same = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == listed.blob_id
    if not is_same:
        for wrong in (path.resolve(), path):
            wrong.unlink(missing_ok=True)
        raise UserError(f"{path.name}: was damaged on its way from the hub; run the same command again")


def explain_failure(error: Exception) -> str:
    """Return what came from the hub, and what to do about it."""
    answers = [getattr(one, "response", None) for one in (error, error.__cause__)]
    status = next((answer.status_code for answer in answers if answer is not None), 0)
    reason = str(error).split("\n")[0][:200]
    advice = {401: LOGIN, 403: LOGIN, 404: LOGIN, 0: "there may be no network"}.get(status, "try again later")
    return f"{type(error).__name__}: {reason}; {advice}"
