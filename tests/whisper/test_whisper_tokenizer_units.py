"""asr/whisper/tokenizer_units: Whisper's tokens as a tokenizer of ours, saved, loaded, and as a prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from whisper_examples import VOCAB_SIZE, VOCABULARY

from asr.config import build_config
from asr.errors import UserError
from asr.system import RunConfig
from asr.text import EOS_ID, SOS_ID, SPECIAL_TOKENS, Tokenizer, TokenizerConfig
from asr.whisper import WhisperTokenizer, find_prompt, name_tokens

WHISPER = WhisperTokenizer.of_size(VOCABULARY, VOCAB_SIZE)
TOKENIZER = Tokenizer("whisper", SPECIAL_TOKENS + name_tokens(WHISPER))


def make_config(language: str) -> RunConfig:
    settings = [
        "output_dir=run",
        "start_from=ggml.bin",
        "data.train=a",
        "data.dev=b",
        "tokenizer.type=whisper",
    ]
    settings += ["features.convention=whisper", "model.encoder={type: whisper}", "model.ctc_weight=0.0"]
    return build_config(RunConfig, [*settings, f"model.decoder={{type: whisper, language: {language}}}"])


def test_prompt_of_a_multilingual_model() -> None:
    """In our ids, by the names of the tokens; the start, before it, is ours."""
    more = (f"~{number}~".encode() for number in range(50_257 - len(VOCABULARY)))
    whisper = WhisperTokenizer.of_size((*VOCABULARY, *more), 51_865)
    names = SPECIAL_TOKENS + name_tokens(whisper)
    assert len(set(names)) == len(names) == 51_865
    prompt = find_prompt(make_config("german"), whisper)
    assert [names[id] for id in prompt] == ["<|de|>", "<|transcribe|>", "<|notimestamps|>"]
    with pytest.raises(UserError, match=r"model.decoder.language: .*name the one that is spoken"):
        find_prompt(make_config("null"), whisper)


def test_tokenizer_is_saved_and_loaded(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded == TOKENIZER and len(loaded) == len(WHISPER)
    for text in ("", "the rain in spain", "Grüße, 東京 ▁ <eos> <|en|>", "a  b ", "\n"):
        ids = loaded.encode(text)
        assert loaded.decode(ids) == text and min(ids, default=5) >= 5
    theirs = WHISPER.encode(" the rain")
    assert [loaded.tokens[id] for id in loaded.encode("the rain")] == [
        WHISPER.vocabulary[id].decode().replace(" ", "▁") for id in theirs
    ]
    assert loaded.decode([SOS_ID, *loaded.encode("six"), loaded.tokens.index("<|0.00|>"), EOS_ID]) == "six"


def test_tokenizer_files_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    TOKENIZER.save(path)
    record = json.loads(path.read_text())
    for tokens in (
        record["tokens"][:-1],
        [*record["tokens"][:5], *record["tokens"][6:]],
        [token if number != 9 else "日" for number, token in enumerate(record["tokens"])],
        record["tokens"][:5],
    ):
        path.write_text(json.dumps(record | {"tokens": tokens}))
        with pytest.raises(UserError, match=r"tokenizer\.json: "):
            Tokenizer.load(path)
    with pytest.raises(UserError, match="comes with the Whisper model"):
        Tokenizer.train(TokenizerConfig(type="whisper"), ["a text"])
