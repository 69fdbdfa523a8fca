"""The Transformer language model: its scores, its training on text, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from training_examples import TinyRun, assert_equal_bits, read_log, run_until_killed

from asr.batches.loader import TextLoader
from asr.batches.order import ProcessShare
from asr.decoding.beam import score_texts
from asr.errors import UserError
from asr.families import find_checkpoints
from asr.language_models.language_model import LanguageModel, LanguageModelConfig
from asr.models.speech_model import build_model
from asr.system.checkpoint import save_checkpoint
from asr.system.decoding_resources import load_language_model
from asr.system.run_config import BatchConfig, RunConfig
from asr.system.system import load_any_system
from asr.text.tokenizer import EOS_ID, SOS_ID, Tokenizer, TokenizerConfig
from asr.train.distributed import Process
from asr.train.learner import halve_largest
from asr.train.loop import train
from asr.train.preparation import prepare_system
from asr.train.training_data import read_training_texts

TINY = {"type": "language", "dim": 32, "num_layers": 2, "num_heads": 2, "feed_forward_dim": 32}
TINY_RUN = """
output_dir: {folder}/run
data: {{train: {folder}/train.txt, dev: {folder}/dev.txt, text: [{folder}/more.text]}}
batches: {{max_tokens: 100, max_utterances: 8}}
model: {{type: language, dim: 32, num_layers: 1, num_heads: 2, feed_forward_dim: 32}}
optim: {{learning_rate: 1e-2, warmup_steps: 3}}
train: {{steps: 12, precision: float32, device: cpu, validate_every: 6, save_every: 3, log_every: 2, keep_best: 2, select_by: loss}}
"""
CPU = torch.device("cpu")
VOCAB_SIZE = 12


@pytest.fixture
def text_run(tmp_path: Path) -> TinyRun:
    """Builds the config of a language model on a few counted sentences; arguments are overrides."""
    numbers = ["ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN"]
    lines = [" ".join(numbers[start : start + length]) for start in range(5) for length in (1, 2, 3)]
    (tmp_path / "train.txt").write_text("\n\n".join(lines))
    (tmp_path / "more.text").write_text("SIX SEVEN\nFIVE SIX\n" * 8)
    (tmp_path / "dev.txt").write_text("TWO THREE FOUR\nFIVE SIX SEVEN\n")

    def build(*overrides: str) -> RunConfig:
        path = tmp_path / "run.yaml"
        path.write_text(TINY_RUN.format(folder=tmp_path))
        return RunConfig.load(path, overrides)

    return build


def build_tiny(**settings: Any) -> LanguageModel:
    torch.manual_seed(0)
    config = LanguageModelConfig.model_validate_json(json.dumps(TINY | settings))
    model = build_model(config, 0, VOCAB_SIZE).eval()
    assert isinstance(model, LanguageModel)
    return model


def losses_of(model: LanguageModel, tokens_BU: torch.Tensor, lengths_B: torch.Tensor) -> Any:
    rows = len(lengths_B)
    return model(torch.zeros(rows, 0, 0), torch.zeros(rows).long(), tokens_BU, lengths_B)


def test_step_by_step_equals_all_at_once() -> None:
    """With the keys and values kept, and rows reordered on the way."""
    model = build_tiny()
    random = torch.Generator().manual_seed(1)
    texts_RU = torch.full((4, 1), SOS_ID)
    state = model.start(4, CPU)
    for _ in range(7):
        scores_RV = state.score(texts_RU[:, -1])
        expected = model.run(texts_RU)[:, -1].log_softmax(-1)
        torch.testing.assert_close(scores_RV, expected, atol=1e-5, rtol=1e-5)
        rows = torch.randint(4, (4,), generator=random)
        state.select(rows)
        said_R1 = torch.randint(5, VOCAB_SIZE, (4, 1), generator=random)
        texts_RU = torch.cat([texts_RU[rows], said_R1], dim=1)


@torch.inference_mode()
def test_loss_is_what_a_beam_would_add() -> None:
    model = build_tiny()
    tokens_BU, lengths_B = torch.randint(5, VOCAB_SIZE, (3, 6)), torch.tensor([6, 2, 0])
    losses = losses_of(model, tokens_BU, lengths_B)
    scores_B = score_texts(model, tokens_BU, lengths_B, SOS_ID, EOS_ID)
    assert float(losses.total) == pytest.approx(-float(scores_B.sum()), rel=1e-5)
    assert losses.num_tokens == 6 + 2 + 0 + 3
    alone = [
        losses_of(model, tokens_BU[row : row + 1, :n], lengths_B[row : row + 1])
        for row, n in enumerate((6, 2, 0))
    ]
    for row, one in enumerate(alone):
        assert float(one.total) == pytest.approx(-float(scores_B[row]), rel=1e-5), "padding changes a score"
    assert int(losses.parts["correct"]) == sum(int(one.parts["correct"]) for one in alone)


@pytest.mark.parametrize("overrides", [(), ("train.batches_per_update=2", "train.average_decay=0.9")])
def test_resuming_is_exact(
    text_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: Sequence[str]
) -> None:
    whole = train(text_run(f"output_dir={tmp_path}/whole", *overrides))
    run_until_killed(monkeypatch, 8, lambda: train(text_run(*overrides)))
    assert find_checkpoints(tmp_path / "run")[-1].name == "step-00000006"
    resumed = train(text_run(*overrides))
    for name in ("model/model.safetensors", "checkpoints/step-00000012/training.safetensors"):
        assert_equal_bits(resumed.parent / name, whole.parent / name)


def test_perplexities_are_of_tokens_and_of_words(text_run: TinyRun, tmp_path: Path) -> None:
    """The dev set has 14 + 14 characters and 6 words; each sentence has an end."""
    folder = train(text_run("train.steps=40", "train.validate_every=10"))
    dev = read_log(tmp_path / "run", "dev")
    for line in dev:
        assert line["perplexity"] == pytest.approx(math.exp(line["loss"]))
        assert line["word_perplexity"] == pytest.approx(math.exp(line["loss"] * (28 + 2) / (6 + 2)))
    assert dev[-1]["loss"] < dev[0]["loss"], "it does not learn"
    system = load_any_system(folder)
    lines = (tmp_path / "dev.txt").read_text().splitlines()
    tokens = torch.tensor([system.tokenizer.encode(line) for line in lines])
    model = load_language_model(tmp_path / "run", system.tokenizer)
    total = float(score_texts(model, tokens, torch.tensor([14, 14]), SOS_ID, EOS_ID).sum())
    [final] = read_log(tmp_path / "run", "model")
    assert final["loss"] == pytest.approx(-total / 30, rel=1e-5)
    assert final["loss"] <= min(line["loss"] for line in dev) + 1e-6, "not the best on dev"
    assert "audio_seconds_per_second" not in read_log(tmp_path / "run", "train")[0]


def test_transcripts_of_manifests_are_texts(text_run: TinyRun, tones: Path, tmp_path: Path) -> None:
    train(
        text_run(
            f"data.train={tones}/train.jsonl", f"data.dev={tones}/dev.jsonl", "data.text=[]", "train.steps=2"
        )
    )
    tokenizer = Tokenizer.load(tmp_path / "run" / "tokenizer.json")
    assert set(tokenizer.tokens[5:]) == set(" ONETWSIX")
    assert math.isfinite(read_log(tmp_path / "run", "dev")[0]["perplexity"])


def test_text_is_learned_beside_the_transcripts(text_run: TinyRun, tmp_path: Path) -> None:
    config = text_run()
    assert list(read_training_texts(config)).count("SIX SEVEN") == 8
    assert len(list(read_training_texts(config))) == 15 + 16
    (tmp_path / "more.text").write_bytes(b"FINE\n\xff\n")
    with pytest.raises(UserError, match=r"more\.text:2: byte \d+ is not UTF-8"):
        list(read_training_texts(config))


TEXTS = ["A" * length for length in (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 40)]
TOKENIZER = Tokenizer.train(TokenizerConfig(), ["A"])


def load(share: ProcessShare = ProcessShare(0, 1), seed: int = 0) -> TextLoader:  # noqa: B008 (frozen)
    return TextLoader(TEXTS, "x.txt", TOKENIZER, BatchConfig(max_tokens=20), seed=seed, share=share)


def test_an_epoch_has_every_sentence_that_fits_once() -> None:
    for epoch in (0, 1):
        batches = list(load().epoch_batches(epoch))
        assert sorted(len(text) for batch in batches for text in batch.texts) == sorted(map(len, TEXTS))[:-1]
        assert all(len(batch) * (int(batch.token_lengths_B.max()) + 1) <= 20 for batch in batches)
    names = [name for batch in load().epoch_batches(0) for name in batch.ids]
    assert names != [name for batch in load().epoch_batches(1) for name in batch.ids]
    assert {"x.txt:1", "x.txt:12"} <= set(names) and "x.txt:13" not in names, "the 13th is too long"


def test_evaluation_has_every_sentence_once() -> None:
    assert sorted(text for batch in load().evaluation_batches() for text in batch.texts) == sorted(TEXTS)


def test_an_epoch_goes_on_from_any_step() -> None:
    whole, rest = list(load().epoch_batches(3)), list(load().epoch_batches(3, 2))
    assert [batch.ids for batch in whole[2:]] == [batch.ids for batch in rest]


def test_processes_share_an_epoch() -> None:
    shards = [load(ProcessShare(rank, 2)) for rank in range(2)]
    found = [[batch.ids for batch in loader.epoch_batches(0)] for loader in shards]
    assert len(found[0]) == len(found[1])
    together = [ids for pair in zip(*found, strict=True) for ids in pair]
    assert together == [batch.ids for batch in load().epoch_batches(0)][: len(together)]


def test_the_largest_batch_and_its_halves() -> None:
    largest = load().largest_batch()
    assert largest.padded_size == max(batch.padded_size for batch in load().epoch_batches(0))
    halves = halve_largest([largest])
    assert [text for half in halves for text in half.texts] == list(largest.texts)
    assert all(len(half.features_BTF) == len(half) == len(half.tokens_BU) for half in halves)


def test_sentences_that_are_all_too_long_are_said() -> None:
    with pytest.raises(UserError, match=r"x\.txt: 1 sentences, all longer than batches\.max_tokens = 20"):
        TextLoader(["A" * 20], "x.txt", TOKENIZER, BatchConfig(max_tokens=20))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.select_by=wer", "select_by"),
        ("train.plot_every=5", "plot_every"),
        ("model.encoder={}", "unknown key model.encoder"),
        ("model.type=tree", "type 'tree': expected one of speech, language"),
        ("model=3", "model = 3: expected a section"),
    ],
)
def test_wrong_settings_are_refused(text_run: TinyRun, override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        text_run(override)


def test_the_same_tokens_in_another_order(text_run: TinyRun, tmp_path: Path) -> None:
    system = prepare_system(text_run(), Process(0, 1, CPU))
    save_checkpoint(tmp_path / "lm", system, {})
    own = system.tokenizer
    turned = (*own.tokens[:5], *reversed(own.tokens[5:]))
    other = Tokenizer("characters", turned)
    text = "".join(token for token in own.tokens[5:] if token != " ")
    scores = []
    for tokenizer in (own, other):
        model = load_language_model(tmp_path / "lm", tokenizer)
        assert isinstance(model, LanguageModel)
        with torch.inference_mode():
            scores_UV = model.eval().run(torch.tensor([[tokenizer.sos_id, *tokenizer.encode(text)]]))[0]
        scores.append(scores_UV[:, [tokenizer.tokens.index(token) for token in own.tokens]])
    torch.testing.assert_close(*scores)
    strange = dataclasses.replace(own, type="words", tokens=(*turned[:-1], "new"))
    with pytest.raises(UserError, match=r"its tokenizer .* differs from the speech model's"):
        load_language_model(tmp_path / "lm", strange)


def test_only_language_models_are_added_up(tiny_run: TinyRun, tmp_path: Path) -> None:
    config = tiny_run(f"output_dir={tmp_path}/speech-run")
    speech = prepare_system(config, Process(0, 1, CPU))
    save_checkpoint(tmp_path / "speech", speech, {})
    with pytest.raises(UserError, match="a model of type speech; expected an ARPA file"):
        load_language_model(tmp_path / "speech", speech.tokenizer)
    with pytest.raises(UserError, match="no model found"):
        load_language_model(tmp_path / "nothing", speech.tokenizer)
