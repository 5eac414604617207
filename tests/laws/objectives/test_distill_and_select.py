"""Distillation over the whole vocabulary or the sampled token; what is selected for training."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import F64, Case, build, value_and_gradient
from torch import Tensor

import rollbook.objectives as ro
from rollbook.objectives import ActionTokens, ObjectiveError
from rollbook.objectives.distill import full_kl, generalized_jsd, sampled_token_advantage, soft_target
from rollbook.objectives.select import (
    Rollouts,
    best_of,
    failure_priority,
    informative,
    mixed,
    pass_at_k,
    resample_on_correct,
    trace_penalty,
    variance_priority,
)

FEW = settings(max_examples=30, deadline=None)


def logits(seed: int, rows: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 5, generator=generator, dtype=F64), torch.randn(rows, 5, generator=generator, dtype=F64)


@given(seed=st.integers(0, 9999))
@FEW
def test_the_reverse_kl_gradient_is_p_times_log_p_minus_log_q_minus_kl_and_rows_sum_to_zero(seed: int) -> None:
    student_TV, teacher_TV = logits(seed)
    student_TV.requires_grad_()
    value_T = full_kl(student_TV, teacher_TV, direction="reverse")
    (gradient_TV,) = torch.autograd.grad(value_T.sum(), student_TV)
    log_p, log_q = student_TV.detach().log_softmax(-1), teacher_TV.log_softmax(-1)
    torch.testing.assert_close(gradient_TV, log_p.exp() * (log_p - log_q - value_T.detach()[:, None]))
    torch.testing.assert_close(gradient_TV.sum(-1), torch.zeros(2, dtype=F64), atol=1e-12, rtol=0)
    assert bool((value_T >= 0).all())


@given(seed=st.integers(0, 9999))
@FEW
def test_the_forward_kl_gradient_is_p_minus_q_and_swapping_roles_swaps_directions(seed: int) -> None:
    student_TV, teacher_TV = logits(seed)
    student_TV.requires_grad_()
    value_T = full_kl(student_TV, teacher_TV, direction="forward")
    (gradient_TV,) = torch.autograd.grad(value_T.sum(), student_TV)
    torch.testing.assert_close(gradient_TV, student_TV.detach().softmax(-1) - teacher_TV.softmax(-1))
    torch.testing.assert_close(value_T.detach(), full_kl(teacher_TV, student_TV.detach(), direction="reverse"))
    assert not torch.allclose(value_T.detach(), full_kl(student_TV.detach(), teacher_TV, direction="reverse"))


@given(seed=st.integers(0, 9999))
@FEW
def test_the_full_vocabulary_gradient_is_the_expected_sampled_token_gradient(seed: int) -> None:
    """Enumerating the vocabulary: sum_v p_v * gradient of on-policy distillation on token v."""
    student_TV, teacher_TV = logits(seed, rows=1)
    student_TV.requires_grad_()
    (expected_TV,) = torch.autograd.grad(full_kl(student_TV, teacher_TV, direction="reverse").sum(), student_TV)
    log_p_V = student_TV.log_softmax(-1)[0]
    size = log_p_V.numel()
    tokens = ActionTokens(
        logp_T=log_p_V,
        behavior_T=log_p_V.detach(),
        teacher_T=teacher_TV.log_softmax(-1)[0],
        seq_T=torch.arange(size),
        length_S=torch.ones(size, dtype=torch.int64),
    )
    for objective in (ro.OnPolicyDistill(), ro.Mopd()):
        sampled = (log_p_V.detach().exp() * objective(tokens).loss_T).sum()
        (sampled_TV,) = torch.autograd.grad(sampled, student_TV, retain_graph=True)
        torch.testing.assert_close(sampled_TV, expected_TV)


@given(seed=st.integers(0, 9999), beta=st.floats(0.05, 0.95))
@FEW
def test_the_generalised_jsd_is_its_definition_and_bounded(seed: int, beta: float) -> None:
    student_TV, teacher_TV = logits(seed)
    p, q = student_TV.softmax(-1), teacher_TV.softmax(-1)
    m = beta * q + (1 - beta) * p
    expected_T = beta * (q * (q / m).log()).sum(-1) + (1 - beta) * (p * (p / m).log()).sum(-1)
    value_T = generalized_jsd(student_TV, teacher_TV, beta=beta)
    torch.testing.assert_close(value_T, expected_T)
    assert bool((value_T >= -1e-12).all())
    mirrored_T = generalized_jsd(teacher_TV, student_TV, beta=1 - beta)
    torch.testing.assert_close(value_T, mirrored_T)


def test_equal_distributions_have_no_divergence_and_no_gradient() -> None:
    student_TV = logits(1)[0].requires_grad_()
    teacher_TV = student_TV.detach() + 3.0
    for value_T in (
        full_kl(student_TV, teacher_TV, direction="reverse"),
        full_kl(student_TV, teacher_TV, direction="forward"),
        generalized_jsd(student_TV, teacher_TV, beta=0.3),
    ):
        (gradient_TV,) = torch.autograd.grad(value_T.sum(), student_TV)
        assert float(value_T.abs().max().detach()) < 1e-12 and float(gradient_TV.abs().max()) < 1e-12


def test_masked_logits_of_the_student_contribute_nothing() -> None:
    """A token outside the student's support (-inf) adds 0, not NaN."""
    student_TV = torch.tensor([[0.0, 1.0, -torch.inf]], dtype=F64, requires_grad=True)
    value_T = full_kl(student_TV, torch.zeros(1, 3, dtype=F64), direction="reverse")
    (gradient_TV,) = torch.autograd.grad(value_T.sum(), student_TV)
    assert bool(value_T.detach().isfinite().all()) and bool(gradient_TV.isfinite().all())


