"""Several systems decode a split together: the n-best texts of each are scored by all of them.

A vote on words knows only what each system likes best. Here a text that is the second best of every system
can win. Log-probabilities of whole texts are added up, so that systems of letters and of phones fit together.
Each system hears an utterance at the one of its speeds at which it finds its own best text likeliest, as it
does alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from asr.audio.reading import resample
from asr.data.manifest import Utterance
from asr.decoding.beam import pad_texts, rescore
from asr.decoding.decode import METHODS, resolve_method, search_encoded
from asr.decoding.hypothesis import DecodingConfig, EncodedAudio, FusionModel, Hypothesis
from asr.evaluation.speech import ReadAudio, decode_split
from asr.models.decoders import Decoder
from asr.text.tokenizer import BLANK_ID, UNK_ID, Tokenizer
from asr.transcription.transcribe import Recognizer

STEP_SECONDS = 1  # batches are of recordings whose lengths differ by less

# B utterances, H texts of each, R = B x H, U tokens, T encoded steps, V vocabulary


@dataclass(frozen=True)
class Member:
    """A system, how it searches, and the language model that counts in its score."""

    recognizer: Recognizer
    decoding: DecodingConfig
    """Its `nbest` is how many texts it proposes, at each of its speeds."""
    language_model: FusionModel | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        return self.recognizer.system.tokenizer


def decode_together(
    members: Sequence[Member],
    utterances: Sequence[Utterance],
    batch_size: int,
    report: Callable[[float], None] = lambda seconds: None,
) -> tuple[dict[str, str], dict[str, str]]:
    """Find the text of each utterance with the highest sum of scores; and what could not be read, and why.

    `report` is told the seconds of audio that are done.
    """
    texts: dict[str, str] = {}
    faults: dict[str, str] = {}
    rate = max(member.recognizer.sample_rate for member in members)

    def decode(batch: Sequence[ReadAudio]) -> None:
        found = decode_batch(members, [audio for _, audio in batch], rate)
        texts.update(zip((item.id for item, _ in batch), found, strict=True))

    def group(num_samples: int) -> int:
        return num_samples // (STEP_SECONDS * rate)

    decode_split(utterances, rate, batch_size, decode, faults, report, group)
    return texts, faults


@torch.inference_mode()
def decode_batch(members: Sequence[Member], audio: Sequence[np.ndarray], rate: int) -> list[str]:
    """The best text of each recording."""
    proposed: list[dict[str, None]] = [{} for _ in audio]
    heard = []
    for member in members:
        recognizer = member.recognizer
        own_audio = [resample(one, rate, recognizer.sample_rate) for one in audio]
        at_speeds = [recognizer.decoder.encode(own_audio, speed) for speed in member.decoding.speeds]
        found = [_search(member, encoded) for encoded in at_speeds]
        for row, own in enumerate(proposed):
            for hypotheses in found:
                own |= dict.fromkeys(member.tokenizer.decode(one.tokens) for one in hypotheses[row])
        heard.append((member, at_speeds, [_choose_speed(at_row) for at_row in zip(*found, strict=True)]))
    scores_of: list[dict[str, list[float]]] = [{text: [] for text in own} for own in proposed]
    for member, at_speeds, chosen in heard:
        for number, encoded in enumerate(at_speeds):
            rows = [row for row, speed in enumerate(chosen) if speed == number and proposed[row]]
            if not rows:
                continue
            part = encoded.select(torch.tensor(rows, device=encoded.lengths_B.device))
            scores = _score(member, part, [list(proposed[row]) for row in rows])
            for row, score_of in zip(rows, scores, strict=True):
                for text, scores_so_far in scores_of[row].items():
                    scores_so_far.append(score_of.get(text, -np.inf))
    return [choose_text(own) if own else "" for own in scores_of]


def choose_text(scores_of: Mapping[str, Sequence[float]]) -> str:
    """The text with the highest sum of scores by the systems, -inf where one cannot spell the text.

    Only sums over the same systems are compared: over as many as possible, and of as many over the earlier.
    """

    def rank(text: str) -> tuple[int, list[bool], float]:
        spelled = [score > -np.inf for score in scores_of[text]]
        return sum(spelled), spelled, sum(score for score in scores_of[text] if score > -np.inf)

    return max(scores_of, key=rank)


def _search(member: Member, encoded: EncodedAudio) -> list[list[Hypothesis]]:
    """The texts that a system proposes for each utterance; none where there is no speech to decode."""
    with member.recognizer.decoder.arithmetic():
        found = search_encoded(encoded, member.decoding, member.language_model)
    return [own if length else [] for own, length in zip(found, encoded.lengths_B.tolist(), strict=True)]


def _choose_speed(at_speeds: Sequence[Sequence[Hypothesis]]) -> int:
    """Number of the speed at which the best text is likeliest, as `DecodedBatch.best` has it."""
    likelihoods = [found[0].likelihood if found else -np.inf for found in at_speeds]
    return max(range(len(likelihoods)), key=likelihoods.__getitem__)


def _score(
    member: Member, encoded: EncodedAudio, texts: Sequence[Sequence[str]]
) -> Iterator[Mapping[str, float]]:
    """Log-probability of each text that the system can spell, weighted as in its search."""
    decoder = member.recognizer.decoder
    spelled = [{text: tuple(member.tokenizer.encode(text)) for text in own} for own in texts]
    found = [
        [Hypothesis(tokens, 0.0) for tokens in dict.fromkeys(own.values()) if UNK_ID not in tokens]
        for own in spelled
    ]
    if not any(found):
        yield from ({} for _ in texts)
        return
    with decoder.arithmetic():
        scored = score_hypotheses(encoded, found, member.decoding, member.language_model)
    for own, hypotheses in zip(spelled, scored, strict=True):
        score_of = {one.tokens: one.score for one in hypotheses}
        yield {text: score_of[tokens] for text, tokens in own.items() if tokens in score_of}


def score_hypotheses(
    encoded: EncodedAudio,
    found: list[list[Hypothesis]],
    config: DecodingConfig,
    language_model: FusionModel | None,
) -> list[list[Hypothesis]]:
    """Score given texts, in any order, by the heads that the method of `config` uses."""
    model = encoded.model
    method = METHODS[resolve_method(model, config.method)]
    ctc_weight = config.ctc_weight if method.decoder and method.needs_ctc else float(method.needs_ctc)
    if model.ctc_head is not None:
        found = _with_ctc(encoded, found)
    asks_decoder = isinstance(model.decoder, Decoder) and ctc_weight < 1
    own = {"nbest": max(map(len, found)), "ctc_weight": ctc_weight if asks_decoder else 1.0}
    return rescore(encoded, found, config.model_copy(update=own), language_model, asks_decoder)


def _with_ctc(encoded: EncodedAudio, found: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
    """The texts with their probabilities under the CTC head, all alignments summed."""
    tokens_RU, counts_R = pad_texts(found, encoded.lengths_B.device)
    per_utterance = max(map(len, found))
    log_probabilities_TRV = encoded.ctc_BTV.float().repeat_interleave(per_utterance, 0).transpose(0, 1)
    lengths_R: Tensor = encoded.lengths_B.repeat_interleave(per_utterance)
    losses_R = F.ctc_loss(log_probabilities_TRV, tokens_RU, lengths_R, counts_R, BLANK_ID, "none")
    losses_BH = losses_R.double().view(len(found), -1).tolist()
    return [
        [dataclasses.replace(one, ctc_log_probability=-loss) for one, loss in zip(own, row, strict=False)]
        for own, row in zip(found, losses_BH, strict=True)
    ]
