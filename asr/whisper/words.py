"""Form words from decoded tokens, and compute their times by warping attention."""

from __future__ import annotations

import bisect
import codecs
import itertools
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asr.decoding.greedy import start_decoder
from asr.decoding.hypothesis import EncodedAudio
from asr.decoding.timestamps import warp_batch
from asr.decoding.word_spans import average
from asr.models.decoders import WeightsOf
from asr.text.tokenizer import EOS_ID
from asr.transcripts.transcript import Word
from asr.whisper.language_names import WITHOUT_SPACES
from asr.whisper.sizes import SECONDS_PER_STEP, WhisperSizes
from asr.whisper.whisper_tokenizer import NUM_RESERVED

# B utterances, H heads, P tokens of the prompt, N tokens and the end, T encoded steps, V vocabulary

MEDIAN_STEPS = 7  # width of the median filter over attention, in steps
ROWS_AT_ONCE = 2  # texts at once on a CPU, to save the memory of all keys and values
SCORED_AT_ONCE = 16  # tokens of each text scored at once

# Layers and heads that OpenAI found to follow the words, keyed by decoder layers, width, mel bands and
# whether multilingual. Large-v1 and large-v2 have the same sizes; these are large-v2's.
_HEADS: dict[tuple[int, int, int, bool], str] = {
    (4, 384, 80, False): "1.0 2.0 2.5 3.0 3.1 3.2 3.3 3.4",  # tiny.en
    (4, 384, 80, True): "2.2 3.0 3.2 3.3 3.4 3.5",  # tiny
    (6, 512, 80, False): "3.3 4.7 5.1 5.5 5.7",  # base.en
    (6, 512, 80, True): "3.1 4.2 4.3 4.7 5.1 5.2 5.4 5.6",  # base
    (12, 768, 80, False): "6.6 7.0 7.3 7.8 8.2 8.5 8.7 9.0 9.4 9.8 9.10 10.0 10.1 10.2 10.3 10.6 10.11 11.2 "
    "11.4",  # small.en
    (12, 768, 80, True): "5.3 5.9 8.0 8.4 8.7 8.8 9.0 9.7 9.9 10.5",  # small
    (24, 1024, 80, False): "11.4 14.1 14.12 14.14 15.4 16.0 16.4 16.9 17.12 17.14 18.7 18.10 18.15 20.0 20.3 "
    "20.9 20.14 21.12",  # medium.en
    (24, 1024, 80, True): "13.15 15.4 15.15 16.1 20.0 23.4",  # medium
    (4, 1280, 128, True): "2.4 2.11 3.3 3.6 3.11 3.14",  # turbo
    (32, 1280, 80, True): "10.12 13.17 16.11 16.12 16.13 17.15 17.16 18.4 18.11 18.19 19.11 21.2 21.3 22.3 "
    "22.9 22.12 23.5 23.7 23.13 25.5 26.1 26.12 27.15",  # large-v2
    (32, 1280, 128, True): "7.0 10.17 12.18 13.12 16.1 17.14 19.11 21.4 24.1 25.6",  # large-v3
}


