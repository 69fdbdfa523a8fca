"""Make recipes/RESULTS.md and the list of recipes/README.md from the recipes and their published hypotheses.

python tools/make_results.py
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

from asr.recipe.definition import find_recipes, load_recipe
from asr.recipe.scores import read_table, score_texts, setup_name
from asr.scoring.result import markdown_table, percent, show_interval

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
HEAD = """# All results

Results on the test sets of the recipes, with 95 % intervals that resample speakers where they are known.
`python tools/make_results.py` makes this page from the published hypotheses and the results.json files next
to them. What was compared, and why, is on the page of each recipe.

## Systems and studies

All runs of a system are scored together. Each row links to a report with plots, commands and comparisons.

"""
OTHERS = """
## Further hypotheses

Combinations, other decodings, and systems trained outside of a study: each row is a column of a file, which
`asr score` reads. The page of the corpus has the training commands and commits.

"""
MEETINGS = """
## Diarization

DER of the synthetic [conversations](conversations/README.md), with overlaps scored.
*before* is an earlier version of asr with average linkage.

"""


def make_page() -> str:
    parts = {HEAD: make_systems(), OTHERS: make_others(), MEETINGS: make_meetings()}
    return "".join(head + markdown_table(rows) for head, rows in parts.items())


def make_systems() -> list[list[str]]:
    """Build a row for each system of each results.json: all its runs together."""
    rows = [["corpus", "study", "system", "decoding", "WER %", "95 % interval", "CER %", "command", "commit"]]
    for path in sorted(RECIPES.glob("*/**/results.json")):
        results = json.loads(path.read_text(encoding="utf-8"))
        study = f"[{results['study']}]" if "study" in results else "[systems]"
        link = path.with_name("report.md").relative_to(RECIPES).as_posix()
        for system in results["systems"]:
            runs = [run for run in results["runs"] if run["variant"] == system["name"]]
            rates = [percent(system["wer"]), show_interval(system["interval"]), percent(system["cer"])]
            decoding = ", ".join(dict.fromkeys(run["decoding"] for run in runs))
            commits = ", ".join(dict.fromkeys(run["training"]["commit"] for run in runs))
            name = system["name"] if len(runs) == 1 else f"{system['name']} ({len(runs)} runs)"
            commands = dict.fromkeys(run["training"].get("command", "unknown") for run in runs)
            about = [results["corpus"], f"{study}({link})", name, decoding]
            rows.append([*about, *rates, "; ".join(f"`{command}`" for command in commands), commits])
    return rows


def make_others() -> list[list[str]]:
    """Build a row for each column of test hypotheses that belongs to no run of a results.json."""
    rows = [["corpus", "file", "column", "WER %", "95 % interval", "CER %"]]
    for path in sorted(RECIPES.glob("*/**/test.jsonl.gz")):
        references, hypotheses = read_table(path)
        link = path.relative_to(RECIPES)
        for name in sorted(hypotheses.keys() - set(find_own_columns(path))):
            if re.search(r"_beam_\d+\.", name):  # of the tables of rates by length
                continue
            found = score_texts(references, hypotheses[name])
            rates = [percent(found.error_rate), show_interval(found.interval), percent(found.cer)]
            rows.append([link.parts[0], f"[{link.parent.name}]({link.as_posix()})", name, *rates])
    return rows


def find_own_columns(table: Path) -> Iterator[str]:
    """Yield the columns of the runs whose results.json is next to the table."""
    results = table.with_name("results.json")
    runs = json.loads(results.read_text(encoding="utf-8"))["runs"] if results.exists() else []
    for run in runs:
        yield from (setup_name(run["name"], setup) for setup in run["methods"]["test"])


def make_meetings() -> list[list[str]]:
    """Build a row for each diarization system of each set of meetings."""
    rows = [["set", "system", "DER %, collar 0.25 s", "95 % interval", "DER %, no collar", "95 % interval"]]
    for path in sorted(RECIPES.glob("conversations/results/*.json")):
        collars = json.loads(path.read_text(encoding="utf-8"))["collars"]
        for name in collars["0"]["all"]["systems"]:
            row = [path.stem, name]
            for collar in ("0.25", "0"):
                figures = collars[collar]["all"]["systems"][name]
                row += [percent(figures["error_rate"]), show_interval(figures["interval"])]
            rows.append(row)
    return rows


def make_list() -> str:
    """Build the table of all recipes, with what `asr recipe list` prints of each."""
    rows = [["recipe", "corpus", "results here"]]
    for name in find_recipes(RECIPES):
        recipe = load_recipe(name, RECIPES)
        results = "yes" if recipe.has_results else "no"
        rows.append([f"[{name}]({name}/README.md)", recipe.summary.rstrip("."), results])
    return markdown_table(rows)


def renew_list(page: str) -> str:
    """Replace the table of all recipes in recipes/README.md."""
    table = re.compile(r"^\| recipe \| corpus \|.*?\n(?!\|)", re.MULTILINE | re.DOTALL)
    return table.sub(lambda _: make_list(), page)


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    (RECIPES / "RESULTS.md").write_text(make_page(), encoding="utf-8")
    readme = RECIPES / "README.md"
    readme.write_text(renew_list(readme.read_text(encoding="utf-8")), encoding="utf-8")
