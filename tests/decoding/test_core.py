"""asr/decoding/decode: what has faults is decoded again in the promised order, and all of it is told."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from decoding_examples import build_decoder_of
from model_examples import build_example

from asr.decoding import (
    ChecksConfig,
    DecodedBatch,
    DecodedUtterance,
    DecodingConfig,
    DecodingSetup,
    EncodedAudio,
    FusionModel,
    Hypothesis,
    NBest,
    SpeechDecoder,
    batch_by_length,
    decode,
    plan_attempts,
)
from asr.text import BLANK_ID

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
    decoder = build_decoder_of(build_example("transformer-hybrid"), checks)
    (decoded,) = decoder.decode(encode(decoder, **encoding), DecodingSetup(config))  # type: ignore[arg-type]
    return decoded


def test_what_is_good_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, joint=HEARD)
    reading = read(DecodingConfig(method="auto", beam=4))
    assert (reading.tokens, reading.method, reading.warnings) == (HEARD, "joint", ())
    assert len(script.asked) == 1


def test_falls_back_to_ctc_then_to_the_held_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, attention=(9, 9, 9, 9), ctc_beam=HEARD)
    reading = read(DecodingConfig(method="attention", beam=6))
    assert (reading.tokens, reading.method) == (HEARD, "ctc_beam")
    assert reading.warnings == ("attention: CTC's best path is '5 6 7 8'",)
    assert [config.method for config in script.asked] == ["attention", "ctc_beam"]
    script = Script(monkeypatch, attention=(9, 9, 9, 9), ctc_beam=(), held=(5, 6, 7))
    reading = read(DecodingConfig(method="attention", beam=6))
    assert (reading.tokens, reading.method) == ((5, 6, 7), "joint") and len(reading.warnings) == 2
    assert (script.asked[2].beam, script.asked[2].ctc_weight) == (2, 0.8)


def test_if_all_is_faulty_the_least_bad_is_taken_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    Script(monkeypatch, joint=(9,) * 12, ctc_beam=(9,) * 4, held=(9,) * 12)
    reading = read(DecodingConfig(method="joint"))
    assert (reading.tokens, reading.method) == ((9,) * 4, "ctc_beam")
    assert any(warning.startswith("joint: ") for warning in reading.warnings)
    assert reading.warnings[-1].startswith("ctc_beam: ")


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


def test_only_faulty_rows_are_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def search(encoded: EncodedAudio, config: DecodingConfig, lm: Any) -> NBest:
        sizes.append(len(encoded.lengths_B))
        texts = [HEARD, (9,) * 4, HEARD] if config.method == "joint" else [HEARD]
        return [[Hypothesis(tokens, 0.0)] for tokens in texts]

    monkeypatch.setattr(decode, "search_encoded", search)
    decoder = build_decoder_of(build_example("transformer-hybrid"))
    found = decoder.decode(encode(decoder, rows=3), DecodingSetup(DecodingConfig()))
    assert [one.method for one in found] == ["joint", "ctc_beam", "joint"] and sizes == [3, 1]


def test_attempts_fit_the_heads_of_the_model() -> None:
    def methods(name: str, method: str) -> list[tuple[str, int]]:
        config = DecodingConfig(method=method, beam=9)  # type: ignore[arg-type]
        return [(attempt.method, attempt.beam) for attempt in plan_attempts(build_example(name), config)]

    assert methods("transformer-ctc", "auto") == [("ctc_beam", 9)]
    assert methods("transformer-ctc", "ctc_greedy") == [("ctc_greedy", 9), ("ctc_beam", 9)]
    assert methods("transformer-attention", "auto") == [("attention", 9), ("attention", 3)]
    assert methods("transformer-hybrid", "auto") == [("joint", 9), ("ctc_beam", 9), ("joint", 3)]


def test_the_best_path_is_read_with_times_and_probability() -> None:
    decoder = build_decoder_of(build_example("transformer-hybrid"))
    (text,) = decoder._read_ctc(encode(decoder))
    assert text is not None and (text.tokens, text.steps, text.text) == ([*HEARD], [1, 3, 5, 7], "5 6 7 8")
    assert text.log_probability == pytest.approx(math.log(0.9))


def test_a_text_without_faults_goes_before_a_likelier_one() -> None:
    """Among those of one utterance at several speeds; too fast for a single step, there is none."""
    clean = DecodedUtterance((7,), "joint", (), -9.0)
    likelier = DecodedUtterance((8,), "ctc_beam", ("joint: a loop",), -1.0)
    silent, worse = DecodedUtterance((), "", ("no speech",)), DecodedUtterance((9,), "joint", (), -10.0)
    order = sorted([clean, likelier, silent, worse], key=lambda decoded: decoded.rank)
    assert order == [silent, likelier, worse, clean]
    encoded = EncodedAudio(build_example("transformer-ctc"), torch.zeros(1, 8, 32), torch.tensor([8]))
    batch = DecodedBatch({0.9: (encoded, [worse]), 1.0: (encoded, [clean]), 1.5: (encoded, [silent])})
    assert batch.best == [(1.0, clean)]


def test_all_speeds_go_through_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """And give what each gives by itself."""
    decoder = build_decoder_of(build_example("transformer-ctc"), ChecksConfig.off())
    batches: list[int] = []
    search = decode.search_encoded

    def count(encoded: EncodedAudio, config: DecodingConfig, lm: FusionModel | None) -> NBest:
        batches.append(len(encoded.lengths_B))
        return search(encoded, config, lm)

    monkeypatch.setattr(decode, "search_encoded", count)
    audio = list(np.random.default_rng(0).normal(size=(2, 8000)).astype(np.float32))
    config = DecodingConfig(method="ctc_beam", speeds=(0.8, 1.0, 1.25))
    (together,) = decoder.decode_batch(audio, {"": DecodingSetup(config)}).values()
    assert batches == [6]
    for encoded, found in together.at_speeds.values():
        assert found == decoder.decode(encoded, DecodingSetup(config))


def test_batches_are_of_equal_length() -> None:
    assert batch_by_length([5, 3, 5, 5, 3], 2) == [[0, 2], [1, 4], [3]]
    assert batch_by_length([], 2) == []
