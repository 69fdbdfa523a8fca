"""Write docs/reference: settings and command line as the code declares them, and the map of packages.

python tools/make_reference.py
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from asr.cli import GROUPS, import_command
from asr.config import ByType, Config
from asr.serve import ServeConfig
from asr.system import DecodingResources, RunConfig
from asr.transcription import EvaluationSettings, ReadyEvaluationSettings, TranscriptionSettings

ROOT = Path(__file__).resolve().parent.parent
NOTE = "Made from the code by `python tools/make_reference.py`; do not edit it by hand."

# --- settings -----------------------------------------------------------------------------------

ROOTS: dict[type[Config], str] = {
    RunConfig: "A run: `asr train CONF`",
    TranscriptionSettings: "`asr transcribe --set`",
    EvaluationSettings: "`asr evaluate --set` of a model trained here",
    ReadyEvaluationSettings: "`asr evaluate --set` of a Whisper model",
    ServeConfig: "`asr serve --config` and `--set`",
    DecodingResources: "`decoding.yaml` in the folder of a model",
}
PLAIN_TYPES = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): "null"}
LIMITS = {
    "gt": "above",
    "ge": "from",
    "lt": "below",
    "le": "up to",
    "min_length": "at least",
    "max_length": "at most",
}


def describe_settings() -> str:
    lines = ["# Settings", "", NOTE]
    known: dict[type[Config], str] = {}
    for root, title in ROOTS.items():
        lines += ["", f"## {title}", "", one_line(root.__doc__)]
        lines += describe_section(root, "", known)
    return "\n".join(lines) + "\n"


def describe_section(section: type[Config], prefix: str, known: dict[type[Config], str]) -> list[str]:
    """Its settings, then those of the sections in it. A class that was described already is only named."""
    lines, inner = [""], []
    for name, field in section.model_fields.items():
        key = f"{prefix}{name}"
        sections = list(find_sections(field))
        line = f"- {describe_setting(key, field)}"
        if same := {known[kind]: None for kind in sections if known.get(kind, key) != key}:
            line += f" As {' and '.join(f'`{other}`' for other in same)}."
        lines.append(line)
        for kind in sections:
            if kind not in known:
                known[kind] = key
                inner += ["", f"### `{key}`{name_kind(kind)}", "", one_line(kind.__doc__)]
                inner += describe_section(kind, f"{key}.", known)
    return lines + inner


def describe_setting(key: str, field: FieldInfo) -> str:
    kind = "section" if any(map(is_choice, field.metadata)) else name_type(field.annotation)
    parts = [kind, *name_limits(field.metadata)]
    if field.is_required():
        parts.append("required")
    elif not list(find_sections(field)):
        parts.append(f"default `{show(field.get_default(call_default_factory=True))}`")
    elif field.default is None:
        parts.append("default `null`")
    return f"`{key}` ({', '.join(parts)}). {one_line(field.description)}".rstrip()


def find_sections(annotation: Any) -> Iterator[type[Config]]:
    """Config classes of a setting or an annotation; all kinds where its `type` chooses one."""
    if isinstance(annotation, FieldInfo):
        annotation = [annotation.annotation, *annotation.metadata]
    if isinstance(annotation, ByType):
        yield from annotation.find_all().values()
    elif isinstance(annotation, type) and issubclass(annotation, Config):
        yield annotation
    options = annotation if isinstance(annotation, list) else get_args(annotation)
    for option in options if get_origin(annotation) is not Literal else ():
        yield from find_sections(option)


def is_choice(metadata: Any) -> bool:
    return isinstance(metadata, ByType)


def name_type(annotation: Any) -> str:
    if annotation in PLAIN_TYPES:
        return PLAIN_TYPES[annotation]
    if get_origin(annotation) is Literal:
        return " | ".join(f"`{choice}`" for choice in get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return "section"
    if any(map(is_choice, get_args(annotation))):
        return "section"
    options = [option for option in get_args(annotation) if option is not Ellipsis]
    if get_origin(annotation) in (tuple, list):
        return "list of " + " and ".join(dict.fromkeys(map(name_type, options)))
    if get_origin(annotation) is dict:
        return "section of " + name_type(options[1])
    if isinstance(annotation, type):
        return annotation.__name__.lower()
    return " or ".join(dict.fromkeys(name_type(option) for option in options if is_type(option)))


def is_type(option: Any) -> bool:
    """Check that an argument of Annotated or a union is a type, and no limit or discriminator."""
    return isinstance(option, type) or get_origin(option) is not None


def name_limits(metadata: list[Any]) -> list[str]:
    return [
        f"{word} {show(getattr(limit, name))}"
        for limit in metadata
        for name, word in LIMITS.items()
        if getattr(limit, name, None) is not None
    ]


def name_kind(section: type[Config]) -> str:
    """Type of a section that is one of several, for its heading."""
    field = section.model_fields.get("type")
    choices = get_args(field.annotation) if field else ()
    return f", type {choices[0]}" if len(choices) == 1 else ""


def show(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def one_line(text: str | None) -> str:
    return " ".join((text or "").split())


# --- command line -------------------------------------------------------------------------------


def describe_commands() -> str:
    lines = ["# Command line", "", NOTE, "", "Every command also has `--help`."]
    for title, commands in GROUPS.items():
        lines += ["", f"## {title.capitalize()}"]
        for name, help_text in commands.items():
            parser = argparse.ArgumentParser(prog=f"asr {name}", add_help=False)
            parser.description = f"{help_text[0].upper()}{help_text[1:]}."
            import_command(name).add_arguments(parser)
            lines += describe_parser(parser)
    return "\n".join(lines) + "\n"


def describe_parser(parser: argparse.ArgumentParser) -> list[str]:
    """Usage, arguments and options of a command, then its subcommands."""
    lines = ["", f"### {parser.prog.partition(' [')[0]}", "", parser.description or ""]
    inner = []
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if "--help" not in action.option_strings]
        for action in actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, subparser in action.choices.items():
                    subparser.prog = f"{parser.prog} {name}"
                    inner += describe_parser(subparser)
        shown = [describe_action(a) for a in actions if not isinstance(a, argparse._SubParsersAction)]
        if shown and group.title not in ("positional arguments", "options", None):
            lines += ["", one_line(f"{group.title.capitalize()}. {group.description or ''}")]
        lines += ["", *shown] if shown else []
    if parser.epilog:
        lines += ["", one_line(parser.epilog)]
    return lines + inner


def describe_action(action: argparse.Action) -> str:
    value = action.metavar or (f"{{{','.join(action.choices)}}}" if action.choices else action.dest.upper())
    names = [f"`{name}`" for name in action.option_strings]
    if not names:
        names = [f"`{value}`" + (" (one or more)" if action.nargs == "+" else "")]
    elif action.nargs != 0:
        names[-1] = f"`{action.option_strings[-1]} {value}`" + (
            " (one or more)" if action.nargs == "+" else ""
        )
    required = " (required)" if action.option_strings and action.required else ""
    help_text = one_line(action.help).replace("%(default)s", str(action.default)).replace("%%", "%")
    return f"- {', '.join(names)}{required}: {help_text}".removesuffix(": ")


# --- packages -----------------------------------------------------------------------------------


def describe_packages() -> str:
    """The first line of each module, in the order of docs/architecture.md."""
    order = re.findall(
        r"^asr/(\w+) ", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"), flags=re.M
    )
    lines = [
        "# Packages and modules",
        "",
        NOTE,
        "",
        "A package imports from those above it, never from those below.",
    ]
    for name in ["", *order]:
        folder = ROOT / "asr" / name
        package = folder / "__init__.py"
        lines += ["", f"## asr/{name}".rstrip("/"), "", f"{first_line(package)}.", ""]
        modules = [path for path in sorted(folder.glob("*.py")) if path.stem not in ("__init__", "__main__")]
        lines += [f"- `{path.name}`: {first_line(path)}" for path in modules]
    return "\n".join(lines) + "\n"


def first_line(path: Path) -> str:
    documentation = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return documentation.partition("\n")[0].rstrip(".")


PAGES = {
    "settings.md": describe_settings,
    "command-line.md": describe_commands,
    "packages.md": describe_packages,
}


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    folder = ROOT / "docs" / "reference"
    folder.mkdir(exist_ok=True)
    for name, describe in PAGES.items():
        (folder / name).write_text(describe(), encoding="utf-8")


if __name__ == "__main__":
    main()
