"""Decoding a split: every utterance in every way, scores that others confirm, problems that cost one utterance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
import torch
from decoding_examples import search
from hostile_audio import make_speechlike
from system_examples import WORDS, save_talker

from asr.audio import reading as audio
from asr.data import Utterance
from asr.decoding.decode import offered_methods
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig
from asr.errors import UserError
from asr.evaluation.speech import (
    EvaluatedSplit,
    decode_utterances,
    make_normalizer,
    read_batch,
    read_references,
    score_setups,
    write_texts,
)
from asr.recipe.splits import find_shared
from asr.scoring.scored_files import score_systems
from asr.system.system import System, load_system
from asr.transcription.transcribe import Recognizer, Request
from asr.transcripts.readers import read_transcripts

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> System:
    return load_system(save_talker(tmp_path_factory.mktemp("talker") / "model"))


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Five utterances of two files, of unlike lengths, by two speakers."""
    soundfile.write(tmp_path / "long.wav", make_speechlike(5.0), 16_000)
    soundfile.write(tmp_path / "short.wav", make_speechlike(0.7, seed=1), 16_000)
    rows = [
        {"id": "a", "audio": "long.wav", "start": 0.0, "duration": 1.0, "speaker": "x", "text": "one two"},
        {
            "id": "b",
            "audio": "long.wav",
            "start": 1.0,
            "duration": 2.5,
            "speaker": "y",
            "text": "nine ten six",
        },
        {"id": "c", "audio": "short.wav", "duration": 0.7, "speaker": "x", "text": "Two"},
        {"id": "d", "audio": "long.wav", "start": 4.0, "duration": 0.5, "speaker": "y", "text": ""},
        {"id": "e", "audio": "long.wav", "start": 3.0, "duration": 0.001, "speaker": "y", "text": "ten"},
    ]
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(
    system: System, utterances: list[Utterance], *methods: str, batch_size: int = 2, **options: Any
) -> EvaluatedSplit:
    methods = methods or tuple(offered_methods(system.model))
    requests = {
        method: Request(DecodingConfig(method=method, beam=4), None, batch_size) for method in methods
    }
    return decode_utterances(Recognizer(system, checks=ChecksConfig.off()), utterances, requests, **options)


def test_every_utterance_by_every_method(system: System, manifest: Path) -> None:
    split = run(system, read_references(manifest))
    assert list(split.setups) == ["ctc_greedy", "ctc_beam", "attention", "rescoring", "joint"]
    for name, decoded in split.setups.items():
        assert decoded.request.decoding.method == name and decoded.request.decoding.beam == 4
        assert set(decoded.texts) == set("abcde")
        assert all(set(text.split()) <= set(WORDS) for text in decoded.texts.values())
        assert decoded.audio_seconds == pytest.approx(4.701) and decoded.seconds > 0
        assert decoded.real_time_factor == decoded.seconds / decoded.audio_seconds
        assert decoded.texts["e"] == ""  # one millisecond is no frame
    assert split.problems == {}


def test_batch_size_does_not_matter(system: System, manifest: Path) -> None:
    utterances, told = read_references(manifest), list[float]()
    expected, other = run(system, utterances), run(system, utterances, batch_size=3, report=told.append)
    assert all(other.setups[name].texts == decoded.texts for name, decoded in expected.setups.items())
    assert len(told) > 1 and sum(told) == pytest.approx(4.701)


SPEEDS = (0.97, 1.0, 1.03)


@pytest.mark.parametrize("method", ["ctc_greedy", pytest.param("joint", marks=pytest.mark.slow), "attention"])
def test_of_several_speeds_the_likeliest_text_is_taken(system: System, manifest: Path, method: str) -> None:
    """One utterance and speed at a time, played by soxr; likely by CTC, else by the decoder."""
    config = DecodingConfig.model_validate({"method": method, "beam": 4, "speeds": SPEEDS})
    setups = {"all": config, "own": config.model_copy(update={"speeds": (1.0,)})}
    utterances = read_references(manifest)
    requests = {name: Request(own, batch_size=2) for name, own in setups.items()}
    split = decode_utterances(Recognizer(system, checks=ChecksConfig.off()), utterances, requests)
    chosen = set()
    for item in utterances[:4]:
        samples = audio.read(item.audio, start=item.start, duration=item.duration)
        found = []
        for speed in SPEEDS:
            played = soxr.resample(samples, 16_000 * speed, 16_000)
            features = system.front_end(torch.from_numpy(played)[None], torch.tensor([len(played)]))
            with torch.inference_mode():
                encoded = system.model.encode(*features)
            ((best,),) = search(system.model, *encoded, setups["own"])
            likelihood = best.log_probability if method == "attention" else best.ctc_log_probability
            found.append((likelihood, speed, system.tokenizer.decode(list(best.tokens))))
        assert split.setups["own"].texts[item.id] == found[1][2]
        assert split.setups["all"].texts[item.id] == max(found)[2]
        chosen.add(max(found)[1])
    assert len(chosen) > 1, "the test would not notice that only one is heard"


