"""A sequence outside `keep_S` gets advantage 0 and moves no statistic, whatever its rewards and tokens hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from objective_cases import F64
from torch import Tensor

import rollbook.objectives as ro
from rollbook.objectives import ObjectiveError, credit
from rollbook.objectives.credit import (
    BatchNormalized,
    Gae,
    ImplicitProcess,
    ImplicitProcessCode,
    LeaveOneOut,
    LengthAdaptiveGae,
    Measured,
    MinibatchStandardized,
    StepGroups,
    assign_credit,
)

NAN = float("nan")
RULES = [
    ImplicitProcess(beta=0.05, gamma=0.5),
    ImplicitProcessCode(beta=0.05, process_coefficient=5.0, outcome_coefficient=5.0, eps=0.0),
    Gae(gamma=0.9, lam_policy=0.8, lam_critic=1.0),
    LengthAdaptiveGae(gamma=0.9, alpha=1.5, floor=None, counts="action_tokens", lam_critic=1.0),
    StepGroups(gamma=0.9, omega=1.0, normalizer="one"),
    StepGroups(gamma=0.9, omega=1.0, normalizer="std", eps=0.0, ddof=0),
    BatchNormalized(kl_beta=None, baseline="none", weighting="sequence", gamma=1.0, eps=0.0, ddof=1),
    BatchNormalized(kl_beta=0.1, baseline="none", weighting="sequence", gamma=0.9, eps=0.0, ddof=1),
    BatchNormalized(kl_beta=0.1, baseline="group_mean", weighting="token", gamma=0.9, eps=0.0, ddof=0),
    LeaveOneOut(kl_beta=0.1),
    Gae(gamma=0.9, lam_policy=0.8, lam_critic=1.0, kl_beta=0.1),
    LengthAdaptiveGae(gamma=0.9, alpha=1.5, floor=0.0, counts="action_tokens", lam_critic=1.0, kl_beta=0.1),
    MinibatchStandardized(eps=0.0, ddof=0),
]


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


def measured(*, dropped: bool, held: float = NAN) -> Measured:
    """Sequences of 2, 2 and 1 tokens of one task, one step each token, all visiting one state; the dropped one is a fourth."""
    extra = [held, held] if dropped else []
    return Measured(
        reward_S=vector(1.0, 0.0, 0.5, *extra[:1]),
        group_S=torch.tensor([4, 4, 4, 4][: 3 + dropped]),
        seq_T=torch.tensor([0, 0, 1, 1, 2, 3, 3][: 5 + 2 * dropped]),
        keep_S=torch.tensor([True, True, True, False]) if dropped else None,
        kl_T=vector(0.1, -0.2, 0.3, 0.0, 0.2, *extra),
        value_T=vector(0.1, 0.2, 0.3, 0.4, 0.5, *extra),
        bootstrap_S=vector(0.3, 0.0, -0.2, *extra[:1]),
        length_S=torch.tensor([2, 2, 1, 2][: 3 + dropped]),
        log_ratio_T=vector(1.0, -2.0, 0.5, 3.0, -1.0, *extra),
        step_reward_K=vector(0.1, 0.7, 0.2, 0.3, 0.9, *extra),
        step_state_K=torch.zeros(5 + 2 * dropped, dtype=torch.int64),
        step_seq_K=torch.tensor([0, 0, 1, 1, 2, 3, 3][: 5 + 2 * dropped]),
        step_T=torch.arange(5 + 2 * dropped),
    )


@pytest.mark.parametrize("held", [NAN, float("inf"), -float("inf"), 1e300])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_dropped_sequence_gets_zero_and_changes_no_other(rule, held: float) -> None:
    whole = assign_credit(rule, measured(dropped=False))
    with_dropped = assign_credit(rule, measured(dropped=True, held=held))
    torch.testing.assert_close(with_dropped.advantage_T[:5], whole.advantage_T, atol=1e-12, rtol=0)
    assert with_dropped.advantage_T[5:].tolist() == [0.0, 0.0] and not bool(with_dropped.signal_S[3])
    if whole.return_T is not None:
        assert torch.equal(with_dropped.return_T[:5], whole.return_T)
        assert with_dropped.return_T[5:].tolist() == ([held, held] if held == 1e300 else [0.0, 0.0])


READS = [
    (LeaveOneOut(kl_beta=0.1), "kl_T"),
    (BatchNormalized(kl_beta=0.1, baseline="none", weighting="token", gamma=1.0, eps=0.0, ddof=0), "kl_T"),
    (BatchNormalized(kl_beta=0.1, baseline="none", weighting="sequence", gamma=1.0, eps=0.0, ddof=0), "kl_T"),
    (Gae(gamma=0.9, lam_policy=0.8, lam_critic=1.0, kl_beta=0.1), "kl_T"),
    (Gae(gamma=0.9, lam_policy=0.8, lam_critic=1.0), "value_T"),
    (LengthAdaptiveGae(gamma=0.9, alpha=1.5, floor=None, counts="action_tokens", lam_critic=1.0), "value_T"),
    (ImplicitProcess(beta=0.05, gamma=0.5), "log_ratio_T"),
    (ImplicitProcessCode(beta=0.05, process_coefficient=5.0, outcome_coefficient=5.0, eps=0.0), "log_ratio_T"),
]


@pytest.mark.parametrize("bad", [NAN, float("inf"), -float("inf")])
@pytest.mark.parametrize(("rule", "name"), READS, ids=lambda x: x if isinstance(x, str) else type(x).__name__)
def test_what_a_rule_reads_of_a_kept_sequence_must_be_measured(rule, name: str, bad: float) -> None:
    for batch in (measured(dropped=False), measured(dropped=True)):
        held_T = getattr(batch, name).clone()
        held_T[3] = bad
        with pytest.raises(ObjectiveError, match=f"{type(rule).__name__}: {name} must be finite, got {bad} at position 3"):
            assign_credit(rule, replace(batch, **{name: held_T}))


def test_the_value_after_a_kept_sequence_must_be_measured() -> None:
    for bad in (NAN, float("inf")):
        with pytest.raises(ObjectiveError, match=r"bootstrap_S must be finite, got .* at position 1"):
            assign_credit(RULES[2], replace(measured(dropped=False), bootstrap_S=vector(0.0, bad, 0.0)))


def test_what_no_rule_reads_may_hold_anything() -> None:
    unread = {"kl_T": vector(*[NAN] * 5), "value_T": vector(*[NAN] * 5), "log_ratio_T": vector(*[NAN] * 5)}
    found = assign_credit(LeaveOneOut(), replace(measured(dropped=False), **unread))
    assert bool(found.advantage_T.isfinite().all())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_int32_ids_are_the_same_ids_in_credit(rule) -> None:
    batch = measured(dropped=True)
    names = ("group_S", "seq_T", "length_S", "step_state_K", "step_seq_K", "step_T")
    narrow = replace(batch, **{name: getattr(batch, name).int() for name in names})
    assert torch.equal(assign_credit(rule, narrow).advantage_T, assign_credit(rule, batch).advantage_T)


def test_primes_baselines_without_a_second_kept_sequence_are_refused() -> None:
    keep_S = torch.tensor([True, False])
    with pytest.raises(ObjectiveError):
        credit.token_leave_one_out_paper(vector(1.0, 2.0), torch.tensor([0, 1]), torch.tensor([0, 0]), keep_S=keep_S)


@pytest.mark.parametrize("held", [NAN, float("inf"), 9.0])
def test_primes_functions_leave_a_dropped_sequence_out_whatever_it_holds(held: float) -> None:
    seq_T, group_S, keep_S = torch.tensor([0, 0, 1, 2]), torch.tensor([0, 0, 0]), torch.tensor([True, True, False])
    whole, kept = vector(1.0, -2.0, 0.5, held), vector(1.0, -2.0, 0.5)
    outcome = {"beta": 0.1, "gamma": 0.9}
    rule = ImplicitProcessCode(beta=0.05, process_coefficient=5.0, outcome_coefficient=5.0, eps=0.0)
    calls = (
        lambda x, s, g, k: credit.token_leave_one_out_paper(x, s, g, keep_S=k),
        lambda x, s, g, k: credit.token_leave_one_out_code(x, s, g, keep_S=k),
        lambda x, s, g, k: credit.implicit_process_paper(x, vector(1.0, 0.0, held)[: len(g)], s, g, **outcome, keep_S=k),
        lambda x, s, g, k: credit.implicit_process_code(x, vector(1.0, 0.0, held)[: len(g)], s, g, rule=rule, keep_S=k),
    )
    for call in calls:
        found_T, expected_T = call(whole, seq_T, group_S, keep_S), call(kept, seq_T[:3], group_S[:2], None)
        torch.testing.assert_close(found_T, torch.cat([expected_T, vector(0.0)]))


def test_a_dropped_sequences_critic_target_is_its_own_value() -> None:
    batch = Measured(
        reward_S=vector(1.0, 9.0),
        group_S=torch.tensor([0, 0]),
        seq_T=torch.tensor([0, 1]),
        keep_S=torch.tensor([True, False]),
        value_T=vector(0.2, 0.3),
    )
    found = assign_credit(Gae(gamma=1.0, lam_policy=1.0, lam_critic=1.0), batch)
    assert found.return_T.tolist() == [1.0, 0.3] and found.advantage_T.tolist() == [0.8, 0.0]


def test_the_value_after_the_last_token_reaches_the_advantage_and_the_target() -> None:
    batch = Measured(
        reward_S=vector(1.0), group_S=torch.tensor([0]), seq_T=torch.tensor([0]), value_T=vector(0.25), bootstrap_S=vector(4.0)
    )
    found = assign_credit(Gae(gamma=0.5, lam_policy=1.0, lam_critic=1.0), batch)
    assert found.advantage_T.tolist() == [2.75] and found.return_T.tolist() == [3.0]


@pytest.mark.parametrize("weighting", ["token", "sequence"])
@pytest.mark.parametrize("value", [0.1, 0.7, 1e-3])
def test_constant_returns_give_exactly_zero_in_either_weighting(weighting: str, value: float) -> None:
    rule = BatchNormalized(kl_beta=None, baseline="none", weighting=weighting, gamma=1.0, eps=0.0, ddof=1)
    seq_T = torch.repeat_interleave(torch.arange(3), torch.tensor([3, 1, 5000]))  # whose plain mean is off by many units
    batch = Measured(reward_S=torch.full((3,), value, dtype=F64), group_S=torch.tensor([0, 0, 1]), seq_T=seq_T)
    assert torch.equal(assign_credit(rule, batch).advantage_T, torch.zeros(5004, dtype=F64))


@pytest.mark.parametrize(("ddof", "expected"), [(0, 1.0), (1, 0.5**0.5)])
def test_sequence_weighting_divides_by_the_sequences_less_ddof(ddof: int, expected: float) -> None:
    rule = BatchNormalized(kl_beta=None, baseline="none", weighting="sequence", gamma=1.0, eps=0.0, ddof=ddof)
    batch = Measured(reward_S=vector(1.0, 0.0), group_S=torch.tensor([0, 0]), seq_T=torch.tensor([0, 0, 0, 1]))
    assert assign_credit(rule, batch).advantage_T.tolist() == pytest.approx([expected] * 3 + [-expected])


def test_gigpo_discounts_the_rewards_of_later_steps() -> None:
    """Returns of the two trajectories at their shared first state: 0 + .5 * 4 = 2 and 0; their mean is 1."""
    batch = Measured(
        reward_S=vector(0.0, 0.0),
        group_S=torch.tensor([0, 0]),
        seq_T=torch.tensor([0, 0, 1]),
        step_reward_K=vector(0.0, 4.0, 0.0),
        step_state_K=torch.tensor([9, 8, 9]),
        step_seq_K=torch.tensor([0, 0, 1]),
        step_T=torch.arange(3),
    )
    found = assign_credit(StepGroups(gamma=0.5, omega=1.0, normalizer="one"), batch)
    assert found.advantage_T.tolist() == [1.0, 0.0, -1.0]


def test_primes_code_divides_by_the_largest_magnitude_not_the_largest_value() -> None:
    """Process sums are all negative or 0, so the largest is 0 and the largest magnitude .1."""
    log_ratio_T, seq_T = vector(-2.0, 0.0, -1.0, 0.0), torch.tensor([0, 0, 1, 1])
    rule = ImplicitProcessCode(beta=0.05, process_coefficient=1.0, outcome_coefficient=1.0, eps=0.0)
    found_T = credit.implicit_process_code(log_ratio_T, vector(1.0, 0.0), seq_T, torch.tensor([0, 0]), rule=rule)
    process_T = vector(-1.0, 0.0, -0.5, 0.0)
    own_T = 2 * process_T - (-0.5 - 0.25)
    raw_T = vector(own_T[0] + own_T[1] + 1, own_T[1] + 1, own_T[2] + own_T[3] - 1, own_T[3] - 1)
    torch.testing.assert_close(found_T, (raw_T - raw_T.mean()) / raw_T.std(correction=1))


def test_magistral_divides_by_the_minibatchs_std_without_subtracting_its_mean() -> None:
    """A group cut between minibatches: .5 and 1.5 stay positive, their std is .5."""
    found_S = credit.minibatch_standardized(vector(0.5, 1.5), eps=0.0, ddof=0, keep_S=None)
    assert found_S.tolist() == [1.0, 3.0]
    batch = Measured(
        reward_S=vector(0.0, 1.0, 2.0, 5.0),
        group_S=torch.tensor([0, 0, 0, 0]),
        seq_T=torch.arange(4),
        minibatch_S=torch.tensor([0, 0, 1, 1]),
    )
    found = assign_credit(MinibatchStandardized(eps=0.0, ddof=0), batch)
    assert found.advantage_T.tolist() == pytest.approx([-4.0, -2.0, 0.0, 2.0])


def test_mimos_outcome_advantage_needs_a_credit_of_its_own() -> None:
    for alpha in (0.0, 0.5):
        with pytest.raises(ObjectiveError):
            assign_credit(ro.MimoMopd(low=0.5, high=1.0, alpha=alpha).credit, measured(dropped=False))
    with pytest.raises(ObjectiveError, match="needs the credit of its outcome advantage"):
        ro.MimoMopd(low=0.5, high=1.0, alpha=0.5, credit=credit.FromTeacher())
    assert ro.MimoMopd(low=0.5, high=1.0, alpha=0.0, credit=credit.FromTeacher()).alpha == 0
