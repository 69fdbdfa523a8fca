"""Pictures of a recording: cross-attention for each token, or posteriors of CTC."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from asr.audio.segmentation import AudioSegment
from asr.audio.sources import AudioFile, Recording, make_recording, read_recording
from asr.decoding.hypothesis import EncodedAudio
from asr.errors import UserError
from asr.evaluation.plots import END, Picture, Strip, draw
from asr.features.front_end import FeaturesConfig, FrontEnd, compute_kaldi_filters
from asr.models.decoders import AnyDecoder, WeightsOf
from asr.models.encoders import make_frame_clock
from asr.models.losses import Targets
from asr.models.speech_model import SpeechModel
from asr.text.normalization import normalize_for_training
from asr.text.tokenizer import Tokenizer
from asr.text.units import BLANK_ID
from asr.transcription.transcribe import Recognizer, Request, Transcriber, make_setup

# N tokens and, maybe, the end, T steps or frames, H heads, V vocabulary, M mel bands

RANGE_DB = 60.0  # of the spectrogram below its loudest point
POSTERIOR_SHOWN = 0.1  # tokens that CTC never finds likelier have no row
MAX_POSTERIORS = 70  # rows
FREQUENCIES_HZ = (500, 1_000, 2_000, 4_000, 8_000)


@dataclass(frozen=True)
class View:
    """Layer, head or posteriors to show."""

    layer: int = -1
    """Of those that attend, counted from 0; -1 is the last one."""
    head: int | None = None
    """Counted from 0; None: the mean of all."""
    ctc: bool = False
    """The posteriors of the CTC head in place of attention."""


def require_recognizer(transcriber: Transcriber) -> Recognizer:
    if not isinstance(transcriber, Recognizer):
        raise UserError("attention can be drawn of models that were trained here, and this one was not")
    return transcriber


def require_png(path: Path) -> None:
    if path.suffix.lower() != ".png":
        raise UserError(f"{path}: pictures are written as PNG; give a name that ends in .png")


def choose_view(model: SpeechModel) -> View:
    """The mean of the last layer's heads; of a model without a decoder, the posteriors of its CTC head."""
    view = View(ctc=model.decoder is None)
    check_view(model, view)
    return view


def check_view(model: SpeechModel, view: View) -> None:
    """Refuse what the model does not have."""
    if view.ctc:
        if model.ctc_head is None:
            raise UserError("there is no CTC head to draw in this model; draw its attention")
        return
    instead = (
        ""
        if model.ctc_head is None
        else "; tools/plot_attention.py --ctc draws the posteriors of its CTC head"
    )
    decoder = model.decoder
    if decoder is None:
        raise UserError(f"there is no attention to draw: this model has no decoder{instead}")
    if decoder.num_heads == 0:
        kind = model.config.decoder.type if model.config.decoder else ""
        raise UserError(f"there is no attention to draw: a decoder of type {kind} has none{instead}")
    if not -decoder.num_layers <= view.layer < decoder.num_layers:
        raise UserError(
            f"layer {view.layer}: expected {_range(decoder.num_layers)}, or -1 for the last; so many layers "
            "of this decoder attend"
        )
    if view.head is not None and not 0 <= view.head < decoder.num_heads:
        raise UserError(f"head {view.head}: expected {_range(decoder.num_heads)}; each layer has so many")


def _range(count: int) -> str:
    return "0" if count == 1 else f"0 to {count - 1}"


def check_drawing(transcriber: Transcriber, path: Path) -> None:
    """Refuse, before anything is decoded, what `draw_recording` could not draw or write."""
    require_png(path)
    choose_view(require_recognizer(transcriber).model)


# --- a recording --------------------------------------------------------------------------------


def draw_recording(
    transcriber: Transcriber, audio: AudioFile, path: Path, request: Request, view: View | None = None
) -> list[Path]:
    """Draw each segment with the decoded text: `path`, or where there are several PATH-001.png and so on."""
    recording = make_recording(audio)
    recognizer = require_recognizer(transcriber)
    view = view or choose_view(recognizer.model)
    check_view(recognizer.model, view)
    segments = _read_segments(recognizer, recording)
    first_two = list(itertools.islice(segments, 2))
    written = []
    for number, segment in enumerate(itertools.chain(first_two, segments), start=1):
        encoded = recognizer.decoder.encode([segment.audio_S])
        (decoded,) = recognizer.decoder.decode(encoded, make_setup(request))
        if decoded.tokens:
            own = path if len(first_two) == 1 else path.with_stem(f"{path.stem}-{number:03d}")
            draw(own, _compose(recognizer, segment, encoded, list(decoded.tokens), view))
            written.append(own)
    if not written:
        raise UserError(f"{recording.path}: no text is decoded in it, so there is nothing to draw")
    return written


def draw_text(recognizer: Recognizer, audio: AudioFile, path: Path, text: str, view: View) -> None:
    """The whole recording, uncut, with a given text in place of what would be decoded."""
    recording = make_recording(audio)
    check_view(recognizer.model, view)
    tokenizer, config = recognizer.system.tokenizer, recognizer.system.config
    tokens = tokenizer.encode(normalize_for_training(text, config.text))
    if not tokens:
        raise UserError(
            f"text {text!r}: nothing is left of it by the rules of text.training; give a longer one"
        )
    blocks = list(read_recording(recording, config.features.sample_rate))
    audio_S = np.concatenate(blocks) if blocks else np.zeros(0, np.float32)
    segment = AudioSegment(recording.start, audio_S, config.features.sample_rate)
    if recognizer.decoder.front_end.num_frames(len(audio_S)) == 0:
        raise UserError(f"{recording.path}: too short for a single frame; there is nothing to draw")
    draw(path, _compose(recognizer, segment, recognizer.decoder.encode([audio_S]), tokens, view))


