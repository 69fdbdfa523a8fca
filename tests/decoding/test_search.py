"""From encoded steps to n-best lists by every method: what each promises whatever it is asked."""

from __future__ import annotations

import math

import pytest
import torch
from decoding_examples import (
    BigramModel,
    build_talker,
    ctc_scores,
    decode_ctc_greedily,
    decoder_scores,
    encode_in_batches,
    random_encoded,
    rank_all,
    search,
)
from model_examples import mark_relatives

from asr.decoding import DecodingConfig, Hypothesis, resolve_method
from asr.errors import UserError
from asr.text import EOS_ID

HYBRID = "transformer-hybrid"
METHODS: list[str] = ["ctc_greedy", "ctc_beam", "attention", "joint", "rescoring"]
every_method = pytest.mark.parametrize("method", METHODS)


def all_texts(found: list[list[Hypothesis]]) -> list[list[tuple[int, ...]]]:
    return [[hypothesis.tokens for hypothesis in hypotheses] for hypotheses in found]


def test_auto_uses_all_heads_that_there_are() -> None:
    expected = {"transformer-ctc": "ctc_beam", "transformer-attention": "attention", HYBRID: "joint"}
    for name, method in expected.items():
        assert resolve_method(build_talker(name), "auto") == method


@pytest.mark.parametrize(
    "name, method, message",
    [
        ("transformer-ctc", "joint", "joint needs a decoder .*use ctc_beam"),
        ("transformer-ctc", "attention", "needs a decoder"),
        ("transformer-attention", "rescoring", "needs a CTC head.*use attention"),
        ("transformer-attention", "ctc_greedy", "needs a CTC head"),
    ],
)
def test_a_method_without_its_head_is_refused(name: str, method: str, message: str) -> None:
    model = build_talker(name)
    with pytest.raises(UserError, match=message):
        search(model, *random_encoded(model, [5]), DecodingConfig(method=method))


@pytest.mark.parametrize(
    "config, model, message",
    [
        (DecodingConfig(language_model_weight=0.3), None, "there is no language model"),
        (DecodingConfig(), BigramModel(), "a language model was given; set the weight above 0"),
        (DecodingConfig(method="ctc_greedy", language_model_weight=1.0), BigramModel(), "use ctc_beam"),
    ],
)
def test_a_language_model_is_never_ignored(
    config: DecodingConfig, model: BigramModel | None, message: str
) -> None:
    talker = build_talker(HYBRID)
    with pytest.raises(UserError, match=message):
        search(talker, *random_encoded(talker, [5]), config, model)


def test_more_hypotheses_than_beams_are_refused() -> None:
    with pytest.raises(UserError, match="nbest = 5, but a beam of 3"):
        DecodingConfig(beam=3, nbest=5)


@every_method
def test_without_encoded_steps_there_is_no_text(method: str) -> None:
    """Among others, and alone; and what lies in the padding changes nothing."""
    model = build_talker(HYBRID, 0, -2.0)
    encoded_BTD, lengths_B = random_encoded(model, [9, 0, 5, 0])
    config = DecodingConfig(method=method, beam=4, nbest=2)
    found = search(model, encoded_BTD, lengths_B, config)
    for hypotheses in (found[1], found[3], *search(model, encoded_BTD[1:2], lengths_B[1:2], config)):
        assert [(hypothesis.tokens, hypothesis.score) for hypothesis in hypotheses] == [((), 0.0)]
    kept = torch.tensor([0, 2])
    assert all_texts(search(model, encoded_BTD[kept], lengths_B[kept], config)) == [
        [hypothesis.tokens for hypothesis in found[row]] for row in (0, 2)
    ]
    assert search(model, encoded_BTD[:0], lengths_B[:0], config) == []