def find_alignment_heads(sizes: WhisperSizes) -> WeightsOf:
    """Return the checkpoint's alignment heads, else OpenAI's for these sizes, else the upper half."""
    pairs = sizes.alignment_heads
    if pairs is None:
        key = (sizes.decoder_layers, sizes.dim, sizes.num_mels, sizes.is_multilingual)
        pairs = tuple(
            (int(layer), int(head)) for layer, head in re.findall(r"(\d+)\.(\d+)", _HEADS.get(key, ""))
        )
    if not pairs:
        layers = range(sizes.decoder_layers // 2, sizes.decoder_layers)
        pairs = tuple(itertools.product(layers, range(sizes.decoder_heads)))
    heads: dict[int, tuple[int, ...]] = {}
    for layer, head in sorted(pairs):
        heads[layer] = (*heads.get(layer, ()), head)
    return heads


# --- times of tokens --------------------------------------------------------------------------------


@torch.inference_mode()
def align_tokens(
    encoded: EncodedAudio,
    heads: WeightsOf,
    past_text: int,
    num_steps: Sequence[int],
    prompts: Sequence[Sequence[int]],
    tokens: Sequence[Sequence[int]],
) -> tuple[list[list[int]], list[list[float]]]:
    """Return the first step of each text token and of the end, and the tokens' probabilities.

    `num_steps` of each window are audio, followed by silence. The prompts have equal lengths and no times.
    IDs from `past_text` on are not text.
    """
    model: Any = encoded.model
    device, counts = encoded.lengths_B.device, [len(ids) for ids in tokens]
    prompt_length, longest = len(prompts[0]), max(counts)
    rows = [
        [*prompt, *ids, *([EOS_ID] * (longest - len(ids) + 1))]
        for prompt, ids in zip(prompts, tokens, strict=True)
    ]
    first = prompt_length - 1  # the last token of the prompt predicts the first token
    costs, probabilities = [], []
    texts = slice(NUM_RESERVED, past_text)
    at_once = ROWS_AT_ONCE if device.type == "cpu" else len(rows)
    for start in range(0, len(rows), at_once):
        part = range(start, min(len(rows), start + at_once))
        inputs_BU = torch.tensor([rows[row] for row in part], device=device)
        state: Any = start_decoder(encoded.select(torch.tensor(part, device=device)))
        state.disable_cache()
        x_BUD, weights = model.decoder.attend(inputs_BU, state, heads)
        own_BU1 = (inputs_BU[:, prompt_length:, None] - NUM_RESERVED).clamp(min=0)  # the end's is never read
        scored_of = x_BUD[:, first:-1], own_BU1
        scored = [  # a few tokens at once, because each has a score for the whole vocabulary
            (scores_BMV.gather(2, own_BM1) - scores_BMV.logsumexp(-1, keepdim=True)).exp()[..., 0]
            for x_BMD, own_BM1 in zip(*(both.split(SCORED_AT_ONCE, 1) for both in scored_of), strict=True)
            for scores_BMV in [model.decoder.output(x_BMD)[..., texts].float()]
        ]
        weights_BHUT, scored_BN = torch.cat(list(weights.values()), dim=1), torch.cat(scored, dim=1).tolist()
        for row, weights_HUT, scored_N in zip(part, weights_BHUT, scored_BN, strict=True):
            own_HUT = weights_HUT[:, : prompt_length + counts[row] + 1, : max(1, num_steps[row])]
            costs.append(-_focus(own_HUT)[first:-1])
            probabilities.append(scored_N[: counts[row]])
    return warp_batch(costs, may_share=True), probabilities


def _focus(weights_HUT: Tensor) -> np.ndarray:
    """Return how much more a token attends to a step than others do (U, T): smoothed, mean over heads."""
    weights_HUT = weights_HUT / weights_HUT.sum(-1, keepdim=True)  # over the steps with audio
    deviation_H1T, mean_H1T = torch.std_mean(weights_HUT, dim=1, keepdim=True, correction=0)
    scaled_HUT = ((weights_HUT - mean_H1T) / deviation_H1T.clamp(min=1e-12)).cpu().numpy()
    reach = MEDIAN_STEPS // 2
    if scaled_HUT.shape[2] > reach:
        mirrored_HUT = np.pad(scaled_HUT, [(0, 0), (0, 0), (reach, reach)], mode="reflect")
        near_HUTM = np.lib.stride_tricks.sliding_window_view(mirrored_HUT, MEDIAN_STEPS, axis=-1)
        scaled_HUT = np.partition(near_HUTM, reach, axis=-1)[..., reach]  # three times as fast as PyTorch's
    return scaled_HUT.mean(0)


# --- words ------------------------------------------------------------------------------------------


def time_words(
    spelled: Sequence[bytes],
    tokens: Sequence[int],
    language: str,
    firsts: Sequence[int],
    probabilities: Sequence[float],
) -> list[Word]:
    """Return words with times, which exclude punctuation at the edges, and the mean token probability.

    Words are split at spaces; in languages without them, each character is a word, with any punctuation after
    it. `firsts` are the first steps of the tokens and of the end; `spelled` has the bytes of each ID.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces = [decoder.decode(spelled[token]) for token in tokens]
    ends = list(itertools.accumulate(map(len, pieces)))
    text = "".join(pieces) + decoder.decode(b"", final=True)
    last = len(tokens) - 1
    words = []
    for found in re.finditer(r"\S\W*" if language in WITHOUT_SPACES else r"\S+", text):
        first = bisect.bisect_left(ends, found.start())
        if 0 < found.start() == ends[first]:  # starts after this token, which ends another character
            first = min(first + 1, last)
        own = range(first, min(bisect.bisect_left(ends, found.end()), last) + 1)
        timed = [place for place in own if not _is_punctuation(pieces[place])] or own
        start, end = firsts[timed[0]] * SECONDS_PER_STEP, firsts[timed[-1] + 1] * SECONDS_PER_STEP
        confidence = average(probabilities[own.start : own.stop])
        words.append(Word(found[0].strip(), start, end, confidence))
    return words


def _is_punctuation(piece: str) -> bool:
    """Return whether a piece is only punctuation and spaces; a partial character is neither."""
    stripped = piece.strip()
    return bool(stripped) and all(unicodedata.category(sign).startswith("P") for sign in stripped)
