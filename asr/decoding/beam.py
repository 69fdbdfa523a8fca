"""Beam search token by token: decoder, CTC prefixes and language model (shallow fusion) add up."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from asr.decoding.fusion import FusionModel, FusionState
from asr.decoding.hypothesis import DecodingConfig, EncodedAudio, Hypothesis, NBest
from asr.errors import UserError
from asr.models import SpeechModel
from asr.models.decoders import Decoder, DecoderState
from asr.models.guided_attention import AttentionGuide, CTCPrefixes
from asr.text.units import EOS_ID, SOS_ID, UNK_ID

# B utterances, W beams of each, R = B x W rows, C candidate tokens of a beam, N = W x C, T encoded steps,
# V vocabulary, U steps of the search, H hypotheses of the n-best list

PRESELECTION = 1.5  # candidates of a beam that CTC scores too, as a multiple of the beam


@dataclass(frozen=True)
class Weights:
    """Weights of the parts of a score."""

    decoder: float
    ctc: float
    language_model: float


@dataclass
class Step:
    """One step of the search, kept for reading the hypotheses at its end."""

    utterances_B: Tensor
    ends_BW: Tensor  # rank score of each beam if it ended here; -inf where others were better
    decoder_BW: Tensor  # log-probabilities of these, of the decoder and of CTC
    ctc_BW: Tensor
    attended_BW: Tensor
    parents_BW: Tensor  # of the beams of the next step
    tokens_BW: Tensor


@dataclass
class Choices:
    """Next tokens of every beam, and its end, with their log-probabilities so far under each part."""

    tokens_BWC: Tensor
    scores_BWC: Tensor  # weighted sum, in float64 as are all sums
    decoder_BWC: Tensor
    language_BWC: Tensor
    end_BW: Tensor  # weighted sum
    end_decoder_BW: Tensor
    end_ctc_BW: Tensor
    behind_BW: Tensor  # how far the end is behind the likeliest token of this step
    attended_BW: Tensor


class Beams:
    """The running hypotheses of a batch, and the states of the parts that score them."""

    def __init__(
        self,
        encoded: EncodedAudio,
        weights: Weights,
        language_model: FusionModel | None,
        num_candidates: int,
        guide_width: float | None = None,
    ) -> None:
        model, encoded_BTD, lengths_B = encoded.model, encoded.encoded_BTD, encoded.lengths_B
        batch, device = len(encoded_BTD), encoded_BTD.device
        self.decoder: Decoder | None = None  # not asked where it counts nothing
        if weights.decoder > 0:
            assert isinstance(model.decoder, Decoder)
            self.decoder = model.decoder
            self.state: DecoderState = model.decoder.start(encoded_BTD, lengths_B)
        self.attends = self.decoder is not None and self.decoder.num_heads > 0
        self.guide: AttentionGuide | None = None
        if self.decoder is not None and guide_width is not None:
            self.guide = AttentionGuide(guide_width, encoded_BTD.size(1), device)
        self.prefixes: CTCPrefixes | None = None
        if weights.ctc > 0 or self.guide is not None:
            self.vocab_size = encoded.ctc_BTV.size(2)
            self.prefixes = CTCPrefixes(encoded.ctc_BTV, lengths_B)
        self.fusion: FusionState | None = None
        if language_model is not None and weights.language_model > 0:
            self.fusion = language_model.start(batch, device)
        self.weights = weights
        self.num_candidates = num_candidates
        self.steps_T = torch.arange(encoded_BTD.size(1), device=device, dtype=torch.float32)
        self.tokens_BW = torch.full((batch, 1), SOS_ID, device=device)
        self.decoder_BW = torch.zeros((batch, 1), dtype=torch.float64, device=device)
        self.language_BW = torch.zeros_like(self.decoder_BW)
        self.handicap_BW = torch.zeros_like(self.decoder_BW)  # 0, or -inf for a beam that can't go on

    def choose(self) -> Choices:
        """Score what may come next."""
        shape = self.tokens_BW.shape
        decoder_RV, attended_BW = self._ask_decoder()
        fused_RV, language_RV = decoder_RV, None
        if self.prefixes is not None and self.decoder is None:
            fused_RV = self.prefixes.all_scores().flatten(0, 1)
        if self.fusion is not None:
            language_RV = self.fusion.score(self.tokens_BW.flatten()).float()
            spoken_weight = self.weights.ctc if self.decoder is None else self.weights.decoder
            fused_RV = spoken_weight * fused_RV + self.weights.language_model * language_RV
        # Of the special tokens only the end, apart, and the unknown token may be chosen.
        count = min(self.num_candidates, fused_RV.size(1) - UNK_ID)
        likeliest_RC = fused_RV[:, UNK_ID:].topk(count)
        tokens_BWC = likeliest_RC.indices.view(*shape, count) + UNK_ID
        behind_BW = (likeliest_RC.values[:, 0] - fused_RV[:, EOS_ID]).view(shape)

        def so_far(before_BW: Tensor, scores_RV: Tensor) -> tuple[Tensor, Tensor]:
            """Sums of the candidates and of the end."""
            candidates_BWC = scores_RV.view(*shape, -1).gather(2, tokens_BWC)
            end_BW = scores_RV[:, EOS_ID].view(shape)
            return before_BW[..., None] + candidates_BWC, before_BW + end_BW

        weights = self.weights
        decoder_BWC, end_decoder_BW = so_far(self.decoder_BW, decoder_RV)
        scores_BWC = weights.decoder * decoder_BWC + self.handicap_BW[..., None]
        end_BW = weights.decoder * end_decoder_BW + self.handicap_BW
        language_BWC, end_ctc_BW = scores_BWC, torch.full_like(end_BW, math.nan)
        if language_RV is not None:
            language_BWC, end_language_BW = so_far(self.language_BW, language_RV)
            scores_BWC = scores_BWC + weights.language_model * language_BWC
            end_BW = end_BW + weights.language_model * end_language_BW
        if self.prefixes is not None and weights.ctc > 0:
            end_ctc_BW = self.prefixes.end_scores()
            scores_BWC = scores_BWC + weights.ctc * self.prefixes.candidate_scores(tokens_BWC)
            end_BW = end_BW + weights.ctc * end_ctc_BW
        return Choices(
            tokens_BWC, scores_BWC, decoder_BWC, language_BWC, end_BW, end_decoder_BW, end_ctc_BW, behind_BW,
            attended_BW,
        )  # fmt: skip

    def _ask_decoder(self) -> tuple[Tensor, Tensor]:
        """(R, V) log-probabilities of the next token, and (B, W) the step that is attended to on average.

        The latter means nothing where none is.
        """
        shape = self.tokens_BW.shape
        if self.decoder is None:
            return self.steps_T.new_zeros(()).expand(shape.numel(), self.vocab_size), self.decoder_BW
        tokens_R1, asked = self.tokens_BW.view(-1, 1), self.decoder.last_heads
        bias_R1T = None
        if self.guide is not None and self.prefixes is not None:
            bias_R1T = self.guide.compute_bias(self.prefixes.next_token_times()).flatten(0, 1)[:, None]
        logits_R1V, attention = self.decoder.step(tokens_R1, self.state, asked, bias_R1T)
        attended_BW = self.decoder_BW
        if self.attends:
            (weights_RH1T,) = attention.values()
            # No matrix product: autocast would do it in half precision, which counts by twos above 256.
            attended_BW = (weights_RH1T.mean(1)[:, 0] * self.steps_T).sum(-1).view(shape)
        return logits_R1V[:, -1].float().log_softmax(-1), attended_BW

    def go_on(self, choices: Choices, chosen_BW: Tensor, scores_BW: Tensor) -> tuple[Tensor, Tensor]:
        """Make the chosen candidates (as numbers of W x C) the new beams: their parents and tokens."""
        batch, old_width, count = choices.tokens_BWC.shape
        parents_BW = chosen_BW // count
        self.tokens_BW = choices.tokens_BWC.flatten(1).gather(1, chosen_BW)
        self.decoder_BW = choices.decoder_BWC.flatten(1).gather(1, chosen_BW)
        self.handicap_BW = torch.zeros_like(scores_BW).masked_fill(scores_BW == -torch.inf, -torch.inf)
        first_row_B1 = torch.arange(batch, device=chosen_BW.device)[:, None] * old_width
        if chosen_BW.size(1) > 1 or old_width > 1:
            rows = (first_row_B1 + parents_BW).flatten()
            if self.decoder is not None:
                self.state.select_beams(rows)
            if self.fusion is not None:
                self.fusion.select(rows)
        if self.fusion is not None:
            self.language_BW = choices.language_BWC.flatten(1).gather(1, chosen_BW)
        if self.prefixes is not None:
            self.prefixes.advance(parents_BW, self.tokens_BW)
        return parents_BW, self.tokens_BW

    def select_utterances(self, kept_B: Tensor) -> None:
        width = self.tokens_BW.size(1)
        rows = (kept_B[:, None] * width + torch.arange(width, device=kept_B.device)).flatten()
        if self.decoder is not None:
            self.state.select_utterances(kept_B)
            self.state.select_beams(rows)
        if self.fusion is not None:
            self.fusion.select(rows)
        if self.prefixes is not None:
            self.prefixes.select_utterances(kept_B)
        self.tokens_BW, self.decoder_BW = self.tokens_BW[kept_B], self.decoder_BW[kept_B]
        self.language_BW, self.handicap_BW = self.language_BW[kept_B], self.handicap_BW[kept_B]


def decode_by_attention(
    encoded: EncodedAudio, config: DecodingConfig, language_model: FusionModel | None
) -> NBest:
    """Search under the decoder alone."""
    return search_beams(encoded, config, language_model)


def decode_jointly(
    encoded: EncodedAudio, config: DecodingConfig, language_model: FusionModel | None
) -> NBest:
    """Search under decoder and CTC head at once."""
    return search_beams(encoded, config, language_model, ctc_weight=config.ctc_weight)


def find_guide_width(model: SpeechModel, config: DecodingConfig) -> float | None:
    """The width that is asked for, or the one that the decoder was trained with."""
    width = config.guide_width
    if width is None:
        return model.config.attention_guide.width if model.config.attention_guide is not None else None
    if model.decoder is None or model.decoder.num_heads == 0:
        raise UserError(f"guide_width = {width}: the decoder of this model does not attend")
    if model.ctc_head is None:
        raise UserError(f"guide_width = {width} follows CTC, and this model has no CTC head; leave it out")
    return width


def search_beams(
    encoded: EncodedAudio,
    config: DecodingConfig,
    language_model: FusionModel | None = None,
    *,
    ctc_weight: float = 0.0,
) -> NBest:
    """N-best lists of utterances that all have encoded steps.

    A hypothesis that ends keeps a place among the best of its step, or is dropped; once as many as asked for
    have ended that no running one can overtake, the utterance is done. Log-probabilities only fall, so what
    a running hypothesis can still reach is known: its score now, and the length bonus of the tokens left.
    """
    weights = Weights(1 - ctc_weight, ctc_weight, config.language_model_weight)
    factor = PRESELECTION if ctc_weight > 0 or weights.language_model > 0 else 1.0
    num_candidates = math.ceil(factor * config.beam)
    beams = Beams(encoded, weights, language_model, num_candidates, find_guide_width(encoded.model, config))
    lengths_B = encoded.lengths_B
    limits_B = encoded.model.limit_tokens(lengths_B, config.max_tokens)
    if ctc_weight > 0:
        limits_B = limits_B.minimum(lengths_B)  # CTC has no alignment of more
    if beams.decoder is not None:
        limits_B = limits_B.clamp(max=beams.decoder.max_tokens)
    longest = int(limits_B.max())
    utterances_B = torch.arange(len(limits_B), device=limits_B.device)
    best_BH = torch.full(
        (len(limits_B), config.nbest), -torch.inf, dtype=torch.float64, device=limits_B.device
    )
    steps: list[Step] = []
    while len(utterances_B):
        num_tokens = len(steps)  # of every running hypothesis
        choices = beams.choose()
        scores_BN = (choices.scores_BWC + config.length_bonus * (num_tokens + 1)).flatten(1)
        scores_BN = scores_BN.masked_fill((num_tokens >= limits_B)[:, None], -torch.inf)
        top_BW, chosen_BW = scores_BN.topk(min(config.beam, scores_BN.size(1)))
        end_BW = choices.end_BW + config.length_bonus * num_tokens
        if config.end_margin is not None and ctc_weight == 0:
            is_early_BW = (choices.behind_BW > config.end_margin) & (num_tokens < limits_B)[:, None]
            end_BW = end_BW.masked_fill(is_early_BW, -torch.inf)
        ends_BW = _accept(end_BW, top_BW, config.beam) / (num_tokens + 1) ** config.length_normalization
        parents_BW, tokens_BW = beams.go_on(choices, chosen_BW, top_BW)
        steps.append(
            Step(utterances_B, ends_BW, choices.end_decoder_BW, choices.end_ctc_BW, choices.attended_BW,
                 parents_BW, tokens_BW)
        )  # fmt: skip
        best_BH = torch.cat([best_BH, ends_BW], dim=1).topk(config.nbest).values
        is_running_B = best_BH[:, -1] < _reachable(top_BW[:, 0], num_tokens + 1, limits_B, longest, config)
        running = is_running_B.nonzero()[:, 0]  # the one place in a step where a GPU is waited for
        if len(running) <= 0.75 * len(utterances_B) or len(running) == 0:
            beams.select_utterances(running)
            utterances_B, limits_B, best_BH = utterances_B[running], limits_B[running], best_BH[running]
    return _read_hypotheses(steps, len(lengths_B), config.nbest, beams)


def _accept(end_BW: Tensor, top_BW: Tensor, beam: int) -> Tensor:
    """An end counts only if it is among the best of its step, with those that go on; else -inf."""
    all_BN = torch.cat([end_BW, top_BW], dim=1)
    if all_BN.size(1) <= beam:
        return end_BW
    worst_B1 = all_BN.topk(beam).values[:, -1:]
    return end_BW.masked_fill(end_BW < worst_B1, -torch.inf)


def _reachable(
    best_B: Tensor, num_tokens: int, limits_B: Tensor, longest: int, config: DecodingConfig
) -> Tensor:
    """(B,): the most that the best running hypothesis could end with."""
    bonus, power = config.length_bonus, config.length_normalization
    if bonus == 0 and power == 0:
        return best_B
    more_M = torch.arange(max(1, longest - num_tokens + 1), device=best_B.device)
    scores_BM = (best_B[:, None] + bonus * more_M) / (num_tokens + 1 + more_M) ** power
    return scores_BM.masked_fill(num_tokens + more_M > limits_B[:, None], -torch.inf).amax(1)


# --- reading the result -------------------------------------------------------------------------


def _read_hypotheses(steps: list[Step], batch: int, nbest: int, beams: Beams) -> NBest:
    """Follow the best ends back to the start, those of all utterances at once."""
    width = max(step.ends_BW.size(1) for step in steps)
    ends_BUW = _spread([step.ends_BW for step in steps], steps, batch, width, -torch.inf)
    decoder_BUW = _spread([step.decoder_BW for step in steps], steps, batch, width, 0.0)
    ctc_BUW = _spread([step.ctc_BW for step in steps], steps, batch, width, 0.0)
    attended_BUW = _spread([step.attended_BW.double() for step in steps], steps, batch, width, 0.0)
    next_width = max(step.tokens_BW.size(1) for step in steps)
    parents_BUW = _spread([step.parents_BW for step in steps], steps, batch, next_width, 0)
    tokens_BUW = _spread([step.tokens_BW for step in steps], steps, batch, next_width, EOS_ID)

    num_steps = len(steps)
    scores_BH, flat_BH = ends_BUW.flatten(1).topk(min(nbest, num_steps * width))
    lengths_BH, slots_BH = flat_BH // width, flat_BH % width
    log_probabilities_BH = decoder_BUW.flatten(1).gather(1, flat_BH)
    ctc_BH = ctc_BUW.flatten(1).gather(1, flat_BH)
    tokens_BHU = torch.full((*flat_BH.shape, num_steps), EOS_ID, device=flat_BH.device)
    attended_BHU = torch.zeros((*flat_BH.shape, num_steps), dtype=torch.float64, device=flat_BH.device)
    for step in reversed(range(num_steps)):
        attended_BHU[..., step] = attended_BUW[:, step].gather(1, slots_BH)
        if step:
            is_past_BH = step <= lengths_BH
            tokens_BHU[..., step - 1] = tokens_BUW[:, step - 1].gather(1, slots_BH)
            slots_BH = torch.where(is_past_BH, parents_BUW[:, step - 1].gather(1, slots_BH), slots_BH)
    columns = (tokens_BHU, lengths_BH, scores_BH, log_probabilities_BH, ctc_BH, attended_BHU)
    found = []
    for row in zip(*(column.tolist() for column in columns), strict=True):
        hypotheses = [
            Hypothesis(
                tuple(tokens[:length]),
                score,
                log_probability if beams.weights.decoder else math.nan,
                ctc if beams.weights.ctc else math.nan,
                tuple(attended[: length + 1]) if beams.attends else (),
            )
            for tokens, length, score, log_probability, ctc, attended in zip(*row, strict=True)
            if score > -math.inf
        ]
        found.append(hypotheses or [Hypothesis((), -math.inf)])
    return found


def _spread(parts: list[Tensor], steps: list[Step], batch: int, width: int, padding: float) -> Tensor:
    """(B, U, W) of all utterances from the steps, each of which has those still running then."""
    whole = parts[0].new_full((batch, len(parts), width), padding)
    for index, (part_BW, step) in enumerate(zip(parts, steps, strict=True)):
        whole[step.utterances_B, index, : part_BW.size(1)] = part_BW
    return whole
