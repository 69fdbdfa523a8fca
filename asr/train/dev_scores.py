"""Scores on the dev set during training: loss, accuracy, error rates."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Iterable
from typing import Any, cast

import torch

from asr.batches.builder import Batch
from asr.decoding.decode import search_greedy
from asr.decoding.hypothesis import EncodedAudio
from asr.models.layers import Net
from asr.models.speech_model import SpeechModel
from asr.scoring.counting import count_character_errors, count_word_errors
from asr.system.system import System
from asr.text.normalization import normalize
from asr.train.distributed import Process, gather_over_processes

MEASURES = {"wer": count_word_errors, "cer": count_character_errors}


@torch.inference_mode()
def compute_dev_scores(system: System[Net], batches: Iterable[Batch], process: Process) -> dict[str, float]:
    """Compute the scores that the model derives from its losses, and WER and CER of each of its heads.

    Decoding is greedy and without hallucination checks, so it is fast and the same for every checkpoint. The
    utterances are divided among all processes.
    """
    model = system.model.eval()
    own = _add(_measure(system, batch.to(process.device)) for batch in batches if len(batch))
    sums = _add(gather_over_processes(own, process, process.group))
    tokens, words = max(sums["tokens"], 1.0), max(sums["words"], 1.0)
    means = {name: sums[name] / tokens for name in model.reported if name in sums}
    scores = model.score(means, tokens_per_word=tokens / words)
    for head, name in itertools.product(model.text_heads, MEASURES):
        length = sums[name, head, "length"]
        scores[f"{name}_{head}"] = sums[name, head, "errors"] / length if length else math.inf
    return with_error_rates_of_the_system(scores)


def _measure(system: System[Net], batch: Batch) -> dict[Any, float]:
    """Measure the losses of a batch, and the errors of each head, as sums over its utterances."""
    losses = system.model(batch.features_BTF, batch.feature_lengths_B, batch.tokens_BU, batch.token_lengths_B)
    references = [normalize(text, system.config.text.scoring) for text in batch.texts]
    num_words = sum(len(text.split()) + 1 for text in references)  # the end of an utterance counts too
    counted = {"tokens": losses.num_tokens, "words": num_words, "total": losses.total}
    sums: dict[Any, float] = {name: float(value) for name, value in (counted | losses.parts).items()}
    for head, hypotheses in decode_batch(system, batch).items():
        for name, count in MEASURES.items():
            errors = count(zip(references, hypotheses, strict=True))
            sums[name, head, "errors"] = errors.errors
            sums[name, head, "length"] = errors.length
    return sums


def _add(parts: Iterable[dict[Any, float]]) -> dict[Any, float]:
    """Add sums by name. Missing names count as 0, because a process without batches has none."""
    sums: dict[Any, float] = collections.defaultdict(float)
    for part in parts:
        for name, value in part.items():
            sums[name] += value
    return sums


def decode_batch(system: System[Net], batch: Batch) -> dict[str, list[str]]:
    """Decode each utterance greedily with each head, and return normalized texts by head."""
    if not system.model.text_heads:
        return {}
    model = cast(SpeechModel, system.model)
    encoded = EncodedAudio(model, *model.encode(batch.features_BTF, batch.feature_lengths_B))
    tokens = search_greedy(encoded)
    return {
        head: [normalize(system.tokenizer.decode(ids), system.config.text.scoring) for ids in all_ids]
        for head, all_ids in tokens.items()
    }


def with_error_rates_of_the_system(scores: dict[str, float]) -> dict[str, float]:
    """Add wer and cer of the whole system, which are the decoder's if there is one, else CTC's."""
    for head in ("decoder", "ctc"):
        if f"wer_{head}" in scores:
            first = {name: scores[name] for name in ("loss", "token_accuracy") if name in scores}
            own = {name: scores[f"{name}_{head}"] for name in MEASURES if f"{name}_{head}" in scores}
            return first | own | scores
    return scores
