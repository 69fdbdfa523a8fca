"""Beam search token by token (decoder, CTC, language model) or frame by frame (CTC), and rescoring."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from asr.decoding.greedy import limit_tokens, read_prompts, start_decoder
from asr.decoding.hypothesis import DecodingConfig, EncodedAudio, FusionModel, FusionState, Hypothesis, NBest
from asr.errors import UserError
from asr.models.decoders import CTCPrefixes, Decoder, DecoderState, mask_padding
from asr.models.guided_attention import GaussianWindow, ctc_window_bias
from asr.models.speech_model import SpeechModel
from asr.text.tokenizer import BLANK_ID, EOS_ID, SOS_ID, UNK_ID

# B utterances, W beams of each, R = B x W rows, C candidate tokens of a beam or step, N = W x C (and W more
# in the search step by step), T encoded steps, V vocabulary, U steps of the search, H n-best hypotheses

PRESELECTION = 1.5  # number of candidates per beam that CTC scores, in beams
# With the decoder alone, a text may end only if the end is at most this much less likely (in nats) than the
# likeliest token. Otherwise wide beams prefer texts that end early, and drop half of a long utterance.
END_MARGIN = 2.0
CERTAIN = -1e-6  # minimum log-probability of a blank that makes other tokens negligible
NO_TOKEN = -1


def decode_jointly(
    encoded: EncodedAudio, config: DecodingConfig, language_model: FusionModel | None
) -> NBest:
    """Search under decoder and CTC head at once."""
    return search_beams(encoded, config, language_model, ctc_weight=config.ctc_weight)


def decode_by_ctc_beam(
    encoded: EncodedAudio, config: DecodingConfig, language_model: FusionModel | None
) -> NBest:
    """Search step by step, or token by token with a language model, which scores tokens."""
    if language_model is None:
        return search_prefixes(encoded.ctc_BTV, encoded.lengths_B, config)
    return search_beams(encoded, config, language_model, ctc_weight=1.0)


def decode_by_rescoring(
    encoded: EncodedAudio, config: DecodingConfig, language_model: FusionModel | None
) -> NBest:
    """Rank all texts of CTC's beam. A language model scores from the start, because the texts that a word
    list allows would rarely be found without it."""
    first_pass = config.model_copy(update={"nbest": config.beam})
    return rescore(encoded, decode_by_ctc_beam(encoded, first_pass, language_model), config, language_model)


# --- token by token -----------------------------------------------------------------------------


@dataclass
class Choices:
    """Candidate next tokens and the end of each beam, with log-probabilities under each part."""

    tokens_BWC: Tensor
    scores_BWC: Tensor  # weighted sum, in float64 as are all sums
    decoder_BWC: Tensor
    language_BWC: Tensor
    end_BW: Tensor  # weighted sum
    end_decoder_BW: Tensor
    end_ctc_BW: Tensor
    end_gap_BW: Tensor  # log-probability of the likeliest token minus that of the end


class Beams:
    """Running hypotheses of a batch, and the states of the parts that score them."""

    def __init__(
        self,
        encoded: EncodedAudio,
        config: DecodingConfig,
        ctc_weight: float,
        language_model: FusionModel | None,
    ) -> None:
        self.decoder_weight, self.ctc_weight = 1 - ctc_weight, ctc_weight
        self.language_weight = config.language_model_weight
        factor = PRESELECTION if ctc_weight > 0 or self.language_weight > 0 else 1.0
        self.num_candidates = math.ceil(factor * config.beam)
        window_width = find_window_width(encoded.model, config)
        model, encoded_BTD, lengths_B = encoded.model, encoded.encoded_BTD, encoded.lengths_B
        batch, device = len(encoded_BTD), encoded_BTD.device
        self.rules = encoded.rules
        self.decoder: Decoder | None = None  # not run if its weight is 0
        self.prompted_RV: Tensor | None = None  # scores of the first token after a prompt
        self.no_speech_B: Tensor | None = None
        if self.decoder_weight > 0:
            assert isinstance(model.decoder, Decoder)
            self.decoder = model.decoder
            self.state: DecoderState
            if encoded.prompts_BP is None:
                self.state = start_decoder(encoded)
            else:
                self.state, self.prompted_RV, self.no_speech_B = read_prompts(encoded)
        self.attends = self.decoder is not None and self.decoder.num_heads > 0 and self.rules.notes_attention
        self.window: GaussianWindow | None = None
        if self.decoder is not None and window_width is not None:
            self.window = GaussianWindow(window_width, encoded_BTD.size(1), device)
        self.prefixes: CTCPrefixes | None = None
        if ctc_weight > 0 or self.window is not None:
            self.vocab_size = encoded.ctc_BTV.size(2)
            self.prefixes = CTCPrefixes(encoded.ctc_BTV, lengths_B)
        self.fusion: FusionState | None = None
        if language_model is not None and self.language_weight > 0:
            self.fusion = language_model.start(batch, device)
        self.steps_T = torch.arange(encoded_BTD.size(1), device=device, dtype=torch.float32)
        self.tokens_BWU = torch.full((batch, 1, 1), SOS_ID, device=device)
        self.attended_BWU = torch.zeros((batch, 1, 0), dtype=torch.float64, device=device)
        self.decoder_BW = torch.zeros((batch, 1), dtype=torch.float64, device=device)
        self.language_BW = torch.zeros_like(self.decoder_BW)
        self.dead_mask_BW = torch.zeros_like(self.decoder_BW)  # 0, or -inf if the beam cannot continue

    def choose(self) -> Choices:
        """Score the candidates of the next token."""
        shape = self.decoder_BW.shape
        decoder_RV, attended_BW = self._run_decoder()
        self.attended_BWU = torch.cat([self.attended_BWU, attended_BW.double()[..., None]], dim=2)
        fused_RV, language_RV = decoder_RV, None
        if self.prefixes is not None and self.decoder is None:
            fused_RV = self.prefixes.all_scores().flatten(0, 1)
        if self.fusion is not None:
            language_RV = self.fusion.score(self.tokens_BWU[..., -1].flatten()).float()
            acoustic_weight = self.ctc_weight if self.decoder is None else self.decoder_weight
            fused_RV = acoustic_weight * fused_RV + self.language_weight * language_RV
        # Of the special tokens, only the end (scored separately) and the unknown token may be chosen.
        first, end = self.rules.first, EOS_ID
        ends_R1 = fused_RV[:, end : end + 1]
        count = min(self.num_candidates, fused_RV.size(1) - first)
        likeliest_RC = fused_RV[:, first:].topk(count)
        tokens_BWC = likeliest_RC.indices.view(*shape, count) + first
        end_gap_BW = (likeliest_RC.values[:, :1] - ends_R1).view(shape)

        def so_far(before_BW: Tensor, scores_RV: Tensor) -> tuple[Tensor, Tensor]:
            """Total scores of the candidates and of the end."""
            candidates_BWC = scores_RV.view(*shape, -1).gather(2, tokens_BWC)
            end_BW = scores_RV[:, end].view(shape)
            return before_BW[..., None] + candidates_BWC, before_BW + end_BW

        decoder_BWC, end_decoder_BW = so_far(self.decoder_BW, decoder_RV)
        scores_BWC = self.decoder_weight * decoder_BWC + self.dead_mask_BW[..., None]
        end_BW = self.decoder_weight * end_decoder_BW + self.dead_mask_BW
        language_BWC, end_ctc_BW = scores_BWC, torch.full_like(end_BW, math.nan)
        if language_RV is not None:
            language_BWC, end_language_BW = so_far(self.language_BW, language_RV)
            scores_BWC = scores_BWC + self.language_weight * language_BWC
            end_BW = end_BW + self.language_weight * end_language_BW
        if self.prefixes is not None and self.ctc_weight > 0:
            end_ctc_BW = self.prefixes.end_scores()
            scores_BWC = scores_BWC + self.ctc_weight * self.prefixes.candidate_scores(tokens_BWC)
            end_BW = end_BW + self.ctc_weight * end_ctc_BW
        return Choices(
            tokens_BWC, scores_BWC, decoder_BWC, language_BWC, end_BW, end_decoder_BW, end_ctc_BW, end_gap_BW
        )

    def _run_decoder(self) -> tuple[Tensor, Tensor]:
        """Return (R, V) log-probabilities of the next token, and (B, W) mean attended steps, if any."""
        shape = self.decoder_BW.shape
        if self.decoder is None:
            return self.steps_T.new_zeros(()).expand(shape.numel(), self.vocab_size), self.decoder_BW
        if self.prompted_RV is not None:
            logits_RV, self.prompted_RV = self.prompted_RV, None
            return self.rules.forbid(logits_RV, 0).log_softmax(-1), self.decoder_BW
        heads = self.decoder.last_heads if self.attends else {}
        tokens_R1, num_tokens = self.tokens_BWU[..., -1].reshape(-1, 1), self.tokens_BWU.size(2) - 1
        bias_R1T = None
        if self.window is not None and self.prefixes is not None:
            bias_R1T = self.window.compute_bias(self.prefixes.next_token_times()).flatten(0, 1)[:, None]
        logits_R1V, attention = self.decoder.step(tokens_R1, self.state, heads, bias_R1T)
        attended_BW = self.decoder_BW
        if self.attends:
            weights_RH1T = torch.cat([*attention.values()], dim=1)
            # Not a matrix product: autocast would use half precision, which has only even numbers above 256.
            attended_BW = (weights_RH1T.mean(1)[:, 0] * self.steps_T).sum(-1).view(shape)
        return self.rules.forbid(logits_R1V[:, -1].float(), num_tokens).log_softmax(-1), attended_BW

    def advance(self, choices: Choices, chosen_BW: Tensor, scores_BW: Tensor) -> None:
        """Make the chosen candidates (indices into W x C) the new beams."""
        batch, old_width, count = choices.tokens_BWC.shape
        parents_BW = chosen_BW // count
        tokens_BW = choices.tokens_BWC.flatten(1).gather(1, chosen_BW)
        self.tokens_BWU = torch.cat([_pick(self.tokens_BWU, parents_BW), tokens_BW[..., None]], dim=2)
        self.attended_BWU = _pick(self.attended_BWU, parents_BW)
        self.decoder_BW = choices.decoder_BWC.flatten(1).gather(1, chosen_BW)
        self.dead_mask_BW = torch.zeros_like(scores_BW).masked_fill(scores_BW == -torch.inf, -torch.inf)
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
            self.prefixes.advance(parents_BW, tokens_BW)

    def select_utterances(self, kept_B: Tensor) -> None:
        width = self.decoder_BW.size(1)
        rows = (kept_B[:, None] * width + torch.arange(width, device=kept_B.device)).flatten()
        if self.decoder is not None:
            self.state.select_utterances(kept_B)
            self.state.select_beams(rows)
        if self.fusion is not None:
            self.fusion.select(rows)
        if self.prefixes is not None:
            self.prefixes.select_utterances(kept_B)
        self.tokens_BWU, self.attended_BWU = self.tokens_BWU[kept_B], self.attended_BWU[kept_B]
        self.decoder_BW, self.language_BW = self.decoder_BW[kept_B], self.language_BW[kept_B]
        self.dead_mask_BW = self.dead_mask_BW[kept_B]
        if self.no_speech_B is not None:
            self.no_speech_B = self.no_speech_B[kept_B]


class Finished:
    """The best finished hypotheses of each utterance."""

    def __init__(self, batch: int, nbest: int, end: int, device: torch.device) -> None:
        self.scores_BH = torch.full((batch, nbest), -torch.inf, dtype=torch.float64, device=device)
        self.end = end
        self.tokens_BHU = torch.full((batch, nbest, 0), end, device=device)  # the end after the last
        self.numbers_BHN = self.scores_BH.new_zeros(batch, nbest, 2)  # by decoder, by CTC, attended steps

    def add(self, scores_BW: Tensor, choices: Choices, beams: Beams) -> None:
        """Add each beam as it would end here, with -inf for those that may not."""
        parts_BW2 = torch.stack([choices.end_decoder_BW, choices.end_ctc_BW], dim=2)
        numbers_BWN = torch.cat([parts_BW2, beams.attended_BWU], dim=2)
        self.scores_BH, chosen_BH = torch.cat([self.scores_BH, scores_BW], dim=1).topk(self.scores_BH.size(1))
        tokens_BHU = F.pad(self.tokens_BHU, (0, 1), value=self.end)
        self.tokens_BHU = _pick(torch.cat([tokens_BHU, beams.tokens_BWU], dim=1), chosen_BH)
        self.numbers_BHN = _pick(torch.cat([F.pad(self.numbers_BHN, (0, 1)), numbers_BWN], dim=1), chosen_BH)

    def select_utterances(self, kept_B: Tensor) -> None:
        self.scores_BH, self.tokens_BHU = self.scores_BH[kept_B], self.tokens_BHU[kept_B]
        self.numbers_BHN = self.numbers_BHN[kept_B]

    def read(self, rows: Tensor, beams: Beams) -> NBest:
        nbest = []
        columns = (self.scores_BH[rows], self.tokens_BHU[rows], self.numbers_BHN[rows])
        silences = [None] * len(rows) if beams.no_speech_B is None else beams.no_speech_B[rows].tolist()
        for no_speech, *row in zip(silences, *(column.tolist() for column in columns), strict=True):
            hypotheses = []
            for score, tokens, (by_decoder, by_ctc, *attended) in zip(*row, strict=True):
                length = tokens.index(self.end) if self.end in tokens else len(tokens)
                if score > -math.inf:
                    hypotheses.append(
                        Hypothesis(
                            tuple(tokens[1:length]),
                            score,
                            by_decoder if beams.decoder_weight else math.nan,
                            by_ctc if beams.ctc_weight else math.nan,
                            tuple(attended[:length]) if beams.attends else (),
                            no_speech,
                        )
                    )
            nbest.append(hypotheses or [Hypothesis((), -math.inf)])
        return nbest


def _pick(values_BNU: Tensor, index_BW: Tensor) -> Tensor:
    return values_BNU.gather(1, index_BW[..., None].expand(-1, -1, values_BNU.size(2)))


def find_window_width(model: SpeechModel, config: DecodingConfig) -> float | None:
    """Return the requested width, or the one that the decoder was trained with."""
    width = config.window_width
    if width is None:
        return model.window_width
    if model.ctc_head is None or model.decoder is None or model.decoder.num_heads == 0:
        raise UserError(f"window_width = {width} needs a CTC head and a decoder that attends; leave it out")
    return width


def search_beams(
    encoded: EncodedAudio,
    config: DecodingConfig,
    language_model: FusionModel | None = None,
    *,
    ctc_weight: float = 0.0,
) -> NBest:
    """Search for the n-best lists of utterances, which all have encoded steps.

    A hypothesis that ends stays if it is among the best of its step. An utterance is done once enough have
    ended that no running one can overtake: log-probabilities only fall, so a running hypothesis can at most
    keep its score. A mean may rise again; if texts are ranked by it, `beam` of them have to end.
    """
    beams, by_mean = Beams(encoded, config, ctc_weight, language_model), encoded.rules.by_mean
    limits_B = limit_tokens(encoded, beams.decoder)
    if ctc_weight > 0:
        limits_B = limits_B.minimum(encoded.lengths_B)  # CTC has no alignment for more tokens
    utterances_B = torch.arange(len(limits_B), device=limits_B.device)
    finished = Finished(len(limits_B), config.nbest, EOS_ID, limits_B.device)
    num_ended_B = torch.zeros_like(limits_B)
    nbest: NBest = [[] for _ in limits_B]
    for num_tokens in itertools.count():  # of every running hypothesis
        choices = beams.choose()
        scores_BN = choices.scores_BWC.flatten(1).masked_fill((num_tokens >= limits_B)[:, None], -torch.inf)
        top_BW, chosen_BW = scores_BN.topk(min(config.beam, scores_BN.size(1)))
        end_BW = choices.end_BW
        if by_mean:
            is_late_B1 = (num_ended_B >= config.beam)[:, None]  # done, but still in the batch
            end_BW = end_BW.masked_fill((end_BW <= top_BW[:, -1:]) | is_late_B1, -torch.inf)
            num_ended_B += (end_BW > -torch.inf).sum(1)
            is_running_B = (num_ended_B < config.beam) & (num_tokens < limits_B)
            finished.add(end_BW / (num_tokens + 1), choices, beams)
        else:
            if ctc_weight == 0:
                is_early_BW = (choices.end_gap_BW > END_MARGIN) & (num_tokens < limits_B)[:, None]
                end_BW = end_BW.masked_fill(is_early_BW, -torch.inf)
            finished.add(_accept(end_BW, top_BW, config.beam), choices, beams)
            is_running_B = finished.scores_BH[:, -1] < top_BW[:, 0]
        beams.advance(choices, chosen_BW, top_BW)
        running = is_running_B.nonzero()[:, 0]  # the only synchronization with a GPU in a step
        if len(running) <= 0.75 * len(utterances_B) or len(running) == 0:
            ended = (~is_running_B).nonzero()[:, 0]
            for utterance, hypotheses in zip(
                utterances_B[ended].tolist(), finished.read(ended, beams), strict=True
            ):
                nbest[utterance] = hypotheses
            if len(running) == 0:
                return nbest
            beams.select_utterances(running)
            finished.select_utterances(running)
            utterances_B, limits_B = utterances_B[running], limits_B[running]
            num_ended_B = num_ended_B[running]
    raise AssertionError


def _accept(end_BW: Tensor, top_BW: Tensor, beam: int) -> Tensor:
    """Keep an end only if it is among the best of its step, including continuations; else -inf."""
    all_BN = torch.cat([end_BW, top_BW], dim=1)
    if all_BN.size(1) <= beam:
        return end_BW
    worst_B1 = all_BN.topk(beam).values[:, -1:]
    return end_BW.masked_fill(end_BW < worst_B1, -torch.inf)


# --- step by step -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prefixes:
    """Texts in the beam; all log-probabilities are in float64."""

    in_blank_BW: Tensor  # of the alignments so far that end in blank
    in_token_BW: Tensor  # or in the last token
    last_BW: Tensor  # the last token
    hash_BW: Tensor  # 64 bits that identify the text
    parent_BW: Tensor  # hash of the text without its last token

    @property
    def total_BW(self) -> Tensor:
        return torch.logaddexp(self.in_blank_BW, self.in_token_BW)


def search_prefixes(
    log_probabilities_BTV: Tensor, lengths_B: Tensor, config: DecodingConfig
) -> list[list[Hypothesis]]:
    """Search n-best lists; each text is scored by all its alignments within the beam."""
    scores_BTV = drop_certain_blanks(mask_padding(log_probabilities_BTV, lengths_B))
    # Up to W - 1 extensions of a text may be in the beam already, and its last token is scored lower, so W
    # more candidates include all that can be among the best.
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
    return _read_prefixes(prefixes, parents, tokens, config)


def drop_certain_blanks(scores_BTV: Tensor) -> Tensor:
    """Drop near-certain blanks after another one, which only cost time."""
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
    """Return a beam with only the empty text."""
    certain_BW = torch.zeros(batch, 1, dtype=torch.float64, device=device)
    zero_BW = torch.zeros(batch, 1, dtype=torch.long, device=device)
    return Prefixes(certain_BW, certain_BW - torch.inf, zero_BW + NO_TOKEN, zero_BW, zero_BW + NO_TOKEN)


def _advance(
    old: Prefixes, scores_BV: Tensor, candidates_BC: Tensor, config: DecodingConfig
) -> tuple[Prefixes, Tensor, Tensor]:
    """Return the beam after one step, each text's parent slot in the old beam, and its new token or none."""
    width = old.last_BW.size(1)
    total_BW = old.total_BW
    last_scores_BW = scores_BV.gather(1, old.last_BW.clamp(min=0))

    # (B, child, parent): a parent extended by its child's last token adds to the child.
    is_parent_BWW = old.parent_BW[:, :, None] == old.hash_BW[:, None, :]
    is_repeat_BWW = old.last_BW[:, :, None] == old.last_BW[:, None, :]
    from_parent_BWW = torch.where(is_repeat_BWW, old.in_blank_BW[:, None], total_BW[:, None])
    from_parent_BW = from_parent_BWW.masked_fill(~is_parent_BWW, -torch.inf).amax(-1)

    in_blank_BW = total_BW + scores_BV[:, BLANK_ID : BLANK_ID + 1]
    in_token_BW = torch.logaddexp(old.in_token_BW, from_parent_BW) + last_scores_BW

    is_repeat_BWC = old.last_BW[..., None] == candidates_BC[:, None]
    extended_BWC = torch.where(is_repeat_BWC, old.in_blank_BW[..., None], total_BW[..., None])
    extended_BWC = extended_BWC + scores_BV.gather(1, candidates_BC)[:, None]
    # (B, child, parent, C): the child is already in the beam
    is_known_BWC = (is_parent_BWW[..., None] & is_repeat_BWC[:, :, None]).any(1)
    extended_BWC = extended_BWC.masked_fill(is_known_BWC, -torch.inf)

    stay_BW = torch.logaddexp(in_blank_BW, in_token_BW)
    ranked_BN = torch.cat([stay_BW, extended_BWC.flatten(1)], dim=1)
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
        hash_BW=torch.where(is_stay_BW, hash_BW, hash_text(hash_BW, token_BW)),
        parent_BW=torch.where(is_stay_BW, old.parent_BW.gather(1, parents_BW), hash_BW),
    )
    return _unlink_empty(new, best_BW == -torch.inf), parents_BW, tokens_BW


