"""Decode dev and test by every setup that a system offers; dev chooses one. Score and compare the systems.

Every figure of results.json follows from the table beside it, test.jsonl.gz: a line for each utterance with
its reference and the hypothesis of each run. Anyone can compute the figures again, as tests do.
"""

from __future__ import annotations

import functools
import gzip
import json
import logging
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy
import torch

from asr.data.manifest import Utterance, find_more_references
from asr.decoding.decode import offered_methods
from asr.decoding.fusion import ShallowFusion
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig, FusionModel
from asr.decoding.ngram import (
    Arpa,
    Lexicon,
    build_ngram_model,
    collect_words,
    estimate_ngrams,
    token_vocabulary,
)
from asr.errors import UserError
from asr.evaluation.speech import DecodedSplit, decode_utterances, read_references
from asr.families import find_model
from asr.files import replace_file
from asr.models.speech_model import describe_device, limit_kernel_cache
from asr.recipe.experiment import Experiment, PlannedRun, read_record
from asr.scoring.counting import score
from asr.scoring.intervals import Interval
from asr.scoring.result import Score
from asr.scoring.significance import compare_scores
from asr.system.checkpoint import versions
from asr.system.run_config import System, load_language_model, load_state, load_system
from asr.text.normalization import TextConfig, normalize
from asr.train.preparation import read_training_texts
from asr.transcription.transcribe import Recognizer, Request

logger = logging.getLogger(__name__)

RESULTS, TABLE = "results.json", "test.jsonl.gz"
AT_SPEEDS = "+speeds"  # ends the names of setups that decode each utterance at several speeds
NGRAMS = "ngrams"  # name of the n-grams of training texts, among language models
ORDER = {"words": 3, "tokens": 6}
LEFT_OUT = "left_out"  # names the texts of all folds of a variant

# id -> text and, where they are known, speaker and further references, reference_2 and so on
Texts = dict[str, dict[str, str]]
Table = tuple[Texts, dict[str, Texts]]  # references, and hypotheses by their name
Record = Mapping[str, Any]  # of a run: its summary.json with its figures


def collect_texts(runs: Sequence[PlannedRun], summaries: Sequence[Record]) -> Table:
    """Collect the references, and the test hypotheses of all runs by each of their setups."""
    references = read_texts(runs[0].evaluation_dir / "test.jsonl")
    hypotheses = {}
    for run, summary in zip(runs, summaries, strict=True):
        if read_texts(run.evaluation_dir / "test.jsonl") != references:
            raise UserError(
                f"{runs[0].conf.path} and {run.conf.path}: their references differ after text.scoring, so "
                "their error rates cannot be compared; give both the same rules"
            )
        for setup in summary["methods"]["test"]:
            texts = read_texts(run.evaluation_dir / f"{setup_name('test', setup)}.jsonl")
            hypotheses[setup_name(run.name, setup)] = texts
    for summary in summaries:
        if summary["left_out"] is not None:
            own = hypotheses[setup_name(summary["name"], summary["decoding"])]
            joined = setup_name(f"{summary['variant']}-seed-{summary['seed']}", LEFT_OUT)
            tested = {id: own[id] for id in choose_tested(summary, references)}
            hypotheses[joined] = hypotheses.get(joined, {}) | tested
    return references, hypotheses