@every_method
@pytest.mark.parametrize("beam", [1, 3, 40])
def test_lists_are_ranked_distinct_and_no_longer_than_asked(method: str, beam: int) -> None:
    model = build_talker(HYBRID, 1, -2.0)
    encoded = random_encoded(model, [12, 1, 6])
    nbest = min(5, beam)
    for hypotheses in search(model, *encoded, DecodingConfig(method=method, beam=beam, nbest=nbest)):
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True) and all(map(math.isfinite, scores))
        assert 1 <= len(hypotheses) <= nbest
        assert len({hypothesis.tokens for hypothesis in hypotheses}) == len(hypotheses)


@every_method
def test_what_was_not_asked_is_nan(method: str) -> None:
    model = build_talker(HYBRID, 0, -2.0)
    for (hypothesis,) in search(model, *random_encoded(model, [8, 0]), DecodingConfig(method=method)):
        assert math.isnan(hypothesis.log_probability) == method.startswith("ctc")
        assert math.isnan(hypothesis.ctc_log_probability) == (method == "attention")
    (hypothesis,), _ = search(model, *random_encoded(model, [8, 0]), DecodingConfig(method=method))
    wanted = 0 if method.startswith("ctc") else len(hypothesis.tokens) + 1
    assert len(hypothesis.attended_steps) == wanted
    assert all(0 <= step <= 7 for step in hypothesis.attended_steps)


def test_ctc_greedy_has_the_score_of_its_alignment_and_of_its_text() -> None:
    model = build_talker(HYBRID)
    encoded_BTD, lengths_B = random_encoded(model, [15, 4])
    found = search(model, encoded_BTD, lengths_B, DecodingConfig(method="ctc_greedy"))
    scores_BTV = model.ctc_log_probabilities(encoded_BTD)
    greedy = decode_ctc_greedily(scores_BTV, lengths_B)
    for row, (hypothesis,) in enumerate(found):
        length = int(lengths_B[row])
        assert list(hypothesis.tokens) == greedy[row]
        assert hypothesis.score == pytest.approx(scores_BTV[row, :length].amax(-1).sum().item(), abs=1e-4)
        expected = ctc_scores(model, encoded_BTD[row, :length], [hypothesis.tokens])[0]
        assert hypothesis.ctc_log_probability == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", ["transformer-ctc", HYBRID])
def test_ctc_beam_with_a_language_model_finds_the_best_sum(name: str) -> None:
    """With a decoder, it is not asked."""
    model, language_model = build_talker(name, 3), BigramModel()
    encoded_BTD, lengths_B = random_encoded(model, [5, 3])
    config = DecodingConfig(
        method="ctc_beam", beam=9**3, nbest=4, language_model_weight=0.7, length_bonus=0.5, max_tokens=3
    )
    found = search(model, encoded_BTD, lengths_B, config, language_model)
    for row, length in enumerate(lengths_B.tolist()):
        expected = rank_all(model, encoded_BTD[row, :length], config, 3, 1.0, language_model)[:4]
        assert [hypothesis.tokens for hypothesis in found[row]] == [text for _, text in expected]
        assert [hypothesis.score for hypothesis in found[row]] == pytest.approx(
            [score for score, _ in expected], abs=1e-4
        )
        assert all(math.isnan(hypothesis.log_probability) for hypothesis in found[row])


def test_ctc_beam_with_a_language_model_works_with_narrow_beams() -> None:
    model = build_talker("transformer-ctc", 3)
    encoded = random_encoded(model, [14, 9])
    config = DecodingConfig(method="ctc_beam", beam=5, language_model_weight=1e-9)
    alone = search(model, *encoded, DecodingConfig(method="ctc_beam", beam=20))
    together = search(model, *encoded, config, BigramModel())
    for (with_model,), (without,) in zip(together, alone, strict=True):
        assert with_model.ctc_log_probability > without.ctc_log_probability - 1.0


