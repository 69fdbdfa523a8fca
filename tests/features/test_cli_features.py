"""`asr features`: the table, JSON, written features, the picture, bad files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from matplotlib.figure import Figure
from test_features import make_speech

from asr import cli
from asr.audio import read
from asr.features import FeaturesConfig, FrontEnd

RUN = "output_dir: out\ndata: {train: train.jsonl, dev: dev.jsonl}\nmodel: {encoder: {type: transformer}, ctc_weight: 1.0}\n"


@pytest.fixture
def speech(tmp_path: Path) -> Path:
    path = tmp_path / "speech.wav"
    soundfile.write(path, make_speech(1.2).numpy(), 16_000)
    return path


def write_config(tmp_path: Path, **features: Any) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(f"{RUN}features: {json.dumps(features)}\n")
    return path


def test_table(speech: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = tmp_path / "short.wav"  # shorter than a window
    soundfile.write(short, make_speech(0.02).numpy(), 16_000)
    assert cli.main(["features", str(speech), str(short)]) == 0
    header, row, empty = capsys.readouterr().out.splitlines()
    assert header.split() == ["file", "frames", "x", "features", "seconds", "mean", "std"]
    assert row.split()[:5] == [str(speech), "118", "x", "80", "1.20"]
    assert empty.split()[1:] == ["0", "x", "80", "0.02", "-", "-"]
    assert cli.main(["features", str(short), "--plot", str(tmp_path / "short.png")]) == 2


def test_written_and_told_is_what_the_front_end_gives(
    speech: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, type="mfcc", sample_rate=8000, num_mels=23)
    folder = tmp_path / "new" / "folder"
    words = ["--config", str(config), "--set", "features.cmvn=none", "--output-dir", str(folder)]
    assert cli.main(["features", str(speech), *words]) == 0
    audio = torch.from_numpy(read(speech, 8000))[None]
    front_end = FrontEnd(FeaturesConfig(type="mfcc", sample_rate=8000, num_mels=23, cmvn="none"))
    features, _ = front_end(audio, torch.tensor([audio.shape[1]]))
    (path,) = folder.iterdir()
    assert path.name == "speech.npy"
    np.testing.assert_array_equal(np.load(path, allow_pickle=False), features[0])
    shown = capsys.readouterr().out.splitlines()[1].split()
    assert shown[1:4] == ["118", "x", "13"]
    assert shown[5:] == [f"{features.mean():.3f}", f"{features[0].numpy().std():.3f}"]


def test_a_bad_file_does_not_stop_the_rest(
    speech: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    bad, gone = tmp_path / "bad.wav", tmp_path / "gone.wav"
    bad.write_text("no audio")
    assert cli.main(["features", str(bad), str(gone), str(speech)]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith(str(speech))
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [str(bad), str(gone)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{speech}", "{speech}", "--plot", "a.png"], "--plot"),
        (["{speech}", "other/speech.flac", "--output-dir", "out"], "--output-dir"),
        (["{speech}", "--set", "features.cmvn=all"], "cmvn"),
        (["{speech}", "--output-dir", "{speech}/below"], "cannot write"),
        (["{speech}", "--plot", "{speech}/below"], "cannot write"),
    ],
)
def test_what_cannot_be_done_is_said(
    words: list[str], message: str, speech: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["features", *(word.format(speech=speech) for word in words)]) == 2
    assert message in capsys.readouterr().err


def test_axes_of_the_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tone that sets in after 0.9 s is drawn where the axes say so."""
    times = np.arange(int(1.5 * 16_000)) / 16_000
    soundfile.write(tmp_path / "tone.wav", 0.5 * np.sin(2 * np.pi * 1000 * times) * (times > 0.9), 16_000)
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    for convention in ("kaldi", "whisper"):
        config = write_config(tmp_path, convention=convention)
        options = ["--config", str(config), "--plot", str(tmp_path / "tone.png")]
        assert cli.main(["features", str(tmp_path / "tone.wav"), *options]) == 0
        _, axes = figures[-1].axes
        (image,) = axes.images
        levels, (left, right, *_) = image.get_array(), image.get_extent()
        is_loud = levels[levels.mean(axis=1).argmax()] > levels.mean()
        assert left + is_loud.argmax() * (right - left) / len(is_loud) == pytest.approx(0.9, abs=0.025)


def test_plot(tmp_path: Path) -> None:
    path = tmp_path / "speech.wav"
    soundfile.write(path, make_speech(1.2).numpy(), 16_000)
    picture = tmp_path / "pictures" / "speech.png"
    assert cli.main(["features", str(path), "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
