"""asr/config.py: what a run file may contain, and the messages about anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pydantic
import pytest
from hypothesis import example, given, settings, strategies as st

from asr.config import Config, choose_by_type, describe_config, dump_config, load_config
from asr.errors import UserError


class Optimizer(Config):
    learning_rate: float = 1e-3
    """Peak step size."""
    steps: int
    """How many updates."""
    speeds: tuple[float, ...] = (1.0,)
    limit: int | None = None

    @pydantic.model_validator(mode="after")
    def _check(self) -> Optimizer:
        if self.limit is not None and self.limit > self.steps:
            raise ValueError(f"limit {self.limit} is over steps {self.steps}")
        return self


class Recurrent(Config):
    type: Literal["recurrent"] = "recurrent"
    cells: int = 4


class Attention(Config):
    type: Literal["attention"]
    heads: int = 4
    name: str = "plain"


class Run(Config):
    train: Optimizer
    """How it learns."""
    model: choose_by_type([Recurrent, Attention], None) = Recurrent()  # type: ignore[valid-type]


def load(folder: Path, text: str, *overrides: str) -> Run:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(Run, path, overrides)


def test_defaults_and_values(tmp_path: Path) -> None:
    run = load(tmp_path, "train:\n  steps: 3\n  learning_rate: 1e-4\n  speeds: [0.9, 1, 1.1]\n")
    assert run.train == Optimizer(steps=3, learning_rate=0.0001, speeds=(0.9, 1.0, 1.1))
    assert run.model == Recurrent()


@pytest.mark.parametrize(
    "word", ["no", "yes", "on", "off", "y", "12:30:45", "2001-01-01", "0x1F", "1_000", "~x", "NO"]
)
def test_words_stay_words(tmp_path: Path, word: str) -> None:
    """YAML 1.1 would make False, 45045, a date, 31 or 1000 of these."""
    run = load(tmp_path, f"train: {{steps: 1}}\nmodel:\n  type: attention\n  name: {word}\n")
    assert isinstance(run.model, Attention) and run.model.name == word


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        ("train:\n  steps: 3\n", ["train.steps=5"], 5),
        ("train:\n  steps: 3\n", ["train.steps=5", "train.steps=7"], 7),
        ("", ["train.steps=5"], 5),
        ("train:\n", ["train.steps=5"], 5),
    ],
)
def test_overrides(tmp_path: Path, text: str, overrides: list[str], expected: int) -> None:
    assert load(tmp_path, text, *overrides).train.steps == expected


PROBLEMS = [
    # run file, overrides, what the message must hold
    ("train:\n  learning_rat: 1e-3\n  steps: 3\n", [], "run.yaml:2: unknown key train.learning_rat (value 0.001); did you mean train.learning_rate?"),
    ("train:\n  steps: 3\nlearning_rate: 1\n", [], "run.yaml:3: unknown key learning_rate (value 1); expected train, model"),
    ("train:\n  steps: 3%s\n" % ("0" * 5000), [], "run.yaml:2: train.steps = '3000"),
    ("train:\n  steps: three\n", [], "run.yaml:2: train.steps = 'three': expected a valid integer"),
    ("train:\n  steps: 2.0\n", [], "train.steps = 2.0: expected a valid integer"),
    ("train:\n  steps: 3\n  speeds: [1, fast]\n", [], "train.speeds.1 = 'fast': expected a valid number"),
    ("train:\n  steps: 3\n  learning_rate: .inf\n", [], "train.learning_rate = Infinity: expected a finite number"),
    ("train:\n  steps: 3\n  limit: 4\n", [], "run.yaml:1: train: limit 4 is over steps 3"),
    ("train:\n  learning_rate: 1\n", [], "run.yaml:1: train.steps is missing; add it"),
    ("train: no\n", [], "train = 'no': expected a section"),
    ("", [], "run.yaml: train is missing; add it"),
    ("train: {steps: 3}\nmodel:\n  type: attnetion\n", [], "run.yaml:2: model: type 'attnetion': expected one of recurrent, attention; did you mean attention?"),
    ("train: {steps: 3}\nmodel:\n  heads: 3\n", [], "run.yaml:2: model: type null: expected one of recurrent, attention"),
    ("train: {steps: 3}\nmodel:\n  type: recurrent\n  heads: 3\n", [], "run.yaml:4: unknown key model.heads (value 3); it belongs to another type"),
    ("train:\n  steps: 3\n  steps: 4\n", [], "run.yaml:3: train.steps is given twice (first on line 2)"),
    ("train: [1\n", [], "run.yaml:2: not valid YAML"),
    ("- 1\n", [], "expected `key: value` lines, found seq"),
    ("? [1, 2]\n: 3\n", [], "run.yaml:1: not valid YAML (found unhashable key"),
    ("train: !!python/object/apply:os.system ['true']\n", [], "run.yaml:1: tags such as tag:yaml.org,2002:python/object/apply:os.system are not allowed"),
    ("--- {train: {steps: 1}}\n--- {train: {steps: 1}}\n", [], "not valid YAML"),
    ("[" * 500_000, [], "run.yaml:1: not valid YAML (exceeded maximum nesting depth"),
    ("train: " + "[" * 30 + "]" * 30, [], "run.yaml:1: nested more than 20 deep"),
    ("train: &a {steps: 3}\nmodel: *a\n", [], "run.yaml:1: anchors and aliases are not allowed"),
    ("train: {steps: !!bool x}\n", [], "run.yaml: not a value of a config"),
    ("train: {steps: 3}\n", ["train.step=5"], "override of {path}: unknown key train.step (value 5); did you mean train.steps?"),
    ("train: {steps: 3}\n", ["train.steps"], "override 'train.steps': expected key=value"),
    ("train: {steps: 3}\n", ["train..steps=5"], "expected key=value"),
    ("train: {steps: 3}\n", ["train.steps.deep=5"], "steps is 3, not a section"),
    ("train: {steps: 3}\n", ["model={type:"], "override 'model={type:':2: not valid YAML"),
    ("train: {steps: 3}\n", ["train.steps=1\nmodel: 2"], "the value must be one YAML value"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "overrides", "message"), PROBLEMS)
def test_problems_are_explained(tmp_path: Path, text: str, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        load(tmp_path, text, *overrides)
    assert message.replace("{path}", str(tmp_path / "run.yaml")) in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the file"):
        load_config(Run, tmp_path / "absent.yaml")
    with pytest.raises(UserError, match="cannot read the file"):
        load_config(Run, tmp_path)
    (tmp_path / "latin.yaml").write_bytes("train: é".encode("latin-1"))
    with pytest.raises(UserError, match="UTF-8"):
        load_config(Run, tmp_path / "latin.yaml")
    (tmp_path / "huge.yaml").write_bytes(b"# \n" * 400_000)
    with pytest.raises(UserError, match="too large for a config"):
        load_config(Run, tmp_path / "huge.yaml")


def test_describe_prints_every_key_with_its_documentation() -> None:
    described = list(describe_config(Run(train=Optimizer(steps=3))))
    assert ("train.learning_rate", 1e-3, "Peak step size.") in described
    assert [key for key, _, _ in described] == [
        "train.learning_rate", "train.steps", "train.speeds", "train.limit", "model.type", "model.cells",
    ]  # fmt: skip


def test_a_wrong_value_in_python_is_an_error_of_the_user() -> None:
    """As one in a file: never pydantic's own, which asks for its documentation."""
    with pytest.raises(UserError, match=r"Optimizer: steps = 'x': expected a valid integer"):
        Optimizer(steps="x")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"Optimizer: unknown key step \(value 1\); did you mean steps\?"):
        Optimizer(steps=1, step=1)  # type: ignore[call-arg]
    with pytest.raises(UserError, match="limit 4 is over steps 3"):
        Optimizer(steps=3, limit=4)


