"""Greedy CTC decoding: the texts of the best paths."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from asr.decoding.fusion import FusionModel
from asr.decoding.hypothesis import DecodingConfig, EncodedAudio, Hypothesis, NBest
from asr.models.layers import length_mask
from asr.text.units import BLANK_ID

# B utterances, T encoded steps, V vocabulary


def decode(encoded: EncodedAudio, config: DecodingConfig, language_model: FusionModel | None) -> NBest:
    """Score each text by the one alignment that was followed."""
    log_probabilities_BTV, lengths_B = encoded.ctc_BTV, encoded.lengths_B
    paths = encoded.ctc_paths
    texts = paths.texts()
    best_BT = log_probabilities_BTV.amax(-1)
    best_BT = best_BT.masked_fill(~length_mask(lengths_B, best_BT.size(1)), 0.0)
    flat = torch.tensor([token for text in texts for token in text], device=lengths_B.device)
    negative_B = F.ctc_loss(
        log_probabilities_BTV.transpose(0, 1), flat, lengths_B, paths.counts_B, BLANK_ID, reduction="none"
    )
    rows = zip(texts, best_BT.double().sum(1).tolist(), negative_B.tolist(), strict=True)
    return [[Hypothesis(tuple(text), score, ctc_log_probability=-loss)] for text, score, loss in rows]
