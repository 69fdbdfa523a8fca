"""The pages in docs/ and CONTRIBUTING.md: links lead somewhere, commands are understood, and tutorials run."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import asr
from asr.cli import import_command, main
from asr.config import _known_keys
from asr.data import read_manifest
from asr.moonshine.installed import find_installed
from asr.system.run_config import RunConfig
from asr.transcription.arguments import TranscriptionSettings
from asr.transcription.model import Options

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "CONTRIBUTING.md"]
TUTORIALS = ["first-file.md", "train-digits.md", "transcribe.md", "fine-tune-whisper.md", "own-corpus.md"]
TUTORIALS += ["phones.md", "transducer.md", "shards.md", "streaming.md", "compare.md", "add-encoder.md"]
TUTORIALS += ["score.md", "archive.md", "export.md"]
GUIDES = [*TUTORIALS, "models.md", "gpu.md"]  # the last two name models and devices that are not here
# Pages whose commands are run.
RUN = [*TUTORIALS, "manifests.md", "run-directories.md", "extend.md", "moonshine.md", "publish.md"]

# All that differs between what the pages show and what is run.
NOT_RUN = {  # they install, or need a model of AN4
    "make setup",
    ". .venv/bin/activate",
    "asr convert runs/an4/lstm_transformer models/an4 --dtype float16",
}
TWO = "train.steps=2 train.validate_every=2 train.save_every=2 train.log_every=1 optim.warmup_steps=1"
ADDED = {  # to any command that begins so: fewer updates
    "asr train conf/digits/ctc_lstm.yaml": TWO,
    "asr train conf/digits/live/conformer.yaml": TWO,
    "asr evaluate runs/digits/live_conformer": "--decoding ctc_greedy",
    "asr train conf/digits/transducer.yaml": TWO,
    "asr train docs/examples/commands/conf/lstm.yaml": "train.steps=6 train.validate_every=3 train.save_every=3"
    " train.log_every=1 optim.warmup_steps=2",
    "asr train docs/examples/fine_tune_whisper.yaml": f'start_from="$ASR_MODEL" {TWO}',
}
REPLACED = {
    "train.steps=700": "train.steps=8",  # the longer training of the page is two updates longer
    "train.steps=800": "train.steps=2",
    "--model base.en": '--model "$ASR_MODEL"',  # of random weights, unless a real one is given
    "--language de": "--language en",  # which those weights know
    "asr evaluate tiny": 'asr evaluate "$ASR_MODEL"',
}
STATUS = {"asr transcribe cut.wav": 1}  # of commands that do not end with 0


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def commands(page: Path) -> list[str]:
    """Lines of `sh` blocks, and lines behind a $ of `console` blocks, without comments."""
    found = []
    for language, block in re.findall(r"^```(sh|console)\n(.*?)^```", read(page), flags=re.M | re.S):
        lines = [line.split("    #")[0].strip() for line in block.splitlines()]
        if language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        found += [line for line in lines if line]
    return found


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", read(page)):
        if "://" in target:
            continue
        path, _, fragment = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), target
        is_seen = linked.resolve().is_relative_to(DOCS)
        assert is_seen or not page.is_relative_to(DOCS), f"{target}: MkDocs sees docs/ only"
        headings = re.findall(r"^#+ (.+)$", read(linked), flags=re.M) if fragment else []
        assert not fragment or fragment in map(anchor, headings), target


@pytest.mark.parametrize("page", [*PAGES, ROOT / "Makefile"], ids=lambda page: page.name)
def test_paths_exist(page: Path) -> None:
    """Paths of files in the repository; data/ and runs/ are made."""
    kept = r"(?:asr|conf|docs|recipes|tests|tools)"
    made = {"asr/research/tdnn.py", "tests/research/test_tdnn.py"}  # by the pages on what is added
    made |= {"asr/research/slot_decoder.py", "asr/toy", "asr/toy/__init__.py"}
    for path in re.findall(rf"(?<![\w./-]){kept}(?:/[\w.+-]*\w)+", read(page)):
        if path not in made and not re.search(r"NAME|MODULE|SYSTEM|\.\.\.", path):
            assert (ROOT / path).exists(), path
    for path, test in re.findall(r"(tests/[\w/]+\.py)::(\w+)", read(page)):
        assert f"\ndef {test}(" in read(ROOT / path), f"{path} has no {test}"


def test_titles_agree_with_the_navigation() -> None:
    """A page has one name: what the navigation calls it, its heading, and each word of its file's name."""
    text = read(ROOT / "mkdocs.yml")
    for title, page in re.findall(r"^      - \"?(.+?)\"?: ([a-z-]+)\.md$", text, flags=re.M):
        assert read(DOCS / f"{page}.md").startswith(f"# {title}\n"), page
        missing = [word for word in page.split("-") if word.removesuffix("s") not in title.lower()]
        assert not missing or page == "faq", f"{page}.md is called {title}"


