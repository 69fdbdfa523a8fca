"""Input and output of searches: settings, encoded audio, n-best lists; hallucination checks."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import pydantic
from rapidfuzz.distance import Levenshtein

from asr.config import Config
from asr.errors import shorten
from asr.text.tokenizer import BLANK_ID, UNK_ID
from asr.transcripts.transcript import measure_compression

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from asr.models.speech_model import SpeechModel

# B utterances, T encoded steps, D dimension, U tokens, V vocabulary, R rows (utterances x beams)


class DecodingConfig(Config):
    """Settings of the search for the best token sequence."""

    method: str = "auto"
    """ctc_greedy: the most likely token of each frame. ctc_beam: the most likely text under the CTC head.
    attention: under the decoder, token by token. joint: under both at once. rescoring: the texts of ctc_beam,
    ranked by both. parallel: all tokens at once, with a non-autoregressive decoder. transducer: with one.
    auto: transducer, or else the first that the model has heads for: joint, attention, parallel, ctc_beam."""
    beam: int = pydantic.Field(default=10, gt=0, le=1_000)
    """Hypotheses kept at each step; 1 is greedy. For parallel: number of text lengths tried, if predicted."""
    nbest: int = pydantic.Field(default=1, gt=0)
    """Maximum number of hypotheses returned for each utterance."""
    ctc_weight: float = pydantic.Field(default=0.3, ge=0, le=1)
    """Weight of CTC in the score for joint and rescoring; the decoder has the rest."""
    language_model_weight: float = pydantic.Field(default=0.0, ge=0)
    """Weight of the language model's log-probability; 0.3 if a language model comes without a weight."""
    window_width: float | None = pydantic.Field(default=None, gt=0)
    """Soft window of cross-attention (joint and attention) around the frame of CTC's next token: a Gaussian
    with this standard deviation in frames, such as 2. It is for recordings longer than in training
    (recipes/guided_attention.md). null: as in training."""
    speeds: tuple[Annotated[float, pydantic.Field(ge=0.5, le=2)], ...] = (1.0,)
    """Speed factors (tempo and pitch) at which each utterance is decoded, such as [0.85, 1.0, 1.15], for
    voices higher or lower than in training. The text with the fewest problems under `checks` wins, then the
    one that CTC (or else the decoder) finds likeliest. Each speed costs as much as the first."""

    chunk_steps: int | None = pydantic.Field(default=None, ge=1)
    """Encode by chunks of so many steps, as live transcription does, of an encoder that was trained for it;
    null: whole segments."""

    hotwords: tuple[str, ...] = ()
    """Words that are likely to occur, such as names."""
    hotword_boost: float = pydantic.Field(default=1.5, ge=0)
    """Added to the log-probability of each token of a hotword."""
    temperatures: tuple[pydantic.PositiveFloat, ...] = ()
    """Sampling temperatures that are tried in turn while `checks` reject the text. Empty: a rejected text is
    decoded with CTC, or with a narrower beam."""
    samples: int = pydantic.Field(default=5, gt=0, le=1_000)
    """Samples at each temperature. The likeliest of the samples with the fewest problems is used."""

    @pydantic.field_validator("speeds")
    @classmethod
    def _speeds_differ(cls, speeds: tuple[float, ...]) -> tuple[float, ...]:
        if not speeds or len(set(speeds)) < len(speeds):
            raise ValueError("expected at least one, and each only once")
        return speeds


@dataclass(frozen=True)
class Hypothesis:
    """A possible text of an utterance with its scores."""

    tokens: tuple[int, ...]  # token IDs without start and end
    score: float  # the weighted value that ranks it
    log_probability: float = math.nan
    """Sum over the tokens and the end under the decoder; nan if not scored."""
    ctc_log_probability: float = math.nan
    """Log-probability under the CTC head, summed over all alignments; nan if not scored."""
    attended_steps: tuple[float, ...] = ()
    """Mean encoder frame that the decoder's last layer attends to, for each token and the end. Where it jumps
    back or stands still, the decoder repeats or invents text. Empty without attention."""

    no_speech: float | None = None
    """Probability that nobody speaks, if the decoder was trained to predict it."""

    @property
    def mean(self) -> float:
        """Mean log-probability of its tokens and the end under the decoder."""
        return self.log_probability / (len(self.tokens) + 1)

    @property
    def likelihood(self) -> float:
        """Log-probability without a language model, to compare speeds. CTC is preferred to the decoder, which
        rates likely texts above texts that fit the audio."""
        return self.log_probability if math.isnan(self.ctc_log_probability) else self.ctc_log_probability


