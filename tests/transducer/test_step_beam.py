"""asr/transducer/step_beam: what it finds is what brute force over all alignments finds; and what search promises."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch
from decoding_examples import BigramModel, search
from torch import Tensor
from transducer_examples import SAYABLE, TableModel, Text, build_transducer, encode, score_steps

from asr.decoding.hypothesis import DecodingConfig
from asr.models.speech_model import SpeechModel
from asr.text.tokenizer import BLANK_ID
from asr.transducer import step_beam


def add_up(model: SpeechModel, encoded_TE: Tensor, tokens: list[int], most: int) -> dict[Text, float]:
    """Probability of each text, over the alignments with at most so many tokens at a step."""
    chances: dict[Text, float] = {(): 1.0}
    for step in range(len(encoded_TE)):
        opened, closed = chances, defaultdict[Text, float](float)
        for num_tokens in range(most + 1):
            longer = defaultdict[Text, float](float)
            for text, chance in opened.items():
                by_token, _ = score_steps(model, encoded_TE[step], text)
                closed[text] += chance * by_token[BLANK_ID]
                if num_tokens < most:
                    for token in tokens:
                        longer[(*text, token)] += chance * by_token[token]
            opened = longer
        chances = closed
    return chances


@pytest.mark.parametrize(
    ("predictor", "most", "lengths"),
    [("stateless", 1, [3, 1]), ("lstm", 2, [2, 4, 1]), ("stateless", 3, [3])],
)
@pytest.mark.parametrize("fused", [None, "any", "columns"])
@torch.inference_mode()
def test_an_exhaustive_beam_finds_what_brute_force_finds(
    predictor: str, most: int, lengths: list[int], fused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All texts, in a padded batch, with their scores; language models that are read in both ways."""
    monkeypatch.setattr(step_beam, "MAX_TOKENS_AT_STEP", most)
    model = build_transducer(predictor)
    tokens = SAYABLE if most == 1 else SAYABLE[3:5]
    with torch.no_grad():
        never = [token for token in SAYABLE if token not in tokens]
        model.decoder.output.bias[never] = -200.0
    bigrams = BigramModel()
    language_model = {None: None, "any": bigrams, "columns": TableModel(bigrams.scores_VV)}[fused]
    weight = 0.0 if fused is None else 0.6
    config = DecodingConfig(method="transducer", beam=1000, nbest=20, language_model_weight=weight)
    encoded_BTE, lengths_B = encode(model, lengths)
    found = search(model, encoded_BTE, lengths_B, config, language_model)
    for row, length in enumerate(lengths_B.tolist()):
        expected = []
        for text, chance in add_up(model, encoded_BTE[row, :length], tokens, most).items():
            log = math.log(chance)
            expected.append((log + (weight and weight * bigrams.log_probability(text)), text, log))
        expected = sorted(expected, reverse=True)[:20]
        found[row] = found[row][: len(expected)]
        assert [one.tokens for one in found[row]] == [text for _, text, _ in expected]
        assert [one.score for one in found[row]] == pytest.approx([score for score, *_ in expected], abs=1e-4)
        assert [one.log_probability for one in found[row]] == pytest.approx(
            [e[2] for e in expected], abs=1e-4
        )
