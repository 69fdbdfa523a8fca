"""Pictures of a recording: cross-attention for each token, or posteriors of CTC, over a spectrogram."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from asr.audio.segmentation import AudioSegment
from asr.audio.sources import AudioFile, Recording, make_recording, read_recording
from asr.decoding.hypothesis import EncodedAudio
from asr.decoding.timestamps import split_words
from asr.errors import UserError
from asr.evaluation.plots import DPI, LABEL_SIZE
from asr.files import replace_file
from asr.models.decoders import AnyDecoder
from asr.models.encoders import Clock
from asr.models.losses import Targets
from asr.models.speech_model import SpeechModel
from asr.text.normalization import normalize_for_training
from asr.text.tokenizer import BLANK_ID, Tokenizer
from asr.transcription.transcribe import Recognizer, Request, Transcriber, make_setup

# N tokens and, maybe, the end, T steps or frames, V vocabulary, F frequencies, S samples

# Beside the fonts that Matplotlib brings, for scripts that these lack; those not installed are left out.
FONTS = {f"Noto Sans {name}" for name in ("CJK SC", "CJK JP", "CJK KR", "Devanagari", "Arabic")}
GREY = "#595959"
POINTS = 72  # to an inch
END = "(end)"  # name of the row that says the end
RANGE_DB = 60.0  # of the spectrogram below its loudest point
WINDOW_SECONDS, SHIFT_SECONDS = 0.025, 0.01  # of the spectrogram
POSTERIOR_SHOWN = 0.1  # tokens that CTC never finds likelier have no row
MAX_POSTERIORS = 70  # rows


@dataclass(frozen=True)
class View:
    """Layer, head or posteriors to show."""

    layer: int = -1
    """Number of a layer that attends, from 0; -1 is the last one."""
    head: int | None = None
    """Counted from 0; None: the mean of all."""
    ctc: bool = False
    """The posteriors of the CTC head in place of attention."""


def require_recognizer(transcriber: Transcriber) -> Recognizer:
    if not isinstance(transcriber, Recognizer):
        raise UserError("attention can be drawn of models that were trained here, and this one was not")
    return transcriber


def choose_view(model: SpeechModel) -> View:
    """The mean of the last layer's heads; of a model without a decoder, the posteriors of its CTC head."""
    return View(ctc=model.decoder is None)


def check_view(model: SpeechModel, view: View, path: Path) -> None:
    """Refuse what the model does not have, and files that are no PNG."""
    if path.suffix.lower() != ".png":
        raise UserError(f"{path}: pictures are written as PNG; give a name that ends in .png")
    decoder = model.decoder
    if view.ctc:
        if model.ctc_head is None:
            raise UserError("this model has no CTC head to draw; draw its attention")
    elif decoder is None or decoder.num_heads == 0:
        other = "; --ctc of tools/plot_attention.py draws its CTC head" if model.ctc_head is not None else ""
        raise UserError(f"this model has no attention to draw{other}")
    elif not -decoder.num_layers <= view.layer < decoder.num_layers:
        raise UserError(f"layer {view.layer}: the last layer is {decoder.num_layers - 1}, and the first 0")
    elif view.head is not None and not 0 <= view.head < decoder.num_heads:
        raise UserError(f"head {view.head}: the last head is {decoder.num_heads - 1}, and the first 0")


def check_drawing(transcriber: Transcriber, path: Path) -> None:
    """Refuse, before anything is decoded, what `draw_recording` could not draw or write."""
    model = require_recognizer(transcriber).model
    check_view(model, choose_view(model), path)


# --- a recording --------------------------------------------------------------------------------


def draw_recording(
    transcriber: Transcriber, audio: AudioFile, path: Path, request: Request, view: View | None = None
) -> list[Path]:
    """Draw each segment with the decoded text: `path`, or where there are several PATH-001.png and so on."""
    recording, recognizer = make_recording(audio), require_recognizer(transcriber)
    view = view or choose_view(recognizer.model)
    check_view(recognizer.model, view, path)
    segments = _read_segments(recognizer, recording)
    first_two = list(itertools.islice(segments, 2))
    written = []
    for number, segment in enumerate(itertools.chain(first_two, segments), start=1):
        encoded = recognizer.decoder.encode([segment.audio_S])
        (decoded,) = recognizer.decoder.decode(encoded, make_setup(request))
        if decoded.tokens:
            own = path if len(first_two) == 1 else path.with_stem(f"{path.stem}-{number:03d}")
            _draw_segment(own, recognizer, segment, encoded, list(decoded.tokens), view)
            written.append(own)
    if not written:
        raise UserError(f"{recording.path}: no text is decoded in it, so there is nothing to draw")
    return written


