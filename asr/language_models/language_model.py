"""Transformer language model: the probability of each token given the tokens before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from asr.config import Depth
from asr.models.encoders import AttentionConfig, EncoderLayer
from asr.models.layers import Dropout, KeyValueCache, ModelConfig, Net, Positions, name_means
from asr.models.losses import IGNORED, Losses, Targets, cross_entropy

# B batch, R rows of a search, U tokens, D model dimension, V vocabulary


class LanguageModelConfig(AttentionConfig, ModelConfig):
    """Layers of causal self-attention and feed-forward over the tokens of a sentence."""

    reads_audio: ClassVar[bool] = False
    scores: ClassVar[tuple[str, ...]] = ("loss", "token_accuracy")

    type: Literal["language"]
    """language: a model of text alone."""
    num_layers: Depth = 4


class LanguageModel(Net):
    """Language model, which reads the tokens of a batch and ignores its features."""

    def __init__(self, config: LanguageModelConfig, num_features: int, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocab_size, config.dim)
        nn.init.normal_(self.embedding.weight, std=config.dim**-0.5)
        self.scale = config.dim**0.5  # embeddings then have the size of the position codes
        self.positions = Positions(config.dim, config.positions)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.dim)
        self.output = nn.Linear(config.dim, vocab_size)
        self.output.weight = self.embedding.weight

    def forward(
        self, features_BTF: Tensor, feature_lengths_B: Tensor, tokens_BU: Tensor, counts_B: Tensor, *_: Any
    ) -> Losses:
        inputs_BN, targets_BN = Targets(tokens_BU, counts_B).for_decoder()
        scores_BNV = self.run(inputs_BN)
        loss = cross_entropy(scores_BNV, targets_BN, label_smoothing=0.0)
        num_correct = ((scores_BNV.argmax(-1) == targets_BN) & (targets_BN != IGNORED)).sum()
        return Losses(loss, self.count_targets(counts_B), {"correct": num_correct.detach()})

    def score(self, means: Mapping[str, float], tokens_per_word: float) -> dict[str, float]:
        """Perplexity per token and per word; the end of a sentence counts as both."""
        scores = name_means(means)
        for name, factor in (("perplexity", 1.0), ("word_perplexity", tokens_per_word)):
            exponent = scores["loss"] * factor
            scores[name] = math.exp(exponent) if exponent < 700 else math.inf
        return scores

    def run(self, tokens_BU: Tensor, caches: list[KeyValueCache] | None = None) -> Tensor:
        """(B, U, V) scores of the token after each. With caches, these hold the tokens before."""
        start = caches[0].length if caches else 0
        x_BUD = self.dropout(self.positions(self.embedding(tokens_BU) * self.scale, start))
        for index, layer in enumerate(self.layers):
            x_BUD = layer(x_BUD, causal=True, cache=caches[index] if caches else None)
        scores_BUV: Tensor = self.output(self.norm(x_BUD))
        return scores_BUV

    def renumber(self, ids: list[int]) -> None:
        """Reorder tokens, so that token ids[n] becomes token n."""
        with torch.no_grad():
            for weights in (self.embedding.weight, self.output.bias):
                weights.copy_(weights[ids])

    def start(self, num_rows: int, device: torch.device) -> LanguageModelState:
        """The state of a search; moves the model to its device."""
        self.to(device)
        return LanguageModelState(self)


class LanguageModelState:
    """Keys and values of the tokens of each row of a search."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._caches = [KeyValueCache() for _ in model.layers]

    @torch.inference_mode()
    def score(self, tokens_R: Tensor) -> Tensor:
        """(R, V) log-probabilities of the token after this one and those before; the first is `SOS_ID`."""
        scores_R1V = self._model.run(tokens_R[:, None], self._caches)
        return scores_R1V[:, -1].float().log_softmax(-1)

    def select(self, rows: Tensor) -> None:
        for cache in self._caches:
            cache.select(rows)


MODELS = {LanguageModelConfig: LanguageModel}
