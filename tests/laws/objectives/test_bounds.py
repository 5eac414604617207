"""What a bound is to the last bit, in both precisions, where it is a sum of powers of two and where it is not."""

from __future__ import annotations

import math

import pytest
import torch
from objective_cases import F64
from torch import Tensor

import rollbook.objectives as ro
from rollbook.objectives import ActionTokens, ObjectiveError
from rollbook.objectives.correction import icepop, pop
from rollbook.objectives.ratios import clipped_surrogate, inside_closed, inside_open

BOTH = [torch.float32, F64]
LOWS, HIGHS = [0.5, 0.25, 0.75, 0.3, 0.2, 0.8, 0.1, 3e-4, 0.0, 1.0], [0.5, 5.0, 3.0, 0.28, 0.2, 4e-4, 0.0]


def around(bound: float, dtype: torch.dtype) -> Tensor:
    """The bound in this precision, between its neighbours."""
    middle = torch.tensor(bound, dtype=dtype)
    down, up = (torch.nextafter(middle, torch.tensor(side, dtype=dtype)) for side in (-math.inf, math.inf))
    return torch.stack([down, middle, up])


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("low", LOWS)
def test_the_lower_bound_is_one_minus_low_rounded_to_the_ratios_precision(low: float, dtype) -> None:
    ratio_T = around(1 - low, dtype)
    assert inside_open(ratio_T, low=low, high=9.0).tolist() == [False, False, True]
    assert inside_closed(ratio_T, low=low, high=9.0).tolist() == [False, True, True]
    clipped_T = clipped_surrogate(ratio_T, -torch.ones_like(ratio_T), low=low, high=9.0).clipped_T
    assert clipped_T.tolist() == [True, False, False]


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("high", HIGHS)
def test_the_upper_bound_is_one_plus_high_rounded_to_the_ratios_precision(high: float, dtype) -> None:
    ratio_T = around(1 + high, dtype)
    assert inside_open(ratio_T, low=1.0, high=high).tolist() == [True, False, False]
    assert inside_closed(ratio_T, low=1.0, high=high).tolist() == [True, True, False]
    clipped_T = clipped_surrogate(ratio_T, torch.ones_like(ratio_T), low=1.0, high=high).clipped_T
    assert clipped_T.tolist() == [False, False, True]


@pytest.mark.parametrize(("low", "printed"), [(0.3, 0.7), (0.25, 0.75), (0.5, 0.5)])
def test_most_printed_lower_bounds_are_the_decimal_itself(low: float, printed: float) -> None:
    for dtype in BOTH:
        assert inside_open(torch.tensor([printed], dtype=dtype), low=low, high=5.0).tolist() == [False]


def test_saos_printed_bound_of_a_fifth_lies_one_unit_below_in_double_precision_and_on_it_in_single() -> None:
    """1 - 0.8 is 0.19999999999999996."""
    assert 1 - 0.8 < 0.2
    assert inside_open(torch.tensor([0.2], dtype=F64), low=0.8, high=3.0).tolist() == [True]
    assert inside_open(torch.tensor([1 - 0.8], dtype=F64), low=0.8, high=3.0).tolist() == [False]
    assert inside_open(torch.tensor([0.2], dtype=torch.float32), low=0.8, high=3.0).tolist() == [False]


def log_of(ratio: float, dtype: torch.dtype) -> Tensor | None:
    """A log-ratio whose exponential is exactly `ratio` in this precision, if there is one."""
    target, x = torch.tensor(ratio, dtype=dtype), torch.tensor(math.log(ratio), dtype=dtype)
    candidates = [x]
    for side in (-math.inf, math.inf):
        at = x
        for _ in range(8):
            at = torch.nextafter(at, torch.tensor(side, dtype=dtype))
            candidates.append(at)
    return next((at for at in candidates if bool(at.exp() == target)), None)


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("beta", [1.0, 1.5, 2.0, 2.2, 3.0, 5.0])
def test_glm5s_gate_keeps_a_ratio_of_exactly_beta_and_of_one_over_beta_and_none_beyond(beta: float, dtype) -> None:
    zero_T, found = torch.zeros(1, dtype=dtype), 0
    for bound, outward in ((beta, math.inf), (1 / beta, 0.0)):
        edge = torch.tensor(bound, dtype=dtype)
        for ratio, kept in ((edge, True), (torch.nextafter(edge, torch.tensor(outward, dtype=dtype)), False)):
            log = log_of(float(ratio), dtype)
            if log is not None:
                found += 1
                assert pop(log[None], zero_T, beta=beta).tolist() == ([float(ratio)] if kept else [0.0])
    assert found >= 2


def test_both_glm5_objectives_keep_a_token_exactly_at_one_over_beta() -> None:
    """At beta = 2.2 the interval 1-low .. 1+high would drop it: 1 - (1 - 1/2.2) is one unit above 1/2.2."""
    log = log_of(1 / 2.2, F64)
    assert log is not None
    zero_T = torch.zeros(1, dtype=F64)
    assert icepop(log[None], zero_T, low=1 - 1 / 2.2, high=1.2).tolist() == [0.0]
    tokens = ActionTokens(
        logp_T=log[None],
        anchor_T=log[None],
        behavior_T=zero_T,
        teacher_T=log[None] + 1,
        advantage_T=zero_T + 1,
        seq_T=torch.tensor([0]),
        length_S=torch.tensor([1]),
    )
    for objective in (ro.Glm5Reasoning(beta=2.2), ro.Glm5CrossStage(beta=2.2)):
        loss = objective(tokens)
        assert loss.clipped_T.tolist() == [False] and loss.loss_T.tolist() == pytest.approx([-1 / 2.2])


@pytest.mark.parametrize("call", [inside_open, inside_closed])
@pytest.mark.parametrize("bad", [-0.1, math.nan, "0.2", True, None])
def test_a_bound_that_is_no_distance_is_refused_where_it_is_used(call, bad: object) -> None:
    for bounds in ({"low": bad, "high": 0.2}, {"low": 0.2, "high": bad}):
        with pytest.raises(ObjectiveError):
            call(torch.ones(1), **bounds)
        with pytest.raises(ObjectiveError):
            clipped_surrogate(torch.ones(1), torch.ones(1), **bounds)
