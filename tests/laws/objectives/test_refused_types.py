"""Settings, terms and weights of the wrong type are refused as an `ObjectiveError`, never as Python's own error."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
import torch
from objective_cases import INSTANCES
from refusals import flags, ids, refused, vector

import rollbook.objectives as ro
from rollbook.objectives import (
    ActionTokens,
    Term,
    correction,
    credit,
    preference,
    select,
    sequence_weight,
    terms,
    token_weight,
    total_loss,
)
from rollbook.objectives.credit import StepGroups
from rollbook.objectives.schema import json_schema
from rollbook.objectives.settings import from_settings, to_settings

NAN, INF = math.nan, math.inf
MINUS_INF = -INF
BAD_SETTINGS = ["x", "1", None, True, NAN, MINUS_INF, [], {}, (1, 2), object(), torch.tensor([1, 2])]


# Settings

RECORDS = [
    *INSTANCES.values(),
    credit.GroupNormalized(eps=1e-6, ddof=1),
    credit.LeaveOneOut(kl_beta=0.1),
    credit.BatchNormalized(kl_beta=0.1, baseline="none", weighting="token", gamma=1.0, eps=1e-6, ddof=0),
    credit.Gae(gamma=0.9, lam_policy=0.9, lam_critic=1.0),
    credit.LengthAdaptiveGae(gamma=0.9, alpha=1.5, floor=0.0, counts="action_tokens", lam_critic=1.0),
    StepGroups(gamma=0.9, omega=1.0, normalizer="std", eps=0.0, ddof=0),
    credit.ImplicitProcess(beta=0.05, gamma=0.9),
    credit.ImplicitProcessCode(beta=0.05, process_coefficient=5.0, outcome_coefficient=5.0, eps=1e-6),
    terms.KlTerm(estimator="k2", coefficient=0.1, aggregate="token_mean"),
    terms.PositiveNll(coefficient=0.1),
    terms.Ptx(coefficient=1.0, aggregate="token_mean"),
    terms.AdaptiveEntropy(step=0.1, maximum=0.2),
    preference.Dpo(),
    preference.Llama3Dpo(nll_reduction="sum", nll_on="all"),
]
MEANT = {"dual", "weight_cap", "floor", "maximum", "kl_beta", "low", "high", "log_low", "log_high", "cap", "overlong_filter"}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_setting_of_another_type_is_refused_whatever_it_is(record) -> None:
    """`MEANT` are settings for which None, a flag or an infinity has a meaning in some record."""
    for field in fields(record):
        for bad in BAD_SETTINGS:
            if field.name not in MEANT or not (bad is None or bad is True or bad is MINUS_INF):
                refused(lambda name=field.name, bad=bad: replace(record, **{name: bad}))


@pytest.mark.parametrize("bad", ["banana", "mean", None, 1])
def test_every_term_refuses_an_aggregate_that_names_no_denominator(bad: object) -> None:
    for call in (
        lambda: terms.KlTerm(estimator="k3", coefficient=0.1, aggregate=bad),
        lambda: terms.PositiveNll(coefficient=0.1, aggregate=bad),
        lambda: terms.Ptx(coefficient=0.1, aggregate=bad),
        lambda: ro.PpoPtx(ptx_aggregate=bad),
        lambda: ro.R1Printed(kl_estimator="k3", kl_aggregate=bad),
    ):
        refused(call, "aggregate must be one of")


@pytest.mark.parametrize("bad", ["1", 1.0, True, 2, None])
def test_ddof_is_zero_or_one_as_a_number(bad: object) -> None:
    for call in (
        lambda: credit.GroupNormalized(eps=0.0, ddof=bad),
        lambda: credit.group_normalized(vector(1, 0), ids(0, 0), eps=0.0, ddof=bad),
        lambda: credit.moments(vector(1, 0)).std(ddof=bad),
    ):
        refused(call, "ddof must be 0 or 1")


def test_numbers_of_a_std_that_nothing_is_divided_by_are_refused() -> None:
    refused(lambda: StepGroups(gamma=0.9, omega=1.0, normalizer="one", eps=1e-6), "takes no eps")
    refused(lambda: StepGroups(gamma=0.9, omega=1.0, normalizer="one", ddof=1), "takes no eps")
    refused(lambda: credit.step_groups(vector(1, 0), ids(0, 0), ids(0, 0), normalizer="one", eps=0.0, ddof=0), "takes no eps")


@pytest.mark.parametrize(
    "settings",
    [
        None,
        1,
        [],
        "Gspo",
        {"kind": None},
        {"kind": ["Gspo"]},
        {"kind": "Gspo", 3: 4},
        {"kind": "Gspo", "credit": {}},
        {"kind": "Gspo", "credit": None},
        {"kind": "Gspo", "credit": {"kind": "Dapo"}},
        {"kind": "Corrected", "objective": {"kind": "GroupCentered"}, "rule": "token_tis", "cap": 2.0},
        {"kind": "Corrected", "objective": None, "rule": "token_tis", "cap": 2.0},
        {"kind": "Dapo", "overlong_filter": {"kind": "Gspo"}},
    ],
)
def test_what_is_no_mapping_of_settings_is_refused(settings: object) -> None:
    refused(lambda: from_settings(settings))


@pytest.mark.parametrize("record", [None, 1, "Gspo", ro.Gspo, {"kind": "Gspo"}])
def test_what_is_no_settings_record_has_no_settings(record: object) -> None:
    refused(lambda: to_settings(record), "settings record")


# Terms


def test_a_step_without_a_term_has_no_loss() -> None:
    term = Term("policy", vector(1.0), 1.0, "token_mean", "actions")
    assert float(total_loss([term], [vector(0.5)])) == 0.5
    for terms_, weights in (([], []), ([term], []), ([], [vector(1.0)])):
        refused(lambda terms_=terms_, weights=weights: total_loss(terms_, weights), "at least one term")


@pytest.mark.parametrize("bad", ["1", None, True, NAN, INF])
def test_a_terms_coefficient_is_a_finite_number(bad: object) -> None:
    refused(lambda: Term("policy", vector(1.0), bad, "token_mean", "actions"), "coefficient must be")


def test_what_is_no_tensor_is_neither_loss_nor_weight() -> None:
    refused(lambda: Term("policy", [1.0], 1.0, "token_mean", "actions"), "loss_T must be a tensor")
    refused(lambda: Term("policy", vector(1.0), 1.0, "token_mean", "actions").reduce([1.0]), "weight_T must be a tensor")


@pytest.mark.parametrize("bad", [None, "0.1", NAN, INF, True, torch.tensor(0.1)])
def test_skyworks_coefficient_moves_by_measured_numbers_only(bad: object) -> None:
    rule = terms.AdaptiveEntropy(step=0.1, maximum=None)
    for call in (lambda: rule.advance(0.0, bad), lambda: rule.coefficient(0.0, bad), lambda: rule.advance(bad, 0.1)):
        refused(call, "AdaptiveEntropy")
    refused(lambda: rule.advance(-0.1, 0.1), "alpha must be >= 0")


# Weights


def test_count_dropped_is_a_flag_also_where_nothing_is_dropped() -> None:
    for bad in ("no", 0, 1):
        refused(lambda bad=bad: sequence_weight("token_mean", ids(1, 2), None, count_dropped=bad), "count_dropped")


def test_a_sequence_longer_than_the_maximum_length_is_refused_unless_it_is_dropped() -> None:
    error = refused(lambda: sequence_weight("fixed_length", ids(2, 5, 3), None, max_length=4), "at most that many tokens")
    assert error.got == "5 tokens in sequence 1"
    weight_S = sequence_weight(
        "fixed_length", ids(2, 5, 4), None, max_length=4, keep_S=flags(1, 0, 1), count_dropped=False
    )
    assert weight_S.tolist() == [1 / 8, 0.0, 1 / 8]
    assert sequence_weight("token_mean", ids(2, 5), None, max_length=4).tolist() == [1 / 7, 1 / 7]


@pytest.mark.parametrize("seq_T", [ids(-1, 0), ids(0, 2), vector(0, 1), flags(0, 1), [0, 1]])
def test_a_token_of_no_sequence_has_no_weight(seq_T: object) -> None:
    refused(lambda: token_weight(vector(0.5, 0.5), seq_T), "token_weight")


@pytest.mark.parametrize("what", [None, "Ppo", 3, ro.Ppo(), int, vector(1), ro.ActionTokens], ids=lambda x: type(x).__name__)
def test_only_the_class_of_an_objective_or_a_rule_has_a_schema(what: object) -> None:
    refused(lambda: json_schema(what), "json_schema takes the class")
    assert {json_schema(cls)["type"] for cls in (ro.Corrected, ro.WithEntropy, credit.Gae)} == {"object"}


def test_a_sparse_tensor_is_refused_by_name_and_not_by_torch() -> None:
    sparse = vector(1, 0).to_sparse()
    for call in (
        lambda: ActionTokens(logp_T=sparse, seq_T=ids(0, 1), length_S=ids(1, 1)),
        lambda: sequence_weight("token_mean", ids(1, 1).to_sparse(), None),
        lambda: Term("p", vector(1, 1), 1.0, "token_mean", "actions").reduce(sparse),
        lambda: credit.group_centered(sparse, ids(0, 0)),
        lambda: correction.sequence_tis(sparse, vector(1, 0), ids(0, 0), cap=2.0),
        lambda: select.best_of(sparse, ids(0, 0)),
        lambda: preference.clamp_reasoned_label(sparse, low=0.4, high=0.6),
    ):
        assert "sparse" in refused(call, "must be a dense tensor").got


def test_what_has_no_order_is_neither_a_rank_nor_an_outcome() -> None:
    strange = torch.tensor([0, 1j])
    refused(lambda: preference.ranked(vector(1, 0), strange), "rank_K must be real")
    arguments = {"logp_T": vector(-1, -1), "reference_T": vector(-1, -2), "seq_T": ids(0, 1), "beta": 0.1}
    refused(lambda: preference.implicit_outcome(**arguments, outcome_S=strange), "outcome_S must be real")
    whole, flag = (preference.implicit_outcome(**arguments, outcome_S=held) for held in (ids(1, 0), vector(1, 0) > 0))
    assert torch.equal(whole, flag)
