"""The commit that a result names, and what comes along with the package."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from asr import files
from asr.files import find_shipped
from asr.system import describe_commit, find_commit


def test_the_commit_of_a_checkout(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert describe_commit(tmp_path) == "unknown"
    results, code = tmp_path / "recipes" / "tones" / "results", tmp_path / "code.py"
    results.mkdir(parents=True)
    git("init")
    for path in (code, results / "report.md"):
        path.write_text("1")
    git("add", "-A")
    git("commit", "-m", "first")
    commit = git("rev-parse", "HEAD")[:12]
    assert describe_commit(tmp_path) == commit
    (results / "report.md").write_text("2")
    (results / "new.jsonl").write_text("1")
    assert describe_commit(tmp_path) == commit, "figures say nothing of the code that made them"
    (tmp_path / ".git" / "info" / "exclude").write_text("/runs/\n")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "log.jsonl").write_text("1")
    assert describe_commit(tmp_path) == commit, "git ignores it"
    new = tmp_path / "package" / "new.py"
    new.parent.mkdir()
    new.write_text("1")
    assert describe_commit(tmp_path) == f"{commit}-dirty", "a source file that no commit has"
    new.unlink()
    code.write_text("2")
    assert describe_commit(tmp_path) == f"{commit}-dirty"


def test_the_commit_is_that_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    commits = iter(["at the start", "later"])
    monkeypatch.setattr("asr.system.checkpoint.describe_commit", lambda root: next(commits))
    find_commit.cache_clear()
    try:
        assert find_commit() == find_commit() == "at the start"
    finally:
        find_commit.cache_clear()


def test_what_comes_along_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an installed package in its own folder; a file of that name in the current folder comes first."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "CHECKOUT", tmp_path / "site-packages")
    monkeypatch.setattr(files, "SHIPPED", tmp_path / "shipped")
    for folder in ("shipped/conf", "shipped/other"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.yaml").touch()
    assert find_shipped("conf/a.yaml") == tmp_path / "shipped" / "conf" / "a.yaml"
    for name in ("conf/b.yaml", "other/a.yaml", "conf/../other/a.yaml", "/conf/a.yaml"):
        assert find_shipped(name) == Path(name)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "a.yaml").touch()
    assert find_shipped("conf/a.yaml") == Path("conf/a.yaml")
