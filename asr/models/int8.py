"""Linear layers in 8 bits: for inference on a CPU that multiplies whole numbers quickly."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from asr.errors import UserError

# M rows, N outputs, K inputs

LARGEST = 127
MIDDLE = 128  # stands for 0 among the inputs, which the processor wants without a sign


class Int8Linear(nn.Module):
    """A linear layer of weights that are rounded to 8 bits by output, and inputs by row.

    Each row has its own scale, and sums of whole numbers are exact: what comes of a row does not depend on
    its company.
    """

    scales_N: Tensor
    bias_N: Tensor | None
    _zeros_N: Tensor

    def __init__(
        self, weight_NK: Tensor, bias_N: Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        """`dtype` is that of the output."""
        super().__init__()
        weight_NK = weight_NK.detach().float()
        scales_N = weight_NK.abs().amax(1).clamp(min=1e-30) / LARGEST
        whole_NK = (weight_NK / scales_N[:, None]).round_().to(torch.int8)
        self.dtype = dtype
        self.out_features, self.in_features = weight_NK.shape
        self._packed = torch.ops.onednn.qlinear_prepack(whole_NK, None)  # no buffer: it cannot be moved
        self.register_buffer("scales_N", scales_N)
        self.register_buffer("bias_N", None if bias_N is None else bias_N.detach().to(dtype))
        self.register_buffer("_zeros_N", torch.zeros(self.out_features, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        x_MK = x.reshape(-1, self.in_features)
        largest_M1 = torch.maximum(x_MK.amax(1, True), -x_MK.amin(1, True)).float()
        scales_M1 = largest_M1.clamp_(min=1e-30).mul_(1 / LARGEST)
        # What is cut off is past the point: halves are rounded up.
        whole_MK = torch.div(x_MK, scales_M1).add_(MIDDLE + 0.5).to(torch.uint8)
        y_MN = torch.ops.onednn.qlinear_pointwise(
            whole_MK, 1.0, MIDDLE, self._packed, self.scales_N, self._zeros_N, None,
            1.0, 0, self.dtype, "none", [], "",
        )  # fmt: skip
        scales_M1 = scales_M1.to(self.dtype)
        if self.bias_N is None:
            y_MN *= scales_M1
        else:
            y_MN = torch.addcmul(self.bias_N, y_MN, scales_M1)
        return y_MN.unflatten(0, x.shape[:-1])


def quantise_layers(model: nn.Module) -> None:
    """Replace, in place, the linear layers in the stacks of encoder and decoder by layers in 8 bits.

    What is before and after a stack stays as it is: subsampling, embeddings, the output.
    """
    found = [
        (parent, name, linear)
        for path, parent in model.named_modules()
        for name, linear in parent.named_children()
        if type(linear) is nn.Linear and "layers" in path.split(".")
    ]
    if not found:
        raise UserError(
            "precision int8: this model has no layers that can be quantised, as Transformers and Conformers "
            "have; take float32"
        )
    for parent, name, linear in found:
        setattr(parent, name, Int8Linear(linear.weight, linear.bias))


@torch.inference_mode()
def is_int8_exact() -> bool:
    """Whether this processor multiplies in 8 bits without errors.

    One without instructions for that adds pairs up in 16 bits, which large ones do not fit in; and not every
    build of PyTorch has such products.
    """
    try:
        products_MN = Int8Linear(torch.ones(64, 512))(torch.ones(2, 512))
    except (AttributeError, RuntimeError):
        return False
    return torch.allclose(products_MN, torch.tensor(512.0), rtol=1e-5)
