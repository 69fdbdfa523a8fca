"""asr/transcription: texts do not depend on the batch, come in order of the files, and none is lost."""

from __future__ import annotations

import itertools
import os
import random
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
import torch
from model_examples import SYSTEMS
from training_examples import TinyRun

from asr.audio import (
    AudioSegment,
    Recording,
    SegmentationConfig,
    SileroModel,
    change_speed,
    reading as audio,
    silero,
)
from asr.cli import limit_threads
from asr.data import read_manifest
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig
from asr.errors import UserError
from asr.features.front_end import FeaturesConfig, FrontEnd
from asr.language_models.ngram import WordList
from asr.models.decoders import Decoder
from asr.models.precision import is_int8_exact
from asr.models.speech_model import SpeechModel, build_model
from asr.system.checkpoint import save_checkpoint
from asr.system.decoding_resources import DecodingResources
from asr.system.system import System, load_state
from asr.text.tokenizer import EOS_ID, SOS_ID, Tokenizer, TokenizerConfig
from asr.train.loop import train
from asr.transcription.model import Model, load_model
from asr.transcription.transcribe import Recognizer, Request, load_recognizer
from asr.transcripts.transcript import Segment, Transcript

pytestmark = pytest.mark.usefixtures("loud_is_speech")

RATE = 16_000
SHORT = SegmentationConfig(max_seconds=3.0)


def build_system(tiny_run: TinyRun, name: str, words: str = "ONE TWO SIX TEN") -> System:
    """Random weights, whose texts mean nothing but have many near-ties."""
    run = tiny_run()
    features = FeaturesConfig(num_mels=20, cmvn="utterance")
    run = run.model_copy(update={"model": SYSTEMS[name], "features": features})
    tokenizer = Tokenizer.train(TokenizerConfig(type="characters"), [words])
    torch.manual_seed(3)
    model = build_model(SYSTEMS[name], 20, len(tokenizer)).eval()
    return System(run, tokenizer, FrontEnd(features), model)


def build_recognizer(tiny_run: TinyRun, name: str) -> Recognizer:
    return Recognizer(build_system(tiny_run, name), "cpu", segmentation=SHORT, checks=ChecksConfig.off())


