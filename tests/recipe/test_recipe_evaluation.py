"""What a run of a recipe hears with texts weighed in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from recipe_examples import COMMON, make_experiment, write_conf, write_tones_recipe

from asr.decoding.decode import METHODS
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig
from asr.families import find_model
from asr.recipe import Study, run_recipe
from asr.recipe.delays import collect_curves
from asr.recipe.evaluation import WEIGHTS, Decoded, build_resources, choose_requests, decode
from asr.recipe.experiment import build_runs
from asr.recipe.steps import read_record
from asr.system.system import load_system
from asr.train.training_data import read_training_texts
from asr.transcription.transcribe import Recognizer, Request

LANGUAGE_MODEL = """
output_dir: runs/tones/talk
data: {train: data/tones/train.jsonl, dev: data/tones/dev.jsonl}
model: {type: language, dim: 16, num_layers: 1, num_heads: 2, feed_forward_dim: 16}
train: {steps: 4, device: cpu, validate_every: 2, save_every: 2, log_every: 1, select_by: loss}
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, tones: Path) -> Path:
    """A folder in which a recipe that weighs in texts has been run."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("weighed")
    fields = "text_fusion=True, speeds=(0.9, 1.0)"
    recipes_dir = write_tones_recipe(folder, tones, fields)
    write_conf(folder, "talk", LANGUAGE_MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asr.train.monitor.draw_learning_curve", lambda path, panels: path.touch())
        run_recipe(make_experiment(recipes_dir, output_dir=folder / "all"))
    return folder


def test_ways_with_and_without_texts(done: Path) -> None:
    results = json.loads((done / "all" / "runs" / "report" / "results.json").read_text())
    ways = {run["name"]: list(run["methods"]["test"]) for run in results["runs"]}
    weighed = ["ctc_beam+ngrams", "ctc_beam+talk"]
    own = ["ctc_greedy", "ctc_beam", *weighed]
    assert ways["ctc_lstm"] == [*own, *(f"{way}+speeds" for way in own)]
    own = [*weighed, "joint", "joint+ngrams", "joint+talk"]
    assert set(ways["transformer"]) > {*own, *(f"{way}+speeds" for way in own)}
    for run in results["runs"]:
        assert all(
            rates["language_model_weight"] == 0
            for name, rates in run["methods"]["dev"].items()
            if name.removesuffix("+speeds") in METHODS
        )


def test_the_weight_is_the_one_that_dev_likes_best(done: Path) -> None:
    experiment = make_experiment(done / "recipes", output_dir=done / "all")
    run = next(run for run in build_runs(experiment) if run.name == "ctc_lstm")
    recognizer = Recognizer(load_system(find_model(run.folder)), checks=ChecksConfig(), needs_times=False)
    language_model = build_resources(recognizer.system, list(read_training_texts(run.config)), [])["ngrams"]
    configs = {w: DecodingConfig(method="ctc_beam", language_model_weight=w) for w in WEIGHTS}
    requests = {str(w): Request(config, language_model) for w, config in configs.items()}
    decoded = decode(recognizer, Path(run.config.data.dev), requests)
    rates = {w: decoded[str(w)].rates["wer"] for w in WEIGHTS}
    ways = read_record(run.summary_path)["methods"]
    for split_name in ("dev", "test"):
        assert ways[split_name]["ctc_beam+ngrams"]["language_model_weight"] == min(
            rates, key=lambda w: rates[w]
        )
    assert ways["dev"]["ctc_beam+ngrams"]["wer"] == min(rates.values())


def test_texts_without_blanks_are_chosen_by_their_characters() -> None:
    """Each is one word, which is wrong in both: words cannot tell them apart."""
    requests = [Request(DecodingConfig(beam=beam)) for beam in (1, 2, 3)]
    cers = dict(zip(requests, (0.9, 0.1, 0.5), strict=True))

    def decode(asked: Mapping[str, Request]) -> dict[str, Decoded]:
        return {name: Decoded(own, {}, {"wer": 1.0, "cer": cers[own]}) for name, own in asked.items()}

    for chosen_by, best in (("wer", 0), ("cer", 1)):
        chosen = choose_requests(decode, {"ctc_beam": requests}, chosen_by)  # type: ignore[arg-type]
        assert chosen["ctc_beam"].request is requests[best]


def test_a_language_model_of_other_tokens_is_left_out(done: Path, tmp_path: Path) -> None:
    """A system that starts from another corpus has tokens of its own; the rest is weighed in all the same."""
    shutil.copytree(done, tmp_path / "copy")
    recipes_dir, output_dir = tmp_path / "copy" / "recipes", tmp_path / "copy" / "all"
    path = output_dir / "runs" / "talk" / "tokenizer.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"tokens": [*record["tokens"], "X"]}))
    experiment = make_experiment(recipes_dir, output_dir=output_dir, only=("ctc_lstm",))
    run_recipe(experiment, "evaluate")
    ways = read_record(output_dir / "runs" / "ctc_lstm" / "evaluation" / "summary.json")["methods"]["test"]
    assert "ctc_beam+ngrams" in ways and "ctc_beam+talk" not in ways


LIVE = """
model:
  encoder:
    type: transformer
    dim: 16
    num_layers: 1
    num_heads: 2
    feed_forward_dim: 16
    positions: rotary
    subsampling: {channels: 4}
    chunk: {}
  decoder: {type: transducer, dim: 16}
"""


def test_a_study_decodes_by_chunks(tmp_path: Path, tones: Path) -> None:
    recipes_dir = write_tones_recipe(tmp_path, tones, "text_fusion=True, speeds=(0.9, 1.0)")
    common = COMMON.format(name="live_transducer").replace("utterance}", "running}")
    write_conf(tmp_path, "live/transducer", common + LIVE)
    whole = ("model.encoder.chunk=null",)
    study = Study(
        name="delays",
        question="which?",
        system="live/transducer",
        baseline="whole",
        chunk_steps=(2, 8),
        variants={"whole": whole, "streaming": ()},
    )
    experiment = make_experiment(recipes_dir, output_dir=tmp_path / "all", study=study)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asr.train.monitor.draw_learning_curve", lambda path, panels: path.touch())
        run_recipe(experiment)
    results = json.loads((tmp_path / "all" / "runs" / "report" / "results.json").read_text())
    setups = {run["variant"]: list(run["methods"]["test"]) for run in results["runs"]}
    own = ["ctc_greedy", "ctc_beam", "ctc_beam+ngrams"]
    own += ["transducer_greedy", "transducer", "transducer+ngrams"]
    at_once = [*own, *(f"{name}+speeds" for name in own)]
    assert sorted(setups["whole"]) == sorted(at_once)
    by_chunks = [f"{name}+{delay}ms" for delay in (80, 320) for name in own]
    assert sorted(setups["streaming"]) == sorted([*at_once, *by_chunks])
    curves = collect_curves(results)
    assert list(curves) == ["streaming"] and {len(curve) for curve in curves["streaming"].values()} == {3}
    assert (tmp_path / "all" / "runs" / "report" / "delays.png").read_bytes().startswith(b"\x89PNG")
    assert all("ms" not in run["decoding"] for run in results["runs"])  # dev chooses among whole utterances
