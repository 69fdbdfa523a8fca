"""Settings from YAML files: strictly typed, with `key=value` overrides and errors that name the key."""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import itertools
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, get_args

import pydantic
import yaml
from pydantic_core import PydanticKnownError

from asr.errors import UserError, shorten, suggest
from asr.families import describe_missing
from asr.files import read_limited

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(pydantic.BaseModel)

MAX_CONFIG_BYTES = 1_000_000  # a config has about sixty lines, so a file near this size is something else
MAX_DEPTH = 20


class _CheckedType(ModelMetaclass):
    """Raise a UserError for a wrong value in Python code, such as DecodingConfig(beam=0).

    Pydantic bypasses this class when it builds a section inside another section.
    """

    def __call__(self, *args: Any, **values: Any) -> Any:
        try:
            return super().__call__(*args, **values)
        except pydantic.ValidationError as error:
            raise UserError(_explain(error, self, values, lambda key: f"{self.__name__}: ")) from None


class Config(pydantic.BaseModel, metaclass=_CheckedType):
    """Base of every section. The string below a field is its documentation: `asr info CONFIG` prints it."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def refuse_idle(self, is_used: bool, needs: str, *names: str) -> None:
        """Raise an error, for use in validators, if a setting was changed but has no effect."""
        for name in names:
            value = getattr(self, name)
            if not is_used and value != type(self).model_fields[name].default:
                raise ValueError(f"{name} = {shorten(value)} does nothing without {needs}; remove it")


ConfigType = TypeVar("ConfigType", bound=Config)

# Limits for configs from untrusted sources: larger sizes overflow before the model's shapes are computed.
Size = Annotated[int, pydantic.Field(gt=0, le=100_000)]
Depth = Annotated[int, pydantic.Field(gt=0, le=1_000)]


def load_config(
    config_class: type[ConfigType], path: str | Path, overrides: Sequence[str] = ()
) -> ConfigType:
    """Read `path`, apply overrides such as `train.learning_rate=1e-3`, and check every key and value."""
    content = read_limited(path, MAX_CONFIG_BYTES, "too large for a config; is it one?")
    tree, lines = _parse_yaml(content, str(path))
    return build_config(config_class, overrides, str(path), tree, lines)


def build_config(
    config_class: type[ConfigType],
    overrides: Sequence[str],
    source: str = "",
    tree: dict[str, Any] | None = None,
    lines: Mapping[str, int] | None = None,
) -> ConfigType:
    """Build a config from a parsed file or the defaults, and apply overrides such as `decoding.beam=5`."""
    tree, lines = tree or {}, lines or {}
    for override in overrides:
        _apply_override(tree, override)
    overridden = {override.partition("=")[0].strip() for override in overrides}

    def locate(key: str) -> str:
        if not source:
            return ""
        if key in overridden:
            return f"override of {source}: "
        while key and key not in lines:
            key = key.rpartition(".")[0]
        return f"{source}:{lines[key]}: " if key else f"{source}: "

    try:
        # Validate as JSON, because strict mode then accepts a list for a tuple and a string for a path.
        return config_class.model_validate_json(json.dumps(tree))
    except pydantic.ValidationError as error:
        raise UserError(_explain(error, config_class, tree, locate)) from None


def dump_config(config: Config) -> str:
    """Return the effective settings as YAML from which `load_config` builds an equal config."""
    tree = json.loads(config.model_dump_json())
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class ByType(NamedTuple):
    """Annotation metadata of a section whose class depends on its `type`; see `choose_by_type`."""

    find_all: Callable[[], dict[str, type[Config]]]


def choose_by_type(
    kinds: Iterable[type[Config]], default: str | None, more: Callable[[], Iterable[type[Config]]] = list
) -> Any:
    """Return the annotation of a section that is one of these kinds; its `type` defaults to `default`.

    `more` finds further kinds in optional packages. It is called only if a type is not in `kinds`, or to list
    all of them.
    """

    def name_all(kinds: Iterable[type[Config]]) -> dict[str, type[Config]]:
        return {str(get_args(kind.model_fields["type"].annotation)[0]): kind for kind in kinds}

    named = name_all(kinds)

    def find_all() -> dict[str, type[Config]]:
        return named | name_all(more())

    def validate(section: Any) -> Config:
        if isinstance(section, Config):
            return section
        if not isinstance(section, dict):
            raise PydanticKnownError("model_type", {"class_name": "Config"})
        name = str(section.get("type") or default)
        kind = named.get(name) or find_all().get(name)
        if kind is None:
            near = suggest(name, found := find_all(), "")
            expected = f"expected one of {', '.join(found)}{near and f'; {near}'}{describe_missing()}"
            raise ValueError(f"type {shorten(section.get('type'))}: {expected}")
        # Validate as JSON, for the same reason as `build_config`; `type` may be omitted.
        return kind.model_validate_json(json.dumps(section))

    return Annotated[Any, pydantic.PlainValidator(validate), ByType(find_all)]


def describe_config(config: Config, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield (key, value, documentation) of every setting, depth first, in the order of declaration."""
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, Config):
            yield from describe_config(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value, document_setting(type(config), name)


def document_setting(section: type[Config], name: str) -> str:
    """Return the string below a setting, read on demand, because pydantic would do so at each import."""
    kinds = [kind for kind in section.__mro__ if issubclass(kind, Config)]
    texts = (_read_documentation(kind.__module__).get((kind.__name__, name)) for kind in kinds)
    return next(filter(None, texts), "")


@functools.cache
def _read_documentation(module: str) -> dict[tuple[str, str], str]:
    """Map (class, field) to the string that documents the field, for all classes in a module."""
    found = {}
    for kind in ast.walk(ast.parse(inspect.getsource(sys.modules[module]))):
        for pair in itertools.pairwise(kind.body) if isinstance(kind, ast.ClassDef) else ():
            match kind, pair:
                case ast.ClassDef(own), (ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text)))):
                    found[own, name] = " ".join(text.split())
    return found