def make_audio(seconds: float, seed: int = 0) -> np.ndarray:
    """Bursts of noise with pauses between them."""
    source = np.random.default_rng(seed)
    pieces = []
    while sum(map(len, pieces)) < seconds * RATE:
        burst_S = 0.2 * source.standard_normal(int(RATE * source.uniform(0.2, 0.9)))
        pieces += [
            burst_S * np.hanning(len(burst_S)),
            0.001 * source.standard_normal(int(RATE * source.uniform(0.1, 0.9))),
        ]
    return np.concatenate(pieces)[: round(seconds * RATE)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """From 0.01 s to 5 s, the last one with several segments."""
    folder = tmp_path_factory.mktemp("files")
    lengths = [0.01, 0.1, 0.5, 0.7, 1.3, 1.31, 1.0, 5.0]
    for number, seconds in enumerate(lengths):
        audio.write(folder / f"{number:02}.wav", np.clip(make_audio(seconds, number), -1, 1), RATE)
    return sorted(folder.iterdir())


def transcribe_all(
    recognizer: Recognizer, files: list[Path], batch_size: int, method: str
) -> dict[str, Transcript]:
    method, _, speeds = method.partition(" at ")
    decoding = DecodingConfig(method=method, beam=2, speeds=(0.83, 1.0, 1.2) if speeds else (1.0,))  # type: ignore[arg-type]
    results = list(Model(recognizer).transcribe_files(files, batch_size=batch_size, decoding=decoding))
    assert [path for path, _ in results] == files
    assert all(isinstance(result, Transcript) for _, result in results)
    return {result.id: result for _, result in results if isinstance(result, Transcript)}


@torch.inference_mode()
def test_a_segment_has_the_scores_of_its_text(tiny_run: TinyRun, files: list[Path]) -> None:
    """The mean log-probability is that of PyTorch's CTC loss."""
    recognizer = build_recognizer(tiny_run, "lstm-ctc")
    recognizer.name = "runs/tiny"
    decoding = DecodingConfig(method="ctc_greedy")
    audio_segment = AudioSegment(0.0, audio.read(files[4], RATE), RATE)
    (segment,) = recognizer.recognize([audio_segment], Request(decoding))
    assert recognizer.system.tokenizer.decode(segment.tokens) == segment.text and len(segment.tokens) > 3
    encoded = recognizer.decoder.encode([audio_segment.audio_S])
    loss = torch.nn.functional.ctc_loss(
        encoded.ctc_BTV.transpose(0, 1),
        torch.tensor([segment.tokens]),
        encoded.lengths_B,
        torch.tensor([len(segment.tokens)]),
        reduction="sum",
    )
    assert segment.average_log_probability == pytest.approx(
        -float(loss) / (len(segment.tokens) + 1), abs=1e-4
    )
    assert segment.no_speech_probability is None and segment.temperature is None
    transcript = Model(recognizer).transcribe(files[4], decoding=decoding)
    assert (transcript.model, transcript.compute_type) == ("runs/tiny", "float32 on cpu")
    assert all((one.average_log_probability or 0.0) < 0 for one in transcript.segments)


def describe_words(transcript: Transcript) -> list[tuple[str, float, float]]:
    """Texts and times, without probabilities, whose last digits depend on the number of threads."""
    return [(word.text, word.start, word.end) for one in transcript.segments for word in one.words]


@pytest.mark.parametrize("name", ["transformer-hybrid", "lstm-ctc"])
def test_batches_that_are_decoded_at_once_have_the_same_texts(
    tiny_run: TinyRun, files: list[Path], name: str, restored_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    recognizer = build_recognizer(tiny_run, name)
    original, used = recognizer.recognize, set[str]()

    def recognize(*args: Any) -> Any:
        used.add(threading.current_thread().name)
        return original(*args)

    monkeypatch.setattr(recognizer, "recognize", recognize)
    torch.set_num_threads(1)
    one_by_one = transcribe_all(recognizer, files, 1, "auto")
    assert used == {"MainThread"}
    torch.set_num_threads(4)
    at_once = transcribe_all(recognizer, files, 1, "auto")
    assert len(used) > 1
    for id, transcript in one_by_one.items():
        assert describe_words(at_once[id]) == describe_words(transcript)


def test_batches_of_short_segments_are_full(tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    recognizer, sizes = build_recognizer(tiny_run, "lstm-ctc"), list[int]()
    pieces = [AudioSegment(float(number), np.zeros(RATE // 4, np.float32), RATE) for number in range(20)]
    monkeypatch.setattr(recognizer, "cut_recordings", lambda recordings, request: iter(pieces))

    def recognize(batch: Sequence[AudioSegment], request: Request) -> list[Segment]:
        sizes.append(len(batch))
        return [Segment(0.0, 0.0, "")] * len(batch)

    monkeypatch.setattr(recognizer, "recognize", recognize)
    assert len(list(recognizer.decode_recordings([], Request(batch_size=2)))) == 20
    assert sizes == [2] * 10


def test_segments_come_one_by_one(tiny_run: TinyRun, files: list[Path], tmp_path: Path) -> None:
    """They come before the audio is read to its end, and equal the segments of the transcript."""
    recognizer = build_recognizer(tiny_run, "lstm-ctc")
    decoding = DecodingConfig(method="ctc_greedy")
    whole = Model(recognizer).transcribe(files[-1], decoding=decoding)
    one_by_one = Model(recognizer).iter_segments(files[-1], decoding=decoding, batch_size=8)
    assert tuple(one_by_one) == whole.segments
    soundfile.write(tmp_path / "two.wav", np.stack([make_audio(2.0), make_audio(2.0, 1)], 1), RATE)
    asked: dict[str, Any] = {"decoding": decoding, "channels": "separate", "batch_size": 1}
    two = Model(recognizer).transcribe(tmp_path / "two.wav", **asked)
    assert tuple(Model(recognizer).iter_segments(tmp_path / "two.wav", **asked)) == two.segments != ()

    decoded: list[AudioSegment] = []
    original = recognizer.recognize

    def recognize(segments: Sequence[AudioSegment], request: Request) -> list[Segment]:
        decoded.extend(segments)
        return original(segments, request)

    recognizer.recognize = recognize  # type: ignore[method-assign]
    long = np.tile(make_audio(9.0), 20).astype(np.float32)
    found = list(
        itertools.islice(Model(recognizer).iter_segments(long, RATE, decoding=decoding, batch_size=1), 3)
    )
    assert len(found) == 3 and 0 < len(decoded) < 30
    with pytest.raises(UserError, match="cannot"):
        list(Model(recognizer).iter_segments("no/such/file.wav"))


@pytest.mark.parametrize("name", ["lstm-ctc", "transformer-hybrid"])
def test_audio_that_the_model_was_not_trained_for_causes_a_warning(
    tiny_run: TinyRun, files: list[Path], name: str
) -> None:
    """By the mean over the tokens of all segments and speeds: of the decoder, or of CTC where there is none."""
    decoding = DecodingConfig(method="ctc_greedy", speeds=(0.9, 1.1))
    system = build_system(tiny_run, name)

    def warn(path: Path, limit: float, **changed: Any) -> Transcript:
        resources = DecodingResources(min_log_probability=limit, trained_for="digits")
        whole = SegmentationConfig(method="none")
        own = Recognizer(system, "cpu", segmentation=whole, checks=ChecksConfig.off(), resources=resources)
        return Model(own).transcribe(path, decoding=decoding.model_copy(update=changed))

    def mean(path: Path) -> float:
        total, count = 0.0, 0
        for speed in decoding.speeds:
            for segment in warn(path, -1e9, speeds=(speed,)).segments:
                if name == "lstm-ctc":
                    total += (segment.average_log_probability or 0.0) * (len(segment.tokens) + 1)
                else:
                    played = change_speed(audio.read(path, RATE, allow_silence=True), speed, RATE)
                    total += score_by_decoder(system, played, segment.tokens)
                count += len(segment.tokens) + 1
        return total / count

    path = files[4]
    average = mean(path)
    assert warn(path, average - 1e-4).out_of_domain == ""
    assert warn(files[0], average).out_of_domain == "", "a file without a token is of no domain"
    said = warn(path, average + 1e-4).out_of_domain
    assert said.startswith("probably not what the model was trained for (digits): ")
    assert f"log-probability of {average:.2f}, expected " in said


@torch.inference_mode()
def score_by_decoder(system: System, audio_S: np.ndarray, tokens: Sequence[int]) -> float:
    """The log-probability of the tokens and the end, computed token by token."""
    assert isinstance(system.model, SpeechModel) and isinstance(system.model.decoder, Decoder)
    features, lengths = system.front_end(torch.from_numpy(audio_S)[None], torch.tensor([len(audio_S)]))
    encoded_BTD, lengths_B = system.model.encode(features, lengths)
    state = system.model.decoder.start(encoded_BTD, lengths_B)
    total = 0.0
    for token, following in itertools.pairwise((SOS_ID, *tokens, EOS_ID)):
        scores = system.model.decoder.step(torch.tensor([[token]]), state)[0]
        total += float(scores[0, -1].log_softmax(-1)[following])
    return total


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("transformer-hybrid", "joint"),
        pytest.param("transformer-hybrid", "joint at three speeds", marks=pytest.mark.slow),
        pytest.param("conformer-hybrid", "attention", marks=pytest.mark.slow),
        ("lstm-ctc", "ctc_beam"),
        ("transformer-window", "ctc_greedy"),
        pytest.param("transformer-attention", "attention", marks=pytest.mark.slow),
        pytest.param("attention-additive", "attention", marks=pytest.mark.slow),
        pytest.param("intra-attention-decoder", "rescoring", marks=pytest.mark.slow),
        pytest.param("single-summary-hybrid", "joint", marks=pytest.mark.slow),
        ("parallel-length", "parallel"),
        pytest.param("mask-ctc", "auto", marks=pytest.mark.slow),
    ],
)
def test_batch_and_order_do_not_change_texts(
    tiny_run: TinyRun, files: list[Path], name: str, method: str
) -> None:
    recognizer = build_recognizer(tiny_run, name)
    expected = transcribe_all(recognizer, files, 1, method)
    assert any(transcript.text for transcript in expected.values())
    found = transcribe_all(recognizer, random.Random(5).sample(files, len(files)), 5, method)
    for id, transcript in expected.items():
        assert found[id].text == transcript.text
        assert [(w.start, w.end) for w in found[id].words] == [(w.start, w.end) for w in transcript.words]


def test_words_decoded_at_another_speed_have_the_times_of_the_recording(tiny_run: TinyRun) -> None:
    """Decoding at speed 0.8 equals decoding a slowed recording in one segment, with times scaled back."""
    segmentation = SegmentationConfig(method="none")
    recognizer = Recognizer(
        build_system(tiny_run, "lstm-ctc"), "cpu", segmentation=segmentation, checks=ChecksConfig.off()
    )
    samples = make_audio(3.0).astype(np.float32)
    slowed = soxr.resample(samples, 0.8 * RATE, RATE)
    expected = Model(recognizer).transcribe(slowed, RATE, decoding=DecodingConfig(method="ctc_beam"))
    found = Model(recognizer).transcribe(
        samples, RATE, decoding=DecodingConfig(method="ctc_beam", speeds=(0.8,))
    )
    assert found.text == expected.text != "" and found.duration == 3.0
    assert [word.end for word in found.words] == pytest.approx([0.8 * w.end for w in expected.words])
    own = Model(recognizer).transcribe(samples, RATE, decoding=DecodingConfig(method="ctc_beam"))
    both = Model(recognizer).transcribe(
        samples, RATE, decoding=DecodingConfig(method="ctc_beam", speeds=(1.0, 0.8))
    )
    assert own.text != found.text and both.text in (own.text, found.text)


def test_a_model_without_word_times_is_refused(tiny_run: TinyRun) -> None:
    with pytest.raises(UserError, match=r"neither a CTC head nor attention.* decode it with `asr evaluate`"):
        build_recognizer(tiny_run, "single-summary")


def test_encoder_gives_the_same_bits_in_any_batch(
    tiny_run: TinyRun, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts are invariant because shapes do not depend on the batch."""
    recognizer = build_recognizer(tiny_run, "transformer-ctc")
    encoded: dict[tuple[int, int], list[torch.Tensor]] = {}
    encode = recognizer.model.encode

    def spy(features_BTF: torch.Tensor, lengths_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result = encode(features_BTF, lengths_B)
        for row, length in enumerate(result[1].tolist()):
            # The features identify the utterance.
            key = (length, hash(features_BTF[row].numpy().tobytes()))
            encoded.setdefault(key, []).append(result[0][row, :length])
        return result

    monkeypatch.setattr(recognizer.model, "encode", spy)
    for batch_size in (1, 4, 32):
        transcribe_all(recognizer, files, batch_size, "ctc_greedy")
    assert all(len(versions) == 3 for versions in encoded.values()) and len(encoded) > 8
    assert all(torch.equal(version, versions[0]) for versions in encoded.values() for version in versions)


def test_loading_leaves_the_environment_alone(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path / "model", build_system(tiny_run, "transformer-hybrid"), {"step": 0})
    for name in (names := ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    load_model(tmp_path / "model", "cpu")
    assert dict(os.environ) == before
    limit_threads(None)  # called by the commands
    assert [os.environ.pop(name) for name in names] == ["32", "32"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int4"}, "precision = 'int4': expected auto, float32, bf16, fp16, int8, int8_bf16"),
        ({"precision": None}, "precision = null: expected auto"),
        ({"device": "gpu"}, "device gpu: expected auto, cpu, cuda or cuda:1"),
        ({"device": 0}, "device 0: expected auto, cpu, cuda or cuda:1"),
    ],
)
def test_unknown_options_of_load_model_are_refused(options: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        load_model("there is no such model", **options)
    assert str(caught.value).startswith(message)


def test_python_interface(tiny_run: TinyRun, files: list[Path], tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "model", build_system(tiny_run, "transformer-hybrid"), {"step": 0})
    model = load_model(tmp_path / "model", "cpu", segmentation=SHORT, checks=ChecksConfig.off())
    from_file = model.transcribe(files[-1], beam=2)
    samples_S = audio.read(files[-1], RATE)
    from_array = model.transcribe(samples_S, RATE, beam=2)
    assert from_file.segments == from_array.segments and len(from_file.segments) > 1
    assert (from_file.id, from_array.audio, from_file.separator) == ("07", "", " ")
    assert from_file.duration == from_array.duration == 5.0
    assert all(segment.decoding == "joint" for segment in from_file.segments)
    with pytest.raises(UserError, match="sample_rate"):
        model.transcribe(samples_S)
    with pytest.raises(UserError, match="a file has its own"):
        model.transcribe(files[0], 16_000)
    with pytest.raises(UserError, match=r"no\.wav"):
        model.transcribe(tmp_path / "no.wav")
    names = [name for name in dir(model) if not name.startswith("_")]
    assert names == ["device", "iter_segments", "name", "precision", "transcribe", "transcribe_files"]
    assert repr(model) == f"Model({tmp_path}/model, 0.0 M parameters, float32 on cpu)"
    assert str(from_file) == from_file.text and repr(from_file).startswith(
        "Transcript('07', 5.0 s, 3 segments: '"
    )


def test_options_of_a_call_match_the_command_line(
    tiny_run: TinyRun, files: list[Path], tmp_path: Path
) -> None:
    """They set the same settings; the error for an unsupported option lists the supported ones."""
    recognizer = build_recognizer(tiny_run, "transformer-hybrid")
    model, requests = Model(recognizer), list[Request]()
    recognizer.follow = lambda _, request: requests.append(request) or iter(())  # type: ignore[method-assign,func-returns-value]

    def ask(**options: Any) -> Request:
        assert list(model.iter_segments(files[0], **options)) == []
        return requests[-1]

    assert ask() == ask(beam=None) == Request()
    assert ask(beam=3, decoding="ctc_beam").decoding == DecodingConfig(beam=3, method="ctc_beam")
    config = DecodingConfig(nbest=2, beam=5)
    assert ask(decoding=config).decoding == config
    assert ask(decoding=config, beam=3).decoding == DecodingConfig(nbest=2, beam=3)
    assert (ask(batch_size=1).batch_size, ask(channels=2).channels) == (1, 2)
    (tmp_path / "words.txt").write_text("TEN\n")
    limited = ask(words=tmp_path / "words.txt")
    assert isinstance(limited.language_model, WordList) and limited.decoding.language_model_weight == 0.3
    assert ask(words=str(tmp_path / "words.txt")).language_model is limited.language_model, "loaded once"
    assert ask().language_model is None
    supported = "native models do not support this option. They support beam, decoding, hotwords, language_model, words"
    for wrong, message in (
        ({"language": "de"}, f"language: {supported}"),
        ({"beem": 3}, f"beem: {supported}"),
        ({"beam": 0}, "decoding.beam = 0: expected"),
        ({"decoding": "best"}, "best"),
        ({"batch_size": 0}, "batch_size = 0: expected a whole number"),
        ({"channels": "left"}, "channels"),
        ({"words": "no.txt"}, "no.txt: no such file"),
        ({"lexicon": "no.txt"}, "lexicon: this option is now words"),
        ({"words": False}, "words: expected a file of words; for word times, the option is word_times"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            recognizer.check(ask(**wrong))


def test_parts_of_a_file_have_the_times_of_the_file(tiny_run: TinyRun, files: list[Path]) -> None:
    recognizer = build_recognizer(tiny_run, "transformer-ctc")
    transcript = Model(recognizer).transcribe(Recording(files[-1], "u1", start=2.0, duration=3.0))
    assert (transcript.id, transcript.duration) == ("u1", 3.0) and transcript.segments
    assert all(2.0 <= segment.start < segment.end <= 5.02 for segment in transcript.segments)


def test_a_bad_file_is_reported_in_order_and_the_rest_is_transcribed(
    tiny_run: TinyRun, files: list[Path], tmp_path: Path
) -> None:
    recognizer = build_recognizer(tiny_run, "transformer-ctc")
    (tmp_path / "text.wav").write_text("no audio")
    mixed = [files[3], tmp_path / "text.wav", files[-1], tmp_path / "missing.wav", files[5]]
    results = [result for _, result in Model(recognizer).transcribe_files(mixed, batch_size=2)]
    assert [isinstance(result, UserError) for result in results] == [False, True, False, True, False]
    assert "text.wav" in str(results[1]) and "missing.wav" in str(results[3])
    assert results[2] == Model(recognizer).transcribe(files[-1])


def test_audio_before_a_defect_is_transcribed_and_the_defect_reported(
    tiny_run: TinyRun, files: list[Path], tmp_path: Path
) -> None:
    recognizer = build_recognizer(tiny_run, "transformer-ctc")
    samples_S = audio.read(files[-1], RATE)
    audio.write(tmp_path / "whole.flac", np.tile(samples_S, 4), RATE)
    content = (tmp_path / "whole.flac").read_bytes()
    (tmp_path / "cut.flac").write_bytes(content[: len(content) // 2])
    ((_, transcript),) = Model(recognizer).transcribe_files([tmp_path / "cut.flac"])
    assert isinstance(transcript, Transcript)
    assert 4 < transcript.duration < 16 and transcript.text
    assert len(transcript.warnings) == 1 and "cut.flac" in transcript.warnings[0]
    whole = Model(recognizer).transcribe(tmp_path / "whole.flac")
    assert whole.warnings == () and whole.duration == 20.0
    assert whole.text.startswith(transcript.text[:20])


def test_silence_and_noise_have_no_text(tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silero, "load_silero", SileroModel)
    recognizer = build_recognizer(tiny_run, "transformer-hybrid")
    noise_S = 0.1 * np.random.default_rng(0).standard_normal(10 * RATE)
    for samples_S in (np.zeros(10 * RATE), noise_S, np.zeros(0), np.zeros(100)):
        assert Model(recognizer).transcribe(samples_S, RATE).segments == ()


def test_stopping_early_leaves_no_thread(tiny_run: TinyRun, files: list[Path]) -> None:
    recognizer = build_recognizer(tiny_run, "transformer-ctc")
    before = threading.active_count()
    results = Model(recognizer).transcribe_files(files * 20, batch_size=1)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_half_precision_runs(tiny_run: TinyRun, files: list[Path]) -> None:
    system = build_system(tiny_run, "transformer-hybrid")
    recognizer = Recognizer(system, "cpu", "bf16", segmentation=SHORT, checks=ChecksConfig.off())
    assert Model(recognizer).transcribe(files[-1], beam=2).segments
    with pytest.raises(UserError, match="int8_bf16 is not supported by this model"):
        Recognizer(system, "cpu", "int8_bf16")


@pytest.mark.skipif(not is_int8_exact(), reason="this processor has no instructions for 8 bits")
def test_a_model_in_8_bits(tiny_run: TinyRun, files: list[Path]) -> None:
    found = [
        Recognizer(build_system(tiny_run, "conformer-hybrid"), "cpu", precision, checks=ChecksConfig.off())
        for precision in ("float32", "int8")
    ]
    audio_S = audio.read(files[-1], 16_000)
    whole, rounded = (recognizer.decoder.encode([audio_S]).ctc_BTV.exp() for recognizer in found)
    assert not torch.equal(whole, rounded)
    torch.testing.assert_close(whole, rounded, rtol=0, atol=0.02)
    assert Model(found[1]).transcribe(files[-1], beam=2).compute_type == "int8 on cpu"


def test_segments_are_no_longer_than_training_utterances(
    tiny_run: TinyRun, tones: Path, tmp_path: Path
) -> None:
    system = build_system(tiny_run, "transformer-ctc")
    for heard, limit in ((None, 20.0), (100.0, 20.0), (6.5, 6.5), (0.5, 4.0)):
        assert Recognizer(system, "cpu", longest_seconds=heard).segmentation.max_seconds == limit
    train(tiny_run("train.steps=2"))
    longest = max(utterance.duration for utterance in read_manifest(tones / "train.jsonl"))
    assert load_state(tmp_path / "run" / "model")["longest_seconds"] == pytest.approx(longest)
    assert load_recognizer(tmp_path / "run", "cpu").segmentation.max_seconds == max(4.0, longest)


@pytest.mark.parametrize(
    ("heard", "set_seconds", "whole", "longest_segment"),
    [(2.5, 20.0, 2.5, 4.0), (29.0, 20.0, 20.0, 20.0), (29.0, 40.0, 29.0, 29.0), (33.0, 40.0, 30.0, 30.0)],
)
def test_recordings_up_to_the_training_length_stay_whole(
    tiny_run: TinyRun, heard: float, set_seconds: float, whole: float, longest_segment: float
) -> None:
    """Files up to the longest training utterance, utterances of a manifest up to the allowed maximum."""
    system, segmentation = build_system(tiny_run, "lstm-ctc"), SegmentationConfig(max_seconds=set_seconds)
    assert system.config.batches.max_utterance_seconds == 30.0
    recognizer = Recognizer(system, "cpu", segmentation=segmentation, longest_seconds=heard)
    assert recognizer.make_segmenter(Recording("a.wav")).uncut_seconds == whole
    assert recognizer.segmentation.max_seconds == longest_segment
    for seconds, is_utterance, method in (
        *((30.0, True, "none"), (30.1, True, "silero"), (None, True, "silero")),
        *((1.0, False, "silero"), (None, False, "silero")),
    ):
        recording = Recording("a.wav", duration=seconds, is_utterance=is_utterance)
        assert recognizer.make_segmenter(recording).rules.method == method