def hash_text(prefix: Tensor, token: Tensor) -> Tensor:
    """Hash a prefix and another token; products wrap at 64 bits, and the shift mixes their halves."""
    mixed = prefix * 6364136223846793005 + (token + 1) * 2862933555777941757 + 3037000493
    return mixed ^ (mixed >> 31)


def _unlink_empty(prefixes: Prefixes, is_impossible_BW: Tensor) -> Prefixes:
    """Give empty slots unique hashes, so that they are not the parent or child of any text."""
    slots_W = torch.arange(is_impossible_BW.size(1), device=is_impossible_BW.device)
    return replace(
        prefixes,
        hash_BW=torch.where(is_impossible_BW, hash_text(slots_W, slots_W - 7), prefixes.hash_BW),
        parent_BW=torch.where(is_impossible_BW, hash_text(slots_W, slots_W - 77), prefixes.parent_BW),
    )


def _read_prefixes(
    prefixes: Prefixes, parents: list[Tensor], tokens: list[Tensor], config: DecodingConfig
) -> list[list[Hypothesis]]:
    total_BW = prefixes.total_BW
    total_BH, slots_BH = total_BW.topk(min(config.nbest, total_BW.size(1)))
    reversed_tokens = []
    for parents_BW, tokens_BW in zip(reversed(parents), reversed(tokens), strict=True):
        reversed_tokens.append(tokens_BW.gather(1, slots_BH))
        slots_BH = parents_BW.gather(1, slots_BH)
    tokens_BHT = torch.stack(reversed_tokens[::-1], dim=-1)
    return [
        [
            Hypothesis(tuple(token for token in path if token != NO_TOKEN), total, ctc_log_probability=total)
            for path, total in zip(*row, strict=True)
            if total > -torch.inf
        ]
        for row in zip(tokens_BHT.tolist(), total_BH.tolist(), strict=True)
    ]


