"""Decode token by token without a beam: take the likeliest token, or sample one at a temperature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asr.decoding.hypothesis import (
    MAX_REPEATS,
    DecodingConfig,
    EncodedAudio,
    FusionModel,
    FusionState,
    Hypothesis,
    NBest,
)
from asr.models.decoders import Decoder, DecoderState
from asr.text.tokenizer import EOS_ID, SOS_ID

# B utterances, W texts of each, R = B x W rows, P tokens of the prompt, U tokens after it, V vocabulary,
# L longest text

PIECE = 32  # prompt tokens read at once; the unused scores of each take 200 kB
LOOP = 24  # tokens at the end of a text that all repeat earlier ones, which does not occur in speech
LOOK_UP = 8  # tokens between two searches for loops, which wait for the GPU


class Beginning(NamedTuple):
    """The decoder after the prompt: state, scores of the first token, probability of no speech."""

    state: DecoderState
    scores_BV: Tensor
    no_speech_B: Tensor | None


def start_decoder(encoded: EncodedAudio) -> DecoderState:
    """Return the state before any token."""
    assert isinstance(encoded.model.decoder, Decoder)
    bias = () if encoded.bias_BT is None else (encoded.bias_BT,)
    return encoded.model.decoder.start(encoded.encoded_BTD, encoded.lengths_B, *bias)


def read_prompts(encoded: EncodedAudio) -> Beginning:
    """Read the prompts, whose start token is at the same place for all utterances."""
    rules, decoder, state = encoded.rules, encoded.model.decoder, start_decoder(encoded)
    assert isinstance(decoder, Decoder)
    prompts_BP = encoded.prompts_BP
    if prompts_BP is None:
        prompts_BP = torch.full((len(encoded.lengths_B), 1), SOS_ID, device=encoded.lengths_B.device)
    first = int((prompts_BP[0] == SOS_ID).nonzero()[-1])
    for piece_BP in prompts_BP[:, :first].split(PIECE, dim=1):
        if piece_BP.size(1):
            decoder.step(piece_BP, state)
    scores_BPV, _ = decoder.step(prompts_BP[:, first:], state)
    no_speech_B = None
    if rules.no_speech is not None:
        no_speech_B = scores_BPV[:, 0].float().softmax(-1)[:, rules.no_speech]
    return Beginning(state, scores_BPV[:, -1].float(), no_speech_B)


def limit_tokens(encoded: EncodedAudio, decoder: Decoder | None) -> Tensor:
    """Return each utterance's maximum number of tokens, for the `decoder` that reads them, if any."""
    limits_B = encoded.model.limit_tokens(encoded.lengths_B)
    if decoder is not None:
        room = decoder.max_tokens
        if encoded.prompts_BP is not None:  # there is room for its first token, the start
            room -= encoded.prompts_BP.size(1) - 1
        limits_B = limits_B.clamp(max=room)
    return limits_B


