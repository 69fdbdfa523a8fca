"""A tiny Whisper with random weights transcribes recordings: batches, windows, languages, and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile_audio import make_speechlike
from test_transcription import make_audio
from whisper_examples import SIZES, VOCABULARY, make_weights, write_huggingface
from whisper_systems import build_system

from asr import cli
from asr.audio import AudioSegment, SegmentationConfig, reading as audio
from asr.cli.evaluation_job import is_english
from asr.decoding.decode import DecodedUtterance, DecodingSetup
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig
from asr.errors import UserError
from asr.models.precision import Int8Linear, is_fast, is_int8_exact
from asr.text.tokenizer import BLANK_ID, SOS_ID
from asr.transcription.model import Model
from asr.transcription.transcribe import Recognizer, load_recognizer
from asr.transcripts.transcript import Transcript
from asr.whisper import SILENCES, Silence, WhisperDecodingConfig, WhisperManners, find_sizes, load, units_of

pytestmark = pytest.mark.usefixtures("loud_is_speech")

RATE = 16_000
SHORT = SegmentationConfig(max_seconds=3.0)
ONCE = DecodingConfig(temperatures=())
ENGLISH: dict[str, Any] = {"language": "en", "decoding": ONCE}


@pytest.fixture(scope="module")
def recognizer() -> Recognizer:
    system = build_system(True, window_steps=200)  # of four seconds
    return load(system, "cpu", segmentation=SHORT, checks=ChecksConfig.off())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("files")
    for number, seconds in enumerate((0.01, 0.6, 1.9, 5.0, 9.0)):
        audio.write(folder / f"{number}.wav", np.clip(make_audio(seconds, number), -1, 1), RATE)
    return sorted(folder.iterdir())


def read(recognizer: Recognizer, files: list[Path], batch_size: int, **options: Any) -> list[Transcript]:
    found = Model(recognizer).transcribe_files(files, batch_size=batch_size, **options)
    results = [result for _, result in found]
    assert all(isinstance(result, Transcript) for result in results)
    return results  # type: ignore[return-value]


@pytest.mark.parametrize("changed", [{"language": None}, {"beam": 2}], ids=["language told", "beam"])
def test_company_changes_nothing(recognizer: Recognizer, files: list[Path], changed: dict[str, Any]) -> None:
    options = ENGLISH | changed
    alone = [read(recognizer, [path], 1, **options)[0] for path in files]
    together = read(recognizer, files, 4, **options)
    assert any(transcript.text for transcript in alone)
    for one, other, path in zip(alone, together, files, strict=True):
        assert one.text == other.text and one.language == other.language
        assert one.duration == pytest.approx(audio.read_info(path).seconds)
        starts, others = ([(word.text, word.start) for word in found.words] for found in (one, other))
        assert starts == others and all(0 <= word.confidence <= 1 for word in one.words)
        for segment in one.segments:
            assert 0 <= segment.start <= segment.end <= one.duration + 0.02
            assert [word.start for word in segment.words] == sorted(word.start for word in segment.words)


@torch.inference_mode()
def test_a_segment_has_the_scores_of_its_window(recognizer: Recognizer, files: list[Path]) -> None:
    """They equal the scores of its window, which the decoder computes again here."""
    transcript = Model(recognizer).transcribe(files[1], decoding=ONCE)
    (segment, *_), tokenizer = transcript.segments, recognizer.tokenizer
    place, decoder = AudioSegment(0.0, audio.read(files[1], RATE), RATE), recognizer.decoder
    setup = DecodingSetup(DecodingConfig(beam=1, temperatures=()))
    asked = decoder.introduce(decoder.encode([place.audio_S]), [place], setup)
    state = recognizer.model.decoder.start(asked.encoded_BTD, asked.lengths_B, asked.bias_BT)
    scores_V = recognizer.model.decoder.step(torch.tensor([[SOS_ID]]), state)[0][0, -1]
    languages = scores_V[list(units_of(tokenizer).special.languages.values())].softmax(-1)
    assert transcript.language_probability == pytest.approx(float(languages.max()), abs=1e-5)
    no_speech = float(scores_V.softmax(-1)[BLANK_ID])
    assert segment.no_speech_probability == pytest.approx(no_speech, abs=1e-5)
    (text,) = decoder.decode(asked, setup)
    assert segment.average_log_probability == pytest.approx(text.average_log_probability, abs=1e-4)
    assert segment.average_log_probability < 0 and segment.temperature == 0.0
    order = units_of(tokenizer).special.order()  # told are the ids of OpenAI
    shown = [order.index(token) for one in transcript.segments for token in one.tokens]
    assert tokenizer.decode(shown).split() == transcript.text.split()
    told = Model(recognizer).transcribe(files[1], **ENGLISH)
    assert told.language_probability is None


def test_tokens_of_time_are_no_words(
    recognizer: Recognizer, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model may write them without being asked, because nothing forbids them there."""
    tokenizer = recognizer.system.tokenizer
    text, time = tokenizer.encode("a b"), len(tokenizer) - 1501
    found = []
    for tokens in (text, [time, *text, time + 20]):
        decoded = DecodedUtterance(tuple(tokens), "greedy")
        monkeypatch.setattr(recognizer.decoder, "decode", lambda *_, decoded=decoded: [decoded])
        found.append(Model(recognizer).transcribe(files[1], **ENGLISH))
    assert [word.text for word in found[0].words] == ["a", "b"]
    assert found[1].words == found[0].words


