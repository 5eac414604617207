"""What a loss may depend on: not the micro-batches, ranks or order; not unread tensors; not other sequences."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import FIELDS, INSTANCES, Case, build, cases, value_and_gradient, weights
from torch import Tensor

from rollbook.objectives import ActionTokens, all_reads, sequence_weight, total_loss
from rollbook.objectives.core import Term
from rollbook.objectives.terms import KlTerm, PositiveNll, Ptx, entropy_bonus

FEW = settings(max_examples=15, deadline=None)
AGGREGATES = ("token_mean", "sequence_mean", "group_token_mean", "sequence_sum", "fixed_length")
TERMS = [
    KlTerm(estimator="k2", coefficient=0.1, aggregate="token_mean"),
    KlTerm(estimator="k3", coefficient=0.1, aggregate="token_mean"),
    KlTerm(estimator="unbiased", coefficient=0.1, aggregate="token_mean"),
    PositiveNll(coefficient=0.1),
    Ptx(coefficient=27.8, aggregate="token_mean"),
]


def pick(tokens: ActionTokens, index_T: Tensor, *, renumber: bool) -> tuple[ActionTokens, Tensor]:
    """The chosen tokens as a micro-batch, and the step-wide id of each of its sequences."""
    parts = {name: getattr(tokens, name)[index_T] for name in FIELDS}
    seq_T = tokens.seq_T[index_T]
    if not renumber:
        return ActionTokens(**parts, seq_T=seq_T, length_S=tokens.length_S), torch.arange(tokens.length_S.numel())
    present, local_T = seq_T.unique(return_inverse=True)
    return ActionTokens(**parts, seq_T=local_T, length_S=tokens.length_S[present]), present


def split_step(objective, case: Case, how: str, data: st.DataObject) -> tuple[Tensor, Tensor]:
    """Loss and gradient of the same step cut into micro-batches, shuffled, over simulated ranks."""
    tokens, scope = case.tokens, objective.scope
    units = tokens.seq_T if scope == "sequence" else torch.arange(tokens.seq_T.numel())
    count = int(units.max()) + 1
    part_of = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))
    weight_S = weights(case, how)
    ranks = [0.0] * data.draw(st.integers(1, 4))
    gradient_T = torch.zeros_like(tokens.logp_T)
    for part in data.draw(st.permutations(range(4))):
        index_T = (part_of[units] == part).nonzero().flatten()
        if index_T.numel() == 0:
            continue
        micro, ids = pick(tokens, index_T, renumber=data.draw(st.booleans()))
        logp_T = micro.logp_T.clone().requires_grad_()
        micro = replace(micro, logp_T=logp_T)
        value = total_loss([Term("policy", objective(micro).loss_T, 1.0, how, "actions")], [weight_S[ids][micro.seq_T]])
        ranks[part % len(ranks)] += float(value.detach())
        gradient_T[index_T] += torch.autograd.grad(value, logp_T)[0]
    return torch.tensor(sum(ranks), dtype=torch.float64), gradient_T


@pytest.mark.parametrize("how", AGGREGATES)
@pytest.mark.parametrize("name", ["Dapo", "Gspo", "Sao", "KimiK15", "DeepSeekV32"])
@given(case=cases(), data=st.data())
@FEW
def test_micro_batches_ranks_and_order_change_neither_loss_nor_gradient(
    name: str, how: str, case: Case, data: st.DataObject
) -> None:
    check_split(INSTANCES[name], case, how, data)


@pytest.mark.parametrize("name", INSTANCES)
@given(case=cases(), data=st.data())
@settings(max_examples=6, deadline=None)
def test_every_objective_can_be_cut_where_its_scope_says(name: str, case: Case, data: st.DataObject) -> None:
    check_split(INSTANCES[name], case, "group_token_mean", data)


def check_split(objective, case: Case, how: str, data: st.DataObject) -> None:
    whole, whole_T = value_and_gradient(objective, case, how)
    parts, parts_T = split_step(objective, case, how, data)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(parts_T, whole_T, rtol=1e-12, atol=1e-12)


class _TermAsObjective:
    scope = "token"

    def __init__(self, term) -> None:
        self.term = term

    def __call__(self, tokens: ActionTokens):
        return self.term.term(tokens)


class _Entropy:
    """The entropy bonus as a term; the entropy stands in for one that a model gave: a function of its own token alone."""

    name = "entropy"

    def term(self, tokens: ActionTokens) -> Term:
        return Term("entropy", entropy_bonus(-tokens.logp_T * tokens.logp_T.exp()), 0.005, "token_mean", "actions")


@pytest.mark.parametrize("term", [*TERMS, _Entropy()], ids=lambda term: f"{term.name}-{getattr(term, 'estimator', '')}")
@pytest.mark.parametrize("how", AGGREGATES)
@given(case=cases(), data=st.data())
@settings(max_examples=6, deadline=None)
def test_every_term_can_be_cut_anywhere(term, how: str, case: Case, data: st.DataObject) -> None:
    check_split(_TermAsObjective(term), case, how, data)


@given(case=cases(), seed=st.integers(0, 1000))
@FEW
def test_permuting_sequences_changes_nothing_but_their_order(case: Case, seed: int) -> None:
    tokens = case.tokens
    order = torch.randperm(tokens.length_S.numel(), generator=torch.Generator().manual_seed(seed))
    index_T = torch.cat([(tokens.seq_T == s).nonzero().flatten() for s in order])
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel())
    fields = {name: getattr(tokens, name)[index_T] for name in FIELDS}
    moved = Case(
        ActionTokens(**fields, seq_T=inverse[tokens.seq_T[index_T]], length_S=tokens.length_S[order]), case.group_S[order]
    )
    for name in ("Gspo", "DeepSeekV32", "Dapo", "KimiK2", "R1Printed"):
        value, gradient_T = value_and_gradient(INSTANCES[name], case, "group_token_mean")
        again, moved_T = value_and_gradient(INSTANCES[name], moved, "group_token_mean")
        torch.testing.assert_close(again, value, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(moved_T, gradient_T[index_T], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("fill", [float("nan"), None], ids=["nan", "absent"])
@pytest.mark.parametrize("name", INSTANCES)
@given(case=cases())
@settings(max_examples=8, deadline=None)
def test_an_objective_reads_only_what_it_declares(name: str, fill: float | None, case: Case) -> None:
    objective = INSTANCES[name]
    unread = {
        field: None if fill is None else torch.full_like(case.tokens.logp_T, fill)
        for field in FIELDS
        if field not in objective.reads
    }
    assert "logp_T" in objective.reads
    expected, expected_T = value_and_gradient(objective, case)
    value, gradient_T = value_and_gradient(objective, Case(replace(case.tokens, **unread), case.group_S))
    assert torch.equal(value, expected) and torch.equal(gradient_T, expected_T)


@pytest.mark.parametrize("term", TERMS, ids=lambda term: f"{term.name}-{getattr(term, 'estimator', '')}")
@given(case=cases())
@settings(max_examples=8, deadline=None)
def test_a_term_reads_only_what_it_declares(term, case: Case) -> None:
    unread = {field: torch.full_like(case.tokens.logp_T, float("nan")) for field in FIELDS if field not in term.reads}
    assert torch.equal(term(replace(case.tokens, **unread)), term(case.tokens))


@pytest.mark.parametrize("name", INSTANCES)
@given(case=cases(), data=st.data())
@settings(max_examples=8, deadline=None)
def test_tokens_of_one_sequence_never_touch_anothers_gradient(name: str, case: Case, data: st.DataObject) -> None:
    """NaN in one sequence leaves the others' loss and gradient bit for bit."""
    objective, tokens = INSTANCES[name], case.tokens
    poisoned_T = tokens.seq_T == data.draw(st.sampled_from(sorted(set(tokens.seq_T.tolist()))))
    bad = {field: torch.where(poisoned_T, float("nan"), getattr(tokens, field)) for field in FIELDS}
    _, gradient_T = value_and_gradient(objective, case)
    _, others_T = value_and_gradient(objective, Case(replace(tokens, **bad), case.group_S))
    assert torch.equal(gradient_T[~poisoned_T], others_T[~poisoned_T])