@pytest.mark.parametrize("uses_model", [False, True])
def test_rescoring_ranks_the_texts_of_ctc_by_the_formula(uses_model: bool) -> None:
    model = build_talker(HYBRID, 1, -2.0)
    language_model = BigramModel() if uses_model else None
    encoded_BTD, lengths_B = random_encoded(model, [12, 1, 7])
    shared = {"beam": 6, "ctc_weight": 0.4, "length_bonus": 0.2}
    if uses_model:
        shared["language_model_weight"] = 0.6
    config = DecodingConfig(method="rescoring", nbest=6, **shared)
    weighed = {"language_model_weight": 0.6} if uses_model else {}
    first_pass = DecodingConfig(method="ctc_beam", beam=6, nbest=6, length_bonus=0.2, **weighed)
    by_ctc = search(model, encoded_BTD, lengths_B, first_pass, language_model)
    changed = 0
    for row, hypotheses in enumerate(search(model, encoded_BTD, lengths_B, config, language_model)):
        assert {hypothesis.tokens for hypothesis in hypotheses} == {text.tokens for text in by_ctc[row]}
        changed += [hypothesis.tokens for hypothesis in hypotheses] != [text.tokens for text in by_ctc[row]]
        ctc_of = {text.tokens: text.ctc_log_probability for text in by_ctc[row]}
        for hypothesis in hypotheses:
            text = hypothesis.tokens
            expected = decoder_scores(model, encoded_BTD[row, : int(lengths_B[row])], [text])[0]
            assert hypothesis.log_probability == pytest.approx(expected, abs=1e-4)
            assert hypothesis.ctc_log_probability == pytest.approx(ctc_of[text], abs=1e-4)
            total = 0.6 * expected + 0.4 * ctc_of[text] + 0.2 * len(text)
            if language_model is not None:
                total += 0.6 * language_model.log_probability(text)
            assert hypothesis.score == pytest.approx(total, abs=1e-4)
            assert len(hypothesis.attended_steps) == len(text) + 1
    assert changed  # the decoder had a say


def test_rescoring_in_half_precision_rounds_no_more_than_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is added up is not rounded once more: that would be up to 0.06 for each token."""
    model = build_talker("intra-attention-decoder", 1)
    said, forward = [], model.decoder.forward
    monkeypatch.setattr(model.decoder, "forward", lambda *args: said.append(forward(*args)) or said[-1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        config = DecodingConfig(method="rescoring", beam=1)
        found = search(model, *random_encoded(model, [300, 200]), config)
    ((scores_BNV, weights),) = said
    attended_BN = weights[0][:, 0].double() @ torch.arange(300).double()
    for row, (best,) in enumerate(found):
        targets = [*best.tokens, EOS_ID]
        chosen = scores_BNV[row].double().log_softmax(-1)[range(len(targets)), targets]
        assert best.log_probability == pytest.approx(float(chosen.sum()), abs=1e-3)
        assert best.attended_steps == pytest.approx(attended_BN[row, : len(targets)].tolist(), abs=1e-2)


@pytest.mark.parametrize(
    "name",
    mark_relatives([HYBRID, "attention-location", "intra-attention-decoder", "single-summary-hybrid"]),
)
@every_method
def test_the_batch_changes_nothing(method: str, name: str) -> None:
    model, config = build_talker(name, 2, -3.0), DecodingConfig(method=method, beam=4)
    texts = {
        size: [
            text
            for encoded in encode_in_batches(model, size)
            for text in all_texts(search(model, *encoded, config))
        ]
        for size in (1, 7)
    }
    assert texts[1] == texts[7]
    assert len({tokens for (tokens,) in texts[1]}) > 3  # or a decoder that says always the same would pass


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@every_method
def test_a_gpu_finds_the_same(method: str) -> None:
    model = build_talker(HYBRID, 2, -2.0)
    encoded_BTD, lengths_B = random_encoded(model, [18, 0, 7, 12])
    config = DecodingConfig(method=method, beam=5, nbest=3)
    expected = search(model, encoded_BTD, lengths_B, config)
    found = search(model.cuda(), encoded_BTD.cuda(), lengths_B.cuda(), config)
    assert all_texts(found) == all_texts(expected)
