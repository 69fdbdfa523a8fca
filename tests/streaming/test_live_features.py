"""Features of pieces equal the features of the whole bit for bit, also where they are normalized."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hostile_audio import make_speechlike
from hypothesis import given, settings, strategies as st

from asr.errors import UserError
from asr.features.front_end import FeaturesConfig, FrontEnd, normalize_running, start_statistics
from asr.streaming.live_features import LiveFeatures

AUDIO_S = torch.from_numpy(np.asarray(make_speechlike(2.0), dtype=np.float32))


@settings(max_examples=40, deadline=None)
@given(
    cuts=st.lists(st.integers(0, len(AUDIO_S)), max_size=12),
    options=st.sampled_from(
        [
            {"cmvn": "none"},
            {"cmvn": "running"},
            {"type": "mfcc", "cmvn": "none", "num_mels": 23},
            {"convention": "icefall", "cmvn": "none"},
        ]
    ),
)
def test_pieces_of_any_length(cuts: list[int], options: dict[str, Any]) -> None:
    front_end = FrontEnd(FeaturesConfig(**options))
    whole_BTF, _ = front_end(AUDIO_S[None], torch.tensor([len(AUDIO_S)]))
    live, places = LiveFeatures(front_end), [0, *sorted(cuts), len(AUDIO_S)]
    pieces = [live.push(AUDIO_S[a:b]) for a, b in itertools.pairwise(places)]
    expected_TF = whole_BTF[0]
    if front_end.config.convention == "icefall":  # its last frame reaches past the end
        expected_TF = expected_TF[:-1]
    assert torch.equal(torch.cat(pieces), expected_TF)


def test_running_normalization_is_that_of_all_frames_so_far() -> None:
    """From typical energies, whose weight falls, to the mean and deviation of the recording."""
    features_BTF = torch.randn(1, 3_000, 4) * 2 + 15
    normalized_BTF, _ = normalize_running(features_BTF, start_statistics(features_BTF))
    assert 0.5 < normalized_BTF[0, :3].mean() < 2
    last_BTF = normalized_BTF[0, -1_000:]
    assert last_BTF.mean().abs() < 0.2 and 0.8 < last_BTF.std() < 1.1
    silence_BTF = torch.full((1, 100, 4), -16.0)
    assert normalize_running(silence_BTF, start_statistics(silence_BTF))[0].isfinite().all()


@pytest.mark.parametrize("options", [{"convention": "whisper"}, {"type": "mfcc", "num_mels": 23}])
def test_running_normalization_is_of_log_mel(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="set cmvn: none"):
        FeaturesConfig(**{"cmvn": "running"} | options)
