"""Score and compare the runs of a recipe, and the variants of a study, each with all its runs.

Every figure of results.json and study.json follows from the table beside it, test.jsonl.gz: a line for each
utterance with its reference and the hypothesis of each run. Anyone can compute the figures again; tests do so
with what is published.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.data.manifest import Utterance, find_more_references
from asr.errors import UserError
from asr.files import replace_file
from asr.recipe.experiment import Experiment
from asr.recipe.splits import read_shortfalls
from asr.recipe.systems import Run
from asr.recipe.tasks import read_record, write_record
from asr.scoring.counting import Score, score
from asr.scoring.significance import compare
from asr.text.normalization import TextConfig, normalize_for_scoring

RESULTS, TABLE = "results.json", "test.jsonl.gz"
AT_SPEEDS = "+speeds"  # ends the names of setups that decode each utterance at several speeds

# id -> text and, where they are known, speaker and further references, reference_2 and so on
Texts = dict[str, dict[str, str]]
# Of a run: its summary.json with its figures; in a study also its variant, and what it is trained without.
Record = Mapping[str, Any]


# --- the runs of a recipe -----------------------------------------------------------------------


def compare_runs(experiment: Experiment, runs: Sequence[Run]) -> None:
    """Score the test hypotheses of all runs, each against the baseline too; write them with results.json."""
    tested = {run.name: read_texts(run.evaluation_dir / "test.jsonl") for run in runs}
    references: Texts = {}
    for own in tested.values():
        for id, fields in own.items():
            references.setdefault(id, fields)
    for run in runs:
        own = tested[run.name]
        if own != ({id: references[id] for id in own} if run.conf.fold else references):
            raise UserError(
                f"{runs[0].conf.path} and {run.conf.path}: their references differ after text.scoring, so "
                "their error rates cannot be compared; give both the same rules"
            )
    summaries = [read_record(run.summary_path) for run in runs]
    hypotheses = {
        setup_name(run.name, setup): read_texts(run.evaluation_dir / f"{setup_name('test', setup)}.jsonl")
        for run, summary in zip(runs, summaries, strict=True)
        for setup in summary["ways"]["test"]
    }
    write_table(experiment.results_dir / TABLE, references, hypotheses)
    baseline = experiment.recipe.baseline
    if not any(run.system == baseline for run in runs):
        baseline = runs[0].system
    about = describe_experiment(experiment) | {"baseline": baseline}
    scores = score_results(experiment.results_dir, baseline, summaries)
    write_record(experiment.results_path, about | scores)


def describe_experiment(experiment: Experiment) -> dict[str, Any]:
    """Describe corpus and command, and what the corpus lacks, if it is a part."""
    about = {"corpus": experiment.recipe.name, "smoke": experiment.smoke, "command": experiment.command}
    shortfalls = read_shortfalls(experiment.data_dir)
    return about | ({"partial": shortfalls} if shortfalls else {})


def score_results(folder: Path, baseline: str, summaries: Sequence[Record]) -> dict[str, Any]:
    """Compute the figures of results.json from the table in `folder`, and add them to the summaries."""
    references, hypotheses = read_table(folder / TABLE)
    runs, chosen = [], {}
    for summary in summaries:
        name, setups = summary["name"], {}
        for setup, known in summary["ways"]["test"].items():
            texts = hypotheses[setup_name(name, setup)]
            found = score_texts(choose_tested(summary, references, texts), texts)
            setups[setup] = {**known, "wer": found.error_rate, "cer": found.character_error_rate}
            if setup == summary["decoding"]:
                chosen[name] = found
        interval = chosen[name].character_interval
        figures = describe_score(chosen[name]) | {
            "cer": chosen[name].character_error_rate,
            "cer_interval": None if interval is None else [interval.low, interval.high],
        }
        runs.append({**summary, **figures, "ways": {**summary["ways"], "test": setups}})
    comparisons = []
    for summary in summaries:
        opponent = _find_opponent(summary, baseline, summaries)
        if opponent is not None:
            name = summary["name"]
            verdict = compare_scores((name, opponent), chosen[name], chosen[opponent])
            comparisons.append({"system": name, "baseline": opponent, **verdict})
    first = next(iter(chosen.values()))
    test = {
        "utterances": len(references),
        "words": first.counts.reference_length,
        "resampled_by": first.resampled_by,
        **({"references": first.num_references} if first.num_references > 1 else {}),
    }
    return {"test": test, "runs": runs, "comparisons": comparisons}


def _find_opponent(run: Record, baseline: str, summaries: Sequence[Record]) -> str | None:
    """Find the run of the baseline with the same seed, else its first run; None for the baseline itself.

    None for folds too, which a study puts together before it compares them.
    """
    if run["system"] == baseline or run.get("is_fold"):
        return None
    candidates = [other for other in summaries if other["system"] == baseline]
    same_seed = [other for other in candidates if other["seed"] == run["seed"]]
    return str((same_seed or candidates)[0]["name"])


# --- the variants of a study --------------------------------------------------------------------


def score_study(folder: Path, baseline: str, runs: Sequence[Record]) -> dict[str, Any]:
    """Compute the figures of study.json from the table in `folder`, and add them to the runs."""
    references, columns = read_table(folder / TABLE)
    hypotheses = {run["name"]: columns[setup_name(run["name"], run["decoding"])] for run in runs}
    variants = {run["variant"]: [own for own in runs if own["variant"] == run["variant"]] for run in runs}
    scores = {name: pool(own, references, hypotheses) for name, own in variants.items()}
    comparisons = []
    for name, own in variants.items():
        shared, others = _share_folds(own, variants.get(baseline, []))
        if name != baseline and shared:
            first, second = (pool(side, references, hypotheses) for side in (shared, others))
            verdict = compare_scores((name, baseline), first, second)
            comparisons.append({"system": name, "baseline": baseline, **verdict})
    return {
        "test": {
            "utterances": len(references),
            "words": sum(len(fields["text"].split()) for fields in references.values()),
            "resampled_by": next(iter(scores.values())).resampled_by,
        },
        "runs": [{**run, **_score_alone(run, references, hypotheses)} for run in runs],
        "variants": [{"name": name, **describe_score(found)} for name, found in scores.items()],
        "comparisons": comparisons,
    }


def pool(runs: Sequence[Record], references: Texts, hypotheses: Mapping[str, Texts]) -> Score:
    """Score all runs as if their utterances were one test set; of a fold, what was left out alone."""
    tested = [(run, choose_tested(run, references, hypotheses[run["name"]])) for run in runs]
    return score_texts(
        {f"{run['seed']} {id}": fields for run, own in tested for id, fields in own.items()},
        {f"{run['seed']} {id}": hypotheses[run["name"]][id] for run, own in tested for id in own},
    )


def _share_folds(first: Sequence[Record], second: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Keep the runs of seeds and folds that both variants have."""
    keys = [{(run["seed"], run["left_out"]) for run in runs} for runs in (first, second)]
    both = keys[0] & keys[1]
    kept = [[run for run in runs if (run["seed"], run["left_out"]) in both] for runs in (first, second)]
    return kept[0], kept[1]