NBest = list[list[Hypothesis]]
"""Hypotheses of each utterance, best first."""


# --- encoded audio ------------------------------------------------------------------------------


@dataclass(frozen=True)
class SearchRules:
    """Token properties that a search needs; the defaults fit models trained here."""

    first: int = UNK_ID
    """The first ID that may occur in a text."""
    no_speech: int | None = None
    """The token that is likely after the start if nobody speaks."""
    by_mean: bool = False
    """Rank texts by mean log-probability instead of the sum; an utterance is done once `beam` texts ended."""
    notes_attention: bool = True
    """Record where the last layer attends, for the checks."""

    def forbid(self, scores_RV: Tensor, num_tokens: int) -> Tensor:
        """Return the scores with -inf for tokens that may not follow `num_tokens` others."""
        return scores_RV

    def spoken(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens that stand for text."""
        return tuple(tokens)


Language = tuple[str, float | None]
"""Language code, with its probability if it was detected."""


@dataclass(frozen=True, eq=False)
class EncodedAudio:
    """A batch of encoded utterances. CTC posteriors are computed once, on first use."""

    model: SpeechModel
    encoded_BTD: Tensor
    lengths_B: Tensor
    bias_BT: Tensor | None = None
    """Added to the attention scores of each step."""
    languages: tuple[Language, ...] = ()
    """Language of each utterance, if the model knows several."""
    prompts_BP: Tensor | None = None
    """Tokens that the decoder reads before a text; if empty, only the start."""
    rules: SearchRules = SearchRules()

    @functools.cached_property
    def ctc_BTV(self) -> Tensor:
        """Log-probabilities of the CTC head."""
        return self.model.ctc_log_probabilities(self.encoded_BTD)

    @functools.cached_property
    def ctc_paths(self) -> BestPaths:
        return find_best_paths(self.ctc_BTV, self.lengths_B)

    def select(self, rows: Tensor) -> EncodedAudio:
        """Select utterances, and drop steps that are padding in all of them."""
        lengths = self.lengths_B[rows]
        longest = max(1, int(lengths.max()))
        if len(rows) == len(self.lengths_B) and longest >= self.encoded_BTD.size(1):
            return self
        chosen = replace(
            self,
            encoded_BTD=self.encoded_BTD[rows, :longest],
            lengths_B=lengths,
            bias_BT=None if self.bias_BT is None else self.bias_BT[rows, :longest],
            languages=tuple(self.languages[row] for row in rows.tolist()) if self.languages else (),
            prompts_BP=None if self.prompts_BP is None else self.prompts_BP[rows],
        )
        if "ctc_BTV" in self.__dict__:
            chosen.__dict__["ctc_BTV"] = self.ctc_BTV[rows, :longest]
        return chosen


def join_encoded(parts: Sequence[EncodedAudio]) -> EncodedAudio:
    """Concatenate the utterances of all parts, padded to the longest."""
    if len(parts) == 1:
        return parts[0]
    import torch  # imported here, because checking settings does not need it
    from torch.nn import functional as F

    longest = max(part.encoded_BTD.size(1) for part in parts)

    def join(tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([F.pad(x_BTN, (0, 0, 0, longest - x_BTN.size(1))) for x_BTN in tensors])

    encoded_BTD = join([part.encoded_BTD for part in parts])
    joined = replace(parts[0], encoded_BTD=encoded_BTD, lengths_B=torch.cat([one.lengths_B for one in parts]))
    if all("ctc_BTV" in part.__dict__ for part in parts):
        joined.__dict__["ctc_BTV"] = join([part.ctc_BTV for part in parts])
    return joined


@dataclass(frozen=True)
class BestPaths:
    """Tokens on the best CTC path of each utterance in a batch."""

    tokens_BU: Tensor
    steps_BU: Tensor  # first step of each token
    log_probabilities_BU: Tensor  # highest log-probability among the steps of the token
    counts_B: Tensor
    path_log_probability_B: Tensor  # log-probability of the path, blanks and repeats included

    def texts(self) -> list[list[int]]:
        rows = zip(self.tokens_BU.tolist(), self.counts_B.tolist(), strict=True)
        return [tokens[:count] for tokens, count in rows]


def find_best_paths(log_probabilities_BTV: Tensor, lengths_B: Tensor) -> BestPaths:
    best_BT, path_BT = log_probabilities_BTV.max(-1)
    steps_T = path_BT.new_ones(path_BT.size(1)).cumsum(0) - 1
    is_first_BT = (path_BT != path_BT.roll(1, dims=1)) | (steps_T == 0)
    is_audio_BT = steps_T < lengths_B[:, None]
    is_token_BT = (path_BT != BLANK_ID) & is_audio_BT
    # Each step goes to the position of its token; blanks and padding to one after all of them.
    positions_BT = (is_first_BT & is_token_BT).cumsum(1) - 1
    counts_B = (is_first_BT & is_token_BT).sum(1)
    longest = int(counts_B.max()) if len(counts_B) else 0
    positions_BT = positions_BT.masked_fill(~is_token_BT, longest)
    empty = (len(path_BT), longest + 1)
    tokens_BU = path_BT.new_full(empty, UNK_ID).scatter(1, positions_BT, path_BT)
    steps_BT = steps_T.expand_as(path_BT)
    steps_BU = path_BT.new_full(empty, path_BT.size(1)).scatter_reduce(1, positions_BT, steps_BT, "amin")
    peaks_BU = best_BT.new_full(empty, -math.inf).scatter_reduce(1, positions_BT, best_BT, "amax")
    path_B = best_BT.masked_fill(~is_audio_BT, 0.0).sum(1)
    return BestPaths(tokens_BU[:, :-1], steps_BU[:, :-1], peaks_BU[:, :-1], counts_B, path_B)


# --- shallow fusion -----------------------------------------------------------------------------


class FusionState(Protocol):
    """Rows of a search, each with its tokens so far."""

    def score(self, tokens_R: Tensor) -> Tensor:
        """Append a token to each row, and return (R, V) natural log-probabilities of the next token.

        The first call has `SOS_ID` for every row, and all rows have the same number of tokens. IDs are the
        speech model's, with the end at `EOS_ID`. Log-probabilities may be -inf but not exceed 0, which
        searches rely on to stop when no row can win.
        """
        ...

    def select(self, rows: Tensor) -> None:
        """Continue with these rows in this order; rows may repeat or be dropped."""
        ...


class FusionModel(Protocol):
    """A language model, or another model that scores the next token."""

    def start(self, num_rows: int, device: torch.device) -> FusionState:
        """Return the state of a new search without tokens. Searches do not share states."""
        ...


@dataclass(frozen=True)
class DecodingSetup:
    """Decoding settings, and the language model for shallow fusion."""

    config: DecodingConfig
    language_model: FusionModel | None = None
    options: Config | None = None  # settings of the model's family, such as the language


# --- checks -------------------------------------------------------------------------------------

# Attention decoders may repeat, skip and invent; a CTC head, which reads each step once, cannot. A text
# beyond these limits is rejected.
MAX_BACKWARD_SECONDS = 0.6  # larger jumps indicate a decoding failure; heads vary by a few steps
MAX_STILL_TOKENS, STILL_SECONDS = 6, 0.1  # 60 tokens per second; people speak 15 characters
MAX_REPEATS = 4  # repetitions of a token sequence in a row, unless CTC's best path has as many
MAX_CTC_DISTANCE = 0.5  # edits per token of the longer text; if less than half is shared, one is wrong
MAX_TOKENS_PER_SECOND = 40.0  # the fastest speakers reach 25 characters a second
# Geometric mean of CTC's token probabilities on its best path. Below the first, the audio counts as silence;
# below the second, if the decoder disagrees, as music or noise, for which the heads write different texts.
MIN_SPEECH_PROBABILITY, MIN_AGREED_PROBABILITY = 0.5, 0.75
# CTC confirms a text that is at most so many nats (5: a factor of 150) less likely than its best path.
# Chosen on FSDD's dev set: values from 2 to 6 lose nothing, also in strings of twice the trained length.
CONFIRMED_NATS = 5.0


class ChecksConfig(Config):
    """Checks that reject a text for repetition, skipped speech or invention, so that another decoding is
    tried. `checks=off` keeps the first text."""

    enabled: bool = True
    """False turns off checks and fallbacks."""
    max_compression: float | None = pydantic.Field(default=2.4, gt=1)
    """Maximum compression ratio: prose has 1 to 2, endless repetition more. null: no limit. It does not apply
    if the text of CTC's best path compresses as well."""
    min_log_probability: float | None = pydantic.Field(default=-1.0, lt=0)
    """Minimum mean log-probability of tokens under the decoder; -1 means probability 0.37. null: no limit."""
    max_no_speech: float | None = pydantic.Field(default=0.6, gt=0, lt=1)
    """Maximum no-speech probability, if the model predicts it; above, a text below min_log_probability is
    dropped. null: never."""
    max_skipped_seconds: float | None = pydantic.Field(default=1.5, gt=0)
    """Maximum speech on CTC's best path, in seconds, that attention may skip. null: no limit."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        if value in ("on", True):
            return {}
        return cls.off().model_dump() if value in ("off", False) else value

    @classmethod
    def off(cls) -> ChecksConfig:
        """Return settings without checks and fallbacks, to compare decoding methods."""
        limits = ("max_compression", "min_log_probability", "max_no_speech", "max_skipped_seconds")
        return cls(enabled=False, **dict.fromkeys(limits))

    def describe(self) -> str:
        """Return on, off, or the changed settings, to print with a result."""
        if not self.enabled:
            return "off"
        defaults = ChecksConfig()
        changed = [name for name in type(self).model_fields if getattr(self, name) != getattr(defaults, name)]
        return ", ".join(["on", *(f"{name} {shorten(getattr(self, name))}" for name in changed)])


@dataclass(frozen=True)
class CtcText:
    """Best path through the CTC posteriors."""

    tokens: Sequence[int]
    steps: Sequence[int]  # first step of each token
    text: str
    log_probability: float  # mean over its tokens
    path_log_probability: float = 0.0  # log-probability of the path, blanks included


@dataclass(frozen=True)
class Evidence:
    """Facts about one decoded segment that the checks use."""

    hypothesis: Hypothesis
    text: str
    seconds: float  # duration of the segment
    seconds_per_step: float
    ctc: CtcText | None = None  # None if the model has no CTC head


def find_problems(evidence: Evidence, config: ChecksConfig) -> list[str]:
    """Describe the problems of a hypothesis."""
    tokens, ctc = evidence.hypothesis.tokens, evidence.ctc
    if not config.enabled:
        return []
    if not tokens:
        return [f"no text, but CTC's best path is {ctc.text!r}"] if ctc is not None and ctc.tokens else []
    # If CTC finds the text about as likely as its best path, nothing is skipped or repeated.
    is_confirmed = ctc is not None and (
        evidence.hypothesis.ctc_log_probability >= ctc.path_log_probability - CONFIRMED_NATS
    )
    problems = [] if is_confirmed else _find_problems_of_attention(evidence, config)
    repeats = count_repeats(tokens)
    if repeats > max(MAX_REPEATS, 1 if ctc is None else count_repeats(ctc.tokens)):
        problems.append(f"the same {repeats} times in a row")
    ratio = measure_compression(evidence.text)
    # Up to a tenth more than CTC's is accepted, because longer texts compress better.
    by_ctc = 0.0 if ctc is None else 1.1 * measure_compression(ctc.text)
    if config.max_compression is not None and ratio > max(config.max_compression, by_ctc):
        problems.append(f"the text repeats itself: it compresses {ratio:.1f} times")
    if is_far_from_ctc(evidence):
        assert ctc is not None
        problems.append(f"CTC's best path is {ctc.text!r}")
    limit, mean = config.min_log_probability, evidence.hypothesis.log_probability / (len(tokens) + 1)
    if limit is not None and mean < limit:  # nan is not below the limit
        problems.append(f"the decoder finds it unlikely: mean log-probability {mean:.2f}")
    speed = len(tokens) / max(evidence.seconds, evidence.seconds_per_step)
    if speed > MAX_TOKENS_PER_SECOND:
        problems.append(f"{speed:.0f} tokens a second")
    return problems


def _find_problems_of_attention(evidence: Evidence, config: ChecksConfig) -> list[str]:
    """Find attention that jumps back, stays at a frame, or skips tokens of CTC's best path."""
    steps = evidence.hypothesis.attended_steps[:-1]  # the end may attend anywhere
    seconds, limit = evidence.seconds_per_step, config.max_skipped_seconds
    problems = []
    back = max(
        (farthest - step for farthest, step in zip(itertools.accumulate(steps, max), steps, strict=True)),
        default=0,
    )
    if back * seconds > MAX_BACKWARD_SECONDS:
        problems.append(f"attention jumps back by {back * seconds:.1f} s")
    runs = [steps[first : first + MAX_STILL_TOKENS + 1] for first in range(len(steps) - MAX_STILL_TOKENS)]
    if any((max(run) - min(run)) * seconds < STILL_SECONDS for run in runs):
        problems.append(f"attention stays at one frame for more than {MAX_STILL_TOKENS} tokens")
    if steps and evidence.ctc is not None and limit is not None:
        attended = [-math.inf, *sorted(steps), math.inf]
        for before, after in itertools.pairwise(attended):
            inside = [step for step in evidence.ctc.steps if before < step < after]
            if inside and (inside[-1] - inside[0]) * seconds > limit:
                skipped = (inside[-1] - inside[0]) * seconds
                return [*problems, f"attention skips {skipped:.1f} s in which CTC finds speech"]
    return problems


def count_repeats(tokens: Sequence[int], max_period: int = 60) -> int:
    """Count the most repetitions in a row of a sequence of up to `max_period` tokens; at least 1."""
    most = 1
    for period in range(1, min(max_period, len(tokens) // 2) + 1):
        run = 0
        for position in range(period, len(tokens)):
            run = run + 1 if tokens[position] == tokens[position - period] else 0
            most = max(most, run // period + 1)
    return most


def is_silence(hypothesis: Hypothesis, config: ChecksConfig) -> bool:
    """Check whether the model finds silence likely and the text unlikely."""
    if hypothesis.no_speech is None or config.max_no_speech is None:
        return False
    is_unlikely = config.min_log_probability is None or hypothesis.mean < config.min_log_probability
    return hypothesis.no_speech > config.max_no_speech and is_unlikely


def is_far_from_ctc(evidence: Evidence) -> bool:
    if evidence.ctc is None:
        return False
    tokens = evidence.hypothesis.tokens
    longer = max(len(tokens), len(evidence.ctc.tokens), 1)
    return Levenshtein.distance(tokens, evidence.ctc.tokens) / longer > MAX_CTC_DISTANCE


def is_speech(ctc: CtcText | None) -> bool:
    """Check that CTC's best path has likely tokens; true without a CTC head."""
    return ctc is None or ctc.log_probability >= math.log(MIN_SPEECH_PROBABILITY)


def is_agreed(evidence: Evidence) -> bool:
    """Check that the decoder confirms CTC's best path, or that the path is likely enough by itself."""
    ctc = evidence.ctc
    is_likely = ctc is None or ctc.log_probability >= math.log(MIN_AGREED_PROBABILITY)
    return is_likely or not is_far_from_ctc(evidence)
