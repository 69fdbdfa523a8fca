"""Beam search of a transducer, step by step: the alignments of a text add up, as in the prefix search of CTC.

At each encoded step, texts are open or closed: an open one may get another token and stay open; by blank it
is closed, and waits for the next step. Models that see the whole audio emit a word at one step, so a search
for one token a step, as icefall's, would not find what they say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from asr.decoding.beam import hash_text
from asr.decoding.hypothesis import DecodingConfig, FusionModel, Hypothesis, NBest
from asr.text.tokenizer import BLANK_ID, EOS_ID, UNK_ID
from asr.transducer.label_looping import MAX_TOKENS_AT_STEP
from asr.transducer.transducer_decoder import TransducerDecoder
from asr.transducer.uneven_texts import UnevenTexts

# B utterances, W texts in the beam of each, P texts that there are (W open ones, with up to W closed ones
# before them), R = B x P rows, M rows with a new token, D dimension of the joint network, V vocabulary

ROOT = 0  # the empty text among all texts


@dataclass
class Texts:
    """All log-probabilities are in float64."""

    log_BP: Tensor  # of the alignments so far; -inf: there is no such text
    language_BP: Tensor  # of the tokens under the language model
    hash_BP: Tensor  # 64 bits that identify the text
    node_BP: Tensor  # its number among all texts so far

    def take(self, index_BP: Tensor) -> Texts:
        columns = (self.log_BP, self.language_BP, self.hash_BP, self.node_BP)
        return Texts(*(column.gather(1, index_BP) for column in columns))


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
        self.decoder, self.config, self.weight = decoder, config, config.language_model_weight
        self.predicted_RD, self.state = decoder.start(batch * config.beam, device)
        zero_BP = torch.zeros((batch, config.beam), dtype=torch.float64, device=device)
        log_BP = zero_BP.clone()
        log_BP[:, 1:] = -torch.inf  # at first the empty text alone
        self.texts = Texts(log_BP, zero_BP, zero_BP.long(), zero_BP.long() + ROOT)
        self.scorer: UnevenTexts | None = None
        if language_model is not None:
            self.scorer = UnevenTexts(language_model, batch * config.beam, device)
        self.parents = [torch.full((batch, 1), ROOT, device=device)]  # of the numbered texts
        self.tokens = [torch.full((batch, 1), EOS_ID, device=device)]  # the last of each

    def read(self, steps_BD: Tensor, is_step_B: Tensor) -> None:
        """Read an encoded step, as `prepare_steps` makes it, of the utterances that have one."""
        width = self.config.beam
        for num_tokens in range(MAX_TOKENS_AT_STEP + 1):
            opened = self.texts.log_BP.size(1) - width  # the first open one
            predicted_BWD = self.predicted_RD.unflatten(0, (len(steps_BD), -1))[:, opened:]
            scores_BWV = self.decoder.score(steps_BD[:, None], predicted_BWD)[0].double()
            # What is over reads blank with probability 1.
            scores_BWV = scores_BWV.masked_fill(~is_step_B[:, None, None], -torch.inf)
            scores_BWV[..., BLANK_ID].masked_fill_(~is_step_B[:, None], 0.0)
            open_BW = self.texts.log_BP[:, opened:]
            extended_BWV = open_BW[..., None] + scores_BWV[..., UNK_ID:]
            language_BWV = self.texts.language_BP[:, opened:, None].expand_as(extended_BWV)
            if self.scorer is not None:
                next_BPV = self.scorer.scores_RV.double().unflatten(0, (len(steps_BD), -1))
                language_BWV = language_BWV + next_BPV[:, opened:, UNK_ID:]
            self.texts.log_BP = self._close(opened, open_BW + scores_BWV[..., BLANK_ID])
            ranked_BP = self.texts.log_BP + self.weight * self.texts.language_BP
            best_BW, closed_BW = ranked_BP.topk(width)
            # More tokens make a text less likely: without room among the closed ones it is lost.
            ranked_BN = (extended_BWV + self.weight * language_BWV).flatten(1)
            likely_BW, chosen_BW = ranked_BN.topk(width)
            is_new_BW = likely_BW > best_BW[:, -1:]
            if num_tokens == MAX_TOKENS_AT_STEP or not is_new_BW.any():
                break
            vocab_size = extended_BWV.size(2)
            index_BP = torch.cat([closed_BW, opened + chosen_BW // vocab_size], 1)
            extended_BW = extended_BWV.flatten(1).gather(1, chosen_BW)
            language_BW = language_BWV.flatten(1).gather(1, chosen_BW)
            self._go_on(index_BP, chosen_BW % vocab_size + UNK_ID, is_new_BW, extended_BW, language_BW)
        none_M = closed_BW.new_zeros(0)
        self._select(closed_BW, none_M, none_M)

    def _close(self, opened: int, closing_BW: Tensor) -> Tensor:
        """(B, P) log-probabilities of all texts, closed; those that are equal are added up in the first."""
        texts = self.texts
        log_BC, hash_BC = texts.log_BP[:, :opened], texts.hash_BP[:, :opened]
        is_same_BCW = hash_BC[..., None] == texts.hash_BP[:, None, opened:]
        is_same_BCW &= (log_BC > -torch.inf)[..., None]
        same_BCW = closing_BW[:, None].masked_fill(~is_same_BCW, -torch.inf)
        log_BC = torch.logaddexp(log_BC, same_BCW.amax(-1)) if opened else log_BC
        return torch.cat([log_BC, closing_BW.masked_fill(is_same_BCW.any(1), -torch.inf)], dim=1)

    def _go_on(
        self, index_BP: Tensor, token_BW: Tensor, is_new_BW: Tensor, extended_BW: Tensor, language_BW: Tensor
    ) -> None:
        """Keep the closed texts, and open those with new tokens, which the predictor reads."""
        width = token_BW.size(1)
        node_B1 = sum(part.size(1) for part in self.tokens) + torch.arange(width, device=token_BW.device)
        is_row_BP = torch.cat([torch.zeros_like(is_new_BW), is_new_BW], dim=1)
        rows_M = is_row_BP.flatten().nonzero()[:, 0]
        tokens_M = token_BW[is_new_BW]
        self._select(index_BP, rows_M, tokens_M)
        state = tuple(part[rows_M] for part in self.state)
        predicted_M1D, after = self.decoder.predict(tokens_M[:, None], state)
        self.predicted_RD[rows_M] = predicted_M1D[:, 0]
        for part, stepped in zip(self.state, after, strict=True):
            part[rows_M] = stepped
        texts = self.texts
        self.parents.append(texts.node_BP[:, width:].clone())
        self.tokens.append(token_BW)
        texts.log_BP[:, width:] = extended_BW.masked_fill(~is_new_BW, -torch.inf)
        texts.language_BP[:, width:] = language_BW.masked_fill(~is_new_BW, 0.0)
        texts.hash_BP[:, width:] = hash_text(texts.hash_BP[:, width:], token_BW)
        texts.node_BP[:, width:] = node_B1

    def _select(self, index_BP: Tensor, rows_M: Tensor, tokens_M: Tensor) -> None:
        """Continue with these texts; the rows get a token each under the language model."""
        first_B1 = torch.arange(len(index_BP), device=index_BP.device)[:, None] * self.texts.log_BP.size(1)
        rows_R = (first_B1 + index_BP).flatten()
        self.texts = self.texts.take(index_BP)
        self.predicted_RD = self.predicted_RD[rows_R]
        self.state = tuple(part[rows_R] for part in self.state)
        if self.scorer is not None:
            self.scorer.go_on(rows_R, rows_M, tokens_M)

    def finish(self) -> NBest:
        """The best texts of each utterance, with their ends under the language model."""
        texts = self.texts
        score_BW = texts.log_BP + self.weight * texts.language_BP
        if self.scorer is not None:
            score_BW = score_BW + self.weight * self.scorer.scores_RV[:, EOS_ID].double().view_as(score_BW)
        best_BH, slots_BH = score_BW.topk(min(self.config.nbest, score_BW.size(1)))
        parents, tokens = (torch.cat(part, dim=1).tolist() for part in (self.parents, self.tokens))
        columns = (best_BH, texts.log_BP.gather(1, slots_BH), texts.node_BP.gather(1, slots_BH))
        nbest = []
        for row, found in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            hypotheses = []
            for score, log, node in zip(*found, strict=True):
                spelled = []
                while node != ROOT:
                    spelled.append(tokens[row][node])
                    node = parents[row][node]
                if score > -math.inf:
                    hypotheses.append(Hypothesis(tuple(reversed(spelled)), score, log))
            nbest.append(hypotheses or [Hypothesis((), -math.inf)])
        return nbest
