"""Whisper's weights in our training loop: what a run takes over, what it learns, and what stays unchanged."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from decoding_examples import decode_by_decoder, search
from recipe_examples import make_experiment, write_conf, write_tones_recipe
from safetensors.torch import load_file
from torch import Tensor
from training_examples import BuildRun, assert_equal_bits, prepare_speech, run_until_killed, start_runs_from
from whisper_examples import SIZES, make_weights, write_huggingface

from asr.cli import main
from asr.decoding.hypothesis import DecodingConfig
from asr.decoding.timestamps import pad_tokens
from asr.errors import UserError
from asr.families import find_checkpoints, find_family
from asr.models.adapting import LowRankLinear
from asr.models.speech_model import SpeechModel
from asr.recipe import run_recipe
from asr.recipe.experiment import build_runs
from asr.recipe.stages import find_reason_to_train
from asr.recipe.steps import read_record
from asr.system.run_config import RunConfig
from asr.system.system import System, load_any_system, load_system
from asr.text.tokenizer import SOS_ID, Tokenizer
from asr.train.distributed import Process
from asr.train.learner import Learner
from asr.train.loop import train
from asr.whisper import load_source, units_of

# B utterances, T frames, F features, U tokens, N tokens and the end, V vocabulary

RUN = """
output_dir: {folder}/run
start_from: {folder}/tiny
data: {{train: {tones}/train.jsonl, dev: {tones}/dev.jsonl}}
text: {{training: [lowercase], scoring: [uppercase]}}
tokenizer: {{type: whisper}}
features: {{convention: whisper}}
batches: {{max_seconds: 40, max_utterances: 8, num_workers: 0}}
model:
  encoder: {{type: whisper}}
  decoder: {{type: whisper, language: en}}
  ctc_weight: 0.0
