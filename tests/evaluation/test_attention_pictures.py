"""Pictures of recordings: the weights of the right layer and head, at the right time; errors; the tool."""

from __future__ import annotations

import runpy
import sys
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
from asr.decoding import ChecksConfig
from asr.errors import UserError
from asr.evaluation import (
    END,
    View,
    attention_pictures,
    check_view,
    choose_view,
    compute_spectrogram,
    draw,
    draw_recording,
    draw_text,
)
from asr.models import Clock
from asr.system import load_system
from asr.transcription import Recognizer, Request

ROOT = Path(__file__).resolve().parents[2]
RATE = 16_000
TWO_LAYERS = ("model.decoder.num_layers=2",)
LSTM_DECODER = ("model.decoder={type: single_summary, dim: 32}",)


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_talker(tmp_path_factory.mktemp("talker") / "model", *TWO_LAYERS)


def make_recognizer(folder: Path) -> Recognizer:
    segmentation = SegmentationConfig(method="energy")
    return Recognizer(load_system(folder), "cpu", segmentation=segmentation, checks=ChecksConfig.off())


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, SimpleNamespace]]:
    """What would be drawn."""
    pictures: list[tuple[Path, SimpleNamespace]] = []
    names = ("audio", "values_NT", "clock", "names", "words")

    def keep(path: Path, *values: Any, **more: str) -> None:
        pictures.append((path, SimpleNamespace(**dict(zip(names, values, strict=True)), **more)))

    monkeypatch.setattr(attention_pictures, "draw", keep)
    return pictures


def write_audio(path: Path, *parts: float) -> Path:
    """Speech and silence by turns, of so many seconds."""
    pieces = [make_speechlike(length, seed=n) * (n % 2 == 0) for n, length in enumerate(parts)]
    noise = 1e-4 * np.random.default_rng(0).standard_normal(sum(map(len, pieces)))
    soundfile.write(path, np.concatenate(pieces) + noise, RATE)
    return path


def follow(recognizer: Recognizer, path: Path, tokens: list[int]) -> dict[int, np.ndarray]:
    """The weights (H, N, T) of each layer, with the whole batch of one computed here."""
    system = recognizer.system
    samples, _ = soundfile.read(path, dtype="float32")
    features, lengths = system.front_end(torch.from_numpy(samples)[None], torch.tensor([len(samples)]))
    with torch.inference_mode():
        encoded, lengths = system.model.encode(features, lengths)
        inputs = torch.tensor([[system.tokenizer.sos_id, *tokens]])
        assert system.model.decoder is not None
        _, weights = system.model.decoder(inputs, encoded, lengths, {0: (0, 1), 1: (0, 1)})  # type: ignore[operator]
    return {layer: own[0].numpy() for layer, own in weights.items()}


@pytest.mark.parametrize(
    ("view", "pick", "subtitle"),
    [
        (View(), lambda w: w[1].mean(0), "cross-attention, layer 1, mean of 2 heads"),
        (View(layer=0), lambda w: w[0].mean(0), "cross-attention, layer 0, mean of 2 heads"),
        (View(layer=0, head=1), lambda w: w[0][1], "cross-attention, layer 0, head 1"),
        (View(layer=-2, head=0), lambda w: w[0][0], "cross-attention, layer 0, head 0"),
    ],
)
def test_weights_of_a_given_text(
    talker: Path, tmp_path: Path, drawn: list[Any], view: View, pick: Any, subtitle: str
) -> None:
    recognizer = make_recognizer(talker)
    path = write_audio(tmp_path / "a.wav", 1.0)
    draw_text(recognizer, path, tmp_path / "a.png", "six one", view)
    ((_, picture),) = drawn
    tokens = recognizer.system.tokenizer.encode("six one")
    expected = pick(follow(recognizer, path, tokens))
    np.testing.assert_allclose(picture.values_NT, expected, atol=1e-5)
    assert list(picture.names) == ["six", "one", END] and picture.words == {0: "six", 1: "one"}
    assert (picture.title, picture.subtitle) == ("six one", subtitle)
    # Frames of 25 ms every 10 ms, four to a step whose middle is the first of them.
    assert picture.clock.times(2) == pytest.approx([0.0125, 0.0525])