def test_soft_targets_have_gradient_p_minus_target_and_teachers_none() -> None:
    student_TV, teacher_TV = (x.requires_grad_() for x in logits(3))
    (gradient_TV,) = torch.autograd.grad(soft_target(student_TV, teacher_TV.softmax(-1)).sum(), student_TV)
    torch.testing.assert_close(gradient_TV, (student_TV.softmax(-1) - teacher_TV.softmax(-1)).detach())
    value_T = full_kl(student_TV, teacher_TV, direction="reverse")
    assert torch.autograd.grad(value_T.sum(), teacher_TV, allow_unused=True)[0] is None


def test_the_sampled_advantage_is_detached_and_positive_where_the_teacher_finds_the_token_likelier() -> None:
    logp_T = torch.tensor([-1.0, -1.0], dtype=F64, requires_grad=True)
    advantage_T = sampled_token_advantage(logp_T, torch.tensor([-0.5, -2.0], dtype=F64), coefficient=2.0)
    assert advantage_T.tolist() == [1.0, -2.0] and not advantage_T.requires_grad


def test_changing_one_domains_teacher_changes_only_its_rows() -> None:
    case = build([2, 3], [0, 1], torch.Generator().manual_seed(0), drift=0.1)
    moved_T = torch.where(case.tokens.seq_T == 0, case.tokens.teacher_T + 0.3, case.tokens.teacher_T)
    from dataclasses import replace

    _, before_T = value_and_gradient(ro.Mopd(), case)
    _, after_T = value_and_gradient(ro.Mopd(), Case(replace(case.tokens, teacher_T=moved_T), case.group_S))
    assert ((before_T != after_T) == (case.tokens.seq_T == 0)).all()


def test_a_token_outside_mopds_band_is_zero_and_still_counts_in_its_length() -> None:
    case = build([2], [0], torch.Generator().manual_seed(0), drift=0.0)
    from dataclasses import replace

    far_T = case.tokens.logp_T - torch.tensor([2.0, 0.0], dtype=F64)
    tokens = replace(case.tokens, behavior_T=far_T, teacher_T=case.tokens.logp_T + 1.0)
    _, gradient_T = value_and_gradient(ro.Mopd(), Case(tokens, case.group_S))
    assert gradient_T.tolist() == pytest.approx([0.0, -0.5])


# selection


@given(correct=st.lists(st.booleans(), min_size=1, max_size=12), data=st.data())
@FEW
def test_a_group_trains_only_when_some_but_not_all_answers_are_correct(correct: list[bool], data: st.DataObject) -> None:
    groups = data.draw(st.lists(st.integers(0, 2), min_size=len(correct), max_size=len(correct)))
    kept = informative(torch.tensor(correct), torch.tensor(groups)).tolist()
    for keep, group in zip(kept, groups, strict=True):
        members = [c for c, g in zip(correct, groups, strict=True) if g == group]
        assert keep == (any(members) and not all(members))


def test_a_shaped_reward_cannot_decide_dynamic_sampling() -> None:
    with pytest.raises(ObjectiveError, match="booleans"):
        informative(torch.tensor([0.0, -0.5]), torch.tensor([0, 0]))


def test_mixed_priorities_and_best_of() -> None:
    assert [mixed(torch.tensor(labels)) for labels in ([True, True], [False, False], [True, False])] == [False, False, True]
    assert variance_priority(torch.tensor([0.0, 0.5, 1.0])).tolist() == [0.0, 0.25, 0.0]
    assert failure_priority(torch.tensor([0.0, 0.25, 1.0])).tolist() == [1.0, 0.75, 0.0]
    assert best_of(torch.tensor([1.0, 3.0, 3.0, 0.0, -1.0]), torch.tensor([4, 4, 4, 9, 9])).tolist() == [1, 3]


