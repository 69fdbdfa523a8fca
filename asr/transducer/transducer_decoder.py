"""The transducer: a network of the tokens so far, a joint network, and its loss over all alignments.

RNN-T (Graves 2012): at each encoded step a token follows, or blank, which moves on to the next step. TDT (Xu
et al. 2023): a token or blank comes with a duration, the number of steps that it moves on.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.config import DecoderConfig, Depth, Size
from asr.models.decoders import AnyDecoder, DecoderLoss, Encoded, TeacherForcing, Weights, WeightsOf
from asr.models.layers import Dropout
from asr.models.losses import Targets
from asr.text.tokenizer import PAD_ID, SOS_ID, UNK_ID
from asr.transducer.joint import NodeScores, join
from asr.transducer.lattice import LOG_ZERO, RNNT_ARCS, Arc, SumOverPaths, add_up_paths, find_shares

# B utterances, R rows of a search, T encoded steps, U tokens, N numbers of tokens so far (U + 1), D dimension
# of the predictor and the joint network, V vocabulary, K durations, A kinds of arcs

CONTEXT = 2  # last tokens that a predictor without a state of its own sees

PredictorState = tuple[Tensor, ...]  # of a search; each tensor has a row for each of its rows


class TransducerDecoderConfig(DecoderConfig):
    """Emits tokens while it reads the encoded steps from left to right."""

    reads_tokens: ClassVar[bool] = False
    needs_ctc: ClassVar[bool] = True

    type: Literal["transducer"] = "transducer"
    predictor: Literal["stateless", "lstm"] = "stateless"
    """Network of the tokens so far. stateless: of the last two alone. lstm: of all."""
    dim: Size = 256
    """Width of the embeddings, of the predictor and of the joint network."""
    num_layers: Depth = 1
    """Layers of predictor lstm."""
    dropout: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Dropout of the embeddings and before the joint network."""
    durations: tuple[int, ...] = ()
    """Encoded steps that a token or blank may move on, such as [0, 1, 2, 3, 4] (TDT). Empty: blank moves on
    by one and a token by none (RNN-T)."""

    @pydantic.field_validator("durations")
    @classmethod
    def _check_durations(cls, durations: tuple[int, ...]) -> tuple[int, ...]:
        if durations and (list(durations) != sorted({*durations}) or durations[:2] != (0, 1)):
            raise ValueError("expected rising numbers that begin with 0 and 1, or none")
        return durations


# --- predictors -----------------------------------------------------------------------------------


class StatelessPredictor(nn.Module):
    """The embeddings of the last tokens, mixed by one layer (Ghodsi et al. 2020)."""

    def __init__(self, config: TransducerDecoderConfig, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, config.dim)
        self.mix = nn.Linear(CONTEXT * config.dim, config.dim)
        self.dropout = Dropout(config.dropout)

    def start(self, num_rows: int, device: torch.device) -> PredictorState:
        return (torch.full((num_rows, CONTEXT - 1), SOS_ID, device=device),)

    def forward(self, tokens_RU: Tensor, state: PredictorState) -> tuple[Tensor, PredictorState]:
        """(R, U, D): a vector after each token, and the state after all of them."""
        all_tokens_RM = torch.cat([state[0], tokens_RU], dim=1)
        embedded_RMD = self.dropout(self.embedding(all_tokens_RM))
        windows_RUC = embedded_RMD.unfold(1, CONTEXT, 1).flatten(2)
        return F.relu(self.mix(windows_RUC)), (all_tokens_RM[:, 1 - CONTEXT :],)


class LSTMPredictor(nn.Module):
    """LSTMs over all tokens so far."""

    def __init__(self, config: TransducerDecoderConfig, vocab_size: int) -> None:
        super().__init__()
        self.shape = (config.num_layers, config.dim)
        self.embedding = nn.Embedding(vocab_size, config.dim)
        self.lstm = nn.LSTM(config.dim, config.dim, config.num_layers, batch_first=True)
        self.dropout = Dropout(config.dropout)

    def start(self, num_rows: int, device: torch.device) -> PredictorState:
        zero_RLD = self.embedding.weight.new_zeros((num_rows, *self.shape), device=device)
        return zero_RLD, zero_RLD.clone()

    def forward(self, tokens_RU: Tensor, state: PredictorState) -> tuple[Tensor, PredictorState]:
        hidden_LRD, cell_LRD = (part.transpose(0, 1).contiguous() for part in state)
        embedded_RUD = self.dropout(self.embedding(tokens_RU))
        with torch.autocast(tokens_RU.device.type, enabled=False):  # which needs all in one type
            output_RUD, after = self.lstm(embedded_RUD, (hidden_LRD, cell_LRD))
        return output_RUD, tuple(part.transpose(0, 1) for part in after)


Predictor = StatelessPredictor | LSTMPredictor
PREDICTORS: dict[str, type[Predictor]] = {"stateless": StatelessPredictor, "lstm": LSTMPredictor}


# --- the decoder ----------------------------------------------------------------------------------


