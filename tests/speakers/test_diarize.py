"""asr/speakers: turns of recordings in which each speaker is a tone, that stand-in models tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

from asr.audio.segmentation import Recording
from asr.cli import main
from asr.speakers import diarize, read_rttm, score_turns
from asr.speakers.activity import FRAME_SAMPLES, SAMPLE_RATE
from asr.speakers.diarize import Diarizer
from asr.speakers.turns import Turn

Spans = Sequence[tuple[float, float, int]]
PITCHES = 400 + 200 * torch.arange(12.0)


def measure_tones(audio_XS: Tensor) -> Tensor:
    """The level of each speaker's tone."""
    phases_SC = 2 * np.pi * torch.arange(audio_XS.shape[-1])[:, None] * PITCHES / SAMPLE_RATE
    return torch.view_as_complex(
        torch.stack([audio_XS @ phases_SC.cos(), audio_XS @ phases_SC.sin()], -1)
    ).abs()


def segment(windows_BS: Tensor) -> Tensor:
    """Up to three speakers of a window, in an order of its own."""
    frames_BTS = windows_BS[:, 360:][:, : (windows_BS.shape[1] - 991) // 270 * 270 + 270].unflatten(
        1, (-1, 270)
    )
    active_BTC = measure_tones(frames_BTS) > 0.05 * FRAME_SAMPLES / 2
    order_BC = active_BTC.sum(1).argsort(dim=1, descending=True, stable=True)[:, :3]
    return active_BTC.float().gather(2, order_BC.flip(1)[:, None].expand(-1, active_BTC.shape[1], -1))


def embed(waveforms: Sequence[Tensor]) -> Tensor:
    return torch.nn.functional.normalize(measure_tones(torch.stack(list(waveforms))))


MODELS: Any = SimpleNamespace(segment=segment, embed=embed)


def make_audio(spans: Spans, seconds: float) -> np.ndarray:
    audio_S = np.zeros(round(seconds * SAMPLE_RATE), np.float32)
    times_S = np.arange(len(audio_S)) / SAMPLE_RATE
    for start, end, speaker in spans:
        own = slice(round(start * SAMPLE_RATE), round(end * SAMPLE_RATE))
        audio_S[own] += 0.2 * np.sin(2 * np.pi * float(PITCHES[speaker]) * times_S[own])
    return audio_S


def make_recording(spans: Spans, seconds: float) -> Recording:
    return Recording(id="talk", content=make_audio(spans, seconds), sample_rate=SAMPLE_RATE)


def find(spans: Spans, seconds: float, **options: Any) -> list[Turn]:
    turns, faults = Diarizer(MODELS, **{"least": 1, "most": 100} | options).find_turns(
        make_recording(spans, seconds)
    )
    assert not faults
    return turns


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


@pytest.mark.parametrize("seconds", [0.01, 0.5, 9.99, 10.0, 12.51])
def test_short_recordings(seconds: float) -> None:
    assert find([], seconds) == []
    turns = find([(0.0, seconds, 0)], seconds)
    assert [turn.speaker for turn in turns] == ["SPEAKER_00"] * (seconds > 0.1)
    assert not turns or (turns[0].start < 0.03 and abs(turns[0].end - seconds) < 0.1)


def test_many_speakers_and_short_turns() -> None:
    spans = [(5.0 * n, 5.0 * n + 4.5, n % 12) for n in range(24)]
    assert len({turn.speaker for turn in find(spans, 120)}) == 12
    spans = [(0.2 * n, 0.2 * n + 0.2, n % 2) for n in range(50)]
    assert len({turn.speaker for turn in find(spans, 10.1)}) == 2


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(diarize, "load_speaker_models", lambda path, device: MODELS)
    spans = [(0.5, 3.0, 0), (3.5, 6.0, 1)]
    for name, own in {"talk": spans, "anna": [(0.0, 4.0, 1)], "none": []}.items():
        soundfile.write(tmp_path / f"{name}.wav", make_audio(own, 8), SAMPLE_RATE)
    talk, anna, none = (str(tmp_path / f"{name}.wav") for name in ("talk", "anna", "none"))
    out = tmp_path / "out"
    assert main(["diarize", talk, none, "--enroll", f"anna={anna}", "--output-dir", str(out)]) == 0
    turns = read_rttm(out / "talk.rttm")
    assert [turn.speaker for turn in turns] == ["SPEAKER_00", "anna"] and (
        out / "none.rttm"
    ).read_text() == ""
    (out / "talk.rttm").write_text("")
    (tmp_path / "bad.wav").write_text("no audio")
    assert main(["diarize", talk, str(tmp_path / "bad.wav"), "-o", str(out), "--enroll", f"anna={anna}"]) == 1
    assert (out / "talk.rttm").read_text() == "" and not (out / "bad.rttm").exists()
    for wrong in (
        "--enroll anna",
        f"--enroll a={none}",
        "--speakers 2 --max-speakers 3",
        "--min-speakers 101",
    ):
        try:
            assert main(["diarize", talk, *wrong.split()]) == 2
        except SystemExit as error:  # of argparse
            assert error.code == 2
        assert "Traceback" not in capsys.readouterr().err