@given(samples=st.integers(1, 7), data=st.data())
@FEW
def test_pass_at_k_equals_brute_force(samples: int, data: st.DataObject) -> None:
    correct, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    draws = list(itertools.combinations(range(samples), k))
    hits = sum(any(i < correct for i in draw) for draw in draws)
    assert pass_at_k(correct, samples, k) == pytest.approx(hits / len(draws))


def rollouts(correct: list[bool], errors: list[int]) -> Rollouts:
    count = len(correct)
    return Rollouts(
        correct_S=torch.tensor(correct),
        calls_S=torch.full((count,), 4),
        errors_S=torch.tensor(errors),
        tags_S=torch.ones(count, dtype=torch.int64),
        turns_S=torch.full((count,), 4),
    )


def test_the_trace_penalty_is_the_printed_one() -> None:
    batch = Rollouts(
        correct_S=torch.tensor([True] * 4),
        calls_S=torch.tensor([0, 4, 4, 4]),
        errors_S=torch.tensor([0, 1, 4, 0]),
        tags_S=torch.tensor([1, 0, 3, 9]),
        turns_S=torch.tensor([2, 2, 4, 4]),
    )
    assert trace_penalty(batch).tolist() == [0.5, 1.25, 1.5, 1.0]


PLAIN = {"odd": "negative", "least": 0}


@given(half=st.lists(st.booleans(), min_size=1, max_size=6), other=st.lists(st.booleans(), min_size=6), seed=st.integers(0, 99))
@FEW
def test_resampling_halves_positives_and_negatives_separately_and_is_seeded(half: list, other: list, seed: int) -> None:
    correct = half + other[: len(half)]
    batch = rollouts(correct, [i % 5 for i in range(len(correct))])
    for odd in ("negative", "positive"):
        kept, again = (
            resample_on_correct(batch, zero_penalty="first", odd=odd, least=0, generator=torch.Generator().manual_seed(seed))
            for _ in range(2)
        )
        assert torch.equal(kept, again) and kept.unique().numel() == kept.numel() == len(half)
        assert sum(correct[i] for i in kept.tolist()) == (sum(correct) + (odd == "positive")) // 2


@given(positives=st.integers(0, 12), seed=st.integers(0, 99))
@FEW
def test_at_least_as_many_of_each_kind_are_kept_as_the_code_keeps(positives: int, seed: int) -> None:
    correct = [True] * positives + [False] * (12 - positives)
    batch = rollouts(correct, [1] * 12)
    generator = torch.Generator().manual_seed(seed)
    kept = resample_on_correct(batch, zero_penalty="first", odd="negative", least=2, generator=generator)
    right = sum(correct[i] for i in kept.tolist())
    assert right >= min(2, positives) and 6 - right >= min(2, 12 - positives)
    if 4 <= positives <= 8:
        assert right == positives // 2


def test_clean_positives_are_kept_before_all_others() -> None:
    batch = rollouts([True] * 4 + [False] * 4, [4, 0, 4, 0, 0, 0, 0, 0])
    for seed in range(20):
        kept = resample_on_correct(batch, zero_penalty="first", **PLAIN, generator=torch.Generator().manual_seed(seed))
        assert {1, 3} <= set(kept.tolist())
    seen = set()
    for seed in range(40):
        kept = resample_on_correct(batch, zero_penalty="uniform", **PLAIN, generator=torch.Generator().manual_seed(seed))
        seen |= set(kept.tolist())
    assert {0, 2} <= seen


def test_a_higher_penalty_is_kept_less_often() -> None:
    batch = rollouts([True, True], [4, 1])
    first = [
        int(resample_on_correct(batch, zero_penalty="first", **PLAIN, generator=torch.Generator().manual_seed(seed))[0])
        for seed in range(300)
    ]
    assert 0.7 < sum(first) / 300 < 0.9


@pytest.mark.parametrize(
    "call",
    [
        lambda: full_kl(torch.zeros(1, 3), torch.zeros(1, 4), direction="reverse"),
        lambda: generalized_jsd(torch.zeros(1, 3), torch.zeros(1, 3), beta=0.0),
        lambda: pass_at_k(3, 2, 1),
        lambda: pass_at_k(1, 2, 3),
        lambda: resample_on_correct(rollouts([True, True], [0, 0]), zero_penalty="skip", **PLAIN, generator=torch.Generator()),
        lambda: resample_on_correct(
            rollouts([True] * 3, [0] * 3), zero_penalty="first", **PLAIN, generator=torch.Generator()
        ),
        lambda: resample_on_correct(
            rollouts([True] * 4, [0] * 4), zero_penalty="first", odd="negative", least=2, generator=torch.Generator()
        ),
        lambda: resample_on_correct(
            rollouts([True] * 4, [0] * 4), zero_penalty="first", odd="both", least=0, generator=torch.Generator()
        ),
    ],
)
def test_selection_and_distillation_without_a_meaning_are_refused(call) -> None:
    with pytest.raises(ObjectiveError):
        call()
