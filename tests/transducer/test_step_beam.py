"""asr/transducer/step_beam: what it finds is what brute force over all alignments finds; and what search promises."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch
from decoding_examples import BigramModel, search
from torch import Tensor
from transducer_examples import SAYABLE, TableModel, build_transducer, encode, score_steps

from asr.decoding.hypothesis import DecodingConfig
from asr.models.speech_model import SpeechModel
from asr.text.tokenizer import BLANK_ID

Text = tuple[int, ...]


def add_up(model: SpeechModel, encoded_TE: Tensor) -> dict[Text, float]:
    """Probability of each text, over the alignments with at most one token at a step."""
    chances: dict[Text, float] = {(): 1.0}
    for step in range(len(encoded_TE)):
        after: dict[Text, float] = defaultdict(float)
        for text, chance in chances.items():
            by_token = score_steps(model, encoded_TE[step], text)
            after[text] += chance * by_token[BLANK_ID]
            for token in SAYABLE:
                longer = (*text, token)
                after[longer] += (
                    chance * by_token[token] * score_steps(model, encoded_TE[step], longer)[BLANK_ID]
                )
        chances = after
    return chances


@pytest.mark.parametrize("predictor", ["stateless", "lstm"])
@pytest.mark.parametrize("fused", [None, "any", "columns"])
@torch.inference_mode()
def test_an_exhaustive_beam_finds_what_brute_force_finds(predictor: str, fused: str | None) -> None:
    """All texts of three steps, in a padded batch, with their scores; language models that are read in both ways."""
    model = build_transducer(predictor)
    bigrams = BigramModel()
    language_model = {None: None, "any": bigrams, "columns": TableModel(bigrams.scores_VV)}[fused]
    weight = 0.0 if fused is None else 0.6
    config = DecodingConfig(method="transducer", beam=1000, nbest=20, language_model_weight=weight)
    encoded_BTE, lengths_B = encode(model, [3, 1, 2])
    found = search(model, encoded_BTE, lengths_B, config, language_model)
    for row, length in enumerate(lengths_B.tolist()):
        expected = []
        for text, chance in add_up(model, encoded_BTE[row, :length]).items():
            log = math.log(chance)
            expected.append((log + (weight and weight * bigrams.log_probability(text)), text, log))
        expected = sorted(expected, reverse=True)[:20]
        assert [one.tokens for one in found[row]] == [text for _, text, _ in expected]
        assert [one.score for one in found[row]] == pytest.approx([score for score, *_ in expected], abs=1e-4)
        assert [one.log_probability for one in found[row]] == pytest.approx(
            [e[2] for e in expected], abs=1e-4
        )
