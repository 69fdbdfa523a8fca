"""Learned monotonic window: the decoder tracks its position in the audio and attends there, without CTC."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from asr.models.decoders import Decoder, DecoderState, Weights, WeightsOf
from asr.models.guided_attention import WINDOW_FLOOR, GaussianWindow
from asr.models.layers import length_mask

# B utterances, R rows (beams; an utterance's are adjacent), U new tokens, T encoded steps,
# L their dimension, K dimension of query and key

QUERY_DIM = 64
REACH = 64  # limit for the steps that a token moves; after a longer pause the position has to be found again
SLOWNESS = 8.0  # steps that a token moves on average at the start of training


class PositionState(DecoderState):
    """State of the inner decoder, with the distribution of the position of each beam."""

    def __init__(self, inner: DecoderState, keys_BTK: Tensor, mask_BT: Tensor, move_TT: Tensor) -> None:
        self.inner = inner
        self.keys_BTK = keys_BTK
        self.mask_BT = mask_BT
        self.move_TT = move_TT
        self.positions_RT = torch.zeros_like(keys_BTK[..., 0])
        self.positions_RT[:, 0] = 1

    def disable_cache(self) -> None:
        self.inner.disable_cache()

    def select_utterances(self, utterances_B: Tensor) -> None:
        self.inner.select_utterances(utterances_B)
        self.keys_BTK, self.mask_BT = self.keys_BTK[utterances_B], self.mask_BT[utterances_B]

    def select_beams(self, rows_R: Tensor) -> None:
        self.inner.select_beams(rows_R)
        self.positions_RT = self.positions_RT[rows_R]


class PositionTrackingDecoder(Decoder):
    """Wraps any autoregressive attention decoder, and limits its attention to a window.

    With p the probability of a position, and y a token:

        p_u(t) ~ exp(query(y_{u-1}) key(t)) (1e-8 + sum over s of p_{u-1}(s) move(t - s))

    This is the forward algorithm of a hidden Markov model whose states are the steps.
    """

    def __init__(self, width: float, decoder: Decoder, memory_dim: int, vocab_size: int) -> None:
        super().__init__()
        self.inner = decoder
        self.num_layers, self.num_heads = decoder.num_layers, decoder.num_heads
        self.max_tokens = decoder.max_tokens
        self.width = width
        self.query = nn.Embedding(vocab_size, QUERY_DIM)
        self.key = nn.Linear(memory_dim, QUERY_DIM)
        self.move = nn.Parameter(-torch.arange(REACH) / SLOWNESS)

    @property
    def embedding(self) -> nn.Embedding:  # type: ignore[override]
        return self.inner.embedding

    @property
    def output(self) -> nn.Linear:  # type: ignore[override]
        return self.inner.output

    def start(self, encoded_BTL: Tensor, encoded_lengths_B: Tensor) -> PositionState:
        inner = self.inner.start(encoded_BTL, encoded_lengths_B)
        num_steps = encoded_BTL.size(1)
        mask_BT = length_mask(encoded_lengths_B.clamp(min=1), num_steps)
        keys_BTK = self.key(encoded_BTL) * QUERY_DIM**-0.5
        keys_BTK = keys_BTK.to(torch.promote_types(keys_BTK.dtype, torch.float32))
        steps_T = torch.arange(num_steps, device=encoded_BTL.device)
        distance_TT = steps_T - steps_T[:, None]
        probabilities = self.move.to(keys_BTK.dtype).softmax(0)[distance_TT.clamp(0, len(self.move) - 1)]
        move_TT = probabilities.where((distance_TT >= 0) & (distance_TT < len(self.move)), 0.0)
        return PositionState(inner, keys_BTK, mask_BT, move_TT)

    def step(
        self,
        tokens_RU: Tensor,
        state: DecoderState,
        weights_of: WeightsOf | None = None,
        bias_RUT: Tensor | None = None,
    ) -> tuple[Tensor, Weights]:
        """Decode tokens. `bias_RUT` is added to the scores of positions, so it moves the window."""
        assert isinstance(state, PositionState)
        with torch.autocast(tokens_RU.device.type, enabled=False):  # small products need full precision
            window_RUT = self.compute_bias(tokens_RU, state, bias_RUT)
        return self.inner.step(tokens_RU, state.inner, weights_of, window_RUT)

    def compute_bias(self, tokens_RU: Tensor, state: PositionState, bias_RUT: Tensor | None = None) -> Tensor:
        """Return the attention bias (R, U, T): the window for the token after each of these."""
        queries_BNK = self.query(tokens_RU).to(state.keys_BTK.dtype).view(len(state.keys_BTK), -1, QUERY_DIM)
        scores_BNT = (queries_BNK @ state.keys_BTK.mT).masked_fill(~state.mask_BT[:, None], -torch.inf)
        scores_RUT = scores_BNT.view(*tokens_RU.shape, -1)
        if bias_RUT is not None:
            scores_RUT = scores_RUT + bias_RUT
        positions = []
        for scores_RT in scores_RUT.unbind(1):
            moved_RT = state.positions_RT @ state.move_TT + WINDOW_FLOOR
            state.positions_RT = (moved_RT.log() + scores_RT).softmax(-1)
            positions.append(state.positions_RT)
        positions_RUT = torch.stack(positions, dim=1)
        return GaussianWindow(self.width, positions_RUT.size(2), positions_RUT.device).compute_bias(
            positions_RUT
        )
