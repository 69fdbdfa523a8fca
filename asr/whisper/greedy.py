"""The likeliest token after those before, for windows of 30 seconds: audio in, text out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from asr.errors import UserError
from asr.models.whisper import FRAMES_PER_STEP, Whisper
from asr.whisper.loading import WhisperSystem
from asr.whisper.tokenizer import Task, WhisperTokenizer

# B batch, S samples, T steps, D dimension, U tokens, V vocabulary


@torch.inference_mode()
def transcribe_windows(
    system: WhisperSystem,
    audio_BS: Tensor,
    audio_lengths_B: Tensor,
    language: str | None = None,
    task: Task = "transcribe",
) -> list[str]:
    """The text of each recording of at most 30 seconds. All are in one language."""
    encoded = system.model.encode(*compute_window_features(system, audio_BS, audio_lengths_B))
    prompt = system.tokenizer.prompt(language, task)
    tokens = decode_windows(system.model, system.tokenizer, *encoded, prompt)
    return [system.tokenizer.decode(row).strip() for row in tokens]


def compute_window_features(
    system: WhisperSystem, audio_BS: Tensor, audio_lengths_B: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-mel of the audio with silence behind it, up to the 30 seconds that Whisper was trained on."""
    config = system.front_end.config
    window = system.config.max_steps * FRAMES_PER_STEP * config.shift_samples
    longest = int(audio_lengths_B.max()) if len(audio_lengths_B) else 0
    if longest > window:
        raise UserError(
            f"{longest / config.sample_rate:.2f} seconds of audio; one window has at most "
            f"{window / config.sample_rate:g}, cut longer recordings"
        )
    audio_BS = audio_BS[:, :longest]
    is_audio_BS = torch.arange(longest, device=audio_BS.device) < audio_lengths_B[:, None]
    padded_BS = F.pad(audio_BS * is_audio_BS, (0, window - longest))
    return system.front_end(padded_BS, torch.full_like(audio_lengths_B, window))


@torch.inference_mode()
def decode_windows(
    model: Whisper,
    tokenizer: WhisperTokenizer,
    encoded_BTD: Tensor,
    encoded_lengths_B: Tensor,
    prompt: Sequence[int],
) -> list[list[int]]:
    """Tokens after the prompt, without the end."""
    device = encoded_BTD.device
    limit = model.config.max_tokens // 2  # Whisper's own: the other half is for a prompt
    state = model.decoder.start(encoded_BTD, encoded_lengths_B)
    tokens_BU = torch.tensor(prompt, device=device).expand(len(encoded_BTD), -1)
    never = torch.tensor(tokenizer.suppressed, device=device)
    not_first = torch.tensor([*tokenizer.encode(" "), tokenizer.end], device=device)
    is_done_B = torch.zeros(len(encoded_BTD), dtype=torch.bool, device=device)
    decoded: list[Tensor] = []
    while len(decoded) < limit and not bool(is_done_B.all()):
        scores_BUV, _ = model.decoder.step(tokens_BU, state)
        scores_BV = scores_BUV[:, -1].index_fill(1, never, -torch.inf)
        if not decoded:
            scores_BV.index_fill_(1, not_first, -torch.inf)
        best_B = scores_BV.argmax(-1).masked_fill(is_done_B, tokenizer.end)
        is_done_B = is_done_B | (best_B == tokenizer.end)
        decoded.append(best_B)
        tokens_BU = best_B[:, None]
    if not decoded:
        return []
    rows = torch.stack(decoded, dim=1).tolist()
    return [[token for token in row if token != tokenizer.end] for row in rows]
