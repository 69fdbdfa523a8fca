"""From encoded windows to readings: prompts, languages, silence, and another try where a text has faults."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from whisper_systems import build_system

from asr.decoding import ChecksConfig, hypothesis as limits
from asr.errors import UserError
from asr.whisper import (
    EncodedSteps,
    EncodedWindows,
    WhisperDecodingConfig,
    WhisperSystem,
    build_prompts,
    decode_windows,
    detect_languages,
    draw,
    encode_context,
)


@pytest.fixture(scope="module")
def system() -> WhisperSystem:
    return build_system(True)


def ask(count: int = 8, languages: list[str] | None = None, **options: Any) -> EncodedWindows:
    encoded_BTD = torch.randn(count, 20, 32, generator=torch.Generator().manual_seed(1))
    audio = EncodedSteps(encoded_BTD, torch.full((count,), 20))
    return EncodedWindows(audio, [(code, None) for code in languages or ["en"] * count], **options)


def test_prompts_hold_hotwords_then_the_prompt_then_what_was_said(system: WhisperSystem) -> None:
    tokenizer = system.tokenizer
    config = WhisperDecodingConfig(prompt=" the plain ", hotwords=("rain", "spain"), task="translate")
    asked = ask(2, ["de", "en"], previous=tokenizer.encode(" on the sun"))
    for row, prompt in zip(("de", "en"), build_prompts(tokenizer, asked, config, 448), strict=True):
        told = (
            tokenizer.encode(" rain, spain")
            + tokenizer.encode(" the plain")
            + tokenizer.encode(" on the sun")
        )
        assert prompt[0] == tokenizer.start_of_previous
        assert prompt[1:-4] == told
        assert prompt[-4:] == tokenizer.prompt(row, "translate")
    plain = build_prompts(tokenizer, ask(1, with_times=True), WhisperDecodingConfig(), 448)
    assert plain == [tokenizer.prompt("en", times=True)]


def test_of_what_was_said_the_end_is_told(system: WhisperSystem) -> None:
    tokenizer = system.tokenizer
    previous = list(range(40))
    (prompt,) = build_prompts(
        tokenizer, ask(1, previous=previous), WhisperDecodingConfig(hotwords=("the",)), 24
    )
    told = tokenizer.encode(" the")
    assert prompt[1:-4] == [*told, *previous[-(11 - len(told)) :]]


def test_wrong_use() -> None:
    with pytest.raises(ValueError, match="klingon"):
        WhisperDecodingConfig(language="klingon")
    with pytest.raises(ValueError, match="windows = sequential"):
        WhisperDecodingConfig(condition_on_previous_text=True)
    assert WhisperDecodingConfig(language="German").language == "de"


@pytest.mark.parametrize("max_tokens", [448, 64])
def test_all_that_is_told_is_read_or_refused(max_tokens: int, system: WhisperSystem) -> None:
    """Each of them alone would fit; a half of the positions, less the start, is for both."""
    tokenizer, room = system.tokenizer, max_tokens // 2 - 1
    words, word = ("rain",) * (room // 5), len(tokenizer.encode(" the"))
    left = room - len(tokenizer.encode(" " + ", ".join(words)))
    assert 0 < left < room and word == 1
    fits = WhisperDecodingConfig(hotwords=words, prompt=" the" * left)
    assert len(encode_context(tokenizer, fits, max_tokens)) == room
    (prompt,) = build_prompts(tokenizer, ask(1), fits, max_tokens)
    told = tokenizer.encode(" " + ", ".join(words)) + tokenizer.encode(" the" * left)
    assert prompt[1:-4] == told and len(told) == room
    over = WhisperDecodingConfig(hotwords=words, prompt=" the" * (left + 1))
    message = (
        rf"hotwords have {room - left} tokens and whisper\.prompt has {left + 1}, .* reads {room} in all"
    )
    with pytest.raises(UserError, match=message):
        encode_context(tokenizer, over, max_tokens)


@torch.inference_mode()
def test_languages(system: WhisperSystem) -> None:
    asked, tokenizer = ask(), system.tokenizer
    detected = detect_languages(system.model, tokenizer, asked.audio)
    found = [language for language, _ in detected]
    start_B1 = torch.full((8, 1), tokenizer.start)
    scores_BV = system.model.decoder(start_B1, *asked.audio[:2])[0][:, 0]
    for language, scores_V in zip(found, scores_BV, strict=True):
        assert language == max(
            tokenizer.languages, key=lambda code: float(scores_V[tokenizer.languages[code]])
        )
    assert len(set(found)) > 1
    english = build_system(False)
    assert detect_languages(english.model, english.tokenizer, asked.audio) == [("en", 1.0)] * 8


def test_texts_depend_on_language_task_prompt_and_beam(system: WhisperSystem) -> None:
    def read(languages: list[str] | None = None, **options: Any) -> list[str]:
        config = WhisperDecodingConfig(temperatures=(), max_no_speech=None, **options)
        readings = decode_windows(
            system.model, system.tokenizer, ask(8, languages), config, ChecksConfig.off()
        )
        assert {reading.decoding for reading in readings} == {"beam" if options.get("beam") else "greedy"}
        return [reading.text for reading in readings]

    plain = read()
    for other in (read(["de"] * 8), read(task="translate"), read(prompt="the rain"), read(beam=4)):
        assert other != plain
    mixed = read(["en", "de"] * 4)
    assert mixed[::2] == plain[::2] and mixed[1::2] == read(["de"] * 8)[1::2]


def test_what_has_faults_is_drawn_again_and_the_rest_stands(
    system: WhisperSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit lies between the texts of eight windows, so that some are doubted."""
    config = WhisperDecodingConfig(max_no_speech=None, temperatures=())
    tokenizer, model = system.tokenizer, system.model
    first = decode_windows(model, tokenizer, ask(), config, ChecksConfig.off())
    lengths = sorted(sum(id < tokenizer.end for id in reading.tokens) for reading in first)
    limit = lengths[len(lengths) // 2] / (20 * 0.02)
    monkeypatch.setattr(limits, "MAX_TOKENS_PER_SECOND", limit)
    checks = ChecksConfig(max_compression=None, min_log_probability=None)
    doubted = decode_windows(model, tokenizer, ask(), config, checks)
    is_faulty = [bool(reading.warnings) for reading in doubted]
    assert any(is_faulty) and not all(is_faulty)
    assert all("greedy at temperature 0: " in reading.warnings[0] for reading in doubted if reading.warnings)
    again = config.model_copy(update={"temperatures": (0.5, 1.0, 2.0)})
    found = decode_windows(model, tokenizer, ask(), again, checks)
    for before, after, faulty in zip(first, found, is_faulty, strict=True):
        assert faulty or after == before
    better = [one for one, faulty in zip(found, is_faulty, strict=True) if faulty and not one.warnings]
    assert better and all(one.decoding == "sampling" and one.temperature > 0 for one in better)
    assert found == decode_windows(model, tokenizer, ask(), again, checks)


def test_silence_is_dropped_only_where_the_text_is_unlikely_too(system: WhisperSystem) -> None:
    certain = WhisperDecodingConfig(max_no_speech=1e-30, temperatures=())
    doubtful = ChecksConfig.off().model_copy(update={"min_log_probability": -1e-12})
    asked = ask()
    dropped = decode_windows(system.model, system.tokenizer, asked, certain, doubtful)
    for reading in dropped:
        assert reading.tokens == () and reading.text == "" and reading.decoding == ""
    assert any("no speech: " in warning for reading in dropped for warning in reading.warnings)
    sure = ChecksConfig.off().model_copy(update={"min_log_probability": -99.0})
    readings = decode_windows(system.model, system.tokenizer, asked, certain, sure)
    assert all(reading.tokens for reading in readings)
    never = certain.model_copy(update={"max_no_speech": None})
    assert all(one.tokens for one in decode_windows(system.model, system.tokenizer, asked, never, doubtful))


def test_tokens_are_drawn_from_the_softmax_of_their_scores() -> None:
    scores_V = torch.tensor([0.5, -torch.inf, 2.0, 1.0, -torch.inf])
    chances_R = torch.arange(10_000) / 10_000
    tokens_R = draw(scores_V.expand(10_000, -1), chances_R)
    expected_V = scores_V.softmax(0)
    found_V = torch.bincount(tokens_R, minlength=5) / 10_000
    torch.testing.assert_close(found_V, expected_V, atol=2e-4, rtol=0)
    highest = torch.tensor([torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))])
    assert draw(scores_V[None], highest).tolist() == [3] and draw(scores_V[None], 0 * highest).tolist() == [0]
