"""Write the report of a recipe: one HTML page and one Markdown file, both from results.json."""

from __future__ import annotations

import html
import os
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from asr.data.manifest import read_manifest
from asr.files import replace_file
from asr.recipe.experiment import Experiment
from asr.recipe.figures import choose_utterances, copy_audio, draw_attention, draw_curves, read_curve
from asr.recipe.results import score_run
from asr.recipe.systems import Run
from asr.scoring.counting import describe_choice
from asr.scoring.tables import Rows, html_table, markdown_table, percent, show_interval

NUM_WORST = 5
Results = Mapping[str, Any]  # of results.json
SMOKE_WARNING = "SMOKE TEST: few utterances, few updates, small models. These figures mean nothing."
_HEADINGS = (
    "system",
    "WER %",
    "95 % interval",
    "CER %",
    "95 % interval",
    "decoding",
    "parameters",
    "training",
    "real time",
)
_LEGEND = (
    "WER and CER: word and character errors on test. Decoding: the setup that did best on dev. What chose "
    "the settings of the confs is not recorded here. Training: time of the updates. Real time: seconds of "
    "computing for a second of audio, in batches."
)


def describe_tables(results: Results) -> str:
    """Explain the columns, and say whether checks could reject a decoded text."""
    checks = sorted({run["checks"] for run in results["runs"] if "checks" in run})
    return f"{_LEGEND} Checks: {', '.join(checks)}." if checks else _LEGEND


def write_report(experiment: Experiment, results: Results, runs: Mapping[str, Run]) -> None:
    """Write report.html with its pictures and audio, and report.md. `runs`: those of the results, by name."""
    folder = experiment.report_dir
    for old in (folder / "attention", folder / "audio"):
        shutil.rmtree(old, ignore_errors=True)
    curves = draw_curves(
        {
            name: read_curve(run.folder / "log.jsonl")
            for name, run in runs.items()
            if run.system not in experiment.recipe.decoded_as  # its dev set is a part of its training
        }
    )
    shown = choose_utterances(experiment.data_dir / "dev.jsonl")
    maps: dict[str, dict[str, Path]] = {}
    for name, trained in runs.items():
        pictures = draw_attention(trained.folder, shown, folder / "attention" / name)
        for utterance, picture in zip(shown, pictures, strict=False):
            maps.setdefault(utterance.id, {})[name] = picture
    tests = {run.find_test(experiment.data_dir) for run in runs.values()}
    spoken = {utterance.id: utterance for test in tests for utterance in read_manifest(test)}
    worst = {}
    for run in results["runs"]:
        worst[run["name"]] = [
            {
                "id": row.id,
                "errors": row.counts.errors,
                "reference": row.reference,
                "operations": [(step.reference or "", step.hypothesis or "") for step in row.operations],
                "audio": copy_audio(spoken[row.id], folder / "audio"),
            }
            for row in score_run(experiment.results_dir, run).worst(NUM_WORST)
        ]
    write_page(folder / "report.md", format_markdown(results))
    write_page(folder / "report.html", format_html(results, curves, maps, worst, folder))


# --- rows, for both forms -----------------------------------------------------------------------


def tabulate_runs(results: Results) -> Rows:
    """Tabulate the runs, the best first, then the mean of each system with several seeds."""
    runs = sorted(results["runs"], key=lambda run: (run["wer"], run["name"]))
    rows: list[tuple[str, ...]] = [
        _HEADINGS,
        *(
            (
                run["name"],
                percent(run["wer"]),
                show_interval(run["interval"], unknown="unknown"),
                percent(run["cer"]),
                show_interval(run.get("cer_interval"), unknown="unknown"),
                _decoding(run),
                f"{run['parameters'] / 1e6:.2f}M",
                f"{_duration(run['training']['seconds'])}, {run['training']['updates']:,} updates",
                f"{run['real_time_factor']:.3f}",
            )
            for run in runs
        ),
    ]
    for system in dict.fromkeys(run["system"] for run in runs):
        rates = [run["wer"] for run in runs if run["system"] == system]
        if len(rates) > 1:
            spread = f"{percent(min(rates))} to {percent(max(rates))}"
            mean = percent(statistics.mean(rates))
            rows.append((f"{system}, mean of {len(rates)} seeds", mean, spread, "", "", "", "", "", ""))
    return rows


