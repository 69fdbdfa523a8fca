"""How good the model is on the dev set: loss, accuracy, error rates; pictures of attention."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from asr.batch_builder import Batch
from asr.checkpoint import System
from asr.decoding.greedy import decode_ctc_greedily, decode_greedily
from asr.models import Model, SpeechModel
from asr.plots import plot_attention
from asr.scoring.counting import count_character_errors, count_word_errors
from asr.text import normalize_for_scoring
from asr.train.distributed import Process, sum_over_processes


@torch.inference_mode()
def compute_dev_scores(system: System[Model], batches: Iterable[Batch], process: Process) -> dict[str, float]:
    """What the model makes of its losses, and wer and cer of each head that says text.

    All processes together see each utterance once.
    """
    model = system.model.eval()
    sums: dict[str, float] = collections.defaultdict(float)
    pairs: dict[str, list[tuple[str, str]]] = {head: [] for head in heads(system)}
    for batch in batches:
        if not len(batch):
            continue
        batch = batch.to(process.device)
        losses = model(batch.features_BTF, batch.feature_lengths_B, batch.tokens_BU, batch.token_lengths_B)
        references = [normalize_for_scoring(text, system.config.text) for text in batch.texts]
        num_words = sum(len(text.split()) + 1 for text in references)  # the end is one
        counted: dict[str, float | Tensor] = {"tokens": losses.num_tokens, "words": num_words}
        for name, value in (counted | {"total": losses.total} | losses.parts).items():
            sums[name] += float(value)
        for head, hypotheses in decode_batch(system, batch).items():
            pairs[head] += zip(references, hypotheses, strict=True)
    counts = {
        (head, unit): count(pairs[head])
        for head in pairs
        for unit, count in (("wer", count_word_errors), ("cer", count_character_errors))
    }
    names = ("tokens", "words", *model.reported)
    values = [sums.get(name, 0.0) for name in names]
    values += [number for count in counts.values() for number in (count.errors, count.length)]
    totals = sum_over_processes(values, process)
    tokens, words = max(totals[0], 1.0), max(totals[1], 1.0)
    means = {name: total / tokens for name, total in zip(names, totals, strict=False) if name in sums}
    means = {name: mean for name, mean in means.items() if name in model.reported}
    scores = model.score(means, tokens_per_word=tokens / words)
    rates = iter(totals[len(names) :])
    for head, unit in counts:
        errors, length = next(rates), next(rates)
        scores[f"{unit}_{head}"] = errors / length if length else math.inf
    return with_error_rates_of_the_system(scores)


def heads(system: System[Model]) -> list[str]:
    """The ways to decode that the model offers."""
    model = system.model
    if not isinstance(model, SpeechModel):
        return []
    return ["ctc"] * (model.ctc_head is not None) + ["decoder"] * (model.decoder is not None)


def decode_batch(system: System[Model], batch: Batch) -> dict[str, list[str]]:
    """Normalised text for each utterance, greedily, by each head."""
    model = system.model
    if not isinstance(model, SpeechModel):
        return {}
    encoded_BTD, lengths_B = model.encode(batch.features_BTF, batch.feature_lengths_B)
    tokens = {}
    if model.ctc_head is not None:
        tokens["ctc"] = decode_ctc_greedily(model.ctc_log_probabilities(encoded_BTD), lengths_B)
    if model.decoder is not None:
        tokens["decoder"] = decode_greedily(model, encoded_BTD, lengths_B)
    return {
        head: [normalize_for_scoring(system.tokenizer.decode(ids), system.config.text) for ids in all_ids]
        for head, all_ids in tokens.items()
    }


def with_error_rates_of_the_system(scores: dict[str, float]) -> dict[str, float]:
    """wer and cer without a head are the decoder's where there is one, else those of CTC."""
    for head in ("decoder", "ctc"):
        if f"wer_{head}" in scores:
            first = {name: scores[name] for name in ("loss", "token_accuracy") if name in scores}
            return first | {"wer": scores[f"wer_{head}"], "cer": scores[f"cer_{head}"]} | scores
    return scores


@torch.inference_mode()
def plot_dev_attention(system: System[Model], batch: Batch, folder: Path, process: Process) -> None:
    """One picture an utterance: the mean of the heads of the decoder's last layer, under the reference."""
    model = system.model.eval()
    assert isinstance(model, SpeechModel) and model.decoder is not None
    batch = batch.to(process.device)
    encoded_BTD, lengths_B = model.encode(batch.features_BTF, batch.feature_lengths_B)
    start_B1 = batch.tokens_BU.new_full((len(batch), 1), system.tokenizer.sos_id)
    inputs_BN = torch.cat([start_B1, batch.tokens_BU], dim=1)
    last, all_heads = model.decoder.num_layers - 1, tuple(range(model.decoder.num_heads))
    _, weights = model.decoder(inputs_BN, encoded_BTD, lengths_B, {last: all_heads})
    weights_BNT = weights[last].mean(1)
    for row, name in enumerate(batch.ids):
        num_frames, num_tokens = int(batch.feature_lengths_B[row]), int(batch.token_lengths_B[row])
        tokens = [system.tokenizer.tokens[token] for token in batch.tokens_BU[row, :num_tokens].tolist()]
        plot_attention(
            folder / f"{name}.png",
            weights_BNT[row, : num_tokens + 1, : int(lengths_B[row])].cpu().numpy(),
            [*tokens, "end"],
            batch.features_BTF[row, :num_frames].cpu().numpy(),
            f"{name}: {batch.texts[row]}"[:100],
            num_frames * system.config.features.shift_ms / 1000,
        )
