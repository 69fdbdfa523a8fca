"""The server returns the texts of `asr transcribe`, byte for byte, at any number of concurrent requests."""

from __future__ import annotations

import concurrent.futures
import functools
import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from serve_examples import at_a_port, load_tiny, make_body

from asr import cli
from asr.recipe.speech_synthesis import synthesize
from asr.serve.app import build_app
from asr.serve.scheduler import Scheduler
from asr.serve.service import ServeConfig
from asr.transcription.model import Model
from asr.transcription.transcribe import load_recognizer

ROOT = Path(__file__).resolve().parents[2]
UNLIMITED = functools.partial(
    Scheduler, max_batch_seconds=1000.0
)  # so that batches are full even on a slow machine
NUM_FILES = 40
SPELLED = "R E N O;A N D R E W;ONE TWO THREE;ENTER FOUR FIVE;MAY TENTH;C M U;ERASE O T H;YES;STOP"


@functools.cache
def speak(number: int) -> tuple[np.ndarray, int]:
    """A different recording for each number; every tenth is longer and has pauses."""
    pieces = []
    for place in range(7 if number % 10 == 0 else 1):
        text = SPELLED.split(";")[(number + place) % 9]
        audio, rate = synthesize(text, rate=110 + 13 * (number % 9), pitch=30 + number % 40)
        pieces += [audio, np.zeros(round((0.2 + 0.3 * (place % 4)) * rate), np.float32)]
    return np.concatenate(pieces), rate


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("files")
    for number in range(NUM_FILES):
        soundfile.write(folder / f"{number:03}.wav", *speak(number))
    return sorted(folder.iterdir())


def ask_all(address: str, files: list[Path], name: str, at_once: int) -> dict[str, str]:
    def ask(path: Path) -> tuple[str, str]:
        body = make_body({"model": name}, path.read_bytes())
        headers = {"content-type": "multipart/form-data; boundary=b"}
        request = urllib.request.Request(f"http://{address}/v1/audio/transcriptions", body, headers)
        with urllib.request.urlopen(request, timeout=300) as answer:
            return path.stem, json.load(answer)["text"]

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return dict(pool.map(ask, files))


@pytest.mark.slow
def test_texts_equal_those_of_the_command_line(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(ROOT / "recipes" / "an4" / "pretrained")
    out = tmp_path / "out"
    words = ["transcribe", *map(str, files), "--model", model, "--device", "cpu", "--format", "json"]
    assert cli.main([*words, "--output-dir", str(out)]) == 0
    expected = {path.stem: json.loads(path.read_text())["text"] for path in out.rglob("*.json")}
    assert len(expected) == NUM_FILES and len(set(expected.values())) > 10
    monkeypatch.setattr("asr.serve.service.Scheduler", UNLIMITED)
    app = build_app({"an4": load_recognizer(model, "cpu")}, ServeConfig(), None)
    transcriber, sizes = app.state.service.models["an4"].scheduler.transcriber, list[int]()
    recognize = transcriber.recognize

    def note(segments: Any, request: Any) -> Any:
        sizes.append(len(segments))
        return recognize(segments, request)

    transcriber.recognize = note
    with at_a_port(app) as address:
        for at_once in (1, 8, 32):
            assert ask_all(address, files, "an4", at_once) == expected, f"{at_once} at once"
    assert max(sizes) > 4, "some batches are large"


@pytest.mark.slow
def test_whisper_texts_do_not_depend_on_other_requests(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    recognizer = load_tiny()
    expected = {path.stem: Model(recognizer).transcribe(path).text for path in files}
    monkeypatch.setattr("asr.serve.service.Scheduler", UNLIMITED)
    app = build_app({"tiny": recognizer}, ServeConfig(), None)
    with at_a_port(app) as address:
        for at_once in (1, 8, 32):
            assert ask_all(address, files, "tiny", at_once) == expected, f"{at_once} at once"
