"""The README and the map of packages are true: commands, output, results."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
from test_imports import PACKAGES

from asr.cli import import_command, main

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def duty(path: Path) -> str:
    """The first line of a module's docstring, without its full stop."""
    documentation = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert documentation, f"{path} does not say what it is for"
    return documentation.splitlines()[0].rstrip(".")


def package_table() -> str:
    """One line a package: its name and its duty, in the order of imports."""
    return "".join(
        f"asr/{name:14} {duty(ROOT / 'asr' / name / '__init__.py')}\n" for name in PACKAGES if name
    )


def test_every_file_says_its_duty() -> None:
    for path in (ROOT / "asr").rglob("*.py"):
        assert duty(path)


def test_every_package_is_listed_with_its_duty() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert package_table() in page, f"the list of packages in the page should be:\n{package_table()}"


def test_the_map_names_what_is_there() -> None:
    rows = re.findall(
        r"\| `(asr/\S+)` \| `(\w+)` \|", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    )
    assert len(rows) >= 20
    for path, name in rows:
        code = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^(?:def|class) {name}\b|^{name}\b", code, re.MULTILINE), f"{path}: no {name}"


def code_blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


def split_command(line: str) -> list[str]:
    return shlex.split(re.split(r"\s{2,}", line)[0])[1:]


SHOWN_LINES = [line for block in code_blocks("") for line in block.splitlines() if line.startswith("asr ")]


@pytest.mark.parametrize("line", SHOWN_LINES)
def test_commands_take_the_arguments_shown(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is parsed by the real parser; what it does is tested elsewhere."""
    words = split_command(line)
    module = import_command(words[0])
    monkeypatch.setattr(module, "run", lambda args: 0)
    assert main(words) == 0


@pytest.mark.slow
def test_commands_of_digits_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that need no files of the reader's, on the data and models of the smoke test."""
    pytest.importorskip("espeakng_loader")
    monkeypatch.chdir(tmp_path)
    commands = [split_command(line) for line in SHOWN_LINES if "digits" in line and "score" not in line]
    assert commands.pop(0) == ["recipe", "run", "digits", "--smoke"]
    assert main(["recipe", "run", "digits", "--smoke"]) == 0
    for kind in ("data", "runs"):
        Path(kind, "digits").symlink_to("digits-smoke")
    for words in commands:
        if words[0] == "train":
            words += ["train.steps=2", "train.validate_every=2", "train.save_every=2", "optim.warmup_steps=1"]
        assert main(words) == 0, f"{words}: {capsys.readouterr().err}"


def test_scoring_prints_what_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    (block,) = (block for block in code_blocks("") if "asr score" in block)
    command, *shown = filter(None, block.splitlines())
    assert main(split_command(command)) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert set(shown) <= set(printed)


def test_the_readme_is_short_and_begins_with_a_command_and_its_output() -> None:
    """The output and the picture come before Install; the two commands that set all up have a section of their own."""
    assert len(README.splitlines()) <= 130
    first, *_, set_up = README.partition("## Install")[0], README.partition("## Set-up in one command")[2]
    assert set_up and {"make demo", "make test"} <= {line[:9] for line in set_up.splitlines()[:10]}
    command, text = re.findall(r"```console\n\$ (asr .*)\n(.*) \.\.\.\n```", first)[0]
    tutorial = (ROOT / "docs" / "first-file.md").read_text(encoding="utf-8")
    assert f"\n{command}\n" in tutorial and f"\n{text}" in tutorial
    assert first.index("```console") < first.index("(docs/images/serve.png)")


def test_the_line_that_installs_serves_the_quick_start() -> None:
    """`asr serve` needs one extra, the recipe digits the other; no index has the package itself."""
    (extras,) = re.findall(r'^pip install "\.\[(.*)\]"$', README, re.MULTILINE)
    assert {*extras.split(",")} == {"serve", "digits"}
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").glob("*")]
    texts = {path.name: path.read_text(encoding="utf-8") for path in pages}
    assert [
        name
        for name, text in texts.items()
        if re.search(r"install '?asr-toolkit|\basr(-toolkit)?\[[a-z]", text)
    ] == []
    offered = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    for name, text in texts.items():
        named = {extra for extras in re.findall(r"['\"]\.\[([a-z,]+)\]", text) for extra in extras.split(",")}
        assert named <= {*offered, "NAME"}, name
