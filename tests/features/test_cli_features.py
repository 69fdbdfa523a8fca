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


def read_json(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_table(speech: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["features", str(speech)]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["file", "frames", "x", "features", "seconds", "mean", "std"]
    assert row.split()[:5] == [str(speech), "118", "x", "80", "1.20"]


def test_json_is_what_the_front_end_gives(
    speech: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, cmvn="none")
    assert cli.main(["features", str(speech), "--config", str(config), "--json"]) == 0
    (entry,) = read_json(capsys)["files"]
    audio, _ = soundfile.read(speech, dtype="float32")
    features, _ = FrontEnd(FeaturesConfig(cmvn="none"))(
        torch.from_numpy(audio)[None], torch.tensor([len(audio)])
    )
    assert entry["mean"] == pytest.approx(features.mean().item(), rel=1e-5)
    assert entry["std"] == pytest.approx(features.std().item(), rel=1e-3)


def test_config_is_used(speech: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path, type="mfcc", sample_rate=8000, num_mels=23, deltas=2, cmvn="utterance")
    assert cli.main(["features", str(speech), "--config", str(config), "--json"]) == 0
    (entry,) = read_json(capsys)["files"]
    assert (entry["num_frames"], entry["num_features"]) == (118, 39)
    assert entry["mean"] == pytest.approx(0, abs=1e-5)


def test_statistics_that_are_missing_are_explained(
    speech: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, cmvn="global")
    assert cli.main(["features", str(speech), "--config", str(config)]) == 2
    assert "features.cmvn: global needs values that are learnt" in capsys.readouterr().err


def test_output_dir(speech: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "folder"
    assert cli.main(["features", str(speech), "--output-dir", str(folder), "--json"]) == 0
    (entry,) = read_json(capsys)["files"]
    features = np.load(entry["output"], allow_pickle=False)
    assert [path.name for path in folder.iterdir()] == ["speech.npy"]
    assert features.shape == (118, 80) and features.dtype == np.float32


def test_two_files_are_not_written_to_one(
    speech: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = speech.with_suffix(".flac")
    assert cli.main(["features", str(speech), str(other), "--output-dir", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert str(speech) in message and str(other) in message and "speech.npy" in message


def test_a_bad_file_does_not_stop_the_rest(
    speech: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    bad = tmp_path / "bad.wav"
    bad.write_text("no audio")
    assert cli.main(["features", str(bad), str(tmp_path / "gone.wav"), str(speech), "--json"]) == 1
    printed = read_json(capsys)
    assert [entry["file"] for entry in printed["files"]] == [str(speech)]
    assert printed["num_failed"] == 2
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        str(bad),
        str(tmp_path / "gone.wav"),
    ]


def test_audio_shorter_than_a_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "short.wav"
    soundfile.write(path, make_speech(0.02).numpy(), 16_000)
    assert cli.main(["features", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[1:] == ["0", "x", "80", "0.02", "-", "-"]
    assert cli.main(["features", str(path), "--plot", str(tmp_path / "short.png")]) == 2


def test_axes_of_the_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tone of 1 kHz that sets in after 0.9 s is drawn where the axes say so."""
    times = np.arange(int(1.5 * 16_000)) / 16_000
    soundfile.write(tmp_path / "tone.wav", 0.5 * np.sin(2 * np.pi * 1000 * times) * (times > 0.9), 16_000)
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    for convention in ("kaldi", "whisper"):
        config = write_config(tmp_path, convention=convention)
        options = ["--config", str(config), "--plot", str(tmp_path / "tone.png")]
        assert cli.main(["features", str(tmp_path / "tone.wav"), *options]) == 0
        axes = next(axes for axes in figures[-1].axes if "log-mel" in axes.get_ylabel())
        (image,) = axes.images
        levels, (left, right, *_) = image.get_array(), image.get_extent()
        ticks = {
            label.get_text(): row
            for label, row in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)
        }
        assert levels.mean(axis=1).argmax() == pytest.approx(ticks["1000"], abs=0.6)
        is_loud = levels[levels.mean(axis=1).argmax()] > levels.mean()
        onset = left + is_loud.argmax() * (right - left) / len(is_loud)
        assert onset == pytest.approx(0.9, abs=0.025)


@pytest.mark.slow
@pytest.mark.parametrize("convention", ["kaldi", "whisper"])
def test_plot(convention: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "costs $5_$ or more.wav"  # dollars would be formulas to matplotlib
    soundfile.write(path, make_speech(1.2).numpy(), 16_000)
    picture = tmp_path / "pictures" / "speech.png"
    config = write_config(tmp_path, convention=convention, deltas=1)
    assert cli.main(["features", str(path), "--config", str(config), "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_plot_takes_one_file(speech: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["features", str(speech), str(speech), "--plot", str(tmp_path / "a.png")]) == 2
    assert "--plot draws one file, but 2 are given" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--output-dir", "--plot"])
def test_what_cannot_be_written_is_explained(
    option: str, speech: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["features", str(speech), option, str(speech / "below a file")]) == 2
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--engine", "ray"], ["--engine", "ray", "--output-dir", "out", "--plot", "a.png"]]
)
def test_what_does_not_go_with_ray(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["features", "a.wav", *words]) == 2
    assert "give that, and no --plot" in capsys.readouterr().err


@pytest.mark.slow
def test_features_on_ray_are_those_of_one_process(
    speech: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    (tmp_path / "none.wav").write_bytes(b"no audio")
    files = [str(tmp_path / "none.wav"), str(speech)]
    shown = []
    for name, words in (("alone", []), ("ray", ["--engine", "ray", "--workers", "2"])):
        assert cli.main(["features", *files, "--output-dir", str(tmp_path / name), *words]) == 1
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert (tmp_path / "alone/speech.npy").read_bytes() == (tmp_path / "ray/speech.npy").read_bytes()
