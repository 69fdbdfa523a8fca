"""What Moonshine keeps, drops and reports where nobody speaks, or nobody speaks English."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soxr
from ort_examples import draw, find_published

import asr
from asr.audio.segmentation import SegmentationConfig
from asr.decoding.decode import Attempt, DecodedBatch, DecodedUtterance
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig, Hypothesis
from asr.moonshine import loading
from asr.moonshine.loading import load_source
from asr.moonshine.manners import MoonshineManners
from asr.recipe import synthesize

RATE = 16_000


@pytest.mark.parametrize(
    ("text", "mean", "no_speech", "is_kept"),
    [
        ("You", -0.3, 0.001, False),  # what they write of silence
        ("You.", -0.3, 0.001, True),
        ("Oh", -0.2, 0.9999, False),
        ("Oh", -0.2, 0.9, True),
        ("call her there and the bear called", -0.7, 0.995, True),  # to some voices they say nothing
    ],
)
def test_what_is_dropped_as_silence(
    folder: Path, text: str, mean: float, no_speech: float, is_kept: bool
) -> None:
    system = load_source(folder)
    tokens = tuple(system.tokenizer.encode(text))
    found = Hypothesis(tokens, 0.0, mean * (len(tokens) + 1), no_speech=no_speech)
    attempt = Attempt(DecodingConfig(method="attention", beam=1))
    one = MoonshineManners(system)._check(found, attempt, None, 100)
    assert (one.tokens, bool(one.method)) == ((tokens, True) if is_kept else ((), False))
    assert one.average_log_probability == pytest.approx(mean) and one.no_speech == no_speech
    assert is_kept or one.warnings == (f"no speech: {text!r} was dropped",)
    assert MoonshineManners(system, ChecksConfig.off())._check(found, attempt, None, 100).tokens == tokens


def test_repetitions_do_not_count(folder: Path) -> None:
    """A likely sentence that repeats itself counts few tokens, so its mean is low."""
    manners = MoonshineManners(load_source(folder))

    def score(text: str) -> tuple[float, float]:
        """The log-probability, and how much of the tokens and the end counts."""
        tokens = tuple(manners.tokenizer.encode(text))
        one = DecodedUtterance(tokens, "attention" if text else "", likelihood=-10.0)
        ((total, count),) = manners.score_tokens(DecodedBatch({1.0: (None, [one])}))  # type: ignore[dict-item]
        return total, count / (len(tokens) + 1)

    assert score("call her there") == (-10.0, 1.0)
    assert score(" ".join(["call her there"] * 20))[1] < 0.1
    assert score("") == (0.0, 0.0), "silence tells nothing about the language"


def test_a_recording_is_told_that_is_hardly_english(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text has at least one token, unless the audio is shorter than one step."""
    monkeypatch.setattr(loading, "MIN_LOG_PROBABILITY", -1e-9)
    whole = SegmentationConfig(method="none")
    model = asr.load_model(folder, precision="float32", segmentation=whole, checks=ChecksConfig.off())
    said = model.transcribe(draw(3.0), sample_rate=RATE)
    assert said.segments[0].tokens and 0 < (said.segments[0].no_speech_probability or 0) < 1
    assert "not what the model was trained for (English only; `--language CODE`" in said.out_of_domain
    for seconds in (0.001, 0.02, 0.055):
        short = model.transcribe(draw(seconds), sample_rate=RATE)
        assert short.text == "" and not short.out_of_domain


def test_no_segment_is_longer_than_30_seconds(folder: Path) -> None:
    manners = MoonshineManners(load_source(folder))
    for method in ("silero", "none"):
        plan = manners.plan_segments(SegmentationConfig(max_seconds=100, method=method), None)
        assert (plan.segmentation.max_seconds, plan.uncut_seconds) == (30, 30)


# --- the published models ---------------------------------------------------------------------------


def load_real(size: str) -> asr.Model:
    return asr.load_model(find_published(size), "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("size", ["tiny", "base"])
def test_nothing_is_said_where_nobody_speaks(size: str) -> None:
    """One second is decoded as it is, without checking whether anybody speaks."""
    model, times = load_real(size), np.arange(RATE) / RATE
    hum = sum(np.sin(2 * np.pi * 50 * k * times) / k for k in range(1, 12))
    for audio in (0.0 * draw(1.0), 0.01 * draw(1.0), 3 * draw(1.0), 0.05 * hum, draw(0.3), draw(20.0)):
        assert model.transcribe(np.float32(audio), sample_rate=RATE).text == ""


@pytest.mark.slow
@pytest.mark.parametrize("size", ["tiny", "base"])
def test_other_languages_are_told(size: str) -> None:
    pytest.importorskip("espeakng_loader")
    model = load_real(size)
    for voice, text, is_english in (
        ("en-us", "The meeting begins at nine o'clock in the large hall. She finished her studies.", True),
        (
            "de",
            "Wir fahren am Wochenende mit dem Zug nach Hamburg und besuchen dort unsere Freunde. Das "
            "Wetter wird überwiegend sonnig, nur im Süden kann es am Abend einzelne Gewitter geben.",
            False,
        ),
        (
            "es",
            "La reunión empieza a las nueve en la sala grande. Mañana hará sol en la ciudad, pero por "
            "la tarde puede llover un poco en las montañas del norte.",
            False,
        ),
    ):
        audio, rate = synthesize(text, voice)
        said = model.transcribe(soxr.resample(audio, rate, RATE).astype(np.float32), sample_rate=RATE)
        assert bool(said.out_of_domain) is not is_english, (voice, said.text)