class TransducerDecoder(AnyDecoder):
    """Predictor and joint network. Where a token is emitted stands for where it is attended to."""

    kind = "transducer"
    reported = ("transducer",)
    num_layers = num_heads = 1

    def __init__(self, config: TransducerDecoderConfig, memory_dim: int, vocab_size: int) -> None:
        super().__init__()
        self.durations, self.vocab_size = config.durations, vocab_size
        self.predictor: Predictor = PREDICTORS[config.predictor](config, vocab_size)
        self.project_encoded = nn.Linear(memory_dim, config.dim)
        self.project_predicted = nn.Linear(config.dim, config.dim, bias=False)
        self.output = nn.Linear(config.dim, vocab_size + len(config.durations))
        self.dropout = Dropout(config.dropout)

    @property
    def arcs(self) -> tuple[Arc, ...]:
        """The arcs of blank, then the arcs of tokens."""
        if not self.durations:
            return RNNT_ARCS
        of_blank = [Arc(steps, 0) for steps in self.durations[1:]]
        return (*of_blank, *(Arc(steps, 1) for steps in self.durations))

    def prepare_steps(self, encoded_BTE: Tensor) -> Tensor:
        """(B, T, D): the part of the encoded steps in the joint network."""
        return self.dropout(self.project_encoded(encoded_BTE)).to(self.output.weight.dtype)

    def predict(self, tokens_RU: Tensor, state: PredictorState) -> tuple[Tensor, PredictorState]:
        """(R, U, D): the part of the tokens in the joint network, after each of them, and the state."""
        predicted_RUD, state = self.predictor(tokens_RU, state)
        return self.dropout(self.project_predicted(predicted_RUD)).to(self.output.weight.dtype), state

    def start(self, num_rows: int, device: torch.device) -> tuple[Tensor, PredictorState]:
        """(R, D) before the first token, and the state."""
        tokens_R1 = torch.full((num_rows, 1), SOS_ID, device=device)
        predicted_R1D, state = self.predict(tokens_R1, self.predictor.start(num_rows, device))
        return predicted_R1D[:, 0], state

    def score(self, encoded: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of blank and the tokens of texts, (..., V), and of durations, (..., K)."""
        scores, _ = join(encoded, predicted, self.output.weight, self.output.bias)
        tokens = scores[..., : self.vocab_size].log_softmax(-1)
        tokens[..., PAD_ID:UNK_ID] = -torch.inf  # what only other decoders say
        return tokens, scores[..., self.vocab_size :].log_softmax(-1)

    def compute_loss(
        self, targets: Targets, encoded: Encoded, weights_of: WeightsOf, forcing: TeacherForcing
    ) -> DecoderLoss:
        """The loss is 0, not infinity, for an utterance without encoded steps, as for CTC."""
        scores_ABTN = self._score_arcs(targets, encoded, *self._prepare(targets, encoded))
        totals_B = SumOverPaths.apply(scores_ABTN, self.arcs, encoded[1], targets.lengths_B)
        loss = -totals_B.masked_fill(totals_B < LOG_ZERO / 2, 0.0).sum().float()
        return DecoderLoss(loss, {"transducer": loss}, {}, targets.num_rows_B)

    def score_reference(
        self, targets: Targets, encoded: Encoded, weights_of: WeightsOf
    ) -> tuple[Tensor, Weights]:
        """Scores of each token, and of blank after the last one, at the step where it is likeliest; and the
        probability of each step to be this one, as attention."""
        steps_BTD, predicted_BND = self._prepare(targets, encoded)
        scores_ABTN = self._score_arcs(targets, encoded, steps_BTD, predicted_BND)
        shares_ABTN = find_shares(add_up_paths(scores_ABTN, self.arcs, encoded[1], targets.lengths_B))
        of_tokens = [part for part, arc in zip(shares_ABTN, self.arcs, strict=True) if arc.tokens]
        shares_BNT = torch.stack(of_tokens).sum(0).mT.float()
        rows_B = torch.arange(len(shares_BNT), device=shares_BNT.device)
        shares_BNT[rows_B, targets.lengths_B, (encoded[1] - 1).clamp(min=0)] = 1.0
        likeliest_BN1 = shares_BNT.argmax(-1)[..., None]
        at_BND = steps_BTD.gather(1, likeliest_BN1.expand(-1, -1, steps_BTD.size(2)))
        scores_BNV, _ = self.score(at_BND, predicted_BND)
        return scores_BNV, {layer: shares_BNT[:, None] for layer, heads in weights_of.items() if heads}

    def _prepare(self, targets: Targets, encoded: Encoded) -> tuple[Tensor, Tensor]:
        """The parts of the encoded steps and of the text in the joint network."""
        inputs_BN, _ = targets.for_decoder()
        state = self.predictor.start(len(inputs_BN), inputs_BN.device)
        return self.prepare_steps(encoded[0]), self.predict(inputs_BN, state)[0]

    def _score_arcs(
        self, targets: Targets, encoded: Encoded, steps_BTD: Tensor, predicted_BND: Tensor
    ) -> Tensor:
        """(A, B, T, N) log-probabilities, in float64: the sums over paths reach thousands."""
        output, lengths_B = self.output, encoded[1]
        sizes = (targets.tokens_BU, lengths_B, targets.lengths_B, len(self.durations))
        scores = NodeScores.apply(steps_BTD, predicted_BND, output.weight, output.bias, *sizes)
        blank_BTN, next_BTN, durations_BTNK = (part.double() for part in scores)
        if not self.durations:
            return torch.stack([blank_BTN, next_BTN])
        duration_BTN = dict(zip(self.durations, durations_BTNK.unbind(-1), strict=True))
        # A token may not go on past the last step, where only blank ends the path.
        left_BT = lengths_B[:, None] - torch.arange(steps_BTD.size(1), device=steps_BTD.device)
        arcs = []
        for arc in self.arcs:
            score_BTN = (next_BTN if arc.tokens else blank_BTN) + duration_BTN[arc.steps]
            is_past_BT1 = (left_BT < arc.steps + arc.tokens)[..., None]
            arcs.append(score_BTN.masked_fill(is_past_BT1, LOG_ZERO))
        return torch.stack(arcs)