@torch.inference_mode()
def sample(
    encoded: EncodedAudio,
    config: DecodingConfig,
    language_model: FusionModel | None = None,
    temperature: float = 0.0,
    *,
    seed: int = 0,
    max_repeats: int | None = MAX_REPEATS,
) -> NBest:
    """Decode token by token: take the likeliest token, or sample at a temperature above 0.

    A text that has repeated itself for LOOP tokens, more than `max_repeats` times, ends there, because the
    checks refuse it anyway. Sampling returns `config.samples` texts of each utterance, likeliest first. They
    depend on the seed but not on the batch, because all utterances share the random numbers.
    """
    rules, decoder = encoded.rules, encoded.model.decoder
    assert isinstance(decoder, Decoder)
    state, scores_RV, no_speech_B = read_prompts(encoded)
    limits_R, samples = limit_tokens(encoded, decoder), config.samples if temperature > 0 else 1
    num_utterances, device = len(scores_RV), scores_RV.device
    fusion: FusionState | None = None
    if language_model is not None:
        fusion = language_model.start(num_utterances * samples, device)
    if samples > 1:
        scores_RV, limits_R = (x.repeat_interleave(samples, 0) for x in (scores_RV, limits_R))
        state.select_beams(torch.arange(num_utterances, device=device).repeat_interleave(samples))
    noise = torch.Generator().manual_seed(seed)
    rows_R, longest = torch.arange(len(scores_RV), device=device), int(limits_R.max())
    tokens_RL = torch.full((len(rows_R), longest), EOS_ID, device=device)
    tokens_R = torch.full_like(rows_R, SOS_ID)
    sums_R = torch.zeros(len(rows_R), dtype=torch.float64, device=device)
    is_done_R = limits_R <= 0
    never = torch.tensor([id for id in range(rules.first) if id != EOS_ID], device=device)
    for place in range(longest):
        scores_RV = rules.forbid(scores_RV.float(), place)
        log_probabilities_RV = scores_RV.log_softmax(-1)
        if fusion is not None:
            scores_RV = log_probabilities_RV + config.language_model_weight * fusion.score(tokens_R)
        if len(never):
            scores_RV = scores_RV.index_fill(1, never, -torch.inf)
        if temperature > 0:
            chances_R = torch.rand(samples, generator=noise).to(device).repeat(len(scores_RV) // samples)
            # By rising IDs, with the special tokens (including the end) last.
            rolled_RV = scores_RV.roll(-rules.first, dims=1)
            tokens_R = (draw(rolled_RV / temperature, chances_R) + rules.first) % scores_RV.size(1)
        else:
            tokens_R = scores_RV.argmax(-1)
        tokens_R = tokens_R.masked_fill(is_done_R[rows_R], EOS_ID)
        gains_R = log_probabilities_RV.gather(1, tokens_R[:, None])[:, 0]
        sums_R[rows_R] += gains_R.masked_fill(is_done_R[rows_R], 0.0)
        tokens_RL[rows_R, place] = tokens_R
        is_done_R[rows_R] |= (tokens_R == EOS_ID) | (place + 1 >= limits_R[rows_R])
        if max_repeats is not None and place % LOOK_UP == LOOK_UP - 1:
            loops = [is_loop(text, max_repeats) for text in tokens_RL[rows_R, : place + 1].tolist()]
            is_done_R[rows_R] |= torch.tensor(loops, device=device)
        running_B = (~is_done_R[rows_R]).view(-1, samples).any(1)
        kept_B = running_B.nonzero()[:, 0]  # the only place in a step that waits for the GPU
        if len(kept_B) == 0:
            break
        if len(kept_B) <= 0.75 * len(running_B):
            kept_R = (kept_B[:, None] * samples + torch.arange(samples, device=device)).flatten()
            state.select_utterances(kept_B)
            state.select_beams(kept_R)
            if fusion is not None:
                fusion.select(kept_R)
            rows_R, tokens_R = rows_R[kept_R], tokens_R[kept_R]
        scores_RV = decoder.step(tokens_R[:, None], state)[0][:, -1]
    counts_R = (tokens_RL != EOS_ID).sum(1)
    silences = [None] * num_utterances if no_speech_B is None else no_speech_B.tolist()
    found = [
        Hypothesis(tuple(tokens[:count]), total / (count + 1), total, no_speech=silences[row // samples])
        for row, (tokens, count, total) in enumerate(
            zip(tokens_RL.tolist(), counts_R.tolist(), sums_R.tolist(), strict=True)
        )
    ]
    drawn = (found[first : first + samples] for first in range(0, len(found), samples))
    return [sorted(own, key=lambda one: -one.score) for own in drawn]


def draw(scores_RV: Tensor, chances_R: Tensor) -> Tensor:
    """Sample a token for each row from the softmax of its scores, with a number in [0, 1)."""
    past_RV = scores_RV.softmax(-1).double().cumsum(-1)
    # The first token that exceeds it; forbidden tokens add nothing, so they are never chosen.
    places_R1 = chances_R[:, None].double() * past_RV[:, -1:]
    return torch.searchsorted(past_RV, places_R1, right=True)[:, 0]


def is_loop(tokens: Sequence[int], max_repeats: int) -> bool:
    """Check whether the text ends in a repeated sequence."""
    for period in range(1, len(tokens) // (max_repeats + 1) + 1):
        last = tokens[-max(LOOP, period * (max_repeats + 1)) :]
        if len(last) >= LOOP and last[period:] == last[:-period]:
            return True
    return False
