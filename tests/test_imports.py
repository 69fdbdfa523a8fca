"""The layers: a module imports from below, or from its left; heavy packages stay where they belong."""

from __future__ import annotations

import ast
import functools
import gc
import importlib.util
import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

import asr
from asr.families import FAMILIES, find_families

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "asr"

# A package imports from those left of it; single files such as asr/errors.py from each other alone.
PACKAGES = ["", "audio", "text", "data", "formats", "transcripts", "features", "models", "decoding"]
PACKAGES += ["language_models", "system", "transducer", "batches", "shards", "scoring", "scoring/nist"]
PACKAGES += ["transcription", "scale", "evaluation", "research", "train", "export", "moonshine", "whisper"]
PACKAGES += ["speakers", "recipe", "serve", "streaming", "cli"]
TORCH_FREE_PACKAGES = ("", "text", "data", "formats", "scale", "transcripts", "scoring", "scoring/nist")
# Where the core imports a capability that can be taken away, when it is asked for.
CAPABILITIES = {"research"}  # folders that can be deleted: from below they are imported inside functions only
BORDERS = {
    ("scoring/alignments", "scoring/nist"),
    ("data/manifest_readers", "shards"),
    ("data/manifest_readers", "formats"),
}
BORDERS |= {("scoring/scored_files", "speakers"), ("decoding/decode", "language_models")}
MAX_SINGLE_FILES = 8
REFERENCES = {"jiwer", "librosa", "torchaudio"}  # tests compare with them; the package does without
# Inside functions, as the command line watches the load while torch is imported; for mypy alone.
LATE_TORCH = {"threads", "families"}
PUBLIC_FACE = {"__init__", "__main__"}  # the package itself may offer anything

MODULES = sorted(
    path.relative_to(PACKAGE).with_suffix("").as_posix()
    for path in PACKAGE.rglob("*.py")
    if path.stat().st_size
)


def package(module: str) -> str:
    return module.rpartition("/")[0]


def rank(module: str) -> int:
    """A command of a capability is in its folder, and above all the rest like the core's commands."""
    return PACKAGES.index("cli" if module.endswith("_command") else package(module))


@functools.cache
def parse(module: str) -> ast.Module:
    gc.disable()  # looking for garbage takes twice the time of parsing
    tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
    gc.enable()
    return tree