@pytest.mark.parametrize(
    ("decoder", "rows", "subtitle"),
    [
        ("{type: attention, dim: 32}", 3, "cross-attention"),
        ("{type: mask_ctc, dim: 32, num_layers: 1}", 2, "cross-attention, mean of 4 heads"),
    ],
)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_other_decoders(
    tmp_path: Path, drawn: list[Any], decoder: str, rows: int, subtitle: str, precision: Any
) -> None:
    """Some know without a row for the end where it is."""
    system = load_system(save_talker(tmp_path / "model", f"model.decoder={decoder}"))
    path = write_audio(tmp_path / "a.wav", 1.0)
    draw_text(Recognizer(system, "cpu", precision), path, tmp_path / "a.png", "six one", View())
    ((_, picture),) = drawn
    assert (list(picture.names), picture.subtitle) == (["six", "one", END][:rows], subtitle)
    np.testing.assert_allclose(picture.values_NT.sum(1), np.ones(rows), atol=1e-5)


def test_each_segment_has_its_picture_at_its_time(talker: Path, tmp_path: Path, drawn: list[Any]) -> None:
    recognizer, path = make_recognizer(talker), write_audio(tmp_path / "a.wav", 2.0, 2.0, 2.0, 2.0, 2.0)
    written = draw_recording(recognizer, path, tmp_path / "out.png", Request())
    assert written == [tmp_path / f"out-00{number}.png" for number in (1, 2, 3)]
    segments = recognizer.transcribe(path).segments
    assert [picture.title for _, picture in drawn] == [segment.text for segment in segments]
    for number, (_, picture) in enumerate(drawn):
        _, (begin, end) = compute_spectrogram(picture.audio)
        assert begin == pytest.approx(4 * number, abs=0.5) and end == pytest.approx(4 * number + 2, abs=0.5)
        steps = picture.clock.times(picture.values_NT.shape[1])
        assert (steps[0], steps[-1]) == pytest.approx((begin, end), abs=0.06)


def test_posteriors_of_ctc(tmp_path: Path, drawn: list[Any]) -> None:
    """Of the tokens that are likely somewhere, those first that are heard first, and of the blank."""
    recognizer = make_recognizer(save_talker(tmp_path / "model", decoder=False, sharpness=3.0))
    path = write_audio(tmp_path / "a.wav", 1.5)
    assert choose_view(recognizer.model) == View(ctc=True)
    assert draw_recording(recognizer, path, tmp_path / "out.png", Request()) == [tmp_path / "out.png"]
    ((_, picture),) = drawn
    encoded = recognizer.decoder.encode([soundfile.read(path, dtype="float32")[0]])
    expected_TV = encoded.ctc_BTV[0, : encoded.lengths_B[0]].exp().numpy()
    ids = [recognizer.system.tokenizer.tokens.index(name) for name in picture.names]
    np.testing.assert_allclose(picture.values_NT, expected_TV[:, ids].T, atol=1e-4)
    assert picture.names[-1] == "<blank>" and len(set(ids)) == len(ids) > 2
    assert np.delete(expected_TV, ids, axis=1).max() < 0.1 <= expected_TV[:, ids[:-1]].max(0).min()
    assert (np.diff((expected_TV[:, ids[:-1]] >= 0.1).argmax(0)) >= 0).all()


# --- drawing ------------------------------------------------------------------------------------


