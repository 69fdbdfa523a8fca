"""One YAML file is one run: strict typed settings, `key=value` overrides, and errors that name the key."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import pydantic
import yaml
from pydantic_core import PydanticKnownError

from asr.errors import UserError, shorten, suggest
from asr.files import describe_missing, read_limited

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(pydantic.BaseModel)

MAX_CONFIG_BYTES = 1_000_000  # a run file has some sixty lines; anything near this is not one
MAX_DEPTH = 20


class _CheckedType(ModelMetaclass):
    """Report a wrong value in Python, as in DecodingConfig(beam=0), as a UserError, like one in a file.

    Pydantic does not come by here when it builds a section inside of another.
    """

    def __call__(self, *args: Any, **values: Any) -> Any:
        try:
            return super().__call__(*args, **values)
        except pydantic.ValidationError as error:
            raise UserError(_explain(error, self, values, lambda key: f"{self.__name__}: ")) from None


class Config(pydantic.BaseModel, metaclass=_CheckedType):
    """Base of every section. The string below a field is its documentation: `asr info CONF` prints it."""

    model_config = pydantic.ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    def refuse_idle(self, is_used: bool, needs: str, *names: str) -> None:
        """Refuse, in validators, settings that were changed and do nothing."""
        for name in names:
            value = getattr(self, name)
            if not is_used and value != type(self).model_fields[name].default:
                value = list(value) if isinstance(value, tuple) else value
                raise ValueError(f"{name} = {value} does nothing without {needs}; remove it")


ConfigType = TypeVar("ConfigType", bound=Config)


def load_config(
    config_class: type[ConfigType], path: str | Path, overrides: Sequence[str] = ()
) -> ConfigType:
    """Read `path`, apply overrides such as `train.learning_rate=1e-3`, check every key and value."""
    content = read_limited(path, MAX_CONFIG_BYTES, "too large for a config; is it one?")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); save the config as UTF-8") from None
    tree, lines = _parse_yaml(text, str(path))
    return _build(config_class, str(path), tree, lines, overrides)


def build_config(config_class: type[ConfigType], overrides: Sequence[str]) -> ConfigType:
    """Build the defaults with overrides such as `decoding.beam=5`."""
    return _build(config_class, "", {}, {}, overrides)


def _build(
    config_class: type[ConfigType],
    source: str,
    tree: dict[str, Any],
    lines: dict[str, int],
    overrides: Sequence[str],
) -> ConfigType:
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
        # By way of JSON, whose strict mode knows that a list may fill a tuple and a string a path.
        return config_class.model_validate_json(json.dumps(tree))
    except pydantic.ValidationError as error:
        raise UserError(_explain(error, config_class, tree, locate)) from None


def dump_config(config: Config) -> str:
    """The effective settings as YAML that `load_config` reads back to an equal config."""
    tree = json.loads(config.model_dump_json())
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class ByType(NamedTuple):
    """Metadata of a section whose class depends on its `type`: see `choose_by_type`."""

    find_all: Callable[[], dict[str, type[Config]]]


def choose_by_type(
    kinds: Iterable[type[Config]], default: str | None, more: Callable[[], Iterable[type[Config]]] = list
) -> Any:
    """Annotation of a section of one of these kinds; without a `type` it is of the default one.

    `more` finds further kinds, in folders that may be missing. It is called where a type is not among the
    first ones, and where all are listed.
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
        given = section.get("type") or default
        if given is None:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": "'type'"})
        kind = named.get(str(given)) or find_all().get(str(given))
        if kind is None:
            expected = ", ".join(f"'{name}'" for name in find_all())
            context = {"discriminator": "'type'", "tag": str(given), "expected_tags": expected}
            raise PydanticKnownError("union_tag_invalid", context)
        # By way of JSON, for the reason that `_build` has; `type` may be left out.
        return kind.model_validate_json(json.dumps(section))

    return Annotated[Any, pydantic.PlainValidator(validate), ByType(find_all)]


