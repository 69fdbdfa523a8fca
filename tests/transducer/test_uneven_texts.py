"""asr/transducer/uneven_texts: texts that grow unevenly score as those that are read from their start."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tokenizer_examples import TEXTS, train

from asr.language_models.fusion import ShallowFusion, Weighted
from asr.language_models.hotwords import Hotwords
from asr.language_models.language_model import LanguageModel, LanguageModelConfig
from asr.language_models.ngram import NgramModel, WordList, WordNgramModel, estimate_ngrams, token_vocabulary
from asr.text.tokenizer import EOS_ID, SOS_ID, UNK_ID
from asr.transducer.uneven_texts import UnevenTexts

TOKENIZER = train("characters", TEXTS)
SIZE = len(TOKENIZER)


def build(kind: str) -> Any:
    if kind == "transformer":
        torch.manual_seed(0)
        config = LanguageModelConfig(type="language", dim=16, num_layers=1, num_heads=2, feed_forward_dim=16)
        return LanguageModel(config, 0, SIZE).eval()
    if kind == "word list":
        return WordList(TOKENIZER, ["the", "cat", "sat", "on", "mat", "dog", "a"])
    if kind == "hotwords":
        return Hotwords([TOKENIZER.encode("cat")], 1.5, SIZE, EOS_ID, TOKENIZER.space_id)
    if kind == "tokens":
        vocabulary = token_vocabulary(TOKENIZER.tokens)
        spelled = [[vocabulary[id] for id in TOKENIZER.encode(text)] for text in TEXTS * 9]
        return NgramModel(estimate_ngrams(spelled, 3), vocabulary)
    if kind == "words":
        return WordNgramModel(estimate_ngrams([text.split() for text in TEXTS * 50], 2), TOKENIZER)
    return ShallowFusion(
        [build("hotwords"), Weighted(ShallowFusion([build("tokens"), build("transformer")]), 0.3)]
    )


def read_alone(model: Any, text: list[int]) -> torch.Tensor:
    """Log-probabilities after a text."""
    state = model.start(1, torch.device("cpu"))
    for token in [SOS_ID, *text]:
        scores_1V = state.score(torch.tensor([token]))
    return scores_1V[0]


@pytest.mark.parametrize("kind", ["transformer", "word list", "hotwords", "tokens", "words", "all"])
@given(seed=st.integers(0, 99))
@settings(max_examples=5, deadline=None)
@torch.inference_mode()
def test_scores_are_those_of_each_text_alone(kind: str, seed: int) -> None:
    model, random = build(kind), torch.Generator().manual_seed(seed)
    texts: list[list[int]] = [[]] * 4
    uneven = UnevenTexts(model, 4, torch.device("cpu"))
    for _ in range(6):
        parents_R = torch.randint(4, (4,), generator=random)
        rows_M = (torch.rand(4, generator=random) < 0.5).nonzero()[:, 0]
        tokens_M = torch.randint(UNK_ID + 1, SIZE, (len(rows_M),), generator=random)
        uneven.go_on(parents_R, rows_M, tokens_M)
        texts = [[*texts[parent]] for parent in parents_R.tolist()]
        for row, token in zip(rows_M.tolist(), tokens_M.tolist(), strict=True):
            texts[row].append(token)
        for scores_V, text in zip(uneven.scores_RV, texts, strict=True):
            torch.testing.assert_close(scores_V, read_alone(model, text), rtol=1e-4, atol=1e-4)
