"""Define, find and load recipes: the value that `recipes/NAME/recipe.py` builds."""

from __future__ import annotations

import inspect
import re
import runpy
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pydantic

from asr.config import Config, describe_fault, load_config
from asr.errors import UserError, suggest
from asr.files import CHECKOUT, SHIPPED
from asr.recipe.corpora import note_shortfalls

if TYPE_CHECKING:
    pass

STAGES = {
    "download": "fetch and unpack the corpus",
    "prepare": "check the corpus and write the manifests train.jsonl, dev.jsonl and test.jsonl",
    "train": "train each system, or go on where training was cut off",
    "evaluate": "decode dev and test with each system; dev chooses the decoding setup",
    "report": "compute error rates with intervals, test which system is better, and write a report",
}

Prepare = Callable[[Path | None, Path], None]


class SystemConf(Config):
    """A system to train: the file of its settings, and overrides such as `seed=1`."""

    path: Path
    overrides: tuple[str, ...] = ()
    variant: str | None = None
    """Name of the variant, in a study."""
    left_out: str | None = None
    """Held-out speaker, in a study with folds."""


WITHOUT_TAGS = "text.scoring=[strip_invisible,nfc,strip_tags,collapse_spaces]"
"""Override of a conf: noises such as [LAUGHTER] and <NOISE> count as no words on either side."""


def share_systems(recipe: str, *overrides: str, sizes: tuple[str, ...] = ()) -> dict[str, SystemConf]:
    """The systems of conf/shared, set to the corpus of the recipe, of which this is the __file__.

    `sizes` are overrides that the baseline, which is an LSTM, does not get.
    """
    path = Path(recipe).absolute()
    name, folder = path.parent.name, path.parents[2] / "conf" / "shared"
    return {
        system: SystemConf(
            path=folder / f"{system}.yaml",
            overrides=(
                f"output_dir=runs/{name}/{system}",
                f"data.train=data/{name}/train.jsonl",
                f"data.dev=data/{name}/dev.jsonl",
                *overrides,
                *(sizes if system != "ctc_lstm" else ()),
            ),
        )
        for system in ("ctc_lstm", "transformer", "conformer")
    }