def _decoding(run: Mapping[str, Any]) -> str:
    guide = run.get("decoding_chosen_for", run["name"])
    return run["decoding"] if guide == run["name"] else f"{run['decoding']}, as chosen for {guide}"


def tabulate_setups(results: Results) -> Rows:
    """Tabulate each decoding setup of each run: dev, by which one is chosen, and test."""
    rows = [("run", "decoding", "dev WER %", "test WER %", "real time", "")]
    for run in results["runs"]:
        for setup, test in run["ways"]["test"].items():
            dev = run["ways"]["dev"].get(setup)
            mark = "chosen" if setup == run["decoding"] else ""
            speed = f"{test['real_time_factor']:.3f}"
            dev_wer = "" if dev is None else percent(dev["wer"])
            rows.append((run["name"], setup, dev_wer, percent(test["wer"]), speed, mark))
    return rows


def tabulate_origins(results: Results) -> Rows:
    """Tabulate how each run came about."""
    rows: list[tuple[str, ...]] = [
        ("run", "seed", "trained by", "commit", "machine", "tested with", "versions"),
    ]
    for run in results["runs"]:
        made, tested = run["training"], run["evaluation"]
        versions = ", ".join(f"{name} {tested[name]}" for name in ("asr", "torch", "numpy", "python"))
        rows.append(
            (
                run["name"],
                str(run["seed"]),
                made.get("command", "unknown"),
                made["commit"],
                made.get("machine", "unknown"),
                f"{tested['commit']}, {tested['machine']}, {tested['device']}",
                versions,
            )
        )
    return rows


def title_of(results: Results) -> str:
    return f"{results['corpus']}{' (smoke test)' if results['smoke'] else ''}"


def describe_test(results: Results) -> str:
    test = results["test"]
    choice = f"References: {describe_choice(test['references'])}. " if "references" in test else ""
    return (
        f"{test['utterances']:,} utterances and {test['words']:,} words of test. {choice}"
        f"The intervals come from resampling by {test['resampled_by']}."
    )


# --- Markdown -----------------------------------------------------------------------------------


def format_markdown(results: Results) -> str:
    """Format the report for a README or a terminal."""
    parts = [f"# {title_of(results)}", ""]
    if results["smoke"]:
        parts += [f"**{SMOKE_WARNING}**", ""]
    parts += [f"`{results['command']}`: {describe_test(results)}", ""]
    parts += [markdown_table(tabulate_runs(results)), describe_tables(results), ""]
    if results["comparisons"]:
        parts += [f"## Against {results['baseline']}", ""]
        parts += [f"- {comparison['in_words']}" for comparison in results["comparisons"]] + [""]
    parts += ["## Decoding setups", "", markdown_table(tabulate_setups(results))]
    parts += ["## How it came about", "", markdown_table(tabulate_origins(results))]
    return "\n".join(parts)