def _score_alone(run: Record, references: Texts, hypotheses: Mapping[str, Texts]) -> dict[str, Any]:
    found = pool([run], references, hypotheses)
    figures = describe_score(found) | {"cer": found.character_error_rate}
    if run["left_out"] is not None and not run.get("is_fold"):  # and the speakers that it knows
        known = {id: fields for id, fields in references.items() if fields["speaker"] != run["left_out"]}
        texts = {id: hypotheses[run["name"]][id] for id in known}
        figures["known_speakers"] = describe_score(score_texts(known, texts))
    return figures


# --- publishing ---------------------------------------------------------------------------------


def read_results(experiment: Experiment) -> dict[str, Any]:
    """Read what `compare_runs` has left."""
    results = read_record(experiment.results_path)
    if not results:
        raise UserError(f"{experiment.results_dir}: no results; leave --stage out")
    return results


def publish_results(experiment: Experiment) -> None:
    """Copy results.json, its texts and its page to the folder of the recipe."""
    if read_results(experiment)["smoke"]:
        raise UserError(
            f"{experiment.results_dir}: results of a smoke run mean nothing and are not published"
        )
    folder = experiment.published_dir
    folder.mkdir(parents=True, exist_ok=True)
    texts = experiment.results_dir / TABLE
    for path in (experiment.results_path, texts, experiment.report_dir / "report.md"):
        shutil.copyfile(path, folder / path.name)


# --- scores -------------------------------------------------------------------------------------


def setup_name(run: str, setup: str) -> str:
    """Name the texts of a run, or of a split, that were decoded in one way."""
    return f"{run}.{setup}"