def read_pixels(path: Path, audio_S: np.ndarray | None = None, **changes: Any) -> np.ndarray:
    """Rows of 40 ms from 5 s on, and silence, drawn."""
    from matplotlib.image import imread

    audio = AudioSegment(5.0, np.zeros(2 * RATE, np.float32) if audio_S is None else audio_S, RATE)
    texts = {"title": "abc", "subtitle": "", "kind": "probability"}
    shown = {"values_NT": np.zeros((6, 50)), "clock": Clock(5.02, 0.04), "names": "abcdef", "words": {}}
    draw(path, audio, **{**shown, **texts, **changes})
    return np.asarray(imread(path))[..., :3]


def test_both_parts_have_one_time_axis(tmp_path: Path) -> None:
    """A token at 6 s lies exactly over the click at 6 s."""
    clicks = np.zeros(2 * RATE, np.float32)
    clicks[3200] = 1  # so that the scale is always the same
    rows, louder = np.zeros((6, 50)), clicks.copy()
    rows[2, 25], louder[RATE + 320] = 1, 1.0
    before = read_pixels(tmp_path / "plain.png", clicks)
    token = read_pixels(tmp_path / "token.png", clicks, values_NT=rows)
    click = read_pixels(tmp_path / "click.png", louder)
    places = [np.argwhere(np.abs(changed - before).max(-1) > 0.3) for changed in (token, click)]
    assert all(len(place) for place in places)
    assert places[0][:, 1].mean() == pytest.approx(places[1][:, 1].mean(), abs=3)
    assert places[0][:, 0].max() < places[1][:, 0].min(), "the spectrogram is beneath"


@pytest.mark.parametrize(
    "changes",
    [
        {"title": "$_{$ and $"},  # Matplotlib would read formulas into it, and fail
        {"names": ["$_{$", "_{", "$^$", "^", "\\", " "]},
        {"values_NT": np.zeros((1, 3)), "names": [END], "kind": "attention"},
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


# --- commands ----------------------------------------------------------------------------------


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
        (talker, ["a.wav", "silence.wav", *plot], 2, "draws one recording, and here are 2"),
        (talker, ["a.wav", "--plot-attention", "out.jpg"], 2, ".png"),
        (talker, ["a.wav", *plot, "--output-dir", "x"], 2, "--output-dir"),
        (summary, ["a.wav", *plot], 2, "no attention to draw"),
        (talker, ["silence.wav", *plot], 1, "silence.wav: no text is decoded in it"),
    ):
        assert cli.main(["transcribe", *arguments, "--model", str(model), "--set=checks=off"]) == status
        assert message in capsys.readouterr().err + caplog.text, arguments
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize(
    ("overrides", "view", "message"),
    [
        (TWO_LAYERS, View(layer=2), "layer 2"),
        (TWO_LAYERS, View(layer=-3), "layer -3"),
        ((), View(head=2), "head 2"),
        (("model.ctc_weight=0.0",), View(ctc=True), "no CTC head"),
        (LSTM_DECODER, View(), "no attention to draw; --ctc"),
    ],
)
def test_what_a_model_has_not(tmp_path: Path, overrides: tuple[str, ...], view: View, message: str) -> None:
    model = load_system(save_talker(tmp_path / "model", *overrides)).model
    with pytest.raises(UserError, match=message):
        check_view(model, view, Path("a.png"))


def test_the_tool(
    talker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(ROOT / "tools" / "plot_attention.py"))["main"]
    path, output = write_audio(tmp_path / "a.wav", 1.0), tmp_path / "out.png"
    command = ["plot_attention", str(talker), str(path), str(output)]
    monkeypatch.setattr(sys, "argv", [*command, "--text", "six one", "--head", "1"])
    assert main() == 0 and capsys.readouterr().out == f"{output}\n"
    assert output.read_bytes().startswith(b"\x89PNG")
    for arguments, message in (
        (["--head", "7"], "head 7"),
        (["--ctc", "--layer", "0"], "--ctc draws what is heard"),
        (["--text", "  "], "nothing is left of it"),
    ):
        monkeypatch.setattr(sys, "argv", [*command, *arguments])
        assert main() == 2 and message in capsys.readouterr().err
