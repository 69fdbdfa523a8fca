"""Prefix beam search under the CTC head, step by step: alignments of a text add up."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from asr.decoding.beam import search_beams
from asr.decoding.fusion import FusionModel
from asr.decoding.hypothesis import DecodingConfig, EncodedAudio, Hypothesis, NBest
from asr.models.guided_attention import mask_padding
from asr.text.units import BLANK_ID, UNK_ID

# B utterances, W beams of each, C candidate tokens of a step, N = W + W x C, T encoded steps, V vocabulary,
# H hypotheses of the n-best list

CERTAIN = -1e-6  # log-probability of a blank that is certain; what the rest could add is lost in rounding
NO_TOKEN = -1


@dataclass(frozen=True)
class Prefixes:
    """The texts in the beam; all log-probabilities are in float64."""

    in_blank_BW: Tensor  # of the alignments so far that end in blank
    in_token_BW: Tensor  # or in the last token
    last_BW: Tensor  # the last token
    count_BW: Tensor  # how many tokens
    hash_BW: Tensor  # 64 bits that tell one text from another
    parent_BW: Tensor  # hash of the text without its last token

    @property
    def total_BW(self) -> Tensor:
        return torch.logaddexp(self.in_blank_BW, self.in_token_BW)


def decode(encoded: EncodedAudio, config: DecodingConfig, language_model: FusionModel | None) -> NBest:
    """Search step by step, or token by token with a language model, which would have to wait for tokens."""
    if language_model is None:
        return search_prefixes(encoded.ctc_BTV, encoded.lengths_B, config)
    return search_beams(encoded, config, language_model, ctc_weight=1.0)


def search_prefixes(
    log_probabilities_BTV: Tensor, lengths_B: Tensor, config: DecodingConfig
) -> list[list[Hypothesis]]:
    """N-best lists, each text scored by all of its alignments that stayed within the beam."""
    scores_BTV = drop_certain_blanks(mask_padding(log_probabilities_BTV, lengths_B))
    # A beam may see up to W - 1 of its extensions in the beam already, and its last token scored lower. With
    # W more, none that could be among the best is left out.
    num_candidates = min(2 * config.beam, scores_BTV.size(2) - UNK_ID)
    candidates_BTC = scores_BTV[:, :, UNK_ID:].topk(num_candidates).indices + UNK_ID
    prefixes = _start(len(scores_BTV), scores_BTV.device)
    parents, tokens = [], []
    for step in range(scores_BTV.size(1)):
        prefixes, parents_BW, tokens_BW = _advance(
            prefixes, scores_BTV[:, step].double(), candidates_BTC[:, step], config
        )
        parents.append(parents_BW)
        tokens.append(tokens_BW)
    return _read_hypotheses(prefixes, parents, tokens, config)


def drop_certain_blanks(scores_BTV: Tensor) -> Tensor:
    """Drop steps that are surely blank and follow another such: they change nothing but cost time."""
    is_certain_BT = scores_BTV[:, :, BLANK_ID] > CERTAIN
    keep_BT = torch.ones_like(is_certain_BT)
    keep_BT[:, 1:] = ~(is_certain_BT[:, 1:] & is_certain_BT[:, :-1])
    kept_B = keep_BT.sum(1)
    longest = int(kept_B.max())
    if longest == keep_BT.size(1):
        return scores_BTV
    order_BT = (~keep_BT).to(torch.int8).argsort(dim=1, stable=True)[:, :longest]
    kept_BTV = scores_BTV.gather(1, order_BT[..., None].expand(-1, -1, scores_BTV.size(2)))
    return mask_padding(kept_BTV, kept_B)


def _start(batch: int, device: torch.device) -> Prefixes:
    """The empty text alone."""
    certain_BW = torch.zeros(batch, 1, dtype=torch.float64, device=device)
    zero_BW = torch.zeros(batch, 1, dtype=torch.long, device=device)
    return Prefixes(
        certain_BW, certain_BW - torch.inf, zero_BW + NO_TOKEN, zero_BW, zero_BW, zero_BW + NO_TOKEN
    )


def _advance(
    old: Prefixes, scores_BV: Tensor, candidates_BC: Tensor, config: DecodingConfig
) -> tuple[Prefixes, Tensor, Tensor]:
    """The beam after one step, the place of each text's parent in the old beam, and its new token or none."""
    width = old.last_BW.size(1)
    total_BW = old.total_BW
    last_scores_BW = scores_BV.gather(1, old.last_BW.clamp(min=0))

    # Which beam is another's parent: (B, child, parent). What the parent says with the child's last token is
    # more of the child, not a text of its own.
    is_parent_BWW = old.parent_BW[:, :, None] == old.hash_BW[:, None, :]
    is_repeat_BWW = old.last_BW[:, :, None] == old.last_BW[:, None, :]
    from_parent_BWW = torch.where(is_repeat_BWW, old.in_blank_BW[:, None], total_BW[:, None])
    from_parent_BW = from_parent_BWW.masked_fill(~is_parent_BWW, -torch.inf).amax(-1)

    in_blank_BW = total_BW + scores_BV[:, BLANK_ID : BLANK_ID + 1]
    in_token_BW = torch.logaddexp(old.in_token_BW, from_parent_BW) + last_scores_BW

    is_repeat_BWC = old.last_BW[..., None] == candidates_BC[:, None]
    extended_BWC = torch.where(is_repeat_BWC, old.in_blank_BW[..., None], total_BW[..., None])
    extended_BWC = extended_BWC + scores_BV.gather(1, candidates_BC)[:, None]
    # (B, child, parent, C): there is such a child already
    is_known_BWC = (is_parent_BWW[..., None] & is_repeat_BWC[:, :, None]).any(1)
    extended_BWC = extended_BWC.masked_fill(is_known_BWC, -torch.inf)

    stay_BW = torch.logaddexp(in_blank_BW, in_token_BW)
    ranked_BN = torch.cat([stay_BW, extended_BWC.flatten(1)], dim=1)
    if config.length_bonus:
        longer_BWC = (old.count_BW + 1)[..., None].expand_as(extended_BWC)
        counts_BN = torch.cat([old.count_BW, longer_BWC.flatten(1)], dim=1)
        ranked_BN = ranked_BN + config.length_bonus * counts_BN
    best_BW, chosen_BW = ranked_BN.topk(min(config.beam, ranked_BN.size(1)))

    is_stay_BW = chosen_BW < width
    extension_BW = (chosen_BW - width).clamp(min=0)
    num_candidates = candidates_BC.size(1)
    parents_BW = torch.where(is_stay_BW, chosen_BW, extension_BW // num_candidates)
    token_BW = candidates_BC.gather(1, extension_BW % num_candidates)
    tokens_BW = token_BW.masked_fill(is_stay_BW, NO_TOKEN)
    hash_BW = old.hash_BW.gather(1, parents_BW)
    new = Prefixes(
        in_blank_BW=in_blank_BW.gather(1, parents_BW).masked_fill(~is_stay_BW, -torch.inf),
        in_token_BW=torch.where(
            is_stay_BW, in_token_BW.gather(1, parents_BW), extended_BWC.flatten(1).gather(1, extension_BW)
        ),
        last_BW=torch.where(is_stay_BW, old.last_BW.gather(1, parents_BW), token_BW),
        count_BW=old.count_BW.gather(1, parents_BW) + ~is_stay_BW,
        hash_BW=torch.where(is_stay_BW, hash_BW, _hash(hash_BW, token_BW)),
        parent_BW=torch.where(is_stay_BW, old.parent_BW.gather(1, parents_BW), hash_BW),
    )
    return _disown(new, best_BW == -torch.inf), parents_BW, tokens_BW


def _hash(prefix: Tensor, token: Tensor) -> Tensor:
    """Hash a prefix and one more token; products wrap at 64 bits, and the shift mixes their halves."""
    mixed = prefix * 6364136223846793005 + (token + 1) * 2862933555777941757 + 3037000493
    return mixed ^ (mixed >> 31)


def _disown(prefixes: Prefixes, is_impossible_BW: Tensor) -> Prefixes:
    """Places of the beam that had nothing to fill them get hashes of their own, no one's parent or child."""
    places_W = torch.arange(is_impossible_BW.size(1), device=is_impossible_BW.device)
    return replace(
        prefixes,
        hash_BW=torch.where(is_impossible_BW, _hash(places_W, places_W - 7), prefixes.hash_BW),
        parent_BW=torch.where(is_impossible_BW, _hash(places_W, places_W - 77), prefixes.parent_BW),
    )


def _read_hypotheses(
    prefixes: Prefixes, parents: list[Tensor], tokens: list[Tensor], config: DecodingConfig
) -> list[list[Hypothesis]]:
    total_BW = prefixes.total_BW
    scores_BW = total_BW + config.length_bonus * prefixes.count_BW
    scores_BW = scores_BW / (prefixes.count_BW + 1) ** config.length_normalization
    scores_BH, slots_BH = scores_BW.topk(min(config.nbest, scores_BW.size(1)))
    total_BH = total_BW.gather(1, slots_BH)
    reversed_tokens = []
    for parents_BW, tokens_BW in zip(reversed(parents), reversed(tokens), strict=True):
        reversed_tokens.append(tokens_BW.gather(1, slots_BH))
        slots_BH = parents_BW.gather(1, slots_BH)
    tokens_BHT = torch.stack(reversed_tokens[::-1], dim=-1)
    columns = (tokens_BHT, scores_BH, total_BH)
    return [
        [
            Hypothesis(tuple(token for token in path if token != NO_TOKEN), score, ctc_log_probability=total)
            for path, score, total in zip(*row, strict=True)
            if score > -torch.inf
        ]
        for row in zip(*(column.tolist() for column in columns), strict=True)
    ]