class Recipe(Config):
    """The recipe of a corpus: all it needs on the way to trained, compared systems.

    `recipes/NAME/recipe.py` builds one, under any name; that of its folder is the name of the recipe.
    """

    licence: str
    """License of the corpus."""
    hours: pydantic.NonNegativeFloat
    """Hours of speech in train, dev and test together."""
    prepare: Prepare
    """prepare(corpus_dir, output_dir) writes train.jsonl, dev.jsonl and test.jsonl into output_dir."""
    prepare_smoke: Prepare | None = None
    """Used in smoke mode, to make a small corpus; None: `prepare`."""
    urls: tuple[str, ...] = ()
    """Addresses that `download` tries in this order."""
    download: Callable[[Path], Path] | None = None
    """download(target_dir) returns the folder of the corpus; None: it is made, or comes by --corpus-dir."""
    source: str = ""
    """How to obtain a corpus that the recipe does not download."""
    synthetic: bool = False
    """Whether `prepare` makes the corpus itself and reads none."""
    systems: dict[str, SystemConf] | None = None
    """The systems by name; None: each YAML file in `conf` beside recipe.py, else in ../../conf/NAME."""
    baseline: str = "ctc_lstm"
    """The system that others are compared with, if there is one of this name; else it is the first."""
    speeds: tuple[pydantic.PositiveFloat, ...] = ()
    """Speeds at which each utterance is also decoded, to take the likeliest text; empty: at its own alone."""
    chosen_by: Literal["wer", "cer"] = "wer"
    """The error rate of dev by which setups of decoding are chosen: cer for texts without blanks."""
    checks: bool = True
    """Whether decoded texts are checked, and decoded again where they have faults, as by `asr transcribe`."""
    text_fusion: bool = False
    """Whether systems are also decoded with a lexicon and language models of their training texts."""

    path: Path = Path()
    """Set by `load_recipe`: where the recipe is defined."""
    description: str = ""
    """Set by `load_recipe`: the docstring of that file; its first line is shown by `asr recipe list`."""

    @pydantic.field_validator("prepare", "prepare_smoke", "download")
    @classmethod
    def _check_parameters(
        cls, function: Callable[..., object] | None, info: pydantic.ValidationInfo
    ) -> object:
        parameters = ("target_dir",) if info.field_name == "download" else ("corpus_dir", "output_dir")
        if function is not None:
            try:
                inspect.signature(function).bind(*parameters)
            except TypeError:
                raise ValueError(f"expected a function of ({', '.join(parameters)})") from None
        return function

    @pydantic.model_validator(mode="after")
    def _check(self) -> Recipe:
        if bool(self.urls) != (self.download is not None):
            raise ValueError("urls and download belong together: give both, or neither")
        if len(given := [name for name in ("synthetic", "urls", "source") if getattr(self, name)]) > 1:
            raise ValueError(f"{' and '.join(given)}: a corpus is made, downloaded or brought; keep one")
        return self

    @property
    def name(self) -> str:
        return self.path.parent.name

    @property
    def summary(self) -> str:
        return self.description.partition("\n")[0]

    @property
    def shipped_model(self) -> Path:
        """The folder of a trained model with its card README.md, if the recipe has one."""
        return self.path.parent / "pretrained"

    @property
    def conf_dir(self) -> Path:
        """The folder of the confs of its systems."""
        own = self.path.parent / "conf"
        return own if own.is_dir() else self.path.absolute().parents[2] / "conf" / self.name

    def find_systems(self) -> dict[str, SystemConf]:
        """The systems by name."""
        if self.systems is not None:
            return self.systems
        return {path.stem: SystemConf(path=path) for path in sorted(self.conf_dir.glob("*.yaml"))}

    @property
    def studies_path(self) -> Path:
        return self.path.with_name("studies.yaml")

    def find_studies(self) -> dict[str, Study]:
        """The studies by name."""
        if not self.studies_path.exists():
            return {}
        studies = load_config(Studies, self.studies_path).studies
        return {name: study.model_copy(update={"name": name}) for name, study in studies.items()}

    def write_manifests(
        self, corpus_dir: Path | None, output_dir: Path, *, smoke: bool = False, partial: bool = False
    ) -> list[str]:
        """Call `prepare`; report wrong values of a record as an error of
        its file. Returns what the corpus lacks against the published one."""
        prepare = (self.prepare_smoke if smoke else None) or self.prepare
        output_dir.mkdir(parents=True, exist_ok=True)
        try:
            with note_shortfalls(partial) as shortfalls:
                prepare(corpus_dir, output_dir)
            return shortfalls
        except pydantic.ValidationError as error:
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if Path(frame.filename) == self.path.absolute()]
            where = f"{self.path}:{lines[-1]}" if lines else str(self.path)
            raise UserError(f"{where}: {describe_fault(error)}") from None


# --- studies ------------------------------------------------------------------------------------


