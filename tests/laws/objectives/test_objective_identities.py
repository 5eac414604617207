"""The identity web, the discriminators, and every bound at equality (specification, Register 4)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import F64, Case, build, cases, value_and_gradient
from torch import Tensor

import rollbook.objectives as ro
from rollbook.objectives import ActionTokens, credit
from rollbook.objectives.ratios import clipped_surrogate, dual_clipped_surrogate, interpolated_anchor, ratio

FEW = settings(max_examples=25, deadline=None)
RATIO_2 = math.log(2.0)


def one_token(log_ratio: float, advantage: float, *, logp: float = -1.0) -> ActionTokens:
    """A sequence of one token, `log_ratio` away from anchor and behavior."""
    other_T = torch.tensor([logp - log_ratio], dtype=F64)
    return ActionTokens(
        logp_T=torch.tensor([logp], dtype=F64),
        advantage_T=torch.tensor([advantage], dtype=F64),
        anchor_T=other_T,
        behavior_T=other_T,
        reference_T=other_T,
        teacher_T=torch.tensor([logp + advantage], dtype=F64),
        seq_T=torch.tensor([0]),
        length_S=torch.tensor([1]),
    )


def gradient(objective, tokens: ActionTokens) -> float:
    """d J / d logp of the only token, with weight 1."""
    logp_T = tokens.logp_T.clone().requires_grad_()
    return -float(torch.autograd.grad(objective(replace(tokens, logp_T=logp_T)).loss_T.sum(), logp_T)[0])


def same(first, second, case: Case, how: str = "sequence_mean") -> None:
    value, gradient_T = value_and_gradient(first, case, how)
    other, other_T = value_and_gradient(second, case, how)
    torch.testing.assert_close(value, other, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient_T, other_T, rtol=1e-12, atol=1e-12)


# identities


@given(case=cases())
@FEW
def test_gspo_equals_gspo_token_with_one_advantage_per_sequence(case: Case) -> None:
    same(ro.Gspo(low=0.1, high=0.2), ro.GspoToken(low=0.1, high=0.2), case)


@given(case=cases(per_token=True))
@FEW
def test_gspo_token_gives_each_token_its_own_advantage(case: Case) -> None:
    """Gradient -s A_t: tokens of a sequence differ by their advantage only."""
    _, gradient_T = value_and_gradient(ro.GspoToken(low=50, high=50), case, "sequence_mean")
    per_advantage_T = gradient_T / case.tokens.advantage_T
    for s in set(case.tokens.seq_T.tolist()):
        chosen_T = per_advantage_T[case.tokens.seq_T == s]
        torch.testing.assert_close(chosen_T, chosen_T[:1].expand_as(chosen_T), rtol=1e-9, atol=1e-12)


@given(case=cases(), seed=st.integers(0, 99))
@FEW
def test_permuting_log_ratios_within_a_sequence_leaves_gspo_unchanged(case: Case, seed: int) -> None:
    tokens, generator = case.tokens, torch.Generator().manual_seed(seed)
    shift_T = tokens.logp_T - tokens.anchor_T
    for s in set(tokens.seq_T.tolist()):
        index_T = (tokens.seq_T == s).nonzero().flatten()
        shift_T[index_T] = shift_T[index_T[torch.randperm(index_T.numel(), generator=generator)]]
    same_ratio = Case(replace(tokens, anchor_T=tokens.logp_T - shift_T), case.group_S)
    same_objective = ro.Gspo(low=0.1, high=0.2)
    value, gradient_T = value_and_gradient(same_objective, case)
    other, other_T = value_and_gradient(same_objective, same_ratio)
    torch.testing.assert_close(value, other)
    torch.testing.assert_close(gradient_T, other_T)


@given(case=cases())
@FEW
def test_a_sequence_of_one_token_makes_gspo_grpo(case: Case) -> None:
    tokens = case.tokens
    each = Case(
        replace(tokens, seq_T=torch.arange(tokens.seq_T.numel()), length_S=torch.ones_like(tokens.seq_T)),
        case.group_S[tokens.seq_T],
    )
    same(ro.Gspo(low=0.2, high=0.3), ro.Grpo(low=0.2, high=0.3), each)
    same(ro.R1Printed(low=0.2, high=0.3, kl_estimator="k3"), ro.Grpo(low=0.2, high=0.3), each)


@given(case=cases())
@FEW
def test_decoupled_ppo_is_ppo_when_anchor_and_behavior_agree(case: Case) -> None:
    agreeing = Case(replace(case.tokens, behavior_T=case.tokens.anchor_T), case.group_S)
    same(ro.DecoupledPpo(weight_rule="none"), ro.Ppo(), agreeing)
    same(ro.Glm5Reasoning(), ro.Dapo(), agreeing)


@given(case=cases())
@FEW
def test_decoupled_ppo_unclipped_has_the_plain_importance_gradient(case: Case) -> None:
    _, gradient_T = value_and_gradient(ro.DecoupledPpo(low=50, high=50, weight_rule="none"), case, "sequence_sum")
    tokens = case.tokens
    plain_T = (tokens.logp_T - tokens.behavior_T).exp() * tokens.advantage_T / int((tokens.length_S > 0).sum())
    torch.testing.assert_close(gradient_T, -plain_T)


@given(case=cases())
@FEW
def test_an_infinite_delta_makes_v32_grpo(case: Case) -> None:
    same(ro.DeepSeekV32(low=0.2, high=0.3, delta=math.inf, beta=0), ro.Grpo(low=0.2, high=0.3, beta=0), case)


@given(case=cases())
@FEW
def test_v32_never_masks_a_sequence_with_positive_advantage(case: Case) -> None:
    positive = Case(replace(case.tokens, advantage_T=case.tokens.advantage_T.abs()), case.group_S)
    same(ro.DeepSeekV32(low=0.2, high=0.3, delta=0, beta=0), ro.Grpo(low=0.2, high=0.3, beta=0), positive)


RULES = [
    {"rule": "token_tis", "cap": 2.0},
    {"rule": "icepop", "low": 0.5, "high": 1.0},
    {"rule": "sequence_tis", "cap": 2.0},
    {"rule": "sequence_mis", "cap": 2.0},
    {"rule": "geometric_band", "low": 0.001, "high": 0.002},
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["rule"])
@given(case=cases())
@settings(max_examples=10, deadline=None)
def test_a_correction_without_mismatch_changes_nothing(rule: dict, case: Case) -> None:
    agreeing = Case(replace(case.tokens, behavior_T=case.tokens.anchor_T), case.group_S)
    same(ro.Corrected(objective=ro.Dapo(), **rule), ro.Dapo(), agreeing)


@given(case=cases())
@FEW
def test_sao_with_wide_bounds_is_the_importance_weighted_gradient(case: Case) -> None:
    _, gradient_T = value_and_gradient(ro.Sao(low=1, high=1e9), case, "sequence_sum")
    tokens = case.tokens
    plain_T = (tokens.logp_T - tokens.behavior_T).exp() * tokens.advantage_T / int((tokens.length_S > 0).sum())
    torch.testing.assert_close(gradient_T, -plain_T)


@given(case=cases(), tau=st.floats(0.05, 20))
@FEW
def test_sapo_on_policy_has_value_two_a_over_tau_and_gradient_a(case: Case, tau: float) -> None:
    on = replace(case.tokens, anchor_T=case.tokens.logp_T)
    objective = ro.Sapo(tau_positive=tau, tau_negative=tau)
    torch.testing.assert_close(objective(on).loss_T, -2 * on.advantage_T / tau)
    _, gradient_T = value_and_gradient(objective, Case(on, case.group_S), "sequence_sum")
    torch.testing.assert_close(gradient_T, -on.advantage_T / int((on.length_S > 0).sum()))


@given(offset=st.floats(0.01, 0.9), tau=st.floats(0.5, 3))
@FEW
def test_sapos_gate_is_symmetric_and_decays_faster_for_negative_advantages(offset: float, tau: float) -> None:
    objective = ro.Sapo(tau_positive=tau, tau_negative=1.5 * tau)

    def gate(rho: float, a: float) -> float:
        return gradient(objective, one_token(math.log(rho), a)) / (rho * a)

    assert gate(1 + offset, 1.0) == pytest.approx(gate(1 - offset, 1.0), rel=1e-9)
    assert gate(1 + offset, -1.0) < gate(1 + offset, 1.0) < 1


@given(case=cases())
@FEW
def test_kimis_square_has_no_gradient_at_delta_equal_advantage_over_tau(case: Case) -> None:
    tokens = case.tokens
    move_T = tokens.advantage_T / 0.3 / tokens.length_S[tokens.seq_T]
    solved = Case(replace(tokens, anchor_T=tokens.logp_T - move_T), case.group_S)
    for scale in ("squared", "published_gradient"):
        _, gradient_T = value_and_gradient(ro.KimiK15(tau=0.3, scale=scale), solved)
        assert float(gradient_T.abs().max()) < 1e-10


@given(case=cases(), tau=st.floats(0.05, 3))
@FEW
def test_kimis_two_scales_differ_by_two_tau(case: Case, tau: float) -> None:
    _, square_T = value_and_gradient(ro.KimiK15(tau=tau, scale="squared"), case)
    _, published_T = value_and_gradient(ro.KimiK15(tau=tau, scale="published_gradient"), case)
    torch.testing.assert_close(square_T, 2 * tau * published_T)


@given(case=cases())
@FEW
def test_k25_ratio_and_log_bounds_on_the_same_interval_have_the_same_gradient(case: Case) -> None:
    common = {"tau": 0.3, "tau_mask": "all", "ratio_to": "anchor"}
    log = ro.KimiK25(bound_on="log_ratio", log_low=math.log(0.7), log_high=math.log(1.4), **common)
    plain = ro.KimiK25(bound_on="ratio", low=0.3, high=0.4, **common)
    torch.testing.assert_close(value_and_gradient(log, case)[1], value_and_gradient(plain, case)[1])


def test_k25_without_advantage_pulls_back_to_the_anchor() -> None:
    objective = ro.KimiK25(tau=0.3, bound_on="log_ratio", log_low=-1, log_high=1, tau_mask="all", ratio_to="anchor")
    assert gradient(objective, one_token(0.2, 0.0)) == pytest.approx(-0.12)
    assert gradient(objective, one_token(-0.2, 0.0)) == pytest.approx(0.12)


def test_a_teacher_equal_to_the_student_teaches_nothing() -> None:
    for objective in (ro.Mopd(), ro.MimoMopd(low=0.5, high=1, alpha=0), ro.OnPolicyDistill()):
        assert gradient(objective, one_token(0.0, 0.0)) == 0


def test_a_token_the_teacher_finds_likelier_becomes_likelier() -> None:
    for objective in (ro.Mopd(), ro.MimoMopd(low=0.5, high=1, alpha=0), ro.OnPolicyDistill(), ro.Glm5CrossStage()):
        assert gradient(objective, one_token(0.0, 0.4)) == pytest.approx(0.4)


def test_r_is_rho_times_c() -> None:
    tokens = build([4], [0], torch.Generator().manual_seed(0), drift=0.4).tokens
    rho_T, c_T = ratio(tokens.logp_T, tokens.anchor_T), ratio(tokens.anchor_T, tokens.behavior_T)
    torch.testing.assert_close(ratio(tokens.logp_T, tokens.behavior_T), rho_T * c_T)


# discriminators


K25 = ro.KimiK25(tau=1e-12, bound_on="log_ratio", log_low=-0.3, log_high=0.35, tau_mask="all", ratio_to="anchor")


def test_a_bad_token_that_became_likelier_keeps_ppos_gradient_and_loses_saos_and_k25s() -> None:
    tokens = one_token(2.0, -1.0)
    assert gradient(ro.Ppo(), tokens) == pytest.approx(-math.exp(2))
    assert gradient(ro.Sao(low=0.3, high=5.0), tokens) == 0
    assert gradient(ro.Glm5Agentic(low=0.3, high=5.0), tokens) == 0
    assert gradient(K25, tokens) == pytest.approx(0, abs=1e-9)


def test_a_good_token_that_became_less_likely_keeps_ppos_gradient_and_loses_saos_and_k25s() -> None:
    tokens = one_token(-2.0, 1.0)
    assert gradient(ro.Ppo(), tokens) == pytest.approx(math.exp(-2))
    assert gradient(ro.Sao(low=0.3, high=5.0), tokens) == 0
    assert gradient(K25, tokens) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("log_ratio", [3.0, -3.0, 0.1])
def test_saos_and_k25s_masks_ignore_the_sign_of_the_advantage(log_ratio: float, advantage: float) -> None:
    for objective in (ro.Sao(low=0.3, high=5.0), K25):
        forward = gradient(objective, one_token(log_ratio, advantage))
        assert forward == pytest.approx(-gradient(objective, one_token(log_ratio, -advantage)), abs=1e-9)


def test_a_good_token_beyond_the_cap_loses_ppos_gradient_and_keeps_cispos_cap() -> None:
    cispo = ro.Cispo(low=1, high=0.28)
    assert gradient(ro.Dapo(), one_token(1.0, 1.0)) == 0
    assert gradient(cispo, one_token(1.0, 1.0)) == pytest.approx(1.28)
    assert gradient(cispo, one_token(2.0, 1.0)) == pytest.approx(1.28)


def test_unequal_lengths_tell_the_aggregates_apart() -> None:
    case = build([1, 4], [0, 0], torch.Generator().manual_seed(2), drift=0.05)
    values = {how: float(value_and_gradient(ro.Dapo(), case, how)[0]) for how in ("token_mean", "sequence_mean", "sequence_sum")}
    assert len({round(value, 9) for value in values.values()}) == 3


def test_groups_of_unequal_size_tell_the_printed_token_mean_from_the_steps_token_mean() -> None:
    case = build([1, 1, 4, 4], [0, 0, 1, 1], torch.Generator().manual_seed(2), drift=0.05)
    step, _ = value_and_gradient(ro.Dapo(), case, "token_mean")
    printed, _ = value_and_gradient(ro.Dapo(), case, "group_token_mean")
    assert float((step - printed).abs()) > 1e-3
    assert ro.Dapo().aggregate == ro.Cispo(low=1, high=1).aggregate == "group_token_mean"
    assert ro.Magistral(low=0.2, high=0.28, ratio_to="anchor").aggregate == "group_token_mean"


def test_scaling_one_groups_rewards_changes_every_magistral_advantage_and_no_other_grpo_advantage() -> None:
    reward_S, group_S = torch.tensor([1.0, 0, 1, 0], dtype=F64), torch.tensor([0, 0, 1, 1])
    scaled_S = reward_S * torch.tensor([5.0, 5, 1, 1], dtype=F64)

    def magistral(rewards_S: Tensor) -> Tensor:
        return credit.minibatch_standardized(credit.group_centered(rewards_S, group_S), eps=0, ddof=0, keep_S=None)

    assert bool((magistral(reward_S) != magistral(scaled_S)).all())
    grpo = [credit.group_normalized(rewards, group_S, eps=0, ddof=0) for rewards in (reward_S, scaled_S)]
    torch.testing.assert_close(grpo[0], grpo[1])
    torch.testing.assert_close(magistral(reward_S), magistral(7 * reward_S))


def test_v32_masks_by_the_engines_log_probabilities_not_the_recomputed_anchor() -> None:
    tokens = one_token(0.0, -1.0)
    drifted = replace(tokens, behavior_T=tokens.logp_T + 0.5)
    objective = ro.DeepSeekV32(low=0.2, high=0.3, delta=0.1, beta=0)
    assert gradient(objective, tokens) == -1
    assert gradient(objective, drifted) == 0
    assert gradient(objective, replace(tokens, behavior_T=tokens.logp_T - 0.5)) == -1


def test_v32s_kl_is_its_own_term_and_not_masked() -> None:
    """A masked sequence keeps the KL gradient beta rho d."""
    tokens = replace(one_token(0.1, -1.0), reference_T=torch.tensor([-1.5], dtype=F64), behavior_T=torch.tensor([0.0], dtype=F64))
    objective = ro.DeepSeekV32(low=0.2, high=0.3, delta=0.1, beta=0.25)
    assert gradient(objective, tokens) == 0
    (kl,) = objective.extra_terms
    logp_T = tokens.logp_T.clone().requires_grad_()
    term = kl.term(replace(tokens, logp_T=logp_T))
    (gradient_T,) = torch.autograd.grad(term.reduce(torch.ones(1, dtype=F64)), logp_T)
    assert (term.name, term.population, term.aggregate) == ("kl", "actions", "sequence_mean")
    assert float(gradient_T) == pytest.approx(0.25 * math.exp(0.1) * 0.5)


@pytest.mark.parametrize("name", ["anchor", "behavior"])
def test_ratio_to_names_the_policy_of_the_ratio(name: str) -> None:
    tokens = replace(one_token(0.1, 1.0), behavior_T=torch.tensor([-1.05], dtype=F64))
    expected = {"anchor": math.exp(0.1), "behavior": math.exp(0.05)}[name]
    assert gradient(ro.Magistral(low=0.2, high=0.28, ratio_to=name), tokens) == pytest.approx(expected)


# bounds at equality


def at_ratio(rho: float) -> tuple[Tensor, Tensor]:
    """A ratio tensor with gradient 1 wrt its log, holding exactly `rho`."""
    log_T = torch.zeros(1, dtype=F64, requires_grad=True)
    return rho * torch.exp(log_T), log_T


@pytest.mark.parametrize(("rho", "advantage"), [(1.25, 1.0), (1.25, -1.0), (0.75, 1.0), (0.75, -1.0)])
def test_ppos_bound_at_equality_is_an_inclusive_no_op(rho: float, advantage: float) -> None:
    ratio_T, log_T = at_ratio(rho)
    loss = clipped_surrogate(ratio_T, torch.tensor([advantage], dtype=F64), low=0.25, high=0.25)
    assert float(torch.autograd.grad(loss.loss_T.sum(), log_T)[0]) == -rho * advantage
    assert not bool(loss.clipped_T.any())
    beyond_T, log_T = at_ratio(rho + math.copysign(1e-9, rho - 1))
    loss = clipped_surrogate(beyond_T, torch.tensor([advantage], dtype=F64), low=0.25, high=0.25)
    outward = (rho > 1) == (advantage > 0)
    assert (float(torch.autograd.grad(loss.loss_T.sum(), log_T)[0]) == 0) is outward


def test_saos_bound_at_equality_is_masked() -> None:
    tokens = one_token(RATIO_2, 1.0)
    rho = float(ratio(tokens.logp_T, tokens.behavior_T))
    assert gradient(ro.Sao(low=0.5, high=rho - 1), tokens) == 0
    assert gradient(ro.Sao(low=0.5, high=rho - 1 + 1e-9), tokens) == pytest.approx(2)
    below = one_token(-RATIO_2, 1.0)
    rho = float(ratio(below.logp_T, below.behavior_T))
    assert gradient(ro.Sao(low=1 - rho, high=5), below) == 0
    assert gradient(ro.Sao(low=1 - rho + 1e-9, high=5), below) == pytest.approx(0.5)


def test_mopds_band_at_equality_is_kept() -> None:
    tokens = replace(one_token(RATIO_2, 1.0), teacher_T=torch.tensor([0.0], dtype=F64))
    rho = float(ratio(tokens.logp_T, tokens.behavior_T))
    assert gradient(ro.Mopd(low=0.5, high=rho - 1), tokens) == pytest.approx(2)
    assert gradient(ro.Mopd(low=0.5, high=rho - 1 - 1e-9), tokens) == 0


def test_k25s_bounds_at_equality_are_kept() -> None:
    objective = ro.KimiK25(tau=0, bound_on="log_ratio", log_low=-0.25, log_high=0.25, tau_mask="all", ratio_to="anchor")
    for x in (0.25, -0.25):
        assert gradient(objective, one_token(x, 1.0)) == pytest.approx(math.exp(x))
        assert gradient(objective, one_token(1.01 * x, 1.0)) == 0


def test_dual_clip_stops_a_bad_token_beyond_the_dual_bound_and_keeps_it_at_equality() -> None:
    for rho, expected in ((3.0, 3.0), (3.0 + 1e-9, 0.0), (2.0, 2.0)):
        ratio_T, log_T = at_ratio(rho)
        loss = dual_clipped_surrogate(ratio_T, torch.tensor([-1.0], dtype=F64), low=0.2, high=0.2, dual=3.0)
        assert float(torch.autograd.grad(loss.loss_T.sum(), log_T)[0]) == pytest.approx(expected)
        assert float(loss.loss_T.detach()) == pytest.approx(min(rho, 3.0))
    ratio_T, log_T = at_ratio(9.0)
    loss = dual_clipped_surrogate(ratio_T, torch.tensor([1.0], dtype=F64), low=0.2, high=0.2, dual=3.0)
    assert float(loss.loss_T.detach()) == pytest.approx(-1.2)


# A-3PO


def test_the_interpolated_anchor_lies_between_behavior_and_current_and_carries_no_gradient() -> None:
    logp_T = torch.tensor([-1.0, -1.0, -1.0], dtype=F64, requires_grad=True)
    behavior_T = torch.tensor([-2.0, -2.0, -2.0], dtype=F64)
    anchor_T = interpolated_anchor(
        logp_T, behavior_T, behavior_version_T=torch.tensor([0, 2, 4]), anchor_version=3, current_version=4
    )
    assert anchor_T.tolist() == [-1.25, -1.5, -2.0]
    assert not anchor_T.requires_grad
