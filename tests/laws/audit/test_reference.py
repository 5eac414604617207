"""The plain reference against the learner's objectives, the printed golden vectors, and finite differences."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from reference_cases import AGGREGATES, RANDOM, RULES, Case, Learned, case, corrected, learned, stored

import rollbook.audit.reference as plain
import rollbook.objectives as ro
from rollbook.audit.reference import RecomputeError, Reference, Step, extra_terms, policy_loss, term_loss, weights
from rollbook.objectives.corrected import uncorrectable
from rollbook.objectives.terms import KlTerm, PositiveNll
from rollbook.records import RollbookError

PER_TOKEN = ("Ppo", "PpoPtx", "Grpo", "DrGrpo", "Dapo", "GspoToken", "Sapo", "Cispo", "Rloo", "ReinforcePlusPlus",
             "ReinforcePlusPlusBaseline", "Magistral", "KimiK25", "Sao", "Glm5Reasoning", "Glm5Agentic", "DecoupledPpo",
             "Vapo", "MimoMopd")  # take one advantage per token
SEEDS = range(24)


def agree(found: Reference, expected: Learned, *, coefficient: float = 1.0, at: float = 1e-12) -> None:
    """Equal to 1e-10 relative; `at` forgives what cancels."""
    np.testing.assert_allclose(found.loss_T, expected.loss_T, rtol=1e-10, atol=at)
    np.testing.assert_allclose(found.gradient_T, coefficient * expected.gradient_T, rtol=1e-10, atol=at)
    np.testing.assert_allclose(found.loss, coefficient * expected.loss, rtol=1e-10, atol=at)
    assert np.array_equal(found.clipped_T, expected.clipped_T)


def test_the_reference_knows_every_objective_of_the_catalogue() -> None:
    assert set(RANDOM) == set(ro.OBJECTIVES)


def test_the_reference_shares_no_code_with_the_objectives_and_needs_no_torch() -> None:
    for file in Path(plain.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else (
                [node.module or ""] if isinstance(node, ast.ImportFrom) else [])
            assert not [name for name in names if name.startswith(("torch", "rollbook.objectives"))], file
    code = "import rollbook.audit.reference, sys; print('torch' in sys.modules, 'rollbook.objectives' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("name", RANDOM)
def test_loss_and_gradient_of_a_step_equal_the_learners_over_its_micro_batches(name: str) -> None:
    clipped = 0
    for seed in SEEDS:
        objective = RANDOM[name](random.Random(seed))
        for weight in ("any", AGGREGATES[seed % 5]):
            step = case(seed, per_token=name in PER_TOKEN and seed % 2 == 1, weight=weight)
            found = policy_loss(stored(objective), step.step, step.weight_T)
            agree(found, learned(objective, objective.scope, step, seed))
            clipped += int(found.clipped_T.sum())
    assert (clipped > 0) == (name not in ("Sapo", "Rloo", "KimiK15", "KimiK2", "OnPolicyDistill")), "both branches are seen"


@pytest.mark.parametrize("rule", RULES)
def test_a_corrected_objective_equals_the_learners(rule: str) -> None:
    for seed in range(40):
        objective, step = corrected(random.Random(seed), rule), case(seed)
        agree(policy_loss(stored(objective), step.step, step.weight_T), learned(objective, objective.scope, step, seed))


@pytest.mark.parametrize("rule", RULES)
def test_a_correction_of_k25_leaves_its_penalty_alone_as_the_learners_does(rule: str) -> None:
    limits = {"low": 0.3, "high": 0.4} if rule in ("icepop", "geometric_band") else {"cap": 1.1}
    for seed in range(40):
        inner = replace(RANDOM["KimiK25"](random.Random(seed)), ratio_to="anchor")
        objective, step = ro.Corrected(objective=inner, rule=rule, **limits), case(seed, per_token=seed % 2 == 1)
        found = policy_loss(stored(objective), step.step, step.weight_T)
        agree(found, learned(objective, objective.scope, step, seed))


@pytest.mark.parametrize("name", RANDOM)
def test_a_correction_is_refused_for_the_objectives_for_which_the_learner_refuses_it(name: str) -> None:
    for seed in range(8):
        inner = RANDOM[name](random.Random(seed))
        settings = {"kind": "Corrected", "objective": stored(inner), "rule": "token_tis", "cap": 2.0, "low": None, "high": None}
        if uncorrectable(inner) is None:
            policy_loss(settings, case(seed).step, case(seed).weight_T)
        else:
            with pytest.raises(RecomputeError, match="cannot be weighted"):
                policy_loss(settings, case(seed).step, case(seed).weight_T)


@pytest.mark.parametrize("estimator", ["k2", "k3", "unbiased"])
def test_the_kl_term_equals_the_learners(estimator: str) -> None:
    for seed in SEEDS:
        term, step = KlTerm(estimator=estimator, coefficient=0.1 + seed, aggregate="token_mean"), case(seed, scale=1.0)
        found = term_loss("kl", stored(term), step.step, step.weight_T)
        agree(found, learned(term, "token", step, seed), coefficient=term.coefficient)


def test_the_positive_nll_equals_the_learners_under_the_weights_of_correct_sequences() -> None:
    for seed in SEEDS:
        term, step = PositiveNll(coefficient=0.1), case(seed)
        length_S, correct_S = step.step.length_S, step.step.correct_S
        own_S = weights("token_mean", length_S, None, None, correct_S, False)
        weighed = Case(step.step, own_S[step.step.seq_T])
        found = term_loss("positive_nll", stored(term), step.step, weighed.weight_T)
        expected = learned(term, "token", weighed, seed)
        np.testing.assert_allclose(found.gradient_T, 0.1 * expected.gradient_T, rtol=1e-10)
        np.testing.assert_allclose(found.loss, 0.1 * expected.loss, rtol=1e-10)


def test_a_weight_on_a_wrong_answer_moves_the_learners_nll_and_not_the_references() -> None:
    step = Step(logp_T=np.array([-1.0, -2.0]), behavior_T=np.zeros(2), seq_T=np.array([0, 1]), length_S=np.array([1, 1]),
                group_S=np.array([0, 0]), correct_S=np.array([True, False]))
    found = term_loss("positive_nll", {"kind": "PositiveNll", "coefficient": 1.0}, step, np.array([1.0, 1.0]))
    assert found.loss == 1.0 and found.gradient_T.tolist() == [-1.0, 0.0]


@pytest.mark.parametrize("name", RANDOM)
def test_the_extra_terms_of_a_document_are_the_objectives(name: str) -> None:
    for seed in SEEDS:
        objective = RANDOM[name](random.Random(seed))
        assert list(extra_terms(stored(objective))) == [(term.name, stored(term)) for term in objective.extra_terms]


def test_a_correction_leaves_the_extra_terms_as_they_are() -> None:
    objective = ro.Corrected(objective=ro.Grpo(low=0.2, high=0.3), rule="icepop", low=0.5, high=1.0)
    assert extra_terms(stored(objective)) == extra_terms(stored(objective.objective)) != ()


@pytest.mark.parametrize("name", RANDOM)
def test_log_ratios_far_beyond_the_guard_equal_the_learners(name: str) -> None:
    for seed in range(12):
        objective, step = RANDOM[name](random.Random(seed)), case(seed, scale=40.0)
        found = policy_loss(stored(objective), step.step, step.weight_T)
        expected = learned(objective, objective.scope, step, seed)
        agree(found, expected)


@pytest.mark.parametrize("estimator", ["k3", "unbiased"])
def test_a_kl_far_beyond_the_guard_equals_the_learners(estimator: str) -> None:
    for seed in range(12):
        term, step = KlTerm(estimator=estimator, coefficient=1.0, aggregate="token_mean"), case(seed, scale=40.0)
        found, expected = term_loss("kl", stored(term), step.step, step.weight_T), learned(term, "token", step, seed)
        np.testing.assert_allclose(found.loss_T, expected.loss_T, rtol=1e-10)
        np.testing.assert_allclose(found.gradient_T, expected.gradient_T, rtol=1e-10)


# Equality at the bounds: everything at ratio 1 and log-ratio 0, where both sides are exact

ONE = Step(logp_T=np.array([-1.0, -1.0]), behavior_T=np.array([-1.0, -1.0]), anchor_T=np.array([-1.0, -1.0]),
           teacher_T=np.array([-0.5, -0.5]), reference_T=np.array([-1.0, -1.0]), advantage_T=np.array([1.0, -1.0]),
           seq_T=np.array([0, 1]), length_S=np.array([1, 1]), group_S=np.array([0, 0]))
NOTHING = {"low": 0.0, "high": 0.0}
AT_BOUND = {
    "Ppo": (ro.Ppo(**NOTHING), True),
    "Gspo": (ro.Gspo(**NOTHING), True),
    "GspoToken": (ro.GspoToken(**NOTHING), True),
    "R1Printed": (ro.R1Printed(**NOTHING, kl_estimator="k3", kl_aggregate="sequence_sum"), True),
    "Cispo": (ro.Cispo(**NOTHING), True),
    "Sao, strict below": (ro.Sao(low=0.0, high=5.0), False),
    "Sao, strict above": (ro.Sao(low=0.3, high=0.0), False),
    "Glm5Agentic, strict": (ro.Glm5Agentic(**NOTHING), False),
    "Mopd": (ro.Mopd(**NOTHING), True),
    "MimoMopd": (ro.MimoMopd(**NOTHING, alpha=0.7), True),
    "KimiK25 on the ratio": (ro.KimiK25(tau=0.1, bound_on="ratio", **NOTHING, tau_mask="all", ratio_to="anchor"), True),
    "KimiK25 on its log": (ro.KimiK25(tau=0.1, bound_on="log_ratio", log_low=0.0, log_high=0.0, tau_mask="all",
                                      ratio_to="anchor"), True),
    "DecoupledPpo, mask": (ro.DecoupledPpo(weight_rule="mask", weight_cap=1.0), True),
    "Glm5Reasoning": (ro.Glm5Reasoning(beta=1.0), True),
    "DeepSeekV32": (ro.DeepSeekV32(low=0.2, high=0.2, delta=0.0, beta=0.0), True),
    "IcePop": (ro.Corrected(objective=ro.Ppo(), rule="icepop", **NOTHING), True),
    "geometric band": (ro.Corrected(objective=ro.Ppo(), rule="geometric_band", **NOTHING), True),
    "sequence MIS": (ro.Corrected(objective=ro.Ppo(), rule="sequence_mis", cap=1.0), True),
}


@pytest.mark.parametrize("name", AT_BOUND)
def test_at_a_bound_the_interval_is_open_or_closed_as_printed(name: str) -> None:
    objective, kept = AT_BOUND[name]
    step = Case(ONE, np.ones(2))
    found = policy_loss(stored(objective), ONE, step.weight_T)
    agree(found, learned(objective, objective.scope, step, 0))
    assert found.clipped_T.tolist() == [not kept, not kept]
    assert bool((found.gradient_T != 0).all()) == kept


def test_a_ratio_equal_to_the_dual_bound_keeps_its_gradient() -> None:
    step = replace(ONE, anchor_T=np.array([-2.0, -2.0]))
    settings = {"kind": "Ppo", "low": 0.2, "high": 0.2, "dual": float(np.exp(1.0))}
    assert policy_loss(settings, step, np.ones(2)).clipped_T.tolist() == [True, False]


# The specification's golden vectors: two sequences of 3 and 4 tokens, J and dJ/dlogp

GOLDEN = Step(
    logp_T=np.array([-1, -0.9, -1.6, -0.65, -1.1, -1, -2.45]), behavior_T=np.array([-1.2, -0.4, -2, -0.7, -1.5, -0.3, -2.5]),
    anchor_T=np.array([-1.2, -0.4, -2, -0.7, -1.5, -0.3, -2.5]), reference_T=np.array([-1.1, -0.6, -1.9, -0.8, -1.2, -0.5, -2]),
    teacher_T=np.array([-1.1, -0.6, -1.9, -0.8, -1.2, -0.5, -2]), advantage_T=np.array([1, 1, 1, -0.5, -0.5, -0.5, -0.5]),
    seq_T=np.array([0, 0, 0, 1, 1, 1, 1]), length_S=np.array([3, 4]), group_S=np.array([0, 1]))
KIMI = replace(GOLDEN, advantage_T=np.array([0.5] * 3 + [-0.5] * 4))
UNEQUAL = replace(GOLDEN, advantage_T=np.array([0.8] * 3 + [-0.3] * 4))
PROXIMAL = replace(GOLDEN, anchor_T=GOLDEN.behavior_T + np.array([0.1, -0.2, 0.3, 0.05, 0.2, -0.4, 0]))
PPO = {"kind": "Ppo", "low": 0.2, "high": 0.28, "dual": None}
K25 = {"kind": "KimiK25", "tau": 0.3, "ratio_to": "anchor", "low": None, "high": None, "log_low": None, "log_high": None}
ON_LOG = {**K25, "bound_on": "log_ratio", "log_low": -0.3, "log_high": 0.35}
ON_RATIO = {**K25, "bound_on": "ratio", "low": 1 - float(np.exp(-0.3)), "high": float(np.exp(0.35)) - 1}
VECTORS = {
    "ppo, sequence mean": (PPO, GOLDEN, "sequence_mean", 0.24334097,
                           [0.203567, 0.101088, 0, -0.065704, -0.093239, 0, -0.065704]),
    "ppo, token mean": (PPO, GOLDEN, "token_mean", 0.13010714, [0.174486, 0.086647, 0, -0.075091, -0.106559, 0, -0.075091]),
    "dr.grpo": ({"kind": "DrGrpo", "low": 0.2, "high": 0.2}, GOLDEN, "fixed_length", 0.02529210,
                [0, 0.018954, 0, -0.016426, -0.02331, 0, -0.016426]),
    "gspo": ({"kind": "Gspo", "low": 0.9, "high": 9}, GOLDEN, "sequence_mean", 0.27914020, [0.172316] * 3 + [-0.059452] * 4),
    "gspo-token": ({"kind": "GspoToken", "low": 0.9, "high": 9}, GOLDEN, "sequence_mean", 0.27914020,
                   [0.172316] * 3 + [-0.059452] * 4),
    "sapo": ({"kind": "Sapo", "tau_positive": 1.0, "tau_negative": 1.05}, GOLDEN, "sequence_mean", 0.57044214,
             [0.201093, 0.097275, 0.234188, -0.065657, -0.087289, -0.028966, -0.065657]),
    "cispo": ({"kind": "Cispo", "low": 1, "high": 0.28}, GOLDEN, "token_mean", -0.17621679,
              [0.174486, 0.086647, 0.182857, -0.075091, -0.091429, -0.03547, -0.075091]),
    "sao": ({"kind": "Sao", "low": 0.3, "high": 5}, GOLDEN, "token_mean", -0.16547836,
            [0.174486, 0, 0.213118, -0.075091, -0.106559, 0, -0.075091]),
    "kimi": ({"kind": "KimiK15", "tau": 0.3, "scale": "squared"}, KIMI, "sequence_sum", -0.20725, [0.141] * 3 + [-0.132] * 4),
    "k2.5": ({**ON_LOG, "tau_mask": "all"}, KIMI, "token_mean", -0.11029567,
             [0.0701, 0.042857, -0.034286, -0.079377, -0.034286, 0.06, -0.079377]),
    "k2.5, unequal": ({**ON_LOG, "tau_mask": "all"}, UNEQUAL, "token_mean", 0.00212279,
                      [0.122446, 0.042857, -0.034286, -0.04934, -0.034286, 0.06, -0.04934]),
    "k2.5, kept": ({**ON_LOG, "tau_mask": "kept"}, UNEQUAL, "token_mean", 0.04755136, [0.122446, 0, 0, -0.04934, 0, 0, -0.04934]),
    "k2.5, clipped value": ({**ON_RATIO, "tau_mask": "all"}, UNEQUAL, "token_mean", 0.15640035,
                            [0.122446, 0.042857, -0.034286, -0.04934, -0.034286, 0.06, -0.04934]),
    "decoupled": ({"kind": "DecoupledPpo", "low": 0.2, "high": 0.2, "weight_rule": "none", "weight_cap": None}, PROXIMAL,
                  "token_mean", 0.17920666, [0.174486, 0.086647, 0.213118, -0.075091, -0.106559, 0, -0.075091]),
    "mopd": ({"kind": "Mopd", "low": 0.5, "high": 1.0}, GOLDEN, "sequence_mean", 0.00085547,
             [-0.020357, 0.030327, -0.074591, -0.019711, -0.018648, 0, 0.059134]),
}
KL_VECTORS = {
    "k2": (0.04821429, [0.014286, -0.042857, 0.042857, 0.021429, 0.014286, -0.071429, -0.064286]),
    "k3": (0.05401333, [0.013595, -0.04998, 0.037026, 0.019899, 0.013595, -0.092674, -0.081187]),
    "unbiased": (0.04482107, [0.017449, -0.025994, 0.063935, 0.022527, 0.021312, -0.03547, -0.067582]),
}


@pytest.mark.parametrize("name", VECTORS)
def test_the_reference_gives_the_golden_vectors(name: str) -> None:
    settings, step, how, value, gradient = VECTORS[name]
    found = policy_loss(settings, step, weights(how, step.length_S, step.group_S, 16)[step.seq_T])
    assert -found.loss == pytest.approx(value, abs=1e-8)
    np.testing.assert_allclose(-found.gradient_T, gradient, atol=1e-6)


@pytest.mark.parametrize("estimator", KL_VECTORS)
def test_the_kl_terms_give_the_golden_vectors(estimator: str) -> None:
    value, gradient = KL_VECTORS[estimator]
    weight_T = weights("token_mean", GOLDEN.length_S, GOLDEN.group_S, None)[GOLDEN.seq_T]
    found = term_loss("kl", {"kind": "KlTerm", "estimator": estimator, "coefficient": 1.0}, GOLDEN, weight_T)
    assert found.loss == pytest.approx(value, abs=1e-8)
    np.testing.assert_allclose(found.gradient_T, gradient, atol=1e-6)


# Hand-derived gradients against finite differences, where no part of the loss is a constant of logp

SMOOTH = ("Ppo", "R1Printed", "Dapo", "Gspo", "Sapo", "Magistral", "KimiK15", "KimiK2", "KimiK25", "Glm5Reasoning",
          "DecoupledPpo", "DeepSeekV32", "OnPolicyDistill")


@pytest.mark.parametrize("name", SMOOTH)
def test_the_gradient_is_that_of_the_loss_by_finite_differences(name: str) -> None:
    for seed in range(6):
        settings, one = stored(RANDOM[name](random.Random(seed))), case(seed)
        found = policy_loss(settings, one.step, one.weight_T)
        for t in range(one.step.logp_T.size):
            move = np.zeros(one.step.logp_T.size)
            move[t] = 1e-6
            up, down = (policy_loss(settings, replace(one.step, logp_T=one.step.logp_T + sign * move), one.weight_T).loss
                        for sign in (1, -1))
            assert found.gradient_T[t] == pytest.approx((up - down) / 2e-6, rel=1e-6, abs=1e-8)


# Denominators

@pytest.mark.parametrize("how", AGGREGATES)
def test_the_weights_equal_the_learners(how: str) -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(1, 9))
        length_S, group_S, keep_S = rng.integers(0, 6, count), rng.integers(-3, 3, count), rng.random(count) < 0.6
        for keep, dropped in ((None, None), (None, True), (keep_S, True), (keep_S, False)):
            expected = ro.sequence_weight(how, torch.from_numpy(length_S), torch.from_numpy(group_S), max_length=9,
                                          keep_S=None if keep is None else torch.from_numpy(keep), count_dropped=dropped)
            np.testing.assert_allclose(weights(how, length_S, group_S, 9, keep, dropped), expected.numpy(), rtol=1e-14)


def test_the_printed_group_mean_is_worked_by_hand() -> None:
    """Groups of 4 and 2 tokens: 1/2 * 1/4 and 1/2 * 1/2."""
    assert weights("group_token_mean", np.array([1, 3, 2]), np.array([7, 7, 9]), None).tolist() == [1 / 8, 1 / 8, 1 / 4]


# Refusals

GRPO = {"kind": "Grpo", "low": 0.2, "high": 0.2, "beta": 0.0}


@pytest.mark.parametrize(("settings", "said"), [
    ({"kind": "Magistrel"}, "nearest: Magistral"),
    ({}, "got None"),
    ({"kind": "Dpo", "beta": 0.1}, "pairs of responses"),
    ({"kind": "KlTerm"}, "use term_loss"),
    ({**GRPO, "hihg": 0.3}, "nearest: high"),
    ({"kind": "Grpo", "low": 0.2, "beta": 0.0}, "Grpo needs high"),
    ({**GRPO, "low": "0.2"}, "Grpo.low must be a number"),
    ({**GRPO, "low": True}, "Grpo.low must be a number"),
    ({**GRPO, "low": -0.2}, "Grpo.low must be a number >= 0"),
    ({"kind": "Magistral", "low": 0.2, "high": 0.2, "ratio_to": "old"}, "one of anchor, behavior"),
    ({"kind": "KimiK15", "tau": 0, "scale": "squared"}, "above 0"),
    ({**ON_LOG, "tau_mask": "all", "low": 0.3}, "KimiK25.low is not read"),
    ({"kind": "Corrected", "objective": {"kind": "Sao", **NOTHING}, "rule": "icepop", "cap": None, **NOTHING}, "already holds c"),
    ({"kind": "Corrected", "objective": GRPO, "rule": "icepop", "cap": 2.0, **NOTHING}, "Corrected.cap is not read"),
])
def test_a_document_that_is_not_understood_is_refused(settings: dict, said: str) -> None:
    with pytest.raises(RollbookError) as refusal:
        policy_loss(settings, ONE, np.ones(2))
    assert said in str(refusal.value)


@pytest.mark.parametrize(("name", "settings", "said"), [
    ("ptx", {"kind": "Ptx", "coefficient": 27.8}, "pretraining text"),
    ("kll", {}, "nearest: kl"),
    ("kl", {"kind": "KlTerm", "estimator": "k1", "coefficient": 1.0}, "one of k2, k3, unbiased"),
    ("kl", {"kind": "PositiveNll", "coefficient": 1.0}, "nearest: KlTerm"),
    ("positive_nll", {"kind": "PositiveNll", "coefficient": 1.0}, "reads correct_S"),
])
def test_a_term_that_cannot_be_recomputed_is_refused(name: str, settings: dict, said: str) -> None:
    with pytest.raises(RecomputeError) as refusal:
        term_loss(name, settings, ONE, np.ones(2))
    assert said in str(refusal.value)


@pytest.mark.parametrize("settings", [GRPO, {"kind": "Gspo", **NOTHING}, {**GRPO, "kind": "DeepSeekV32", "delta": 0.0}])
def test_a_log_prob_that_was_not_stored_is_refused(settings: dict) -> None:
    with pytest.raises(RecomputeError, match="reads anchor_T"):
        policy_loss(settings, replace(ONE, anchor_T=None), np.ones(2))


@pytest.mark.parametrize("kind", ["Gspo", "R1Printed", "KimiK15", "DeepSeekV32"])
def test_two_advantages_inside_a_sequence_are_refused_where_the_formula_has_one(kind: str) -> None:
    step = replace(GOLDEN, advantage_T=np.arange(7.0))
    with pytest.raises(RecomputeError, match="one advantage per sequence"):
        policy_loss(stored(RANDOM[kind](random.Random(0))), step, np.ones(7))


def test_a_step_that_is_not_whole_or_not_in_double_precision_is_refused() -> None:
    with pytest.raises(RecomputeError, match="every action token"):
        replace(ONE, length_S=np.array([2, 1]))
    with pytest.raises(RecomputeError, match="vector of float64"):
        replace(ONE, logp_T=np.zeros(2, dtype=np.float32))
    with pytest.raises(RecomputeError, match="length of logp_T"):
        policy_loss({"kind": "Rloo"}, ONE, np.ones(3))
    with pytest.raises(RecomputeError, match=r"0 \.\. 1"):
        replace(ONE, seq_T=np.array([0, 2]))


def test_denominators_that_are_not_understood_are_refused() -> None:
    one = np.array([1])
    for call in (lambda: weights("token_maen", one, one, None), lambda: weights("fixed_length", one, one, None),
                 lambda: weights("group_token_mean", one, None, None), lambda: weights("token_mean", one, one, None, one > 0)):
        with pytest.raises(RecomputeError):
            call()


@pytest.mark.parametrize("name", RANDOM)
def test_a_bonus_for_entropy_leaves_the_policy_loss_and_adds_its_term(name: str) -> None:
    for seed in range(8):
        held = RANDOM[name](random.Random(seed))
        objective = ro.WithEntropy(objective=held, coefficient=0.3, entropy_aggregate="sequence_mean")
        assert list(extra_terms(stored(objective))) == [(term.name, stored(term)) for term in objective.extra_terms]
        plain, step = policy_loss(stored(held), case(seed).step, case(seed).weight_T), case(seed)
        assert policy_loss(stored(objective), step.step, step.weight_T).loss == plain.loss


def test_the_entropy_term_is_minus_the_entropy_and_has_no_slope_at_the_sampled_log_prob() -> None:
    step = replace(case(1).step, entropy_T=np.linspace(0.0, 2.0, case(1).step.logp_T.size))
    found = term_loss("entropy", {"kind": "EntropyBonus", "coefficient": 0.5}, step, case(1).weight_T)
    assert found.loss == pytest.approx(-0.5 * float((case(1).weight_T * step.entropy_T).sum())) and not found.gradient_T.any()
    with pytest.raises(RecomputeError, match="entropy_T"):
        term_loss("entropy", {"kind": "EntropyBonus", "coefficient": 0.5}, case(1).step, case(1).weight_T)
