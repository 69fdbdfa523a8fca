"""Build hooks of the wheel: its pages have no links to what stays in the repository.

Results, studies and docs are not in the wheel. A link there becomes its text, and an image goes. So it is in
the README that the package index shows.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^]]*)\]\(([^)\s]+)\)")
_LEFT_OUT = re.compile(r"recipes/[^/]+/(results|studies)/")


def drop_links(text: str, page: str, shipped: Collection[str]) -> str:
    """Replace the links of a page that lead to none of the shipped files or their folders."""

    def keep(match: re.Match[str]) -> str:
        target, _, _ = match[3].partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(page), target)).replace(os.sep, "/")
        is_there = not target or path in shipped or any(own.startswith(f"{path}/") for own in shipped)
        if is_there or re.match(r"[a-z]+:", target):
            return match[0]
        return "" if match[1] else match[2]

    return _LINK.sub(keep, text)


class CustomBuildHook(BuildHookInterface):
    """Put the pages into the wheel without such links."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root = Path(self.root)
        paths = [path for name in ("conf", "recipes") for path in (root / name).rglob("*") if path.is_file()]
        shipped = {name for path in paths if not _LEFT_OUT.match(name := path.relative_to(root).as_posix())}
        folder = Path(tempfile.mkdtemp())
        for number, page in enumerate(sorted(name for name in shipped if name.endswith(".md"))):
            copy = folder / f"{number}.md"
            text = (root / page).read_text(encoding="utf-8")
            copy.write_text(drop_links(text, page, shipped), encoding="utf-8")
            build_data["force_include"][str(copy)] = f"asr/shipped/{page}"


class CustomMetadataHook(MetadataHookInterface):
    """Give the package index a README without such links."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": drop_links(text, "README.md", ())}
