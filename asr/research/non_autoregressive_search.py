"""Non-autoregressive decoding: all tokens in one pass, or in a few passes that fill gaps (Mask-CTC)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from asr.decoding.decode import DecodingMethod
from asr.decoding.hypothesis import BestPaths, DecodingConfig, EncodedAudio, FusionModel, Hypothesis, NBest
from asr.models.decoders import Weights
from asr.models.layers import length_mask
from asr.research.non_autoregressive import LengthDecoder, MaskDecoder
from asr.text.tokenizer import UNK_ID

# B utterances, K lengths that are tried, R = B x K rows, T encoded steps, U tokens or queries, V vocabulary,
# H heads, C counts of tokens

MASK_THRESHOLD = 0.999  # tokens with a lower CTC probability become gaps for mask_ctc to fill
MAX_PASSES = 10  # passes in which it fills the gaps


def decode(encoded: EncodedAudio, config: DecodingConfig, language_model: FusionModel | None) -> NBest:
    """Decode with the method of the decoder's type."""
    decoder, encoded_BTD, lengths_B = encoded.model.decoder, encoded.encoded_BTD, encoded.lengths_B
    if isinstance(decoder, LengthDecoder):
        limits_B = encoded.model.limit_tokens(lengths_B)
        return _decode_by_length(decoder, encoded_BTD, lengths_B, limits_B, config)
    assert isinstance(decoder, MaskDecoder)
    return _fill_gaps(decoder, encoded_BTD, lengths_B, encoded.ctc_paths)


def _decode_by_length(
    decoder: LengthDecoder, encoded_BTD: Tensor, lengths_B: Tensor, limits_B: Tensor, config: DecodingConfig
) -> NBest:
    """Try the most likely lengths, as many as the beam is wide, and rank each with its text."""
    counts_C = torch.arange(int(limits_B.max()) + 1, device=lengths_B.device)
    means_B = decoder.length_predictor(encoded_BTD, lengths_B)
    chances_BC = decoder.length_predictor.log_probability(counts_C, means_B[:, None])
    chances_BC = chances_BC.masked_fill(counts_C > limits_B[:, None], -torch.inf)
    chances_BK, counts_BK = chances_BC.topk(min(config.beam, len(counts_C)))
    counts_R = counts_BK.flatten()
    memories = decoder.precompute_kv(encoded_BTD, lengths_B)
    scores_RUV, weights = decoder(counts_R, int(counts_R.max()), memories, decoder.last_heads)
    best_RU, tokens_RU = _choose(scores_RUV)
    log_probabilities_R = chances_BK.flatten().double() + _sum_tokens(best_RU, counts_R)
    width = counts_BK.size(1)
    attended_RN = _attended_steps(weights, counts_R, lengths_B.repeat_interleave(width))
    found = _list(tokens_RU, counts_R, log_probabilities_R, attended_RN)
    ranked = []
    for row in range(0, len(found), width):
        texts = [text for text in found[row : row + width] if text.score > -math.inf]
        ranked.append(sorted(texts, key=lambda text: -text.score)[: config.nbest])
    return ranked


def _fill_gaps(decoder: MaskDecoder, encoded_BTD: Tensor, lengths_B: Tensor, paths: BestPaths) -> NBest:
    """Fill the gaps where CTC is unsure. Each pass fills equally many, the most probable first."""
    tokens_BU, log_probabilities_BU, counts_B = paths.tokens_BU, paths.log_probabilities_BU, paths.counts_B
    is_token_BU = length_mask(counts_B, tokens_BU.size(1))
    is_gap_BU = is_token_BU & (log_probabilities_BU.exp() < MASK_THRESHOLD)
    num_gaps_B = is_gap_BU.sum(1)
    passes_B = num_gaps_B.clamp(max=MAX_PASSES)
    memories = decoder.precompute_kv(encoded_BTD, lengths_B)
    attended_BN = log_probabilities_BU.new_full((len(tokens_BU), tokens_BU.size(1) + 1), math.nan)
    for number in range(1, int(passes_B.max()) + 1):
        inputs_BU = tokens_BU.masked_fill(is_gap_BU, decoder.mask_id)
        scores_BUV, weights = decoder(inputs_BU, counts_B, memories, decoder.last_heads)
        chosen_BU, best_BU = _choose(scores_BUV)
        num_left_B = num_gaps_B * (passes_B - number).clamp(min=0) // passes_B.clamp(min=1)
        surest_BU = chosen_BU.masked_fill(~is_gap_BU, -torch.inf).argsort(dim=1, descending=True, stable=True)
        is_filled_BU = is_gap_BU & (surest_BU.argsort(dim=1) < (is_gap_BU.sum(1) - num_left_B)[:, None])
        now_BN = _attended_steps(weights, counts_B, lengths_B)
        attended_BN = torch.where(is_gap_BU.any(1, keepdim=True), now_BN, attended_BN)
        tokens_BU = torch.where(is_filled_BU, best_BU, tokens_BU)
        log_probabilities_BU = torch.where(is_filled_BU, chosen_BU, log_probabilities_BU)
        is_gap_BU = is_gap_BU & ~is_filled_BU
    log_probabilities_B = _sum_tokens(log_probabilities_BU, counts_B)
    found = _list(tokens_BU, counts_B, log_probabilities_B, attended_BN)
    return [[text] for text in found]


# --- shared -------------------------------------------------------------------------------------


def _choose(scores_RUV: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability of the most likely non-special token at each position, and the token."""
    log_probabilities_RU, tokens_RU = scores_RUV.float().log_softmax(-1)[..., UNK_ID:].max(-1)
    return log_probabilities_RU, tokens_RU + UNK_ID


def _sum_tokens(log_probabilities_RU: Tensor, counts_R: Tensor) -> Tensor:
    is_token_RU = length_mask(counts_R, log_probabilities_RU.size(1))
    return log_probabilities_RU.double().masked_fill(~is_token_RU, 0.0).sum(1)


def _attended_steps(weights: Weights, queries_R: Tensor, lengths_R: Tensor) -> Tensor:
    """Return (R, U + 1): the mean encoded step that each query of a row attends to in the last layer.

    After the queries comes the last step, which is the position of the end if no query predicts it.
    """
    weights_RUT = weights[max(weights)].mean(1)
    attended_RU = (weights_RUT * torch.arange(weights_RUT.size(2), device=lengths_R.device)).sum(-1)
    is_query_RU = length_mask(queries_R, attended_RU.size(1))
    last_R1 = (lengths_R - 1)[:, None].float()
    return torch.cat([torch.where(is_query_RU, attended_RU, last_R1), last_R1], dim=1)


def _list(
    tokens_RU: Tensor, counts_R: Tensor, log_probabilities_R: Tensor, attended_RN: Tensor
) -> list[Hypothesis]:
    """Convert each row to a hypothesis. Attention is NaN if it was not computed."""
    columns = (tokens_RU, counts_R, log_probabilities_R, attended_RN)
    found = []
    for tokens, count, score, attended in zip(*(column.tolist() for column in columns), strict=True):
        steps = () if math.isnan(attended[0]) else tuple(attended[: count + 1])
        found.append(Hypothesis(tuple(tokens[:count]), score, score, attended_steps=steps))
    return found


METHOD = DecodingMethod(decode, decoders=("parallel",), fuses_language_model=False)
