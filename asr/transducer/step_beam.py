"""Beam search of a transducer, step by step: at each encoded step a text gets one token at most.

The alignments of a text add up, as in the prefix search of CTC. Unlike in the search of icefall that it is
made after, a token is followed by blank at the same step, so the scores are those of the loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from asr.decoding.beam import NO_TOKEN, hash_text
from asr.decoding.hypothesis import DecodingConfig, FusionModel, Hypothesis, NBest
from asr.text.tokenizer import BLANK_ID, EOS_ID, UNK_ID
from asr.transducer.transducer_decoder import TransducerDecoder
from asr.transducer.uneven_texts import UnevenTexts

# B utterances, W texts of each, R = B x W rows, M rows with a new token, C candidate tokens of a text, D
# dimension of the joint network, V vocabulary, H n-best hypotheses


@dataclass
class Texts:
    """The texts in the beam; all log-probabilities are in float64."""

    log_BW: Tensor  # of the alignments so far; -inf: there is no such text
    language_BW: Tensor  # of the tokens under the language model
    last_BW: Tensor  # the last token
    hash_BW: Tensor  # 64 bits that identify the text
    parent_BW: Tensor  # hash of the text without its last token


class TransducerBeam:
    """The best texts of a batch so far. Steps may come one by one."""

    def __init__(
        self,
        decoder: TransducerDecoder,
        config: DecodingConfig,
        language_model: FusionModel | None,
        batch: int,
        device: torch.device,
    ) -> None:
        self.decoder, self.config = decoder, config
        shape = (batch, config.beam)
        self.predicted_RD, self.state = decoder.start(batch * config.beam, device)
        zero_BW = torch.zeros(shape, dtype=torch.float64, device=device)
        slots_BW = torch.arange(config.beam, device=device).expand(shape)
        log_BW = zero_BW.masked_fill(slots_BW > 0, -torch.inf)  # at first the empty text alone
        none_BW = torch.full(shape, NO_TOKEN, device=device)
        self.texts = Texts(log_BW, zero_BW, none_BW, hash_text(slots_BW, slots_BW), none_BW)
        self.weight = config.language_model_weight
        self.scorer: UnevenTexts | None = None
        if language_model is not None:
            self.scorer = UnevenTexts(language_model, batch * config.beam, device)
        self.parents: list[Tensor] = []  # (B, W) slot of each text's parent at the step before
        self.tokens: list[Tensor] = []  # and its token of this step, or NO_TOKEN

    def read(self, steps_BD: Tensor, is_step_B: Tensor) -> None:
        """Read an encoded step, as `prepare_steps` makes it, of the utterances that have one."""
        old, width = self.texts, self.config.beam
        steps_RD = steps_BD.repeat_interleave(width, 0)
        scores_BWV = self._score(steps_RD, self.predicted_RD).unflatten(0, (-1, width))
        # What is over reads blank with probability 1.
        scores_BWV = scores_BWV.masked_fill(~is_step_B[:, None, None], -torch.inf)
        scores_BWV[..., BLANK_ID].masked_fill_(~is_step_B[:, None], 0.0)

        # Of a text and its parent in the beam, the parent with this token is more of the text.
        is_parent_BWW = old.parent_BW[:, :, None] == old.hash_BW[:, None]  # (B, child, parent)
        token_BWW = old.last_BW.clamp(min=0)[:, None].expand_as(is_parent_BWW)  # (B, parent, child)
        extended_BWW = (old.log_BW[..., None] + scores_BWV.gather(2, token_BWW)).mT
        arrived_BW = extended_BWW.masked_fill(~is_parent_BWW, -torch.inf).amax(-1)
        stay_BW = torch.logaddexp(old.log_BW, arrived_BW) + scores_BWV[..., BLANK_ID]

        language_BWV = torch.zeros_like(scores_BWV)
        if self.scorer is not None:
            language_BWV = self.scorer.scores_RV.double().unflatten(0, (-1, width))
        ranked_BWV = scores_BWV + self.weight * language_BWV
        ranked_BWV = ranked_BWV + (old.log_BW + self.weight * old.language_BW)[..., None]
        ranked_BWV = _without(ranked_BWV, is_parent_BWW, old.last_BW)[..., UNK_ID:]
        ranked_BN = torch.cat([stay_BW + self.weight * old.language_BW, ranked_BWV.flatten(1)], dim=1)
        best_BW, chosen_BW = ranked_BN.topk(width)

        is_new_BW = (chosen_BW >= width) & (best_BW > -torch.inf)
        token_BW = (chosen_BW - width) % ranked_BWV.size(2) + UNK_ID
        parent_BW = torch.where(chosen_BW < width, chosen_BW, (chosen_BW - width) // ranked_BWV.size(2))
        said_BW1 = (parent_BW * scores_BWV.size(2) + token_BW)[..., None]
        said_BW = old.log_BW.gather(1, parent_BW) + scores_BWV.flatten(1).gather(1, said_BW1[..., 0])
        told_BW = language_BWV.flatten(1).gather(1, said_BW1[..., 0]).masked_fill(~is_new_BW, 0.0)
        hash_BW = old.hash_BW.gather(1, parent_BW)
        slots_BW = torch.arange(width, device=hash_BW.device).expand_as(hash_BW)
        new = Texts(
            torch.where(is_new_BW, said_BW, stay_BW.gather(1, parent_BW)),
            old.language_BW.gather(1, parent_BW) + told_BW,
            torch.where(is_new_BW, token_BW, old.last_BW.gather(1, parent_BW)),
            torch.where(is_new_BW, hash_text(hash_BW, token_BW), hash_BW),
            torch.where(is_new_BW, hash_BW, old.parent_BW.gather(1, parent_BW)),
        )
        # A slot without a text is no other's parent or child.
        is_empty_BW = best_BW == -torch.inf
        new.log_BW = new.log_BW.masked_fill(is_empty_BW, -torch.inf)
        new.hash_BW = torch.where(is_empty_BW, hash_text(slots_BW, slots_BW), new.hash_BW)
        new.parent_BW = new.parent_BW.masked_fill(is_empty_BW, NO_TOKEN)
        self._go_on(new, parent_BW, token_BW, is_new_BW, steps_RD)

    def _go_on(
        self, new: Texts, parent_BW: Tensor, token_BW: Tensor, is_new_BW: Tensor, steps_RD: Tensor
    ) -> None:
        """Continue the chosen texts; new tokens are read by the predictor, and followed by blank."""
        batch, width = parent_BW.shape
        first_B1 = torch.arange(batch, device=parent_BW.device)[:, None] * width
        rows_R = (first_B1 + parent_BW).flatten()
        self.predicted_RD = self.predicted_RD[rows_R]
        self.state = tuple(part[rows_R] for part in self.state)
        rows_M = is_new_BW.flatten().nonzero()[:, 0]
        tokens_M = token_BW.flatten()[rows_M]
        if len(rows_M):
            state = tuple(part[rows_M] for part in self.state)
            predicted_M1D, after = self.decoder.predict(tokens_M[:, None], state)
            self.predicted_RD[rows_M] = predicted_M1D[:, 0]
            for part, stepped in zip(self.state, after, strict=True):
                part[rows_M] = stepped
            scores_MV = self._score(steps_RD[rows_M], predicted_M1D[:, 0])
            new.log_BW.view(-1)[rows_M] += scores_MV[:, BLANK_ID]
        if self.scorer is not None:
            self.scorer.go_on(rows_R, rows_M, tokens_M)
        self.texts = new
        self.parents.append(parent_BW)
        self.tokens.append(token_BW.masked_fill(~is_new_BW, NO_TOKEN))

    def _score(self, encoded_RD: Tensor, predicted_RD: Tensor) -> Tensor:
        return self.decoder.score(encoded_RD, predicted_RD)[0].double()

    def finish(self) -> NBest:
        """The best texts of each utterance, with their ends under the language model."""
        texts = self.texts
        score_BW = texts.log_BW + self.weight * texts.language_BW
        if self.scorer is not None:
            end_BW = self.scorer.scores_RV[:, EOS_ID].double().view_as(score_BW)
            score_BW = score_BW + self.weight * end_BW
        best_BH, slots_BH = score_BW.topk(min(self.config.nbest, score_BW.size(1)))
        log_BH = texts.log_BW.gather(1, slots_BH)
        reversed_tokens = []
        for parent_BW, token_BW in zip(reversed(self.parents), reversed(self.tokens), strict=True):
            reversed_tokens.append(token_BW.gather(1, slots_BH))
            slots_BH = parent_BW.gather(1, slots_BH)
        tokens_BHT = torch.stack(reversed_tokens[::-1], dim=-1)
        nbest = []
        for row in zip(tokens_BHT.tolist(), best_BH.tolist(), log_BH.tolist(), strict=True):
            hypotheses = [
                Hypothesis(tuple(token for token in path if token != NO_TOKEN), score, log)
                for path, score, log in zip(*row, strict=True)
                if score > -math.inf
            ]
            nbest.append(hypotheses or [Hypothesis((), -math.inf)])
        return nbest


def _without(ranked_BWV: Tensor, is_parent_BWW: Tensor, last_BW: Tensor) -> Tensor:
    """No token of a parent that leads to one of its children in the beam."""
    tokens_BWW = last_BW.clamp(min=0)[:, None].expand_as(is_parent_BWW)  # (B, parent, child)
    is_child_BWV = torch.zeros_like(ranked_BWV, dtype=torch.int8)
    is_child_BWV.scatter_reduce_(2, tokens_BWW, is_parent_BWW.mT.to(torch.int8), "amax")
    return ranked_BWV.masked_fill(is_child_BWV.bool(), -torch.inf)
