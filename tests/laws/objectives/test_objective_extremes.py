"""Degenerate inputs: a defined result or a clear error, never NaN; ordinary values untouched by the guard."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import F64, INSTANCES, Case, aggregate_of, build, weights

from rollbook.objectives import ActionTokens, kl
from rollbook.objectives.diagnostics import diagnose
from rollbook.objectives.ratios import LOG_LIMIT, exp_guarded, expm1_guarded


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("extreme", [500.0, -500.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("name", INSTANCES)
def test_log_ratios_of_500_nats_give_finite_losses_and_gradients(name: str, advantage: float, extreme: float, dtype) -> None:
    objective = INSTANCES[name]
    base_T = torch.tensor([-1.0, -2.0, -1.5], dtype=dtype)
    for field in ("anchor_T", "behavior_T", "reference_T", "teacher_T", "all"):
        others = {name: base_T.clone() for name in ("anchor_T", "behavior_T", "reference_T", "teacher_T")}
        for other in others if field == "all" else (field,):
            others[other] = base_T - torch.tensor([extreme, 0.0, 0.0], dtype=dtype)
        logp_T = base_T.clone().requires_grad_()
        tokens = ActionTokens(
            logp_T=logp_T,
            advantage_T=torch.full_like(base_T, advantage),
            seq_T=torch.tensor([0, 0, 1]),
            length_S=torch.tensor([2, 1]),
            **others,
        )
        loss_T = objective(tokens).loss_T
        (gradient_T,) = torch.autograd.grad(loss_T.sum(), logp_T)
        assert bool(loss_T.detach().isfinite().all()) and bool(gradient_T.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, F64])
@pytest.mark.parametrize("estimate", ["k2", "k3", "unbiased"])
def test_kl_terms_of_200_nats_leave_finite_gradients_and_ordinary_tokens_alone(estimate: str, dtype) -> None:
    """One token of eight at -200 against -1; the others differ by 0.1 and have k3 = e^0.1 - 0.1 - 1 = 0.00517."""
    logp = torch.full((8,), -1.1, dtype=dtype)
    reference_T = torch.full((8,), -1.0, dtype=dtype)
    logp[3] = -200
    logp_T = logp.clone().requires_grad_()
    functions = {
        "k2": lambda: kl.k2(logp_T, reference_T),
        "k3": lambda: kl.k3(logp_T, reference_T),
        "unbiased": lambda: kl.unbiased(logp_T, logp, reference_T),
    }
    value_T = functions[estimate]()
    (gradient_T,) = torch.autograd.grad(value_T.sum(), logp_T)
    assert bool(value_T.detach().isfinite().all()) and bool(gradient_T.isfinite().all())
    assert float(gradient_T[3]) < 0, "the penalty still pulls the lost token back up"
    if dtype == F64 and estimate != "k2":
        assert float(value_T[0].detach()) == pytest.approx(0.00517, abs=1e-5)
        assert float(value_T[0].detach()) == pytest.approx(math.exp(0.1) - 0.1 - 1, rel=1e-12)


def test_one_adamw_step_after_an_extreme_kl_leaves_finite_weights() -> None:
    weight = torch.nn.Parameter(torch.zeros(8))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    base_T = torch.tensor([-1.1] * 7 + [-200.0])
    kl.k3(base_T + weight, torch.full((8,), -1.0)).sum().backward()
    optimizer.step()
    state = optimizer.state[weight]
    assert bool(weight.isfinite().all()) and bool(state["exp_avg_sq"].isfinite().all())


@given(x=st.floats(-700, LOG_LIMIT))
@settings(max_examples=60, deadline=None)
def test_the_guard_leaves_ordinary_exponentials_bit_for_bit(x: float) -> None:
    log_T = torch.tensor([x], dtype=F64, requires_grad=True)
    value_T = exp_guarded(log_T)
    assert torch.equal(value_T, log_T.exp())
    assert torch.equal(torch.autograd.grad(value_T.sum(), log_T)[0], log_T.detach().exp())
    assert torch.equal(expm1_guarded(log_T), torch.expm1(log_T))


@given(x=st.floats(LOG_LIMIT + 1e-6, 500))
@settings(max_examples=30, deadline=None)
def test_beyond_the_guard_the_gradient_stays_at_its_limit(x: float) -> None:
    for guarded in (exp_guarded, expm1_guarded):
        log_T = torch.tensor([x], dtype=F64, requires_grad=True)
        gradient = torch.autograd.grad(guarded(log_T).sum(), log_T)[0]
        assert float(gradient) == pytest.approx(math.exp(LOG_LIMIT))


def test_the_guard_is_counted() -> None:
    case = build([3], [0], torch.Generator().manual_seed(0), drift=0.0)
    far_T = case.tokens.anchor_T - torch.tensor([500.0, 0, 0], dtype=F64)
    tokens = replace(case.tokens, anchor_T=far_T)
    assert int(diagnose(tokens, INSTANCES["Ppo"](tokens)).guarded) == 1
    assert int(diagnose(case.tokens, INSTANCES["Ppo"](case.tokens)).guarded) == 0


@pytest.mark.parametrize("name", INSTANCES)
def test_an_empty_micro_batch_has_no_loss_and_no_gradient(name: str) -> None:
    empty_T = torch.zeros(0, dtype=F64, requires_grad=True)
    fields = {field: empty_T.detach().clone() for field in ("anchor_T", "behavior_T", "reference_T", "teacher_T", "advantage_T")}
    for length_S in (torch.zeros(0, dtype=torch.int64), torch.tensor([0, 0])):
        tokens = ActionTokens(logp_T=empty_T, seq_T=torch.zeros(0, dtype=torch.int64), length_S=length_S, **fields)
        loss = INSTANCES[name](tokens)
        assert loss.loss_T.shape == loss.clipped_T.shape == (0,)
        case = Case(tokens, torch.zeros_like(length_S))
        assert float((weights(case, aggregate_of(INSTANCES[name]))[tokens.seq_T] * loss.loss_T).sum().detach()) == 0


@pytest.mark.parametrize("name", INSTANCES)
def test_a_zero_advantage_moves_nothing_on_policy(name: str) -> None:
    base_T = torch.tensor([-1.0, -2.0], dtype=F64)
    logp_T = base_T.clone().requires_grad_()
    tokens = ActionTokens(
        logp_T=logp_T,
        advantage_T=torch.zeros(2, dtype=F64),
        anchor_T=base_T,
        behavior_T=base_T,
        reference_T=base_T,
        teacher_T=base_T,
        seq_T=torch.tensor([0, 1]),
        length_S=torch.tensor([1, 1]),
    )
    (gradient_T,) = torch.autograd.grad(INSTANCES[name](tokens).loss_T.sum(), logp_T)
    assert bool((gradient_T == 0).all())


def test_diagnostics_count_clipped_tokens_and_measure_mismatch() -> None:
    case = build([3, 2], [0, 0], torch.Generator().manual_seed(3), drift=0.8)
    loss = INSTANCES["Ppo"](case.tokens)
    found = diagnose(case.tokens, loss)
    assert found.tokens == 5 and int(found.clipped) == int(loss.clipped_T.sum())
    x_T = case.tokens.anchor_T - case.tokens.behavior_T
    torch.testing.assert_close(found.mismatch_k3, (x_T.exp() - 1 - x_T).sum())
    bare = replace(case.tokens, behavior_T=None, reference_T=None)
    assert diagnose(bare, loss).mismatch_k3 is None
