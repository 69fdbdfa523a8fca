"""asr/decoding/checked: what goes astray is decoded again in the promised order, and all of it is told."""

from __future__ import annotations

import math

import pytest
import torch
from model_examples import build_example

from asr.decoding import checked
from asr.decoding.checked import Encoded, decode_checked, listen, plan_attempts
from asr.decoding.checks import ChecksConfig
from asr.decoding.search import DecodingConfig, Hypothesis
from asr.models import SpeechModel
from asr.text.units import BLANK_ID

VOCAB_SIZE = 13
HEARD = (5, 6, 7, 8)


def spell(tokens: object) -> str:
    return " ".join(map(str, tokens))  # type: ignore[call-overload]


def encode(probability: float = 0.9, rows: int = 1) -> Encoded:
    """The CTC head hears 5 6 7 8, each for one step of every other."""
    scores_BTV = torch.full((rows, 8, VOCAB_SIZE), (1 - probability) / (VOCAB_SIZE - 1))
    for step in range(8):
        scores_BTV[:, step, HEARD[step // 2] if step % 2 else BLANK_ID] = probability
    return Encoded(torch.zeros(rows, 8, 32), torch.full((rows,), 8), scores_BTV.log(), 0.04)


class Script:
    """In place of `decode`: says what each method finds, and remembers what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **found: tuple[int, ...]) -> None:
        self.found, self.asked = found, list[DecodingConfig]()
        monkeypatch.setattr(checked, "decode", self)

    def __call__(
        self,
        model: SpeechModel,
        encoded_BTD: torch.Tensor,
        lengths_B: torch.Tensor,
        config: DecodingConfig,
        lm: None,
    ) -> list[list[Hypothesis]]:
        self.asked.append(config)
        key = config.method if config.ctc_weight < 0.5 else "held"
        return [[Hypothesis(self.found[key], 0.0)] for _ in lengths_B]


def read(config: DecodingConfig, name: str = "transformer-hybrid", **encoding: float) -> checked.Reading:
    (reading,) = decode_checked(build_example(name), encode(**encoding), config, ChecksConfig(), spell)
    return reading


def test_what_is_good_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, joint=HEARD)
    reading = read(DecodingConfig(method="auto", beam=4))
    assert (reading.tokens, reading.method, reading.warnings) == (HEARD, "joint", ())
    assert len(script.asked) == 1


def test_falls_back_to_ctc_then_to_the_held_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, attention=(9, 9, 9, 9), ctc_beam=HEARD)
    reading = read(DecodingConfig(method="attention", beam=6))
    assert (reading.tokens, reading.method) == (HEARD, "ctc_beam")
    assert reading.warnings == ("attention: the CTC head hears '5 6 7 8'",)
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


def test_only_faulty_rows_are_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def decode(
        model: object, encoded_BTD: torch.Tensor, lengths_B: torch.Tensor, config: DecodingConfig, lm: None
    ):  # type: ignore[no-untyped-def]
        sizes.append(len(encoded_BTD))
        texts = [HEARD, (9,) * 4, HEARD] if config.method == "joint" else [HEARD]
        return [[Hypothesis(tokens, 0.0)] for tokens in texts]

    monkeypatch.setattr(checked, "decode", decode)
    model = build_example("transformer-hybrid")
    readings = decode_checked(model, encode(rows=3), DecodingConfig(), ChecksConfig(), spell)
    assert [reading.method for reading in readings] == ["joint", "ctc_beam", "joint"] and sizes == [3, 1]


def test_attempts_fit_the_heads_of_the_model() -> None:
    def methods(name: str, method: str) -> list[tuple[str, int]]:
        config = DecodingConfig(method=method, beam=9)  # type: ignore[arg-type]
        return [(attempt.method, attempt.beam) for attempt in plan_attempts(build_example(name), config)]

    assert methods("transformer-ctc", "auto") == [("ctc_beam", 9)]
    assert methods("transformer-ctc", "ctc_greedy") == [("ctc_greedy", 9), ("ctc_beam", 9)]
    assert methods("transformer-attention", "auto") == [("attention", 9), ("attention", 3)]
    assert methods("transformer-hybrid", "auto") == [("joint", 9), ("ctc_beam", 9), ("joint", 3)]


def test_listening_is_the_best_path() -> None:
    scores_TV = encode().scores_BTV
    assert scores_TV is not None
    heard = listen(scores_TV[0], spell)
    assert (heard.tokens, heard.steps) == (HEARD, (1, 3, 5, 7))
    assert heard.log_probability == pytest.approx(math.log(0.9))
    assert listen(scores_TV[0, :1], spell).tokens == ()
