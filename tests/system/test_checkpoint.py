"""asr/system/checkpoint.py: self-contained folders, and errors for damaged or hostile ones."""

from __future__ import annotations

import pickle
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from asr import files
from asr.errors import UserError
from asr.families import find_model
from asr.files import find_shipped
from asr.system.checkpoint import average_weights, describe_commit, find_commit, save_checkpoint
from asr.system.run_config import RunConfig
from asr.system.system import load_state, load_system
from asr.train.distributed import Process
from asr.train.preparation import prepare_system


@pytest.fixture
def folder(tiny_run: Callable[..., RunConfig], tmp_path: Path) -> Path:
    """A checkpoint of an untrained model."""
    system = prepare_system(tiny_run(), Process(0, 1, torch.device("cpu")))
    save_checkpoint(tmp_path / "saved", system, {"step": 7})
    return tmp_path / "saved"


def test_what_is_saved_is_loaded(folder: Path, tiny_run: Callable[..., RunConfig]) -> None:
    system = load_system(folder)
    assert system.config == tiny_run()
    stored = load_file(folder / "model.safetensors")
    for name, tensor in system.model.state_dict().items():
        assert torch.equal(tensor, stored[f"model.{name}"])
    state = load_state(folder)
    assert state["step"] == 7 and state["torch"] == torch.__version__ and state["commit"]
    assert {path.name for path in folder.iterdir()} == {
        "model.safetensors", "config.yaml", "tokenizer.json", "state.json",
    }  # fmt: skip


class Bomb:
    """A pickle that writes a file if it is executed."""

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, ("unpickled", "w")


def put_pickle(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(pickle.dumps(Bomb()))


def put_torch_file(folder: Path) -> None:
    torch.save({"model": Bomb()}, folder / "model.safetensors")


def truncate(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def claim_much(folder: Path) -> None:
    """A header that claims a length of 2^62 bytes."""
    (folder / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")


def change_tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return spoil


def change_config(before: str, after: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        text = (folder / "config.yaml").read_text()
        assert before in text
        (folder / "config.yaml").write_text(text.replace(before, after, 1))

    return spoil


HEAD = "model.ctc_head.bias"
DEFECTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "pickle": (put_pickle, "damaged safetensors file"),
    "torch file": (put_torch_file, "damaged safetensors file"),
    "truncated": (truncate, "damaged safetensors file"),
    "huge header": (claim_much, "damaged safetensors file"),
    "empty": (lambda folder: (folder / "model.safetensors").write_bytes(b""), "damaged safetensors file"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "no such file"),
    "no config": (lambda folder: (folder / "config.yaml").unlink(), "config.yaml: cannot read the file"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json: cannot read the file"),
    "missing weight": (change_tensors(lambda tensors: tensors.pop(HEAD)), "weights ctc_head.bias are missing"),
    "unknown weight": (change_tensors(lambda tensors: tensors.update({"model.x": torch.ones(1)})), "weights x are (1,), expected none"),
    "wrong shape": (change_tensors(lambda tensors: tensors.update({HEAD: torch.ones(3)})), "ctc_head.bias are (3,)"),
    "another config": (change_config("dim: 32", "dim: 64"), "Is config.yaml that of"),
    "40 GB of weights": (change_config("dim: 32", "dim: 90000"), "Is config.yaml that of"),
    "layers without end": (change_config("num_layers: 1", "num_layers: 1000"), "but there are"),
    "a key too much": (change_config("seed: 0", "seed: 0\nhook: os.system"), "unknown key hook"),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFECTS)
def test_damage_is_reported_and_no_code_runs(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    spoil, message = DEFECTS[name]
    spoil(folder)
    with pytest.raises(UserError) as caught:
        load_system(folder)
    assert message in str(caught.value) and str(folder) in str(caught.value)
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize("content", ["", "[]", "{", "\x00"])
def test_a_damaged_state_is_reported(folder: Path, content: str) -> None:
    (folder / "state.json").write_text(content)
    with pytest.raises(UserError, match=r"state\.json"):
        load_state(folder)


def test_average_is_the_mean(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    change_tensors(lambda tensors: tensors.update({name: t + 2.0 for name, t in tensors.items()}))(other)
    average = average_weights([folder, other])
    stored = load_file(folder / "model.safetensors")
    for name, tensor in average.items():
        torch.testing.assert_close(tensor, stored[f"model.{name}"] + 1.0)


def test_find_model(folder: Path, tmp_path: Path) -> None:
    assert find_model(folder) == folder
    run = tmp_path / "somewhere"
    with pytest.raises(UserError, match="no model found"):
        find_model(run)
    for name in ("checkpoints/step-00000002", "checkpoints/step-00000010"):
        shutil.copytree(folder, run / name)
    assert find_model(run).name == "step-00000010"
    shutil.copytree(folder, run / "model")
    assert find_model(run) == run / "model"


def test_the_old_folder_is_removed_after_the_new_one_is_in_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, removed = load_system(folder), []
    save_checkpoint(folder, system, {"note": "old"})

    def remove(path: Path, **_: object) -> None:
        if path.exists():
            removed.append((load_state(path)["note"], load_state(folder)["note"]))

    monkeypatch.setattr("asr.system.checkpoint.shutil.rmtree", remove)
    save_checkpoint(folder, system, {"note": "new"})
    assert removed == [("old", "new")]


# --- the commit, and files in the package ---------------------------------------------------------


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


def test_the_commit_is_read_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    commits = iter(["at the start", "later"])
    monkeypatch.setattr("asr.system.checkpoint.describe_commit", lambda root: next(commits))
    find_commit.cache_clear()
    try:
        assert find_commit() == find_commit() == "at the start"
    finally:
        find_commit.cache_clear()


def test_files_in_the_package_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package finds them in its own folder; a file in the current folder takes precedence."""
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
