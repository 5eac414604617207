"""A weight laid out for the processor is the same weight: its bits come back, its products are the plain ones."""

import pytest
import torch
import torch.nn.functional as F

from rollbook.models import matrix
from rollbook.models.matrix import Matrix

SHAPES = [(1, 1), (96, 64), (97, 33), (300, 128)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_bits_of_a_weight_come_back(shape, dtype):
    weight = torch.randn(shape)
    assert torch.equal(Matrix(weight, dtype).dense(), weight.to(dtype))


@pytest.mark.parametrize("rows", [1, 7, 128, 300])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_its_product_is_the_plain_one_up_to_the_rounding_of_the_result(shape, rows, with_bias):
    weight, x = torch.randn(shape), torch.randn(rows, shape[1]).bfloat16()
    bias = torch.randn(shape[0]).bfloat16() if with_bias else None
    found = Matrix(weight, torch.bfloat16)(x, bias).double()
    exact = F.linear(x.double(), weight.bfloat16().double(), None if bias is None else bias.double())
    assert (found - exact).abs().max() <= 2 ** -7 * exact.abs().max().clamp(min=1.0)


def test_it_is_a_copy_that_does_not_move_with_the_weight_it_was_made_from():
    weight = torch.randn(96, 64)
    before = weight.bfloat16()
    held = Matrix(weight, torch.bfloat16)
    weight.add_(1.0)
    assert torch.equal(held.dense(), before)


def test_without_such_a_layout_the_plain_product_is_taken(monkeypatch):
    monkeypatch.setattr(matrix, "_prepare", None)
    weight, x = torch.randn(96, 64), torch.randn(5, 64).bfloat16()
    held = Matrix(weight, torch.bfloat16)
    assert torch.equal(held.dense(), weight.bfloat16()) and torch.equal(held(x), F.linear(x, weight.bfloat16()))