def draw_text(recognizer: Recognizer, audio: AudioFile, path: Path, text: str, view: View) -> None:
    """The whole recording, uncut, with a given text in place of what would be decoded."""
    recording, rate = make_recording(audio), recognizer.sample_rate
    check_view(recognizer.model, view, path)
    tokens = recognizer.system.tokenizer.encode(normalize_for_training(text, recognizer.system.config.text))
    if not tokens:
        raise UserError(f"text {text!r}: nothing is left of it by the rules of text.training")
    audio_S = np.concatenate([np.zeros(0, np.float32), *read_recording(recording, rate)])
    if recognizer.decoder.front_end.num_frames(len(audio_S)) == 0:
        raise UserError(f"{recording.path}: too short for a single frame; there is nothing to draw")
    segment = AudioSegment(recording.start, audio_S, rate)
    _draw_segment(path, recognizer, segment, recognizer.decoder.encode([audio_S]), tokens, view)


def _read_segments(recognizer: Recognizer, recording: Recording) -> Iterator[AudioSegment]:
    segmenter = recognizer.make_segmenter(recording)
    for block in read_recording(recording, recognizer.sample_rate):
        yield from segmenter.push(block)
    yield from segmenter.finish()


def _draw_segment(
    path: Path,
    recognizer: Recognizer,
    segment: AudioSegment,
    encoded: EncodedAudio,
    tokens: Sequence[int],
    view: View,
) -> None:
    tokenizer, words = recognizer.system.tokenizer, dict[int, str]()
    if view.ctc:
        values_NT, names = _posteriors(encoded, tokenizer)
        subtitle, kind = "posteriors of the CTC head", "probability"
    else:
        values_NT, subtitle = _attention(recognizer.model, encoded, tokens, view)
        names, kind = [*(tokenizer.tokens[id] for id in tokens), END][: len(values_NT)], "attention"
        words = {span.first: span.text for span in split_words(tokenizer, tokens)}
    clock = Clock(segment.start + recognizer.clock.first, recognizer.clock.seconds_per_step)
    title = tokenizer.decode(tokens)
    draw(path, segment, values_NT, clock, names, words, title=title, subtitle=subtitle, kind=kind)


@torch.inference_mode()
def _attention(
    model: SpeechModel, encoded: EncodedAudio, tokens: Sequence[int], view: View
) -> tuple[np.ndarray, str]:
    """Attention (N, T), and what it is in words."""
    decoder, device = model.decoder, encoded.encoded_BTD.device
    assert isinstance(decoder, AnyDecoder)
    layer = view.layer % decoder.num_layers
    heads = tuple(range(decoder.num_heads)) if view.head is None else (view.head,)
    targets = Targets(torch.tensor([list(tokens)], device=device), torch.tensor([len(tokens)], device=device))
    # Without autocast, as there is one pass: the weights of models are float32 whatever decoding computes in.
    encoded_BTD = encoded.encoded_BTD.float()
    _, weights = model.score_reference(targets, (encoded_BTD, encoded.lengths_B), {layer: heads})
    weights_NT = weights[layer][0].float().mean(0)[:, : int(encoded.lengths_B[0])]
    which = f"mean of {decoder.num_heads} heads" if view.head is None else f"head {view.head}"
    parts = [f"layer {layer}"] * (decoder.num_layers > 1) + [which] * (decoder.num_heads > 1)
    return weights_NT.cpu().numpy(), ", ".join(["cross-attention", *parts])


def _posteriors(encoded: EncodedAudio, tokenizer: Tokenizer) -> tuple[np.ndarray, list[str]]:
    """Posteriors of the tokens that are likely at some step, the earliest on top, and of the blank below."""
    posteriors_VT = encoded.ctc_BTV[0, : int(encoded.lengths_B[0])].exp().T.cpu().numpy()
    likely = np.argsort(-posteriors_VT.max(1), kind="stable")[:MAX_POSTERIORS]
    likely = likely[posteriors_VT[likely].max(1) >= POSTERIOR_SHOWN]
    begins = (posteriors_VT[likely] >= POSTERIOR_SHOWN).argmax(1)
    ordered = likely[np.argsort(begins, kind="stable")]
    shown = [*(token for token in ordered.tolist() if token != BLANK_ID), BLANK_ID]
    return posteriors_VT[shown], [tokenizer.tokens[token] for token in shown]


