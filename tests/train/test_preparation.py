"""asr/train/preparation: tokenizers and data sets that do not match stop a training."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from training_examples import TinyRun, assert_equal_bits, run_until_killed

from asr.data import read_manifest, write_manifest
from asr.errors import UserError
from asr.system.checkpoint import save_checkpoint
from asr.system.system import load_system
from asr.text.tokenizer import Tokenizer, TokenizerConfig
from asr.train.distributed import Process
from asr.train.loop import train
from asr.train.preparation import prepare_system
from asr.train.run_tokenizer import load_or_train_tokenizer, warn_of_capitals
from asr.train.training_data import TrainingData, check_dev

PROCESS = Process(0, 1, torch.device("cpu"))


def rewrite(source: Path, target: Path, change: Callable[[str], str | None]) -> str:
    """Write a manifest with other texts, and return the setting that names it."""
    utterances = [item.model_copy(update={"text": change(item.text or "")}) for item in read_manifest(source)]
    write_manifest(target, utterances)
    return f"data.{target.stem}={target}"


@pytest.mark.parametrize(
    "overrides",
    [("text.training=[lowercase]", "data.max_unknown=1"), ("tokenizer={type: bpe, vocab_size: 18}",)],
)
def test_a_stale_tokenizer_is_refused(tiny_run: TinyRun, tmp_path: Path, overrides: tuple[str, ...]) -> None:
    """An earlier run left it and stopped before its first update; this one has other texts or settings."""
    first = ("tokenizer={type: bpe, vocab_size: 17}",) if "bpe" in overrides[0] else ()
    load_or_train_tokenizer(tiny_run(*first))
    path = tmp_path / "run" / "tokenizer.json"
    with pytest.raises(UserError, match=f"{path}: learned from texts other"):
        train(tiny_run(*overrides))
    record = json.loads(path.read_text())
    del record["fingerprint"]
    path.write_text(json.dumps(record))
    kept = load_or_train_tokenizer(tiny_run(*overrides))
    assert list(kept.tokens) == record["tokens"], "put there on purpose"
    with pytest.raises(UserError, match=f"{path}: learned from texts other"):
        load_or_train_tokenizer(tiny_run("tokenizer={type: words}"))


def test_the_same_texts_and_settings_reuse_the_tokenizer(
    tiny_run: TinyRun, tones: Path, tmp_path: Path
) -> None:
    first = load_or_train_tokenizer(tiny_run())
    copied = rewrite(tones / "train.jsonl", tmp_path / "train.jsonl", str)
    assert load_or_train_tokenizer(tiny_run(copied)) == first
    added = rewrite(tones / "train.jsonl", tmp_path / "train.jsonl", lambda text: text.replace("ONE", "TEN"))
    with pytest.raises(UserError, match="learned from texts other"):
        load_or_train_tokenizer(tiny_run(added))


def test_the_tokenizer_of_another_start_is_refused(tiny_run: TinyRun, tones: Path, tmp_path: Path) -> None:
    load_or_train_tokenizer(tiny_run())
    lower = [rewrite(tones / f"{s}.jsonl", tmp_path / f"{s}.jsonl", str.lower) for s in ("train", "dev")]
    source = prepare_system(tiny_run(f"output_dir={tmp_path}/lower", *lower), PROCESS)
    save_checkpoint(tmp_path / "lower" / "model", source, {})
    with pytest.raises(UserError, match=r"run/tokenizer\.json: learned from texts other"):
        load_or_train_tokenizer(tiny_run(f"start_from={tmp_path}/lower", *lower))


def test_a_phone_run_has_the_words_of_its_own_lexicon(tiny_run: TinyRun, tones: Path, tmp_path: Path) -> None:
    """Its tokens, and so its weights, are inherited from the model that it starts from."""
    words = {word for item in read_manifest(tones / "train.jsonl") for word in (item.text or "").split()}
    first, second = tmp_path / "first.dict", tmp_path / "second.dict"
    first.write_text("".join(f"{word} {' '.join(word)}\n" for word in sorted(words)) + "BAR B AA\n")
    phones = "tokenizer={{type: phones, lexicon: {}}}"
    source = prepare_system(tiny_run(f"output_dir={tmp_path}/first", phones.format(first)), PROCESS)
    save_checkpoint(tmp_path / "first" / "model", source, {})
    second.write_text("ENO E N O\nNEO N E O\nWON O N E\nONE N O N E\n")
    new = [
        rewrite(tones / f"{s}.jsonl", tmp_path / f"{s}.jsonl", lambda _: "NEO ENO") for s in ("train", "dev")
    ]
    run = tiny_run(f"start_from={tmp_path}/first", *new, phones.format(second))
    tokenizer = load_or_train_tokenizer(run)
    assert tokenizer.tokens == source.tokenizer.tokens
    assert tokenizer.decode(tokenizer.encode("NEO ONE ENO")) == "NEO ONE ENO"
    assert tokenizer.encode("ONE") == source.tokenizer.encode("ONE"), "known words keep their spelling"
    # No entry; and a homophone that needs the mark #1, which training did not have.
    assert tokenizer.find_unknown("NEO ONE BAR WON") == ["BAR", "WON"]
    assert load_or_train_tokenizer(run) == tokenizer, "the one that is there is its own"
    before, after = (system.model.state_dict() for system in (source, prepare_system(run, PROCESS)))
    assert all(torch.equal(before[name], after[name]) for name in before)
    (tmp_path / "run" / "tokenizer.json").unlink()
    second.write_text("ENO E N O\nNEO N Y O\n")
    with pytest.raises(UserError, match=r"second\.dict: 'NEO' needs a phone"):
        load_or_train_tokenizer(run)
    assert not (tmp_path / "run" / "tokenizer.json").exists()


def test_unknown_shares_are_reported(
    tiny_run: TinyRun, tones: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = next(iter(read_manifest(tones / "dev.jsonl"))).text or ""
    dev = rewrite(
        tones / "dev.jsonl", tmp_path / "dev.jsonl", lambda text: text + "Q" if text == first else text
    )
    texts = "".join(item.text or "" for item in read_manifest(tmp_path / "dev.jsonl"))
    with caplog.at_level(logging.INFO):
        load_or_train_tokenizer(tiny_run(dev))
    assert "train.jsonl: 0.0%" not in caplog.text, "nothing to report"
    assert f"dev.jsonl: {texts.count('Q') / len(texts):.1%} of the tokens are unknown" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (str.lower, r"dev.jsonl: \d+.\d% of the tokens are unknown .* more than data.max_unknown = 0.2"),
        (lambda text: "одиндва", "100.0% of the tokens are unknown"),
        (lambda text: "", "dev.jsonl: contains no utterance with a text"),
        (lambda text: None, "dev.jsonl: contains no utterance with a text"),
    ],
)
def test_a_dev_set_of_another_script_or_without_text_stops_before_anything_is_written(
    change: Callable[[str], Any], message: str, tiny_run: TinyRun, tones: Path, tmp_path: Path
) -> None:
    dev = rewrite(tones / "dev.jsonl", tmp_path / "dev.jsonl", change)
    with pytest.raises(UserError, match=message):
        train(tiny_run(dev))
    assert not (tmp_path / "run").exists()
    if "data.max_unknown" in message:
        assert load_or_train_tokenizer(tiny_run(dev, "data.max_unknown=1"))


@pytest.mark.parametrize("name", ["train", "dev"])
def test_an_empty_manifest_stops(name: str, tiny_run: TinyRun, tmp_path: Path) -> None:
    (tmp_path / f"{name}.jsonl").write_text("")
    with pytest.raises(UserError, match=rf"{name}\.jsonl: "):
        prepare_system(tiny_run(f"data.{name}={tmp_path}/{name}.jsonl"), PROCESS)


def test_a_resumed_training_reports_and_refuses_too(tiny_run: TinyRun, tmp_path: Path) -> None:
    system = prepare_system(tiny_run(), PROCESS)
    save_checkpoint(tmp_path / "run" / "checkpoints" / "step-00000001", system, {})
    (tmp_path / "dev.jsonl").write_text("")
    with pytest.raises(UserError, match=r"dev\.jsonl: contains no utterance"):
        prepare_system(tiny_run(f"data.dev={tmp_path}/dev.jsonl"), PROCESS)


def test_a_training_set_in_several_files(tiny_run: TinyRun, tones: Path, tmp_path: Path) -> None:
    """They give the same training as a single file with all utterances."""
    whole = list(read_manifest(tones / "train.jsonl"))
    write_manifest(tmp_path / "one" / "train.jsonl", whole[:5])
    write_manifest(tmp_path / "two" / "train.jsonl", whole[5:])
    parts = f"data.train=[{tmp_path}/one/train.jsonl, {tmp_path}/two/train.jsonl]"
    models = [
        train(tiny_run(f"output_dir={tmp_path}/{number}", "train.steps=2", *overrides))
        for number, overrides in enumerate(([parts], []))
    ]
    assert_equal_bits(*models)
    with pytest.raises(UserError, match=r"three\.jsonl"):
        train(tiny_run(f"data.train=[{tmp_path}/one/train.jsonl, three.jsonl]"))
    with pytest.raises(UserError, match="expected the path of a manifest"):
        tiny_run("data.train=[]")


def test_a_missing_gpu_is_reported(tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"train\.device = cuda: PyTorch finds no GPU"):
        train(tiny_run("train.device=cuda"))


def test_rules_that_make_every_word_wrong_are_refused(tiny_run: TinyRun) -> None:
    settings = ["text.training=[lowercase]", "data.max_unknown=1"]
    with pytest.raises(UserError, match=r"a WER of 100\.0%, because text\.training"):
        train(tiny_run(*settings))
    train(tiny_run(*settings, "text.scoring=[lowercase]", "train.steps=1"))


def test_rules_may_make_half_of_the_words_wrong(
    tiny_run: TinyRun, tmp_path: Path, tones: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny_run("text.training=[lowercase]", f"data.dev={tmp_path}/dev.jsonl")
    half, more = "ONE TWO SIX TEN TEN one two six ten ten", "ONE TWO SIX TEN TEN TEN one two six ten"
    rewrite(tones / "dev.jsonl", tmp_path / "dev.jsonl", lambda _: half)
    check_dev(config, None)
    assert "a WER of 50.0%" in caplog.text
    rewrite(tones / "dev.jsonl", tmp_path / "dev.jsonl", lambda _: more)
    with pytest.raises(UserError, match=r"a WER of 60\.0%"):
        check_dev(config, None)


def test_shared_and_duplicate_ids_are_reported(
    tiny_run: TinyRun, tones: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings(*settings: str) -> str:
        caplog.clear()
        TrainingData(prepare_system(tiny_run(*settings), PROCESS), PROCESS)
        return caplog.text

    assert not warnings()
    same = f"data.dev={tones}/train.jsonl"
    assert "48 of 48 utterances have ids of the training set" in warnings(same)
    assert not warnings(same, "train.select_by=updates"), "dev chooses nothing"
    twice = f"data.train=[{tones}/train.jsonl, {tones}/train.jsonl]"
    assert "48 duplicate ids" in warnings(twice, f"output_dir={tmp_path}/twice")


def test_only_ctc_leaves_out_texts_with_more_tokens_than_steps(tiny_run: TinyRun) -> None:
    used = {}
    for weight, guided in ((0.3, "{loss: {}}"), (0.0, "null")):
        config = tiny_run(
            "model.encoder.subsampling.factor=8",
            f"model.ctc_weight={weight}",
            f"model.guided_attention={guided}",
        )
        groups = TrainingData(prepare_system(config, PROCESS), PROCESS).epoch(0, 0)
        used[weight] = sum(len(batch) for group in groups for batch in group)
    assert 0 < used[0.3] < used[0.0] == 48


@pytest.mark.parametrize(
    "setting",
    [
        "data.train={}",
        "data.dev={}",
        "data.text=[{}]",
        "start_from={}",
        "augment.noise={{kinds: [recorded], recordings: {}, probability: 1}}",
    ],
)
def test_a_missing_file_is_named(tiny_run: TinyRun, setting: str) -> None:
    with pytest.raises(UserError, match="no/such/file: "):
        train(tiny_run(setting.format("no/such/file")))


def test_missing_data_is_named_with_a_remedy(tiny_run: TinyRun, tmp_path: Path) -> None:
    for path, remedy in (
        ("data/digits/no.jsonl", "run `asr recipe run digits --stage prepare`, or correct the path"),
        ("data/none/no.jsonl", f"not found from {Path.cwd()}; correct the path"),
        (f"{tmp_path}", f"`asr manifest convert {tmp_path} train.jsonl`"),
    ):
        with pytest.raises(UserError, match=re.escape(f"data.train = {path}: ")) as caught:
            train(tiny_run(f"data.train={path}"))
        assert remedy in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_failed_start_leaves_no_folder(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But a folder that already existed stays, and so does one with a log or checkpoint."""
    folder = tmp_path / "run"
    rules = ("text.training=[lowercase]", "data.max_unknown=1")  # refused after the tokenizer was written
    with pytest.raises(UserError, match="would have a WER"):
        train(tiny_run(*rules))
    assert not folder.exists()
    folder.mkdir()
    (folder / "notes.txt").touch()
    with pytest.raises(UserError, match="would have a WER"):
        train(tiny_run(*rules))
    assert (folder / "notes.txt").exists()
    shutil.rmtree(folder)
    run_until_killed(monkeypatch, 2, lambda: train(tiny_run("train.log_every=1")))
    assert (folder / "log.jsonl").exists()