optim: {{learning_rate: 1e-3, warmup_steps: 3}}
train: {{steps: 4, precision: float32, device: cpu, validate_every: 4, save_every: 2, log_every: 2, keep_best: 2}}
"""
PROCESS = Process(0, 1, torch.device("cpu"))
LORA = ("model.lora={rank: 16}", "model.frozen=[encoder, decoder]")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = make_weights()
    weights["decoder.positional_embedding"] = weights["decoder.positional_embedding"][:48].clone()
    return write_huggingface(
        tmp_path_factory.mktemp("source") / "tiny", weights, sizes=SIZES | {"n_text_ctx": 48}
    )


@pytest.fixture
def run(tones: Path, tiny: Path, tmp_path: Path) -> BuildRun:
    """Builds the config of a run that starts from a tiny Whisper with random weights."""
    return start_runs_from(tiny, RUN, tones, tmp_path)


def make_batch(tokenizer: Tokenizer, *lengths: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    features_BTF = torch.randn(len(lengths), max(lengths), 80, generator=random)
    texts = ["the rain in spain", "six", "on the plain"][: len(lengths)]
    return features_BTF, torch.tensor(lengths), *pad_tokens([tokenizer.encode(text) for text in texts])


# --- what a run takes over ----------------------------------------------------------------------------


@torch.inference_mode()
def score_both(model: SpeechModel, tokenizer: Tokenizer, whisper: System) -> tuple[Tensor, Tensor]:
    """Scores by a run and by Whisper for the same audio and texts."""
    prompt = units_of(whisper.tokenizer).special.prompt("en")
    features_BTF, lengths_B, tokens_BU, _ = make_batch(tokenizer, 60, 31)
    inputs_BN = torch.nn.functional.pad(tokens_BU[:, :4], (1, 0), value=SOS_ID)
    ours_BNV, _ = model.decoder(inputs_BN, *model.encode(features_BTF, lengths_B))
    whole_BU = torch.tensor([[*prompt, *row] for row in tokens_BU[:, :4].tolist()])
    theirs_BUV, _ = whisper.model.decoder(whole_BU, *whisper.model.encode(features_BTF, lengths_B))
    return ours_BNV, theirs_BUV[:, len(prompt) - 1 :]


@torch.inference_mode()
def test_the_same_scores_as_the_source(run: BuildRun, tmp_path: Path) -> None:
    """For each of Whisper's tokens as the next one after a prompt and some text, at once and step by step."""
    model, tokenizer = prepare_speech(run())
    whisper = load_source(tmp_path / "tiny")
    assert tokenizer == whisper.tokenizer
    scores_BNV, expected_BNV = score_both(model.eval(), tokenizer, whisper)
    torch.testing.assert_close(scores_BNV, expected_BNV)
    features_BTF, lengths_B, tokens_BU, _ = make_batch(tokenizer, 60, 31)
    inputs_BN = torch.nn.functional.pad(tokens_BU[:, :4], (1, 0), value=SOS_ID)
    encoded = model.encode(features_BTF, lengths_B)
    _, weights = model.decoder(inputs_BN, *encoded, {2: (0, 1)})
    state = model.decoder.start(*encoded)
    for place, inputs_B1 in enumerate(inputs_BN.split(1, dim=1)):
        step_B1V, step_weights = model.decoder.step(inputs_B1, state, {2: (0, 1)})
        torch.testing.assert_close(step_B1V[:, 0], scores_BNV[:, place], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(step_weights[2][:, :, 0], weights[2][:, :, place], atol=1e-5, rtol=1e-4)


@torch.inference_mode()
def test_a_bias_on_attention_is_of_the_tokens_and_not_of_the_prompt(run: BuildRun) -> None:
    model, tokenizer = prepare_speech(run())
    features_BTF, lengths_B, tokens_BU, _ = make_batch(tokenizer, 60, 31)
    encoded_BTD, encoded_lengths_B = model.eval().encode(features_BTF, lengths_B)
    bias_BUT = torch.randn(*tokens_BU.shape, encoded_BTD.size(1))
    heads = {0: (0, 1)}  # of the lowest layer: the others see what it attended to
    _, free = model.decoder(tokens_BU, encoded_BTD, encoded_lengths_B, heads)
    _, biased = model.decoder(tokens_BU, encoded_BTD, encoded_lengths_B, heads, bias_BUT)
    expected = free[0] * bias_BUT.exp()[:, None]
    torch.testing.assert_close(biased[0], expected / expected.sum(-1, keepdim=True), rtol=1e-4, atol=1e-6)


def test_texts_in_capitals_are_a_warning(run: BuildRun, caplog: pytest.LogCaptureFixture) -> None:
    prepare_speech(run())
    assert "all capitals" not in caplog.text
    prepare_speech(run("text.training=[uppercase]", "output_dir=" + run().output_dir + "2"))
    assert "100% of the texts are in capitals" in caplog.text and "Add lowercase" in caplog.text


def test_an_english_model_and_an_encoder_alone(run: BuildRun, tmp_path: Path) -> None:
    """Without Whisper's decoder, the tokens come from the training texts and the layers for them are new."""
    config = run("model.decoder=null", "model.ctc_weight=1.0", "tokenizer.type=characters")
    model, tokenizer = prepare_speech(config)
    whisper = load_source(tmp_path / "tiny")
    assert tokenizer.type == "characters" and model.ctc_head.out_features == len(tokenizer)
    for name, weight in model.encoder.state_dict().items():
        assert torch.equal(weight, whisper.model.encoder.state_dict()[name]), name
    config = run("tokenizer.type=characters", "model.decoder.language=null", f"output_dir={tmp_path}/other")
    model, tokenizer = prepare_speech(config)
    assert model.decoder.prompt == () and model.decoder.output.out_features == len(tokenizer)
    assert torch.equal(model.decoder.norm.weight, whisper.model.decoder.norm.weight)


# --- training -----------------------------------------------------------------------------------------


class Repeated(SimpleNamespace):
    """A batch in the form that the learner takes."""

    def __len__(self) -> int:
        return len(self.tokens_BU)

    def to(self, device: torch.device) -> Repeated:
        return self


def learn(model: SpeechModel, config: RunConfig, tokenizer: Tokenizer, steps: int) -> list[float]:
    """The losses of several updates on one batch."""
    learner = Learner(model, config, PROCESS, "float32")
    names = ("features_BTF", "feature_lengths_B", "tokens_BU", "token_lengths_B")
    parts = dict(zip(names, make_batch(tokenizer, 60, 40, 50), strict=True))
    batch: Any = Repeated(**parts, speech_spans_B2=None, audio_seconds=1.0)
    outcomes = [learner.update([batch], step) for step in range(steps)]
    return [outcome.sums["total"] / outcome.num_tokens for outcome in outcomes]


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [(), ("model.frozen=[encoder]",), (*LORA, "model.lora.alpha=64")])
def test_overfits_and_says_it(run: BuildRun, overrides: Sequence[str]) -> None:
    """With greedy and beam search: decoding starts with the same prompt as training."""
    config = run("model.label_smoothing=0.0", "optim.learning_rate=1e-2", *overrides)
    model, tokenizer = prepare_speech(config)
    losses = learn(model, config, tokenizer, 100)
    assert losses[-1] < 0.1 < losses[0]
    features_BTF, lengths_B, *_ = make_batch(tokenizer, 60, 40, 50)
    encoded = model.eval().encode(features_BTF, lengths_B)
    said = decode_by_decoder(model, *encoded)
    assert [tokenizer.decode(ids) for ids in said] == ["the rain in spain", "six", "on the plain"]
    found = search(model, *encoded, DecodingConfig(method="attention", beam=3))
    assert [list(best.tokens) for best, *_ in found] == said


