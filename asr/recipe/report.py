"""Write the report of a recipe: one HTML page and one Markdown file, both from results.json."""

from __future__ import annotations

import html
import os
import shutil
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from asr.data.manifest import read_manifest
from asr.files import replace_file
from asr.recipe.experiment import Experiment
from asr.recipe.figures import choose_utterances, copy_audio, draw_attention, draw_curves
from asr.recipe.results import score_run
from asr.recipe.systems import Run
from asr.scoring.alignments import Operation
from asr.scoring.counting import describe_choice
from asr.scoring.result import UtteranceScore
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
    "RTF",
)
_LEGEND = (
    "WER and CER: word and character errors on test. Decoding: the setup that did best on dev. What chose "
    "the settings of the confs is not recorded here. Training: time of the updates. RTF: real-time factor, "
    "seconds of computing for a second of audio, in batches."
)
_COMPARISONS = (
    "Difference: percentage points of WER, the system less the baseline, with its 95 % interval; negative is "
    "better. p: how often chance alone would part two equal systems this far (matched pairs, two-sided). "
    "Better or worse is said where p is below 0.05 and, with known speakers, the interval excludes 0."
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
    logs = {
        name: run.folder / "log.jsonl"
        for name, run in runs.items()
        if run.system not in experiment.recipe.decoded_as  # its dev set is a part of its training
    }
    curves = draw_curves(logs)
    shown = choose_utterances(experiment.data_dir / "dev.jsonl")
    maps: dict[str, dict[str, Path]] = {}
    for name, trained in runs.items():
        pictures = draw_attention(trained.folder, shown, folder / "attention" / name)
        for utterance, picture in zip(shown, pictures, strict=False):
            maps.setdefault(utterance.id, {})[name] = picture
    tests = {run.test for run in runs.values()}
    spoken = {utterance.id: utterance for utterance in read_manifest(*tests)}
    worst = {
        run["name"]: [
            (aligned, copy_audio(spoken[aligned.id], folder / "audio"))
            for aligned in score_run(experiment.results_dir, run).worst(NUM_WORST)
        ]
        for run in results["runs"]
    }
    write_text(folder / "report.md", format_markdown(results))
    write_text(folder / "report.html", format_html(results, curves, maps, worst, folder))


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


def tabulate_comparisons(results: Results) -> Rows:
    """Tabulate each system less its baseline: the difference and its interval have one sign."""
    rows = [("system", "baseline", "difference", "95 % interval", "p", "verdict")]
    for found in results["comparisons"]:
        p = "< 0.0001" if found["p"] < 1e-4 else format(float(format(found["p"], ".2g")), "g")
        ends = found["interval"]
        interval = "unknown" if ends is None else f"{100 * ends[0]:+.2f} to {100 * ends[1]:+.2f}"
        difference = f"{100 * found['difference']:+.2f}"
        rows.append((found["system"], found["baseline"], difference, interval, p, found["verdict"]))
    return rows


def tabulate_setups(results: Results) -> Rows:
    """Tabulate each decoding setup of each run: dev, by which one is chosen, and test."""
    rows = [("run", "decoding", "dev WER %", "test WER %", "RTF", "")]
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


def list_warnings(results: Results) -> list[str]:
    """Say what keeps the figures from being compared with others."""
    lacking = "; ".join(results.get("partial", ()))
    return [SMOKE_WARNING] * results["smoke"] + [f"A PART OF THE CORPUS: {lacking}."] * bool(lacking)


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
    parts = [f"# {title_of(results)}"]
    parts += open_page(results, tabulate_runs(results), describe_tables(results))
    parts += ["## Decoding setups", markdown_table(tabulate_setups(results))]
    parts += ["## How it came about", markdown_table(tabulate_origins(results))]
    return join_parts(parts)


def open_page(results: Results, table: Rows, legend: str) -> list[str]:
    """Write what follows the title of a page, of a recipe or of a study: warning, test, outcome."""
    parts = [f"**{warning}**" for warning in list_warnings(results)]
    parts += [f"`{results['command']}`: {describe_test(results)}", markdown_table(table), legend]
    if results["comparisons"]:
        parts += [f"## Against {results['baseline']}"]
        parts += [markdown_table(tabulate_comparisons(results)), _COMPARISONS]
    return parts


def join_parts(parts: Iterable[str]) -> str:
    return "\n\n".join(part.strip() for part in parts) + "\n"


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
    worst: Mapping[str, Sequence[tuple[UtteranceScore, Path]]],
    folder: Path,
) -> str:
    """Format the page. `maps`: utterance to run to picture; `worst`: by run, with the audio. All files lie
    below `folder`."""
    title = _text(title_of(results))
    parts = [f"<h1>{title}</h1>"]
    parts += [f'<p class="smoke">{_text(warning)}</p>' for warning in list_warnings(results)]
    parts.append(f"<p><code>{_text(results['command'])}</code>: {_text(describe_test(results))}</p>")
    parts += [html_table(tabulate_runs(results)), f"<p>{_text(describe_tables(results))}</p>"]
    if results["comparisons"]:
        parts.append(f"<h2>Against {_text(results['baseline'])}</h2>")
        parts += [html_table(tabulate_comparisons(results)), f"<p>{_COMPARISONS}</p>"]
    parts += ["<h2>Learning curves</h2>", curves_svg]
    if maps:
        parts += [
            "<h2>Attention</h2><p>The decoder's last layer, mean of its heads, under the true text.</p>"
        ]
        parts.append(_html_maps(results, maps, folder))
    parts.append("<h2>Worst utterances</h2>")
    for name, rows in worst.items():
        parts += [f"<h3>{_text(name)}</h3>", _html_worst(rows, folder) if rows else "<p>No errors.</p>"]
    parts += ["<h2>Decoding setups</h2>", html_table(tabulate_setups(results))]
    parts += ["<h2>How it came about</h2>", html_table(tabulate_origins(results))]
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _html_maps(results: Results, maps: Mapping[str, Mapping[str, Path]], folder: Path) -> str:
    guided = {run["name"]: run["guided_attention"] for run in results["runs"]}
    names = list(dict.fromkeys(name for pictures in maps.values() for name in pictures))
    rows = [[f"{_text(name)}<br>{'with' if guided[name] else 'without'} guided attention" for name in names]]
    for utterance, pictures in maps.items():
        alt = {name: _text(f"{name}: {utterance}") for name in names}
        rows.append([f'<img src="{_link(pictures[name], folder)}" alt="{alt[name]}">' for name in names])
    return _raw_table(rows)


def _html_worst(found: Sequence[tuple[UtteranceScore, Path]], folder: Path) -> str:
    rows = [["utterance", "errors", "reference", "hypothesis"]]
    for utterance, audio in found:
        player = f'<audio controls preload="none" src="{_link(audio, folder)}"></audio>'
        row = [f"{_text(utterance.id)}<br>{player}", str(utterance.counts.errors), _text(utterance.reference)]
        rows.append([*row, " ".join(map(_mark_error, utterance.operations))])
    return _raw_table(rows)


def _mark_error(step: Operation) -> str:
    if step.kind == "correct":
        return _text(step.hypothesis or "")
    return (
        f"<ins>{_text(step.hypothesis)}</ins>"
        if step.hypothesis
        else f"<del>{_text(step.reference or '')}</del>"
    )


def _raw_table(rows: Rows) -> str:
    """A table of cells that are HTML already."""
    head = "".join(f"<th>{cell}</th>" for cell in rows[0])
    body = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows[1:]]
    return "<table>" + "".join(f"<tr>{cells}</tr>" for cells in (head, *body)) + "</table>"


def write_text(path: Path, text: str) -> None:
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
