"""Decode windows: prompt, language, search, and fallback to higher temperatures where checks fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pydantic
import torch
from torch import Tensor

from asr.config import Config
from asr.decoding.checks import ChecksConfig, Evidence, find_faults
from asr.errors import UserError
from asr.whisper.beam_search import Beginning, Found, Rules, begin, sample, search
from asr.whisper.encoder_decoder import Whisper
from asr.whisper.whisper_tokenizer import Task, WhisperTokenizer, find_language

# B utterances, T encoded steps, D dimension, P tokens of the prompt

SECONDS_PER_STEP = 0.02  # of the encoder, and between two tokens of time


class WhisperDecodingConfig(Config):
    """Settings of decoding by a Whisper model."""

    language: str | None = None
    """That is spoken: a code such as de, or its English name. Null: the model tells, for each recording."""
    task: Task = "transcribe"
    """translate: into English. Words have no times of their own then that mean much."""
    prompt: str = ""
    """Text taken as what came before: it sets names, spelling and style."""
    hotwords: tuple[str, ...] = ()
    """Words that are likely to occur. They go before the prompt, the only context that Whisper reads."""
    beam: int = pydantic.Field(default=1, gt=0)
    """Hypotheses kept at each step; 1 is greedy."""
    temperatures: tuple[pydantic.PositiveFloat, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)
    """Tried one after the other where `checks` find fault with the text: the higher, the more random it is.
    Empty: the first text stands, whatever it is."""
    samples: int = pydantic.Field(default=5, gt=0)
    """Texts drawn at each temperature, of which the likeliest is taken."""
    seed: int = 0
    """Of sampling: the same seed, the same text."""
    max_no_speech: float | None = pydantic.Field(default=0.6, gt=0, lt=1)
    """Where the model says so surely that nobody speaks, and its text is below checks.min_log_probability,
    the text is dropped. Null: never."""
    windows: Literal["pauses", "sequential"] = "pauses"
    """pauses: recordings are cut in pauses, and many segments decoded at once. sequential: windows of 30 s,
    each of which begins where the text of the one before ended; slower, as Whisper was published."""
    condition_on_previous_text: bool = False
    """With sequential windows, the prompt goes on with the text so far: names stay the same, but so do errors
    and loops."""
    padding_seconds: float | None = pydantic.Field(default=None, ge=0)
    """Silence behind a segment, at most up to the 30 s that Whisper was trained on; null: up to these, of
    which tiny computes every fourth and base.en every sixteenth step. With too little it does not hear where
    the text ends, and says it again and again."""

    @pydantic.field_validator("language")
    @classmethod
    def _knows_language(cls, language: str | None) -> str | None:
        return None if language is None else find_language(language)

    @pydantic.model_validator(mode="after")
    def _check(self) -> WhisperDecodingConfig:
        if self.condition_on_previous_text and self.windows != "sequential":
            raise ValueError(
                "condition_on_previous_text is for windows = sequential; pauses are decoded all at once"
            )
        return self


@dataclass(frozen=True)
class WhisperReading:
    """Text of a window, and how it was decoded."""

    tokens: tuple[int, ...]
    text: str
    language: str
    method: str
    """greedy, beam or sampling; "" where nobody speaks."""
    temperature: float = 0.0
    warnings: tuple[str, ...] = ()
    language_probability: float | None = None
    average_log_probability: float = 0.0
    """Of its tokens and the end."""
    no_speech_probability: float = 0.0


@dataclass(frozen=True)
class EncodedWindows:
    """A batch of encoded windows, their languages and the text before them."""

    encoded_BTD: Tensor
    lengths_B: Tensor
    languages: Sequence[str]
    previous: Sequence[int] = ()
    """Tokens of the text before, of all of them."""
    with_times: bool = False
    language_probabilities: Sequence[float] = ()
    """Empty where the languages were given."""
    bias_BT: Tensor | None = None
    """Of windows that have one step for many silent ones: see `WhisperEncoder.encode_with_silence`."""

    def select(self, rows: Sequence[int]) -> EncodedWindows:
        rows_B = torch.tensor(rows, device=self.encoded_BTD.device)
        return replace(
            self,
            encoded_BTD=self.encoded_BTD[rows_B],
            lengths_B=self.lengths_B[rows_B],
            bias_BT=None if self.bias_BT is None else self.bias_BT[rows_B],
            languages=[self.languages[row] for row in rows],
            language_probabilities=[self.language_probabilities[row] for row in rows]
            if self.language_probabilities
            else (),
        )


@torch.inference_mode()
def detect_languages(
    model: Whisper,
    tokenizer: WhisperTokenizer,
    encoded_BTD: Tensor,
    lengths_B: Tensor,
    bias_BT: Tensor | None = None,
) -> list[tuple[str, float]]:
    """The code of the likeliest language of each window, and its probability among the languages.

    English, for certain, of a model that knows no other.
    """
    if not tokenizer.is_multilingual:
        return [("en", 1.0)] * len(encoded_BTD)
    state = model.decoder.start(encoded_BTD, lengths_B, bias_BT)
    start_B1 = torch.full((len(encoded_BTD), 1), tokenizer.start, device=encoded_BTD.device)
    scores_B1V, _ = model.decoder.step(start_B1, state)
    codes, ids = zip(*tokenizer.languages.items(), strict=True)
    best_B, places_B = scores_B1V[:, -1, list(ids)].float().softmax(-1).max(-1)
    return [(codes[place], best) for place, best in zip(places_B.tolist(), best_B.tolist(), strict=True)]


def decode_windows(
    model: Whisper,
    tokenizer: WhisperTokenizer,
    windows: EncodedWindows,
    config: WhisperDecodingConfig,
    checks: ChecksConfig,
    give_way: Callable[[], None] = lambda: None,
) -> list[WhisperReading]:
    """One reading for each window. What has faults is decoded again, at higher and higher temperatures.

    If nothing is without faults, the likeliest of those with the fewest is taken. `give_way` is called now
    and then.
    """
    tried: list[list[tuple[int, float, WhisperReading]]] = [[] for _ in windows.languages]
    open_rows = list(range(len(tried)))
    for temperature in (0.0, *config.temperatures):
        if not open_rows:
            break
        if temperature:
            give_way()
        part = windows if len(open_rows) == len(tried) else windows.select(open_rows)
        again = []
        found, no_speech = _decode_once(
            model, tokenizer, part, config, temperature, checks.max_repeats, give_way
        )
        for row, one, silence in zip(open_rows, found, no_speech, strict=True):
            ids = [token for token in one.tokens if token < tokenizer.end]
            text = tokenizer.decode(ids).strip()
            seconds = int(windows.lengths_B[row]) * SECONDS_PER_STEP
            total = one.log_probability * (len(ids) + 1)
            evidence = Evidence(ids, text, seconds, SECONDS_PER_STEP, log_probability=total)
            faults = find_faults(evidence, checks) if ids else []
            probabilities = windows.language_probabilities
            scores = (probabilities[row] if probabilities else None, one.log_probability, silence)
            language = windows.languages[row]
            if _is_silence(one, silence, config, checks):
                dropped = (f"no speech: {text!r} was dropped",) if text else ()
                reading = WhisperReading((), "", language, "", temperature, dropped, *scores)
                tried[row] = [(0, 0.0, reading)]
                continue
            method = "sampling" if temperature else "beam" if config.beam > 1 else "greedy"
            warnings = tuple(f"{method} at temperature {temperature:g}: {fault}" for fault in faults)
            reading = WhisperReading(one.tokens, text, language, method, temperature, warnings, *scores)
            tried[row].append((len(faults), -one.log_probability, reading))
            if faults:
                again.append(row)
        open_rows = again
    return [min(attempts, key=lambda attempt: attempt[:2])[2] for attempts in tried]


def build_prompts(
    tokenizer: WhisperTokenizer, windows: EncodedWindows, config: WhisperDecodingConfig, max_tokens: int
) -> list[list[int]]:
    """Build the prompt of each window: the text before, if any, then language and task."""
    context = encode_context(tokenizer, config, max_tokens)
    left = _room(max_tokens) - len(context)
    earlier = [*context, *(windows.previous[-left:] if left else ())]
    start = [tokenizer.start_of_previous, *earlier] if earlier else []
    return [
        [*start, *tokenizer.prompt(language, config.task, windows.with_times)]
        for language in windows.languages
    ]


def encode_context(tokenizer: WhisperTokenizer, config: WhisperDecodingConfig, max_tokens: int) -> list[int]:
    """Hotwords and prompt, refused where the model cannot read them all."""
    texts = (", ".join(config.hotwords), config.prompt)
    words, prompt = (tokenizer.encode(f" {text.strip()}") if text else [] for text in texts)
    if len(words) + len(prompt) > _room(max_tokens):
        raise UserError(
            f"whisper.hotwords have {len(words)} tokens and whisper.prompt has {len(prompt)}, but this model "
            f"reads {_room(max_tokens)} in all; shorten them"
        )
    return words + prompt


def _room(max_tokens: int) -> int:
    """Tokens before the text, as Whisper has it: the other half is for the text."""
    return max_tokens // 2 - 1


def require_known(tokenizer: WhisperTokenizer, config: WhisperDecodingConfig, max_tokens: int) -> None:
    """Refuse a language or task that the model has not learned, and a context that is too long."""
    tokenizer.prompt(config.language or "en", config.task)
    encode_context(tokenizer, config, max_tokens)


def _decode_once(
    model: Whisper,
    tokenizer: WhisperTokenizer,
    windows: EncodedWindows,
    config: WhisperDecodingConfig,
    temperature: float,
    max_repeats: int | None,
    give_way: Callable[[], None],
) -> tuple[list[Found], list[float]]:
    """The tokens of each window, and how likely it is that nobody speaks there."""
    device, limit = windows.encoded_BTD.device, model.config.max_tokens
    prompt_BP = torch.tensor(build_prompts(tokenizer, windows, config, limit), device=device)
    beginning: Beginning = begin(
        model, tokenizer, windows.encoded_BTD, windows.lengths_B, prompt_BP, windows.bias_BT
    )
    rules = Rules(tokenizer, windows.with_times, device)
    max_tokens = min(limit // 2, limit - prompt_BP.size(1))
    no_speech = beginning.no_speech_B.tolist()
    if temperature == 0 and config.beam > 1:
        return search(model, rules, beginning, max_tokens, config.beam), no_speech
    samples = config.samples if temperature else 1
    found = sample(
        model,
        rules,
        beginning,
        max_tokens,
        temperature=temperature,
        samples=samples,
        seed=config.seed,
        max_repeats=max_repeats,
        give_way=give_way,
    )
    return found, no_speech


def _is_silence(found: Found, no_speech: float, config: WhisperDecodingConfig, checks: ChecksConfig) -> bool:
    if config.max_no_speech is None or no_speech <= config.max_no_speech:
        return False
    limit = checks.min_log_probability
    return limit is None or found.log_probability < limit
