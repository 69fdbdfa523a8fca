"""Speech by voices of recordings: equal requests give equal samples; formants move, tempo stays."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from asr.data import read_manifest
from asr.errors import UserError
from asr.recipe import SAMPLE_RATE

TOOLS = Path(__file__).resolve().parents[1] / "tools"
needs_flite = pytest.mark.skipif(shutil.which("flite") is None, reason="flite is not installed")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    import speak_recorded

    return speak_recorded


def find_centroid(audio: np.ndarray) -> float:
    power = np.abs(np.fft.rfft(audio)) ** 2
    return float((power * np.fft.rfftfreq(len(audio), 1 / SAMPLE_RATE)).sum() / power.sum())


@needs_flite
def test_formants_move_and_tempo_stays(tool: ModuleType) -> None:
    voices = tool.RecordedVoices((1.3, 1.3))
    low, again, high = (
        voices.speak("we got up before dawn", voice, np.random.default_rng(0))
        for voice in ("slt*0.82", "slt*0.82", "slt*1.26")
    )
    assert np.array_equal(low, again)
    assert len(high) == pytest.approx(
        len(low), rel=0.1
    )  # played 1.5 times as fast, spoken 1.5 times as slowly
    assert find_centroid(high) > 1.25 * find_centroid(low)
    slow = tool.RecordedVoices((2.6, 2.6)).speak("we got up before dawn", "slt*1.0", np.random.default_rng(0))
    assert len(slow) == pytest.approx(2 * len(low), rel=0.1)


@needs_flite
def test_texts_of_a_manifest_are_spoken_the_same_on_each_run(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "VOICES", tool.FLITE_VOICES)
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"id": "a", "audio": "none.wav", "duration": 1.0, "text": "HELLO THERE"}\n')
    runs = []
    for name in ("first", "second"):
        monkeypatch.setattr(
            "sys.argv", ["speak_recorded", "texts", str(tmp_path / name), "--texts", str(texts), "--num", "3"]
        )
        assert tool.main() == 0
        assert capsys.readouterr().out == f"{tmp_path / name / 'train_recorded.jsonl'}\n"
        runs.append(list(read_manifest(tmp_path / name / "train_recorded.jsonl")))
    assert [u.text for u in runs[0]] == ["HELLO THERE"] * 3
    for one, other in zip(*runs, strict=True):
        assert Path(one.audio).read_bytes() == Path(other.audio).read_bytes()
        assert one.speaker == other.speaker and 0.5 < one.duration < 4


def test_sentences_of_wordnet_are_those_that_the_recipe_leaves(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = [f"{first} {second} CAME" for first in ("ANN", "BOB", "CY") for second in ("AND", "OR")]
    monkeypatch.setattr(
        tool.runpy,
        "run_path",
        lambda path: {
            "PARTS": ("noun",), "read_sentences": lambda path: sentences, "NUM_UTTERANCES": {"train": 2}
        },
    )  # fmt: skip
    (tmp_path / "words.txt").write_text("ANN AE N\nBOB B AA B\nAND AE N D\nOR AO R\nCAME K EY M\n")
    say = tool.say_wordnet(tool.argparse.Namespace(corpus_dir=tmp_path, dictionary=tmp_path / "words.txt"))
    spoken = []
    with pytest.raises(UserError, match="fewer sentences than --num"):
        while True:
            words, text = say(np.random.default_rng(0))
            assert text == " ".join(words).lower()
            spoken.append(" ".join(words))
    # Two are the recipe's, and nobody knows how to say CY.
    assert set(spoken) < set(sentences) and not any("CY" in sentence for sentence in spoken)
    assert 2 <= len(spoken) <= 4


def test_what_is_missing_is_named(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="run: apt-get install flite"):
        tool.speak("hello", "slt")
    with pytest.raises(UserError, match="unknown voice 'bob': expected one of awb"):
        tool.speak("hello", "bob")
    with pytest.raises(UserError, match="run: pip install no-such-package"):
        tool.import_package("no_such_module", "no-such-package")