def test_what_whisper_has_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    system = build_system(False, window_steps=1500)

    def lengths(**given: Any) -> tuple[float, float, float]:
        config = load(system, "cpu", segmentation=SegmentationConfig(**given)).segmentation
        return config.max_seconds, config.min_share, config.with_rules().max_pause_seconds

    assert lengths() == lengths(method="none") == (28.0, 15 / 28, 3.0)
    assert lengths(max_seconds=12.0) == (12.0, 0.4, 3.0)
    assert lengths(max_seconds=60.0)[0] == 30.0
    monkeypatch.setitem(SILENCES, (find_sizes(system).dim, False), Silence(1.0, 16))  # not padded to 30 s
    assert lengths() == (20.0, 15 / 28, 3.0)


def test_words_are_timed_where_they_are_needed(
    recognizer: Recognizer, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without times the text is the same; overlapping segments are timed anyway, because joining needs it."""
    timed, time = list[int](), recognizer.decoder.time_words
    monkeypatch.setattr(
        recognizer.decoder, "time_words", lambda *given: timed.append(len(given[2])) or time(*given)
    )
    texts, counts = [], []
    for words in True, False:
        timed.clear()
        noise_S = np.random.default_rng(0).normal(0, 0.3, 7 * RATE).astype(np.float32)  # without a pause
        given = [(files[-1], None), (noise_S, RATE)]
        found = [Model(recognizer).transcribe(*one, **ENGLISH, word_times=words) for one in given]
        texts.append([one.text for one in found])
        counts.append(sum(timed))
    assert texts[0] == texts[1] and counts[0] > counts[1] > 0


def test_one_language_for_a_recording(
    recognizer: Recognizer, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The language of the first window of speech; on their own, segments would differ in language."""
    seen: list[tuple[Any, str]] = []
    introduce = WhisperManners.introduce

    def spy(self: WhisperManners, encoded: Any, segments: Any, setup: Any) -> Any:
        asked = introduce(self, encoded, segments, setup)
        languages = (language for language, _ in asked.languages)
        seen.extend(zip((segment.recording.path for segment in segments), languages, strict=True))
        return asked

    monkeypatch.setattr(WhisperManners, "introduce", spy)
    found = read(recognizer, files, 3, decoding=ONCE)
    assert len(seen) > len({path for path, _ in seen}) == len(set(seen))
    spoken = {transcript.audio: transcript.language for transcript in found if transcript.language}
    assert spoken == {str(path): language for path, language in seen}


def test_python_interface(recognizer: Recognizer, files: list[Path], tmp_path: Path) -> None:
    model, like = Model(recognizer), ONCE.model_copy(update={"beam": 2})
    given = {"language": "English", "beam": 2, "decoding": ONCE}
    assert model.transcribe(files[3], **given) == model.transcribe(files[3], language="en", decoding=like)
    wrong: Any
    (words := tmp_path / "words.txt").write_text("the rain")
    for path, wrong, message in (
        (files[0], {"decoding": "joint"}, "decoding method joint needs a CTC head; use attention"),
        (files[0], {"decoding": DecodingConfig(speeds=(0.9,))}, "Whisper models only decode at speed 1"),
        (files[0], {"words": str(words)}, "a word list needs a tokenizer of characters or phones"),
        (files[0], {"voice": "loud"}, "Whisper models do not support this option. They support beam"),
        (files[0], {"language": "yue"}, "language yue has no token"),
        (files[0], {"language": "klingon"}, "not a language of Whisper"),
        (files[0], {"hotwords": 3}, "decoding.hotwords = 3: expected"),
        (tmp_path / "no.wav", {"decoding": ONCE}, r"no\.wav"),
    ):
        with pytest.raises(UserError, match=message):
            Model(recognizer).transcribe(path, **wrong)


def test_languages_without_spaces_join_without(recognizer: Recognizer, files: list[Path]) -> None:
    (found,) = read(recognizer, files[-1:], 4, **(ENGLISH | {"language": "ja"}))
    assert found.separator == "" and len(found.segments) > 1
    assert found.text == "".join(segment.text for segment in found.segments)


# --- commands -------------------------------------------------------------------------------------

FAST = ["--set=decoding.temperatures=[]", "--set=checks.max_no_speech=null"]
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two models with short texts, because random weights seldom end a text."""
    folder = tmp_path_factory.mktemp("models")
    sizes = SIZES | {"n_audio_ctx": 100, "n_text_ctx": 40}
    written = {}
    for seed, name in enumerate(("first", "second")):
        weights = make_weights(seed, sizes)
        weights["decoder.token_embedding.weight"][: len(VOCABULARY)] *= 4  # so that it says text
        written[name] = str(write_huggingface(folder / name, weights, sizes=sizes))
    return written


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command line in a folder with a.wav; return status, output and errors."""
    monkeypatch.chdir(tmp_path)
    audio.write("a.wav", make_speechlike(1.0, seed=1).astype(np.float32), RATE)
    return lambda *words: (cli.main([*words]), *capsys.readouterr())


def test_another_model_changes_a_folder(models: dict[str, str], call: Call) -> None:
    times = []
    for model in ("first", "first", "second"):
        call("transcribe", "a.wav", *FAST, "--output-dir", "out", "--model", models[model])
        times.append(Path("out/a.txt").stat().st_mtime_ns)
    assert times[0] == times[1] < times[2]


def test_what_whisper_takes(models: dict[str, str], call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["transcribe", "a.wav", "--model", models["first"], *FAST]
    for options, message in (
        (["--language", "de"], "English only"),
        (["--task", "translate"], "task translate"),
    ):
        status, _, errors = call(*command, *options)
        assert status == 2 and message in errors
    asked: list[DecodingSetup] = []
    decode = WhisperManners.decode

    def note(self: WhisperManners, part: Any, setup: DecodingSetup) -> Any:
        asked.append(setup)
        return decode(self, part, setup)

    monkeypatch.setattr(WhisperManners, "decode", note)
    options = ["--hotwords", "A: 1, B,", "--beam", "2", "--initial_prompt", "C: 1, 2"]
    assert call(*command, *options)[0] == 0
    assert (asked[0].config.hotwords, asked[0].config.beam) == (("A: 1", "B"), 2)
    assert asked[0].options == WhisperDecodingConfig(prompt="C: 1, 2")


@pytest.mark.skipif(not is_int8_exact(), reason="this processor has no instructions for 8 bits")
def test_eight_bits(files: list[Path], models: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A text does not depend on other recordings, and the weights say whether 8 bits are used."""
    system = build_system(True, window_steps=200)
    quantized = load(system, "cpu", "int8", segmentation=SHORT, checks=ChecksConfig.off())
    together = read(quantized, files, 4, **ENGLISH)
    assert any(transcript.text for transcript in together)
    for transcript, path in zip(together, files, strict=True):
        assert transcript.text == read(quantized, [path], 1, **ENGLISH)[0].text

    def has_int8(precision: Any) -> bool:
        loaded: Any = load_recognizer(models["first"], "cpu", precision)
        return isinstance(loaded.model.decoder.output, Int8Linear)

    assert has_int8("int8") and not has_int8("float32")
    assert has_int8("auto") == is_fast("int8", torch.device("cpu"))
    monkeypatch.setattr("asr.models.precision.is_int8_exact", lambda: False)
    assert not has_int8("auto")
    with pytest.raises(UserError, match="use float32"):
        has_int8("int8")


@pytest.mark.slow
def test_under_load_the_bytes_are_the_same(models: dict[str, str], tmp_path: Path) -> None:
    """While busy processes come and go, and after an interruption."""
    tool = Path(__file__).parents[2] / "tools" / "check_reproducible.py"
    command = [sys.executable, str(tool), models["first"], str(tmp_path / "work"), "--clips=4", "--runs=3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("3 runs of 8 files: 0 differ\n"), done.stderr


def test_a_folder_is_of_one_arithmetic(
    models: dict[str, str], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine is simulated as one with instructions for 8 bits."""
    command = ["transcribe", "a.wav", *FAST, "--output-dir=out", "--format=jsonl", "--model", models["first"]]
    assert call(*command, "--set", "precision=float32")[0] == 0
    made = Path("out/a.jsonl").read_bytes()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_int8": True, "amx_bf16": True})
    monkeypatch.setattr("asr.models.precision.is_int8_exact", lambda: True)
    Path("out/a.jsonl").unlink()  # this one is to be made again
    # Without a name it is that of this machine, and all is done again, as with any other setting.
    assert call(*command)[0] == 0
    assert json.loads(Path("out/a.jsonl").read_bytes())["compute_type"] == "int8_bf16 on cpu"
    assert call(*command, "--set", "precision=float32", "--device", "cpu")[0] == 0
    assert Path("out/a.jsonl").read_bytes() == made
    assert json.loads(made)["compute_type"] == "float32 on cpu"


@pytest.mark.parametrize("language", ["en", "de"])
def test_the_detected_language_decides_on_the_rules(
    language: str, models: dict[str, str], recognizer: Recognizer, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The most frequent language of utterances that name none decides, and the first line says so."""
    detected = iter([language, "fr", language])
    monkeypatch.setattr(
        "asr.whisper.manners.detect_languages",
        lambda encoded, tokenizer: [(next(detected, "ja"), 0.9) for _ in encoded.lengths_B],
    )
    monkeypatch.setattr("asr.whisper.load", lambda *_: recognizer)
    row = {"audio": "a.wav", "duration": 1.0, "text": "C Z EIGHT"}
    own = row | {"id": "own", "language": "hi", "duration": 0.5}  # the shortest is the last
    rows = [*(row | {"id": f"u{number}"} for number in range(3)), own]
    Path("test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, shown, _ = call("evaluate", models["first"], "test.jsonl", *FAST, "--output-dir", "out")
    rules = "the rules for English in 3 of 4 utterances, else strip" if language == "en" else "strip"
    first = shown.splitlines()[0]
    assert status == 0 and first.startswith(f"texts were normalized by {rules}")
    assert first.endswith(f", as {language} was detected in 2 of 3 utterances")
    spelled = "c z 8" if language == "en" else "c z eight"
    reference = Path("out/reference.trn").read_text()
    assert reference.count(f"{spelled} (u") == 3 and "c z eight (own)" in reference


def test_evaluate_command(models: dict[str, str], call: Call) -> None:
    """English rules apply to English utterances only."""
    english: dict[str, Any] = {"id": "u1", "audio": "a.wav", "duration": 1.0, "text": "C Z EIGHT"}
    hindi = english | {"id": "u2", "language": "hi", "text": "It's twenty प्रेम"}
    command = ["evaluate", models["first"], "test.jsonl", *FAST, "--json", "--output-dir", "out"]

    def evaluate(records: list[dict[str, Any]], *options: str) -> tuple[dict[str, Any], str]:
        Path("test.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return json.loads(call(*command, *options)[1]), Path("out/reference.trn").read_text()

    record, reference = evaluate([english])
    assert record["normalization"] == "the rules for English", "an English-only model"
    assert list(record["methods"]) == ["greedy"] and record["precision"] in ("float32", "int8", "int8_bf16")
    assert record["methods"]["greedy"]["decoding"]["beam"] == 1 and "c z 8" in reference
    record, reference = evaluate([english], "--beam", "2")
    assert list(record["methods"]) == ["beam"] and "c z 8" in reference
    record, reference = evaluate([hindi, english | {"language": "en_US"}])
    assert record["normalization"].startswith("the rules for English in 1 of 2 utterances, else strip_inv")
    assert reference == "it's twenty प्रेम (u2)\nc z 8 (u1)\n", "vowel signs stay"
    status, _, errors = call(*command, "--set", "whisper.language=de")
    assert status == 2 and "English only" in errors
    for language in ("en", "en-US", "English", None, "enm"):
        assert is_english(language) == (language not in (None, "enm"))
