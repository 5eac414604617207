"""Settings and tensors without a meaning are refused by name, before they can broadcast, divide or turn a sign."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from objective_cases import F64, INSTANCES, build

import rollbook.objectives as ro
from rollbook.objectives import ActionTokens, ObjectiveError, credit, kl, preference, sequence_weight, value
from rollbook.objectives import correction as off
from rollbook.objectives import distill as teach
from rollbook.objectives.select import best_of
from rollbook.objectives.terms import AdaptiveEntropy, PositiveNll, Ptx

NAN = float("nan")
ONE, TWO, THREE = torch.ones(1), torch.ones(2), torch.ones(3)
SEQ2 = torch.tensor([0, 0])


def responses(pair: int) -> preference.Responses:
    return preference.Responses(
        logp_T=-ONE, reference_T=-ONE, pair_T=torch.tensor([pair]), format_T=torch.tensor([False]), pairs=1
    )


def refused(call, words: str = "") -> ObjectiveError:
    with pytest.raises(ObjectiveError) as caught:
        call()
    assert words in str(caught.value)
    return caught.value


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDecoupled(ro.DecoupledPpo):
    """A user's own subclass."""


@pytest.mark.parametrize(
    ("objective", "why"),
    [
        (ro.Corrected(objective=ro.Dapo(), rule="token_tis", cap=2.0), "twice"),
        (OwnDecoupled(weight_rule="none"), "twice"),
        (ro.Glm5Reasoning(), "twice"),
        (ro.Sao(low=0.3, high=5.0), "ratio is to the behavior"),
        (ro.KimiK15(tau=0.3, scale="squared"), "no importance-weighted surrogate"),
        (ro.KimiK2(tau=0.3, scale="squared"), "no importance-weighted surrogate"),
        (ro.Rloo(), "no ratio"),
        ("Dapo", "no objective"),
    ],
)
def test_what_must_not_be_corrected_says_why(objective, why: str) -> None:
    refused(lambda: ro.Corrected(objective=objective, rule="token_tis", cap=2.0), why)


@pytest.mark.parametrize("rule", ["sequence_tis", "sequence_mis"])
def test_a_sequence_rule_makes_a_token_objective_need_whole_sequences(rule: str) -> None:
    corrected = ro.Corrected(objective=ro.Dapo(), rule=rule, cap=2.0)
    tokens = build([3], [0], torch.Generator().manual_seed(0), drift=0.2).tokens
    assert corrected.scope == "sequence" and ro.Corrected(objective=ro.Dapo(), rule="token_tis", cap=2.0).scope == "token"
    refused(lambda: corrected(replace(tokens, length_S=torch.tensor([4]))), "whole sequences")


@pytest.mark.parametrize(
    "call",
    [
        lambda: kl.k1(TWO, ONE),
        lambda: kl.k2(TWO, ONE),
        lambda: kl.k3(TWO, ONE),
        lambda: kl.unbiased(TWO, TWO, ONE),
        lambda: value.squared_value_loss(TWO, ONE, factor=0.5),
        lambda: value.clipped_value_loss(TWO, TWO, ONE, clip=0.2, factor=0.5),
        lambda: off.token_tis(TWO, ONE, cap=2.0),
        lambda: off.sequence_tis(TWO, ONE, SEQ2, cap=2.0),
        lambda: preference.dpo(TWO, ONE, TWO, TWO, beta=0.1),
        lambda: preference.pairwise(TWO, ONE),
        lambda: credit.token_rewards(ONE, ONE, SEQ2, beta=0.1),
        lambda: credit.gae(TWO, TWO, SEQ2 + torch.arange(2), gamma=1.0, lam=ONE),
        lambda: credit.gae(TWO, TWO, SEQ2 + torch.arange(2), gamma=1.0, lam=1.0, bootstrap_S=ONE),
        lambda: credit.gae(TWO, TWO, SEQ2, gamma=1.0, lam=torch.tensor(0.9)),
    ],
)
def test_a_shorter_vector_is_refused_not_repeated(call) -> None:
    refused(call)


@pytest.mark.parametrize(
    "call",
    [
        lambda: credit.token_rewards(TWO, None, torch.tensor([0, 1, 0]), beta=None),
        lambda: credit.token_rewards(TWO, None, torch.tensor([-1, 0]), beta=None),
        lambda: credit.token_rewards(ONE, None, torch.tensor([0, 1]), beta=None),
        lambda: credit.gae(TWO, torch.tensor([1, 2]), SEQ2, gamma=0.9, lam=0.9),
        lambda: credit.gae(torch.tensor([1, 2]), TWO, SEQ2, gamma=0.9, lam=0.9),
        lambda: preference.listwise(THREE, torch.tensor([1, 0, 1])),
        lambda: preference.dpo(ONE, ONE, ONE, ONE, beta=0.0),
        lambda: preference.soft_label(ONE, ONE, ONE * 1.5),
        lambda: preference.soft_label(ONE, ONE, ONE * NAN),
        lambda: value.clipped_value_loss(ONE, ONE, ONE, clip=-0.1, factor=0.5),
        lambda: off.sequence_mask(TWO, TWO, TWO, SEQ2, delta=NAN),
        lambda: credit.group_normalized(TWO, SEQ2, eps=NAN, ddof=0),
        lambda: credit.group_normalized(TWO, SEQ2, eps=-1.0, ddof=0),
        lambda: credit.batch_normalized(TWO, eps=-1.0, ddof=0),
        lambda: credit.minibatch_standardized(TWO, eps=NAN, ddof=0, keep_S=None),
        lambda: sequence_weight("fixed_length", SEQ2 + 1, None, max_length=NAN),
        lambda: teach.full_kl(TWO[None], TWO[None], direction="revers"),
        lambda: best_of(torch.tensor([NAN, 1.0]), SEQ2),
        lambda: responses(1),
        lambda: responses(-1),
        lambda: ActionTokens(logp_T=[-1.0], seq_T=torch.tensor([0]), length_S=torch.tensor([1])),
        lambda: ActionTokens(logp_T=-ONE, seq_T=torch.tensor([0]), length_S=torch.tensor([1]), anchor_T=[-1.0]),
        lambda: credit.group_centered([1.0, 0.0], SEQ2),
        lambda: kl.k1([1.0], ONE),
        lambda: sequence_weight("token_mean", [1, 2], None),
    ],
)
def test_input_without_a_meaning_is_refused(call) -> None:
    refused(call)


