"""Models by their names on the hub, here one on this machine that answers well or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import soundfile
from hostile_audio import make_speechlike
from hub_examples import Hub, start_hub  # noqa: F401 (the fixture hub)
from huggingface_hub import constants
from system_examples import save_talker
from whisper_examples import make_weights, write_huggingface

import asr
from asr.cli import main
from asr.errors import UserError
from asr.families import find_family, find_model
from asr.train.start_from import load_source


@pytest.fixture
def model(hub: Hub, tmp_path: Path) -> Path:
    """A folder that is also on the hub, with a pickle next to it."""
    folder = save_talker(tmp_path / "model")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    hub.files["me/talker"] = {**files, "pytorch_model.bin": b"never asked for"}
    return folder


def test_a_name_is_a_model_everywhere(
    model: Path,
    hub: Hub,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level("INFO")
    recording = tmp_path / "a.wav"
    soundfile.write(recording, make_speechlike(1.0), 16_000)
    expected = asr.load_model(model).transcribe(recording).text
    assert asr.load_model("me/talker@v1").transcribe(recording).text == expected
    assert not [path for path in hub.requests if "resolve" in path and "pytorch_model" in path]
    assert main(["transcribe", str(recording), "--model", "me/talker"]) == 0
    caplog.clear()
    assert main(["info", "me/talker@v1.0"]) == 0
    assert len(hub.requests) > 1 and not [one for one in caplog.records if one.name.startswith("httpx")]
    said = capsys.readouterr().out
    assert said.startswith(expected) and "model.encoder.dim: 32" in said
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert load_source("me/talker").config == load_source(str(model)).config and not hub.requests


def test_a_family_is_known_by_its_files(hub: Hub, tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path / "tiny", make_weights())
    hub.files["me/german"] = {path.name: path.read_bytes() for path in folder.iterdir()}
    family = find_family("me/german@v1")
    assert family is not None and family.name == "Whisper"
    assert not [path for path in hub.requests if path.endswith(".safetensors")]
    assert family.find_weights("me/german@v1").is_file()


def test_a_path_is_no_name(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_talker(tmp_path / "me" / "talker")
    assert find_family("me/talker") is None and find_model("me/talker") == Path("me/talker")
    for path in ("../me/none", "none", "/me/none"):
        with pytest.raises(UserError, match="no model found"):
            find_model(path)
    assert not hub.requests


@pytest.mark.parametrize(
    ("name", "failures", "message"),
    [
        ("me/nothing", {}, "RepositoryNotFoundError.*check name and revision.*`hf auth login`"),
        ("me/talker@v9", {}, "me/talker@v9: .*RevisionNotFoundError.*check name and revision"),
        ("me/talker", {"api/models": 401}, "401.*for a private model ask for access, and run `hf auth login`"),
        ("me/talker", {"api/models": 403}, "403.*for a private model ask for access"),
        ("me/talker", {"api/models": 429}, "429.*try again later"),
        ("me/talker", {"api/models": 503}, "503.*try again later"),
        ("me/talker", {"safetensors": 500}, "nor on the hub .*try again later"),
        ("me/talker", {"safetensors": "cut"}, "nor on the hub "),
        ("me/talker", {"safetensors": "damaged"}, "model.safetensors: was damaged .*run the same command again"),
        ("me/talker", {"config.yaml": "damaged"}, "config.yaml: was damaged"),
    ],
)  # fmt: skip
def test_failures_are_told_and_overcome(
    model: Path, hub: Hub, name: str, failures: dict[str, Any], message: str
) -> None:
    hub.failures |= failures
    with pytest.raises(UserError, match=f"(?s){message}"):
        find_model(name)
    hub.failures.clear()
    for path in model.iterdir():
        assert (find_model("me/talker") / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("path", ["../config.json", "/etc/config.json", "a/../../b.txt", "a\\..\\b.json"])
def test_names_that_leave_the_folder(model: Path, hub: Hub, path: str) -> None:
    hub.files["me/talker"][path] = b"{}"
    with pytest.raises(UserError, match=r"me/talker: refused.*outside of its folder.*another model"):
        find_model("me/talker")
    assert not [path for path in hub.requests if "resolve" in path]


def test_what_is_too_large_or_no_model(model: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files |= {"me/pickle": {"model.pt": b"x"}, "me/link": {"config.yaml": b"../../../../etc/passwd"}}
    for name in ("me/pickle", "me/link"):
        with pytest.raises(UserError, match="no model found"):
            find_model(name)
    monkeypatch.setattr("asr.hub.MAX_BYTES", 1000)
    with pytest.raises(UserError, match=r"me/talker: refused, because the hub lists \d\d,\d\d\d bytes"):
        find_model("me/talker")