# --- HTML ---------------------------------------------------------------------------------------

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72em; margin: 2em auto; padding: 0 1em }
body { color: #1b1b1b; background: #fff }
table { border-collapse: collapse; margin: 1em 0; display: block; overflow-x: auto }
th, td { border: 1px solid #ccc; padding: .3em .6em; text-align: left; vertical-align: top }
th { background: #f0f0f0 } img { max-width: 100% } code { background: #f4f4f4 } audio { height: 2em }
.smoke { background: #b00020; color: #fff; padding: 1em; font-weight: bold }
ins { background: #ffd7d7 } del { background: #fff0b3 }
"""


def format_html(
    results: Results,
    curves_svg: str,
    maps: Mapping[str, Mapping[str, Path]],
    worst: Mapping[str, Sequence[Mapping[str, Any]]],
    folder: Path,
) -> str:
    """Format the page. `maps`: utterance to run to picture; `worst`: by run. All files lie below `folder`."""
    parts = [f"<h1>{_text(title_of(results))}</h1>"]
    if results["smoke"]:
        parts.append(f'<p class="smoke">{SMOKE_WARNING}</p>')
    parts.append(f"<p><code>{_text(results['command'])}</code>: {_text(describe_test(results))}</p>")
    parts += [html_table(tabulate_runs(results)), f"<p>{_text(describe_tables(results))}</p>"]
    if results["comparisons"]:
        sentences = "".join(f"<li>{_text(item['in_words'])}</li>" for item in results["comparisons"])
        parts.append(f"<h2>Against {_text(results['baseline'])}</h2><ul>{sentences}</ul>")
    parts += ["<h2>Learning curves</h2>", curves_svg]
    if maps:
        parts.append(_html_maps(results, maps, folder))
    parts += ["<h2>Worst utterances</h2>", *(_html_worst(name, rows, folder) for name, rows in worst.items())]
    parts += ["<h2>Decoding setups</h2>", html_table(tabulate_setups(results))]
    parts += ["<h2>How it came about</h2>", html_table(tabulate_origins(results))]
    head = f'<meta charset="utf-8"><title>{_text(title_of(results))}</title><style>{_STYLE}</style>'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _html_maps(results: Results, maps: Mapping[str, Mapping[str, Path]], folder: Path) -> str:
    guided = {run["name"]: run["guided_attention"] for run in results["runs"]}
    names = list(dict.fromkeys(name for pictures in maps.values() for name in pictures))
    heads = [
        f"{name}<br>{'with' if guided[name] else 'without'} guided attention" for name in map(_text, names)
    ]
    rows = [
        "".join(
            f'<td><img src="{_link(pictures[name], folder)}" alt="{_text(f"{name}: {utterance}")}"></td>'
            for name in names
        )
        for utterance, pictures in maps.items()
    ]
    table = "".join(f"<th>{head}</th>" for head in heads) + "".join(f"<tr>{row}</tr>" for row in rows)
    legend = "The decoder's last layer, mean of its heads, under the true text."
    return f"<h2>Attention</h2><p>{legend}</p><table>{table}</table>"


def _html_worst(name: str, rows: Sequence[Mapping[str, Any]], folder: Path) -> str:
    if not rows:
        return f"<h3>{_text(name)}</h3><p>No errors.</p>"
    cells = [
        f"<tr><td>{_text(row['id'])}<br>"
        f'<audio controls preload="none" src="{_link(row["audio"], folder)}"></audio></td>'
        f"<td>{row['errors']}</td><td>{_text(row['reference'])}</td><td>{_mark_errors(row['operations'])}</td></tr>"
        for row in rows
    ]
    head = "<tr><th>utterance</th><th>errors</th><th>reference</th><th>hypothesis</th></tr>"
    return f"<h3>{_text(name)}</h3><table>{head}{''.join(cells)}</table>"


def _mark_errors(operations: Sequence[tuple[str, str]]) -> str:
    """Mark the errors. Of a (reference, hypothesis) pair one is empty for a deleted or inserted word."""
    words = []
    for reference, hypothesis in operations:
        if reference == hypothesis:
            words.append(_text(hypothesis))
        elif not hypothesis:
            words.append(f"<del>{_text(reference)}</del>")
        else:
            words.append(f"<ins>{_text(hypothesis)}</ins>")
    return " ".join(words)


def write_page(path: Path, text: str) -> None:
    with replace_file(path) as file:
        file.write(text.encode())


# --- small parts --------------------------------------------------------------------------------


def _text(text: str) -> str:
    return html.escape(text)


def _link(path: Path, folder: Path) -> str:
    """A relative link, so that the folder of the report can be moved or sent."""
    return html.escape(quote(os.path.relpath(path, folder)))


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
