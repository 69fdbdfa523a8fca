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
from asr.config import ByType, Config, document_setting
from asr.serve.service import ServeConfig
from asr.system.decoding_resources import DecodingResources
from asr.system.run_config import RunConfig
from asr.transcription.arguments import EvaluationSettings, TranscriptionSettings

ROOT = Path(__file__).resolve().parent.parent
NOTE = "Made from the code by `python tools/make_reference.py`; do not edit it by hand."

# --- settings -----------------------------------------------------------------------------------

ROOTS: dict[type[Config], str] = {
    RunConfig: "A run: `asr train CONFIG`",
    TranscriptionSettings: "`asr transcribe --set`",
    EvaluationSettings: "`asr evaluate --set` of a model trained here",
    ServeConfig: "`asr serve --config` and `--set`",
    DecodingResources: "`decoding.yaml` in the folder of a model",
}
PLAIN_TYPES = {int: "integer", float: "number", str: "string", bool: "true or false", type(None): "null"}
SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
ABOUT_SETTINGS = """One table per section. The key of a setting is the heading, a dot and the name, as in
`augment.noise.probability`. In YAML, sections are nested. On the command line, write `key=value` or
`--set key=value`. An unknown key is an error."""


def describe_settings() -> str:
    lines = ["# Settings", "", NOTE, "", ABOUT_SETTINGS]
    known: dict[type[Config], str] = {}
    for root, title in ROOTS.items():
        lines += ["", f"## {title}", "", one_line(root.__doc__)]
        lines += describe_section(root, "", known)
    return "\n".join(lines) + "\n"


def describe_section(section: type[Config], prefix: str, known: dict[type[Config], str]) -> list[str]:
    """A table of its settings, then the sections in it. A class that was described already is only linked."""
    rows, inner = [], []
    for name, field in section.model_fields.items():
        if name == "type" and name_kind(section):
            continue  # the heading has it
        links = []
        for kind in find_sections(field):
            is_new = kind not in known
            title = known.setdefault(kind, f"`{prefix}{name}`{name_kind(kind)}")
            links.append(f"[{name_kind(kind).removeprefix(', type ') or 'section'}](#{anchor(title)})")
            if is_new:
                inner += ["", f"### {title}", "", one_line(kind.__doc__)]
                inner += describe_section(kind, f"{prefix}{name}.", known)
        values = ", ".join(links) or ", ".join([name_type(field.annotation), *name_limits(field.metadata)])
        rows.append([f"`{name}`", values, name_default(field, bool(links)), document_setting(section, name)])
    return (make_table(["setting", "values", "default", "meaning"], rows) if rows else []) + inner


def make_table(columns: list[str], rows: list[list[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *([escape_pipes(cell) for cell in row] for row in rows)]
    return ["", *(f"| {' | '.join(line)} |" for line in lines)]


def escape_pipes(cell: str) -> str:
    """Write each | so that GitHub and mkdocs show it alone, in code too."""
    return re.sub(r"`([^`]*[|][^`]*)`", r"<code>\1</code>", cell).replace("|", "&#124;")


def anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def name_default(field: FieldInfo, is_section: bool) -> str:
    if field.is_required():
        return "required"
    if is_section:
        return "`null`" if field.default is None else ""
    return f"`{show(field.get_default(call_default_factory=True))}`"


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


def name_type(annotation: Any) -> str:
    if annotation in PLAIN_TYPES:
        return PLAIN_TYPES[annotation]
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation))
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
    """Limits of the value, such as `≥0` or `0 to 1`, and of the length of a list."""
    limits = {
        name: value
        for limit in metadata
        for name in (*SIGNS, "min_length", "max_length")
        if (value := getattr(limit, name, None)) is not None
    }
    if {"ge", "le"} <= limits.keys():
        named = [f"{show(limits['ge'])} to {show(limits['le'])}"]
    else:
        named = [f"{sign}{show(limits[name])}" for name, sign in SIGNS.items() if name in limits]
    if "min_length" in limits:
        named.append(f"at least {limits['min_length']} long")
    if "max_length" in limits:
        named.append(f"at most {limits['max_length']} long")
    return named


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
    lines = ["# Command line", "", NOTE, "", "Every command also has `--help`, `--quiet` and `--verbose`."]
    for title, commands in GROUPS.items():
        lines += ["", f"## {title}"]
        for name, help_text in commands.items():
            parser = argparse.ArgumentParser(prog=f"asr {name}", add_help=False)
            parser.description = f"{help_text[0].upper()}{help_text[1:]}."
            import_command(name).add_arguments(parser)
            lines += describe_parser(parser)
    return "\n".join(lines) + "\n"


def describe_parser(parser: argparse.ArgumentParser) -> list[str]:
    """Purpose and arguments of a command, its options in one table per group, then its subcommands."""
    lines = ["", f"### {parser.prog.partition(' [')[0]}", "", parser.description or ""]
    inner, rows = [], []
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if "--help" not in action.option_strings]
        for action in actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, subparser in action.choices.items():
                    subparser.prog = f"{parser.prog} {name}"
                    inner += describe_parser(subparser)
        found = [describe_action(a) for a in actions if not isinstance(a, argparse._SubParsersAction)]
        title = group.title or "options"
        if title in ("positional arguments", "options"):
            rows += found
        elif found:
            lines += make_table(["argument", "meaning"], rows) if rows else []
            lines += ["", f"**{title[0].upper()}{title[1:]}.** {one_line(group.description)}".rstrip()]
            lines += make_table(["argument", "meaning"], found)
            rows = []
    lines += make_table(["argument", "meaning"], rows) if rows else []
    if parser.epilog:
        lines += ["", one_line(parser.epilog)]
    return lines + inner


def describe_action(action: argparse.Action) -> list[str]:
    value = action.metavar or (f"{{{','.join(action.choices)}}}" if action.choices else action.dest.upper())
    names = [f"`{name}`" for name in action.option_strings]
    if not names:
        names = [f"`{value}`"]
    elif action.nargs != 0:
        names[-1] = f"`{action.option_strings[-1]} {value}`"
    many = " (one or more)" if action.nargs == "+" else ""
    required = " (required)" if action.option_strings and action.required else ""
    help_text = one_line(action.help).replace("%(default)s", str(action.default)).replace("%%", "%")
    return [f"{', '.join(names)}{many}{required}", help_text]


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
    lines += ["", "## tools", "", "Scripts of a checkout. Each that is run has `--help`.", ""]
    lines += [f"- `{path.name}`: {first_line(path)}" for path in sorted((ROOT / "tools").glob("*.py"))]
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
