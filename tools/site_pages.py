"""mkdocs hook that adds the recipe pages, the changelog, CONTRIBUTING and SECURITY to the site.

Their links lead to pages of the site, and links to files that the site lacks become plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PICTURES = {".png", ".svg"}
# Tables are wider than the theme allows, and names in the first column must not break.
STYLE = """.md-grid {max-width: 76rem}
.md-typeset td:first-child code {white-space: nowrap}
.md-typeset td code {word-break: normal}
"""


def on_files(files: Files, config: Any) -> Files:
    """Add these pages and their pictures."""
    names = {path.relative_to(ROOT).as_posix() for path in (ROOT / "recipes").rglob("*.md")}
    names = {name for name in names if not re.search("/(results|studies)/", name)}
    names |= {"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
    known = names | {f"docs/{file.src_uri}" for file in files}
    for name in sorted(names):
        text, pictures = adapt(name, (ROOT / name).read_text(encoding="utf-8"), known)
        files.append(File.generated(config, name, content=text))
        for picture in pictures:
            if files.get_file_from_path(picture) is None:
                files.append(File.generated(config, picture, abs_src_path=str(ROOT / picture)))
    files.append(File.generated(config, "style.css", content=STYLE))
    return files


def adapt(page: str, text: str, known: set[str]) -> tuple[str, set[str]]:
    """Turn repository links into site links; return the page and the pictures that it shows."""
    folder, pictures = os.path.dirname(page), set[str]()

    def change(match: re.Match[str]) -> str:
        target, _, anchor = match[3].partition("#")
        path = os.path.normpath(os.path.join(folder, target)).replace(os.sep, "/")
        if match[1] and Path(path).suffix in PICTURES and (ROOT / path).is_file():
            pictures.add(path)
        elif target and path not in known and not re.match("[a-z]+:", target):
            return match[2]
        elif path.startswith("docs/"):
            target = os.path.relpath(path.removeprefix("docs/"), folder)
            return f"[{match[2]}]({target}{'#' + anchor if anchor else ''})"
        return match[0]

    return re.sub(r"(!?)\[([^]]*)\]\(([^)\s]+)\)", change, text), pictures