class Study(Config):
    """Variants of one system that are trained with the same budget and seeds, and compared."""

    name: str = ""
    """Set by `find_studies`."""
    question: str
    """Question of the study: the first lines of its report."""
    system: str
    """The system of the recipe that is varied."""
    all: tuple[str, ...] = ()
    """Overrides for all variants."""
    baseline: str
    """The variant to compare with."""
    variants: dict[str, tuple[str, ...]] = pydantic.Field(min_length=2)
    """Overrides for each."""
    parameters: int | None = None
    """Number of parameters of each variant, within 10 %; null: sizes may differ."""
    folds: Literal["speaker"] | None = None
    """speaker: each variant is trained as often as there are speakers, each time without one of them, whom
    neither train nor dev has then, and tested on that one; null: trained once, tested on all."""
    methods: tuple[str, ...] = ()
    """How all that the study reports is decoded: each run by the first of these that it offers; empty: as dev
    chooses among all. Then a CTC head beside a decoder may hide what the decoder cannot do."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> Study:
        if self.baseline not in self.variants:
            known = ", ".join(self.variants)
            raise ValueError(f"baseline = {self.baseline} is none of the variants: {known}")
        return self


class Studies(Config):
    """studies.yaml, which lies beside the recipe."""

    studies: dict[str, Study]


# --- finding and loading ------------------------------------------------------------------------


def find_recipes(recipes_dir: Path | None = None) -> dict[str, Path]:
    """Name and file of each recipe: by default of ./recipes, else of the checkout, else those installed."""
    places = (Path(), CHECKOUT, SHIPPED)
    candidates = [recipes_dir] if recipes_dir else [place / "recipes" for place in places]
    for folder in candidates:
        if found := sorted(folder.glob("*/recipe.py")):
            return {path.parent.name: path for path in found}
    looked_at = " and in ".join(str(folder) for folder in candidates)
    raise UserError(
        f"no recipes in {looked_at}; expected NAME/recipe.py there. Pass --recipes-dir FOLDER: a checkout of "
        "this project has one called recipes"
    )


def load_recipe(name: str, recipes_dir: Path | None = None) -> Recipe:
    """Run the recipe's file, which builds one Recipe."""
    recipes = find_recipes(recipes_dir)
    if name not in recipes:
        raise UserError(f"no recipe {name!r}; {suggest(name, recipes)}")
    path = recipes[name]
    module = f"asr_recipe_{re.sub(r'[^0-9A-Za-z_]', '_', name)}"
    try:
        names = runpy.run_path(str(path.absolute()), run_name=module)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (Exception, SystemExit) as error:
        raise UserError(f"{path}: cannot be loaded ({type(error).__name__}: {error})") from error
    if not names["__doc__"]:
        raise UserError(f"{path}: begin it with a docstring; its first line is what `asr recipe list` shows")
    found = [value for value in names.values() if isinstance(value, Recipe)]
    if len(found) != 1:
        raise UserError(
            f"{path}: builds {len(found) or 'no'} Recipe{'s' * (len(found) > 1)}; expected one, such as "
            "RECIPE = Recipe(licence=..., hours=..., prepare=prepare)"
        )
    return found[0].model_copy(update={"path": path, "description": inspect.cleandoc(names["__doc__"])})


def load_study(recipe: Recipe, name: str) -> Study:
    """Read the study of this name beside the recipe."""
    studies = recipe.find_studies()
    if name not in studies:
        hint = suggest(f"{recipe.name}/{name}", [f"{recipe.name}/{one}" for one in studies])
        raise UserError(f"no study {name!r} of {recipe.name}; {hint}")
    return studies[name]


def describe_recipe(recipe: Recipe) -> list[str]:
    """Describe a recipe in lines, as `asr recipe show` prints them."""
    origin = f"your own copy, by --corpus-dir; {recipe.source}".rstrip("; ")
    nowhere = "nowhere: the recipe makes its corpus itself" if recipe.synthetic else origin
    lines = [f"{recipe.name}: {recipe.description}\n", f"licence   {recipe.licence}"]
    lines += [f"hours     {recipe.hours}", *(f"from      {url}" for url in recipe.urls or (nowhere,))]
    lines += [f"stage     {name}: {does}" for name, does in STAGES.items()]
    for name, conf in recipe.find_systems().items():
        lines.append(f"system    {name}: {' '.join([str(conf.path), *conf.overrides])}")
    lines += [f"study     {name}: asr recipe study {recipe.name}/{name}" for name in recipe.find_studies()]
    if (model := recipe.shipped_model).is_dir():
        megabytes = sum(path.stat().st_size for path in model.rglob("*") if path.is_file()) / 1e6
        lines.append(f"model     {model} ({megabytes:.1f} MB): asr transcribe FILE --model {model}")
    return [*lines, f"more      {recipe.path.with_name('README.md')}"]
