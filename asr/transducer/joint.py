"""The joint network of a transducer, and the log-probabilities that its loss needs of it, piece by piece.

A text of U tokens and T encoded steps has T x (U + 1) nodes, each with a distribution over the vocabulary.
Of these numbers, which may fill gigabytes, the loss needs two at each node: of blank, and of the next token.
So the distributions are computed for a piece of an utterance at a time, and again for the gradient. None of
padding is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from asr.text.tokenizer import BLANK_ID
from asr.transducer.lattice import LOG_ZERO

# B utterances, T encoded steps and S of a piece, U tokens, N numbers of tokens so far (U + 1), J dimension of
# the joint network, V vocabulary, K durations

PIECE = 2**19  # numbers of a layer of the joint network that are computed at once: 2 MB


def join(encoded: Tensor, predicted: Tensor, weight_VJ: Tensor, bias_V: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of vocabulary and durations, in float32 or more precise, and the hidden layer behind them."""
    hidden = torch.tanh(encoded + predicted)
    scores = F.linear(hidden, weight_VJ, bias_V)
    return scores.to(torch.promote_types(scores.dtype, torch.float32)), hidden


def cut_pieces(lengths: list[int], counts: list[int], width: int) -> Iterator[tuple[int, slice, slice]]:
    """The nodes of the pieces: an utterance, some of its steps, and all numbers of tokens so far."""
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        size = max(1, PIECE // ((count + 1) * width))
        for first in range(0, length, size):
            yield row, slice(first, min(first + size, length)), slice(count + 1)


class NodeScores(torch.autograd.Function):
    """Log-probabilities (B, T, N) of blank and of the next token, and (B, T, N, K) of durations.

    Where an utterance has no node, or a node has no next token, they are LOG_ZERO.
    """

    @staticmethod
    def forward(
        ctx: Any,
        encoded_BTJ: Tensor,
        predicted_BNJ: Tensor,
        weight_VJ: Tensor,
        bias_V: Tensor,
        tokens_BU: Tensor,
        lengths_B: Tensor,
        counts_B: Tensor,
        num_durations: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        vocab_size = len(weight_VJ) - num_durations
        pieces = [*cut_pieces(lengths_B.tolist(), counts_B.tolist(), max(weight_VJ.shape))]
        shape = (*encoded_BTJ.shape[:2], predicted_BNJ.size(1))
        dtype = torch.promote_types(encoded_BTJ.dtype, torch.float32)
        blank_BTN = encoded_BTJ.new_full(shape, LOG_ZERO, dtype=dtype)
        next_BTN, sums_BTN = blank_BTN.clone(), blank_BTN.clone()
        durations_BTNK = encoded_BTJ.new_full((*shape, num_durations), LOG_ZERO, dtype=dtype)
        for nodes in pieces:
            row, steps, places = nodes
            encoded_SJ, predicted_NJ = encoded_BTJ[row, steps], predicted_BNJ[row, places]
            tokens_U = tokens_BU[row, : places.stop - 1]
            scores_SNV, _ = join(encoded_SJ[:, None], predicted_NJ, weight_VJ, bias_V)
            durations_BTNK[nodes] = scores_SNV[..., vocab_size:].log_softmax(-1)
            scores_SNV = scores_SNV[..., :vocab_size]
            sums_SN = scores_SNV.logsumexp(-1)
            tokens_SU1 = tokens_U.expand(len(encoded_SJ), -1)[..., None]
            next_SU = scores_SNV[:, :-1].gather(2, tokens_SU1)[..., 0] - sums_SN[:, :-1]
            next_BTN[row, steps, : len(tokens_U)] = next_SU
            blank_BTN[nodes] = scores_SNV[..., BLANK_ID] - sums_SN
            sums_BTN[nodes] = sums_SN
        ctx.save_for_backward(
            encoded_BTJ, predicted_BNJ, weight_VJ, bias_V, tokens_BU, sums_BTN, durations_BTNK
        )
        ctx.pieces, ctx.vocab_size = pieces, vocab_size
        device = encoded_BTJ.device.type
        ctx.precision = (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        return blank_BTN, next_BTN, durations_BTNK

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, blank_BTN: Tensor, next_BTN: Tensor, durations_BTNK: Tensor
    ) -> tuple[Tensor | None, ...]:
        """The arguments are the gradients of the results."""
        encoded_BTJ, predicted_BNJ, weight_VJ, bias_V, tokens_BU, sums_BTN, chances_BTNK = ctx.saved_tensors
        inputs = (encoded_BTJ, predicted_BNJ, weight_VJ, bias_V)
        of_encoded, of_predicted, of_weight, of_bias = (torch.zeros_like(tensor) for tensor in inputs)
        for nodes in ctx.pieces:
            row, steps, places = nodes
            with torch.autocast(*ctx.precision):
                encoded_SJ, predicted_NJ = encoded_BTJ[row, steps], predicted_BNJ[row, places]
                scores_SNV, hidden_SNJ = join(encoded_SJ[:, None], predicted_NJ, weight_VJ, bias_V)
                # From here on the scores become their gradients, in place.
                own_SNV = scores_SNV[..., : ctx.vocab_size]
                blank_SN, next_SN = blank_BTN[nodes], next_BTN[nodes][:, :-1]
                sums_SN = blank_SN.clone()
                sums_SN[:, :-1] += next_SN
                own_SNV.sub_(sums_BTN[nodes][..., None]).exp_().mul_(-sums_SN[..., None])
                own_SNV[..., BLANK_ID] += blank_SN
                tokens_U = tokens_BU[row, : places.stop - 1]
                tokens_SU1 = tokens_U.expand(len(encoded_SJ), -1)[..., None]
                own_SNV[:, :-1].scatter_add_(2, tokens_SU1, next_SN[..., None])
                durations_SNK = durations_BTNK[nodes]
                shares_SNK = chances_BTNK[nodes].exp() * durations_SNK.sum(-1, keepdim=True)
                scores_SNV[..., ctx.vocab_size :] = durations_SNK - shares_SNK

                gradient_MV, hidden_MJ = scores_SNV.flatten(0, 1), hidden_SNJ.flatten(0, 1)
                of_weight += gradient_MV.T @ hidden_MJ
                of_bias += gradient_MV.sum(0)
                of_hidden_MJ = (gradient_MV @ weight_VJ).to(hidden_MJ.dtype) * (1 - hidden_MJ**2)
                of_hidden_SNJ = of_hidden_MJ.view_as(hidden_SNJ)
                of_encoded[row, steps] += of_hidden_SNJ.sum(1)
                of_predicted[row, places] += of_hidden_SNJ.sum(0)
        return of_encoded, of_predicted, of_weight, of_bias, None, None, None, None
