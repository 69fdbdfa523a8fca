"""Define, find and load recipes: the value that `recipes/NAME/recipe.py` builds."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pydantic

from asr.config import Config, describe_error, load_config
from asr.errors import UserError, suggest
from asr.files import CHECKOUT, SHIPPED
from asr.recipe.corpora import collect_shortfalls

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
"""Override of a conf: noises such as [LAUGHTER] and <NOISE> are ignored on both sides of the scoring."""


def share_systems(recipe: str, *overrides: str, sizes: tuple[str, ...] = ()) -> dict[str, SystemConf]:
    """Return the systems of conf/shared with the data of a recipe, whose __file__ is given.

    `sizes` are overrides for all systems except the LSTM baseline.
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
    """The recipe of a corpus: everything needed to prepare it, and to train and compare systems.

    `recipes/NAME/recipe.py` builds one, in a variable of any name. The recipe has the name of its folder.
    """

    license: str
    """License of the corpus."""
    hours: pydantic.NonNegativeFloat
    """Hours of speech in train, dev and test together."""
    prepare: Prepare
    """prepare(corpus_dir, output_dir) writes train.jsonl, dev.jsonl and test.jsonl into output_dir."""
    prepare_smoke: Prepare | None = None
    """Function that prepares a small corpus in smoke mode; None: `prepare`."""
    urls: tuple[str, ...] = ()
    """URLs that `download` tries in this order."""
    download: Callable[[Path], Path] | None = None
    """download(target_dir) returns the corpus folder; None: synthetic, or given by --corpus-dir."""
    download_mb: pydantic.PositiveFloat | None = None
    """Size of the download; None: unknown, or no download."""
    source: str = ""
    """Instructions to obtain a corpus that the recipe does not download."""
    synthetic: bool = False
    """True if `prepare` synthesizes the corpus."""
    systems: dict[str, SystemConf] | None = None
    """The systems by name; None: each YAML file in `conf` next to recipe.py, else in ../../conf/NAME."""
    speeds: tuple[pydantic.PositiveFloat, ...] = ()
    """Speeds at which each utterance is also decoded, to keep the most likely text; empty: speed 1 only."""
    chosen_by: Literal["wer", "cer"] = "wer"
    """Error rate on dev that chooses the decoding setup: cer for texts without spaces."""
    text_fusion: bool = False
    """True: systems are also decoded with a word list and language models of their training texts."""
    has_results: bool = False
    """True if test hypotheses, or detected speaker turns, are published next to the recipe."""

    path: Path = Path()
    """File that defines the recipe, set by `load_recipe`."""
    description: str = ""
    """Docstring of that file, set by `load_recipe`; `asr recipe list` shows its first line."""

    @property
    def name(self) -> str:
        return self.path.parent.name

    @property
    def summary(self) -> str:
        return self.description.partition("\n")[0]

    @property
    def download_size(self) -> str:
        """Size of the download; "by hand" or "none" if the recipe downloads nothing."""
        if self.download is None:
            return "none" if self.synthetic else "by hand"
        size = self.download_mb
        return "unknown" if size is None else f"{size / 1000:.1f} GB" if size >= 1000 else f"{size:g} MB"

    def find_systems(self) -> dict[str, SystemConf]:
        """The systems by name, which all runs of the recipe train."""
        return self._find_confs("*.yaml") if self.systems is None else self.systems

    def find_varied_systems(self) -> dict[str, SystemConf]:
        """The systems that studies may vary; FOLDER/SYSTEM is a config in a folder of conf/NAME."""
        return {**self._find_confs("**/*.yaml"), **self.find_systems()}

    def _find_confs(self, pattern: str) -> dict[str, SystemConf]:
        own = self.path.with_name("conf")
        folder = own if own.is_dir() else self.path.absolute().parents[2] / "conf" / self.name
        paths = {path.relative_to(folder).with_suffix(""): path for path in sorted(folder.glob(pattern))}
        return {name.as_posix(): SystemConf(path=path) for name, path in paths.items()}

    def find_studies(self) -> dict[str, Study]:
        """The studies by name."""
        path = self.path.with_name("studies.yaml")
        studies = load_config(Studies, path).studies if path.exists() else {}
        return {name: study.model_copy(update={"name": name}) for name, study in studies.items()}

    def write_manifests(self, corpus_dir: Path | None, output_dir: Path, *, smoke: bool = False) -> list[str]:
        """Call `prepare` and return the missing parts of the corpus; report wrong values as recipe errors."""
        prepare = (self.prepare_smoke if smoke else None) or self.prepare
        output_dir.mkdir(parents=True, exist_ok=True)
        try:
            with collect_shortfalls() as shortfalls:
                prepare(corpus_dir, output_dir)
            return shortfalls
        except pydantic.ValidationError as error:
            raise UserError(f"{self.path}: {describe_error(error)}") from None


