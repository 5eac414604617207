"""Advantages from rewards of a group, a minibatch or a batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rollbook.objectives import ObjectiveError, credit
from rollbook.objectives.credit import GroupCentered, GroupNormalized, LeaveOneOut, Measured, MinibatchStandardized, assign_credit

F64 = torch.float64
FEW = settings(max_examples=50, deadline=None)
rewards = st.floats(-10, 10, allow_nan=False).map(lambda x: round(x, 3))


@st.composite
def grouped(draw: st.DrawFn, smallest: int = 1) -> tuple[Tensor, Tensor]:
    sizes = draw(st.lists(st.integers(smallest, 5), min_size=1, max_size=4))
    group_S = torch.repeat_interleave(torch.tensor(range(len(sizes))) * 7 - 3, torch.tensor(sizes))
    values = draw(st.lists(rewards, min_size=sum(sizes), max_size=sum(sizes)))
    order = torch.tensor(draw(st.permutations(range(sum(sizes)))))
    return torch.tensor(values, dtype=F64), group_S[order]


def each(group_S: Tensor) -> list[Tensor]:
    return [group_S == g for g in group_S.unique()]


@given(batch=grouped())
@FEW
def test_advantages_of_a_group_sum_to_zero(batch: tuple[Tensor, Tensor]) -> None:
    for advantage_S in (credit.group_centered(*batch), credit.group_normalized(*batch, eps=1e-6, ddof=1)):
        for member_S in each(batch[1]):
            assert float(advantage_S[member_S].sum()) == pytest.approx(0, abs=1e-9)


@given(batch=grouped(), shift=rewards)
@FEW
def test_adding_a_constant_to_a_group_changes_nothing(batch: tuple[Tensor, Tensor], shift: float) -> None:
    reward_S, group_S = batch
    moved_S = reward_S + shift * (group_S == group_S[0])
    expected_S = credit.group_centered(reward_S, group_S)
    torch.testing.assert_close(credit.group_centered(moved_S, group_S), expected_S, atol=1e-9, rtol=0)


@given(batch=grouped(), scale=st.floats(0.1, 9), shift=rewards)
@FEW
def test_grpos_advantage_ignores_an_affine_change_of_the_reward(batch: tuple[Tensor, Tensor], scale: float, shift: float) -> None:
    reward_S, group_S = batch
    first = credit.group_normalized(reward_S, group_S, eps=0, ddof=0)
    second = credit.group_normalized(scale * reward_S + shift, group_S, eps=0, ddof=0)
    torch.testing.assert_close(first, second, atol=1e-6, rtol=1e-6)


@given(batch=grouped(smallest=2))
@FEW
def test_leave_one_out_is_the_centered_advantage_times_g_over_g_minus_1(batch: tuple[Tensor, Tensor]) -> None:
    reward_S, group_S = batch
    loo_S = credit.leave_one_out(reward_S, group_S)
    for i in range(reward_S.numel()):
        others_S = (group_S == group_S[i]) & (torch.arange(reward_S.numel()) != i)
        assert float(loo_S[i]) == pytest.approx(float(reward_S[i] - reward_S[others_S].mean()), abs=1e-9)
    size_S = (group_S[:, None] == group_S[None, :]).sum(1)
    torch.testing.assert_close(loo_S, credit.group_centered(reward_S, group_S) * size_S / (size_S - 1), atol=1e-9, rtol=1e-9)


@given(value=rewards, size=st.integers(1, 6), ddof=st.sampled_from([0, 1]), eps=st.sampled_from([0.0, 1e-12, 1e-6]))
@FEW
def test_a_constant_group_gets_exactly_zero(value: float, size: int, ddof: int, eps: float) -> None:
    reward_S, group_S = torch.full((size,), value / 3, dtype=F64), torch.zeros(size, dtype=torch.int64)
    for advantage_S in (
        credit.group_centered(reward_S, group_S),
        credit.group_normalized(reward_S, group_S, eps=eps, ddof=ddof),
        credit.batch_normalized(reward_S, eps=eps, ddof=ddof),
    ):
        assert torch.equal(advantage_S, torch.zeros_like(reward_S))
    assert not bool(credit.has_signal(reward_S, group_S).any())


def test_two_constant_groups_a_group_of_one_and_an_invalid_verdict() -> None:
    """All advantages exactly 0, no NaN, no error; the invalid verdict is left out of mean and std."""
    reward_S = torch.tensor([1.0, 1, 1, 1, 0, 0, 0, 0], dtype=F64)
    group_S = torch.tensor([0] * 4 + [1] * 4)
    assert torch.equal(credit.group_normalized(reward_S, group_S, eps=1e-6, ddof=1), torch.zeros(8, dtype=F64))
    assert int(credit.has_signal(reward_S, group_S).sum()) == 0
    alone_S = credit.group_normalized(torch.tensor([3.0], dtype=F64), torch.tensor([5]), eps=0, ddof=1)
    assert alone_S.tolist() == [0.0]
    mixed_S = torch.tensor([1.0, 0, 1, float("nan")], dtype=F64)
    keep_S = torch.tensor([True, True, True, False])
    advantage_S = credit.group_normalized(mixed_S, torch.zeros(4, dtype=torch.int64), eps=0, ddof=1, keep_S=keep_S)
    without_S = credit.group_normalized(mixed_S[:3], torch.zeros(3, dtype=torch.int64), eps=0, ddof=1)
    assert torch.equal(advantage_S[:3], without_S) and float(advantage_S[3]) == 0


@given(batch=grouped(), seed=st.integers(0, 99))
@FEW
def test_permuting_rollouts_permutes_advantages(batch: tuple[Tensor, Tensor], seed: int) -> None:
    reward_S, group_S = batch
    order = torch.randperm(reward_S.numel(), generator=torch.Generator().manual_seed(seed))
    for rule in (credit.group_centered, lambda r, g: credit.group_normalized(r, g, eps=1e-6, ddof=1)):
        torch.testing.assert_close(rule(reward_S[order], group_S[order]), rule(reward_S, group_S)[order], atol=1e-12, rtol=1e-12)


@given(batch=grouped(smallest=2), ddof=st.sampled_from([0, 1]))
@FEW
def test_standardized_advantages_have_mean_zero_and_std_one_over_what_is_kept(batch: tuple[Tensor, Tensor], ddof: int) -> None:
    keep_S = credit.has_signal(*batch)
    assume(bool(keep_S.any()))
    advantage_S = credit.minibatch_standardized(credit.group_centered(*batch), eps=0, ddof=ddof, keep_S=keep_S)
    kept_S = advantage_S[keep_S]
    assert float(kept_S.mean()) == pytest.approx(0, abs=1e-9)
    assert float(kept_S.std(correction=ddof)) == pytest.approx(1, abs=1e-9)
    assert bool((advantage_S[~keep_S] == 0).all())


def test_groups_without_signal_do_not_shrink_magistrals_std() -> None:
    rule = MinibatchStandardized(eps=0.0, ddof=0)
    seq_T = torch.arange(4)
    lone = Measured(reward_S=torch.tensor([1.0, 0], dtype=F64), group_S=torch.tensor([0, 0]), seq_T=torch.arange(2))
    both = Measured(reward_S=torch.tensor([1.0, 0, 1, 1], dtype=F64), group_S=torch.tensor([0, 0, 1, 1]), seq_T=seq_T)
    assert assign_credit(rule, lone).advantage_T.tolist() == [1.0, -1.0]
    assert assign_credit(rule, both).advantage_T.tolist() == [1.0, -1.0, 0.0, 0.0]


def test_magistral_centres_per_group_and_divides_by_the_minibatchs_std() -> None:
    """Groups [1, 0] and [9, 7]: centred +-0.5 and +-1, whose std over the minibatch is sqrt(0.625)."""
    batch = Measured(reward_S=torch.tensor([1.0, 0, 9, 7], dtype=F64), group_S=torch.tensor([0, 0, 1, 1]), seq_T=torch.arange(4))
    found = assign_credit(MinibatchStandardized(eps=0.0, ddof=0), batch)
    assert found.advantage_T.tolist() == pytest.approx([x / 0.625**0.5 for x in (0.5, -0.5, 1, -1)])


def test_each_minibatch_has_its_own_std() -> None:
    reward_S = torch.tensor([1.0, 0, 9, 0], dtype=F64)
    batch = Measured(
        reward_S=reward_S, group_S=torch.tensor([0, 0, 1, 1]), seq_T=torch.arange(4), minibatch_S=torch.tensor([0, 0, 1, 1])
    )
    assert assign_credit(MinibatchStandardized(eps=0.0, ddof=0), batch).advantage_T.tolist() == [1.0, -1.0, 1.0, -1.0]


@given(values=st.lists(rewards, min_size=2, max_size=12), cut=st.integers(0, 12), ddof=st.sampled_from([0, 1]))
@FEW
def test_moments_merged_over_ranks_equal_the_whole_batch(values: list[float], cut: int, ddof: int) -> None:
    whole = torch.tensor(values, dtype=F64)
    cut = min(cut, whole.numel())
    merged = credit.moments(whole[:cut]).merge(credit.moments(whole[cut:]))
    expected = credit.batch_normalized(whole, eps=1e-3, ddof=ddof)
    found = credit.batch_normalized(whole, eps=1e-3, ddof=ddof, population=merged)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (GroupCentered(), [0.5, 0.5, -0.5]),
        (GroupNormalized(eps=0.0, ddof=0), [1.0, 1.0, -1.0]),
        (LeaveOneOut(), [1.0, 1.0, -1.0]),
    ],
)
def test_every_token_of_a_sequence_gets_its_advantage(rule, expected: list[float]) -> None:
    batch = Measured(reward_S=torch.tensor([1.0, 0.0]), group_S=torch.tensor([7, 7]), seq_T=torch.tensor([0, 0, 1]))
    found = assign_credit(rule, batch)
    assert found.advantage_T.tolist() == expected and found.signal_S.tolist() == [True, True] and found.return_T is None


def test_leave_one_out_takes_the_kl_off_the_reward() -> None:
    batch = Measured(
        reward_S=torch.tensor([1.0, 1.0], dtype=F64),
        group_S=torch.tensor([0, 0]),
        seq_T=torch.tensor([0, 0, 1]),
        kl_T=torch.tensor([0.1, 0.3, -0.2], dtype=F64),
    )
    found = assign_credit(LeaveOneOut(kl_beta=0.5), batch)
    assert found.advantage_T.tolist() == pytest.approx([-0.3, -0.3, 0.3])
    assert found.signal_S.tolist() == [True, True]


@pytest.mark.parametrize(
    "call",
    [
        lambda: credit.leave_one_out(torch.tensor([1.0, 0, 1]), torch.tensor([0, 0, 1])),
        lambda: credit.group_centered(torch.tensor([1, 0]), torch.tensor([0, 0])),
        lambda: credit.group_centered(torch.tensor([1.0, 0]), torch.tensor([0])),
        lambda: credit.group_centered(torch.tensor([1.0, 0]), torch.tensor([0, 0]), keep_S=torch.tensor([1, 0])),
        lambda: GroupNormalized(eps=-1.0, ddof=0),
        lambda: GroupNormalized(eps=1e-6, ddof=2),
        lambda: assign_credit(
            LeaveOneOut(kl_beta=0.1), Measured(reward_S=torch.ones(2), group_S=torch.zeros(2).long(), seq_T=torch.arange(2))
        ),
    ],
)
def test_what_has_no_baseline_is_refused(call) -> None:
    with pytest.raises(ObjectiveError):
        call()
