"""Decoding with Whisper: windows and silence, prompts, languages, forbidden tokens, and word times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from asr.audio.segmentation import AudioSegment, SegmentationConfig, SegmentPlan
from asr.config import Precision
from asr.decoding.decode import Attempt, DecodingSetup, SpeechDecoder, compute_type, pad_audio
from asr.decoding.greedy import read_prompts
from asr.decoding.hypothesis import EncodedAudio, Language, SearchRules
from asr.errors import UserError
from asr.models.speech_model import SpeechModel
from asr.system.system import System
from asr.text.tokenizer import BLANK_ID, EOS_ID, PAD_ID, Tokenizer
from asr.transcripts.transcript import Word
from asr.whisper.encoder_decoder import quantize
from asr.whisper.family import WhisperDecodingConfig
from asr.whisper.language_names import WITHOUT_SPACES
from asr.whisper.sizes import SECONDS_PER_STEP
from asr.whisper.whisper_tokenizer import NUM_RESERVED, SpecialTokens, TokenizerUnits, units_of
from asr.whisper.windows import Windows

# B segments, R rows of a search, V vocabulary, P tokens of the prompt

OPENING_SECONDS = 30.0  # seconds of speech from which a recording's language is detected
# A segment that is padded to 30 s should hold as much speech as fits. Without padding, long segments cost
# more, because attention grows with the square of the length. If the user sets lengths, neither is used.
MAX_PADDED, MAX_UNPADDED, MIN_SHARE = 28.0, 20.0, 15 / 28
MAX_PAUSE_SECONDS = 3.0


@dataclass(frozen=True)
class OpenedSegment(AudioSegment):
    """A segment with its recording's first speech, and a list that holds the language once it is known."""

    opening: AudioSegment | None = None
    known: list[Language] | None = None


@dataclass(frozen=True)
class WhisperRules(SearchRules):
    """Tokens that must not come next."""

    never: Tensor = field(kw_only=True)
    not_first: Tensor = field(kw_only=True)
    past_text: int = field(kw_only=True)

    @classmethod
    def of(cls, units: TokenizerUnits, device: torch.device) -> WhisperRules:
        return cls(
            first=NUM_RESERVED,
            no_speech=BLANK_ID,
            by_mean=True,
            notes_attention=False,
            never=torch.tensor(units.find_suppressed(), device=device),
            not_first=torch.tensor([*units.encode_piece(" "), EOS_ID], device=device),
            past_text=units.special.first,
        )

    def forbid(self, scores_RV: Tensor, num_tokens: int) -> Tensor:
        scores_RV = scores_RV.index_fill(1, self.never, -torch.inf)
        if num_tokens == 0:
            scores_RV.index_fill_(1, self.not_first, -torch.inf)
        return scores_RV

    def spoken(self, tokens: Sequence[int]) -> tuple[int, ...]:
        return tuple(token for token in tokens if token < self.past_text)