# --- whole texts -------------------------------------------------------------------------------


def rescore(
    encoded: EncodedAudio, nbest: NBest, config: DecodingConfig, language_model: FusionModel | None = None
) -> NBest:
    """Sort the texts again by decoder and CTC, and cut them to `config.nbest`; all are scored in one pass."""
    tokens_RU, counts_R = pad_texts(nbest, encoded.lengths_B.device)
    decoder_R, attended_RN = _score_by_decoder(encoded, tokens_RU, counts_R, config)
    language_R = torch.zeros_like(decoder_R)
    if language_model is not None and config.language_model_weight > 0:
        language_R = score_texts(language_model, tokens_RU, counts_R, SOS_ID, EOS_ID)
    columns = [
        column.unflatten(0, (len(nbest), -1)).tolist() for column in (decoder_R, language_R, attended_RN)
    ]
    ranked = []
    for texts, *rows in zip(nbest, *columns, strict=True):
        scored = []
        for text, by_decoder, language, attended in zip(texts, *rows, strict=False):
            score = (1 - config.ctc_weight) * by_decoder + config.language_model_weight * language
            # CTC may give -inf, which a weight of 0 must ignore.
            score += config.ctc_weight * text.ctc_log_probability if config.ctc_weight else 0.0
            attended_steps = tuple(attended[: len(text.tokens) + 1])
            scored.append(
                replace(text, score=score, log_probability=by_decoder, attended_steps=attended_steps)
            )
        ranked.append(sorted(scored, key=lambda text: -text.score)[: config.nbest])
    return ranked