@functools.cache
def imported_names(module: str) -> set[str]:
    """Dotted names of all imports of a module, those inside functions too."""
    names = set()
    for node in ast.walk(parse(module)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"asr/{module}.py: relative import; write the whole name"
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def own_imports(module: str) -> set[str]:
    """The modules of this package that a module imports, as paths below asr/."""
    found = set()
    for name in imported_names(module):
        if name.startswith("asr."):
            path = name.removeprefix("asr.").replace(".", "/")
            if path in MODULES:
                found.add(path)
            elif f"{path}/__init__" in MODULES:
                found.add(f"{path}/__init__")
    return found


def needs_capability(module: str, other: str) -> bool:
    """Whether a module imports one of a capability when it is imported itself."""
    name = f"asr.{other.replace('/', '.')}"
    names = {node.module for node in parse(module).body if isinstance(node, ast.ImportFrom)}
    return name in names or name.rpartition(".")[0] in names


def has_its_extra(module: str) -> bool:
    """Whether the packages of an extra that a module needs, or another one of its package, are installed."""
    extras = {name.split(".")[0] for name in imported_names(module)} & {"starlette"}
    if not all(importlib.util.find_spec(name) for name in extras):
        return False
    siblings = [other for other in own_imports(module) if package(other) == "serve" == package(module)]
    return all(map(has_its_extra, siblings))


def test_a_package_imports_from_those_before_it() -> None:
    upwards = [
        f"asr/{module}.py imports asr/{other}.py, whose package comes later in PACKAGES"
        for module in MODULES
        for other in own_imports(module)
        if module not in PUBLIC_FACE | {"families"} and rank(other) > rank(module)
        if (module, package(other)) not in BORDERS
        if package(other) not in CAPABILITIES or needs_capability(module, other)
    ]
    assert upwards == []


def test_families_are_imported_in_one_place() -> None:
    """Only then can the folder of a family be deleted."""
    folders = tuple(f"asr.{name}." for name in FAMILIES)
    others = [module for module in MODULES if package(module) not in FAMILIES and module != "families"]
    assert [m for m in others if any(f"{name}.".startswith(folders) for name in imported_names(m))] == []


def test_every_family_is_found() -> None:
    assert [family.section for family in find_families()] == list(FAMILIES)


def test_few_files_are_in_no_package() -> None:
    assert len([module for module in MODULES if not package(module)]) <= MAX_SINGLE_FILES


def find_repeated(names: Iterable[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def test_no_two_public_classes_have_one_name() -> None:
    """But for what a Protocol asks of every family."""
    others = [m for m in MODULES if m.split("/")[0] not in FAMILIES[1:]]
    classes = [
        node.name
        for node in itertools.chain(*(parse(m).body for m in others))
        if isinstance(node, ast.ClassDef)
    ]
    assert find_repeated(name for name in classes if not name.startswith("_")) == set()


def test_heavy_libraries_stay_in_their_modules() -> None:
    for module in set(MODULES) - PUBLIC_FACE:
        libraries = {name.split(".")[0] for name in imported_names(module)}
        outside = libraries & {"recipes", "conf", "tools", "tests"}
        assert not outside, f"asr/{module}.py imports from outside the package"
        if package(module) in TORCH_FREE_PACKAGES and module not in LATE_TORCH:
            assert "torch" not in libraries, f"asr/{module}.py is in a package that does without torch"
        assert not libraries & REFERENCES, f"asr/{module}.py imports what only the tests install"


def run_script(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_transcribing_imports_little() -> None:
    """Nothing that a Whisper model does without."""
    assert "set()" in run_script(
        "import sys\n"
        "import asr.cli.transcribe_command, asr.transcription.transcribe, asr.whisper.manners\n"
        "from asr.audio.silero import load_silero\n"
        "load_silero(16_000)\n"
        "heavy = {'torchaudio', 'silero_vad', 'librosa', 'matplotlib', 'scipy', 'sentencepiece'}\n"
        "print(heavy & set(sys.modules))\n"
    )


def test_wrong_arguments_are_told_before_torch_is_imported() -> None:
    """A second of imports is long for a misspelled name."""
    calls = ["recipe list", "recipe show nothing", "transcribe", "transcribe no.wav", "train no.yaml"]
    calls += ["evaluate tiny no.jsonl", "align tiny no.jsonl --output x"]
    wrong = ("nothing", "base.en --language xx", "base.en --set x=1")
    calls += [f"transcribe FILE --model {words}" for words in wrong]
    said = run_script(f"""
import sys
from asr.cli import main
sys.stderr = sys.stdout
print(*[main([{__file__!r} if word == "FILE" else word for word in call.split()]) for call in {calls}])
assert "torch" not in sys.modules
""")
    assert said.endswith("0 2 2 2 2 2 2 2 2 2\n") and said.count("no such file; check the path") == 4


def test_recipes_do_not_import_each_other() -> None:
    for path in (ROOT / "recipes").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                aliases = [alias.name for alias in node.names]
                names = [node.module] if isinstance(node, ast.ImportFrom) else aliases
                assert not any((name or ".").startswith(("recipes", ".")) for name in names), (path, names)


@pytest.mark.slow
def test_every_module_imports_alone_and_leaves_no_trace() -> None:
    """No logging set up, no thread count, seed or environment changed by an import, nor by a model without weights;
    and PyTorch's compiler, a second to import, is left alone by both and by the optimizer."""
    script = f"""
import importlib, logging, os, random, sys, torch
environment = dict(os.environ)
threads, seed, generator = torch.get_num_threads(), torch.initial_seed(), random.getstate()
for name in {[m.replace("/", ".") for m in MODULES if m != "__main__" and has_its_extra(m)]!r}:
    importlib.import_module("asr." + name.removesuffix(".__init__"))
    assert dict(os.environ) == environment, name + " changes the environment"
    assert not logging.getLogger().handlers, name + " sets up logging"
    assert torch.get_num_threads() == threads, name + " changes the number of threads"
    assert torch.initial_seed() == seed and random.getstate() == generator, name + " draws or seeds"
drawn = torch.get_rng_state()
with importlib.import_module("asr.models.layers").without_weights():
    parts = torch.nn.Embedding(3, 5), torch.nn.Linear(3, 5), torch.nn.Conv1d(3, 5, 1), torch.nn.LayerNorm(5)
assert all(weight.is_meta for part in parts for weight in part.parameters())
assert torch.equal(torch.get_rng_state(), drawn)
layer = torch.nn.Linear(3, 5)
optimizer = importlib.import_module("asr.train.learner").AdamW(layer.parameters(), fused=True)
layer(torch.ones(3)).sum().backward()
optimizer.step()
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100)


def test_the_package_tells_what_it_offers() -> None:
    """`dir` has every public name before any of them is imported, and type checkers read our annotations."""
    assert set(asr.__all__) <= set(dir(asr))
    assert {"load_model", "score", "UserError", "Transcript"} <= set(asr.__all__)
    for name in asr.__all__:
        assert getattr(asr, name) is not None
    assert (PACKAGE / "py.typed").is_file()
