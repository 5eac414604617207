"""A weight matrix as the engine multiplies by it: laid out once for the processor's product, where there is such a layout."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 128         # rows of the product that the layout is chosen for; any other number is computed as exactly
_prepare = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
_product = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


class Matrix:
    """A private copy of a weight [out, in] in the compute dtype.

    In bf16 on a CPU with oneDNN it is kept in the order in which oneDNN reads it; laying it out anew for every product costs a
    tenth to a fifth of the product. `dense` gives the same bits back.
    """

    def __init__(self, weight: Tensor, dtype: torch.dtype):
        own = weight.detach().to(dtype, copy=True)
        self._laid_out = dtype == torch.bfloat16 and own.device.type == "cpu" and _can_lay_out()
        self._held = _prepare(own, ROWS) if self._laid_out else own

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x W^T (+ bias)."""
        if self._laid_out:
            return _product(x, self._held, bias, "none", [], "")
        return F.linear(x, self._held, bias)

    def dense(self) -> Tensor:
        """The matrix [out, in] as plain memory."""
        return self._held.to_dense() if self._laid_out else self._held


def _can_lay_out() -> bool:
    return _prepare is not None and _product is not None and torch.backends.mkldnn.is_available() \
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
