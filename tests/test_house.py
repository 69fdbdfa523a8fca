"""The size of the house. What comes in brings its budget: see CONTRIBUTING.md."""

from __future__ import annotations

import ast
import importlib
import json
import re
import sys
import threading
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
import yaml
from system_examples import save_talker
from test_deletion import forget
from test_imports import MODULES, parse
from whisper_examples import SIZES, make_weights, write_huggingface

from asr.config import _known_keys
from asr.families import FAMILIES
from asr.system.run_config import RunConfig
from asr.transcription.arguments import TranscriptionSettings

ROOT = Path(__file__).resolve().parent.parent

# Lines that Python reads (.py and .pyi) of each folder of asr/: what it had when the numbers were set, and 2 % so
# that a fix and its guards find room. What is new brings a budget of its own.
MAX_LINES = {
    "": 1_135,
    "audio": 1_725,
    "batches": 940,
    "cli": 1_800,
    "data": 1_469,
    "decoding": 2_196,
    "evaluation": 525,
    "export": 1_640,
    "features": 516,
    "formats": 481,
    "language_models": 923,
    "models": 2_310,
    "moonshine": 1_265,
    "recipe": 2_682,
    "research": 1_712,
    "scale": 604,
    "scoring": 1_805,
    "scoring/nist": 498,
    "serve": 2_164,
    "shards": 605,
    "speakers": 1_950,
    "streaming": 745,
    "system": 925,
    "text": 701,
    "train": 1_800,
    "transcription": 922,
    "transcripts": 1_220,
    "transducer": 850,
    "whisper": 2_283,
}
# Rooms of what comes next: parakeet 900, wav2vec2 600.
MAX_LINES_OF_CORE = 19_680  # all but the capabilities: one reads it in two days
CAPABILITIES = {
    *("formats", "language_models", "moonshine", "recipe", "research", "scale", "scoring/nist", "serve"),
    *("export", "shards", "speakers", "streaming", "transducer", "whisper"),
}
MAX_LINES_OF_TESTS = 37_900
MAX_UNUSED_SETTINGS = 16
MAX_MODULES = 60
MAX_FUNCTIONS = {"conformer": 520, "shipped": 560, "whisper": 560}


def trace(words: list[str], found: Path) -> None:
    """Run a command in a fork, write which modules of asr it loads, and which functions run."""
    forget("asr", "torch._dynamo")
    vars(torch).pop("_dynamo", None)
    cli, ran = importlib.import_module("asr.cli"), set[str]()
    root = f"{ROOT / 'asr'}/"

    def note(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        is_body = event == "call" and code.co_flags & 1 and code.co_filename.startswith(root)
        if is_body and code.co_name[0] != "<":  # no lambda or comprehension
            ran.add(f"{code.co_filename.removeprefix(root)}:{code.co_firstlineno}")

    sys.settrace(note)
    threading.settrace(note)
    status = cli.main(words)
    sys.settrace(None)
    loaded = sorted(name for name in sys.modules if name.split(".")[0] == "asr")
    found.write_text(json.dumps([status, loaded, sorted(ran), "torch._dynamo" in sys.modules]))


def count_lines(folder: Path, *suffixes: str) -> int:
    paths = [path for suffix in suffixes for path in folder.rglob(f"*{suffix}")]
    return sum(path.read_bytes().count(b"\n") for path in paths)


def count_by_folder() -> dict[str, int]:
    """Lines of each folder, without subfolders that have a number of their own."""
    counts = {name: count_lines(ROOT / "asr" / name, ".py", ".pyi") for name in MAX_LINES}
    counts["scoring"] -= counts["scoring/nist"]
    counts[""] -= sum(lines for name, lines in counts.items() if name)
    return counts


def test_lines() -> None:
    folders = {path.name for path in (ROOT / "asr").iterdir() if (path / "__init__.py").is_file()}
    assert {name for name in MAX_LINES if name and "/" not in name} == folders
    counts = count_by_folder()
    assert {name: lines for name, lines in counts.items() if lines > MAX_LINES[name]} == {}
    assert sum(lines for name, lines in counts.items() if name not in CAPABILITIES) <= MAX_LINES_OF_CORE
    assert count_lines(ROOT / "tests", ".py") <= MAX_LINES_OF_TESTS


def find_run_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker reads."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield child
            yield from find_run_nodes(child)


def read_imports(module: str) -> set[str]:
    """The modules of the package that a module imports, inside functions too."""
    found = set()
    for node in find_run_nodes(parse(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    paths = {name.removeprefix("asr.").replace(".", "/") for name in found if name.startswith("asr.")}
    return paths.intersection(MODULES) - {module}


def test_no_circles() -> None:
    """Modules that import each other, inside functions too, can only be read together."""
    imports = {module: read_imports(module) for module in MODULES}
    while free := {module for module, others in imports.items() if not others & imports.keys()}:
        imports = {module: others for module, others in imports.items() if module not in free}
    assert {module: others & imports.keys() for module, others in imports.items()} == {}


def find_keys(tree: Any, prefix: str = "") -> Iterator[str]:
    """Dotted keys that a conf or study sets, its overrides `key=value` too."""
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
    """Dotted keys of a config class, without sections."""
    keys = {key for key, _ in _known_keys(config)}
    return {key for key in keys if not any(other.startswith(f"{key}.") for other in keys)}


def test_no_two_files_have_one_name() -> None:
    """But for the families, whose files have the names of their tasks."""
    paths = [path for path in (ROOT / "asr").rglob("*.py") if path.name != "__init__.py"]
    names = [path.name for path in paths if path.parent.name not in FAMILIES[1:]]
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
    unused = find_settings(RunConfig) - used
    unused |= {key for key in call if key.rpartition(".")[2] not in shown}
    assert len(unused) <= MAX_UNUSED_SETTINGS, sorted(unused)


def test_the_way_from_audio_to_text(tmp_path: Path) -> None:
    """How much a reader of one transcription has to read: modules that are loaded, functions that run."""
    few = SIZES | {"n_text_ctx": 32}  # tokens: random weights seldom end by themselves
    models = {
        "conformer": save_talker(tmp_path / "model", "model.encoder.type=conformer"),
        "shipped": ROOT / "recipes" / "an4" / "pretrained",
        "whisper": write_huggingface(tmp_path / "tiny.en", make_weights(sizes=few), sizes=few),
    }
    rng = np.random.default_rng(0)
    soundfile.write(tmp_path / "noise.wav", rng.normal(scale=0.1, size=16_000).astype("float32"), 16_000)
    words = ["transcribe", str(tmp_path / "noise.wav"), "--set", "segmentation.method=none", "--model"]
    counts = {}
    for kind, model in models.items():
        process = get_context("fork").Process(target=trace, args=([*words, str(model)], tmp_path / kind))
        process.start()
        process.join(120)
        status, modules, functions, has_compiler = json.loads((tmp_path / kind).read_text())
        assert status == 0 and not has_compiler, "PyTorch's compiler takes most of a second to import"
        assert len(modules) <= MAX_MODULES, modules
        counts[kind] = len(functions)
    assert {kind: count for kind, count in counts.items() if count > MAX_FUNCTIONS[kind]} == {}, counts
