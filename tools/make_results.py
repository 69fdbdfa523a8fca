"""Make recipes/RESULTS.md, the table of all published results, from the results.json files below recipes.

python tools/make_results.py
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from asr.scoring.result import markdown_table, percent, show_interval

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
HEAD = """# All results

Word error rates on the test sets of the recipes, with intervals by speaker where speakers are known. Made by
`python tools/make_results.py` from the results.json beside each report. The pages of the recipes say what was
compared and why. Errors of diarization are in [conversations](conversations/README.md).

"""


def make_page() -> str:
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
    return HEAD + markdown_table(rows)


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    (RECIPES / "RESULTS.md").write_text(make_page(), encoding="utf-8")
