"""Scores on the dev set during training: loss, accuracy, error rates, BLEU."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch
from torch import Tensor

from asr.batches.builder import Batch
from asr.decoding.decode import search_quickly
from asr.decoding.hypothesis import EncodedAudio
from asr.models import Model, SpeechModel
from asr.scoring.counting import ErrorCount, count_character_errors, count_word_errors
from asr.scoring.result import compute_bleu, count_bleu
from asr.system.checkpoint import System
from asr.text.normalization import normalize
from asr.train.distributed import Process, sum_over_processes

Pairs = list[tuple[str, str]]  # of reference and hypothesis


@torch.inference_mode()
def compute_dev_scores(system: System[Model], batches: Iterable[Batch], process: Process) -> dict[str, float]:
    """Compute the scores that the model makes of its losses, and wer and cer of each of its heads; bleu if it
    selects checkpoints.

    Heads decode greedily and without checks: quick, and the same for every checkpoint. All processes together
    see each utterance once.
    """
    model = system.model.eval()
    sums: dict[str, float] = collections.defaultdict(float)
    pairs: dict[str, Pairs] = {head: [] for head in system.model.text_heads}
    for batch in batches:
        if not len(batch):
            continue
        batch = batch.to(process.device)
        losses = model(batch.features_BTF, batch.feature_lengths_B, batch.tokens_BU, batch.token_lengths_B)
        references = [normalize(text, system.config.text.scoring) for text in batch.texts]
        num_words = sum(len(text.split()) + 1 for text in references)  # the end is one
        counted: dict[str, float | Tensor] = {"tokens": losses.num_tokens, "words": num_words}
        for name, value in (counted | {"total": losses.total} | losses.parts).items():
            sums[name] += float(value)
        for head, hypotheses in decode_batch(system, batch).items():
            pairs[head] += zip(references, hypotheses, strict=True)
    wanted = [name for name in MEASURES if name != "bleu" or system.config.train.select_by == name]
    counts = {(name, head): MEASURES[name][0](pairs[head]) for head in pairs for name in wanted}
    names = ("tokens", "words", *model.reported)
    values = [sums.get(name, 0.0) for name in names]
    values += [float(name in sums) for name in names]  # a process may have had no batch
    values += [number for numbers in counts.values() for number in numbers]
    totals = sum_over_processes(values, process)
    tokens, words = max(totals[0], 1.0), max(totals[1], 1.0)
    has_values = totals[len(names) : 2 * len(names)]
    means = {n: total / tokens for n, total, has in zip(names, totals, has_values, strict=False) if has}
    means = {name: mean for name, mean in means.items() if name in model.reported}
    scores = model.score(means, tokens_per_word=tokens / words)
    rest = iter(totals[2 * len(names) :])
    for (name, head), numbers in counts.items():
        scores[f"{name}_{head}"] = MEASURES[name][1](list(itertools.islice(rest, len(numbers))))
    return with_error_rates_of_the_system(scores)


def _count_errors(count: Callable[[Pairs], ErrorCount]) -> Callable[[Pairs], Sequence[float]]:
    return lambda pairs: dataclasses.astuple(count(pairs))


def _divide(counts: Sequence[float]) -> float:
    errors, length = counts
    return errors / length if length else math.inf


# Of texts: counts that the processes add up, and what is made of their sums.
MEASURES: dict[str, tuple[Callable[[Pairs], Sequence[float]], Callable[[Sequence[float]], float]]] = {
    "wer": (_count_errors(count_word_errors), _divide),
    "cer": (_count_errors(count_character_errors), _divide),
    "bleu": (count_bleu, compute_bleu),
}


def decode_batch(system: System[Model], batch: Batch) -> dict[str, list[str]]:
    """Decode each utterance greedily by each head; normalised texts."""
    if not system.model.text_heads:
        return {}
    model = cast(SpeechModel, system.model)
    encoded = EncodedAudio(model, *model.encode(batch.features_BTF, batch.feature_lengths_B))
    tokens = search_quickly(encoded)
    return {
        head: [normalize(system.tokenizer.decode(ids), system.config.text.scoring) for ids in all_ids]
        for head, all_ids in tokens.items()
    }


def with_error_rates_of_the_system(scores: dict[str, float]) -> dict[str, float]:
    """Add wer, cer and bleu of the system: the decoder's where there is one, else those of CTC."""
    for head in ("decoder", "ctc"):
        if f"wer_{head}" in scores:
            first = {name: scores[name] for name in ("loss", "token_accuracy") if name in scores}
            own = {name: scores[f"{name}_{head}"] for name in MEASURES if f"{name}_{head}" in scores}
            return first | own | scores
    return scores