@pytest.mark.parametrize(
    ("overrides", "learned"),
    [
        (("model.frozen=[encoder]",), "decoder."),
        (
            ("model.frozen=[encoder, decoder.embedding]", "model.ctc_weight=0.3"),
            "ctc_head.|decoder.layers.0.feed",
        ),
        (LORA, ".*project_.*(KR|RD)$"),
    ],
    ids=["encoder", "embedding", "lora"],
)
def test_what_is_frozen_stays(run: BuildRun, overrides: Sequence[str], learned: str) -> None:
    config = run(*overrides, "optim.warmup_steps=0")
    model, tokenizer = prepare_speech(config)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    learn(model, config, tokenizer, 2)
    changed = {name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])}
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert not changed & {*frozen, "encoder.positions_TD"}
    expected = {name for name in before if re.match(learned, name)}
    assert expected <= changed and (overrides != LORA or changed == expected)
    if "decoder.embedding" in str(overrides):
        assert not changed & {"decoder.embedding.weight", "decoder.output.weight"}


def test_merged_is_the_same(run: BuildRun, tmp_path: Path) -> None:
    """Low-rank changes give the same scores during training and after they are merged on loading."""
    folder = train(run(*LORA))
    trained, merged = load_any_system(folder, to_train=True), load_system(folder)
    assert any(isinstance(module, LowRankLinear) for module in trained.model.modules())
    assert not any(isinstance(module, LowRankLinear) for module in merged.model.modules())
    name = "layers.0.attention.project_in.weight"
    original = load_source(tmp_path / "tiny").model.encoder.state_dict()[name]
    assert torch.equal(trained.model.encoder.state_dict()[name], original)
    assert not torch.equal(merged.model.encoder.state_dict()[name], original)
    batch = make_batch(merged.tokenizer, 60, 40)
    ours, theirs = merged.model(*batch), trained.model(*batch)
    torch.testing.assert_close(ours.total, theirs.total, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("overrides", [(), (*LORA, "train.average_decay=0.9")], ids=["all", "lora"])
@pytest.mark.slow
def test_resumes_exactly_and_without_the_source(
    run: BuildRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: Sequence[str]
) -> None:
    whole = train(run(f"output_dir={tmp_path}/whole", *overrides))
    run_until_killed(monkeypatch, 3, lambda: train(run(*overrides)))
    (checkpoint,) = find_checkpoints(tmp_path / "run")
    shutil.rmtree(tmp_path / "tiny")
    for file in (tmp_path / "run" / "tokenizer.json", tmp_path / "run.yaml"):
        file.unlink()
    assert_equal_bits(whole, train(RunConfig.load(checkpoint / "config.yaml")))


@pytest.mark.parametrize("overrides", [(), LORA], ids=["all", "lora"])
def test_a_fine_tuned_whisper_is_a_whisper(
    run: BuildRun, tones: Path, tmp_path: Path, overrides: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes Whisper's options, gives its scores, and is written with equal weights."""
    config = run("train.steps=2", "train.validate_every=2", *overrides)
    folder = train(config)
    shutil.rmtree(tmp_path / "tiny")
    assert find_family(config.output_dir).section == "whisper"
    assert find_family(config.output_dir, as_run=True) is None
    system, trained = load_source(config.output_dir), load_system(folder)
    assert not system.is_published and system.config.model.decoder.language == "en"

    expected_BNV, scores_BNV = score_both(trained.model, trained.tokenizer, system)
    torch.testing.assert_close(scores_BNV, expected_BNV)

    recording = str(tones / json.loads((tones / "dev.jsonl").read_text().splitlines()[0])["audio"])
    command = ["transcribe", recording, "--model", config.output_dir, "--format", "json"]
    capsys.readouterr()
    options = ["--language", "en", "--hotwords", "the rain, six", "--set", "decoding.samples=1"]
    assert main([*command, *options]) == 0
    assert json.loads(capsys.readouterr().out)[0]["language"] == "en"
    assert main([*command, "--language", "de"]) == 2
    weights = system.model.state_dict()
    assert main(["convert", config.output_dir, str(tmp_path / "new")]) == 0
    again = load_source(tmp_path / "new")
    assert again.tokenizer == system.tokenizer and again.is_published
    for name, weight in again.model.state_dict().items():
        # That form has no bias of keys, the same for all of them, which no softmax sees.
        size = {"project_in.bias": 3, "project_memory.bias": 2}.get(".".join(name.split(".")[-2:]), 1)
        parts = zip(weight.chunk(size), weights[name].chunk(size), strict=True)
        is_equal = [torch.equal(*part) for part in parts]
        assert all(is_equal[:1] + is_equal[2:]) if size == 3 else is_equal[-1], name


@pytest.mark.slow
def test_a_run_is_a_model_as_any_other(
    run: BuildRun, tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands read it and another run starts from it, after its source is deleted."""
    first = run(f"output_dir={tmp_path}/first", "train.steps=2")
    folder = train(first)
    shutil.rmtree(tmp_path / "tiny")
    capsys.readouterr()
    assert main(["evaluate", first.output_dir, str(tones / "dev.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert main(["info", first.output_dir]) == 0
    second = run(f"start_from={tmp_path}/first", "optim.learning_rate=1e-12", "train.steps=1")
    ours = load_file(train(second) / "model.safetensors")
    for name, weight in load_file(folder / "model.safetensors").items():
        torch.testing.assert_close(ours[name], weight, atol=1e-6, rtol=0, msg=name)


@pytest.mark.slow
def test_in_a_recipe(tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--only` trains and evaluates from a model, and would train again if that model changed."""
    monkeypatch.chdir(tmp_path)
    recipes_dir = write_tones_recipe(tmp_path, tones, "text_fusion=True, speeds=(0.9, 1.0)")
    conf = RUN.replace("{tones}/", "data/tones/").replace("{folder}/tiny", "openai/whisper-tiny")
    write_conf(tmp_path, "tuned", conf.replace("{folder}/run", "runs/tones/tuned").format())

    def write_source(seed: int) -> None:
        write_huggingface(tmp_path / f"tiny{seed}", make_weights(seed))
        assert main(["convert", f"tiny{seed}", "openai/whisper-tiny"]) == 0

    write_source(0)
    experiment = make_experiment(recipes_dir, only=("tuned",))
    run_recipe(experiment)
    (results,) = read_record(Path("runs/tones/report/results.json"))["runs"]
    assert list(results["methods"]["test"]) == ["attention", "attention+speeds"]
    (run,) = build_runs(experiment)
    assert find_reason_to_train(run) is None
    shutil.rmtree("openai")
    write_source(1)
    assert "it starts from another model" in str(find_reason_to_train(run))


# --- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("start_from=null", "tokenizer.type=characters"), "takes sizes and weights from a Whisper model"),
        (("start_from=null", "model.encoder={type: lstm}", "model.decoder=null", "model.ctc_weight=1.0"),
         "takes sizes and weights from a Whisper model"),
        (("features.convention=kaldi",), "set features.convention: whisper"),
        (("augment.speed=[0.9]",), "set it to 27"),
        (("tokenizer.vocab_size=500",), "takes no vocab_size"),
        (("features.num_mels=128",), "set features.num_mels = 80 here"),
        (("model.decoder.language=de",), "model.decoder.language: .*English only"),
        (("model.decoder.language=elvish",), "model.decoder.language: .*elvish"),
        (("model.frozen=[encodre]",), "encodre"),
        (("model.encoder={type: lstm}", "model.decoder={dim: 32}"), "neither model.encoder nor model.decoder"),
        (("model.encoder={type: lstm, dim: 8}",), "cross_attention.*encoder of the same model"),
        (("model.encoder.sizes={num_mels: 80, vocab_size: 1924, dim: 32, encoder_layers: 3, encoder_heads: 4, "
          "decoder_layers: 3, decoder_heads: 2}",), r"encoder.layers.2.* is missing there"),
        (("keep_tokenizer=false",), "type whisper is not learned from texts"),
    ],
)  # fmt: skip
def test_what_does_not_fit(run: BuildRun, overrides: Sequence[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepare_speech(run(*overrides))
