"""From encoded steps to ranked token sequences, by the method that was asked for. Ids out, never text."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from asr.decoding.beam import search_beams
from asr.decoding.ctc_beam import search_prefixes
from asr.decoding.fusion import FusionModel
from asr.decoding.greedy import decode_ctc_greedily, decode_greedily
from asr.decoding.hypothesis import DecodingConfig, Hypothesis
from asr.decoding.methods import METHODS, Method
from asr.decoding.parallel import decode_in_parallel
from asr.decoding.rescoring import rescore
from asr.errors import UserError
from asr.models import SpeechModel
from asr.models.decoder import Decoder
from asr.models.non_autoregressive import NonAutoregressiveDecoder
from asr.text.units import BLANK_ID

__all__ = [
    "DecodingConfig",
    "Hypothesis",
    "Method",
    "decode",
    "decode_by_decoder",
    "offered_methods",
    "resolve_method",
]

# B batch, T encoded steps, D dimension, U tokens

N_BEST = list[list[Hypothesis]]  # of each utterance, best first
_WITHOUT_LANGUAGE_MODEL: tuple[Method, ...] = ("ctc_greedy", "parallel")


def offered_methods(model: SpeechModel, with_language_model: bool = False) -> list[Method]:
    """All that the heads of the model allow, the cheapest first; with a language model, those that use it."""
    methods: list[Method] = [
        method for method in METHODS if method != "auto" and not _find_missing(model, method)
    ]
    if with_language_model:
        return [method for method in methods if method not in _WITHOUT_LANGUAGE_MODEL] or methods
    return methods


def resolve_method(model: SpeechModel, method: Method) -> Method:
    """What auto means for this model; refuses what it has no head for."""
    if method == "auto":
        preferred: tuple[Method, ...] = ("joint", "attention", "parallel", "ctc_beam")
        return next(kind for kind in preferred if not _find_missing(model, kind))
    if missing := _find_missing(model, method):
        raise UserError(f"decoding method {method} needs {missing}; use {resolve_method(model, 'auto')}")
    return method


def _find_missing(model: SpeechModel, method: Method) -> str:
    """What the method would need and this model has not; "" if nothing is missing."""
    if method not in ("attention", "parallel") and model.ctc_head is None:
        return "a CTC head, and this model has none"
    if method not in ("attention", "parallel", "joint", "rescoring"):
        return ""
    if model.decoder is None:
        return "a decoder, and this model has none"
    if method == "parallel" and not isinstance(model.decoder, NonAutoregressiveDecoder):
        return "a decoder that says all tokens at once, and that of this model says one after the other"
    if method != "parallel" and not isinstance(model.decoder, Decoder):
        return "a decoder that says one token after the other, and that of this model says all at once"
    return ""


def decode_by_decoder(model: SpeechModel, encoded_BTD: Tensor, lengths_B: Tensor) -> list[list[int]]:
    """The quickest text of a decoder of whatever kind: token by token greedily, or all at once."""
    if isinstance(model.decoder, Decoder):
        return decode_greedily(model, encoded_BTD, lengths_B)
    found = decode(model, encoded_BTD, lengths_B, DecodingConfig(method="parallel", beam=1))
    return [list(best.tokens) for best, *_ in found]


@torch.inference_mode()
def decode(
    model: SpeechModel,
    encoded_BTD: Tensor,
    encoded_lengths_B: Tensor,
    config: DecodingConfig,
    language_model: FusionModel | None = None,
) -> N_BEST:
    """Up to `config.nbest` hypotheses for each utterance, best first; always at least one.

    An utterance without encoded steps has the empty text, for certain.
    """
    method = resolve_method(model, config.method)
    if (language_model is None) != (config.language_model_weight == 0):
        raise UserError(
            f"decoding.language_model_weight = {config.language_model_weight}, but "
            + ("there is no language model; name one, or set the weight to 0" if language_model is None else
               "a language model was given; set the weight above 0 (0.3, say), or leave the model out")
        )  # fmt: skip
    if language_model is not None and method in _WITHOUT_LANGUAGE_MODEL:
        instead = "use ctc_beam" if model.ctc_head is not None else "leave it out"
        raise UserError(f"decoding method {method} has no use for a language model; {instead}")
    assert not model.training, "decoding wants model.eval(): dropout would change the text"
    has_steps_B = encoded_lengths_B > 0
    some = has_steps_B.nonzero()[:, 0]
    if len(some) == 0:
        return [[_certain(method)] for _ in encoded_lengths_B]
    lengths_B = encoded_lengths_B[some]
    found = iter(
        _decode(model, encoded_BTD[some, : int(lengths_B.max())], lengths_B, method, config, language_model)
    )
    return [next(found) if has_steps else [_certain(method)] for has_steps in has_steps_B.tolist()]


def _decode(
    model: SpeechModel,
    encoded_BTD: Tensor,
    lengths_B: Tensor,
    method: Method,
    config: DecodingConfig,
    language_model: FusionModel | None,
) -> N_BEST:
    """Of utterances that have encoded steps."""
    if method == "parallel":
        return decode_in_parallel(model, encoded_BTD, lengths_B, config)
    if method == "attention":
        return search_beams(model, encoded_BTD, lengths_B, config, language_model, ctc_weight=0.0)
    if method == "joint":
        weight = config.ctc_weight
        return search_beams(model, encoded_BTD, lengths_B, config, language_model, ctc_weight=weight)
    log_probabilities_BTV = model.ctc_log_probabilities(encoded_BTD)
    if method == "ctc_greedy":
        return _decode_greedily(log_probabilities_BTV, lengths_B)
    if method == "ctc_beam":
        if language_model is not None:  # step by step a language model of tokens would have to wait
            return search_beams(model, encoded_BTD, lengths_B, config, language_model, ctc_weight=1.0)
        return search_prefixes(log_probabilities_BTV, lengths_B, config)
    all_found = config.model_copy(update={"nbest": config.beam, "length_normalization": 0.0})
    if language_model is None:
        found = search_prefixes(log_probabilities_BTV, lengths_B, all_found)
    else:  # weighed in from the start: a lexicon leaves nothing of texts that were found without it
        found = search_beams(model, encoded_BTD, lengths_B, all_found, language_model, ctc_weight=1.0)
    return rescore(model, encoded_BTD, lengths_B, found, config, language_model)


def _decode_greedily(log_probabilities_BTV: Tensor, lengths_B: Tensor) -> N_BEST:
    """Scored by the one alignment that was followed."""
    tokens = decode_ctc_greedily(log_probabilities_BTV, lengths_B)
    steps = torch.arange(log_probabilities_BTV.size(1), device=lengths_B.device)
    best_BT = log_probabilities_BTV.amax(-1).masked_fill(steps >= lengths_B[:, None], 0.0)
    flat = torch.tensor([token for row in tokens for token in row], device=lengths_B.device)
    counts_B = torch.tensor([len(row) for row in tokens], device=lengths_B.device)
    negative_B = F.ctc_loss(
        log_probabilities_BTV.transpose(0, 1), flat, lengths_B, counts_B, BLANK_ID, reduction="none"
    )
    rows = zip(tokens, best_BT.double().sum(1).tolist(), negative_B.tolist(), strict=True)
    return [[Hypothesis(tuple(row), score, ctc_log_probability=-loss)] for row, score, loss in rows]


def _certain(method: Method) -> Hypothesis:
    """No audio, no text."""
    asks_decoder, asks_ctc = not method.startswith("ctc"), method not in ("attention", "parallel")
    return Hypothesis((), 0.0, 0.0 if asks_decoder else math.nan, 0.0 if asks_ctc else math.nan)
