"""Compute the times of a manifest's words, by CTC alignment or from cross-attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from asr.audio.segmentation import AudioSegment
from asr.batches.builder import needed_frames
from asr.data.manifest import Utterance
from asr.decoding.decode import DecodingSetup
from asr.decoding.hypothesis import DecodingConfig
from asr.errors import UserError
from asr.evaluation.speech import ReadAudio, decode_split
from asr.transcription.transcribe import Recognizer


@torch.inference_mode()
def align_utterances(
    recognizer: Recognizer,
    utterances: Sequence[Utterance],
    *,
    by: Literal["ctc", "attention"] | None = None,
    batch_size: int = 8,
    report: Callable[[float], None] = lambda seconds: None,
) -> tuple[dict[str, str], dict[str, str]]:
    """Return ID to word times, such as "TWO:0.1060-0.4364 SIX:...", and ID to the message of each failure.

    `by` defaults to the CTC head if there is one, else to cross-attention. Words are spelled as in training.
    Words without a token, texts too long for their audio, and audio too long for the model are failures.
    """
    decoder, model = recognizer.decoder, recognizer.model
    if by == "ctc" and model.ctc_head is None:
        raise UserError("alignment with CTC needs a CTC head, and this model has none; use attention")
    if by == "attention" and (model.decoder is None or model.decoder.num_heads == 0):
        raise UserError("alignment with attention needs a decoder with attention, and this model has none")
    setup, rate = DecodingSetup(DecodingConfig()), recognizer.sample_rate
    times: dict[str, str] = {}
    problems: dict[str, str] = {}

    def align(batch: Sequence[ReadAudio]) -> None:
        audio = [audio_S for _, audio_S in batch]
        texts = [_encode(recognizer, item.text or "", len(audio_S)) for item, audio_S in batch]
        segments = [AudioSegment(0.0, audio_S, rate) for audio_S in audio]
        encoded = decoder.introduce(decoder.encode(audio), segments, setup)
        timed = decoder.time_words(encoded, audio, texts, setup, None if by is None else by == "ctc")
        for (item, _), words in zip(batch, timed, strict=True):
            times[item.id] = " ".join(f"{word.text}:{word.start:.4f}-{word.end:.4f}" for word in words)

    decode_split(utterances, rate, batch_size, align, problems, report, recognizer.decoder.padded_length)
    return times, problems


def _encode(recognizer: Recognizer, text: str, num_samples: int) -> list[int]:
    """Encode a text; raise an error if its audio has too few steps for the tokens."""
    tokens, num_frames = recognizer.decoder.write(text), recognizer.decoder.front_end.num_frames(num_samples)
    num_steps, needed = -(-num_frames // recognizer.model.subsampling_factor), needed_frames(tokens)
    if num_steps < needed:
        raise UserError(
            f"its audio has {num_steps} encoded steps, but its {len(tokens)} tokens need {needed}; "
            "does the text belong to this audio?"
        )
    return tokens
