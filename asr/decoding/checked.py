"""Decodes, looks at what the decoder did, and falls back where it went astray. Ids out, never text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asr.decoding.checks import ChecksConfig, Evidence, Heard, find_faults, is_agreed, is_speech
from asr.decoding.fusion import FusionModel
from asr.decoding.search import DecodingConfig, Hypothesis, decode, resolve_method
from asr.models import SpeechModel
from asr.models.decoder import Decoder
from asr.text.units import BLANK_ID

# B utterances, T encoded steps, D dimension, V vocabulary

Spell = Callable[[Sequence[int]], str]
_CONSTRAINED_CTC_WEIGHT = 0.8  # the decoder may then choose among what CTC finds likely, and no more


@dataclass(frozen=True)
class Reading:
    """What is said in an utterance, and how that was found."""

    tokens: tuple[int, ...]
    method: str
    """Of decoding: the one asked for, or the one fallen back to; "" where there is no speech to decode."""
    warnings: tuple[str, ...] = ()
    likelihood: float = 0.0
    """Of the hypothesis; 0, for certain, where nothing was decoded."""
    log_probability: float = 0.0
    """Under the decoder, whatever found the text, where it was asked for."""

    @property
    def average_log_probability(self) -> float | None:
        """Of its tokens and the end; None where nothing was decoded."""
        return self.likelihood / (len(self.tokens) + 1) if self.method else None


@dataclass(frozen=True)
class Encoded:
    """A batch as the encoder and its CTC head leave it."""

    encoded_BTD: Tensor
    lengths_B: Tensor
    scores_BTV: Tensor | None
    """Log-probabilities of the CTC head, on the CPU; None without one."""
    seconds_per_step: float


def decode_checked(
    model: SpeechModel,
    encoded: Encoded,
    config: DecodingConfig,
    checks: ChecksConfig,
    spell: Spell,
    language_model: FusionModel | None = None,
) -> list[Reading]:
    """One reading for each utterance. `spell` makes a text of ids: the checks and warnings look at it.

    What has faults is decoded again: by CTC, which cannot go astray, then by the decoder held close to CTC.
    If nothing is without faults, the first with the fewest is taken.
    """
    lengths = encoded.lengths_B.tolist()
    heard: list[Heard | None] = [None] * len(lengths)
    if encoded.scores_BTV is not None:
        heard = [
            listen(scores_TV[:length], spell)
            for scores_TV, length in zip(encoded.scores_BTV, lengths, strict=True)
        ]
    tried: list[list[tuple[list[str], Reading]]] = [[] for _ in lengths]
    open_rows = [row for row, own in enumerate(heard) if lengths[row] and is_speech(own, checks)]
    dropped = {row: _drop(heard[row], []) for row in range(len(lengths)) if row not in open_rows}
    for attempt in plan_attempts(model, config):
        if not open_rows:
            break
        rows_B = torch.tensor(open_rows, device=encoded.encoded_BTD.device)
        everything = len(open_rows) == len(lengths)
        parts = (encoded.encoded_BTD, encoded.lengths_B)
        chosen = parts if everything else tuple(part[rows_B] for part in parts)
        found = decode(model, chosen[0], chosen[1], attempt, language_model)
        for row, hypotheses in zip(open_rows, found, strict=True):
            evidence = _gather(hypotheses[0], heard[row], lengths[row], encoded.seconds_per_step, spell)
            faults = [f"{attempt.method}: {fault}" for fault in find_faults(evidence, checks)]
            tried[row].append(
                (faults, Reading(hypotheses[0].tokens, attempt.method, likelihood=hypotheses[0].likelihood))
            )
            if not is_agreed(evidence, checks):
                dropped[row] = _drop(heard[row], faults)
        open_rows = [row for row in open_rows if tried[row][-1][0] and row not in dropped]
    return [dropped.get(row) or _choose(attempts) for row, attempts in enumerate(tried)]


def plan_attempts(model: SpeechModel, config: DecodingConfig) -> list[DecodingConfig]:
    """What was asked for, then what to fall back to, as far as the model has the heads."""
    asked = config.model_copy(update={"method": resolve_method(model, config.method), "nbest": 1})
    attempts = [asked]
    if model.ctc_head is not None and asked.method != "ctc_beam":
        attempts.append(asked.model_copy(update={"method": "ctc_beam"}))
    if isinstance(model.decoder, Decoder):
        narrow = {"beam": max(1, asked.beam // 3)}
        if model.ctc_head is None:
            attempts.append(asked.model_copy(update=narrow))
        elif not asked.method.startswith("ctc"):
            held = {"method": "joint", "ctc_weight": max(asked.ctc_weight, _CONSTRAINED_CTC_WEIGHT)}
            attempts.append(asked.model_copy(update=narrow | held))
    return attempts


def listen(scores_TV: Tensor, spell: Spell) -> Heard:
    """The best path of the CTC head through one utterance."""
    best_T = scores_TV.argmax(-1)
    values_T = scores_TV.max(-1).values.tolist()
    tokens: list[int] = []
    steps: list[int] = []
    values: list[float] = []
    before = BLANK_ID
    for step, (token, value) in enumerate(zip(best_T.tolist(), values_T, strict=True)):
        if token not in (BLANK_ID, before):
            tokens.append(token)
            steps.append(step)
            values.append(value)
        elif token == before and token != BLANK_ID:
            values[-1] = max(values[-1], value)
        before = token
    mean = sum(values) / len(values) if values else -math.inf
    return Heard(tuple(tokens), tuple(steps), spell(tokens), mean)


def _gather(
    hypothesis: Hypothesis, heard: Heard | None, num_steps: int, seconds_per_step: float, spell: Spell
) -> Evidence:
    return Evidence(
        tokens=hypothesis.tokens,
        text=spell(hypothesis.tokens),
        seconds=num_steps * seconds_per_step,
        seconds_per_step=seconds_per_step,
        attended_steps=hypothesis.attended_steps,
        log_probability=hypothesis.log_probability,
        heard=heard,
    )


def _drop(heard: Heard | None, faults: Sequence[str]) -> Reading:
    if heard is None or not heard.tokens:
        return Reading((), "")
    return Reading((), "", (f"no clear speech: {heard.text!r} was dropped", *faults))


def _choose(attempts: list[tuple[list[str], Reading]]) -> Reading:
    """The first with the fewest faults; all that was wrong on the way to it is told."""
    best = min(range(len(attempts)), key=lambda index: len(attempts[index][0]))
    faults = tuple(fault for own, _ in attempts[: best + 1] for fault in own)
    reading = attempts[best][1]
    return Reading(reading.tokens, reading.method, faults, reading.likelihood)
