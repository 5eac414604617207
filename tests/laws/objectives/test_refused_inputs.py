"""Ids that point elsewhere and tensors of another kind are refused as an `ObjectiveError`, before Python or torch does."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from objective_cases import INSTANCES, build
from refusals import flags, ids, refused, vector
from torch import Tensor

import rollbook.objectives as ro
from rollbook.objectives import (
    ActionTokens,
    correction,
    credit,
    distill,
    kl,
    preference,
    select,
    terms,
)
from rollbook.objectives.credit import Measured, StepGroups, assign_credit
from rollbook.objectives.ratios import interpolated_anchor

NAN, INF = math.nan, math.inf


# Ids and shapes


@pytest.mark.parametrize("seq_T", [ids(-1, 0), vector(0, 0), flags(1, 1), ids(0), [0, 0], torch.zeros(2, 1, dtype=torch.int64)])
@pytest.mark.parametrize("rule", ["sequence_tis", "sequence_mis", "geometric_band", "sequence_mask"])
def test_a_sequence_correction_refuses_ids_that_index_nothing(rule: str, seq_T: object) -> None:
    zero_T = vector(0, 0)
    calls = {
        "sequence_tis": lambda: correction.sequence_tis(zero_T, zero_T, seq_T, cap=2.0),
        "sequence_mis": lambda: correction.sequence_mis(zero_T, zero_T, seq_T, cap=2.0),
        "geometric_band": lambda: correction.geometric_band(zero_T, zero_T, seq_T, low=0.5, high=1.0),
        "sequence_mask": lambda: correction.sequence_mask(zero_T, zero_T, zero_T, seq_T, delta=0.1),
    }
    refused(calls[rule])


def stepped(step_T: Tensor) -> Measured:
    return Measured(
        reward_S=vector(1.0, 0.0),
        group_S=ids(0, 0),
        seq_T=ids(0, 0, 1),
        step_reward_K=vector(1.0, 0.0, 0.5),
        step_state_K=ids(7, 7, 7),
        step_seq_K=ids(0, 0, 1),
        step_T=step_T,
    )


def test_a_token_is_credited_with_a_step_of_its_own_sequence() -> None:
    rule = StepGroups(gamma=1.0, omega=1.0, normalizer="one")
    assert assign_credit(rule, stepped(ids(0, 1, 2))).advantage_T.numel() == 3
    error = refused(lambda: stepped(ids(0, 2, 2)), "a step of its own sequence")
    assert error.got == "token 1 of sequence 0 at step 2 of sequence 1"


@pytest.mark.parametrize("name", ["group_S", "minibatch_S", "step_state_K", "step_seq_K", "step_T"])
def test_ids_are_whole_numbers_and_no_flags(name: str) -> None:
    batch = replace(stepped(ids(0, 1, 2)), minibatch_S=ids(0, 0))
    for convert in (Tensor.double, Tensor.bool):
        refused(lambda convert=convert: replace(batch, **{name: convert(getattr(batch, name))}), f"{name} must be integers")


SEGMENTS = {"seq_T": ids(0, 1), "length_S": ids(1, 1), "trajectory_S": ids(0, 0), "order_S": ids(0, 1)}


@pytest.mark.parametrize(
    "change",
    [
        {"order_S": ids(1, 1)},
        {"order_S": vector(0, 1)},
        {"trajectory_S": vector(0, 0)},
        {"length_S": ids(1, -1)},
        {"seq_T": ids(-1, 0)},
        {"gamma": -0.5},
        {"gamma": NAN},
        {"lam": 1.5},
        {"lam": "1"},
        {"advantage_T": ids(1, 1)},
    ],
)
def test_segments_without_an_order_or_a_discount_are_refused(change: dict) -> None:
    whole = {"advantage_T": vector(1, 1), **SEGMENTS, "gamma": 0.9, "lam": 0.9}
    assert credit.segment_discount(**whole).tolist() == pytest.approx([0.81, 1.0])
    assert credit.segment_discount(**{**whole, "trajectory_S": ids(0, 1), "order_S": ids(1, 1)}).tolist() == [1.0, 1.0]
    refused(lambda: credit.segment_discount(**{**whole, **change}))


@pytest.mark.parametrize(
    "change",
    [
        {"gamma": NAN},
        {"gamma": 1.1},
        {"gamma": "1"},
        {"lam": 2.0},
        {"lam": NAN},
        {"lam": -INF},
        {"lam": vector(0.9, 1.5)},
        {"lam": vector(0.9, NAN)},
        {"value_T": vector(0, NAN, 0)},
        {"value_T": vector(0, INF, 0)},
        {"bootstrap_S": vector(0, NAN)},
        {"reward_T": ids(0, 0, 1)},
    ],
)
def test_gae_refuses_what_diverges_or_was_not_measured(change: dict) -> None:
    whole = {"reward_T": vector(0, 1, 1), "value_T": vector(0, 0, 0), "seq_T": ids(0, 0, 1), "gamma": 0.9, "lam": 0.9}
    assert credit.gae(**{**whole, "lam": vector(-3.0, 0.5)}).advantage_T.isfinite().all()
    refused(lambda: credit.gae(**{**whole, **change}))


def test_gae_names_the_token_without_a_value() -> None:
    call = lambda: credit.gae(vector(0, 1, 1), vector(0, NAN, 0), ids(0, 0, 1), gamma=0.9, lam=0.9)  # noqa: E731
    assert refused(call, "value_T must be finite").got == "nan at position 1"


def test_a_state_is_a_hash_and_not_a_measurement() -> None:
    refused(lambda: credit.step_groups(vector(1, 0), vector(0, 0), ids(0, 0), normalizer="one"), "state_K must be integers")
    found = credit.step_groups(vector(1, 0), ids(5, 5).int(), ids(0, 0), normalizer="one")
    assert found.tolist() == [0.5, -0.5]
    assert credit.step_groups(vector(), ids().long(), ids().long(), normalizer="one").numel() == 0


# Everything else


RESPONSE = {"logp_T": vector(-1, -2), "reference_T": vector(-1, -2), "pair_T": ids(0, 1), "format_T": flags(0, 0), "pairs": 2}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pair_T": vector(0, 1)}, "pair_T must be integers"),
        ({"pair_T": flags(0, 1)}, "pair_T must be integers"),
        ({"logp_T": ids(-1, -2)}, "logp_T must be a float tensor"),
        ({"pairs": 2.0}, "pairs must be a count"),
        ({"pairs": True}, "pairs must be a count"),
        ({"pairs": 3}, "a token in every pair"),
        ({"format_T": ids(0, 0)}, "format_T boolean"),
    ],
)
def test_responses_that_cannot_be_summed_are_refused(change: dict, words: str) -> None:
    preference.Responses(**RESPONSE)
    refused(lambda: preference.Responses(**{**RESPONSE, **change}), words)


@pytest.mark.parametrize(
    "call",
    [
        lambda: distill.full_kl(torch.zeros(3), torch.zeros(3), direction="reverse"),
        lambda: distill.full_kl(torch.zeros(1, 3).long(), torch.zeros(1, 3).long(), direction="reverse"),
        lambda: distill.full_kl(torch.zeros(1, 0), torch.zeros(1, 0), direction="forward"),
        lambda: distill.full_kl(torch.zeros(1, 2), torch.full((1, 2), -INF), direction="forward"),
        lambda: distill.full_kl(torch.tensor([[0.0, INF]]), torch.zeros(1, 2), direction="forward"),
        lambda: distill.generalized_jsd(torch.zeros(1, 3), torch.zeros(1, 3), beta="x"),
        lambda: distill.generalized_jsd(torch.zeros(1, 3), torch.zeros(1, 3), beta=True),
        lambda: distill.soft_target(torch.zeros(1, 2), torch.tensor([[0.5, 0.4]])),
        lambda: distill.soft_target(torch.zeros(1, 2), torch.tensor([[1.5, -0.5]])),
        lambda: distill.soft_target(torch.zeros(1, 2), torch.tensor([[NAN, 1.0]])),
        lambda: distill.sampled_token_advantage(vector(-1), vector(-1), coefficient=-1.0),
        lambda: distill.sampled_token_advantage(vector(-1), vector(-INF), coefficient=1.0),
        lambda: select.pass_at_k(3.0, 4, 1),
        lambda: select.pass_at_k(3, 4, True),
        lambda: select.pass_at_k("3", 4, 1),
        lambda: select.mixed([True, False]),
        lambda: select.mixed(ids(1, 0)),
        lambda: select.variance_priority([0.5]),
        lambda: select.failure_priority(flags(1, 0)),
        lambda: select.best_of(vector(1, 2), vector(0, 0)),
        lambda: select.informative(flags(1, 0), vector(0, 0)),
        lambda: select.Rollouts(correct_S=flags(1), calls_S=vector(NAN), errors_S=ids(0), tags_S=ids(1), turns_S=ids(1)),
        lambda: preference.soft_label(vector(1), vector(0), flags(1)),
        lambda: preference.soft_label(vector(INF), vector(0), vector(1)),
        lambda: preference.pairwise(vector(INF), vector(INF)),
        lambda: preference.pairwise(ids(1), ids(0)),
        lambda: preference.dpo(vector(-INF), vector(-INF), vector(0), vector(0), beta=0.1),
        lambda: preference.dpo(vector(-1), vector(-1), vector(-INF), vector(0), beta=0.1),
        lambda: preference.margin(vector(1), vector(0), vector(INF)),
        lambda: preference.ranked(vector(1, NAN), ids(0, 1)),
        lambda: preference.ranked(vector(1, 0), vector(0, NAN)),
        lambda: preference.listwise(vector(1, -INF), flags(1, 0)),
        lambda: preference.option_label(vector(-INF), vector(-INF)),
        lambda: preference.clamp_reasoned_label(vector(1.5), low=0.4, high=0.6),
        lambda: preference.implicit_outcome(vector(-INF), vector(-1), ids(0), vector(1), beta=0.1),
        lambda: kl.k1(ids(1), ids(0)),
        lambda: kl.k3(flags(1), flags(0)),
        lambda: terms.positive_nll([1.0]),
        lambda: terms.entropy_bonus(flags(1)),
        lambda: correction.token_tis(flags(1), flags(0), cap=2.0),
        lambda: credit.group_centered(vector(1, 0), flags(0, 0)),
        lambda: credit.token_rewards(vector(1), vector(NAN), ids(0), beta=0.1),
        lambda: credit.token_rewards(vector(1), vector(0), ids(0), beta=-0.1),
        lambda: credit.discounted_sum([1.0], ids(0), gamma=1.0),
        lambda: credit.moments(ids(1, 2)),
        lambda: credit.moments(vector(NAN)),
        lambda: credit.length_adaptive_lambda(vector(NAN), alpha=1.5, floor=None),
        lambda: credit.token_leave_one_out_paper(vector(1, NAN), ids(0, 1), ids(0, 0)),
        lambda: credit.token_leave_one_out_code(vector(1, 1), ids(-1, 0), ids(0, 0)),
        lambda: credit.implicit_process_paper(vector(1, 1), vector(1, 0), ids(0, 1), ids(0, 0), beta=0.0, gamma=1.0),
        lambda: interpolated_anchor(vector(-1), vector(-1), behavior_version_T=vector(0), anchor_version=1, current_version=2),
        lambda: interpolated_anchor(vector(-1), vector(-1), behavior_version_T=ids(0), anchor_version=3, current_version=2),
        lambda: interpolated_anchor(vector(-1), vector(-1), behavior_version_T=ids(2), anchor_version=1, current_version=3),
        lambda: interpolated_anchor(vector(-1), vector(-1), behavior_version_T=ids(0), anchor_version=1.0, current_version=2),
        lambda: Measured(reward_S=None, group_S=ids(0), seq_T=ids(0)),
        lambda: Measured(reward_S=torch.tensor(1.0), group_S=torch.tensor(0), seq_T=ids(0)),
    ],
)
def test_input_of_another_kind_is_refused_before_python_or_torch_does(call) -> None:
    refused(call)


def test_what_is_legal_on_one_side_only_keeps_its_meaning() -> None:
    """An impossible rejected answer costs nothing, an impossible chosen one everything; q is 0 or 1 for an impossible option."""
    rejected_B = vector(-INF).requires_grad_()
    loss_B = preference.dpo(vector(-1.0), rejected_B, vector(-1.0), vector(-1.0), beta=0.1)
    assert float(loss_B.detach()) == 0 and float(torch.autograd.grad(loss_B.sum(), rejected_B)[0]) == 0
    assert float(preference.dpo(vector(-INF), vector(-1.0), vector(-1.0), vector(-1.0), beta=0.1)) == INF
    assert preference.option_label(vector(-1.0, -INF), vector(-INF, -1.0)).tolist() == [1.0, 0.0]
    assert distill.full_kl(torch.zeros(2, 1, 3), torch.zeros(2, 1, 3), direction="reverse").shape == (2, 1)
    assert preference.soft_label(vector(1), vector(0), ids(1)).tolist() == preference.pairwise(vector(1), vector(0)).tolist()


def test_a_column_that_is_not_contiguous_is_the_same_column() -> None:
    tokens = build([2, 3], [0, 0], torch.Generator().manual_seed(1), drift=0.3).tokens
    strided = {name: torch.stack([getattr(tokens, name)] * 2, dim=1)[:, 0] for name in ("logp_T", "anchor_T", "behavior_T")}
    assert not strided["logp_T"].is_contiguous()
    for objective in INSTANCES.values():
        assert torch.equal(objective(replace(tokens, **strided)).loss_T, objective(tokens).loss_T)
    assert ActionTokens(logp_T=strided["logp_T"], seq_T=tokens.seq_T, length_S=tokens.length_S).anchor_T is None


# A correction of K2.5


@pytest.mark.parametrize("tau_mask", ["all", "kept"])
def test_a_correction_multiplies_k25s_surrogate_and_leaves_its_penalty_alone(tau_mask: str) -> None:
    settings = {"bound_on": "log_ratio", "log_low": -0.3, "log_high": 0.35, "tau_mask": tau_mask, "ratio_to": "anchor"}
    tokens = build([3, 2, 4], [0, 0, 1], torch.Generator().manual_seed(2), drift=0.4).tokens
    whole, policy = ro.KimiK25(tau=0.3, **settings), ro.KimiK25(tau=0.0, **settings)
    corrected = ro.Corrected(objective=whole, rule="token_tis", cap=1.1)
    weight_T = corrected.weight(tokens)
    penalty_T = whole(tokens).loss_T - policy(tokens).loss_T
    torch.testing.assert_close(corrected(tokens).loss_T, weight_T * policy(tokens).loss_T + penalty_T)
    logp_T = tokens.logp_T.clone().requires_grad_()
    (found_T,) = torch.autograd.grad(corrected(replace(tokens, logp_T=logp_T)).loss_T.sum(), logp_T)
    log_T = tokens.logp_T - tokens.anchor_T
    keep_T = (log_T >= -0.3) & (log_T <= 0.35)
    charged_T = keep_T | (tau_mask == "all")
    expected_T = 2 * 0.3 * log_T * charged_T - weight_T * log_T.exp() * tokens.advantage_T * keep_T
    torch.testing.assert_close(found_T, expected_T)
    assert bool((weight_T != 1).any())
