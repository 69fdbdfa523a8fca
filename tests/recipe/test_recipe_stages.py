"""Recipes are found, loaded, downloaded and prepared; the command line around that."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from asr.cli import main
from asr.errors import UserError
from asr.recipe import Experiment, load_recipe, run_recipe

ROOT = Path(__file__).resolve().parents[2]

RECIPE = '''"""A corpus of one utterance.

It says so twice.
"""
from pathlib import Path
from asr.data import Utterance, write_manifest

from asr.recipe import Recipe

def download(target_dir: Path) -> Path:
    (target_dir / "inner").mkdir(parents=True)
    return target_dir / "inner"

def prepare(corpus_dir, output_dir) -> None:
    with open(output_dir / "calls", "a") as calls:
        print(corpus_dir, file=calls)
    for split in ("train", "dev", "test"):
        utterance = Utterance(id=split, audio=str(corpus_dir / "a.wav"), duration=1800.0)
        write_manifest(output_dir / f"{split}.jsonl", [utterance])

RECIPE = Recipe(
    license="public domain",
    hours=0.5,
    prepare=prepare,
    urls=("http://127.0.0.1:1/corpus.tar.gz",),
    download=download,
)
'''
SOURCE = """
    urls=("http://127.0.0.1:1/corpus.tar.gz",),
    download=download,