def _read_segments(recognizer: Recognizer, recording: Recording) -> Iterator[AudioSegment]:
    segmenter = recognizer.make_segmenter(recording)
    for block in read_recording(recording, recognizer.sample_rate):
        yield from segmenter.push(block)
    yield from segmenter.finish()


# --- a segment ----------------------------------------------------------------------------------


def _compose(
    recognizer: Recognizer, segment: AudioSegment, encoded: EncodedAudio, tokens: Sequence[int], view: View
) -> Picture:
    tokenizer, clock = recognizer.system.tokenizer, recognizer.clock
    if view.ctc:
        values_NT, names = _posteriors(encoded, tokenizer)
        values, most = "probability", 1.0
        subtitle = "posteriors of the CTC head"
    else:
        values_NT, names = _attention(recognizer.model, encoded, tokens, tokenizer, view)
        values, most = "attention", None
        subtitle = _describe(recognizer.model, view)
    spectrogram, frequencies = compute_spectrogram(segment, recognizer.system.config.features)
    return Picture(
        rows=Strip(values_NT, segment.start + clock.first, clock.seconds_per_step),
        names=names,
        spectrogram=spectrogram,
        title=tokenizer.decode(tokens),
        subtitle=subtitle,
        values=values,
        most=most,
        frequencies=frequencies,
    )


def _describe(model: SpeechModel, view: View) -> str:
    decoder = model.decoder
    assert decoder is not None and model.config.decoder is not None
    heads = f"mean of {decoder.num_heads} heads" if view.head is None else f"head {view.head}"
    layer = view.layer % decoder.num_layers
    parts = [f"layer {layer}"] * (decoder.num_layers > 1) + [heads] * (decoder.num_heads > 1)
    return ", ".join(["cross-attention", *parts])


@torch.inference_mode()
def _attention(
    model: SpeechModel, encoded: EncodedAudio, tokens: Sequence[int], tokenizer: Tokenizer, view: View
) -> tuple[np.ndarray, list[str]]:
    decoder, device = model.decoder, encoded.encoded_BTD.device
    assert isinstance(decoder, AnyDecoder)
    layer = view.layer % decoder.num_layers
    heads = tuple(range(decoder.num_heads)) if view.head is None else (view.head,)
    weights_of: WeightsOf = {layer: heads}
    targets = Targets(torch.tensor([list(tokens)], device=device), torch.tensor([len(tokens)], device=device))
    # Without autocast, as there is one pass: the weights of models are float32 whatever decoding computes in.
    encoded_BTD = encoded.encoded_BTD.float()
    _, weights = model.score_reference(targets, (encoded_BTD, encoded.lengths_B), weights_of)
    weights_NT = weights[layer][0].float().mean(0)[:, : int(encoded.lengths_B[0])]
    names = [tokenizer.tokens[token] for token in tokens]
    return weights_NT.cpu().numpy(), [*names, END][: len(weights_NT)]


def _posteriors(encoded: EncodedAudio, tokenizer: Tokenizer) -> tuple[np.ndarray, list[str]]:
    """Posteriors of the tokens that are likely at some step, the earliest on top, and of the blank below."""
    posteriors_VT = encoded.ctc_BTV[0, : int(encoded.lengths_B[0])].exp().T.cpu().numpy()
    likely = np.argsort(-posteriors_VT.max(1), kind="stable")[:MAX_POSTERIORS]
    likely = likely[posteriors_VT[likely].max(1) >= POSTERIOR_SHOWN]
    begins = (posteriors_VT[likely] >= POSTERIOR_SHOWN).argmax(1)
    ordered = likely[np.argsort(begins, kind="stable")]
    shown = [*(token for token in ordered.tolist() if token != BLANK_ID), BLANK_ID]
    return posteriors_VT[shown], [tokenizer.tokens[token] for token in shown]


def compute_spectrogram(
    segment: AudioSegment, features: FeaturesConfig
) -> tuple[Strip, list[tuple[float, str]]]:
    """log-mel in dB, whatever features the model has, on its frames; and where some frequencies are."""
    config = FeaturesConfig(
        sample_rate=features.sample_rate,
        window_ms=features.window_ms,
        shift_ms=features.shift_ms,
        num_mels=min(features.num_mels, 80),
        low_hz=features.low_hz,
        high_hz=features.high_hz,
        cmvn="none",
    )
    audio_BS = torch.from_numpy(segment.audio_S)[None]
    log_mel_BTM, _ = FrontEnd(config)(audio_BS, torch.tensor([audio_BS.size(1)]))
    decibels_MT = 10 / np.log(10) * log_mel_BTM[0].T.numpy()
    decibels_MT = np.maximum(decibels_MT, decibels_MT.max(initial=-np.inf) - RANGE_DB)
    clock = make_frame_clock(config)
    inside = np.array([hz for hz in FREQUENCIES_HZ if config.low_hz < hz < config.upper_hz], dtype=float)
    # Between two centres the triangles of both add up to 1, so that they say how far it is to each.
    shares_KM = compute_kaldi_filters(inside, config.low_hz, config.upper_hz, config.num_mels)
    rows_K = shares_KM @ np.arange(config.num_mels) / shares_KM.sum(1)
    names = [f"{hz / 1000:g} kHz" if hz >= 1000 else f"{hz:g} Hz" for hz in inside]
    strip = Strip(decibels_MT, segment.start + clock.first, clock.seconds_per_step)
    return strip, list(zip(rows_K.tolist(), names, strict=True))