def _score_by_decoder(
    encoded: EncodedAudio, tokens_RU: Tensor, counts_R: Tensor, config: DecodingConfig
) -> tuple[Tensor, Tensor]:
    """Return (R,) log-probabilities of texts with their ends, and (R, N) mean attended steps, if any."""
    decoder, encoded_BTD, lengths_B = encoded.model.decoder, encoded.encoded_BTD, encoded.lengths_B
    assert isinstance(decoder, Decoder)
    inputs_RN = F.pad(tokens_RU, (1, 0), value=SOS_ID)
    targets_RN = F.pad(tokens_RU, (0, 1), value=EOS_ID).scatter(1, counts_R[:, None], EOS_ID)
    bias_RNT, width = None, find_window_width(encoded.model, config)
    if width is not None:
        tokens_BHU = tokens_RU.unflatten(0, (len(lengths_B), -1))
        bias_RNT = ctc_window_bias(encoded.ctc_BTV, lengths_B, tokens_BHU, width)
    scores_RNV, attention = decoder(inputs_RN, encoded_BTD, lengths_B, decoder.last_heads, bias_RNT)
    scores_RNV = scores_RNV.float()
    scores_RN = scores_RNV.gather(2, targets_RN[..., None])[..., 0] - scores_RNV.logsumexp(-1)
    is_decision_RN = torch.arange(inputs_RN.size(1), device=counts_R.device) <= counts_R[:, None]
    decoder_R = scores_RN.double().masked_fill(~is_decision_RN, 0.0).sum(1)
    if not attention:
        return decoder_R, decoder_R.new_empty(len(decoder_R), 0)
    weights_RANT = torch.cat([*attention.values()], dim=1)
    steps_T = torch.arange(encoded_BTD.size(1), device=counts_R.device, dtype=torch.float32)
    return decoder_R, (weights_RANT.mean(1) * steps_T).sum(-1).double()  # a matrix product may be in bf16