def score_runs(table: Path, baseline: str, runs: Sequence[Record]) -> dict[str, Any]:
    """Compute the figures of results.json from the table, and add them to the runs."""
    references, columns = read_table(table)
    hypotheses = {run["name"]: columns[setup_name(run["name"], run["decoding"])] for run in runs}
    systems = {run["variant"]: [own for own in runs if own["variant"] == run["variant"]] for run in runs}
    # Many systems have one run, whose score is theirs, and is compared.
    pooled = functools.cache(lambda *own: pool([r for r in runs if r["name"] in own], references, hypotheses))
    scores = {name: pooled(*(run["name"] for run in own)) for name, own in systems.items()}
    comparisons = []
    for name, own in systems.items():
        shared, others = _share_folds(own, systems.get(baseline, []))
        if name != baseline and shared:
            first, second = (pooled(*(run["name"] for run in side)) for side in (shared, others))
            comparisons.append(_compare(name, baseline, first, second))
    first = next(iter(scores.values()))
    return {
        "test": {
            "utterances": len(references),
            "words": sum(len(fields["text"].split()) for fields in references.values()),
            "resampled_by": first.resampled_by,
            **({"references": first.num_references} if first.num_references > 1 else {}),
        },
        "runs": [{**run, **_score_alone(run, references, columns, pooled(run["name"]))} for run in runs],
        "systems": [
            {"name": name, **describe_score(found), **_describe_characters(found)}
            for name, found in scores.items()
        ],
        "comparisons": comparisons,
    }


def pool(runs: Sequence[Record], references: Texts, hypotheses: Mapping[str, Texts]) -> Score:
    """Score all runs as if their utterances were one test set; of a fold, what was left out alone."""
    tested = [(run, choose_tested(run, references)) for run in runs]
    return score_texts(
        {f"{run['seed']} {id}": fields for run, own in tested for id, fields in own.items()},
        {f"{run['seed']} {id}": hypotheses[run["name"]][id] for run, own in tested for id in own},
    )


def round_figures(tree: Any) -> Any:
    """Round to nine decimals, in types of JSON: others depend on processor and numpy."""
    return json.loads(json.dumps(tree), parse_float=lambda text: round(float(text), 9))