# The questions that people ask first, where each is answered, and what the answer contains.
QUESTIONS = {
    "a folder": ("transcribe.md#many-files", "asr transcribe -r interviews"),
    "timestamps and subtitles": ("transcribe.md#formats", "--format srt"),
    "another language": ("models.md#languages", "--language de"),
    "fine-tuning in another language": ("models.md#fine-tune-in-another-language", "language: de"),
    "a GPU": ("gpu.md#choose-the-device", "--device cuda"),
    "data of my own": ("own-corpus.md#2-a-manifest", "asr manifest convert"),
    "fine-tuning of Whisper": ("fine-tune-whisper.md#2-fine-tune", "asr train"),
    "a comparison of two models": ("compare.md", "asr score"),
    "a model of my own": ("add-encoder.md#registration", "asr/research/kinds.py"),
    "a server": ("serve.md", "asr serve --model"),
    "speaker labels": ("diarization.md", "--diarize"),
}


def find_links(page: Path) -> set[Path]:
    targets = re.findall(r"\]\(([^)\s#]+\.md)(?:#[^)]*)?\)", read(page))
    return {(page.parent / target).resolve() for target in targets if "://" not in target}


def read_section(page: Path, fragment: str) -> str:
    """The text below a heading, up to the next one; the whole page without a fragment."""
    parts = re.split(r"^#+ (.+)\n", read(page), flags=re.M)
    texts = dict(zip(map(anchor, parts[1::2]), parts[2::2], strict=True))
    return texts[fragment] if fragment else read(page)


@pytest.mark.parametrize("start", [ROOT / "README.md", DOCS / "index.md"], ids=lambda page: page.name)
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_within_two_clicks(question: str, start: Path) -> None:
    target, answer = QUESTIONS[question]
    name, _, fragment = target.partition("#")
    page = DOCS / name
    assert answer in read_section(page, fragment)
    near = find_links(start)
    assert page in near or any(page in find_links(between) for between in near if between.is_file())


def test_every_page_is_in_the_navigation() -> None:
    settings = yaml.safe_load(read(ROOT / "mkdocs.yml"))
    entries = [entry for section in settings["nav"] for entry in section.values()]
    paths = [
        path for e in entries for path in ([e] if isinstance(e, str) else [p for d in e for p in d.values()])
    ]
    own = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert len(paths) == len(set(paths)) and own <= set(paths)
    assert all((ROOT / path).is_file() for path in set(paths) - own)  # by tools/site_pages.py
    overview = read(DOCS / "index.md")
    assert all(f"]({path})" in overview for path in own if path != "index.md")


@pytest.mark.parametrize("name", ["settings.md", "command-line.md", "packages.md"])
def test_the_reference_is_that_of_the_code(name: str) -> None:
    pages = runpy.run_path(str(ROOT / "tools" / "make_reference.py"))["PAGES"]
    message = "make it again: python tools/make_reference.py (or make format)"
    assert pages[name]() == read(DOCS / "reference" / name), message