GAE = {"gamma": 0.9, "lam_policy": 0.9, "lam_critic": 0.9}
ADAPTIVE = {"gamma": 0.9, "alpha": 1.5, "floor": 0.0, "counts": "all_tokens", "lam_critic": 1.0}


@pytest.mark.parametrize(
    "call",
    [
        *(lambda name=name, bad=bad: credit.Gae(**{**GAE, name: bad}) for name in GAE for bad in (-0.1, 1.1, NAN)),
        *(
            lambda name=name, bad=bad: credit.LengthAdaptiveGae(**{**ADAPTIVE, name: bad})
            for name, bad in {"gamma": 1.1, "floor": 1.1, "lam_critic": -0.1, "alpha": NAN}.items()
        ),
        lambda: credit.Gae(**GAE, kl_beta=-0.1),
        lambda: credit.LeaveOneOut(kl_beta=-0.1),
        lambda: credit.StepGroups(gamma=0.9, omega=NAN, normalizer="one"),
        lambda: credit.StepGroups(gamma=1.9, omega=1.0, normalizer="one"),
        lambda: credit.ImplicitProcess(beta=-1.0, gamma=1.0),
        lambda: credit.ImplicitProcessCode(beta=0.05, process_coefficient=-5.0, outcome_coefficient=5.0, eps=0.0),
        lambda: ro.PpoPtx(ptx_coefficient=-1.0),
        lambda: PositiveNll(coefficient=-0.1),
        lambda: Ptx(coefficient=-0.1, aggregate="token_mean"),
        lambda: AdaptiveEntropy(step=-0.1, maximum=None),
        lambda: AdaptiveEntropy(step=0.1, maximum=-1.0),
        lambda: ro.Dapo(overlong_filter="yes"),
        lambda: ro.Dapo(aggregate="mean"),
        lambda: ro.Rloo(aggregate="mean"),
        lambda: ro.Gspo(credit="GroupCentered"),
        lambda: ro.Ppo(credit=ro.Dapo()),
        lambda: ro.Ppo(low="0.2"),
        lambda: ro.Ppo(low=True),
        lambda: ro.Sapo(tau_positive=None),
        lambda: ro.R1Printed(kl_estimator="k1"),
    ],
)
def test_settings_outside_their_range_or_kind_are_refused(call) -> None:
    refused(call)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: ro.Grpo(low=0.2, high=0.2, beta=-1.0), "Grpo.beta"),
        (lambda: ro.MimoMopd(low=0.2, high=0.2, alpha=-1.0), "MimoMopd.alpha"),
        (lambda: ro.DeepSeekV32(low=0.2, high=0.2, delta=-1.0, beta=0.0), "DeepSeekV32.delta"),
        (lambda: credit.GroupNormalized(eps=-1.0, ddof=0), "GroupNormalized.eps must be >= 0"),
    ],
)
def test_a_negative_coefficient_is_not_called_a_distance_from_one(call, name: str) -> None:
    error = refused(call, name)
    assert "distance" not in str(error) and "> 0" not in error.what


def test_r1s_kl_has_no_estimator_and_no_denominator_of_its_own() -> None:
    with pytest.raises(TypeError):
        ro.R1Printed()
    (term,) = ro.R1Printed(kl_estimator="k3").extra_terms
    tokens = build([2], [0], torch.Generator().manual_seed(0), drift=0.2).tokens
    refused(lambda: term.term(tokens), "kl_aggregate")
    (chosen,) = ro.R1Printed(kl_estimator="k2", kl_aggregate="sequence_sum").extra_terms
    assert chosen.term(tokens).aggregate == "sequence_sum"
    assert torch.equal(chosen(tokens), kl.k2(tokens.logp_T, tokens.reference_T))


@pytest.mark.parametrize("name", INSTANCES)
def test_int32_sequence_ids_are_the_same_ids(name: str) -> None:
    tokens = build([2, 0, 3], [0, 0, 1], torch.Generator().manual_seed(3), drift=0.2).tokens
    narrow = replace(tokens, seq_T=tokens.seq_T.int())
    assert torch.equal(INSTANCES[name](narrow).loss_T, INSTANCES[name](tokens).loss_T)


@pytest.mark.parametrize("name", ["Gspo", "R1Printed", "KimiK15", "KimiK2", "DeepSeekV32"])
def test_a_nan_advantage_inside_a_sequence_does_not_vanish(name: str) -> None:
    tokens = build([3], [0], torch.Generator().manual_seed(0), drift=0.2).tokens
    for place in range(3):
        advantage_T = torch.ones(3, dtype=F64)
        advantage_T[place] = NAN
        refused(lambda a_T=advantage_T: INSTANCES[name](replace(tokens, advantage_T=a_T)), "one advantage per sequence")
    loss_T = INSTANCES[name](replace(tokens, advantage_T=torch.full((3,), NAN, dtype=F64))).loss_T
    assert bool(loss_T.isnan().all())
