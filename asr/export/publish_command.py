"""`asr publish FOLDER USER/NAME`: upload a model to the Hugging Face Hub, with a model card."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="model folder that `asr convert` or `asr export` wrote")
    add("name", metavar="USER/NAME", help="name on the hub, where `hf auth login` or HF_TOKEN logs you in")
    add("--license", required=True, help="license of the model, such as mit, apache-2.0 or cc-by-4.0")
    text = "what `asr evaluate FOLDER MANIFEST --json` printed, for the model card; may be repeated"
    add("--results", metavar="FILE", action="append", default=[], help=text)
    add("--private", action="store_true", help="show the model only to yourself or your organization")
    add("--dry-run", action="store_true", help="upload nothing: print all files with bytes, and the card")


def run(args: argparse.Namespace) -> int:
    from asr.errors import UserError
    from asr.export.publish import find_files, make_card, read_results, upload
    from asr.hub import NAME

    if not NAME.fullmatch(args.name) or "@" in args.name:
        raise UserError(f"{args.name}: expected a name for the hub, such as user/an4-conformer")
    folder = Path(args.folder)
    files = find_files(folder)
    rows = "".join(read_results(path, folder) for path in args.results) or "| not measured | | | | |\n"
    notes = files.pop("README.md").read_text("utf-8", "replace") if "README.md" in files else ""
    if notes.startswith("---"):
        raise UserError(f"{folder / 'README.md'}: a model card, which is made here; remove it")
    card = make_card(folder, name=args.name, license=args.license, rows=rows, notes=notes)
    sizes = {name: path.stat().st_size for name, path in files.items()} | {"README.md": len(card.encode())}
    for name, size in sizes.items():
        print(f"{size:15,} {name}")
    print(f"{sum(sizes.values()):15,} bytes in {len(sizes)} files\n")
    print(card if args.dry_run else upload(args.name, files, card, args.private))
    return 0
