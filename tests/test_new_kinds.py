"""A new family is a folder and one line; a new kind of decoder is a file and its lines in a table. Each in a copy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from tone_examples import TINY_RUN, write_tones

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "examples"
MOST_LINES = {"toy_family.py": 40, "slot_decoder.py": 60}
# An editable installation would find in the checkout what is not in the copy.
ALONE = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in str(f).lower()]\n"


def copy_package(folder: Path, name: str, target: str, **changes: tuple[str, str]) -> Path:
    """A copy of the package with an example in it, and changed lines in other files."""
    assert len((EXAMPLES / name).read_text().splitlines()) <= MOST_LINES[name]
    shutil.copytree(ROOT / "asr", folder / "asr", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / target).parent.mkdir(exist_ok=True)
    shutil.copy(EXAMPLES / name, folder / target)
    for path, (old, new) in changes.items():
        changed = folder / "asr" / f"{path.replace('__', '/')}.py"
        text = changed.read_text()
        assert text.count(old) == 1
        changed.write_text(text.replace(old, new))
    return folder


def run(folder: Path, script: str, *words: str, given: bytes = b"") -> str:
    done = subprocess.run(
        [sys.executable, "-c", ALONE + script, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        input=given,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def call(folder: Path, *words: str, given: bytes = b"") -> str:
    script = f"import asr; assert asr.__file__.startswith({str(folder)!r})\n"
    return run(folder, f"{script}from asr.cli import main; sys.exit(main(sys.argv[1:]))", *words, given=given)


SERVE = """
from starlette.testclient import TestClient
from asr.audio import SegmentationConfig
from asr.decoding.hypothesis import ChecksConfig
from asr.serve.app import build_app
from asr.serve.service import ServeConfig
from asr.serve.live import LiveTranscriber, transcribe_live
from asr.transcription.transcribe import load_recognizer
import asr, soundfile
whole = SegmentationConfig(method="none")
recognizer = load_recognizer("7.toy", "cpu", "float32", whole, ChecksConfig.off())
audio_S, rate = soundfile.read("a.wav", dtype="float32")
live = [text for text in transcribe_live([audio_S[:8000], audio_S[8000:]], LiveTranscriber(recognizer), rate)]
assert any(text.segment is not None for text in live)
with TestClient(build_app({"toy": recognizer}, ServeConfig(hosts=("testserver",)))) as client:
    files = {"file": ("a.wav", open("a.wav", "rb"))}
    answer = client.post("/v1/audio/transcriptions", files=files, data={"model": "toy"})
    print(answer.json()["text"])
"""


@pytest.mark.parametrize(("page", "example"), [("add-family", "toy_family"), ("add-decoder", "slot_decoder")])
def test_the_page_shows_the_example(page: str, example: str) -> None:
    code = (EXAMPLES / f"{example}.py").read_text()
    assert f"```python\n{code}```" in (ROOT / "docs" / f"{page}.md").read_text()


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy_package(
        tmp_path_factory.mktemp("toy"),
        "toy_family.py",
        "asr/toy/__init__.py",
        families=('FAMILIES = ("whisper", ', 'FAMILIES = ("toy", "whisper", '),
    )
    noise_S = np.random.default_rng(0).normal(scale=0.1, size=24_000).astype(np.float32)
    soundfile.write(folder / "a.wav", noise_S, 16_000)
    (folder / "7.toy").touch()
    row = {"id": "a", "audio": "a.wav", "duration": 1.5, "text": "one two"}
    (folder / "test.jsonl").write_text(json.dumps(row) + "\n")
    return folder


def test_a_toy_family(toy: Path) -> None:
    """Commands that know no family by name."""
    whole = ["--set=segmentation.method=none", "--set=checks=off"]
    text = call(toy, "transcribe", "a.wav", "--model", "7.toy", *whole)
    assert text.strip(), "random weights write something"
    written = "--model=7.toy", *whole, "--output-dir=out", "--format=json"
    assert call(toy, "transcribe", "a.wav", *written) == ""
    assert json.loads((toy / "out" / "a.json").read_text())["text"].split() == text.split()
    streamed = (toy / "a.wav").read_bytes()
    assert call(toy, "transcribe", "--stream", "--model=7.toy", *whole, given=streamed).strip()
    (score,) = json.loads(call(toy, "evaluate", "7.toy", "test.jsonl", "--json", *whole))["methods"].values()
    assert score["decoding"]["beam"] == 3
    assert json.loads(call(toy, "info", "7.toy", "--json"))["model"]["seed"] == 7
    call(toy, "convert", "7.toy", "8.toy")
    assert (toy / "8.toy").exists()
    call(toy, "align", "7.toy", "test.jsonl", "--output", "aligned.jsonl")
    assert json.loads((toy / "aligned.jsonl").read_text())["extras"]["word_times"].startswith("one:")
    assert run(toy, SERVE).strip()


def test_a_toy_decoder(tmp_path: Path) -> None:
    """It is trained, its loss is reported, and its own method decodes."""
    copy_package(
        tmp_path,
        "slot_decoder.py",
        "asr/research/slot_decoder.py",
        research__kinds=(
            "DECODERS = {",
            "from asr.research import slot_decoder\n\nDECODERS = {\n"
            "    slot_decoder.SlotDecoderConfig: slot_decoder.SlotDecoder,",
        ),
    )
    kinds = tmp_path / "asr" / "research" / "kinds.py"
    kinds.write_text(kinds.read_text().replace("METHODS = {", 'METHODS = {"slots": slot_decoder.METHOD, '))
    (tmp_path / "run.yaml").write_text(TINY_RUN.format(folder=tmp_path, tones=write_tones(tmp_path)))
    decoder = ["model.decoder={type: slots, slots: 8}", "model.guided_attention=null", "model.ctc_weight=0.0"]
    call(tmp_path, "train", "run.yaml", *decoder, "train.steps=3", "train.validate_every=3")
    (log,) = tmp_path.rglob("log.jsonl")
    assert '"slots"' in log.read_text()
    found = json.loads(call(tmp_path, "evaluate", "run", "dev.jsonl", "--json", "--set=checks=off"))
    assert list(found["methods"]) == ["slots"]