@pytest.mark.parametrize("speeds", [(1.0,), (0.8, 1.0)])
def test_audio_too_long_for_the_model_costs_its_utterance(
    speeds: tuple[float, ...], system: System, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 32 steps of 40 ms: utterance b has 62, and a 25, or 31 at the lower speed."""
    encode = system.model.encoder.forward

    def encode_short(features_BTF: torch.Tensor, lengths_B: torch.Tensor) -> Any:
        if features_BTF.size(1) > 4 * 32:
            raise UserError("too long")
        return encode(features_BTF, lengths_B)

    monkeypatch.setattr(system.model.encoder, "forward", encode_short)
    utterances = read_references(manifest)
    recognizer = Recognizer(system, checks=ChecksConfig.off())
    config = DecodingConfig(method="ctc_greedy", speeds=speeds)
    for batch_size in (1, 5):
        requests = {"ctc_greedy": Request(config, batch_size=batch_size)}
        split = decode_utterances(recognizer, utterances, requests)
        assert list(split.problems) == ["b"]
        assert split.problems["b"] == "utterance b: too long"
        decoded = split.setups["ctc_greedy"]
        rest = [item for item in utterances if item.id != "b"]
        alone = decode_utterances(recognizer, rest, requests)
        assert decoded.texts == alone.setups["ctc_greedy"].texts and set(decoded.texts) == set("acde")
        assert decoded.audio_seconds == pytest.approx(2.201)
    (nothing,) = decode_utterances(recognizer, utterances[1:2], requests).setups.values()
    assert nothing.texts == {} and nothing.audio_seconds == 0


def test_further_references_of_a_manifest(system: System, manifest: Path, tmp_path: Path) -> None:
    """Recognized texts become the references, so no errors remain, and `asr score` of the files agrees."""
    split = run(system, read_references(manifest), "ctc_greedy")
    texts = split.setups["ctc_greedy"].texts
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    rows[0]["extras"] = {"reference_2": "x", "reference_3": texts["a"], "reference_4": None}
    rows[3]["extras"] = {"reference_2": texts["d"]}
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    utterances, normalizer = read_references(manifest), make_normalizer(system.config.text)
    found = score_setups(split, utterances, normalizer)["ctc_greedy"]
    assert found.num_references == 3 and found.errors_P[0] == found.errors_P[3] == 0 < found.errors_P[1]
    write_texts(tmp_path / "out", split, utterances, normalizer)
    files = [str(tmp_path / "out" / f"{name}.jsonl") for name in ("reference", "reference_2", "reference_3")]
    _, (again,), _ = score_systems(
        files[0], [str(tmp_path / "out/ctc_greedy.trn")], more_references=files[1:]
    )
    assert again.score.counts == found.counts and again.score.interval == found.interval
    raw = read_transcripts(tmp_path / "out" / "ctc_greedy.raw.jsonl").entries
    assert {id: entry.text for id, entry in raw.items()} == texts
    rows[0]["extras"] = {"reference_2": 5}
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=r"utterance a: extras\.reference_2 is 5; expected a text"):
        read_references(manifest)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "contains no utterances"),
        ('{"id": "a", "audio": "a.wav", "duration": 1.0}\n', "utterance a has no text"),
        ('{"id": "a", "audio": "a.wav", "duration": 1.0, "text": "x"}\n' * 2, "duplicate id a"),
    ],
)
def test_manifests_that_cannot_be_scored(lines: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text(lines)
    with pytest.raises(UserError, match=message):
        read_references(tmp_path / "m.jsonl")


def test_each_channel_is_read_by_itself(tmp_path: Path) -> None:
    """The sides of a telephone call."""
    sides = [make_speechlike(1.0), make_speechlike(1.0, seed=1)]
    soundfile.write(tmp_path / "call.wav", np.stack(sides, axis=1), 16_000, subtype="FLOAT")
    utterances = [
        Utterance(id=f"side-{channel}", audio=str(tmp_path / "call.wav"), duration=1.0, channel=channel)
        for channel in (1, 2, 3)
    ]
    problems: dict[str, str] = {}
    for (_, samples), side in zip(read_batch(utterances, 16_000, problems), sides, strict=True):
        np.testing.assert_array_equal(samples, side.astype(np.float32))
    assert "channel 3" in problems["side-3"] and find_shared(utterances[:1], utterances[1:2]) == []
