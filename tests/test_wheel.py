"""The wheel, installed into an empty environment away from the checkout: recipes, confs and the model come along."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import asr

ROOT = Path(__file__).resolve().parent.parent
MAX_BYTES = 12_000_000
FEW_UPDATES = [
    "train.steps=2",
    "train.validate_every=1",
    "train.save_every=1",
    "optim.warmup_steps=1",
    "train.device=cpu",
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(ROOT)], check=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment with the wheel; what it depends on is that of these tests."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    present = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("".join(f"{path}\n" for path in present))
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    return folder / "bin"


@pytest.mark.slow
def test_the_wheel_is_whole_and_small(wheel: Path) -> None:
    assert wheel.name == f"asr_toolkit-{asr.__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < MAX_BYTES
    files = [path for path in (ROOT / "asr").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert {path.relative_to(ROOT).as_posix() for path in files} <= packed
    assert "asr/shipped/recipes/digits/results/results.json" in packed
    assert not any(name.endswith(".jsonl.gz") or "/studies/" in name for name in packed)


@pytest.mark.slow
def test_pages_in_the_wheel_have_no_links_out_of_it(wheel: Path) -> None:
    """Results and docs stay in the repository, so nothing leads there."""
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        pages = {name: packed.read(name).decode() for name in names if name.endswith(".md")}
    assert "asr/shipped/recipes/an4/README.md" in pages
    for name, text in pages.items():
        for target in re.findall(r"\]\(([^)\s#]+)", text):
            path = os.path.normpath(os.path.join(os.path.dirname(name), target))
            is_there = path in names or any(own.startswith(f"{path}/") for own in names)
            assert is_there or re.match("[a-z]+:", target), f"{name}: {target}"


def test_links_to_what_is_not_shipped_become_their_text() -> None:
    pytest.importorskip("hatchling")
    drop = runpy.run_path(str(ROOT / "hatch_build.py"))["drop_links"]
    shipped = {"recipes/a/README.md", "recipes/b/README.md", "conf/a/x.yaml"}
    text = "[b](../b/README.md#x) [conf](../../conf/a) [r](results/report.md) ![p](studies/p.svg)[web](https://x.y) [up](#top)"
    kept = "[b](../b/README.md#x) [conf](../../conf/a) r [web](https://x.y) [up](#top)"
    assert drop(text, "recipes/a/README.md", shipped) == kept


@pytest.mark.slow
def test_recipes_confs_and_the_model_work_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [installed / arguments[0], *arguments[1:]],
            cwd=tmp_path,
            env=environment | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run("python", "-c", "import asr; print(asr.__file__)")
    assert Path(where).is_relative_to(installed.parent), "not that of the checkout"
    assert {line.split()[0] for line in run("asr", "recipe", "list").splitlines()} >= {
        "an4",
        "digits",
        "fsdd",
    }
    run("asr", "recipe", "run", "digits", "--smoke", "--only", "ctc_lstm")
    assert "ctc_lstm" in (tmp_path / "runs" / "digits-smoke" / "report" / "report.md").read_text()
    data = [f"data.{split}=data/digits-smoke/{split}.jsonl" for split in ("train", "dev")]
    run("asr", "train", "conf/digits/ctc_lstm.yaml", *data, *FEW_UPDATES)
    assert (tmp_path / "runs" / "digits" / "ctc_lstm" / "model" / "model.safetensors").is_file()
    audio = next((tmp_path / "data" / "digits-smoke" / "audio" / "test").glob("*.wav"))
    assert run("asr", "transcribe", str(audio), "--model", "recipes/an4/pretrained").strip()
    texts = [str(tmp_path / "data" / "digits-smoke" / "test.jsonl")] * 2
    run("asr", "score", *texts, "--html", "page.html")
    assert "<style>" in (tmp_path / "page.html").read_text()