def describe_choices(config_class: type[Config]) -> dict[str, list[str]]:
    """List the choices of each key that has some: words, types of a section, null."""
    choices: dict[str, dict[str, None]] = {}
    for key, field in _known_keys(config_class):
        for part in (field.annotation, *field.metadata):
            choices.setdefault(key, {}).update(dict.fromkeys(_find_choices(part)))
    return {key: list(own) for key, own in choices.items() if len(own) > 1}


def _find_choices(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    if isinstance(annotation, ByType):
        return [f"type: {name}" for name in annotation.find_all()]
    if annotation is NoneType:
        return ["null"]
    return [choice for option in get_args(annotation) for choice in _find_choices(option)]


def describe_config(config: Config, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """(key, value, documentation) of every setting, depth first, in the order of declaration."""
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        key = f"{prefix}{name}"
        if isinstance(value, Config):
            yield from describe_config(value, f"{key}.")
        else:
            yield key, value, " ".join((field.description or "").split())


def find_differences(first: Config, second: Config, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Find settings that differ, with both values; None where one has no such setting."""
    ours, theirs = ({key: value for key, value, _ in describe_config(c, prefix)} for c in (first, second))
    return {
        key: (ours.get(key), theirs.get(key)) for key in theirs | ours if ours.get(key) != theirs.get(key)
    }


# --- YAML ---------------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    """Quotes texts with line breaks of Unicode, which YAML would read back as spaces, and texts such as 0E0,
    which are numbers to the loader below."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    resolvers = _Loader.yaml_implicit_resolvers.get(text[:1], [])
    means_more = bool(set(text) & set("\x85\u2028\u2029")) or any(p.match(text) for _, p in resolvers)
    style = '"' if means_more else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # six times as fast, in C
    """YAML 1.2 scalars: `no` is a word, not False, and `1e-3` is a number, not a word."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own protocol)


_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:null|~|)$"), ["n", "~", ""])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf)|\.(?:nan|NaN))$"
    ),
    list("-+0123456789."),
)


def _parse_yaml(text: str, source: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The tree, and the line of each dotted key.

    Anchors, which let a few bytes unfold to gigabytes, and tags, which build objects, are refused.
    """
    lines: dict[str, int] = {}
    too_deep = f"{source}: nested more than {MAX_DEPTH} deep; is it a config?"
    try:
        depth = 0
        for event in yaml.parse(text, Loader=_Loader):
            line = event.start_mark.line + 1 if event.start_mark else "?"
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise UserError(f"{source}:{line}: anchors and aliases are not allowed; write the value out")
            if tag := getattr(event, "tag", None):
                raise UserError(f"{source}:{line}: tags such as {tag} are not allowed; write a plain value")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise UserError(too_deep)
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return {}, lines
        if not isinstance(node, yaml.MappingNode):
            raise UserError(f"{source}: expected `key: value` lines, found {node.tag.rpartition(':')[2]}")
        _index_keys(node, "", lines, source)
        try:
            return loader.construct_document(node), lines
        except ValueError as error:  # a number of thousands of digits
            raise UserError(f"{source}: not a value of a config ({error})") from None
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        problem = problem or str(error).split("\n")[0]
        if "nesting depth" in problem:  # libyaml's own limit, which its look-ahead reaches before ours
            raise UserError(too_deep) from None
        raise UserError(
            f"{source}{f':{mark.line + 1}' if mark else ''}: not valid YAML ({problem})"
        ) from None


def _index_keys(node: yaml.Node, prefix: str, lines: dict[str, int], source: str) -> None:
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
                shown = key_node.value if isinstance(key_node, yaml.ScalarNode) else "a list or a section"
                raise UserError(f"{source}:{line}: expected a plain word as a key, found {shown}")
            key = f"{prefix}{key_node.value}"
            if key in lines:
                raise UserError(
                    f"{source}:{line}: {key} is given twice (first on line {lines[key]}); remove one"
                )
            lines[key] = line
            _index_keys(value_node, f"{key}.", lines, source)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[f"{prefix}{index}"] = item.start_mark.line + 1
            _index_keys(item, f"{prefix}{index}.", lines, source)


def _apply_override(tree: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    names = [name.strip() for name in key.split(".")]
    if not equals or not all(names):
        raise UserError(f"override {override!r}: expected key=value")
    section = tree
    for depth, name in enumerate(names[:-1]):
        if section.get(name) is None:
            section[name] = {}
        section = section[name]
        if not isinstance(section, dict):
            place = ".".join(names[: depth + 1])
            raise UserError(f"override {override!r}: {place} is {section!r}, not a section")
    try:
        parsed, _ = _parse_yaml(f"value: {value}", f"override {override!r}")
    except UserError as error:
        if value.lstrip()[:1] not in ("{", "["):
            raise
        raise UserError(f"{error}; in a shell, put quotes around it: '{key}={value} ...'") from None
    if list(parsed) != ["value"]:
        raise UserError(f"override {override!r}: the value must be one YAML value on one line")
    section[names[-1]] = parsed["value"]


# --- errors -------------------------------------------------------------------------------------


def _explain(
    error: pydantic.ValidationError,
    config_class: Any,
    tree: Mapping[str, Any],
    locate: Callable[[str], str],
) -> str:
    """Explain each fault. `locate`: begins the line about a key."""
    known = dict.fromkeys(key for key, _ in _known_keys(config_class))
    faults = [(_dotted_key(fault, tree), fault) for fault in error.errors(include_url=False)]
    return "\n".join(locate(key) + explain_fault(fault, key, known) for key, fault in faults)


def describe_fault(error: pydantic.ValidationError) -> str:
    """Explain the first fault of a record that pydantic built without this module."""
    fault = error.errors(include_url=False)[0]
    return f"{error.title}: {explain_fault(fault, '.'.join(map(str, fault['loc'])))}"


def explain_fault(fault: Any, key: str, known: Collection[str] = ()) -> str:
    """Put what pydantic says of a key into our words. `known`: dotted keys to suggest."""
    given = shorten(fault["input"])
    if fault["type"] == "extra_forbidden":
        return f"unknown key {key} (value {given}){_suggest(key, known)}"
    if fault["type"] in ("missing", "union_tag_not_found"):
        return f"{key} is missing; add it"
    if fault["type"] == "union_tag_invalid":
        tag, expected = fault["ctx"]["tag"], fault["ctx"]["expected_tags"]
        near = suggest(tag, re.findall("'([^']*)'", expected), "")
        return f"{key} = {tag!r}: expected one of {expected}{near and f'; {near}'}{describe_missing()}"
    if fault["type"] == "model_type":
        return f"{key} = {given}: expected a section, that is, indented `key: value` lines"
    problem = fault["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    # A check of a whole section has the section as its input, which would say nothing.
    subject = f"{key} = {given}" if key and not isinstance(fault["input"], dict) else key
    return f"{subject}: {problem}" if subject else problem


def _dotted_key(fault: Any, tree: Any) -> str:
    """Keep the keys that stand in the file: pydantic puts the names of types between them."""
    names, node = [], tree
    for depth, part in enumerate(fault["loc"]):
        is_missing = fault["type"] == "missing" and depth == len(fault["loc"]) - 1
        try:
            node = node[part]
        except (KeyError, IndexError, TypeError):
            if not is_missing:
                continue
        names.append(str(part))
    return ".".join([*names, "type"] if fault["type"].startswith("union_tag_") else names)


def _suggest(key: str, known: Collection[str]) -> str:
    """Suggest the nearest name in the section of an unknown key; where none is near, list them all."""
    if key in known:
        return "; it belongs to another type of this section"
    section, dot, name = key.rpartition(".")
    siblings = [other.rpartition(".")[2] for other in known if other.rpartition(".")[0] == section]
    if near := difflib.get_close_matches(name, siblings, n=1):
        return f"; did you mean {section}{dot}{near[0]}?"
    there = f"{section} has" if section and siblings else "the sections are"
    return f"; {there} {', '.join(siblings or (other for other in known if '.' not in other))}"


def _known_keys(annotation: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """List every dotted key that a config class, or a union of them, accepts, with its field."""
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