@pytest.mark.parametrize("name", GUIDES)
def test_a_tutorial_begins_with_its_command(name: str) -> None:
    assert "\n```sh\n" in "\n".join(read(DOCS / name).splitlines()[:10])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_understood(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the real parser; inline ones too, where all their words are given."""
    inline = re.findall(r"`(asr \w+ [^`]+)`", read(page)) if page.name in GUIDES else []
    for command in [*commands(page), *inline]:
        for part in command.split(" | "):
            words = shlex.split(part.split(" > ")[0])
            if words[0] == "asr":
                module = import_command(words[1])
                monkeypatch.setattr(module, "run", lambda args: 0)
                assert main(words[1:]) == 0, part


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "recipes" / "guided_attention.md"], ids=lambda page: page.name
)
def test_settings_that_are_named_exist(page: Path) -> None:
    """Keys such as `decoding.beam`, alone or with a value, of a run, of transcribing or of Whisper."""
    known = {key for kind in (RunConfig, TranscriptionSettings) for key, _ in _known_keys(kind)}
    sections = "|".join({key.partition(".")[0] for key in known if "." in key})
    for key in re.findall(rf"`(?:--set )?((?:{sections})(?:\.[a-z_]+)+)(?:[=:][^`]*)?`", read(page)):
        is_file = key.rpartition(".")[2] in {"py", "json", "jsonl", "yaml", "safetensors", "bin"}
        assert key in known or is_file, f"{key}: no such setting"


def test_the_answer_shown_is_that_of_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    page = DOCS / "compare.md"
    assert main([*shlex.split(commands(page)[0])[1:], "--show", "0"]) == 0
    (shown,) = re.findall(r"```text\n(system .*?)```", read(page), flags=re.S)
    assert capsys.readouterr().out.endswith(shown)


def test_the_conf_and_recipe_shown_are_the_files() -> None:
    examples = DOCS / "examples"
    for page, path in {
        "own-corpus.md": "commands/conf/lstm.yaml",
        "fine-tune-whisper.md": "fine_tune_whisper.yaml",
    }.items():
        parts = re.findall(r"^```yaml\n(.*?)```", read(DOCS / page), flags=re.M | re.S)
        assert parts and all(f"\n{part}" in f"\n{read(examples / path)}" for part in parts)
    assert f"```python\n{read(examples / 'commands' / 'recipe.py')}```" in read(DOCS / "extend.md")


def test_the_settings_for_another_language_are_understood() -> None:
    """By the config that the page starts from: on the command line, and as the lines to change in a copy."""
    page = DOCS / "models.md"
    (command,) = [command for command in read(page).splitlines() if command.startswith("asr train")]
    conf, *overrides = shlex.split(command)[2:]
    config = RunConfig.load(ROOT / conf, overrides)
    (changes,) = re.findall(r"^```yaml\n(.*?)```", read(page), flags=re.M | re.S)
    changed = yaml.safe_load(changes)
    decoder = config.model_dump()["model"]["decoder"]
    assert changed["model"]["decoder"]["language"] == decoder["language"] == "de"
    assert {name: tuple(rules) for name, rules in changed["text"].items()} == config.text.model_dump()
    assert changed["data"].items() <= config.data.model_dump().items()
    assert (changed["output_dir"], changed["start_from"]) == (str(config.output_dir), config.start_from)


def test_confs_for_a_corpus_of_ones_own_take_the_settings_shown() -> None:
    rows = re.findall(r"^\| .*? hours? \| `(conf/\S+)` \| (.*?) \|", read(DOCS / "own-corpus.md"), flags=re.M)
    assert len(rows) == 4
    for conf, overrides in rows:
        assert RunConfig.load(ROOT / conf, re.findall(r"`(.+?)`", overrides)).features.cmvn == "utterance"


def test_the_registration_shown_is_the_patch(tmp_path: Path) -> None:
    patch = DOCS / "examples" / "tdnn.patch"
    added = [line for line in read(patch).splitlines() if re.match(r"\+(?!\+\+)", line)]
    assert "```diff\n" + "".join(f"{line}\n" for line in added) + "```" in read(DOCS / "add-encoder.md")
    (tmp_path / "asr/research").mkdir(parents=True)
    shutil.copy(ROOT / "asr/research/kinds.py", tmp_path / "asr/research")
    subprocess.run(["git", "apply", "--check", str(patch)], cwd=tmp_path, check=True)


def read_extensions() -> dict[str, tuple[list[int], list[Path]]]:
    """The table of docs/extend.md: new files, files touched and new lines of each example, and its files."""
    rows = re.findall(
        r"^\| (an? [^|]+?) \| (\d+) \| (\d+) \| (\d+) \| (.+) \|$", read(DOCS / "extend.md"), re.M
    )
    return {
        name: ([*map(int, counts)], [DOCS / path for path in re.findall(r"\]\((examples/[^)]+)\)", links)])
        for name, *counts, links in rows
    }


EXTENSIONS = read_extensions()
EXTENSION_PATCHES = sorted((DOCS / "examples" / "extend").glob("*.patch"))


@pytest.mark.parametrize("name", EXTENSIONS)
def test_an_extension_touches_what_the_table_says(name: str) -> None:
    counts, paths = EXTENSIONS[name]
    texts = [read(path) for path in paths if path.suffix == ".patch"]
    whole = [read(path).splitlines() for path in paths if path.suffix != ".patch"]
    num_new = len(whole) + sum(text.count("\n--- /dev/null") for text in texts)
    num_touched = sum(len(re.findall(r"^--- a/", text, re.M)) for text in texts)
    num_added = sum(len(re.findall(r"^\+(?!\+\+ )", text, re.M)) for text in texts)
    assert counts == [num_new, num_touched, num_added + sum(map(len, whole))]


def test_each_extension_has_its_row_and_fits_the_code() -> None:
    assert len(EXTENSIONS) == 6
    linked = {path for _, paths in EXTENSIONS.values() for path in paths}
    assert {*EXTENSION_PATCHES, DOCS / "examples" / "tdnn.patch"} <= linked
    subprocess.run(["git", "apply", "--check", *EXTENSION_PATCHES], cwd=ROOT, check=True)


@pytest.mark.slow
def test_extensions_work_together(tmp_path: Path) -> None:
    """In a copy of the package: the decoder and the kind of model are trained, method and format are used."""
    from tone_examples import TINY_RUN, write_tones

    shutil.copytree(ROOT / "asr", tmp_path / "asr", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "apply", *EXTENSION_PATCHES], cwd=tmp_path, check=True)
    (tmp_path / "run.yaml").write_text(TINY_RUN.format(folder=tmp_path, tones=write_tones(tmp_path)))
    encoder = "{type: lstm, dim: 16, num_layers: 1, subsampling: {channels: 4}}"
    steps = ["train.steps=3", "train.validate_every=3"]
    for words in (
        ["train", "run.yaml", "model.decoder={type: mean, dim: 16}", "model.guided_attention=null", *steps],
        ["train", "run.yaml", f"model={{type: counting, encoder: {encoder}}}", "train.select_by=loss",
         f"output_dir={tmp_path}/counting", *steps],
        ["transcribe", "dev-0.wav", "--model", "run", "--decoding", "ctc_eager", "--format", "labels",
         "--output-dir", "out", "--set", "segmentation.method=none", "--set", "checks=off"],
    ):  # fmt: skip
        # An editable installation would find in the checkout what is not in the copy.
        script = (
            "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in str(f).lower()]\n"
        )
        script += f"import asr; assert asr.__file__.startswith({str(tmp_path)!r})\n"
        script += "from asr.cli import main; sys.exit(main(sys.argv[1:]))"
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        subprocess.run([sys.executable, "-c", script, *words], cwd=tmp_path, env=environment, check=True)
    rows = (tmp_path / "out" / "dev-0.labels").read_text().splitlines()
    assert rows and all(len(row.split("\t")) == 3 for row in rows)


def test_export_from_hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows as `datasets` gives them without decoding; `datasets` itself is not needed."""
    from asr.audio import read as read_audio, write

    monkeypatch.syspath_prepend(str(DOCS / "examples"))
    export = importlib.import_module("from_huggingface").export
    samples = np.linspace(-0.5, 0.5, 8_000, dtype=np.float32)
    write(tmp_path / "a.wav", samples, 16_000)
    whole = {"bytes": (tmp_path / "a.wav").read_bytes(), "path": "a.wav"}
    rows = [
        {"audio": whole, "sentence": "one", "client_id": 7},
        {"audio": {"bytes": None, "path": str(tmp_path / "a.wav")}, "sentence": "two", "client_id": 8},
    ]
    assert export(rows, tmp_path / "out", "train", "sentence", "client_id") == 2
    first, second = read_manifest(tmp_path / "out" / "train.jsonl")
    assert (first.text, first.speaker, first.duration) == ("one", "7", 0.5)
    assert (second.text, second.speaker, second.id) == ("two", "8", "train-0000001")
    for utterance in (first, second):
        np.testing.assert_allclose(read_audio(utterance.audio, 16_000), samples, atol=1 / 32_768)


@pytest.mark.slow
def test_hugging_face_script(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from asr.audio import write

    write(tmp_path / "a.wav", np.linspace(-0.5, 0.5, 8_000, dtype=np.float32), 16_000)
    audio = {"bytes": (tmp_path / "a.wav").read_bytes(), "path": "a.wav"}
    (tmp_path / "in").mkdir()
    rows = pyarrow.table({"audio": [audio, audio], "text": ["one", "two"]})
    parquet.write_table(rows, tmp_path / "in" / "train.parquet")
    script = [sys.executable, str(DOCS / "examples" / "from_huggingface.py")]
    subprocess.run([*script, str(tmp_path / "in"), str(tmp_path / "out")], check=True)
    assert [u.text for u in read_manifest(tmp_path / "out" / "train.jsonl")] == ["one", "two"]


# --- from Python --------------------------------------------------------------------------------


def python_blocks() -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", read(DOCS / "python.md"), flags=re.M | re.S))


def test_the_python_page_names_all_that_there_is() -> None:
    page = read(DOCS / "python.md")
    assert [name for name in asr.__all__ if f"asr.{name}" not in page and f"`{name}`" not in page] == []
    assert [name for name in Options.__annotations__ if f"\n| `{name}` |" not in page] == []
    for kind in (asr.Transcript, asr.Segment, asr.Word, asr.Score, asr.Run):
        (row,) = re.findall(rf"^\| `{kind.__name__}` \| (.*) \|$", page, flags=re.M)
        named = set(re.findall(r"`(\w+)", row))
        assert named <= {*dir(kind), *kind.__dataclass_fields__}, kind


@pytest.mark.slow
def test_the_python_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tiny Whisper and a tiny run under the names of the page."""
    from tone_examples import TINY_RUN, write_tones
    from whisper_examples import make_weights, write_huggingface

    monkeypatch.chdir(tmp_path)
    write_huggingface(tmp_path / "base.en", make_weights())
    write_tones(tmp_path)
    for name in ("talk.m4a", "a.wav", "b.mp3"):
        shutil.copy("dev-0.wav", name)
    for name in ("ref.trn", "hyp.trn", "first.trn", "second.trn"):
        Path(name).write_text("five (a-1)\n")
    Path("conf/digits").mkdir(parents=True)
    Path("conf/digits/transformer.yaml").write_text(TINY_RUN.format(folder=tmp_path, tones=tmp_path))
    blocks = python_blocks().replace("start=3.0, duration=2.5", "start=0.1, duration=0.2")
    found: dict[str, Any] = {}
    exec(blocks, found)
    assert found["transcript"].duration > 0.3 and found["features"].shape[-1] == 80
    assert found["run"].metrics["wer"] >= 0 and asr.load_model(found["run"].model_dir)


@pytest.mark.slow
def test_type_checkers_see_the_types(tmp_path: Path) -> None:
    """The page has no problems; what is wrong is found, as nothing is Any."""
    wrong = ["asr.nonsense", "model.nonsense", "model.transcribe(1)", 'model.transcribe("a.wav", beam="five")',
             'model.transcribe("a.wav", beem=5)', "asr.train_model(3)", "transcript.words[0].start.upper()",
             "found.wer.upper()", "run.nonsense"]  # fmt: skip
    page = python_blocks()
    (tmp_path / "page.py").write_text(page + "\n".join(wrong) + "\n")
    command = [sys.executable, "-m", "mypy", "--config-file", os.devnull, "--follow-imports", "silent"]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "page.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    lines = [int(number) for number in re.findall(r"^page.py:(\d+): error", done.stdout, re.M)]
    first = page.count("\n") + 1
    assert sorted(set(lines)) == [*range(first, first + len(wrong))], done.stdout + done.stderr


# --- tutorials, as typed ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_tutorial_runs(name: str, tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader")
    if name == "archive.md":
        pytest.importorskip("ray", reason="the extra ray is not installed")
    if name == "export.md":
        pytest.importorskip("onnxruntime", reason="the extra export is not installed")
    if name == "moonshine.md" and find_installed("moonshine-base") is None:
        pytest.skip("moonshine-cpp is not installed, which has the weights of Moonshine base")
    folder = make_checkout(tmp_path)
    environment = make_environment(tmp_path, folder)
    if name in ("transcribe.md", "archive.md", "moonshine.md"):
        make_recordings(folder)
    for command in commands(DOCS / name):
        if command in NOT_RUN:
            continue
        typed = command
        for start, more in ADDED.items():
            if command.startswith(start):  # the last value of a setting counts: the page's, if it gives one
                typed = typed.replace(start, f"{start} {more}")
        for shown, instead in REPLACED.items():
            typed = typed.replace(shown, instead)
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", typed], cwd=folder, env=environment, capture_output=True
        )
        said = (done.stdout + done.stderr).decode()
        assert done.returncode == STATUS.get(command, 0), f"{typed}\n{said}"
        assert "Traceback" not in said, f"{typed}\n{said}"
        # After two updates, no word is recognized.
        is_quiet = "--stream" in command or not command.startswith("asr ")
        assert done.stdout or done.stderr or is_quiet, f"{typed} says nothing"


def make_checkout(tmp_path: Path) -> Path:
    """A copy of what the tutorials use, since they write into it."""
    folder = tmp_path / "checkout"
    for name in ("asr", "docs", "tests", "conf", "recipes"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


# What arecord writes into a pipe at -f S16_LE -r 16000: a WAV of 2 GiB, whatever comes.
ARECORD_HEADER = (
    r"RIFF\044\000\000\200WAVEfmt \020\000\000\000\001\000\001\000\200\076\000\000"
    r"\000\175\000\000\002\000\020\000data\000\000\000\200"
)


def make_environment(tmp_path: Path, folder: Path) -> dict[str, str]:
    """`asr` and `python` of this interpreter, with the copy; a Whisper model, and a microphone that plays a file."""
    from whisper_examples import make_weights, write_huggingface

    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    scripts = {
        "asr": f'exec "{sys.executable}" -m asr "$@"',
        "python": f'exec "{sys.executable}" "$@"',
        "arecord": f"printf '{ARECORD_HEADER}'; head -c 64000 /dev/zero",
    }
    for name, script in scripts.items():
        (bin_folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (bin_folder / name).chmod(0o755)
    model = write_huggingface(tmp_path / "whisper", make_weights())
    return os.environ | {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
        "ASR_MODEL": os.environ.get("ASR_MODEL", str(model)),
        "OMP_NUM_THREADS": "1",
    }


def make_recordings(folder: Path) -> None:
    """What the page on transcribing calls talk.mp3, interviews, call.wav and cut.wav."""
    import soundfile

    from asr.recipe import synthesize

    first, rate = synthesize(
        "Good morning. The meeting is at nine o'clock on Monday. Please bring the report."
    )
    second, _ = synthesize("Yes, I will be there.", voice="en-us+f2")
    (folder / "interviews").mkdir()
    for name in ("talk.mp3", "interviews/one.wav", "interviews/two.flac"):
        soundfile.write(folder / name, first, rate)
    call = np.zeros((len(first) + len(second), 2), np.float32)
    call[: len(first), 0], call[len(first) :, 1] = first, second
    soundfile.write(folder / "call.wav", call, rate)
    whole = (folder / "interviews/one.wav").read_bytes()
    (folder / "cut.wav").write_bytes(whole[: len(whole) // 2])
