"""Moonshine's weights in our training loop: what a run takes over, what it learns, and what stays unchanged."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from ort_examples import ModelWriter, write_pieces
from torch import Tensor
from training_examples import BuildRun, assert_equal_bits, prepare_speech, run_until_killed, start_runs_from

from asr.cli import main
from asr.decoding.timestamps import pad_tokens
from asr.errors import UserError
from asr.families import find_checkpoints, find_family, find_model
from asr.models.adapting import is_low_rank
from asr.moonshine import load_source
from asr.moonshine.family import find_run
from asr.system.run_config import RunConfig
from asr.system.system import load_any_system, load_system
from asr.text.tokenizer import Tokenizer
from asr.train.loop import train

RUN = """
output_dir: {folder}/run
start_from: {folder}/small
data: {{train: {tones}/train.jsonl, dev: {tones}/dev.jsonl}}
text: {{training: [lowercase], scoring: [uppercase]}}
tokenizer: {{type: moonshine}}
features: {{type: samples}}
batches: {{max_seconds: 40, max_utterances: 8, num_workers: 0}}
model:
  encoder: {{type: moonshine}}
  decoder: {{type: moonshine}}
  ctc_weight: 0.0
optim: {{learning_rate: 1e-3, warmup_steps: 1}}
train: {{steps: 2, precision: float32, device: cpu, validate_every: 2, save_every: 1, log_every: 2, keep_best: 2}}
"""
FROZEN = ("model.frozen=[encoder]",)
LORA = ("model.lora={rank: 4}", "model.frozen=[encoder, decoder]")
CTC = ("model.ctc_weight=0.3",)

SPECIAL_PIECES = [b"<unk>", b"<s>", b"</s>", *(bytes([byte]) for byte in range(256))]
PIECES = [
    *SPECIAL_PIECES,
    *(piece.encode() for piece in ("\u2581", "\u2581t", "\u2581o", "\u2581s", "n", "e")),
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with one layer in each part and random weights."""
    folder = tmp_path_factory.mktemp("source") / "small"
    ModelWriter(dim=256, vocab_size=300).write(folder)
    write_pieces(folder / "tokenizer.bin", PIECES)
    return folder


@pytest.fixture
def run(tones: Path, small: Path, tmp_path: Path) -> BuildRun:
    """Builds the config of a run that starts from a small Moonshine with random weights."""
    return start_runs_from(small, RUN, tones, tmp_path)


def make_batch(tokenizer: Tokenizer) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    features_BTF = torch.randn(2, 90, 64, generator=torch.Generator().manual_seed(0))
    tokens = [tokenizer.encode(text) for text in ("ten one", "six")]
    return features_BTF, torch.tensor([90, 60]), *pad_tokens(tokens)


@torch.inference_mode()
def test_the_same_model_as_the_source(run: BuildRun, tmp_path: Path) -> None:
    model, tokenizer = prepare_speech(run())
    source = load_source(str(tmp_path / "small"))
    assert tokenizer == source.tokenizer
    batch = make_batch(tokenizer)
    assert torch.equal(model.eval()(*batch).total, source.model(*batch).total)


@pytest.mark.parametrize("decoder", ["null", "{type: moonshine}"])
def test_tokens_of_its_own(run: BuildRun, tmp_path: Path, decoder: str) -> None:
    """With other tokens, the layers for them are new; a run may also take the encoder alone."""
    own = (
        f"model.decoder={decoder}",
        "model.ctc_weight=1.0" if decoder == "null" else "model.ctc_weight=0.0",
    )
    model, tokenizer = prepare_speech(run("tokenizer.type=characters", *own))
    source = load_source(str(tmp_path / "small")).model
    assert tokenizer.type == "characters"
    output = model.ctc_head if model.decoder is None else model.decoder.output
    assert output.out_features == len(tokenizer)
    for name, weight in source.encoder.state_dict().items():
        assert torch.equal(model.encoder.state_dict()[name], weight), name


@pytest.mark.parametrize(
    ("overrides", "learned"),
    [
        ((), "encoder|decoder"),
        (FROZEN, "decoder"),
        (LORA, r".*(down_RD|up_KR)$"),
        (CTC, "ctc_head|encoder|decoder"),
    ],
    ids=["all", "frozen", "lora", "ctc"],
)
def test_what_two_updates_change(run: BuildRun, overrides: Sequence[str], learned: str) -> None:
    """The output still shares its weights with the embeddings, and the result loads without the source model."""
    config = run(*overrides)
    start = {name: weight.clone() for name, weight in prepare_speech(config)[0].state_dict().items()}
    folder = train(config)
    shutil.rmtree(str(config.start_from))
    trained = load_any_system(folder, to_train=True).model.state_dict()
    assert trained.keys() == start.keys()
    changed = {name for name in start if not torch.equal(trained[name], start[name])}
    assert changed == {name for name in start if re.match(learned, name)}
    assert torch.equal(trained["decoder.output.weight"], trained["decoder.embedding.weight"])
    assert find_run(Path(config.output_dir)) == folder
    assert find_family(config.output_dir).section == "moonshine"
    assert find_family(config.output_dir, as_run=True) is None
    system = load_source(config.output_dir)
    assert not any(is_low_rank(name) for name in system.model.state_dict())
    assert (system.model.ctc_head is None) == (overrides != CTC)


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [(), (*LORA, "train.average_decay=0.9")], ids=["all", "lora"])
def test_resumes_exactly_and_without_the_source(
    run: BuildRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: Sequence[str]
) -> None:
    whole = train(run(f"output_dir={tmp_path}/whole", *overrides))
    run_until_killed(monkeypatch, 1, lambda: train(run(*overrides)))
    (checkpoint,) = find_checkpoints(tmp_path / "run")
    shutil.rmtree(tmp_path / "small")
    assert_equal_bits(whole, train(RunConfig.load(checkpoint / "config.yaml")))


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [(), CTC], ids=["alone", "ctc"])
def test_a_run_is_a_model_as_any_other(
    run: BuildRun, tones: Path, tmp_path: Path, overrides: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands take it and another run starts from it, after its source is deleted."""
    first = run(f"output_dir={tmp_path}/first", *overrides)
    train(first)
    shutil.rmtree(tmp_path / "small")
    capsys.readouterr()
    assert main(["evaluate", first.output_dir, str(tones / "dev.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert main(["info", first.output_dir]) == 0
    assert main(["convert", first.output_dir, str(tmp_path / "new")]) == 0
    command = ["transcribe", str(tones / "dev-0.wav"), "--model", str(tmp_path / "new"), "--format", "json"]
    capsys.readouterr()
    assert main([*command, "--language", "en"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert main([*command, "--language", "de"]) == 2
    second = run(f"start_from={tmp_path}/first", "optim.learning_rate=1e-12", "train.steps=1", *overrides)
    ours = load_system(train(second)).model.state_dict()
    for name, weight in load_system(find_model(first.output_dir)).model.state_dict().items():
        torch.testing.assert_close(ours[name], weight, atol=1e-6, rtol=0, msg=name)


# --- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("start_from=null",), "set start_from: moonshine-base"),
        (("start_from=null", "tokenizer.type=characters"), "set start_from: moonshine-base"),
        (("features.type=log_mel", "features.window_ms=25"), "features: {type: samples}"),
        (("model.encoder={type: lstm}", "model.decoder={dim: 32}"), "neither model.encoder nor"),
        (("model.encoder={type: lstm, dim: 8}",), "encoder of the same model"),
    ],
)
def test_what_does_not_fit(run: BuildRun, overrides: Sequence[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepare_speech(run(*overrides))