# --- studies ------------------------------------------------------------------------------------


class Study(Config):
    """Variants of one system that are trained with the same budget and seeds and compared."""

    name: str = ""
    """Name in studies.yaml, set by `find_studies`."""
    question: str
    """The question that the study answers; it begins the report."""
    system: str
    """The system of the recipe that is varied; FOLDER/SYSTEM is conf/NAME/FOLDER/SYSTEM.yaml."""
    all: tuple[str, ...] = ()
    """Overrides for all variants."""
    baseline: str
    """The variant that others are compared with."""
    variants: dict[str, tuple[str, ...]] = pydantic.Field(min_length=2)
    """Overrides of each variant."""
    folds: Literal["speaker"] | None = None
    """speaker: each variant is trained once per speaker, without this speaker in train and dev, and tested on
    this speaker; null: trained once and tested on all."""
    methods: tuple[str, ...] = ()
    """Decoding methods of the report: each run uses the first of these that it offers; empty: dev chooses
    among all. A CTC head next to a decoder may then hide what the decoder cannot do."""
    chunk_steps: tuple[pydantic.PositiveInt, ...] = ()
    """Sizes of chunks by which a system with `model.encoder.chunk` is also decoded, as live speech is."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> Study:
        if self.baseline not in self.variants:
            known = ", ".join(self.variants)
            raise ValueError(f"baseline = {self.baseline} is none of the variants: {known}")
        return self


class Studies(Config):
    """studies.yaml next to the recipe."""

    studies: dict[str, Study]


# --- finding and loading ------------------------------------------------------------------------


def find_recipes(recipes_dir: Path | None = None) -> dict[str, Path]:
    """Find recipes by name: in ./recipes, else in the checkout, else in the installed package."""
    roots = (Path(), CHECKOUT, SHIPPED)
    candidates = [recipes_dir] if recipes_dir else [root / "recipes" for root in roots]
    for folder in candidates:
        if paths := sorted(folder.glob("*/recipe.py")):
            return {path.parent.name: path for path in paths}
    looked_at = " and in ".join(map(str, candidates))
    raise UserError(f"no recipes in {looked_at}; expected NAME/recipe.py there. Pass --recipes-dir FOLDER")


def load_recipe(name: str, recipes_dir: Path | None = None) -> Recipe:
    """Run recipe.py, which must build exactly one Recipe."""
    recipes = find_recipes(recipes_dir)
    if name not in recipes:
        raise UserError(f"no recipe {name!r}; {suggest(name, recipes)}")
    path = recipes[name]
    try:
        names = runpy.run_path(str(path.absolute()), run_name=f"asr_recipe_{name}")
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (Exception, SystemExit) as error:
        raise UserError(f"{path}: cannot be loaded ({type(error).__name__}: {error})") from error
    if not names["__doc__"]:
        raise UserError(f"{path}: begin it with a docstring; its first line is what `asr recipe list` shows")
    built = [value for value in names.values() if isinstance(value, Recipe)]
    if len(built) != 1:
        raise UserError(f"{path}: builds {len(built)} recipes; expected one, such as RECIPE = Recipe(...)")
    return built[0].model_copy(update={"path": path, "description": inspect.cleandoc(names["__doc__"])})


def load_study(recipe: Recipe, name: str) -> Study:
    """Read a study of the recipe by its name."""
    studies = recipe.find_studies()
    if name not in studies:
        hint = suggest(f"{recipe.name}/{name}", [f"{recipe.name}/{one}" for one in studies])
        raise UserError(f"no study {name!r} of {recipe.name}; {hint}")
    return studies[name]


def describe_recipe(recipe: Recipe) -> list[str]:
    """Describe a recipe in the lines that `asr recipe show` prints."""
    origin = "made by the recipe" if recipe.synthetic else f"--corpus-dir; {recipe.source}".rstrip("; ")
    lines = [f"{recipe.name}: {recipe.description}\n", f"license   {recipe.license}"]
    lines += [f"hours     {recipe.hours}", f"download  {recipe.download_size}"]
    lines += [*(f"from      {url}" for url in recipe.urls or (origin,))]
    for name, conf in recipe.find_systems().items():
        lines.append(f"system    {name}: {' '.join([str(conf.path), *conf.overrides])}")
    lines += [f"study     {name}: asr recipe study {recipe.name}/{name}" for name in recipe.find_studies()]
    if (model := recipe.path.with_name("pretrained")).is_dir():
        lines.append(f"model     {model}: asr transcribe FILE --model {model}")
    return [*lines, f"more      {recipe.path.with_name('README.md')}"]
