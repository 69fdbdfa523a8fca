"""Messages show values as YAML and JSON write them, never as Python does."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asr.audio.reading import read
from asr.config import build_config
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig
from asr.errors import UserError, import_extra, shorten
from asr.language_models.ngram import read_arpa
from asr.system.decoding_resources import DecodingResources
from asr.transcription.arguments import TranscriptionSettings


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (True, "true"),
        ("don't", '"don\'t"'),
        (b"<html>", "'<html>'"),
        ("Grüße".encode(), "'Grüße'"),
        ("Grüße".encode("latin-1"), r"'Gr\\xfc\\xdfe'"),
        (("a", None), '["a", null]'),
        ({"a": [True, 1.5]}, '{"a": [true, 1.5]}'),
        (Path("/a/b"), "'/a/b'"),
        ([Path("/a/b")], '["/a/b"]'),
        (["x" * 100], f'["{"x" * 55}...'),
        (list(range(100)), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16..."),
        (float("nan"), "NaN"),
        ({1}, '"{1}"'),
        ("x" * 1000, f"'{'x' * 56}..."),
    ],
)
def test_values(value: object, shown: str) -> None:
    assert shorten(value) == shown


def test_messages(tmp_path: Path) -> None:
    """Of each kind one that had b'...', None, True, a list or a tuple of Python in it."""
    (tmp_path / "page.mp3").write_text("<html><body>" * 99)
    (tmp_path / "a.arpa").write_text("\\data\\\nngram 1=2\n\n\\1-grams:\n-1\ta\n\n\\end\\\n")

    def fail(call: Any, *args: Any) -> str:
        with pytest.raises(UserError) as caught:
            call(*args)
        return str(caught.value)

    assert "not audio: '<html><body>" in fail(read, tmp_path / "page.mp3", 16_000)
    assert "a.arpa: 1 n-grams, but its header has 2;" in fail(read_arpa, tmp_path / "a.arpa")
    assert "line_width = null: " in fail(build_config, TranscriptionSettings, ["subtitles.line_width=null"])
    assert "segmentation is true, not" in fail(
        build_config, TranscriptionSettings, ["segmentation=true", "segmentation.method=none"]
    )
    assert ChecksConfig(max_compression=None).describe() == "on, max_compression null"
    bundled = DecodingResources(decoding=DecodingConfig(speeds=(0.9, 1.0)))
    assert bundled.describe() == "speeds [0.9, 1.0]"


def test_a_missing_package_comes_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages come from the metadata of the installation; no package index has asr itself."""
    lines = ["torch<3,>=2.11", "ray>=2.60; extra == 'ray'", "ray>=2.60; extra == 'slow'"]
    lines += ["uvicorn>=0.40; extra == 'serve'", "websockets>=15; extra == 'serve'"]
    own = SimpleNamespace(requires=lines)
    monkeypatch.setattr("importlib.metadata.distributions", lambda name: [own])
    for extra, packages in {"ray": "'ray>=2.60'", "serve": "'uvicorn>=0.40' 'websockets>=15'"}.items():
        with pytest.raises(UserError) as raised:
            import_extra("no_such_module", "this", extra)
        expected = f"this needs no_such_module, which is not installed; run: pip install {packages}"
        assert str(raised.value) == expected
    own.requires = None
    with pytest.raises(UserError, match=r"run: pip install '\.\[ray\]'$"):
        import_extra("no_such_module", "this", "ray")


def test_extras_that_the_code_names_exist() -> None:
    tomllib = pytest.importorskip("tomllib")
    root = Path(__file__).resolve().parent.parent
    offered = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    code = "\n".join(path.read_text() for path in (root / "asr").rglob("*.py"))
    named = re.findall(r"import_extra\([^)]*\"(\w+)\"\)", code)
    assert len(named) == 7 and {*named} <= {*offered}
    assert "pip install asr" not in code and "asr-toolkit[" not in code
