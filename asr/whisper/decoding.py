"""Decode windows: prompt, language, search (greedy, sampling or a beam), and fallback where checks fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from asr.decoding.decode import retry
from asr.decoding.hypothesis import MAX_REPEATS, ChecksConfig, Evidence, Hypothesis, find_faults
from asr.errors import UserError
from asr.models.decoders import TransformerDecoderState
from asr.transcripts.transcript import Segment
from asr.whisper.encoder_decoder import EncodedSteps, Whisper
from asr.whisper.family import WhisperDecodingConfig
from asr.whisper.whisper_tokenizer import WhisperTokenizer

# B utterances, W hypotheses of each, R = B x W rows, P tokens of the prompt, U tokens after it,
# V vocabulary, C times among it, L longest text, T encoded steps, D dimension

PIECE = 32  # tokens of earlier text read at once: the scores of each take 200 kB, and nobody looks at them
LOOP = 24  # tokens at the end of a text, of which all repeat those before: nobody speaks like that
LOOK_UP = 8  # tokens between two searches for loops, for which a GPU has to be waited for
SECONDS_PER_STEP = 0.02  # of the encoder, and between two tokens of time

Found = tuple[tuple[int, ...], float]
"""Tokens without the prompt and the end, and the mean log-probability of these and of the end."""


@dataclass(frozen=True)
class EncodedWindows:
    """A batch of encoded windows and their languages."""

    audio: EncodedSteps
    languages: Sequence[tuple[str, float | None]]  # code of each, with its probability if it was detected

    def select(self, rows: Sequence[int]) -> EncodedWindows:
        return EncodedWindows(self.audio.select(rows), [self.languages[row] for row in rows])


@torch.inference_mode()
def detect_languages(
    model: Whisper, tokenizer: WhisperTokenizer, audio: EncodedSteps
) -> list[tuple[str, float | None]]:
    """The code of the likeliest language of each window, and its probability among the languages.

    English, for certain, of a model that knows no other.
    """
    count, device = len(audio.lengths_B), audio.lengths_B.device
    if not tokenizer.is_multilingual:
        return [("en", 1.0)] * count
    start_B1 = torch.full((count, 1), tokenizer.start, device=device)
    scores_B1V, _ = model.decoder.step(start_B1, model.decoder.start(*audio))
    codes, ids = zip(*tokenizer.languages.items(), strict=True)
    best_B, places_B = scores_B1V[:, -1, list(ids)].float().softmax(-1).max(-1)
    return [(codes[place], best) for place, best in zip(places_B.tolist(), best_B.tolist(), strict=True)]


def decode_windows(
    model: Whisper,
    tokenizer: WhisperTokenizer,
    windows: EncodedWindows,
    config: WhisperDecodingConfig,
    checks: ChecksConfig,
) -> list[Segment]:
    """Decode each window to a segment without times, and again at higher temperatures while it has faults.

    If no text is without faults, the likeliest of those with the fewest is taken.
    """

    def run(temperature: float, rows: list[int]) -> list[Segment]:
        part = windows if len(rows) == len(windows.languages) else windows.select(rows)
        prompts = build_prompts(tokenizer, part, config, model.sizes.max_tokens)
        beginning = begin(model, tokenizer, part.audio, prompts)
        rules = Rules(tokenizer, part.audio.lengths_B.device)
        method, samples = ("sampling", config.samples) if temperature else ("greedy", 1)
        repeats = MAX_REPEATS if checks.enabled else None
        if temperature == 0 and config.beam > 1:
            method, found = "beam", [[own] for own in search(model, rules, beginning, config.beam)]
        else:
            found = sample(model, rules, beginning, temperature, samples, max_repeats=repeats)
        lengths, silences = part.audio.lengths_B.tolist(), beginning.no_speech_B.tolist()

        def rate(own: Found, row: int) -> Segment:
            (tokens, mean), no_speech, (language, probability) = own, silences[row], part.languages[row]
            text, warnings, how = tokenizer.decode(tokens).strip(), list[str](), method
            is_unlikely = checks.min_log_probability is None or mean < checks.min_log_probability
            if config.max_no_speech is not None and no_speech > config.max_no_speech and is_unlikely:
                warnings = [f"no speech: {text!r} was dropped"] if text else []
                tokens, text, how = (), "", ""
            elif ids := [token for token in tokens if token < tokenizer.end]:
                best = Hypothesis(tuple(ids), mean, mean * (len(ids) + 1))
                evidence = Evidence(best, text, lengths[row] * SECONDS_PER_STEP, SECONDS_PER_STEP)
                faults = find_faults(evidence, checks)
                warnings = [f"{method} at temperature {temperature:g}: {fault}" for fault in faults]
            return Segment(
                *(0.0, 0.0, text),
                decoding=how,
                warnings=tuple(warnings),
                average_log_probability=mean,
                no_speech_probability=no_speech,
                temperature=temperature,
                tokens=tokens,
                language=language,
                language_probability=probability,
                token_scores=((len(tokens) + 1) * mean, len(tokens) + 1),
            )

        return [min((rate(own, row) for own in drawn), key=_rank) for row, drawn in enumerate(found)]

    rows = range(len(windows.languages))
    tried = retry((0.0, *config.temperatures), rows, run, lambda text: not _rank(text)[0])
    return [min(tried[row], key=_rank) for row in rows]


def _rank(segment: Segment) -> tuple[int, float]:
    """Number of faults, then how unlikely it is; what was dropped as silence has none."""
    return len(segment.warnings) if segment.decoding else 0, -(segment.average_log_probability or 0.0)


def build_prompts(
    tokenizer: WhisperTokenizer, windows: EncodedWindows, config: WhisperDecodingConfig, max_tokens: int
) -> list[list[int]]:
    """Build the prompt of each window: the context, if any, then language and task."""
    context = encode_context(tokenizer, config, max_tokens)
    start = [tokenizer.start_of_previous, *context] if context else []
    return [[*start, *tokenizer.prompt(language, config.task)] for language, _ in windows.languages]


def encode_context(tokenizer: WhisperTokenizer, config: WhisperDecodingConfig, max_tokens: int) -> list[int]:
    """Hotwords and prompt, refused where the model cannot read them all: the other half is for the text."""
    texts, room = (", ".join(config.hotwords), config.prompt), max_tokens // 2 - 1
    words, prompt = (tokenizer.encode(f" {text.strip()}") if text else [] for text in texts)
    if len(words) + len(prompt) > room:
        raise UserError(
            f"whisper.hotwords have {len(words)} tokens and whisper.prompt has {len(prompt)}, but this model "
            f"reads {room} in all; shorten them"
        )
    return words + prompt


# --- search: ids out, never text ---------------------------------------------------------------------


class Beginning(NamedTuple):
    """A batch after its prompt: scores of the first token, probability of no speech, and longest text."""

    state: TransformerDecoderState
    scores_BV: Tensor
    no_speech_B: Tensor
    max_tokens: int


@torch.inference_mode()
def begin(
    model: Whisper, tokenizer: WhisperTokenizer, audio: EncodedSteps, prompts: Sequence[Sequence[int]]
) -> Beginning:
    """Read the prompts, which begin with as many tokens of earlier text each."""
    limit, prompt_BP = model.sizes.max_tokens, torch.tensor(prompts, device=audio.lengths_B.device)
    state = model.decoder.start(*audio)
    first = int((prompt_BP[0] == tokenizer.start).nonzero()[-1])
    for piece_BP in prompt_BP[:, :first].split(PIECE, dim=1):
        if piece_BP.size(1):
            model.decoder.step(piece_BP, state)
    scores_BPV, _ = model.decoder.step(prompt_BP[:, first:], state)
    no_speech_B = scores_BPV[:, 0].float().softmax(-1)[:, tokenizer.no_speech]
    max_tokens = min(limit // 2, limit - prompt_BP.size(1))
    return Beginning(state, scores_BPV[:, -1].float(), no_speech_B, max_tokens)


class Rules:
    """Rules for which tokens may come next."""

    def __init__(self, tokenizer: WhisperTokenizer, device: torch.device) -> None:
        self.end = tokenizer.end
        self._never = torch.tensor(tokenizer.suppressed, device=device)
        self._not_first = torch.tensor([*tokenizer.encode(" "), tokenizer.end], device=device)

    def apply(self, scores_RV: Tensor, tokens_RU: Tensor) -> Tensor:
        """The scores with -inf where a token may not follow those of `tokens_RU`."""
        scores_RV = scores_RV.float().index_fill(1, self._never, -torch.inf)
        if tokens_RU.size(1) == 0:
            scores_RV.index_fill_(1, self._not_first, -torch.inf)
        return scores_RV


@torch.inference_mode()
def sample(
    model: Whisper,
    rules: Rules,
    beginning: Beginning,
    temperature: float = 0.0,
    samples: int = 1,
    *,
    seed: int = 0,
    max_repeats: int | None = None,
) -> list[list[Found]]:
    """Decode token by token: the likeliest one, or at a temperature above 0 one drawn at random.

    A hypothesis that has gone round for LOOP tokens, more than `max_repeats` times, ends there: the checks
    refuse it anyway, and it would go on to the longest text.

    The `samples` of each utterance, the likeliest first. What is drawn for an utterance depends on the seed
    alone, not on its company: all utterances share the numbers that draw.
    """
    state, scores_RV, _, max_tokens = beginning
    num_utterances, device = len(scores_RV), scores_RV.device
    if samples > 1:
        scores_RV = scores_RV.repeat_interleave(samples, 0)
        state.select_beams(torch.arange(num_utterances, device=device).repeat_interleave(samples))
    noise = torch.Generator().manual_seed(seed)
    rows_R = torch.arange(len(scores_RV), device=device)
    tokens_RL = torch.full((len(rows_R), max_tokens), rules.end, device=device)
    sums_R = torch.zeros(len(rows_R), dtype=torch.float64, device=device)
    is_done_R = torch.zeros(len(rows_R), dtype=torch.bool, device=device)
    for place in range(max_tokens):
        scores_RV = rules.apply(scores_RV, tokens_RL[rows_R, :place])
        if temperature > 0:
            chances_R = torch.rand(samples, generator=noise).to(device).repeat(len(scores_RV) // samples)
            tokens_R = draw(scores_RV / temperature, chances_R)
        else:
            tokens_R = scores_RV.argmax(-1)
        tokens_R = tokens_R.masked_fill(is_done_R[rows_R], rules.end)
        gains_R = scores_RV.log_softmax(-1).gather(1, tokens_R[:, None])[:, 0]
        sums_R[rows_R] += gains_R.masked_fill(is_done_R[rows_R], 0.0)
        tokens_RL[rows_R, place] = tokens_R
        is_done_R[rows_R] |= tokens_R == rules.end
        if max_repeats is not None and place % LOOK_UP == LOOK_UP - 1:
            loops = [is_loop(text, max_repeats) for text in tokens_RL[rows_R, : place + 1].tolist()]
            is_done_R[rows_R] |= torch.tensor(loops, device=device)
        running_B = (~is_done_R[rows_R]).view(-1, samples).any(1)
        kept_B = running_B.nonzero()[:, 0]  # the one place in a step where a GPU is waited for
        if len(kept_B) == 0:
            break
        if len(kept_B) <= 0.75 * len(running_B):
            kept_R = (kept_B[:, None] * samples + torch.arange(samples, device=device)).flatten()
            state.select_utterances(kept_B)
            state.select_beams(kept_R)
            rows_R, tokens_R = rows_R[kept_R], tokens_R[kept_R]
        if place + 1 < max_tokens:
            scores_RV = model.decoder.step(tokens_R[:, None], state)[0][:, -1]
    lengths_R = (tokens_RL != rules.end).sum(1)
    found = _read(tokens_RL, sums_R / (lengths_R + 1), rules.end)
    drawn = (found[first : first + samples] for first in range(0, len(found), samples))
    return [sorted(own, key=lambda one: -one[1]) for own in drawn]


def draw(scores_RV: Tensor, chances_R: Tensor) -> Tensor:
    """Draw a token of each row from the softmax of its scores, by a number in [0, 1)."""
    past_RV = scores_RV.softmax(-1).double().cumsum(-1)
    # The first token that goes past it: never one that may not follow, which adds nothing.
    places_R1 = chances_R[:, None].double() * past_RV[:, -1:]
    return torch.searchsorted(past_RV, places_R1, right=True)[:, 0]


def is_loop(tokens: Sequence[int], max_repeats: int) -> bool:
    """Check whether the text ends in a sequence that repeats itself."""
    for period in range(1, len(tokens) // (max_repeats + 1) + 1):
        last = tokens[-max(LOOP, period * (max_repeats + 1)) :]
        if len(last) >= LOOP and last[period:] == last[:-period]:
            return True
    return False


@torch.inference_mode()
def search(model: Whisper, rules: Rules, beginning: Beginning, beam: int) -> list[Found]:
    """Keep the `beam` likeliest hypotheses at each step, until as many have ended.

    Of those that ended, the one with the likeliest token on average wins.
    """
    state, scores_RV, _, max_tokens = beginning
    num_utterances, device = len(scores_RV), scores_RV.device
    utterances_B = torch.arange(num_utterances, device=device)
    tokens_BWL = torch.full((num_utterances, 1, max_tokens), rules.end, device=device)
    sums_BW = torch.zeros((num_utterances, 1), dtype=torch.float64, device=device)
    counts_B = torch.zeros(num_utterances, dtype=torch.long, device=device)
    best_B = torch.full((num_utterances,), -torch.inf, dtype=torch.float64, device=device)
    best_BL = tokens_BWL[:, 0].clone()

    def note(ended_BW: Tensor, num_tokens: int) -> None:
        """Keep the best of those that ended, if it is better than the best so far."""
        mean_B, place_B = (ended_BW / num_tokens).max(1)
        is_better_B = mean_B > best_B[utterances_B]
        better_B = utterances_B[is_better_B]
        best_B[better_B] = mean_B[is_better_B]
        best_BL[better_B] = tokens_BWL[is_better_B, place_B[is_better_B]]

    for place in range(max_tokens):
        width = sums_BW.size(1)
        allowed_RV = rules.apply(scores_RV, tokens_BWL.flatten(0, 1)[:, :place])
        gains_RV = allowed_RV.log_softmax(-1)
        ends_BW = sums_BW + gains_RV[:, rules.end].view_as(sums_BW)
        gains_RV[:, rules.end] = -torch.inf
        gains_RW, tokens_RW = gains_RV.topk(beam)  # more of one hypothesis are not among the best
        top_BW, chosen_BW = (sums_BW[..., None] + gains_RW.unflatten(0, (-1, width))).flatten(1).topk(beam)
        # An end counts only if it is among the best of its step.
        ends_BW.masked_fill_(ends_BW <= top_BW[:, -1:], -torch.inf)
        note(ends_BW, place + 1)
        counts_B += (ends_BW > -torch.inf).sum(1)
        parents_BW = chosen_BW // beam
        next_BW = tokens_RW.view(len(sums_BW), -1).gather(1, chosen_BW)
        rows_B1 = torch.arange(len(sums_BW), device=device)[:, None]
        tokens_BWL, sums_BW = tokens_BWL[rows_B1, parents_BW], top_BW
        tokens_BWL[..., place] = next_BW
        running_B = counts_B < beam
        kept_B = running_B.nonzero()[:, 0]
        if len(kept_B) == 0:
            break
        if place + 1 == max_tokens:
            note(sums_BW.masked_fill(~running_B[:, None], -torch.inf), place + 1)
            break
        state.select_beams((rows_B1 * width + parents_BW)[kept_B].flatten())
        if len(kept_B) < len(running_B):
            state.select_utterances(kept_B)
            tokens_BWL, sums_BW, next_BW = tokens_BWL[kept_B], sums_BW[kept_B], next_BW[kept_B]
            utterances_B, counts_B = utterances_B[kept_B], counts_B[kept_B]
        scores_RV = model.decoder.step(next_BW.reshape(-1, 1), state)[0][:, -1]
    return _read(best_BL, best_B, rules.end)


def _read(tokens_BL: Tensor, means_B: Tensor, end: int) -> list[Found]:
    counts = (tokens_BL != end).sum(1).tolist()
    rows = zip(tokens_BL.tolist(), counts, means_B.tolist(), strict=True)
    return [(tuple(tokens[:count]), mean) for tokens, count, mean in rows]