def score_texts(model: FusionModel, tokens_RU: Tensor, lengths_R: Tensor, sos_id: int, eos_id: int) -> Tensor:
    """Return (R,) log-probabilities of complete texts under a language model, in float64."""
    inputs_RN = F.pad(tokens_RU, (1, 0), value=sos_id)
    targets_RN = F.pad(tokens_RU, (0, 1), value=eos_id).scatter(1, lengths_R[:, None], eos_id)
    state = model.start(len(tokens_RU), tokens_RU.device)
    total_R = torch.zeros(len(tokens_RU), dtype=torch.float64, device=tokens_RU.device)
    for step, tokens_R in enumerate(inputs_RN.unbind(1)):
        score_R = state.score(tokens_R).gather(1, targets_RN[:, step : step + 1])[:, 0].double()
        total_R += score_R.masked_fill(step > lengths_R, 0.0)
    return total_R


def pad_texts(nbest: NBest, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return (R, U) tokens and (R,) counts, with equally many rows per utterance; some are empty."""
    most, none = max(map(len, nbest)), Hypothesis((), 0.0)
    padded = [text.tokens for texts in nbest for text in [*texts, *[none] * (most - len(texts))]]
    rows = [torch.tensor(tokens, dtype=torch.long) for tokens in padded]
    padded_RU = pad_sequence(rows, batch_first=True, padding_value=EOS_ID)
    return padded_RU.to(device), torch.tensor([*map(len, rows)], device=device)
