"""Gradients: what the papers print, on-policy, and against finite differences with stop-gradients frozen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from objective_cases import (
    INSTANCES,
    SQUARED,
    Case,
    advantage_of,
    aggregate_of,
    cases,
    on_policy,
    printed_gradient,
    step_value,
    value_and_gradient,
    weights,
)
from torch import Tensor

from rollbook.objectives import OBJECTIVES

FEW = settings(max_examples=25, deadline=None)


@pytest.mark.parametrize("name", INSTANCES)
@given(case=cases())
@FEW
def test_on_policy_every_gradient_is_minus_weight_times_advantage(name: str, case: Case) -> None:
    objective, case = INSTANCES[name], on_policy(case)
    factor = 2 * objective.tau if name in SQUARED else 1.0
    _, gradient_T = value_and_gradient(objective, case)
    weight_T = weights(case, aggregate_of(objective))[case.tokens.seq_T]
    torch.testing.assert_close(gradient_T, -factor * weight_T * advantage_of(objective, case.tokens), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", INSTANCES)
@given(case=cases())
@FEW
def test_every_gradient_is_the_printed_one(name: str, case: Case) -> None:
    objective = INSTANCES[name]
    _, gradient_T = value_and_gradient(objective, case)
    weight_T = weights(case, aggregate_of(objective))[case.tokens.seq_T]
    expected_T = -weight_T * torch.tensor(printed_gradient(objective, case.tokens), dtype=torch.float64)
    torch.testing.assert_close(gradient_T, expected_T, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", INSTANCES)
@given(case=cases(sequences=3))
@settings(max_examples=8, deadline=None)
def test_gradients_equal_central_finite_differences_with_stop_gradients_frozen(name: str, case: Case) -> None:
    objective, how = INSTANCES[name], aggregate_of(INSTANCES[name])
    _, gradient_T = value_and_gradient(objective, case)
    numeric_T = finite_differences(lambda logp_T: step_value(objective, case, logp_T, how), case.tokens.logp_T)
    torch.testing.assert_close(gradient_T, numeric_T, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", [name for name in INSTANCES if name not in ("Cispo", "KimiK25Ratio", "KimiK25Log")])
@given(case=cases())
@FEW
def test_a_clipped_token_is_one_without_policy_gradient(name: str, case: Case) -> None:
    """CISPO caps without zeroing and K2.5 keeps its penalty; both say so in their docstrings."""
    objective = INSTANCES[name]
    clipped_T = objective(case.tokens).clipped_T
    _, gradient_T = value_and_gradient(objective, case)
    assert bool((gradient_T[clipped_T] == 0).all())
    assert bool((gradient_T[~clipped_T & (advantage_of(objective, case.tokens) != 0)] != 0).all())


def test_every_class_of_the_catalogue_is_under_these_laws() -> None:
    assert {type(objective).__name__ for objective in INSTANCES.values()} >= set(OBJECTIVES)


def finite_differences(function: Callable[[Tensor], Tensor], at_T: Tensor, step: float = 1e-6) -> Tensor:
    """Central differences; whatever the function detaches keeps the value it has at `at_T`."""
    detach, frozen = torch.Tensor.detach, []

    def record(tensor: Tensor) -> Tensor:
        frozen.append(detach(tensor))
        return frozen[-1]

    def evaluate(logp_T: Tensor, hook: Callable[[Tensor], Tensor]) -> float:
        torch.Tensor.detach = hook
        try:
            value = function(logp_T)
        finally:
            torch.Tensor.detach = detach
        return float(value)

    evaluate(at_T, record)
    numbers = []
    for t in range(at_T.numel()):
        sides = []
        for sign in (1, -1):
            replay = iter(frozen)
            moved_T = at_T.clone()
            moved_T[t] += sign * step
            sides.append(evaluate(moved_T, lambda _, replay=replay: next(replay)))
        numbers.append((sides[0] - sides[1]) / (2 * step))
    return torch.tensor(numbers, dtype=at_T.dtype)