class WhisperManners(SpeechDecoder):
    """Decoding with a Whisper model."""

    prefers_int8 = draws = True

    def __init__(self, system: System, *given: Any) -> None:
        super().__init__(system, *given)
        self.units, self.windows = units_of(system.tokenizer), Windows.of(system)
        self.special, self.sizes = self.units.special, self.windows.sizes
        self.rules = WhisperRules.of(self.units, self.device)
        trained = cast(Any, system.config.model).decoder.language
        self.language = trained if self.special.is_multilingual else "en"

    @staticmethod
    def set_precision(model: SpeechModel, precision: Precision) -> None:
        if precision.startswith("int8"):
            quantize(model, torch.bfloat16 if precision == "int8_bf16" else torch.float32)
        else:
            model.float()

    def check(self, setup: DecodingSetup) -> None:
        super().check(setup)
        if setup.config.speeds != (1.0,):
            raise UserError("decoding.speeds: Whisper models only decode at speed 1; leave it out")
        options = _options(setup)
        self.special.prompt(options.language or "en", options.task)
        encode_context(self.tokenizer, setup, self.sizes.max_tokens)

    def plan_segments(self, segmentation: SegmentationConfig, longest: float | None) -> SegmentPlan:
        """Cut utterances as well as files, because silence misleads Whisper in both."""
        longest = MAX_PADDED if self.windows.silence.stride is None else MAX_UNPADDED
        lengths = {"max_seconds": longest, "min_share": MIN_SHARE}
        lengths = {} if lengths.keys() & segmentation.model_fields_set else lengths
        segmentation = segmentation.with_rules(max_pause_seconds=MAX_PAUSE_SECONDS, **lengths)
        return SegmentPlan(segmentation.limited(self.windows.uncut_samples / self.sample_rate))

    def write(self, text: str) -> list[int]:
        return self.tokenizer.encode(text.strip())

    # --- windows ----------------------------------------------------------------------------------

    def padded_length(self, num_samples: int) -> int:
        return self.windows.count_padded_samples(num_samples)

    @torch.inference_mode()
    def encode(self, audio: Sequence[np.ndarray], speed: float = 1.0) -> EncodedAudio:
        with compute_type(self.device, self.dtype):
            return replace(self.windows.encode(*pad_audio(audio, self.device)), rules=self.rules)

    def prepare(self, pieces: Iterator[Any], setup: DecodingSetup) -> Iterator[Any]:
        """If the language must be detected, attach the recording's first speech to each segment."""
        if (_options(setup).language or self.language) is not None:
            yield from pieces
            return
        held: list[AudioSegment] = []
        opening: AudioSegment | None = None
        known: list[Language] = []
        for piece in pieces:
            is_end = not isinstance(piece, AudioSegment)
            if not is_end:
                held.append(piece)
            seconds = sum(len(one.audio_S) for one in held) / self.sample_rate
            if opening is None and held and (is_end or seconds >= OPENING_SECONDS):
                opening, known = held[0], []
                if len(held) > 1:
                    audio_S = np.concatenate([one.audio_S for one in held])[: self.windows.uncut_samples]
                    opening = replace(opening, audio_S=audio_S)
            if opening is not None:
                yield from (OpenedSegment(**vars(one), opening=opening, known=known) for one in held)
                held = []
            if is_end:
                opening = None
                yield piece

    # --- languages and prompts --------------------------------------------------------------------

    @torch.inference_mode()
    def introduce(
        self, encoded: EncodedAudio, segments: Sequence[AudioSegment], setup: DecodingSetup
    ) -> EncodedAudio:
        options = _options(setup)
        languages: tuple[Language, ...]
        if (language := options.language or self.language) is not None:
            languages = ((language, None),) * len(segments)
        else:
            with compute_type(self.device, self.dtype):
                own = detect_languages(encoded, self.special)
                languages = tuple(map(self._find_language, segments, own))
        context = encode_context(self.tokenizer, setup, self.sizes.max_tokens)
        before = [PAD_ID, *context] if context else []
        prompts = [[*before, *self.special.prompt(code, options.task)] for code, _ in languages]
        return replace(encoded, languages=languages, prompts_BP=torch.tensor(prompts, device=self.device))

    def _find_language(self, segment: AudioSegment, own: Language) -> Language:
        """Return the language of a segment's recording; in live speech, the segment's own language."""
        if not isinstance(segment, OpenedSegment) or segment.opening is None or segment.known is None:
            return own
        if not segment.known and segment.opening.audio_S is segment.audio_S:
            segment.known.append(own)
        elif not segment.known:
            opening = self.encode([segment.opening.audio_S])
            segment.known.extend(detect_languages(opening, self.special))
        return segment.known[0]

    # --- texts ------------------------------------------------------------------------------------

    def name_method(self, attempt: Attempt) -> str:
        if attempt.temperature:
            return "sampling"
        return "greedy" if attempt.config.beam == 1 else "beam"

    def number(self, tokens: Sequence[int]) -> tuple[int, ...]:
        order = self.special.order()
        return tuple(order[token] for token in tokens)

    def spell(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens).strip()

    def separator_in(self, language: str | None) -> str:
        return "" if language in WITHOUT_SPACES else " "

    def time_words(
        self,
        encoded: EncodedAudio,
        audio: Sequence[np.ndarray],
        texts: Sequence[Sequence[int]],
        setup: DecodingSetup,
        by_ctc: bool | None = None,
    ) -> list[list[Word]]:
        from asr.whisper.words import align_tokens, find_alignment_heads, time_words

        task, heads = _options(setup).task, find_alignment_heads(self.sizes)
        prompts = [self.special.prompt(language, task) for language, _ in encoded.languages]
        num_steps = [int(len(audio_S) / (SECONDS_PER_STEP * self.sample_rate)) for audio_S in audio]
        with compute_type(self.device, self.dtype):
            aligned = align_tokens(encoded, heads, self.special.first, num_steps, prompts, texts)
        return [
            time_words(self.units.pieces, tokens, language, firsts, probabilities)
            for tokens, (language, _), firsts, probabilities in zip(
                texts, encoded.languages, *aligned, strict=True
            )
        ]


def detect_languages(encoded: EncodedAudio, special: SpecialTokens) -> list[Language]:
    """Return the most likely language of each window, and its probability among all languages.

    For an English-only model, this is English with probability 1.
    """
    if not special.is_multilingual:
        return [("en", 1.0)] * len(encoded.lengths_B)
    scores_BV = read_prompts(replace(encoded, prompts_BP=None)).scores_BV
    codes, ids = zip(*special.languages.items(), strict=True)
    best_B, places_B = scores_BV[:, list(ids)].softmax(-1).max(-1)
    return [(codes[place], best) for place, best in zip(places_B.tolist(), best_B.tolist(), strict=True)]


def encode_context(tokenizer: Tokenizer, setup: DecodingSetup, max_tokens: int) -> list[int]:
    """Encode hotwords and prompt, which may take half of the positions, because the rest is for the text."""
    texts, room = (", ".join(setup.config.hotwords), _options(setup).prompt), max_tokens // 2 - 1
    words, prompt = (tokenizer.encode(text.strip()) for text in texts)
    if len(words) + len(prompt) > room:
        raise UserError(
            f"decoding.hotwords have {len(words)} tokens and whisper.prompt has {len(prompt)}, but this "
            f"model reads {room} in all; shorten them"
        )
    return words + prompt


def _options(setup: DecodingSetup) -> WhisperDecodingConfig:
    options = setup.options or WhisperDecodingConfig()
    assert isinstance(options, WhisperDecodingConfig), f"expected a WhisperDecodingConfig, not {options}"
    return options
