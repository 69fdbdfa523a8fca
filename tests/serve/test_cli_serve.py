"""`asr serve`: options, models by name, the process from its start to SIGTERM, and the files that deploy it."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from asr.config import build_config
from asr.serve.serve_command import DRAIN_SECONDS, add_arguments, load_models
from asr.serve.service import ServeConfig

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PRETRAINED = ROOT / "recipes" / "an4" / "pretrained"


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def test_models_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []

    def load(source: str, *_: Any, **__: Any) -> Any:
        loaded.append(source)
        return argparse.Namespace(compute_type="float32 on cpu")

    monkeypatch.setattr("asr.transcription.transcribe.load_recognizer", load)
    words = ["--model", "runs/an4/conformer", "--model", "whisper-1=turbo"]
    models = load_models(parse(words), ServeConfig())
    assert list(models) == ["conformer", "whisper-1"] and loaded == ["runs/an4/conformer", "turbo"]
    with pytest.raises(ValueError, match="the name conformer is used twice"):
        load_models(parse([*words, "--model", "other/conformer"]), ServeConfig())


@pytest.mark.slow
def test_the_process_serves_until_sigterm(tmp_path: Path) -> None:
    options = ["--model", f"an4={PRETRAINED}", "--device", "cpu", "--port", "0"]
    words = [sys.executable, "-m", "asr", "serve", *options]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = next(found[0] for line in process.stderr if (found := re.search(r"http://[\d.:]+", line)))
        models = json.load(urllib.request.urlopen(f"{address}/v1/models"))
        assert [model["id"] for model in models["data"]] == ["an4"]
        assert urllib.request.urlopen(address).read().startswith(b"<!doctype html>")
        process.send_signal(signal.SIGTERM)
        log = process.stderr.read()
        assert process.wait(20) in (0, -signal.SIGTERM)
    assert '"route": "/v1/models"' in log


def test_commands_in_deploy_are_valid_and_leave_time_and_room() -> None:
    image = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]["asr"]
    unit = (DEPLOY / "asr.service").read_text(encoding="utf-8")
    proxy = (DEPLOY / "Caddyfile").read_text(encoding="utf-8")

    def find(pattern: str, text: str) -> str:
        (found,) = re.findall(pattern, text, re.MULTILINE)
        return str(found)

    entry = json.loads(find(r"^ENTRYPOINT (\[.*\])$", image)) + json.loads(find(r"^CMD (\[.*\])$", image))
    for words in (entry[2:], compose["command"], shlex.split(find(r"^ExecStart=\S+ serve (.*)$", unit))):
        assert parse(words).model == ["base"]
    config = build_config(ServeConfig, [])
    assert int(compose["stop_grace_period"].rstrip("s")) > DRAIN_SECONDS
    assert int(find(r"TimeoutStopSec=(\d+)", unit)) > DRAIN_SECONDS
    assert int(find(r"max_size (\d+)MB", proxy)) > config.max_upload_mb
    packaging = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert find(r"torch>=[^'\"]+", packaging) in image