def _share_folds(first: Sequence[Record], second: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Keep the runs of seeds and folds that both variants have."""
    keys = [{(run["seed"], run["left_out"]) for run in runs} for runs in (first, second)]
    both = keys[0] & keys[1]
    kept = [[run for run in runs if (run["seed"], run["left_out"]) in both] for runs in (first, second)]
    return kept[0], kept[1]


def _score_alone(run: Record, references: Texts, columns: Mapping[str, Texts], pooled: Score) -> Record:
    """Score a run by itself: as it was decoded, by its other setups, and on the speakers that it knows."""
    tested = choose_tested(run, references)
    setups = {}
    for setup, known in run["methods"]["test"].items():
        own = columns.get(setup_name(run["name"], setup))
        if own is not None:
            is_own = setup == run["decoding"]
            fresh = pooled if is_own else score_texts(tested, {id: own[id] for id in tested}, resamples=0)
            known = {**known, "wer": fresh.error_rate, "cer": fresh.cer}
        setups[setup] = known
    texts = columns[setup_name(run["name"], run["decoding"])]
    figures = describe_score(pooled) | _describe_characters(pooled)
    figures["methods"] = {**run["methods"], "test": setups}
    if run["left_out"] is not None:
        known_ids = references.keys() - tested.keys()
        known = {id: fields for id, fields in references.items() if id in known_ids}
        figures["known_speakers"] = describe_score(score_texts(known, {id: texts[id] for id in known}))
    return figures


# --- scores -------------------------------------------------------------------------------------


def setup_name(run: str, setup: str) -> str:
    """Name the texts of a run, or of a split, that were decoded by one setup."""
    return f"{run}.{setup}"


def find_language_model(setup: str) -> str | None:
    """Name the language model of a setup such as joint+ngrams+speeds: ngrams, or a run."""
    _, _, source = setup.removesuffix(AT_SPEEDS).partition("+")
    return source or None


def choose_tested(run: Record, references: Texts) -> Texts:
    """Choose what the run is tested on: the speaker that it was trained without, else all."""
    left_out = run["left_out"]
    return {id: f for id, f in references.items() if left_out is None or f["speaker"] == left_out}


def score_texts(references: Texts, hypotheses: Texts, **options: Any) -> Score:
    """Score texts; the interval resamples speakers where all are known."""
    speakers = {name: fields["speaker"] for name, fields in references.items() if "speaker" in fields}
    return score(
        {name: fields["text"] for name, fields in references.items()},
        {name: fields["text"] for name, fields in hypotheses.items()},
        speakers=speakers if len(speakers) == len(references) else None,
        alternatives={
            name: list(find_more_references(fields).values()) for name, fields in references.items()
        },
        **options,
    )


def describe_score(score: Score) -> dict[str, Any]:
    """WER with its interval, as numbers."""
    return {
        "wer": score.error_rate,
        "interval": _describe_interval(score.interval),
        "errors": score.counts.errors,
        "words": score.counts.reference_length,
    }


def _describe_characters(score: Score) -> dict[str, Any]:
    return {"cer": score.cer, "cer_interval": _describe_interval(score.characters.interval)}


def _describe_interval(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]


def _compare(name: str, baseline: str, first: Score, second: Score) -> dict[str, Any]:
    """Compare two systems; the difference is the first less the second, as is its interval."""
    result = compare_scores(first, second, (name, baseline))
    return {
        "system": name,
        "baseline": baseline,
        "difference": result.difference,
        "interval": _describe_interval(None if result.bootstrap is None else result.bootstrap.interval),
        "p": result.p,
        "verdict": result.verdict,
    }


def describe_references(utterances: Iterable[Utterance], rules: TextConfig) -> Texts:
    """Their texts as they are scored, with their speakers."""
    references: Texts = {}
    for utterance in utterances:
        references[utterance.id] = {"text": normalize(utterance.text or "", rules.scoring)}
        if utterance.speaker is not None:
            references[utterance.id]["speaker"] = utterance.speaker
        for number, other in enumerate(utterance.more_references, start=2):
            references[utterance.id][f"reference_{number}"] = normalize(other, rules.scoring)
    return references


def write_table(path: Path, references: Texts, hypotheses: Mapping[str, Texts]) -> None:
    """Write a line for each utterance: id, reference, speaker, and the text of each system."""
    with replace_file(path) as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        for id, fields in references.items():
            texts = {name: own[id]["text"] for name, own in hypotheses.items() if id in own}
            packed.write(_format_line({"id": id, **fields, **texts}))


def read_table(path: Path) -> Table:
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


SMOKE_BEAM = 2
# Of the log-probabilities that shallow fusion adds, and of CTC against the decoder; dev chooses.
WEIGHTS = (0.3, 0.6, 1.0)
CTC_WEIGHTS = (0.3, 0.6)
FUSED_METHODS = ("ctc_beam", "joint")  # with language models too; the others would take long


def evaluate_run(
    experiment: Experiment, run: PlannedRun, language_models: Sequence[Path] = ()
) -> dict[str, object]:
    """Write SPLIT.SETUP.jsonl for each split and setup, SPLIT.jsonl of the references; return the summary."""
    state = load_state(find_model(run.folder))
    system, longest = load_system(find_model(run.folder)), state.get("longest_seconds")
    checks = ChecksConfig() if experiment.recipe.checks else ChecksConfig.off()
    limit_kernel_cache()
    recognizer = Recognizer(system, checks=checks, longest_seconds=longest, needs_times=False)
    split = Split(recognizer, Path(run.config.data.dev), run.evaluation_dir, "dev")
    setups = _choose_setups(experiment, run, split, language_models)
    dev = {name: split.keep(name, decoded) for name, decoded in setups.items()}
    # Of equals the cheapest, which is the first.
    chosen = min(dev, key=lambda name: dev[name][experiment.recipe.chosen_by])
    requests = {name: decoded.request for name, decoded in setups.items()}
    split = Split(recognizer, experiment.data_dir / "test.jsonl", run.evaluation_dir, "test")
    test = {name: split.keep(name, decoded) for name, decoded in split.decode(requests).items()}
    return {
        "name": run.name,
        "system": run.system,
        "variant": run.conf.variant or run.system,
        "left_out": run.conf.left_out,
        "seed": run.seed,
        "decoding": chosen,
        "decoding_config": requests[chosen].decoding.model_dump(mode="json"),
        "checks": recognizer.checks.describe(),
        "language_model": find_language_model(chosen),
        "parameters": sum(parameter.numel() for parameter in system.model.parameters()),
        "real_time_factor": test[chosen]["real_time_factor"],
        "methods": {"dev": dev, "test": test},
        "training": {
            "updates": state["step"],
            "seconds": state["seconds"],
            "audio_hours": state["audio_seconds"] / 3600,
            **read_record(run.record_path).get("origin", {}),
            "commit": state["commit"],
        },
        "evaluation": describe_origin(experiment) | {"device": describe_device(recognizer.device)},
    }


# --- what dev chooses from ----------------------------------------------------------------------


def _choose_setups(
    experiment: Experiment, run: PlannedRun, split: Split, language_models: Sequence[Path]
) -> dict[str, DecodedSplit]:
    """Decode dev by all that the system offers; of each the weights that do best there, then its speeds."""
    chosen_by, speeds = experiment.recipe.chosen_by, experiment.recipe.speeds
    planned = _plan_setups(experiment, run, split.recognizer.system, language_models)
    chosen = _choose_weights(split, planned, chosen_by)
    if not speeds:
        return chosen
    at_speeds = {
        name + AT_SPEEDS: vary([decoded.request], "speeds", [speeds]) for name, decoded in chosen.items()
    }
    return chosen | _choose_weights(split, at_speeds, chosen_by)


def _choose_weights(
    split: Split, candidates: Mapping[str, Sequence[Request]], chosen_by: Literal["wer", "cer"]
) -> dict[str, DecodedSplit]:
    """Choose for each name the request with the fewest errors."""
    decoded = split.decode(
        {f"{name} {index}": one for name, own in candidates.items() for index, one in enumerate(own)}
    )
    chosen = {}
    for name, own in candidates.items():
        options = [decoded[f"{name} {index}"] for index in range(len(own))]
        chosen[name] = options[find_best([split.score(one) for one in options], chosen_by)]
    return chosen


def find_best(scores: Sequence[Score], chosen_by: Literal["wer", "cer"]) -> int:
    """The score with the lowest rate; of equals the first."""
    rates = [score.error_rate if chosen_by == "wer" else score.cer for score in scores]
    return rates.index(min(rates))


def _plan_setups(
    experiment: Experiment, run: PlannedRun, system: System, language_models: Sequence[Path]
) -> dict[str, list[Request]]:
    """Plan setups by name, the cheapest first. Shallow fusion has several weights for dev to choose from."""
    config = DecodingConfig(beam=SMOKE_BEAM) if experiment.smoke else DecodingConfig()
    methods = offered_methods(system.model)
    setups = {name: [Request(config.model_copy(update={"method": name}))] for name in methods}
    if experiment.recipe.text_fusion:
        if "joint" in setups:
            setups["joint"] = vary(setups["joint"], "ctc_weight", CTC_WEIGHTS)
        texts = list(read_training_texts(run.config))
        for source, model in build_resources(system, texts, language_models).items():
            for method in FUSED_METHODS:
                if method in methods:
                    fused = [replace(setup, language_model=model) for setup in setups[method]]
                    setups[f"{method}+{source}"] = vary(fused, "language_model_weight", WEIGHTS)
    return setups


def build_resources(
    system: System, texts: Sequence[str], language_models: Sequence[Path]
) -> dict[str, FusionModel]:
    """Build, by name, n-grams of the texts and each language model, with a lexicon if words have a space."""
    has_words = system.tokenizer.space_id is not None
    lexicon = [Lexicon(system.tokenizer, collect_words(texts))] if has_words else []
    models = {NGRAMS: build_ngram_model(estimate_arpa(system, texts), system.tokenizer)}
    loaded = {folder.name: load_language_model(folder, system.tokenizer) for folder in language_models}
    return {name: ShallowFusion([model, *lexicon]) for name, model in {**models, **loaded}.items()}


def estimate_arpa(system: System, texts: Sequence[str]) -> Arpa:
    """N-grams of words where a token stands between words, else of tokens."""
    tokenizer = system.tokenizer
    if tokenizer.space_id is not None:
        return estimate_ngrams([text.split() for text in texts], ORDER["words"], [])
    tokens = token_vocabulary(tokenizer.tokens)
    lines = [[tokens[id] for id in tokenizer.encode(text)] for text in texts]
    return estimate_ngrams(lines, ORDER["tokens"], tokens)


def vary(requests: Sequence[Request], key: str, values: Sequence[object]) -> list[Request]:
    """Each request with each value of a setting of decoding."""
    return [
        replace(request, decoding=request.decoding.model_copy(update={key: value}))
        for request in requests
        for value in values
    ]


# --- a split ------------------------------------------------------------------------------------


class Split:
    """Utterances to decode, and their references as they are scored."""

    def __init__(self, recognizer: Recognizer, manifest: Path, folder: Path, name: str) -> None:
        """Read the manifest, and write its references into the folder of the decoded texts."""
        self.recognizer, self.manifest, self.folder, self.name = recognizer, manifest, folder, name
        self.utterances = read_references(manifest)
        self.references = describe_references(self.utterances, recognizer.system.config.text)
        write_texts(folder / f"{name}.jsonl", self.references)

    def decode(self, requests: Mapping[str, Request]) -> dict[str, DecodedSplit]:
        """Decode by all setups; utterances are encoded once. A file that cannot be read is an error."""
        logger.info("%s: %d utterances of %s", self.folder.parent.name, len(self.utterances), self.manifest)
        evaluated = decode_utterances(self.recognizer, self.utterances, requests)
        if evaluated.faults:
            name, fault = next(iter(evaluated.faults.items()))
            raise UserError(
                f"{self.manifest}: {len(evaluated.faults)} utterances cannot be read, so nothing is scored; "
                f"{name}: {fault}"
            )
        return evaluated.setups

    def score(self, decoded: DecodedSplit) -> Score:
        return score_texts(self.references, self.describe(decoded))

    def keep(self, setup: str, decoded: DecodedSplit) -> dict[str, float]:
        """Write the texts; return WER, CER, speed, and how many texts the checks rejected."""
        write_texts(self.folder / f"{setup_name(self.name, setup)}.jsonl", self.describe(decoded))
        scored = self.score(decoded)
        return {
            "wer": scored.error_rate,
            "cer": scored.cer,
            "real_time_factor": decoded.real_time_factor,
            "language_model_weight": decoded.request.decoding.language_model_weight,
            "rejected": len(decoded.warnings),
        }

    def describe(self, decoded: DecodedSplit) -> Texts:
        """Describe the texts as they are scored."""
        rules = self.recognizer.system.config.text
        return {id: {"text": normalize(text, rules.scoring)} for id, text in decoded.texts.items()}


# --- provenance of a result ----------------------------------------------------------------------


def describe_origin(experiment: Experiment) -> dict[str, str]:
    """Describe command, versions and machine. Names of folders do not matter, and are private."""
    return {
        "command": experiment.command,
        **versions(),
        "numpy": numpy.__version__,
        "machine": describe_machine(),
    }


def describe_machine() -> str:
    """Name the GPU, if there is one, and the processor with the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    info = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*: (.*)", info.read_text() if info.exists() else "", re.MULTILINE)
    processor = match[1] if match else platform.processor() or platform.machine()
    gpu = f"{torch.cuda.get_device_name()}, " if torch.cuda.is_available() else ""
    return f"{gpu}{processor}, {cores} cores"