finite = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=50)
@given(
    rate=finite,
    steps=st.integers(min_value=-(2**62), max_value=2**62),
    speeds=st.lists(finite, max_size=4),
    name=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
@example(rate=0.1, steps=1, speeds=[], name="a\x85b")
@example(rate=0.1, steps=1, speeds=[], name="0E0")
@example(rate=0.1, steps=1, speeds=[], name="\u2028 #\u2029")
def test_what_is_dumped_is_loaded_again(
    tmp_path_factory: pytest.TempPathFactory, rate: float, steps: int, speeds: list[float], name: str
) -> None:
    run = Run(
        train=Optimizer(learning_rate=rate, steps=steps, speeds=tuple(speeds)),
        model=Attention(type="attention", name=name),
    )
    assert load(tmp_path_factory.mktemp("config"), dump_config(run)) == run


@settings(max_examples=75)
@given(
    text=st.text(alphabet="train:steps 0123\n\t-[]{}&*!?|>'\"%@`#,.é\x00", max_size=60)
    | st.binary(max_size=60)
)
def test_any_file_loads_or_is_refused(tmp_path_factory: pytest.TempPathFactory, text: str | bytes) -> None:
    path = tmp_path_factory.mktemp("config") / "run.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    try:
        load_config(Run, path)
    except UserError as error:
        assert str(path) in str(error)
