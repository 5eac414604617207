"""Credit from more than one reward per sequence: GiGPO, PRIME, process supervision."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import F64
from torch import Tensor

from rollbook.objectives import ObjectiveError, credit
from rollbook.objectives.credit import ImplicitProcess, ImplicitProcessCode, Measured, StepGroups, assign_credit

FEW = settings(max_examples=30, deadline=None)


def gigpo_batch(states: list[int], seed: int = 0) -> Measured:
    """Two trajectories of three steps, one token per step, one task."""
    reward_K = torch.randn(6, generator=torch.Generator().manual_seed(seed), dtype=F64)
    seq_K = torch.tensor([0, 0, 0, 1, 1, 1])
    return Measured(
        reward_S=torch.tensor([1.0, 0.0], dtype=F64),
        group_S=torch.tensor([5, 5]),
        seq_T=seq_K,
        step_reward_K=reward_K,
        step_state_K=torch.tensor(states),
        step_seq_K=seq_K,
        step_T=torch.arange(6),
    )


def test_unique_states_leave_gigpos_episode_advantage_alone() -> None:
    found = assign_credit(StepGroups(gamma=0.95, omega=1.0, normalizer="one"), gigpo_batch([1, 2, 3, 4, 5, 6]))
    assert found.advantage_T.tolist() == [0.5] * 3 + [-0.5] * 3


def test_omega_zero_makes_gigpo_grpo() -> None:
    found = assign_credit(StepGroups(gamma=0.95, omega=0.0, normalizer="std", eps=0.0, ddof=0), gigpo_batch([1, 1, 1, 1, 1, 1]))
    assert found.advantage_T.tolist() == [1.0] * 3 + [-1.0] * 3


def test_two_visits_of_a_state_with_returns_a_and_b_get_plus_and_minus_half_their_difference() -> None:
    step_K = credit.step_groups(torch.tensor([3.0, 1.0], dtype=F64), torch.tensor([9, 9]), torch.tensor([0, 0]), normalizer="one")
    assert step_K.tolist() == [1.0, -1.0]


def test_the_same_state_of_another_task_is_another_anchor() -> None:
    step_K = credit.step_groups(torch.tensor([3.0, 1.0], dtype=F64), torch.tensor([9, 9]), torch.tensor([0, 1]), normalizer="one")
    assert step_K.tolist() == [0.0, 0.0]


def test_repeated_visits_inside_one_trajectory_are_separate_members() -> None:
    step_K = credit.step_groups(
        torch.tensor([3.0, 0.0, 0.0], dtype=F64),
        torch.tensor([9, 9, 9]),
        torch.tensor([0, 0, 0]),
        normalizer="std",
        eps=0.0,
        ddof=1,
    )
    assert step_K.tolist() == pytest.approx([2 / 3**0.5, -1 / 3**0.5, -1 / 3**0.5])


def test_step_returns_discount_within_their_trajectory() -> None:
    returns_K = credit.step_returns(torch.ones(4, dtype=F64), torch.tensor([0, 0, 1, 1]), gamma=0.5)
    assert returns_K.tolist() == [1.5, 1.0, 1.5, 1.0]


@given(seed=st.integers(0, 999), gamma=st.floats(0, 1))
@FEW
def test_primes_advantage_with_an_unmoved_prm_is_the_outcomes_leave_one_out(seed: int, gamma: float) -> None:
    outcome_S = torch.randn(3, generator=torch.Generator().manual_seed(seed), dtype=F64)
    seq_T, group_S = torch.tensor([0, 0, 1, 2, 2]), torch.zeros(3, dtype=torch.int64)
    advantage_T = credit.implicit_process_paper(torch.zeros(5, dtype=F64), outcome_S, seq_T, group_S, beta=0.05, gamma=gamma)
    torch.testing.assert_close(advantage_T, credit.leave_one_out(outcome_S, group_S)[seq_T])


@given(seed=st.integers(0, 999))
@FEW
def test_primes_paper_and_code_baselines_agree_per_sequence_and_differ_per_token(seed: int) -> None:
    process_T = torch.randn(7, generator=torch.Generator().manual_seed(seed), dtype=F64)
    seq_T, group_S = torch.tensor([0, 0, 1, 2, 2, 2, 3]), torch.tensor([0, 0, 0, 0])
    paper_T = credit.token_leave_one_out_paper(process_T, seq_T, group_S)
    code_T = credit.token_leave_one_out_code(process_T, seq_T, group_S)
    for s in range(4):
        assert float(paper_T[seq_T == s].mean()) == pytest.approx(float(code_T[seq_T == s].mean()), abs=1e-9)
    assert not torch.allclose(paper_T, code_T)


def test_primes_paper_equation_on_a_case_worked_by_hand() -> None:
    """Two sequences; r = [.1, .2], [.3]; outcomes 1, 0; gamma .5: row 0 baseline .3, row 1 baseline .15."""
    seq_T, group_S = torch.tensor([0, 0, 1]), torch.tensor([0, 0])
    batch = Measured(
        reward_S=torch.tensor([1.0, 0.0], dtype=F64),
        group_S=group_S,
        seq_T=seq_T,
        log_ratio_T=torch.tensor([2.0, 4.0, 6.0], dtype=F64),
    )
    found = assign_credit(ImplicitProcess(beta=0.05, gamma=0.5), batch)
    assert found.advantage_T.tolist() == pytest.approx([-0.2 + 0.5 * -0.1 + 1, -0.1 + 1, 0.15 - 1])


def test_primes_code_whitens_ignores_the_last_tokens_process_reward_and_the_scale_of_rewards() -> None:
    rule = ImplicitProcessCode(beta=0.05, process_coefficient=5.0, outcome_coefficient=5.0, eps=0.0)
    log_ratio_T = torch.tensor([2.0, 4.0, 1.0, -1.0, 3.0], dtype=F64)

    def advantage(process_T: Tensor) -> Tensor:
        batch = Measured(
            reward_S=torch.tensor([1.0, 0.0], dtype=F64),
            group_S=torch.tensor([0, 0]),
            seq_T=torch.tensor([0, 0, 0, 1, 1]),
            log_ratio_T=process_T,
        )
        return assign_credit(rule, batch).advantage_T

    found_T = advantage(log_ratio_T)
    assert float(found_T.mean()) == pytest.approx(0, abs=1e-9) and float(found_T.std(correction=1)) == pytest.approx(1)
    last_T = torch.tensor([0.0, 0, 9, 0, 9], dtype=F64)
    assert torch.equal(advantage(log_ratio_T + last_T), found_T)
    torch.testing.assert_close(advantage(3 * log_ratio_T), found_T)


def test_process_supervision_normalises_all_steps_of_a_group_and_sums_those_still_to_come() -> None:
    """Two sequences of 3 and 2 tokens with steps ending at 1, 2 and at 4: rewards 0, 1, 2, normalised to -1.22, 0, 1.22."""
    advantage_T = credit.process_rewards(
        torch.tensor([0.0, 1.0, 2.0], dtype=F64),
        torch.tensor([0, 0, 1]),
        torch.tensor([1, 2, 4]),
        torch.tensor([0, 0, 0, 1, 1]),
        torch.tensor([3, 3]),
        eps=0.0,
        ddof=0,
    )
    z = 1.5**0.5
    assert advantage_T.tolist() == pytest.approx([-z, -z, 0, z, z])


@pytest.mark.parametrize(
    "call",
    [
        lambda: credit.token_leave_one_out_paper(torch.ones(2), torch.tensor([0, 0]), torch.tensor([0])),
        lambda: credit.token_leave_one_out_code(torch.ones(2), torch.tensor([0, 1]), torch.tensor([0, 1])),
        lambda: credit.step_groups(torch.ones(1), torch.tensor([0]), torch.tensor([0]), normalizer="std"),
        lambda: StepGroups(gamma=0.95, omega=1.0, normalizer="std"),
        lambda: credit.process_rewards(
            torch.ones(1), torch.tensor([1]), torch.tensor([0]), torch.tensor([0, 1]), torch.tensor([0, 0]), eps=0.0, ddof=0
        ),
    ],
)
def test_step_credit_without_a_meaning_is_refused(call) -> None:
    with pytest.raises(ObjectiveError):
        call()
