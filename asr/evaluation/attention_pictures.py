"""Draw the cross-attention of each token of a recording, above a spectrogram."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from asr.audio.segmentation import AudioFile, AudioSegment, make_recording
from asr.decoding.hypothesis import EncodedAudio
from asr.errors import UserError
from asr.evaluation.plots import DPI, LABEL_SIZE
from asr.features.filters import FrameTimes
from asr.files import replace_file
from asr.models.losses import Targets
from asr.models.speech_model import SpeechModel
from asr.transcription.transcribe import End, Recognizer, Request

# N tokens and, maybe, the end, T steps or frames, V vocabulary, F frequencies, S samples


# Fonts for scripts that Matplotlib's own fonts lack; those that are not installed are left out.
FONTS = {f"Noto Sans {name}" for name in ("CJK SC", "CJK JP", "CJK KR", "Devanagari", "Arabic")}
POINTS = 72  # per inch
END = "(end)"  # label of the end token's row
RANGE_DB = 60.0  # dynamic range of the spectrogram, below its loudest point
WINDOW_SECONDS, SHIFT_SECONDS = 0.025, 0.01  # spectrogram window


def check_drawing(transcriber: Recognizer, path: Path) -> Recognizer:
    """Refuse models without attention and files other than PNG, before anything is decoded."""
    if transcriber.family is not None:
        raise UserError("attention can only be drawn for models trained with asr, and this one was not")
    if path.suffix.lower() != ".png":
        raise UserError(f"{path}: pictures are written as PNG; give a name that ends in .png")
    decoder = transcriber.model.decoder
    if decoder is None or decoder.num_heads == 0:
        raise UserError("this model has no attention to draw")
    return transcriber


def draw_recording(transcriber: Recognizer, audio: AudioFile, path: Path, request: Request) -> list[Path]:
    """Draw each segment that has text: the first to `path`, such as OUT.png, the second to OUT-002.png."""
    recording, recognizer = make_recording(audio), check_drawing(transcriber, path)
    written: list[Path] = []
    for piece in recognizer.cut_recordings([recording], request):
        if isinstance(piece, End):
            continue
        encoded = recognizer.decoder.encode([piece.audio_S])
        (decoded,) = recognizer.decoder.decode(encoded, request.setup)
        if decoded.tokens:
            own = path.with_stem(f"{path.stem}-{len(written) + 1:03d}") if written else path
            draw_segment(own, recognizer, piece, encoded, decoded.tokens)
            written.append(own)
    if not written:
        raise UserError(f"{recording.path}: the model finds no text in it, so there is nothing to draw")
    return written


def draw_segment(
    path: Path, recognizer: Recognizer, segment: AudioSegment, encoded: EncodedAudio, tokens: Sequence[int]
) -> None:
    tokenizer = recognizer.system.tokenizer
    values_NT = _mean_attention(recognizer.model, encoded, tokens)
    names = [*(tokenizer.tokens[id] for id in tokens), END][: len(values_NT)]  # some have no row for the end
    relative = recognizer.decoder.frame_times
    frame_times = FrameTimes(segment.start + relative.first, relative.seconds_per_step)
    draw(path, segment, values_NT, frame_times, names, tokenizer.decode(tokens))


@torch.inference_mode()
def _mean_attention(model: SpeechModel, encoded: EncodedAudio, tokens: Sequence[int]) -> np.ndarray:
    """Return the mean attention (N, T) over the heads of the last layer."""
    assert model.decoder is not None
    device = encoded.encoded_BTD.device
    targets = Targets(torch.tensor([list(tokens)], device=device), torch.tensor([len(tokens)], device=device))
    # Without autocast, because this is a single pass, and model weights are float32 in any precision.
    encoded_BTD = encoded.encoded_BTD.float()
    _, weights = model.score_reference(targets, (encoded_BTD, encoded.lengths_B), model.decoder.last_heads)
    weights_1HNT = torch.cat([*weights.values()], dim=1)
    return weights_1HNT[0].float().mean(0)[:, : int(encoded.lengths_B[0])].cpu().numpy()


# --- drawing ------------------------------------------------------------------------------------


def draw(
    path: Path,
    audio: AudioSegment,
    values_NT: np.ndarray,
    frame_times: FrameTimes,
    names: Sequence[str],
    title: str,
) -> None:
    """Write a PNG of rows over time, above a spectrogram; some row labels are omitted if space is short."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.font_manager import get_font_names

    start, end = frame_times.time(-0.5), frame_times.time(values_NT.shape[1] - 0.5)
    width = float(np.clip(5 + 0.8 * (end - start), 8, 14))
    height = float(np.clip(0.17 * len(names), 1.2, 9))
    lines = textwrap.wrap(title, round(11 * width), max_lines=3, placeholder=" …")
    families = ["DejaVu Sans", *sorted(FONTS & set(get_font_names()))]
    with rc_context({"font.family": families, "font.size": LABEL_SIZE, "text.parse_math": False}):
        figure = Figure(figsize=(width, height + 1.9 + 0.2 * len(lines)), layout="constrained")
        upper, lower = figure.subplots(
            2, 1, sharex=True, height_ratios=[height, 1.1], subplot_kw={"facecolor": "black"}
        )
        upper.set_title("\n".join(lines), fontsize=11, loc="left")
        style = {"aspect": "auto", "interpolation": "nearest", "cmap": "magma"}
        extent = (start, end, len(names) - 0.5, -0.5)
        image = upper.imshow(values_NT, **style, extent=extent, vmin=0)
        shown = range(0, len(names), -(-len(names) // max(1, int(POINTS * height / (LABEL_SIZE + 1)))))
        upper.set_yticks(shown, [names[row].replace(" ", "␣") for row in shown])
        upper.set_ylabel("token")
        figure.colorbar(image, ax=upper, pad=0.01, fraction=0.03, aspect=9 * height, label="attention")
        levels_FT, edges = compute_spectrogram(audio)
        lower.imshow(levels_FT, **style, origin="lower", extent=(*edges, 0, audio.sample_rate / 2000))
        lower.set_ylabel("kHz")
        lower.set_xlabel("seconds")
        lower.set_xlim(min(start, edges[0]), max(end, edges[1]))
        with replace_file(path) as file:
            figure.savefig(file, format="png", dpi=DPI)


def compute_spectrogram(audio: AudioSegment) -> tuple[np.ndarray, tuple[float, float]]:
    """Return levels in dB (F, T), lowest frequency first, and the start and end time of all frames."""
    window, shift = (round(seconds * audio.sample_rate) for seconds in (WINDOW_SECONDS, SHIFT_SECONDS))
    audio_S = np.pad(audio.audio_S, (0, max(0, window - len(audio.audio_S))))
    frames_TS = np.lib.stride_tricks.sliding_window_view(audio_S, window)[::shift] * np.hanning(window)
    levels_TF = 20 * np.log10(np.abs(np.fft.rfft(frames_TS)) + 1e-10)
    first = audio.start + (window - shift) / 2 / audio.sample_rate
    edges = first, first + len(levels_TF) * shift / audio.sample_rate
    return np.maximum(levels_TF, levels_TF.max() - RANGE_DB).T, edges
