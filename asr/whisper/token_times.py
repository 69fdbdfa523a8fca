"""Times of tokens: dynamic time warping over the attention of the heads that follow the words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from asr.models.decoders import WeightsOf
from asr.whisper.encoder_decoder import Whisper
from asr.whisper.family import WhisperSizes
from asr.whisper.whisper_tokenizer import WhisperTokenizer

# B utterances, H heads, P tokens of the prompt, N tokens and the end, T encoded steps, V vocabulary

MEDIAN_STEPS = 7
SCORED_AT_ONCE = 16  # tokens of each text

# Layers and heads that OpenAI found to follow the words, by layers of the decoder, bands and languages.
_HEADS: dict[tuple[int, int, bool], str] = {
    (4, 384, False): "1.0 2.0 2.5 3.0 3.1 3.2 3.3 3.4",  # tiny.en
    (4, 384, True): "2.2 3.0 3.2 3.3 3.4 3.5",  # tiny
    (6, 512, False): "3.3 4.7 5.1 5.5 5.7",  # base.en
    (6, 512, True): "3.1 4.2 4.3 4.7 5.1 5.2 5.4 5.6",  # base
    (12, 768, False): "6.6 7.0 7.3 7.8 8.2 8.5 8.7 9.0 9.4 9.8 9.10 10.0 10.1 10.2 10.3 10.6 10.11 11.2 "
    "11.4",  # small.en
    (12, 768, True): "5.3 5.9 8.0 8.4 8.7 8.8 9.0 9.7 9.9 10.5",  # small
    (24, 1024, False): "11.4 14.1 14.12 14.14 15.4 16.0 16.4 16.9 17.12 17.14 18.7 18.10 18.15 20.0 20.3 "
    "20.9 20.14 21.12",  # medium.en
    (24, 1024, True): "13.15 15.4 15.15 16.1 20.0 23.4",  # medium
    (4, 1280, True): "2.4 2.11 3.3 3.6 3.11 3.14",  # turbo
}
_LARGE = {  # by bands; of the first two, which have the same sizes, those of the second
    80: "10.12 13.17 16.11 16.12 16.13 17.15 17.16 18.4 18.11 18.19 19.11 21.2 21.3 22.3 22.9 22.12 23.5 "
    "23.7 23.13 25.5 26.1 26.12 27.15",
    128: "7.0 10.17 12.18 13.12 16.1 17.14 19.11 21.4 24.1 25.6",
}


def find_alignment_heads(sizes: WhisperSizes) -> WeightsOf:
    """Find the heads that the checkpoint names, else OpenAI's for these sizes, else the upper half."""
    pairs = sizes.alignment_heads
    if pairs is None:
        key = (sizes.decoder_layers, sizes.dim, sizes.is_multilingual)
        is_large = key == (32, 1280, True)
        known = _LARGE[sizes.num_mels] if is_large else _HEADS.get(key, "")
        pairs = tuple((int(layer), int(head)) for layer, head in (pair.split(".") for pair in known.split()))
    if not pairs:
        layers = range(sizes.decoder_layers // 2, sizes.decoder_layers)
        pairs = tuple((layer, head) for layer in layers for head in range(sizes.decoder_heads))
    heads: dict[int, tuple[int, ...]] = {}
    for layer, head in sorted(pairs):
        heads[layer] = (*heads.get(layer, ()), head)
    return heads


@torch.inference_mode()
def align_tokens(
    model: Whisper,
    tokenizer: WhisperTokenizer,
    encoded: tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor | None],
    num_steps: Sequence[int],
    prompts: Sequence[Sequence[int]],
    tokens: Sequence[Sequence[int]],
) -> tuple[list[list[int]], list[list[float]]]:
    """Find the first step of each token of text, and of the end; and the tokens' probabilities.

    `num_steps` of each window hold audio, silence follows. The prompts, all as long, ask for no times.
    """
    device, end = encoded[0].device, tokenizer.end
    counts = [len(ids) for ids in tokens]
    prompt_length, longest = len(prompts[0]), max(counts)
    rows = [
        [*prompt, *ids, *([end] * (longest - len(ids) + 1))]
        for prompt, ids in zip(prompts, tokens, strict=True)
    ]
    inputs_BU = torch.tensor(rows, device=device)
    state = model.decoder.start(*encoded)
    state.forget_tokens()
    x_BUD, weights = model.decoder.attend(inputs_BU, state, find_alignment_heads(model.sizes))
    first = prompt_length - 1  # scores of the first token come after the last one of the prompt
    own_BN = inputs_BU[:, prompt_length:].clamp(max=end - 1)
    probabilities_BN = _find_probabilities(model, x_BUD[:, first:-1], own_BN, end).tolist()
    weights_BHUT = torch.cat(list(weights.values()), dim=1)
    costs = [
        -_focus(weights_BHUT[row, :, : prompt_length + count + 1, : max(1, steps)])[first:-1].cpu().numpy()
        for row, (count, steps) in enumerate(zip(counts, num_steps, strict=True))
    ]
    firsts = warp_batch(costs)
    return firsts, [row[:count] for row, count in zip(probabilities_BN, counts, strict=True)]


