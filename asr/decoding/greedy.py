"""Greedy decoding: the best path of the CTC head, or the decoder's likeliest token after those before."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from asr.decoding.fusion import FusionModel
from asr.decoding.hypothesis import DecodingConfig, EncodedAudio, Hypothesis, NBest
from asr.models import SpeechModel
from asr.models.decoder import Decoder
from asr.models.layers import length_mask
from asr.text.units import BLANK_ID, EOS_ID, SOS_ID, SPECIAL_TOKENS, UNK_ID

# B batch, T encoded steps, U tokens, V vocabulary


@torch.inference_mode()
def decode_greedily(
    model: SpeechModel, encoded_BTD: Tensor, encoded_lengths_B: Tensor, max_tokens: int | None = None
) -> list[list[int]]:
    """Return the tokens of each utterance, at most as many as the model's limit."""
    assert isinstance(model.decoder, Decoder)
    state = model.decoder.start(encoded_BTD, encoded_lengths_B)
    batch = len(encoded_BTD)
    limits_B = model.limit_tokens(encoded_lengths_B, max_tokens).clamp(max=model.decoder.max_tokens)
    tokens_B1 = torch.full((batch, 1), SOS_ID, device=encoded_BTD.device)
    is_done_B = limits_B == 0
    decoded: list[Tensor] = []
    while not bool(is_done_B.all()):
        scores_B1V, _ = model.decoder.step(tokens_B1, state)
        scores_BV = scores_B1V[:, -1]
        # Of the special tokens only the end and the unknown token may be chosen.
        scores_BV[:, [i for i in range(len(SPECIAL_TOKENS)) if i not in (EOS_ID, UNK_ID)]] = -torch.inf
        best_B = scores_BV.argmax(-1).masked_fill(is_done_B, EOS_ID)
        decoded.append(best_B)
        is_done_B = is_done_B | (best_B == EOS_ID) | (len(decoded) >= limits_B)
        tokens_B1 = best_B[:, None]
    if not decoded:
        return [[] for _ in range(batch)]
    tokens_BU = torch.stack(decoded, dim=1)
    is_token_BU = tokens_BU != EOS_ID
    return [row.tolist() for row in tokens_BU[is_token_BU].cpu().split(is_token_BU.sum(1).tolist())]


def decode_by_ctc(encoded: EncodedAudio, config: DecodingConfig, language_model: FusionModel | None) -> NBest:
    """The text of each best path, scored by that one alignment."""
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