def test_texts_in_capitals_for_a_model_of_lower_case(
    tiny_run: TinyRun, caplog: pytest.LogCaptureFixture
) -> None:
    lower, capitals = ["one two six ten", "ten one"], ["ONE TWO SIX TEN", "TEN ONE"]
    both = Tokenizer.train(TokenizerConfig(), lower + capitals)
    learned = TokenizerConfig(type="bpe", vocab_size=37)
    tokenizer = Tokenizer.train(learned, lower * 100 + ["O N E T W S I X"])
    config = tiny_run("start_from=first")
    warn_of_capitals(config, both, capitals)
    warn_of_capitals(config, tokenizer, capitals + lower)
    assert not caplog.text
    warn_of_capitals(config, tokenizer, capitals * 2 + lower)
    own, others = (sum(len(tokenizer.encode(text)) for text in texts) for texts in (capitals, lower))
    assert "67% of the texts are in capitals. start_from = first" in caplog.text
    assert f"needs {own / others:.1f} times as many tokens" in caplog.text and own > 2 * others


@pytest.mark.slow
def test_a_training_resumes_without_the_model_it_started_from(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tiny_run(f"output_dir={tmp_path}/first", "train.steps=2")
    train(first)
    settings = ("train.steps=6", f"start_from={first.output_dir}")
    whole = tiny_run(f"output_dir={tmp_path}/whole", *settings)
    train(whole)
    cut = tiny_run(f"output_dir={tmp_path}/cut", *settings)
    run_until_killed(monkeypatch, 4, lambda: train(cut))
    shutil.rmtree(first.output_dir)
    train(cut)
    assert_equal_bits(Path(whole.output_dir) / "model", Path(whole.output_dir).with_name("cut") / "model")


def test_models_that_a_training_cannot_start_from(tiny_run: TinyRun, tmp_path: Path) -> None:
    first = tiny_run(f"output_dir={tmp_path}/first")
    save_checkpoint(tmp_path / "first" / "model", prepare_system(first, PROCESS), {})
    start = f"start_from={first.output_dir}"
    with pytest.raises(UserError, match="no model found"):
        train(tiny_run(f"output_dir={tmp_path}/none", f"start_from={tmp_path}"))
    for settings, message in (
        (["features.num_mels=23"], r"set features.num_mels = 20 here$"),
        (["tokenizer={type: bpe, vocab_size: 20}"], r"tokenizer.type.*keep_tokenizer"),
        (["model.encoder.dim=24"], r"do not match this model \(encoder.* here\)"),
        (["keep_tokenizer=false", "model.decoder.dim=24"], r"do not match this model \(decoder"),
    ):
        with pytest.raises(UserError, match=message):
            prepare_system(tiny_run(f"output_dir={tmp_path}/new", start, *settings), PROCESS)
        shutil.rmtree(tmp_path / "new")


def test_a_training_starts_from_another_with_its_own_tokenizer(
    tiny_run: TinyRun, tones: Path, tmp_path: Path
) -> None:
    """Encoder and inner layers of the decoder are kept; weights with a row for each token are new."""
    source = prepare_system(tiny_run(f"output_dir={tmp_path}/first"), PROCESS)
    save_checkpoint(tmp_path / "first" / "model", source, {})
    names = ("train.jsonl", "dev.jsonl")
    data = [rewrite(tones / name, tmp_path / name, lambda _: "один два") for name in names]
    config = tiny_run(*data, f"start_from={tmp_path}/first", "keep_tokenizer=false", "train.steps=1")
    torch.manual_seed(1)
    system = prepare_system(config, PROCESS)
    assert set(system.tokenizer.tokens[5:]) == set("один два")
    old, new = source.model.state_dict(), system.model.state_dict()
    changed = {
        name for name in new if new[name].shape != old[name].shape or not torch.equal(new[name], old[name])
    }
    assert changed == {
        *("ctc_head.weight", "ctc_head.bias"),
        *("decoder.embedding.weight", "decoder.output.weight", "decoder.output.bias"),
    }
    assert load_system(train(config)).tokenizer == system.tokenizer