# --- drawing ------------------------------------------------------------------------------------


def draw(
    path: Path,
    audio: AudioSegment,
    values_NT: np.ndarray,
    clock: Clock,
    names: Sequence[str],
    words: dict[int, str],
    *,
    title: str,
    subtitle: str,
    kind: str,
) -> None:
    """Write a PNG of rows over time, above a spectrogram. Needs no display.

    `words` are shown at the row of their first token if there is no room for all names.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.font_manager import get_font_names

    begin, end = clock.time(-0.5), clock.time(values_NT.shape[1] - 0.5)
    width = float(np.clip(5 + 0.8 * (end - begin), 8, 14))
    height = float(np.clip(0.17 * len(names), 1.2, 9))
    lines = textwrap.wrap(title, round(11 * width), max_lines=3, placeholder=" …")
    families = ["DejaVu Sans", *sorted(FONTS & set(get_font_names()))]
    with rc_context({"font.family": families, "font.size": LABEL_SIZE, "text.parse_math": False}):
        figure = Figure(figsize=(width, height + 1.9 + 0.2 * len(lines)), layout="constrained")
        upper, lower = figure.subplots(
            2, 1, sharex=True, height_ratios=[height, 1.1], subplot_kw={"facecolor": "black"}
        )
        upper.set_title("\n".join(lines), fontsize=11, loc="left", pad=2 * LABEL_SIZE + 2)
        place = {"xytext": (0, LABEL_SIZE / 2), "textcoords": "offset points"}
        upper.annotate(subtitle, (0, 1), xycoords="axes fraction", **place, color=GREY)
        most = 1.0 if kind == "probability" else max(float(values_NT.max(initial=0)), 1e-6)
        style = {"aspect": "auto", "interpolation": "nearest", "cmap": "magma"}
        extent = (begin, end, len(names) - 0.5, -0.5)
        image = upper.imshow(values_NT, **style, extent=extent, vmin=0, vmax=most)
        labels = choose_labels(names, words, max(1, int(POINTS * height / (LABEL_SIZE + 1))))
        upper.set_yticks(list(labels), list(labels.values()))
        upper.hlines(list(labels), begin, end, color="white", alpha=0.1, linewidth=0.5)
        upper.tick_params(axis="y", length=0)
        upper.set_ylabel("token", color=GREY)
        figure.colorbar(image, ax=upper, pad=0.01, fraction=0.03, aspect=9 * height, label=kind)
        levels_FT, edges = compute_spectrogram(audio)
        lower.imshow(levels_FT, **style, origin="lower", extent=(*edges, 0, audio.sample_rate / 2000))
        lower.set_ylabel("kHz", color=GREY)
        lower.set_xlabel("seconds", color=GREY)
        lower.set_xlim(min(begin, edges[0]), max(end, edges[1]))
        with replace_file(path) as file:
            figure.savefig(file, format="png", dpi=DPI)


def choose_labels(names: Sequence[str], words: dict[int, str], most: int) -> dict[int, str]:
    """Row to label, at most so many: each token, else each word at its first token, else some of them."""
    shown = {row: name.replace(" ", "␣") for row, name in enumerate(names)}
    if len(shown) > most and len(words) > 1:
        shown = words | {row: name for row, name in shown.items() if name == END}
    every = -(-len(shown) // most)
    return dict(list(shown.items())[::every]) if shown else {}


def compute_spectrogram(audio: AudioSegment) -> tuple[np.ndarray, tuple[float, float]]:
    """Levels in dB (F, T), the lowest frequency first, and when the first frame begins and the last ends."""
    window, shift = (round(seconds * audio.sample_rate) for seconds in (WINDOW_SECONDS, SHIFT_SECONDS))
    audio_S = np.pad(audio.audio_S, (0, max(0, window - len(audio.audio_S))))
    frames_TS = np.lib.stride_tricks.sliding_window_view(audio_S, window)[::shift] * np.hanning(window)
    levels_TF = 20 * np.log10(np.abs(np.fft.rfft(frames_TS)) + 1e-10)
    first = audio.start + (window - shift) / 2 / audio.sample_rate
    edges = first, first + len(levels_TF) * shift / audio.sample_rate
    return np.maximum(levels_TF, levels_TF.max() - RANGE_DB).T, edges
