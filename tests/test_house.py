"""The size of the house. What comes in brings its budget: see CONTRIBUTING.md."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import yaml
from system_examples import save_talker
from test_deletion import forget
from whisper_examples import SIZES, make_weights, write_huggingface

from asr.config import _known_keys
from asr.system import RunConfig
from asr.transcription import TranscriptionSettings

ROOT = Path(__file__).resolve().parent.parent

MAX_LINES_OF_ASR = 30_970  # with readers and options that lay in tools/ before: 330
MAX_LINES_OF_CORE = 19_345
# Capabilities that came after the house was built, with budgets of their own.
MAX_LINES_OF_CAPABILITY = {"speakers": 1_700}
CAPABILITIES = "formats", "recipe", "research", "scale", "scoring/nist", "serve", "shards", "whisper"
MAX_LINES_OF_TESTS = 34_100
MAX_TRACKED_FILES = 800
MAX_UNUSED_SETTINGS = {"run": 14, "call": 2}
MAX_MODULES = {"conformer": 60, "shipped": 60, "whisper": 60}
MAX_FILES = {"conformer": 22, "shipped": 28, "whisper": 30}


def trace(words: list[str], found: Path) -> None:
    """Run a command in a fork, write which modules of asr it loads, and in which files functions run."""
    forget("asr", "torch._dynamo")
    vars(torch).pop("_dynamo", None)
    cli, ran = importlib.import_module("asr.cli"), set[str]()
    root = f"{ROOT / 'asr'}/"

    def note(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_flags & 1 and code.co_filename.startswith(root):  # a function's body
            ran.add(code.co_filename.removeprefix(root))

    sys.settrace(note)
    threading.settrace(note)
    status = cli.main(words)
    sys.settrace(None)
    loaded = sorted(name for name in sys.modules if name.split(".")[0] == "asr")
    found.write_text(json.dumps([status, loaded, sorted(ran), "torch._dynamo" in sys.modules]))


def count_lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("*.py"))


def test_lines() -> None:
    added = {name: count_lines(ROOT / "asr" / name) for name in MAX_LINES_OF_CAPABILITY}
    assert {name: lines for name, lines in added.items() if lines > MAX_LINES_OF_CAPABILITY[name]} == {}
    lines = count_lines(ROOT / "asr") - sum(added.values())
    assert lines <= MAX_LINES_OF_ASR
    assert lines - sum(count_lines(ROOT / "asr" / name) for name in CAPABILITIES) <= MAX_LINES_OF_CORE
    assert count_lines(ROOT / "tests") <= MAX_LINES_OF_TESTS


def test_tracked_files() -> None:
    found = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if found.returncode != 0:
        pytest.skip("not a git checkout")
    assert len(found.stdout.splitlines()) <= MAX_TRACKED_FILES


def find_keys(tree: Any, prefix: str = "") -> Iterator[str]:
    """Dotted keys that a conf or study sets, those of its overrides `key=value` too."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield f"{prefix}{name}"
            yield from find_keys(value, f"{prefix}{name}.")
    elif isinstance(tree, list):
        for value in tree:
            yield from find_keys(value, prefix)
    elif isinstance(tree, str) and (match := re.match(r"([a-z_.]+)=(.*)", tree)):
        yield match[1]
        yield from find_keys(yaml.safe_load(match[2]), f"{match[1]}.")


def find_settings(config: Any) -> set[str]:
    """Dotted keys of a config class, without those of sections."""
    keys = {key for key, _ in _known_keys(config)}
    return {key for key in keys if not any(other.startswith(f"{key}.") for other in keys)}


def test_no_two_files_have_one_name() -> None:
    names = [path.name for path in (ROOT / "asr").rglob("*.py") if path.name != "__init__.py"]
    assert len(names) == len(set(names))


def test_settings_that_nothing_sets() -> None:
    """One that no conf, study or recipe sets is a constant that has not been written as one.

    The saved config of a shipped model does not count. Settings of a call count where a page shows them.
    """
    confs = [path for folder in ("conf", "recipes") for path in (ROOT / folder).rglob("*.yaml")]
    confs = [path for path in confs if "pretrained" not in path.parts]
    used = {key for path in confs for key in find_keys(yaml.safe_load(path.read_text(encoding="utf-8")))}
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "recipes").rglob("*.py"))
    used |= set(re.findall(r"[a-z_.]+", code))
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "recipes").rglob("*.md")]
    shown = set(
        re.findall(r"[a-z_]+(?= |=|:|`)", "\n".join(page.read_text(encoding="utf-8") for page in pages))
    )
    call = find_settings(TranscriptionSettings)
    unused = {
        "run": sorted(find_settings(RunConfig) - used),
        "call": sorted(key for key in call if key.rpartition(".")[2] not in shown),
    }
    for kind, most in MAX_UNUSED_SETTINGS.items():
        assert len(unused[kind]) <= most, unused[kind]


def test_the_way_from_audio_to_text(tmp_path: Path) -> None:
    """How much a reader of one transcription has to read: modules that are loaded, files whose code runs."""
    few = SIZES | {"n_text_ctx": 32}  # tokens: random weights seldom end by themselves
    models = {
        "conformer": save_talker(tmp_path / "model", "model.encoder.type=conformer"),
        "shipped": ROOT / "recipes" / "an4" / "pretrained",
        "whisper": write_huggingface(tmp_path / "tiny.en", make_weights(sizes=few), sizes=few),
    }
    rng = np.random.default_rng(0)
    soundfile.write(tmp_path / "noise.wav", rng.normal(scale=0.1, size=16_000).astype("float32"), 16_000)
    words = ["transcribe", str(tmp_path / "noise.wav"), "--set", "segmentation.method=none", "--model"]
    for kind, model in models.items():
        process = get_context("fork").Process(target=trace, args=([*words, str(model)], tmp_path / kind))
        process.start()
        process.join(120)
        status, modules, files, has_compiler = json.loads((tmp_path / kind).read_text())
        assert status == 0 and not has_compiler, "PyTorch's compiler takes most of a second to import"
        assert len(modules) <= MAX_MODULES[kind], modules
        assert len(files) <= MAX_FILES[kind], files
