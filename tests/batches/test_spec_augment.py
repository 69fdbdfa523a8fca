"""SpecAugment: against torchaudio, against the expected shares, by hand; padding is never touched."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
import pytest
import torch

from asr.batches.augment import apply_spec_augment, warp_time
from asr.features.front_end import speech_spans
from asr.system.run_config import SpecAugmentConfig

MASKS = SpecAugmentConfig(
    num_frequency_masks=2, frequency_mask_width=10, num_time_masks=2, time_mask_width=20
)


def apply(
    config: SpecAugmentConfig,
    features_BTF: torch.Tensor,
    lengths: list[int],
    ids: list[str],
    epoch: int = 0,
    seed: int = 0,
) -> torch.Tensor:
    return apply_spec_augment(config, seed, features_BTF, torch.tensor(lengths), ids, epoch)[0]


@pytest.mark.parametrize("axis", ["time", "frequency"])
def test_masks_are_distributed_like_those_of_torchaudio(axis: str, torchaudio: ModuleType) -> None:
    """Theirs have widths below the parameter, ours up to it."""
    torch.manual_seed(0)
    num_trials, size, width = 4000, 100, 20
    kind = torchaudio.transforms.TimeMasking if axis == "time" else torchaudio.transforms.FrequencyMasking
    shape = (num_trials, 1, 2, size) if axis == "time" else (num_trials, 1, size, 2)
    theirs = kind(width + 1, iid_masks=True)(torch.ones(shape)) == 0
    theirs = theirs[:, 0, 0] if axis == "time" else theirs[:, 0, :, 0]
    config = SpecAugmentConfig(num_time_masks=1, time_mask_width=width)
    if axis == "frequency":
        config = SpecAugmentConfig(num_frequency_masks=1, frequency_mask_width=width)
    ids = [str(number) for number in range(num_trials)]
    features = torch.randn((num_trials, size, 2) if axis == "time" else (num_trials, 2, size))
    ours = apply(config, features, [features.shape[1]] * num_trials, ids)
    is_masked = ours != features
    ours = is_masked[:, :, 0] if axis == "time" else is_masked[:, 0]
    # How often each position is masked, and how wide masks are. Theirs rounds the start down: near the end it is
    # masked a little less often.
    assert torch.allclose(ours.float().mean(0), theirs.float().mean(0), atol=0.04)
    assert ours.sum(1).float().mean().item() == pytest.approx(theirs.sum(1).float().mean().item(), abs=0.4)
    assert torch.allclose(
        torch.bincount(ours.sum(1), minlength=21) / num_trials,
        torch.bincount(theirs.sum(1), minlength=21) / num_trials,
        atol=0.02,
    )


@pytest.mark.parametrize("time_warp", [0, 10])
def test_the_rest_of_the_batch_does_not_matter(time_warp: int) -> None:
    """Results are bit for bit the same alone, with padding, in another row, or next to others."""
    config = MASKS.model_copy(update={"time_warp": time_warp})
    features = torch.randn(50, 40, generator=torch.Generator().manual_seed(0))
    alone = apply(config, features[None], [50], ["x"], epoch=4)
    batch = torch.randn(5, 120, 40, generator=torch.Generator().manual_seed(1))
    batch[3, :50] = features
    among = apply(config, batch, [120, 90, 100, 50, 31], ["a", "b", "c", "x", "d"], epoch=4)
    assert torch.equal(among[3, :50], alone[0]) and not torch.equal(alone[0], features)


STAGES = {
    "time_warp": SpecAugmentConfig(time_warp=20),
    "time_masks": SpecAugmentConfig(num_time_masks=2, time_mask_width=20),
    "frequency_masks": SpecAugmentConfig(num_frequency_masks=2, frequency_mask_width=10),
}


@pytest.mark.parametrize("stage", STAGES)
def test_changes_with_epoch_seed_and_id(stage: str) -> None:
    features = torch.randn(1, 100, 40, generator=torch.Generator().manual_seed(0)).expand(8, -1, -1)

    def draw(ids: str = "abcdefgh", **others: int) -> torch.Tensor:
        return apply(STAGES[stage], features, [100] * 8, list(ids), **others)

    assert torch.equal(draw(), draw()) and torch.equal(draw("hgfedcba"), draw().flip(0))
    for other in (draw(epoch=1), draw(seed=1), draw(ids="ABCDEFGH")):
        assert not torch.equal(other, draw())


def test_stages_do_not_disturb_each_other() -> None:
    """Masks lie where they lie without the others."""
    features, rows = torch.randn(8, 100, 40), ([100] * 8, list("abcdefgh"))
    alone = [apply(STAGES[name], features, *rows) != features for name in ("time_masks", "frequency_masks")]
    both = apply(MASKS, features, *rows) != features
    assert torch.equal(both, alone[0] | alone[1])
    warped = apply(STAGES["time_warp"], features, *rows)
    all_three = apply(MASKS.model_copy(update={"time_warp": 20}), features, *rows)
    assert torch.equal(all_three != warped, both)


def test_padding_is_never_touched() -> None:
    config = MASKS.model_copy(update={"time_warp": 5, "num_frequency_masks": 20, "num_time_masks": 20})
    lengths = [80, 40, 12, 3, 1, 0]
    features = torch.randn(6, 80, 40)
    masked = apply(config, features, lengths, list("abcdef"))
    for row, length in enumerate(lengths):
        assert torch.equal(masked[row, length:], features[row, length:])
    assert torch.isfinite(masked).all()


def test_masked_cells_get_the_mean_of_the_utterance() -> None:
    features = torch.full((1, 60, 40), 1000.0)  # padding must not count
    features[0, :50] = torch.tensor([6.0, 8.0]).repeat(20)
    masked = apply(MASKS, features, [50], ["x"])
    changed = masked[masked != features]
    assert len(changed) and torch.all(changed == 7.0)


def test_time_masks_are_limited_by_width_and_share() -> None:
    for width, length, limit in [(30, 100, 20), (30, 400, 30), (None, 400, 80)]:
        config = SpecAugmentConfig(num_time_masks=1, time_mask_width=width)
        features = torch.randn(500, length, 2)
        masked = apply(config, features, [length] * 500, [str(n) for n in range(500)]) != features
        assert masked[:, :, 0].sum(1).max() == limit


def test_warp_by_hand() -> None:
    """A ramp shows where each frame came from. Frame 4 of 0 .. 9 moves by 2; the last two are padding."""
    features = torch.arange(12.0)[None, :, None].repeat(2, 1, 1)
    warped = warp_time(features, torch.tensor([10, 12]), np.array([[4, 2], [0, 0]]))
    left = [t * 4 / 6 for t in range(6)]
    right = [4 + (t - 6) * 5 / 3 for t in range(6, 10)]
    assert warped[0, :, 0].tolist() == pytest.approx([*left, *right, 10, 11])
    assert torch.equal(warped[1], features[1])


@pytest.mark.parametrize("length", [13, 40, 41, 200])
def test_warp_keeps_the_order_and_the_ends(length: int) -> None:
    config = SpecAugmentConfig(time_warp=5)
    features = torch.arange(float(length + 3))[None, :, None].repeat(20, 1, 1)
    warped = apply(config, features, [length] * 20, [str(n) for n in range(20)])
    assert 4 < (warped - features)[:, :length].abs().max() <= 5
    assert (warped[:, :length].diff(dim=1) > 0).all()
    assert (warped[:, 0] == 0).all() and torch.allclose(warped[:, length - 1], torch.tensor(length - 1.0))


def log_mel(
    num_frames: int, first: int, past: int, padding: float = 0.0, num_padded: int = 100
) -> torch.Tensor:
    """Loud (about -2) from `first` to `past`, quiet (about -12) elsewhere."""
    features_TF = -12 + torch.rand(num_padded, 8)
    features_TF[first:past] += 10
    features_TF[num_frames:] = padding
    return features_TF


@pytest.mark.parametrize("padding", [-20.0, 0.0, 50.0, math.nan])
def test_speech_spans_find_the_loud_frames(padding: float) -> None:
    torch.manual_seed(0)
    cases = [(100, 20, 70), (60, 0, 60), (60, 10, 60), (60, 30, 36), (1, 0, 1)]
    features_BTF = torch.stack([log_mel(frames, first, past, padding) for frames, first, past in cases])
    spans_B2 = speech_spans(features_BTF, torch.tensor([frames for frames, _, _ in cases]))
    assert spans_B2.tolist() == [[first, past] for _, first, past in cases]


def test_masks_do_not_move_the_spans_of_speech_and_a_warp_does() -> None:
    """Masks become the mean of the utterance, which is loud compared with silence."""
    torch.manual_seed(0)
    features_BTF = log_mel(100, 40, 60)[None].repeat(8, 1, 1)
    masks = SpecAugmentConfig(num_time_masks=4, time_mask_width=20)
    rows = (features_BTF, torch.full((8,), 100), list("abcdefgh"), 0)
    masked_BTF, spans_B2 = apply_spec_augment(masks, 0, *rows)
    assert spans_B2.tolist() == [[40, 60]] * 8
    assert speech_spans(masked_BTF, rows[1]).tolist() != spans_B2.tolist()
    _, spans_B2 = apply_spec_augment(masks.model_copy(update={"time_warp": 30}), 0, *rows)
    unmasked_BTF, _ = apply_spec_augment(SpecAugmentConfig(time_warp=30), 0, *rows)
    assert spans_B2.tolist() == speech_spans(unmasked_BTF, rows[1]).tolist() != [[40, 60]] * 8
