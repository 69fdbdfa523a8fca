"""The directions of features worth keeping: exact PCA, and Smart PCA, a trained autoencoder.

Shapes: B utterances, T frames, F features, K kept directions.
"""

from __future__ import annotations

import logging

import torch

from asr.errors import UserError
from asr.features.front_end import ReductionConfig

logger = logging.getLogger(__name__)

# Smart PCA. Its error is 1 when nothing is kept; on log-mel of speech, this gradient leaves an angle of
# about 1e-5 to the exact subspace, reached in some 10 to 40 rounds.
GRADIENT_TOLERANCE = 1e-8
STEPS_PER_ROUND = 100
MAX_ROUNDS = 60
MIN_VARIANCE = 1e-9  # as a share of the whole; below it a direction is noise of the arithmetic


def fit_reduction(config: ReductionConfig, covariance_FF: torch.Tensor) -> torch.Tensor:
    """Compute the orthonormal directions (F, K) of the config from the covariance of the features."""
    assert config.dim is not None, "there is nothing to fit"
    if not bool(torch.isfinite(covariance_FF).all()):
        raise UserError("the features to reduce hold NaN or infinity; check the audio for such samples")
    if covariance_FF.trace() <= 0:
        raise UserError(
            "all feature frames are equal, so there is no direction of variance; is all audio silent?"
        )
    fit = fit_pca if config.type == "pca" else fit_smart_pca
    return fit(covariance_FF, config.dim)


def fit_pca(covariance_FF: torch.Tensor, dim: int) -> torch.Tensor:
    """Exact PCA: the eigenvectors of the covariance with the `dim` largest eigenvalues, largest first."""
    _, vectors_FF = torch.linalg.eigh(covariance_FF)  # ascending
    return vectors_FF[:, -dim:].flip(1)


def fit_smart_pca(covariance_FF: torch.Tensor, dim: int) -> torch.Tensor:
    """Train a linear autoencoder, x -> x W W^T, to the least mean squared error by L-BFGS.

    The error over all frames depends on the data only through the covariance C,

        E |x - x W W^T|^2 = tr C - 2 tr(W^T C W) + tr(W^T C W W^T W),

    so a step costs a few products of F x F matrices, however many hours the data have. There are no bad
    local minima: at each minimum the columns of W are orthonormal and span the subspace of PCA. They are
    some basis of it, not the principal axes in order.
    """
    scaled_FF = covariance_FF / covariance_FF.trace()
    generator = torch.Generator().manual_seed(0)
    weights_FK = torch.randn(len(scaled_FF), dim, generator=generator, dtype=torch.float64)
    for _ in range(MAX_ROUNDS):
        weights_FK, steepness = _train_autoencoder(scaled_FF, weights_FK)
        if steepness <= GRADIENT_TOLERANCE:
            break
    else:
        logger.warning(
            "Smart PCA to %d dimensions: gradient still %.1e (aim %.1e), so the subspace is not exact; "
            "type pca has no such limit",
            dim,
            steepness,
            GRADIENT_TOLERANCE,
        )
    return torch.linalg.qr(weights_FK)[0]


@torch.enable_grad()
def _train_autoencoder(covariance_FF: torch.Tensor, weights_FK: torch.Tensor) -> tuple[torch.Tensor, float]:
    """One round of training: better weights, and the largest entry of the gradient there."""
    # Rotating the kept directions changes no error. Laid along their own principal axes, each can be
    # measured in its own deviation; otherwise the first, with a thousand times the variance of the
    # last, would dictate the step length of all.
    basis_FK = torch.linalg.qr(weights_FK)[0]
    variances_K, rotation_KK = torch.linalg.eigh(basis_FK.T @ covariance_FF @ basis_FK)
    scale_K = variances_K.clamp(min=MIN_VARIANCE).rsqrt()
    unscaled_FK = (basis_FK @ rotation_KK / scale_K).contiguous().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [unscaled_FK],
        max_iter=STEPS_PER_ROUND,
        tolerance_grad=GRADIENT_TOLERANCE,
        tolerance_change=0.0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def compute_error() -> torch.Tensor:
        weights_FK = unscaled_FK * scale_K
        kept_KK = weights_FK.T @ covariance_FF @ weights_FK
        error = 1 - 2 * kept_KK.trace() + (kept_KK * (weights_FK.T @ weights_FK)).sum()  # as trace C is 1
        (unscaled_FK.grad,) = torch.autograd.grad(error, unscaled_FK)
        return error

    optimizer.step(compute_error)
    assert unscaled_FK.grad is not None
    return (unscaled_FK * scale_K).detach(), unscaled_FK.grad.abs().max().item()
