"""Windows of audio with silence behind it, and what the tokens of a window say of its time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from whisper_examples import VOCABULARY
from whisper_systems import build_system

from asr.errors import UserError
from asr.whisper import SILENCES, Silence, TimedSpan, WhisperTokenizer, split_spans


def test_features_are_those_of_audio_with_silence_behind() -> None:
    system = build_system(False)
    audio_BS = 0.1 * torch.randn(2, 3000, generator=torch.Generator().manual_seed(0))
    features_BTF, lengths_B = system.compute_features(audio_BS, torch.tensor([3000, 1000]))
    padded_BS = torch.cat([audio_BS, torch.zeros(2, 3400)], dim=1)
    padded_BS[1, 1000:] = 0
    expected_BTF, _ = system.front_end(padded_BS, torch.tensor([6400, 6400]))
    assert lengths_B.tolist() == [40, 40] and features_BTF.shape == (2, 40, 80)
    torch.testing.assert_close(features_BTF, expected_BTF)
    with pytest.raises(UserError, match=r"0.50 seconds of audio; one window has at most 0.4"):
        system.compute_features(torch.zeros(1, 8000), torch.tensor([8000]))


@torch.inference_mode()
def test_windows_of_different_length_are_padded_to_be_decoded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is encoded as long as it needs, so that its company changes none of its steps."""
    system = build_system(False, window_steps=1500)
    assert system.count_window_samples(16_000) == 480_000
    assert replace(system, is_fine_tuned=True).count_window_samples(16_001) == 24_000
    monkeypatch.setitem(SILENCES, (system.sizes.dim, False), Silence(1.0, 16))
    for seconds, window, padded in (
        (0, 1, 4),
        (1.1, 2.5, 4),
        (3, 4, 4),
        (8, 9, 16),
        (29, 30, 30),
        (30, 30, 30),
    ):
        num_samples = round(16_000 * seconds)
        assert system.count_window_samples(num_samples) == 16_000 * window
        assert system.count_padded_samples(num_samples) == 16_000 * padded
    lengths_B = torch.tensor([round(16_000 * one) for one in (3.5, 4.2, 4.4, 6.9)])
    audio_BS = 0.1 * torch.randn(4, int(lengths_B.max()), generator=torch.Generator().manual_seed(0))
    together = system.encode(audio_BS, lengths_B)
    assert together.lengths_B.tolist() == [1500] * 4
    for row, length in enumerate(lengths_B.tolist()):
        own = slice(row, row + 1)
        alone = system.encode(audio_BS[own, :length], lengths_B[own])
        assert all(
            torch.equal(ours, theirs) for ours, theirs in zip(alone, together.select([row]), strict=True)
        )
        (bias_T,), (encoded_TD,) = alone.bias_BT, alone.encoded_BTD
        torch.testing.assert_close(bias_T.exp().sum(), torch.tensor(1500.0))
        features_BTF, _ = system.compute_features(audio_BS[own], lengths_B[own])
        expected_BTD, _ = system.model.encoder.encode_with_silence(features_BTF, 16)
        num_steps, steps = int(bias_T.isfinite().sum()), system.count_window_samples(length) // 320
        assert num_steps == expected_BTD.size(1) == steps + -(-(1500 - steps) // 16)
        assert torch.equal(encoded_TD[:num_steps], expected_BTD[0]) and not encoded_TD[num_steps:].any()


TOKENIZER = WhisperTokenizer(VOCABULARY, 99, True)
A, B = 65, 66


def at(seconds: float) -> int:
    return TOKENIZER.first_time + round(50 * seconds)


@pytest.mark.parametrize(
    ("tokens", "expected", "going_on"),
    [
        # two whole spans, and a third that goes on past the window
        ([at(0), A, at(2), at(2.5), B, at(4), at(4), A], [(0, 2, [A]), (2.5, 4, [B])], 4.0),
        # a last time with nothing behind: the rest is silent
        ([at(0), A, at(2), at(2), B, at(4)], [(0, 2, [A]), (2, 4, [B])], 30.0),
        ([at(1), A, B, at(3)], [(1, 3, [A, B])], 30.0),
        ([at(1), A, B], [(1, 30, [A, B])], 30.0),
        ([A], [(0, 30, [A])], 30.0),
        ([], [(0, 30, [])], 30.0),
    ],
)
def test_spans(tokens: list[int], expected: list[tuple[float, float, list[int]]], going_on: float) -> None:
    spans, seconds = split_spans(TOKENIZER, tokens, 30.0)
    texts = [[token for token in span.tokens if token < TOKENIZER.end] for span in spans]
    assert [(span.start, span.end, own) for span, own in zip(spans, texts, strict=True)] == expected
    timed = [token for span in spans for token in span.tokens]
    assert timed == tokens[: len(timed)], "in order, and without what goes on past the window"
    assert seconds == going_on and tokens[len(timed) :] == ([at(4), A] if going_on < 30 else [])


def test_no_time_lies_past_the_audio() -> None:
    spans, seconds = split_spans(TOKENIZER, [at(0), A, at(29), at(29), B], 12.5)
    assert spans == [TimedSpan(0.0, 12.5, (at(0), A, at(29)))] and seconds == 12.5