def find_differences(first: Config, second: Config, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Return both values of each setting that differs; None if a config does not have the setting."""
    ours, theirs = ({key: value for key, value, _ in describe_config(c, prefix)} for c in (first, second))
    return {
        key: (ours.get(key), theirs.get(key)) for key in theirs | ours if ours.get(key) != theirs.get(key)
    }


# --- YAML ---------------------------------------------------------------------------------------


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # in C, as the loader
    """Quotes all strings but plain words, because the loader below reads a text such as 0E0 as a number."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if re.fullmatch("[A-Za-z_/][ -~]*", text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # six times as fast, in C
    """YAML 1.2 scalars: `no` is a word, not False, and `1e-3` is a number, not a word."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own protocol)


_DIGITS = r"(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?"
for _tag, _pattern, _first in (
    ("bool", "true|false", "tf"),
    ("null", "null|~|", "n~"),
    ("int", "[-+]?(?:0|[1-9][0-9]{0,18})", "-+0123456789"),  # 64 bits hold no more digits
    ("float", rf"[-+]?{_DIGITS}|[-+]?\.(?:inf|Inf)|\.(?:nan|NaN)", "-+0123456789."),
):
    _firsts = [*_first, *([""] if _tag == "null" else [])]
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _firsts)
_TAGS = [f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "bool", "null", "int", "float")]


def _parse_yaml(text: str | bytes, source: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the parsed tree, and the line number of each dotted key."""
    lines: dict[str, int] = {}
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return {}, lines
        if not isinstance(node, yaml.MappingNode):
            raise UserError(f"{source}: expected `key: value` lines, found {node.tag.rpartition(':')[2]}")
        _index_keys(node, "", lines, source, set())
        try:
            return loader.construct_document(node), lines
        except (ValueError, KeyError) as error:  # `!!bool x`
            raise UserError(f"{source}: not a value of a config ({error})") from None
    except (yaml.YAMLError, RecursionError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        place = f"{source}{f':{mark.line + 1}' if mark else ''}"
        raise UserError(f"{place}: not valid YAML ({problem or str(error).splitlines()[0]})") from None


def _index_keys(node: yaml.Node, prefix: str, lines: dict[str, int], source: str, seen: set[int]) -> None:
    """Record the line of each key. Anchors are refused, because a few bytes can expand to gigabytes, and so
    are tags, because they build objects."""
    place = f"{source}:{node.start_mark.line + 1}"
    if id(node) in seen:
        raise UserError(f"{place}: anchors and aliases are not allowed; write the value out")
    if node.tag not in _TAGS:
        raise UserError(f"{place}: tags such as {node.tag} are not allowed; write a plain value")
    if prefix.count(".") > MAX_DEPTH:
        raise UserError(f"{place}: nested more than {MAX_DEPTH} deep; is it a config?")
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            line, key = key_node.start_mark.line + 1, f"{prefix}{key_node.value}"
            if key in lines:
                raise UserError(
                    f"{source}:{line}: {key} is given twice (first on line {lines[key]}); remove one"
                )
            lines[key] = line
            _index_keys(value_node, f"{key}.", lines, source, seen)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[f"{prefix}{index}"] = item.start_mark.line + 1
            _index_keys(item, f"{prefix}{index}.", lines, source, seen)


def _apply_override(tree: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    names = [name.strip() for name in key.split(".")]
    if not equals or not all(names):
        raise UserError(f"override {override!r}: expected key=value")
    section = tree
    for name in names[:-1]:
        if section.get(name) is None:
            section[name] = {}
        section = section[name]
        if not isinstance(section, dict):
            raise UserError(f"override {override!r}: {name} is {shorten(section)}, not a section")
    parsed, _ = _parse_yaml(f"value: {value}", f"override {override!r}")
    if list(parsed) != ["value"]:
        raise UserError(f"override {override!r}: the value must be one YAML value on one line")
    section[names[-1]] = parsed["value"]


# --- errors -------------------------------------------------------------------------------------


def _explain(
    error: pydantic.ValidationError, config_class: Any, tree: Mapping[str, Any], locate: Callable[[str], str]
) -> str:
    """Explain each error on a line of its own; `locate` returns the prefix for a key."""
    known = dict.fromkeys(key for key, _ in _known_keys(config_class))
    details = [(dotted_key(detail, tree), detail) for detail in error.errors(include_url=False)]
    return "\n".join(locate(key) + explain_error(detail, key, known) for key, detail in details)


def describe_error(error: pydantic.ValidationError) -> str:
    """Explain the first error in a record that pydantic validated without this module."""
    detail = error.errors(include_url=False)[0]
    return f"{error.title}: {explain_error(detail, '.'.join(map(str, detail['loc'])))}"


def explain_error(
    detail: Any, key: str, known: Collection[str] = (), noun: str = "key", advice: str = ""
) -> str:
    """Reword a pydantic error about a key.

    `known`: dotted keys to suggest; `advice`: shown instead of the list of keys if none is similar.
    """
    given = shorten(detail["input"])
    if detail["type"] == "extra_forbidden":
        shown = key if re.fullmatch(r"[\w.-]{1,60}", key) else shorten(key)  # an untrusted record has any key
        return f"unknown {noun} {shown} (value {given}){_suggest(key, known, advice)}"
    if detail["type"] == "missing":
        return f"{key} is missing; add it"
    if detail["type"] == "model_type":
        return f"{key} = {given}: expected a section, that is, indented `key: value` lines"
    problem = explain_problem(detail)
    # The input of a check on a whole section is the section itself, which is no help in a message.
    subject = f"{key} = {given}" if key and not isinstance(detail["input"], dict) else key
    return f"{subject}: {problem}" if subject else problem


def explain_problem(detail: Any) -> str:
    """Describe what is wrong with a value, or what was expected instead."""
    problem = str(detail["msg"]).removeprefix("Value error, ")
    return problem.replace("Input should be", "expected").replace("String should have", "expected")


def dotted_key(detail: Any, tree: Any) -> str:
    """Return the dotted key as it is in the file, without the type names that pydantic inserts."""
    names, node = [], tree
    for depth, part in enumerate(detail["loc"]):
        is_missing = detail["type"] == "missing" and depth == len(detail["loc"]) - 1
        try:
            node = node[part]
        except (KeyError, IndexError, TypeError):
            if not is_missing:
                continue
        names.append(str(part))
    return ".".join(names)


RENAMED = {"lexicon": "words", "pronunciations": "lexicon"}  # settings and options since version 0.2


def _suggest(key: str, known: Collection[str], advice: str) -> str:
    """Suggest the most similar key in the section; if there is none, give the advice or list all keys."""
    if key in known:
        return "; it belongs to another type of this section"
    section, dot, name = key.rpartition(".")
    if (renamed := f"{section}{dot}{RENAMED.get(name)}") in known:
        return f"; it is now {renamed}"
    siblings = [other.rpartition(".")[2] for other in known if other.rpartition(".")[0] == section]
    near = difflib.get_close_matches(name, siblings, n=1)
    if near:
        return f"; did you mean {section}{dot}{near[0]}?"
    return f"; {advice or 'expected ' + ', '.join(siblings)}"


def _known_keys(annotation: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted key that a config class, or a union of config classes, accepts, with its field."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        for name, field in annotation.model_fields.items():
            yield f"{prefix}{name}", field
            for part in (field.annotation, *field.metadata):
                yield from _known_keys(part, f"{prefix}{name}.")
    elif isinstance(annotation, ByType):
        for kind in annotation.find_all().values():
            yield from _known_keys(kind, prefix)
    else:
        for option in get_args(annotation):
            yield from _known_keys(option, prefix)


# --- shared by model families and command-line arguments, without importing torch -------------------

Precision = Literal["auto", "float32", "bf16", "fp16", "int8", "int8_bf16"]
"""int8: linear layers in 8 bits; int8_bf16: attention, convolution and, with AMX, the encoder in bf16."""


def check_device(name: str) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise UserError(f"device {name}: expected auto, cpu, cuda or cuda:1")


class EncoderConfig(Config):
    """Section model.encoder; each kind of encoder has its `type`."""

    type: str


class DecoderConfig(Config):
    """Section model.decoder; each kind of decoder has its `type`."""

    reads_tokens: ClassVar[bool] = True
    """True if the decoder reads the previous tokens, so that its attention to each can have a bias."""
    needs_ctc: ClassVar[bool] = False

    type: str

    @property
    def cross_attention(self) -> tuple[int, int]:
        """Number of layers that attend to the encoded steps, and heads per layer; (0, 0) if none does."""
        return 0, 0
