"""Moments in one pass; PCA against the singular values of the data; Smart PCA against PCA."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy
import torch
from test_features import make_speech

from asr.errors import UserError
from asr.features import (
    FeaturesConfig,
    FrontEnd,
    ReductionConfig,
    fit_front_end,
    measure_moments,
)
from asr.research import fit_pca, fit_reduction, fit_smart_pca


def make_correlated(num_frames: int = 2000, num_features: int = 20, seed: int = 0) -> torch.Tensor:
    """Frames with a mean far from 0 and with variances that fall by a third from one direction to the next."""
    random = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(random.standard_normal((num_features, num_features)))
    sources = random.standard_normal((num_frames, num_features)) * 1.5 ** -np.arange(num_features)
    return torch.from_numpy(sources @ rotation + 10 * random.standard_normal(num_features))


def measure(frames_NF: torch.Tensor, batch_size: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    return measure_moments((part[None], torch.tensor([len(part)])) for part in frames_NF.split(batch_size))


def compute_log_mel() -> torch.Tensor:
    front_end = FrontEnd(FeaturesConfig(num_mels=40, cmvn="none"))
    parts = []
    for seed in range(8):
        audio_S = make_speech(3.0, seed)
        parts.append(front_end(audio_S[None], torch.tensor([len(audio_S)]))[0][0])
    return torch.cat(parts).double()


DATA = {"correlated": make_correlated, "log_mel": compute_log_mel}


# --- moments --------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 1e6], ids=["no offset", "mean a million deviations away"])
def test_moments_are_those_of_all_frames(offset: float) -> None:
    frames_NF = make_correlated() + offset
    mean_F, covariance_FF = measure(frames_NF)
    np.testing.assert_allclose(mean_F, frames_NF.mean(0), rtol=1e-12)
    np.testing.assert_allclose(covariance_FF, np.cov(frames_NF.T, bias=True), atol=1e-8)


def test_moments_do_not_count_padding() -> None:
    frames_NF = make_correlated(100)
    padded_BTF = torch.full((3, 60, 20), float("nan"), dtype=torch.float64)
    padded_BTF[0, :60], padded_BTF[1, :40] = frames_NF[:60], frames_NF[60:]
    mean_F, _ = measure_moments([(padded_BTF, torch.tensor([60, 40, 0]))])
    torch.testing.assert_close(mean_F, frames_NF.mean(0))


def test_moments_of_float32_features_are_summed_in_float64() -> None:
    frames_NF = make_correlated().float()
    torch.testing.assert_close(measure(frames_NF, 7)[0], frames_NF.double().mean(0), rtol=1e-13, atol=0)


# --- PCA and Smart PCA ----------------------------------------------------------------------------


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("dim", [1, 5, 20])
def test_pca_is_the_singular_vectors_of_the_data(data: str, dim: int) -> None:
    frames_NF = DATA[data]()
    directions_FK = fit_pca(measure(frames_NF)[1], dim)
    centred = frames_NF - frames_NF.mean(0)
    _, _, vectors = np.linalg.svd(centred, full_matrices=False)
    for k in range(dim):  # one by one, largest first, up to the sign
        assert abs(directions_FK[:, k] @ vectors[k]) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("dim", [2, pytest.param(13, marks=pytest.mark.slow)])
def test_smart_pca_learns_the_subspace_of_pca(data: str, dim: int) -> None:
    _, covariance_FF = measure(DATA[data]())
    exact, learned = fit_pca(covariance_FF, dim), fit_smart_pca(covariance_FF, dim)
    assert scipy.linalg.subspace_angles(exact.numpy(), learned.numpy()).max() < 1e-2


@pytest.mark.parametrize("type", ["pca", "smart_pca"])
def test_directions_are_orthonormal(type: str) -> None:
    directions_FK = fit_reduction(ReductionConfig(type=type, dim=6), measure(make_correlated())[1])
    torch.testing.assert_close(directions_FK.T @ directions_FK, torch.eye(6, dtype=torch.float64))


def test_smart_pca_is_reproducible() -> None:
    _, covariance_FF = measure(make_correlated())
    torch.manual_seed(1)
    first = fit_smart_pca(covariance_FF, 3)
    torch.manual_seed(2)
    assert torch.equal(fit_smart_pca(covariance_FF, 3), first)


@pytest.mark.parametrize("fit", [fit_pca, fit_smart_pca])
def test_all_directions_keep_everything(fit: object) -> None:
    frames_NF = make_correlated()
    mean_F, covariance_FF = measure(frames_NF)
    directions_FK = fit(covariance_FF, 20)  # type: ignore[operator]
    rebuilt_NF = (frames_NF - mean_F) @ directions_FK @ directions_FK.T
    torch.testing.assert_close(rebuilt_NF + mean_F, frames_NF)


@pytest.mark.parametrize("type", ["pca", "smart_pca"])
def test_front_end_reduces_with_what_it_learnt(type: str) -> None:
    config = FeaturesConfig.model_validate_json(
        json.dumps({"cmvn": "none", "reduction": {"type": type, "dim": 8}})
    )
    front_end = FrontEnd(config)
    batch = (make_speech(2.0)[None], torch.tensor([32_000]))
    fit_front_end(front_end, [batch])
    reduced_TF = front_end(*batch)[0][0].double()
    static_TF = front_end.static_features(*batch)[0][0].double()
    kept = reduced_TF.var(0, correction=0).sum() / static_TF.var(0, correction=0).sum()
    variances = torch.linalg.eigvalsh(torch.cov(static_TF.T, correction=0))  # ascending
    assert kept.item() == pytest.approx((variances[-8:].sum() / variances.sum()).item(), rel=1e-4)
    torch.testing.assert_close(reduced_TF.mean(0), torch.zeros(8).double(), atol=1e-4, rtol=0)


# --- wrong input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("type", ["pca", "smart_pca"])
@pytest.mark.parametrize(
    ("frames_NF", "words"),
    [
        (torch.ones(10, 4), "all feature frames are equal"),
        (torch.full((10, 4), float("nan")), "NaN"),
        (torch.zeros(0, 4), "no feature frames"),
    ],
    ids=["constant", "NaN", "none"],
)
def test_what_cannot_be_reduced_is_explained(type: str, frames_NF: torch.Tensor, words: str) -> None:
    with pytest.raises(UserError, match=words):
        fit_reduction(ReductionConfig(type=type, dim=2), measure(frames_NF)[1])
