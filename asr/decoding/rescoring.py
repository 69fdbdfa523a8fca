"""Rescoring: texts that CTC found, ranked by decoder and CTC together."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from asr.decoding import ctc_beam
from asr.decoding.beam import find_guide_width
from asr.decoding.fusion import FusionModel, score_texts
from asr.decoding.hypothesis import DecodingConfig, EncodedAudio, Hypothesis, NBest
from asr.models.decoders import Decoder
from asr.models.guided_attention import guide_texts
from asr.text.units import EOS_ID, SOS_ID

# B utterances, H texts of each, R = B x H, U tokens, N = U + 1 decisions, V vocabulary, A attention heads,
# T encoded steps


def decode(encoded: EncodedAudio, config: DecodingConfig, language_model: FusionModel | None) -> NBest:
    """Rank all that CTC's beam finds. A language model counts from the start: what a lexicon allows would
    rarely be among texts that were found without it."""
    first_pass = config.model_copy(update={"nbest": config.beam, "length_normalization": 0.0})
    return rescore(encoded, ctc_beam.decode(encoded, first_pass, language_model), config, language_model)


def rescore(
    encoded: EncodedAudio,
    found: NBest,
    config: DecodingConfig,
    language_model: FusionModel | None = None,
) -> NBest:
    """Sort the texts anew and cut them to `config.nbest`; all are scored in one pass."""
    decoder, encoded_BTD, lengths_B = encoded.model.decoder, encoded.encoded_BTD, encoded.lengths_B
    assert isinstance(decoder, Decoder)
    device = encoded_BTD.device
    tokens_RU, counts_R = pad_texts(found, device)
    start_R1 = tokens_RU.new_full((len(tokens_RU), 1), SOS_ID)
    inputs_RN = torch.cat([start_R1, tokens_RU], dim=1)
    targets_RN = torch.nn.functional.pad(tokens_RU, (0, 1), value=EOS_ID).scatter(
        1, counts_R[:, None], EOS_ID
    )
    bias_RNT = None
    if (width := find_guide_width(encoded.model, config)) is not None:  # and so a CTC head
        tokens_BHU = tokens_RU.unflatten(0, (len(found), -1))
        bias_RNT = guide_texts(encoded.ctc_BTV, lengths_B, tokens_BHU, width)
    scores_RNV, attention = decoder(inputs_RN, encoded_BTD, lengths_B, decoder.last_heads, bias_RNT)
    scores_RNV = scores_RNV.float()
    scores_RN = scores_RNV.gather(2, targets_RN[..., None])[..., 0] - scores_RNV.logsumexp(-1)
    is_decision_RN = torch.arange(inputs_RN.size(1), device=device) <= counts_R[:, None]
    decoder_R = scores_RN.double().masked_fill(~is_decision_RN, 0.0).sum(1)
    steps_T = torch.arange(encoded_BTD.size(1), device=device, dtype=torch.float32)
    attended_RN = decoder_R.new_empty(len(inputs_RN), 0)
    if attention:
        (weights_RHNT,) = attention.values()
        attended_RN = (weights_RHNT.mean(1) * steps_T).sum(-1).double()  # a matrix product may be in bf16
    language_R = torch.zeros_like(decoder_R)
    if language_model is not None and config.language_model_weight > 0:
        language_R = score_texts(language_model, tokens_RU, counts_R, SOS_ID, EOS_ID)

    per_utterance = max(map(len, found))
    columns = [
        column.unflatten(0, (-1, per_utterance)).tolist() for column in (decoder_R, language_R, attended_RN)
    ]
    ranked = []
    for texts, *rows in zip(found, *columns, strict=True):
        scored = []
        for text, by_decoder, language, attended in zip(texts, *rows, strict=False):
            count = len(text.tokens)
            score = (1 - config.ctc_weight) * by_decoder + config.language_model_weight * language
            # CTC may be wholly against a text (-inf), which a weight of 0 should forgive.
            score += config.ctc_weight * text.ctc_log_probability if config.ctc_weight else 0.0
            score = (score + config.length_bonus * count) / (count + 1) ** config.length_normalization
            attended_steps = tuple(attended[: count + 1])
            scored.append(
                replace(text, score=score, log_probability=by_decoder, attended_steps=attended_steps)
            )
        ranked.append(sorted(scored, key=lambda text: -text.score)[: config.nbest])
    return ranked


def pad_texts(found: NBest, device: torch.device) -> tuple[Tensor, Tensor]:
    """(R, U) tokens and (R,) counts, as many rows for each utterance; those without a text are empty."""
    per_utterance = max(map(len, found))
    texts = [
        list(text.tokens)
        for texts in found
        for text in texts + [Hypothesis((), 0.0)] * (per_utterance - len(texts))
    ]
    longest = max(map(len, texts))
    tokens_RU = torch.tensor([text + [EOS_ID] * (longest - len(text)) for text in texts], dtype=torch.long)
    return tokens_RU.view(len(texts), longest).to(device), torch.tensor(
        [len(text) for text in texts], device=device
    )
