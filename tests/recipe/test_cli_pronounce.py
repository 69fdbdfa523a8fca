"""`asr pronounce`: a dictionary that `tokenizer.lexicon` takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asr.cli import main
from asr.text.tokenizer import Tokenizer, TokenizerConfig, read_dictionary

ROOT = Path(__file__).resolve().parents[2]
CONF = str(ROOT / "docs/examples/commands/conf/lstm.yaml")  # texts in lower case


def pronounce(folder: Path, train: str, dev: str, *options: str) -> int:
    for name, text in (("train", train), ("dev", dev)):
        utterance = {"id": name, "audio": "a.wav", "duration": 1.0, "text": text}
        (folder / f"{name}.jsonl").write_text(json.dumps(utterance) + "\n", encoding="utf-8")
    data = [f"data.{name}={folder / f'{name}.jsonl'}" for name in ("train", "dev")]
    return main(["pronounce", CONF, *data, *options])


def test_a_tokenizer_takes_what_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of train, dev and further texts, as training normalizes them."""
    path, more = tmp_path / "words.dict", tmp_path / "more.txt"
    more.write_text("the Garden\n", encoding="utf-8")
    config = TokenizerConfig(type="phones", lexicon=str(path))
    setting = f"tokenizer={{type: phones, lexicon: {path}}}"
    assert pronounce(tmp_path, "Open the DOOR", "close it", setting, "--texts", str(more)) == 0
    dictionary = read_dictionary(str(path))
    assert list(dictionary) == ["close", "door", "garden", "it", "open", "the"]
    assert dictionary["door"] == ("d", "ɔːɹ")
    tokenizer = Tokenizer.train(config, ["open the door"])
    assert tokenizer.decode(tokenizer.encode("the door")) == "the door"
    assert capsys.readouterr().out == f"{path}: 6 words, 14 phones\n"


def test_the_voice_decides(tmp_path: Path) -> None:
    phones = {}
    for voice in ("en", "fr"):
        output = tmp_path / f"{voice}.dict"
        assert pronounce(tmp_path, "moment", "", "--voice", voice, "--output", str(output)) == 0
        phones[voice] = " ".join(read_dictionary(str(output))["moment"])
    assert phones == {"en": "m əʊ m ə n t", "fr": "m o m ɑ̃"}


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("open", ["--output", "WORDS", "--voice", "xx-yy"], "unknown voice 'xx-yy'"),
        ("open", ["--output", "TAKEN"], "taken.dict exists already"),
        ("open", [], "no output file: set tokenizer"),
        ("open - the ... door", ["--output", "WORDS"], "en-us cannot speak 2 of 5 words, such as '-'"),
        ("", ["--output", "WORDS"], "train.jsonl: found no words"),
    ],
)
def test_what_cannot_be_written_is_said(
    text: str, options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"WORDS": str(tmp_path / "words.dict"), "TAKEN": str(tmp_path / "taken.dict")}
    Path(places["TAKEN"]).write_text("open OW P AH N\n", encoding="utf-8")
    assert pronounce(tmp_path, text, "", *(places.get(word, word) for word in options)) == 2
    assert message in capsys.readouterr().err
    assert Path(places["TAKEN"]).read_text(encoding="utf-8") == "open OW P AH N\n"
    assert not Path(places["WORDS"]).exists()
