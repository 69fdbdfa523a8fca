"""What the tests of encoders and their layers share: each utterance of a padded batch is encoded as if alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from asr.models.encoders import Encoder

# B batch, T frames or steps, F features, D dimension

LENGTHS = [37, 21, 30, 4, 1]  # not sorted


def assert_each_as_if_alone(encoder: Encoder, factor: int, encode_alone: Callable[[Tensor], Tensor]) -> None:
    """`encode_alone` makes the encoded steps of the features of one utterance, in a plain way; in float64."""
    features_BTF = torch.full((len(LENGTHS), max(LENGTHS), 20), 100.0, dtype=torch.float64)
    for row, length in enumerate(LENGTHS):
        features_BTF[row, :length] = torch.randn(length, 20, dtype=torch.float64)
    encoded_BTD, lengths_B = encoder(features_BTF, torch.tensor(LENGTHS))
    assert encoder.subsampling_factor == factor
    assert lengths_B.tolist() == [-(-length // factor) for length in LENGTHS]
    assert encoded_BTD.shape == (len(LENGTHS), int(lengths_B.max()), encoder.output_dim)
    for row, length in enumerate(LENGTHS):
        expected_TD = encode_alone(features_BTF[row, :length])
        torch.testing.assert_close(encoded_BTD[row, : lengths_B[row]], expected_TD, rtol=0, atol=1e-11)


def randomize_norms(module: nn.Module) -> None:
    """Fresh norms are all alike; mixing them up would not show."""
    for part in module.modules():
        if isinstance(part, nn.LayerNorm):
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
