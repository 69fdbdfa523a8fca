"""asr/files.py: without the folders of the families, native models are transcribed with and trained."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_imports import has_its_extra
from tone_examples import TINY_RUN, write_tones

import asr
from asr.families import FAMILIES, find_families

PACKAGE = Path(asr.__file__).parent


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package that has no family of pretrained models."""
    folder = tmp_path_factory.mktemp("bare")
    without = shutil.ignore_patterns("__pycache__", *FAMILIES)
    shutil.copytree(PACKAGE, folder / "asr", ignore=without)
    return folder


def run_bare(bare: Path, script: str, *words: str) -> str:
    """What a script prints that imports `asr` from the copy."""
    # An editable installation would find in the checkout what is not in the copy.
    alone = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in str(f).lower()]\n"
    check = f"import asr; assert asr.__file__.startswith({str(bare)!r}), asr.__file__\n"
    done = subprocess.run(
        [sys.executable, "-c", alone + check + script, *words],
        cwd=bare,
        env={**os.environ, "PYTHONPATH": str(bare)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_family_is_found() -> None:
    assert [family.section for family in find_families()] == list(FAMILIES)


@pytest.mark.slow
def test_everything_imports_without_families(bare: Path) -> None:
    modules = [
        ".".join(path.relative_to(bare).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((bare / "asr").rglob("*.py"))
        if path.stem != "__main__"
        and has_its_extra(path.relative_to(bare / "asr").with_suffix("").as_posix())
    ]
    assert len(modules) > 100 and not any("whisper." in module for module in modules)
    script = f"""
import importlib, sys
for name in {modules!r}:
    importlib.import_module(name)
assert not [name for name in sys.modules if name.startswith("asr.whisper")]
from asr.cli import main
from asr.models import ENCODERS
from asr.text import Tokenizer
assert "whisper" not in [kind.model_fields["type"].default for kind in ENCODERS]
print(main(["transcribe", "talk.wav", "--model", "whisper-tiny"]))
try:
    Tokenizer("whisper", ("a",) * 9)
except asr.UserError as error:
    print(error)
"""
    status, error = run_bare(bare, script).splitlines()
    assert status == "2" and error.startswith("tokenizer.type = whisper: not to be had here")


@pytest.mark.slow
def test_training_and_transcribing_work_without_families(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TINY_RUN.format(folder=tmp_path, tones=write_tones(tmp_path)))
    script = """
import sys
from asr.audio import SegmentationConfig
tones = SegmentationConfig(method="none")  # no voice detector takes them for speech
model = asr.load_model(asr.train_model(sys.argv[1], ["train.steps=6"]).model_dir, device="cpu", segmentation=tones)
print(model.transcribe(sys.argv[2]).duration)
"""
    printed = run_bare(bare, script, str(tmp_path / "run.yaml"), str(tmp_path / "dev-0.wav"))
    assert float(printed.splitlines()[-1]) > 0.3
