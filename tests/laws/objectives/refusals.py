"""What the tests of refusals share: short tensors, and a refusal that says what · got · why · fix."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from objective_cases import F64
from torch import Tensor

from rollbook.objectives import ObjectiveError


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


def ids(*values: int) -> Tensor:
    return torch.tensor(values)


def flags(*values: int) -> Tensor:
    return torch.tensor(values) > 0


def refused(call: Callable[[], object], words: str = "") -> ObjectiveError:
    """The refusal that a call ends in; its message holds `words` and all four parts."""
    with pytest.raises(ObjectiveError) as caught:
        call()
    assert words in str(caught.value) and caught.value.got and caught.value.why and caught.value.fix
    return caught.value
