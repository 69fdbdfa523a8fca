"""Pictures of recordings: the weights of the right layer and head, at the right time; errors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from hostile_audio import make_speechlike
from system_examples import save_talker

from asr import cli
from asr.audio import AudioSegment, SegmentationConfig
from asr.decoding.hypothesis import ChecksConfig
from asr.evaluation import attention_pictures
from asr.evaluation.attention_pictures import END, compute_spectrogram, draw, draw_recording, draw_segment
from asr.features.filters import FrameTimes
from asr.system.system import load_system
from asr.transcription.model import Model
from asr.transcription.transcribe import Recognizer, Request

pytestmark = pytest.mark.usefixtures("loud_is_speech")

RATE = 16_000
TWO_LAYERS = ("model.decoder.num_layers=2",)
LSTM_DECODER = ("model.decoder={type: single_summary, dim: 32}",)


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_talker(tmp_path_factory.mktemp("talker") / "model", *TWO_LAYERS)


def make_recognizer(folder: Path) -> Recognizer:
    segmentation = SegmentationConfig()
    return Recognizer(load_system(folder), "cpu", segmentation=segmentation, checks=ChecksConfig.off())


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, SimpleNamespace]]:
    """What would be drawn."""
    pictures: list[tuple[Path, SimpleNamespace]] = []
    names = ("audio", "values_NT", "frame_times", "names", "title")

    def keep(path: Path, *values: Any) -> None:
        pictures.append((path, SimpleNamespace(**dict(zip(names, values, strict=True)))))

    monkeypatch.setattr(attention_pictures, "draw", keep)
    return pictures


def write_audio(path: Path, *parts: float) -> Path:
    """Speech and silence by turns, of so many seconds."""
    pieces = [make_speechlike(length, seed=n) * (n % 2 == 0) for n, length in enumerate(parts)]
    noise = 1e-4 * np.random.default_rng(0).standard_normal(sum(map(len, pieces)))
    soundfile.write(path, np.concatenate(pieces) + noise, RATE)
    return path


def draw_text(recognizer: Recognizer, path: Path, text: str) -> None:
    samples, _ = soundfile.read(path, dtype="float32")
    encoded = recognizer.decoder.encode([samples])
    tokens = recognizer.system.tokenizer.encode(text)
    draw_segment(path.with_suffix(".png"), recognizer, AudioSegment(0.0, samples, RATE), encoded, tokens)


def test_weights_of_a_given_text(talker: Path, tmp_path: Path, drawn: list[Any]) -> None:
    """The mean of the heads of the last layer, as the decoder itself gives them for the whole text."""
    recognizer = make_recognizer(talker)
    path = write_audio(tmp_path / "a.wav", 1.0)
    draw_text(recognizer, path, "six one")
    ((_, picture),) = drawn
    system = recognizer.system
    samples, _ = soundfile.read(path, dtype="float32")
    features, lengths = system.front_end(torch.from_numpy(samples)[None], torch.tensor([len(samples)]))
    with torch.inference_mode():
        encoded, lengths = system.model.encode(features, lengths)
        inputs = torch.tensor([[system.tokenizer.sos_id, *system.tokenizer.encode("six one")]])
        assert system.model.decoder is not None
        _, weights = system.model.decoder(inputs, encoded, lengths, {1: (0, 1)})  # type: ignore[operator]
    np.testing.assert_allclose(picture.values_NT, weights[1][0].mean(0).numpy(), atol=1e-5)
    assert (list(picture.names), picture.title) == (["six", "one", END], "six one")
    # Frames of 25 ms every 10 ms, four to a step whose middle is the first of them.
    assert picture.frame_times.times(2) == pytest.approx([0.0125, 0.0525])


@pytest.mark.parametrize(
    ("decoder", "rows"), [("{type: attention, dim: 32}", 3), ("{type: mask_ctc, dim: 32, num_layers: 1}", 2)]
)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_other_decoders(tmp_path: Path, drawn: list[Any], decoder: str, rows: int, precision: Any) -> None:
    """Some know without a row for the end where it is."""
    system = load_system(save_talker(tmp_path / "model", f"model.decoder={decoder}"))
    path = write_audio(tmp_path / "a.wav", 1.0)
    draw_text(Recognizer(system, "cpu", precision), path, "six one")
    ((_, picture),) = drawn
    assert list(picture.names) == ["six", "one", END][:rows]
    np.testing.assert_allclose(picture.values_NT.sum(1), np.ones(rows), atol=1e-5)


def test_each_segment_has_its_picture_at_its_time(talker: Path, tmp_path: Path, drawn: list[Any]) -> None:
    recognizer, path = make_recognizer(talker), write_audio(tmp_path / "a.wav", 2.0, 2.0, 2.0, 2.0, 2.0)
    written = draw_recording(recognizer, path, tmp_path / "out.png", Request())
    assert written == [tmp_path / f"out{number}.png" for number in ("", "-002", "-003")]
    segments = Model(recognizer).transcribe(path).segments
    assert [picture.title for _, picture in drawn] == [segment.text for segment in segments]
    for number, (_, picture) in enumerate(drawn):
        _, (begin, end) = compute_spectrogram(picture.audio)
        assert begin == pytest.approx(4 * number, abs=0.5) and end == pytest.approx(4 * number + 2, abs=0.5)
        steps = picture.frame_times.times(picture.values_NT.shape[1])
        assert (steps[0], steps[-1]) == pytest.approx((begin, end), abs=0.06)


def read_pixels(path: Path, audio_S: np.ndarray | None = None, **changes: Any) -> np.ndarray:
    """Rows of 40 ms from 5 s on, and silence, drawn."""
    from matplotlib.image import imread

    audio = AudioSegment(5.0, np.zeros(2 * RATE, np.float32) if audio_S is None else audio_S, RATE)
    shown = {
        "values_NT": np.eye(6, 50),
        "frame_times": FrameTimes(5.02, 0.04),
        "names": "abcdef",
        "title": "abc",
    }
    draw(path, audio, **{**shown, **changes})
    return np.asarray(imread(path))[..., :3]


@pytest.mark.parametrize(
    "changes",
    [
        {"title": "$_{$ and $", "names": ["$_{$", "_{", "$^$", "^", "\\", " "]},  # formulas to Matplotlib
        {"values_NT": np.zeros((1, 3)), "names": [END]},
    ],
)
def test_any_text_can_be_drawn(tmp_path: Path, changes: dict[str, Any]) -> None:
    read_pixels(tmp_path / "a.png", **changes)


def test_a_tone_stands_at_its_frequency_and_time() -> None:
    audio_S = 0.0005 * np.random.default_rng(0).standard_normal(2 * RATE).astype(np.float32)
    audio_S[RATE:] += 0.3 * np.sin(2 * np.pi * 2000 * np.arange(RATE) / RATE).astype(np.float32)
    levels_FT, (begin, end) = compute_spectrogram(AudioSegment(7.0, audio_S, RATE))
    row = round(2000 / (RATE / 2) * (len(levels_FT) - 1))
    assert np.abs(levels_FT.argmax(0)[110:] - row).max() <= 1
    starts = np.linspace(begin, end, levels_FT.shape[1] + 1)
    assert starts[int(np.argmax(levels_FT[row] > levels_FT[row].max() - 6))] == pytest.approx(8.0, abs=0.03)
    assert np.ptp(levels_FT) <= 60.001


def test_transcribe_says_what_cannot_be_drawn(
    talker: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_audio(tmp_path / "a.wav", 1.0)
    soundfile.write(tmp_path / "silence.wav", np.zeros(3 * RATE), RATE)
    summary, plot = save_talker(tmp_path / "summary", *LSTM_DECODER), ["--plot-attention", "out.png"]
    for model, arguments, status, message in (
        (talker, ["a.wav", "silence.wav", *plot], 2, "draws one recording, not 2"),
        (talker, ["a.wav", "--plot-attention", "out.jpg"], 2, ".png"),
        (talker, ["a.wav", *plot, "--output-dir", "x"], 2, "--output-dir"),
        (summary, ["a.wav", *plot], 2, "no attention to draw"),
        (talker, ["silence.wav", *plot], 1, "silence.wav: the model finds no text in it"),
    ):
        assert cli.main(["transcribe", *arguments, "--model", str(model), "--set=checks=off"]) == status
        assert message in capsys.readouterr().err + caplog.text, arguments
    assert not list(tmp_path.glob("*.png"))
