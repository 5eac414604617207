"""Differences that rounding alone makes are no signal: they are divided by nothing, and nothing is divided by them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import F64
from torch import Tensor

from rollbook.objectives import credit
from rollbook.objectives.credit import (
    BatchNormalized,
    GroupCentered,
    GroupNormalized,
    LeaveOneOut,
    Measured,
    MinibatchStandardized,
    StepGroups,
    assign_credit,
)

SAME = 0.1 + 0.2  # one unit above 0.3


def vector(*values: float, dtype: torch.dtype = F64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def cut(rewards: list[float], groups: list[int], parts: list[int], *, dtype: torch.dtype = F64) -> Measured:
    return Measured(
        reward_S=vector(*rewards, dtype=dtype),
        group_S=torch.tensor(groups),
        minibatch_S=torch.tensor(parts),
        seq_T=torch.arange(len(rewards)),
    )


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("shift", [0.0, 1.0, 100.0, -1e4])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_a_minibatch_whose_advantages_are_equal_up_to_rounding_gets_exactly_zero(eps: float, shift: float, dtype) -> None:
    """Groups .1 .4 and .7 1. are cut: one minibatch holds the two worse ones, -.15 each up to rounding, one the better ones."""
    batch = cut([0.1 + shift, 0.4 + shift, 0.7 + shift, 1.0 + shift], [0, 0, 1, 1], [0, 1, 0, 1], dtype=dtype)
    found = assign_credit(MinibatchStandardized(eps=eps, ddof=0), batch)
    if (dtype, shift) != (torch.float32, -1e4):  # there .3 of 1e4 is not .3 any more
        assert found.advantage_T.tolist() == [0.0] * 4 and found.signal_S.tolist() == [False] * 4


def test_advantages_that_are_equal_up_to_rounding_get_exactly_zero_without_their_rewards_too() -> None:
    noisy_S = vector(0.15, 0.15 * (1 + 2e-16), 0.15 * (1 - 2e-16))
    assert noisy_S.unique().numel() > 1
    assert credit.minibatch_standardized(noisy_S, eps=0.0, ddof=0, keep_S=None).tolist() == [0.0] * 3
    assert credit.minibatch_standardized(noisy_S, eps=1e-6, ddof=0, keep_S=None).tolist() == [0.0] * 3
    assert credit.minibatch_standardized(vector(0.15), eps=1e-6, ddof=1, keep_S=None).tolist() == [0.0]


def test_a_cut_group_with_a_real_spread_keeps_its_advantages() -> None:
    """Centred -1.5, -.5, .5, 1.5; in each half the std is .5."""
    found = assign_credit(MinibatchStandardized(eps=0.0, ddof=0), cut([0.0, 1.0, 2.0, 3.0], [0] * 4, [0, 0, 1, 1]))
    assert found.advantage_T.tolist() == [-3.0, -1.0, 1.0, 3.0] and found.signal_S.tolist() == [True] * 4


@given(
    rewards=st.lists(st.lists(st.integers(0, 10), min_size=2, max_size=5), min_size=1, max_size=4),
    data=st.data(),
    offset=st.sampled_from([0.0, 0.1, 7.3, 1000.7]),
)
@settings(max_examples=60, deadline=None)
def test_no_cut_of_groups_divides_rounding_noise_by_itself(rewards: list[list[int]], data: st.DataObject, offset: float) -> None:
    """Rewards on a grid of .1: two centred rewards are equal or at least 1/200 apart."""
    values = [offset + r / 10 for group in rewards for r in group]
    groups = [g for g, group in enumerate(rewards) for _ in group]
    parts = data.draw(st.lists(st.integers(0, 2), min_size=len(values), max_size=len(values)))
    found_S = assign_credit(MinibatchStandardized(eps=0.0, ddof=0), cut(values, groups, parts)).advantage_S
    assert float(found_S.abs().max()) < 1e4


@pytest.mark.parametrize(
    "rule",
    [
        GroupCentered(),
        GroupNormalized(eps=0.0, ddof=1),
        LeaveOneOut(),
        MinibatchStandardized(eps=0.0, ddof=0),
        BatchNormalized(kl_beta=None, baseline="none", weighting="token", gamma=1.0, eps=0.0, ddof=0),
        BatchNormalized(kl_beta=None, baseline="none", weighting="sequence", gamma=1.0, eps=0.0, ddof=0),
        BatchNormalized(kl_beta=None, baseline="group_mean", weighting="token", gamma=1.0, eps=0.0, ddof=0),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_rewards_that_differ_by_rounding_only_are_no_signal(rule) -> None:
    found = assign_credit(rule, cut([0.3, SAME, 0.3], [0] * 3, [0] * 3))
    assert found.advantage_T.tolist() == [0.0] * 3 and not bool(found.signal_S.any())
    assert not bool(credit.has_signal(vector(0.3, SAME), torch.tensor([0, 0])).any())


def test_step_returns_that_differ_by_rounding_only_are_no_signal() -> None:
    state = torch.tensor([5, 5])
    assert credit.step_groups(vector(0.3, SAME), state, state, normalizer="std", eps=0.0, ddof=0).tolist() == [0.0, 0.0]
    assert StepGroups(gamma=1.0, omega=1.0, normalizer="std", eps=0.0, ddof=0).eps == 0


def test_a_group_that_differs_by_rounding_only_does_not_shrink_magistrals_std() -> None:
    rule = MinibatchStandardized(eps=0.0, ddof=0)
    alone = assign_credit(rule, cut([1.0, 0.0], [0, 0], [0, 0]))
    both = assign_credit(rule, cut([1.0, 0.0, 0.3, SAME], [0, 0, 1, 1], [0] * 4))
    assert both.advantage_T.tolist() == [*alone.advantage_T.tolist(), 0.0, 0.0]
    assert both.signal_S.tolist() == [True, True, False, False]


def test_a_group_of_huge_equal_rewards_does_not_mute_one_of_small_rewards() -> None:
    """The rounding of 1e12 is 1e-4; only what is kept decides how much noise there can be."""
    found = assign_credit(MinibatchStandardized(eps=0.0, ddof=0), cut([1e12, 1e12, 0.0, 1e-6], [0, 0, 1, 1], [0] * 4))
    assert found.advantage_T.tolist() == pytest.approx([0.0, 0.0, -1.0, 1.0])


def test_small_differences_that_rounding_cannot_make_are_a_signal() -> None:
    for low, high in ((0.3, 0.3 + 1e-12), (0.0, 1e-100), (-1e-9, 1e-9), (1e6, 1e6 + 1e-8)):
        found_S = credit.group_normalized(vector(low, high), torch.tensor([0, 0]), eps=0.0, ddof=0)
        assert found_S.tolist() == pytest.approx([-1.0, 1.0])
        assert bool(credit.has_signal(vector(low, high), torch.tensor([0, 0])).all())


def test_differences_whose_square_is_zero_are_divided_by_nothing() -> None:
    assert credit.group_normalized(vector(0.0, 1e-300), torch.tensor([0, 0]), eps=0.0, ddof=0).tolist() == [0.0, 0.0]
    assert credit.batch_normalized(vector(0.0, 1e-300), eps=0.0, ddof=0).tolist() == [0.0, 0.0]


def test_half_precision_rewards_one_step_apart_are_told_apart() -> None:
    reward_S = torch.tensor([1.0, 0.99609375], dtype=torch.bfloat16)
    assert bool(credit.has_signal(reward_S, torch.tensor([0, 0])).all())


def test_over_whole_groups_subtracting_the_minibatchs_mean_would_change_nothing() -> None:
    rewards, groups = [1.0, 0.0, 0.5, 9.0, 7.0], [0, 0, 0, 1, 1]
    found_S = assign_credit(MinibatchStandardized(eps=0.0, ddof=1), cut(rewards, groups, [0] * 5)).advantage_S
    centered_S = credit.group_centered(vector(*rewards), torch.tensor(groups))
    other_S = (centered_S - centered_S.mean()) / centered_S.std(correction=1)
    torch.testing.assert_close(found_S, other_S, rtol=1e-12, atol=1e-12)


def test_merged_moments_of_one_value_up_to_rounding_are_constant() -> None:
    merged = credit.moments(vector(0.3)).merge(credit.moments(vector(SAME)))
    assert bool(merged.constant) and not bool(merged.merge(credit.moments(vector(0.4))).constant)
    assert bool(credit.moments(vector()).constant)
    found = credit.batch_normalized(vector(SAME), eps=0.0, ddof=0, population=merged)
    assert found.tolist() == [0.0]


CONSTANTS = {
    "group_centered": lambda r: credit.group_centered(r, torch.tensor([0, 0])),
    "group_normalized": lambda r: credit.group_normalized(r, torch.tensor([0, 0]), eps=0.0, ddof=0),
    "leave_one_out": lambda r: credit.leave_one_out(r, torch.tensor([0, 0])),
    "minibatch_standardized": lambda r: credit.minibatch_standardized(r, eps=0.0, ddof=0, keep_S=None),
    "batch_normalized": lambda r: credit.batch_normalized(r, eps=0.0, ddof=0),
    "token_rewards": lambda r: credit.token_rewards(r, r, torch.tensor([0, 1]), beta=0.1),
    "gae": lambda r: credit.gae(r, r, torch.tensor([0, 1]), gamma=0.9, lam=0.9, bootstrap_S=r).advantage_T,
    "returns": lambda r: credit.gae(r, r, torch.tensor([0, 1]), gamma=0.9, lam=0.9).return_T,
    "discounted_sum": lambda r: credit.discounted_sum(r, torch.tensor([0, 0]), gamma=0.9),
    "segment_discount": lambda r: credit.segment_discount(r, *[torch.tensor([0, 1])] * 4, gamma=0.9, lam=0.9),
    "step_groups": lambda r: credit.step_groups(r, torch.tensor([0, 0]), torch.tensor([0, 0]), normalizer="one"),
    "process_rewards": lambda r: credit.process_rewards(
        r, *[torch.tensor([0, 1])] * 3, torch.tensor([0, 0]), eps=0.0, ddof=0
    ),
    "token_leave_one_out_paper": lambda r: credit.token_leave_one_out_paper(r, torch.tensor([0, 1]), torch.tensor([0, 0])),
    "token_leave_one_out_code": lambda r: credit.token_leave_one_out_code(r, torch.tensor([0, 1]), torch.tensor([0, 0])),
    "implicit_process": lambda r: credit.implicit_process_paper(
        r, r, torch.tensor([0, 1]), torch.tensor([0, 0]), beta=0.1, gamma=0.9
    ),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_rewards_are_constants_and_no_advantage_carries_a_gradient(name: str) -> None:
    assert not CONSTANTS[name](vector(1.0, 0.0).requires_grad_()).requires_grad
    assert math.isfinite(float(CONSTANTS[name](vector(1.0, 0.0)).sum()))