@pytest.mark.parametrize("name", INSTANCES)
def test_only_the_trained_policy_receives_a_gradient(name: str) -> None:
    case = build([3, 2], [0, 0], torch.Generator().manual_seed(1), drift=0.1)
    inputs = {name: getattr(case.tokens, name).clone().requires_grad_() for name in FIELDS}
    loss_T = INSTANCES[name](replace(case.tokens, **inputs)).loss_T
    gradients = torch.autograd.grad(loss_T.sum(), list(inputs.values()), allow_unused=True)
    assert [name for name, gradient_T in zip(inputs, gradients, strict=True) if gradient_T is not None] == ["logp_T"]


def test_the_trained_log_probabilities_may_serve_as_their_own_anchor() -> None:
    case = build([3, 2], [0, 0], torch.Generator().manual_seed(1), drift=0.1)
    logp_T = case.tokens.logp_T.clone().requires_grad_()
    loss = INSTANCES["Ppo"](replace(case.tokens, logp_T=logp_T, anchor_T=logp_T))
    (gradient_T,) = torch.autograd.grad(loss.loss_T.sum(), logp_T)
    torch.testing.assert_close(gradient_T, -case.tokens.advantage_T)


@given(case=cases())
@FEW
def test_a_steps_loss_is_the_sum_of_its_named_terms(case: Case) -> None:
    objective, tokens = INSTANCES["DeepSeekV32"], case.tokens
    policy = Term("policy", objective(tokens).loss_T, 1.0, "sequence_mean", "actions")
    extra = objective.extra_terms[0].term(tokens)
    weight_T = weights(case, "sequence_mean")[tokens.seq_T]
    expected = (weight_T * policy.loss_T).sum() + 0.01 * (weight_T * extra.loss_T).sum()
    torch.testing.assert_close(total_loss([policy, extra], [weight_T, weight_T]), expected)
    assert all_reads(objective) == {"logp_T", "advantage_T", "anchor_T", "behavior_T", "reference_T"}


@given(case=cases(), data=st.data())
@FEW
def test_the_positive_nll_divides_by_tokens_of_correct_sequences_only(case: Case, data: st.DataObject) -> None:
    tokens, count = case.tokens, case.tokens.length_S.numel()
    correct_S = torch.tensor(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    assert PositiveNll(coefficient=0.1).population == "correct"
    weight_S = sequence_weight("token_mean", tokens.length_S, case.group_S, keep_S=correct_S, count_dropped=False)
    logp_T = tokens.logp_T.clone().requires_grad_()
    value = PositiveNll(coefficient=0.1).term(replace(tokens, logp_T=logp_T)).reduce(weight_S[tokens.seq_T])
    (gradient_T,) = torch.autograd.grad(value, logp_T)
    right_T = correct_S[tokens.seq_T]
    expected_T = torch.where(right_T, -0.1 / max(int(right_T.sum()), 1), 0.0).to(torch.float64)
    torch.testing.assert_close(gradient_T, expected_T)
