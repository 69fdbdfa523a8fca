"""asr/decoding/decode.py: what each method promises whatever it is asked; what has problems is decoded again."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from decoding_examples import (
    BigramModel,
    build_decoder_of,
    build_talker,
    ctc_scores,
    decode_ctc_greedily,
    decoder_scores,
    encode_in_batches,
    random_encoded,
    search,
)
from model_examples import mark_relatives

from asr.audio import AudioSegment
from asr.decoding import decode
from asr.decoding.decode import DecodedBatch, DecodedUtterance, DecodingSetup, SpeechDecoder, plan_fallbacks
from asr.decoding.greedy import sample
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig, EncodedAudio, FusionModel, Hypothesis, NBest
from asr.errors import UserError
from asr.text.tokenizer import BLANK_ID, EOS_ID

HYBRID = "transformer-hybrid"
METHODS: list[str] = ["ctc_greedy", "ctc_beam", "attention", "joint", "rescoring"]
every_method = pytest.mark.parametrize("method", METHODS)


def all_texts(found: list[list[Hypothesis]]) -> list[list[tuple[int, ...]]]:
    return [[hypothesis.tokens for hypothesis in hypotheses] for hypotheses in found]


def test_methods_fit_the_heads_of_the_model() -> None:
    """auto is the best; what fails is decoded again by what the model can do as well."""

    def plan(name: str, method: str) -> list[tuple[str, int]]:
        config = DecodingConfig(method=method, beam=9)
        return [(attempt.method, attempt.beam) for attempt in plan_fallbacks(build_talker(name), config)]

    assert plan("transformer-ctc", "auto") == [("ctc_beam", 9)]
    assert plan("transformer-ctc", "ctc_greedy") == [("ctc_greedy", 9), ("ctc_beam", 9)]
    assert plan("transformer-attention", "auto") == [("attention", 9), ("attention", 3)]
    assert plan(HYBRID, "auto") == [("joint", 9), ("ctc_beam", 9), ("joint", 3)]


@pytest.mark.parametrize(
    ("name", "config", "language_model", "message"),
    [
        ("transformer-ctc", {"method": "joint"}, False, "a decoder .*use ctc_beam"),
        ("transformer-attention", {"method": "ctc_greedy"}, False, "a CTC head.*use attention"),
        (HYBRID, {"method": "jiont"}, False, "decoding method jiont: expected one of auto, ctc_greedy"),
        (HYBRID, {"language_model_weight": 0.3}, False, "there is no language model"),
        (HYBRID, {}, True, "a language model was given"),
        (HYBRID, {"method": "ctc_greedy", "language_model_weight": 1.0}, True, "use ctc_beam"),
        ("transformer-ctc", {"temperatures": (0.5,)}, False, "need a decoder that goes token by token"),
    ],
)
def test_what_cannot_be_decoded_so_is_refused(
    name: str, config: dict[str, Any], language_model: bool, message: str
) -> None:
    model = build_talker(name)
    with pytest.raises(UserError, match=message):
        search(
            model,
            *random_encoded(model, [5]),
            DecodingConfig(**config),
            BigramModel() if language_model else None,
        )


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
def test_lists_are_ranked_distinct_and_have_the_scores_that_were_asked_for(method: str, beam: int) -> None:
    model = build_talker(HYBRID, 1, -2.0)
    encoded = random_encoded(model, [12, 1, 6])
    nbest, is_ctc = min(5, beam), method.startswith("ctc")
    for hypotheses in search(model, *encoded, DecodingConfig(method=method, beam=beam, nbest=nbest)):
        for hypothesis in hypotheses:
            assert math.isnan(hypothesis.log_probability) == is_ctc
            assert math.isnan(hypothesis.ctc_log_probability) == (method == "attention")
            assert len(hypothesis.attended_steps) == (0 if is_ctc else len(hypothesis.tokens) + 1)
            assert all(0 <= step <= 11 for step in hypothesis.attended_steps)
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True) and all(map(math.isfinite, scores))
        assert 1 <= len(hypotheses) <= nbest
        assert len({hypothesis.tokens for hypothesis in hypotheses}) == len(hypotheses)


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


@pytest.mark.parametrize("uses_model", [False, True])
def test_rescoring_ranks_the_texts_of_ctc_by_the_formula(uses_model: bool) -> None:
    model = build_talker(HYBRID, 1, -2.0)
    language_model = BigramModel() if uses_model else None
    encoded_BTD, lengths_B = random_encoded(model, [12, 1, 7])
    shared = {"beam": 6, "ctc_weight": 0.4}
    if uses_model:
        shared["language_model_weight"] = 0.6
    config = DecodingConfig(method="rescoring", nbest=6, **shared)
    weighed = {"language_model_weight": 0.6} if uses_model else {}
    first_pass = DecodingConfig(method="ctc_beam", beam=6, nbest=6, **weighed)
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
            total = 0.6 * expected + 0.4 * ctc_of[text]
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
    "name", mark_relatives([HYBRID, "attention-location", "intra-attention-decoder", "single-summary-hybrid"])
)
@every_method
def test_the_batch_changes_nothing(method: str, name: str) -> None:
    model, config = build_talker(name, 5, -3.0), DecodingConfig(method=method, beam=4)
    texts = {
        size: [
            text
            for encoded in encode_in_batches(model, size)
            for text in all_texts(search(model, *encoded, config))
        ]
        for size in (1, 5)
    }
    assert texts[1] == texts[5]
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


# --- checks and fallbacks -------------------------------------------------------------------------

VOCAB_SIZE = 13
HEARD = (5, 6, 7, 8)


def encode(decoder: SpeechDecoder, probability: float = 0.9, rows: int = 1) -> EncodedAudio:
    """CTC's best path is 5 6 7 8, each for one step of every other."""
    scores_BTV = torch.full((rows, 8, VOCAB_SIZE), (1 - probability) / (VOCAB_SIZE - 1))
    for step in range(8):
        scores_BTV[:, step, HEARD[step // 2] if step % 2 else BLANK_ID] = probability
    encoded = EncodedAudio(decoder.model, torch.zeros(rows, 8, 32), torch.full((rows,), 8))
    encoded.__dict__["ctc_BTV"] = scores_BTV.log()
    return encoded


class Script:
    """In place of the search: gives what each method finds, and remembers what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **found: tuple[int, ...]) -> None:
        self.found, self.asked = found, list[DecodingConfig]()
        monkeypatch.setattr(decode, "search_encoded", self)

    def __call__(self, encoded: EncodedAudio, config: DecodingConfig, lm: FusionModel | None) -> NBest:
        self.asked.append(config)
        key = config.method if config.ctc_weight < 0.5 else "held"
        return [[Hypothesis(self.found[key], 0.0)] for _ in encoded.lengths_B]


def read(config: DecodingConfig, checks: ChecksConfig | None = None, **encoding: float) -> DecodedUtterance:
    decoder = build_decoder_of(build_talker("transformer-hybrid"), checks)
    (decoded,) = decoder.decode(encode(decoder, **encoding), DecodingSetup(config))  # type: ignore[arg-type]
    return decoded


def test_falls_back_to_ctc_then_to_the_held_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, joint=HEARD)
    reading = read(DecodingConfig(method="auto", beam=4))
    assert (reading.tokens, reading.method, reading.warnings) == (HEARD, "joint", ())
    assert len(script.asked) == 1
    script = Script(monkeypatch, attention=(9, 9, 9, 9), ctc_beam=HEARD)
    reading = read(DecodingConfig(method="attention", beam=6))
    assert (reading.tokens, reading.method) == (HEARD, "ctc_beam")
    assert reading.warnings == ("attention: CTC's best path is '5 6 7 8'",)
    assert [config.method for config in script.asked] == ["attention", "ctc_beam"]
    script = Script(monkeypatch, attention=(9, 9, 9, 9), ctc_beam=(), held=(5, 6, 7))
    reading = read(DecodingConfig(method="attention", beam=6))
    assert (reading.tokens, reading.method) == ((5, 6, 7), "joint") and len(reading.warnings) == 2
    assert (script.asked[2].beam, script.asked[2].ctc_weight) == (2, 0.8)
    Script(monkeypatch, joint=(9,) * 12, ctc_beam=(9,) * 4, held=(9,) * 12)  # the least bad
    reading = read(DecodingConfig(method="joint"))
    assert (reading.tokens, reading.method) == ((9,) * 4, "ctc_beam")
    assert reading.warnings[0].startswith("joint: ") and reading.warnings[-1].startswith("ctc_beam: ")


@pytest.mark.parametrize(("probability", "found"), [(0.45, HEARD), (0.6, (9, 9, 9, 9))])
def test_what_nobody_hears_clearly_is_dropped_and_said(
    monkeypatch: pytest.MonkeyPatch, probability: float, found: tuple[int, ...]
) -> None:
    Script(monkeypatch, joint=found)
    reading = read(DecodingConfig(method="joint"), probability=probability)
    assert (reading.tokens, reading.method) == ((), "")
    assert reading.warnings[0] == "no clear speech: '5 6 7 8' was dropped"


def test_without_checks_the_first_text_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, joint=(9,) * 12)
    decoded = read(DecodingConfig(method="joint"), ChecksConfig.off(), probability=0.1)
    assert (decoded.tokens, decoded.method, decoded.warnings) == ((9,) * 12, "joint", ())
    assert len(script.asked) == 1


def test_only_rejected_rows_are_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def search(encoded: EncodedAudio, config: DecodingConfig, lm: Any) -> NBest:
        sizes.append(len(encoded.lengths_B))
        texts = [HEARD, (9,) * 4, HEARD] if config.method == "joint" else [HEARD]
        return [[Hypothesis(tokens, 0.0)] for tokens in texts]

    monkeypatch.setattr(decode, "search_encoded", search)
    decoder = build_decoder_of(build_talker("transformer-hybrid"))
    found = decoder.decode(encode(decoder, rows=3), DecodingSetup(DecodingConfig()))
    assert [one.method for one in found] == ["joint", "ctc_beam", "joint"] and sizes == [3, 1]


def test_a_text_without_problems_goes_before_a_likelier_one() -> None:
    """The best of one utterance at several speeds; none if it is too fast for a single step."""
    clean = DecodedUtterance((7,), "joint", (), -9.0)
    likelier = DecodedUtterance((8,), "ctc_beam", ("joint: a loop",), -1.0)
    silent, worse = DecodedUtterance((), "", ("no speech",)), DecodedUtterance((9,), "joint", (), -10.0)
    order = sorted([clean, likelier, silent, worse], key=lambda decoded: decoded.rank)
    assert order == [silent, likelier, worse, clean]
    encoded = EncodedAudio(build_talker("transformer-ctc"), torch.zeros(1, 8, 32), torch.tensor([8]))
    batch = DecodedBatch({0.9: (encoded, [worse]), 1.0: (encoded, [clean]), 1.5: (encoded, [silent])})
    assert batch.best == [(1.0, clean)]


def test_all_speeds_in_one_search_give_what_each_gives_by_itself() -> None:
    decoder = build_decoder_of(build_talker("transformer-ctc"), ChecksConfig.off())
    noise = np.random.default_rng(0).normal(size=(2, 8000)).astype(np.float32)
    audio = [AudioSegment(0.0, audio_S, 16_000) for audio_S in noise]
    setup = DecodingSetup(DecodingConfig(method="ctc_beam", speeds=(0.8, 1.0, 1.25)))
    (together,) = decoder.decode_batch(audio, {"": setup}).values()
    assert len(together.at_speeds) == 3
    for encoded, found in together.at_speeds.values():
        assert found == decoder.decode(encoded, setup)


@pytest.mark.parametrize("name", ["transformer-attention", HYBRID])
def test_models_trained_here_draw_texts_too(name: str) -> None:
    """No special token is among them, and the likeliest come first; the rejected texts are all unlikely here."""
    model = build_talker(name)
    checks = ChecksConfig(max_compression=None, min_log_probability=-1e-9)
    decoder = build_decoder_of(model, checks)
    encoded = EncodedAudio(model, *random_encoded(model, [9, 12]))
    config = DecodingConfig(method="attention", beam=2, temperatures=(0.5, 1.5), samples=3)
    (drawn, *_) = sample(encoded, config, None, 1.5)
    assert [one.mean for one in drawn] == sorted((one.mean for one in drawn), reverse=True) and len(
        drawn
    ) == 3
    assert all(token > EOS_ID for one in drawn for token in one.tokens)
    found = decoder.decode(encoded, DecodingSetup(config))
    assert {one.method for one in found} <= {"attention", "sampling", ""}
    assert [attempt.temperature for attempt in decoder.plan_attempts(config)] == [0.0, 0.5, 1.5]
