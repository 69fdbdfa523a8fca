"""Models published to a hub on this machine: they come back the same, and nothing goes that must not."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub_examples import Hub, start_hub  # noqa: F401 (the fixture hub)
from safetensors.torch import load_file, save_file
from system_examples import save_talker
from torch import zeros

from asr.cli import main
from asr.families import find_model

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = save_talker(tmp_path / "talker")
    (folder / "README.md").write_text("Listens at /v1/audio or the like.\n")
    return folder


@pytest.fixture
def publish(hub: Hub, model: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*options: str) -> tuple[int, str]:
        status = main(["publish", str(model), "me/talker", "--license", "cc-by-4.0", *options])
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


def write_results(model: Path, path: Path) -> str:
    score = {"error_rate": 0.125, "interval": [0.1, 0.15], "reference_length": 1200}
    record = {"model": str(model), "manifest": "data/test.jsonl", "methods": {"joint": {"score": score}}}
    path.write_text(json.dumps(record))
    return str(path)


def test_what_is_published_comes_back(hub: Hub, model: Path, publish: Run, tmp_path: Path) -> None:
    hub.files["me/talker"] = {"decoding.yaml": b"of an older model", "picture.png": b"stays"}
    status, said = publish("--results", write_results(model, tmp_path / "results.json"))
    assert status == 0 and "/me/talker/commit/" in said
    there = hub.files["me/talker"]
    card = there.pop("README.md").decode()
    files = {path.name: path.read_bytes() for path in model.iterdir() if path.name != "README.md"}
    assert there == files | {"picture.png": b"stays"}
    assert "license: cc-by-4.0\n" in card and "- Training set: train.jsonl\n" in card
    assert "| test.jsonl | joint | 12.50 | 10.00 to 15.00 | 1,200 |\n" in card and "Listens at" in card
    loaded = load_file(find_model("me/talker") / "model.safetensors")
    expected = load_file(model / "model.safetensors")
    assert loaded.keys() == expected.keys() and all(loaded[name].equal(expected[name]) for name in loaded)


def test_the_card_loads_the_weights_without_us(
    hub: Hub, model: Path, publish: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert publish()[0] == 0
    (script,) = re.findall(r"```python\n(.*?)```", hub.files["me/talker"]["README.md"].decode(), flags=re.S)
    monkeypatch.setitem(sys.modules, "asr", None)
    names = dict[str, Any]()
    exec(script, names)
    expected = load_file(model / "model.safetensors")
    assert all(names["weights"][name].equal(weight) for name, weight in expected.items())
    assert "weights in all, with config.yaml and tokenizer.json" in capsys.readouterr().out
    assert set(names["settings"]["config.yaml"]) > {"model", "features", "tokenizer"}


def test_a_dry_run_tells_all_and_sends_nothing(hub: Hub, model: Path, publish: Run) -> None:
    status, said = publish("--dry-run")
    sizes = {
        name: int(size.replace(",", "")) for size, name in re.findall(r"^ +([\d,]+) (\S+)$", said, flags=re.M)
    }
    expected = {path.name: path.stat().st_size for path in model.iterdir()}
    card = said.partition("files\n\n")[2]
    assert status == 0 and sizes == expected | {"README.md": len(card.encode()) - 1}
    assert card.startswith("---\n") and "| not measured | | | | |" in card
    assert not hub.requests


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("training.safetensors", b"", "not a file of a model that is passed on; publish a folder that `asr convert`"),
        ("pytorch_model.bin", b"", "not a file of a model"),
        ("more.safetensors", b"PK\3\4 a pickle in disguise", "not a file in the format safetensors"),
        ("a.wav", b"", "not a file of a model"),
        (".git/config.txt", b"", "not a file of a model"),
        ("link.txt", None, "not a file of a model"),
        ("words.txt", b"key hf_" + b"a1" * 17, "looks like a password or key"),
        ("notes.md", b"-----BEGIN OPENSSH PRIVATE KEY-----", "looks like a password or key"),
        ("more.yaml", b"url: https://me:pass@host/x", "looks like a password or key"),
        ("more.json", b'{"train": "/corpora/an4/train.jsonl"}', "names '/corpora/an4/train.jsonl', a path of one"),
        ("graph.onnx", b"\0\x12File /home/me/model.py\0", "names '/home/me', a path"),
        ("README.md", b"---\nlicense: mit\n---\n", "README.md: a model card"),
    ],
)  # fmt: skip
def test_what_must_not_go(
    hub: Hub, model: Path, publish: Run, name: str, content: bytes | None, message: str
) -> None:
    path = model / name
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(model / "config.yaml") if content is None else path.write_bytes(content)
    status, said = publish()
    assert status == 2 and name in said and message in said and not hub.requests


def test_a_path_in_the_header_of_weights(model: Path, publish: Run) -> None:
    save_file({"x": zeros(1)}, model / "more.safetensors", {"made": "in /home/me/runs"})
    assert "more.safetensors: names '/home/me'" in publish()[1]


def test_refusals(
    hub: Hub, model: Path, publish: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "none.json: cannot read the file" in publish("--results", str(tmp_path / "none.json"))[1]
    results = write_results(tmp_path / "other", tmp_path / "results.json")
    assert f"results of {tmp_path / 'other'}; evaluate {model} itself" in publish("--results", results)[1]
    for other in ("state.json", "model.safetensors"):
        assert "expected what `asr evaluate" in publish("--results", str(model / other))[1]
    hub.failures["create"] = 429
    assert publish()[1].endswith("try again later)\n")
    hub.failures.clear()
    assert publish()[0] == 0
    assert "me/talker: is public, so leave out --private" in publish("--private")[1]
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    assert "me/talker: was not published" in publish()[1]
    (model / "model.safetensors").unlink()
    assert "no folder with weights; publish a folder that `asr convert`" in publish()[1]
    assert main(["publish", str(model), "talker", "--license", "mit"]) == 2
