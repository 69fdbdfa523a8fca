"""Times of the words of a manifest, by alignment of their texts under a CTC head or by cross-attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from asr.batches.builder import needed_frames
from asr.data.manifest import Utterance
from asr.decoding.decode import pad_audio
from asr.decoding.timestamps import align_by_attention, align_by_ctc, split_words, time_words
from asr.errors import UserError
from asr.evaluation.speech import ReadAudio, decode_split
from asr.models.encoders import make_frame_times
from asr.system.run_config import System
from asr.text.normalization import normalize

# B utterances of a batch, T encoded steps, V vocabulary


@torch.inference_mode()
def align_utterances(
    system: System,
    utterances: Sequence[Utterance],
    *,
    device: torch.device,
    by: Literal["ctc", "attention"] = "ctc",
    batch_size: int = 8,
    report: Callable[[float], None] = lambda seconds: None,
) -> tuple[dict[str, str], dict[str, str]]:
    """id to times, as "TWO:0.1060-0.4364 SIX:...", and id to message of what could not be aligned.

    By the CTC head, or by the cross-attention of the decoder's last layer. Words are spelled as in training.
    Those without a token, texts too long for their audio, and audio too long for the model are faults.
    """
    model, front_end = system.model.to(device).eval(), system.front_end.to(device)
    if by == "ctc" and model.ctc_head is None:
        raise UserError("alignment needs a CTC head, and this model has none; align by attention")
    if by == "attention" and (model.decoder is None or model.decoder.num_heads == 0):
        raise UserError("alignment by attention needs a decoder that attends, and this model has none")
    frame_times, rate = make_frame_times(system.config.features, model.encoder), front_end.config.sample_rate
    times: dict[str, str] = {}
    faults: dict[str, str] = {}

    def align(batch: Sequence[ReadAudio]) -> None:
        texts = [_encode(system, item, front_end.num_frames(len(audio))) for item, audio in batch]
        encoded = model.encode(*front_end(*pad_audio([audio for _, audio in batch], device)))
        if by == "ctc":
            aligned = align_by_ctc(model.ctc_log_probabilities(encoded[0]), encoded[1], texts)
        else:
            aligned = align_by_attention(model, *encoded, texts)
        for (item, audio), tokens, token_times in zip(batch, texts, aligned, strict=True):
            words = time_words(split_words(system.tokenizer, tokens), token_times, frame_times, audio, rate)
            times[item.id] = " ".join(f"{word.text}:{word.start:.4f}-{word.end:.4f}" for word in words)

    decode_split(utterances, rate, batch_size, align, faults, report)
    return times, faults


def _encode(system: System, utterance: Utterance, num_frames: int) -> list[int]:
    """Encode the text of an utterance, for which its audio must have enough steps."""
    tokenizer = system.tokenizer
    text = normalize(utterance.text or "", system.config.text.training)
    if unknown := tokenizer.find_unknown(text):
        raise UserError(f"the model has no token for {unknown[0]!r} in its text")
    tokens = tokenizer.encode(text)
    num_steps, needed = -(-num_frames // system.model.subsampling_factor), needed_frames(tokens)
    if num_steps < needed:
        raise UserError(
            f"its audio has {num_steps} encoded steps, but its {len(tokens)} tokens need {needed}; "
            "is the text that of the audio?"
        )
    return tokens