def find_language_model(setup: str) -> str | None:
    """Name what a setup such as joint+ngrams+speeds weighs in: ngrams, or the run of a language model."""
    _, _, source = setup.removesuffix(AT_SPEEDS).partition("+")
    return source or None


def choose_tested(run: Record, references: Texts, hypotheses: Texts) -> Texts:
    """Choose what the run is tested on: the fold or the speaker that it was trained without, else all."""
    if run.get("is_fold"):
        return {id: references[id] for id in hypotheses}
    left_out = run.get("left_out")
    return {id: f for id, f in references.items() if left_out is None or f["speaker"] == left_out}


def score_texts(references: Texts, hypotheses: Texts) -> Score:
    """Score texts; the interval resamples speakers where all are known."""
    speakers = {name: fields["speaker"] for name, fields in references.items() if "speaker" in fields}
    return score(
        {name: fields["text"] for name, fields in references.items()},
        {name: fields["text"] for name, fields in hypotheses.items()},
        speakers=speakers if len(speakers) == len(references) else None,
        alternatives={
            name: list(find_more_references(fields).values()) for name, fields in references.items()
        },
    )


def score_run(folder: Path, run: Record) -> Score:
    """Score what a run wrote by its chosen setup."""
    references, columns = read_table(folder / TABLE)
    hypotheses = columns[setup_name(run["name"], run["decoding"])]
    return score_texts(choose_tested(run, references, hypotheses), hypotheses)


def describe_score(found: Score) -> dict[str, Any]:
    """WER with its interval, as numbers."""
    interval = found.interval
    return {
        "wer": found.error_rate,
        "interval": None if interval is None else [interval.low, interval.high],
        "errors": found.counts.errors,
        "words": found.counts.reference_length,
    }


def compare_scores(names: tuple[str, str], first: Score, second: Score) -> dict[str, Any]:
    """Compare the first with the second; the difference is the first less the second, as is its interval."""
    found = compare(first, second, names)
    interval = None if found.bootstrap is None else found.bootstrap.interval
    return {
        "difference": found.difference,
        "interval": None if interval is None else [interval.low, interval.high],
        "p": found.p,
        "verdict": found.verdict,
    }


def describe_references(utterances: Iterable[Utterance], rules: TextConfig) -> Texts:
    """Their texts as they are scored, with their speakers."""
    references: Texts = {}
    for utterance in utterances:
        references[utterance.id] = {"text": normalize_for_scoring(utterance.text or "", rules)}
        if utterance.speaker is not None:
            references[utterance.id]["speaker"] = utterance.speaker
        for number, other in enumerate(utterance.more_references, start=2):
            references[utterance.id][f"reference_{number}"] = normalize_for_scoring(other, rules)
    return references


def describe_hypotheses(texts: Mapping[str, str], rules: TextConfig) -> Texts:
    return {name: {"text": normalize_for_scoring(text, rules)} for name, text in texts.items()}


def write_table(path: Path, references: Texts, hypotheses: Mapping[str, Texts]) -> None:
    """Write a line for each utterance: id, reference, speaker, and the text of each system."""
    with replace_file(path) as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        for id, fields in references.items():
            texts = {name: own[id]["text"] for name, own in hypotheses.items() if id in own}
            packed.write(_format_line({"id": id, **fields, **texts}))


def read_table(path: Path) -> tuple[Texts, dict[str, Texts]]:
    """Read the references, and the hypotheses of each system by its name."""
    references: Texts = {}
    hypotheses: dict[str, Texts] = {}
    for id, fields in read_texts(path).items():
        own = {"text", "speaker", *find_more_references(fields)}
        references[id] = {name: text for name, text in fields.items() if name in own}
        for name, text in fields.items():
            if name not in own:
                hypotheses.setdefault(name, {})[id] = {"text": text}
    return references, hypotheses


def write_texts(path: Path, texts: Texts) -> None:
    """Write JSON Lines that `asr score` reads."""
    with replace_file(path) as file:
        for id, fields in texts.items():
            file.write(_format_line({"id": id, **fields}))


def _format_line(record: Mapping[str, str]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def read_texts(path: Path) -> Texts:
    """Read JSON Lines, packed by gzip or not, by their ids."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        records = [json.loads(line) for line in content.splitlines()]
        return {record.pop("id"): record for record in records}
    except (OSError, EOFError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); run the stage evaluate again") from None