def _find_probabilities(model: Whisper, x_BND: Tensor, tokens_BN: Tensor, end: int) -> Tensor:
    """Probabilities of these tokens, among those of text. In parts: all scores would be half a gigabyte."""
    probabilities = []
    for x_BMD, own_BM in zip(x_BND.split(SCORED_AT_ONCE, 1), tokens_BN.split(SCORED_AT_ONCE, 1), strict=True):
        probabilities_BMV = model.decoder.output(x_BMD)[..., :end].float().softmax(-1)
        probabilities.append(probabilities_BMV.gather(2, own_BM[..., None])[..., 0])
    return torch.cat(probabilities, dim=1)


def _focus(weights_HUT: Tensor) -> Tensor:
    """(U, T): where a token looks more than others do, smoothed over time, as the mean of the heads."""
    weights_HUT = weights_HUT / weights_HUT.sum(-1, keepdim=True)  # of the steps with audio
    deviation_H1T, mean_H1T = torch.std_mean(weights_HUT, dim=1, keepdim=True, correction=0)
    scaled_HUT = (weights_HUT - mean_H1T) / deviation_H1T.clamp(min=1e-12)
    reach = MEDIAN_STEPS // 2
    if scaled_HUT.size(2) > reach:
        mirrored_HUT = F.pad(scaled_HUT, (reach, reach), mode="reflect")
        scaled_HUT = mirrored_HUT.unfold(2, MEDIAN_STEPS, 1).median(-1).values
    return scaled_HUT.mean(0)


def warp_batch(costs: Sequence[np.ndarray]) -> list[list[int]]:
    """Find, for each matrix (N, T), the first step of each row on the cheapest path from corner to corner.

    The path goes on by a row, by a step, or by both. All matrices are walked at once, diagonal by diagonal.
    """
    num_rows = max(len(cost) for cost in costs)
    num_steps = max(cost.shape[1] for cost in costs)
    # Diagonal d holds row n at step d - n, so that each one depends on the two before it alone.
    skewed_BDN = np.full((len(costs), num_rows + num_steps - 1, num_rows), np.inf)
    for own_DN, cost_NT in zip(skewed_BDN, costs, strict=True):
        for row, cost_T in enumerate(cost_NT):
            own_DN[row : row + len(cost_T), row] = cost_T
    moves_BDN = np.zeros(skewed_BDN.shape, np.int8)  # 0: by both, 1: by a row, 2: by a step
    beyond_B1 = np.full((len(costs), 1), np.inf)
    before_BN = np.full((len(costs), num_rows), np.inf)  # the diagonal before
    both_BN = before_BN.copy()  # one by a row and a step, from the diagonal before that
    both_BN[:, 0] = 0.0
    for place in range(skewed_BDN.shape[1]):
        row_BN = np.concatenate([beyond_B1, before_BN[:, :-1]], axis=1)
        is_both_BN = (both_BN < row_BN) & (both_BN < before_BN)
        is_row_BN = (row_BN < both_BN) & (row_BN < before_BN)
        moves_BDN[:, place] = np.where(is_both_BN, 0, np.where(is_row_BN, 1, 2))
        best_BN = np.where(is_both_BN, both_BN, np.where(is_row_BN, row_BN, before_BN))
        both_BN = row_BN
        before_BN = skewed_BDN[:, place] + best_BN
    return [_trace(moves_BDN[place], cost.shape) for place, cost in enumerate(costs)]


def _trace(moves_DN: np.ndarray, shape: tuple[int, ...]) -> list[int]:
    row, step = shape[0] - 1, shape[1] - 1
    firsts = [0] * shape[0]
    while row >= 0 and step >= 0:
        firsts[row] = step
        move = 1 if step == 0 else 2 if row == 0 else int(moves_DN[row + step, row])
        row, step = row - (move != 2), step - (move != 1)
    return firsts