"""


@pytest.fixture
def recipes_dir(tmp_path: Path) -> Path:
    return write_recipe(tmp_path / "recipes", "tiny", RECIPE)


@pytest.fixture(autouse=True)
def current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_recipe(recipes_dir: Path, name: str, source: str) -> Path:
    (recipes_dir / name).mkdir(parents=True, exist_ok=True)
    (recipes_dir / name / "recipe.py").write_text(source, encoding="utf-8")
    return recipes_dir


def make_experiment(recipes_dir: Path, corpus_dir: Path | None = None) -> Experiment:
    return Experiment(load_recipe("tiny", recipes_dir), None, corpus_dir)


def read_calls() -> list[str]:
    return Path("data/tiny/calls").read_text().splitlines()


# --- finding and loading ------------------------------------------------------------------------


def test_a_recipe_is_loaded(recipes_dir: Path) -> None:
    recipe = load_recipe("tiny", recipes_dir)
    assert recipe.summary == "A corpus of one utterance."
    assert recipe.description == "A corpus of one utterance.\n\nIt says so twice."
    assert (recipe.name, recipe.license, recipe.hours) == ("tiny", "public domain", 0.5)
    assert not any(name.endswith("tiny") for name in sys.modules)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tini", "no recipe 'tini'; did you mean tiny?"),
        ("../tiny", "no recipe '../tiny'"),
        ("", "there are tiny"),
    ],
)
def test_an_unknown_name(recipes_dir: Path, name: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        load_recipe(name, recipes_dir)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (RECIPE, "x = (", "cannot be loaded (SyntaxError"),
        ("RECIPE =", "raise SystemExit(3)\nRECIPE =", "cannot be loaded (SystemExit: 3)"),
        ("license=", "licence=", "unknown key licence (value 'public domain'); did you mean license?"),
        ("    prepare=prepare,\n", "", "prepare is missing; add it"),
        ("hours=0.5", "hours='1'", "hours = '1': expected a valid number"),
        ("RECIPE = Recipe(", "dict(", "builds 0 recipes; expected one, such as RECIPE = Recipe("),
        (RECIPE.partition("from")[0], "", "begin it with a docstring"),
    ],
)
def test_a_recipe_that_is_not_one(recipes_dir: Path, old: str, new: str, message: str) -> None:
    write_recipe(recipes_dir, "tiny", RECIPE.replace(old, new, 1))
    with pytest.raises(UserError) as error:
        load_recipe("tiny", recipes_dir)
    assert str(error.value).startswith(f"{recipes_dir}/tiny/recipe.py: ")
    assert message in str(error.value)


# --- stages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["recipe", "corpus", "manifest", "done file", "damaged done file"])
def test_a_stage_runs_again_when_its_inputs_have_changed(
    recipes_dir: Path, tmp_path: Path, change: str
) -> None:
    run_recipe(make_experiment(recipes_dir, tmp_path))
    corpus_dir = tmp_path
    if change == "recipe":
        write_recipe(recipes_dir, "tiny", RECIPE + "\n")
    elif change == "corpus":
        corpus_dir = recipes_dir
    elif change == "manifest":
        Path("data/tiny/dev.jsonl").unlink()
    elif change == "done file":
        Path("data/tiny/.prepare.done").unlink()
    else:
        Path("data/tiny/.prepare.done").write_text("[")
    run_recipe(make_experiment(recipes_dir, corpus_dir))
    assert read_calls() == [str(tmp_path), str(corpus_dir)]


def test_a_failed_stage_is_not_done(recipes_dir: Path, tmp_path: Path) -> None:
    run_recipe(make_experiment(recipes_dir, tmp_path))
    failing = RECIPE.replace(
        "    for split", "    raise OSError(28, 'No space left on device', 'x.wav')\n    for split"
    )
    write_recipe(recipes_dir, "tiny", failing)
    with pytest.raises(UserError, match=r"x\.wav: No space left on device; run the same command"):
        run_recipe(make_experiment(recipes_dir, tmp_path))
    write_recipe(recipes_dir, "tiny", RECIPE)
    run_recipe(make_experiment(recipes_dir, tmp_path))
    assert len(read_calls()) == 3


def test_one_stage_alone(recipes_dir: Path, tmp_path: Path) -> None:
    message = r"tiny: there is no corpus yet; leave --stage out to download it\. Or"
    with pytest.raises(UserError, match=message):
        run_recipe(make_experiment(recipes_dir), "prepare")
    run_recipe(make_experiment(recipes_dir), "download")
    assert not Path("data/tiny/calls").exists()
    run_recipe(make_experiment(recipes_dir), "prepare")
    assert read_calls() == [f"{tmp_path}/data/tiny/corpus/inner"]
    shutil.rmtree("data/tiny/corpus")
    run_recipe(make_experiment(recipes_dir))
    assert Path("data/tiny/corpus/inner").is_dir(), "what has been deleted is downloaded again"


def test_a_corpus_that_cannot_be_downloaded(recipes_dir: Path) -> None:
    write_recipe(recipes_dir, "tiny", RECIPE.replace(SOURCE, "source='order it at example.org'"))
    with pytest.raises(UserError, match=r"order it at example\.org\. Or pass --corpus-dir FOLDER"):
        run_recipe(make_experiment(recipes_dir))


def test_what_is_prepared_is_used_without_asking_again(recipes_dir: Path, tmp_path: Path) -> None:
    """A given copy prevents any download, also when prepare is repeated."""
    run_recipe(make_experiment(recipes_dir, tmp_path))
    run_recipe(make_experiment(recipes_dir))
    assert not Path("data/tiny/corpus").exists() and read_calls() == [str(tmp_path)]
    write_recipe(recipes_dir, "tiny", RECIPE + "\n")
    run_recipe(make_experiment(recipes_dir))
    assert not Path("data/tiny/corpus").exists() and read_calls() == [str(tmp_path)] * 2
    run_recipe(make_experiment(recipes_dir, recipes_dir))
    run_recipe(make_experiment(recipes_dir))
    assert read_calls()[2:] == [str(recipes_dir)]


def test_a_manifest_that_prepare_no_longer_writes(recipes_dir: Path, tmp_path: Path) -> None:
    """It is not taken from the older run, whether the recipe wrote it then or someone else did."""
    write_recipe(recipes_dir, "tiny", RECIPE.replace('"dev", "test")', '"dev", "test", "train_all")'))
    run_recipe(make_experiment(recipes_dir, tmp_path))
    Path("data/tiny/mine.jsonl").write_text("")
    write_recipe(recipes_dir, "tiny", RECIPE)
    run_recipe(make_experiment(recipes_dir, tmp_path))
    assert {path.name for path in Path("data/tiny").glob("*.jsonl")} == {
        *("train.jsonl", "dev.jsonl", "test.jsonl", "mine.jsonl")
    }


@pytest.mark.parametrize("splits", ['("train", "dev")', '("train", "dev", "test")'])
def test_a_split_that_is_missing_or_empty(recipes_dir: Path, tmp_path: Path, splits: str) -> None:
    """The one of an earlier run is not taken for new."""
    run_recipe(make_experiment(recipes_dir, tmp_path))
    source = RECIPE.replace('("train", "dev", "test")', splits)
    write_recipe(recipes_dir, "tiny", source.replace("[utterance])", "[utterance] * (split != 'test'))"))
    for _ in range(2):
        message = r"data/tiny/test\.jsonl: the prepare function of the recipe wrote no"
        with pytest.raises(UserError, match=message):
            run_recipe(make_experiment(recipes_dir, tmp_path))


def test_wrong_values_in_prepare_are_an_error_of_the_recipe(
    recipes_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """However it builds its records."""
    checked = "Utterance.model_validate(dict(id=split, audio=str(corpus_dir / 'a.wav'), duration='long'))"
    plain = 'Utterance(id=split, audio=str(corpus_dir / "a.wav"), duration=1800.0)'
    assert plain in RECIPE
    write_recipe(recipes_dir, "tiny", RECIPE.replace(plain, checked))
    arguments = ["recipe", "run", "tiny", "--recipes-dir", "recipes", "--corpus-dir", str(tmp_path)]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert "asr: recipes/tiny/recipe.py: Utterance: duration = 'long': expected a valid number" in said
    assert "Traceback" not in said and "pydantic" not in said


# --- command line -------------------------------------------------------------------------------


def test_list(recipes_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A broken recipe is listed with its error."""
    write_recipe(recipes_dir, "broken", "x = (")
    write_recipe(recipes_dir, "ending", f"{RECIPE}\nraise SystemExit")
    assert main(["recipe", "list", "--recipes-dir", str(recipes_dir)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["recipe", "hours", "download", "results", "corpus"]
    assert lines[1].startswith(
        f"broken  broken: {recipes_dir}/broken/recipe.py: cannot be loaded (SyntaxError"
    )
    assert "ending/recipe.py: cannot be loaded (SystemExit" in lines[2]
    assert lines[3] == "tiny       0.5   unknown  no       A corpus of one utterance."
    assert main(["recipe", "list", "--recipes-dir", str(ROOT / "recipes")]) == 0
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert rows["librispeech"][:4] == ["982.0", "60.0", "GB", "no"]
    assert rows["digits"][:3] == ["1.0", "none", "yes"] and rows["wsj"][:3] == ["82.5", "by", "hand"]


@pytest.mark.parametrize("answer", ["y", "n", ""])
def test_a_large_download_is_asked_for_on_a_terminal(
    recipes_dir: Path, answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["recipe", "run", "tiny", "--stage", "download", "--recipes-dir", str(recipes_dir)]
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(command) == 0 and "[y/N]" not in capsys.readouterr().err, "it is small"
    shutil.rmtree("data/tiny/corpus")
    write_recipe(recipes_dir, "tiny", RECIPE.replace("hours=0.5", "hours=0.5, download_mb=18_757"))
    assert main(command) == (0 if answer == "y" else 2)
    shown = capsys.readouterr().err
    assert shown.startswith("tiny: size of the download: 18.8 GB. Start it? [y/N] ")
    assert ("nothing was downloaded" in shown) == (answer != "y") == (not Path("data/tiny/corpus").exists())
    assert main([*command, "--yes"]) == 0 and "[y/N]" not in capsys.readouterr().err


def test_force_does_again_what_is_done(recipes_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["recipe", "run", "tiny", "--recipes-dir", str(recipes_dir)]
    for options, calls in (([], 1), ([], 1), (["--force"], 2), (["--stage", "prepare", "--force"], 3)):
        assert main([*command, *options]) == 0
        assert len(read_calls()) == calls


def test_run(recipes_dir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A recipe without systems ends after prepare."""
    arguments = ["recipe", "run", "tiny", "--recipes-dir", str(recipes_dir), "--corpus-dir", str(tmp_path)]
    assert main([*arguments, "--output-dir", "elsewhere"]) == 0
    assert capsys.readouterr().out == "".join(
        f"elsewhere/{split}.jsonl  1 utterances  0.50 hours\n" for split in ("dev", "test", "train")
    )
    assert main([*arguments, "--stage", "prepare"]) == 0
    written = {".prepare.done", "calls", "dev.jsonl", "test.jsonl", "train.jsonl"}
    assert set(os.listdir("data/tiny")) == written and not Path("runs").exists()
    assert main([*arguments, "--only", "transformer"]) == 2
    assert "--only transformer: no system of this name; there are none" in capsys.readouterr().err


def test_smoke_mode_prepares_in_its_own_way(recipes_dir: Path, tmp_path: Path) -> None:
    source = RECIPE.replace(
        "def prepare(corpus_dir, output_dir)", "def prepare(corpus_dir, output_dir, seconds=1800.0)"
    )
    source = source.replace("duration=1800.0", "duration=seconds").replace(
        "RECIPE =", "from functools import partial\nRECIPE ="
    )
    small = "prepare_smoke=partial(prepare, seconds=1.0), prepare=prepare"
    write_recipe(recipes_dir, "tiny", source.replace("prepare=prepare", small))
    recipe = load_recipe("tiny", recipes_dir)
    run_recipe(Experiment(recipe, given_corpus_dir=tmp_path, smoke=True))
    run_recipe(Experiment(recipe, given_corpus_dir=tmp_path))
    assert '"duration":1.0' in Path("data/tiny-smoke/train.jsonl").read_text()
    assert '"duration":1800.0' in Path("data/tiny/train.jsonl").read_text()


def test_help_needs_no_heavy_package() -> None:
    script = """
import sys
from asr.cli import main
try:
    main(["recipe", "run", "--help"])
except SystemExit as ended:
    assert ended.code == 0
assert not {"torch", "numpy", "pydantic", "soundfile"} & set(sys.modules)
"""
    shown = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    options = set(re.findall(r"--[a-z-]+", shown)) - {"--help"}
    assert options == {
        *("--stage", "--only", "--seeds", "--corpus-dir", "--output-dir", "--recipes-dir"),
        *("--smoke", "--set", "--force", "--yes", "--quiet", "--verbose"),
    }
