"""Search: encoded steps to ranked token sequences by one decoding method; the greedy ones are here."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from asr.decoding.fusion import FusionModel
from asr.decoding.hypothesis import DecodingConfig, EncodedAudio, Hypothesis, NBest
from asr.decoding.methods import AUTOREGRESSIVE, METHODS, PREFERRED, Method
from asr.errors import UserError
from asr.models import SpeechModel
from asr.models.decoders import Decoder
from asr.models.layers import length_mask
from asr.text.units import BLANK_ID, EOS_ID, SOS_ID, SPECIAL_TOKENS, UNK_ID

# B batch, T encoded steps, D dimension, U tokens


def offered_methods(model: SpeechModel, with_language_model: bool = False) -> list[Method]:
    """All that the heads of the model allow, the cheapest first; with a language model, those that use it."""
    methods = [name for name in METHODS if not _find_missing(model, name)]
    if with_language_model:
        return [name for name in methods if METHODS[name].fuses_language_model] or methods
    return methods


def resolve_method(model: SpeechModel, method: Method) -> Method:
    """Choose for this model what auto means; refuse a method that it has no head for."""
    if method == "auto":
        return next(name for name in PREFERRED if not _find_missing(model, name))
    if missing := _find_missing(model, method):
        raise UserError(f"decoding method {method} needs {missing}; use {resolve_method(model, 'auto')}")
    return method


def _find_missing(model: SpeechModel, name: Method) -> str:
    """Name what the method needs and this model lacks; "" if nothing is missing."""
    method = METHODS[name]
    if method.needs_ctc and model.ctc_head is None:
        return "a CTC head, and this model has none"
    if not method.decoder:
        return ""
    if model.decoder is None:
        return "a decoder, and this model has none"
    is_autoregressive = isinstance(model.decoder, Decoder)
    if is_autoregressive and method.decoder != AUTOREGRESSIVE:
        return "a non-autoregressive decoder, and that of this model gives one token after the other"
    if not is_autoregressive and method.decoder == AUTOREGRESSIVE:
        return "an autoregressive decoder, and that of this model gives all tokens at once"
    return ""


def check_decoding(model: SpeechModel, config: DecodingConfig, language_model: FusionModel | None) -> Method:
    """The method that is meant; a UserError if this model cannot be decoded so."""
    name = resolve_method(model, config.method)
    if (language_model is None) != (config.language_model_weight == 0):
        raise UserError(
            f"decoding.language_model_weight = {config.language_model_weight}, but "
            + ("there is no language model; name one, or set the weight to 0" if language_model is None else
               "a language model was given; set the weight above 0 (0.3, say), or leave the model out")
        )  # fmt: skip
    if language_model is not None and not METHODS[name].fuses_language_model:
        instead = "use ctc_beam" if model.ctc_head is not None else "leave it out"
        raise UserError(f"decoding method {name} has no use for a language model; {instead}")
    return name


@torch.inference_mode()
def search_encoded(
    encoded: EncodedAudio, config: DecodingConfig, language_model: FusionModel | None = None
) -> NBest:
    """Search for up to `config.nbest` hypotheses for each utterance, best first; always at least one.

    An utterance without encoded steps has the empty text, for certain.
    """
    model = encoded.model
    name = check_decoding(model, config, language_model)
    assert not model.training, "decoding wants model.eval(): dropout would change the text"
    has_steps_B = encoded.lengths_B > 0
    some = has_steps_B.nonzero()[:, 0]
    if len(some) == 0:
        return [[_without_audio(name)] for _ in encoded.lengths_B]
    found = iter(_load(name)(encoded.select(some), config, language_model))
    return [next(found) if has_steps else [_without_audio(name)] for has_steps in has_steps_B.tolist()]


@functools.cache
def _load(name: Method) -> Callable[[EncodedAudio, DecodingConfig, FusionModel | None], NBest]:
    module, _, function = METHODS[name].function.partition(".")
    loaded: Callable[[EncodedAudio, DecodingConfig, FusionModel | None], NBest]
    loaded = getattr(importlib.import_module(f"asr.decoding.{module}"), function)
    return loaded


def _without_audio(name: Method) -> Hypothesis:
    method = METHODS[name]
    return Hypothesis((), 0.0, 0.0 if method.decoder else math.nan, 0.0 if method.needs_ctc else math.nan)


def search_quickly(encoded: EncodedAudio) -> dict[str, list[list[int]]]:
    """Greedy tokens of each utterance by each head, "ctc" and "decoder", for scores during training."""
    found = {}
    if encoded.model.ctc_head is not None:
        found["ctc"] = encoded.ctc_paths.texts()
    if isinstance(encoded.model.decoder, Decoder) and encoded.model.config.attention_guide is None:
        found["decoder"] = decode_greedily(encoded.model, encoded.encoded_BTD, encoded.lengths_B)
    elif encoded.model.decoder is not None:
        method = "attention" if isinstance(encoded.model.decoder, Decoder) else "parallel"
        ranked = search_encoded(encoded, DecodingConfig(method=method, beam=1))
        found["decoder"] = [list(best.tokens) for best, *_ in ranked]
    return found


# --- greedy decoding --------------------------------------------------------------------------------

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
