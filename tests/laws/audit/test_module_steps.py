"""What the audit computes of modules and of credit per token, against the objectives, and what it finds wrong."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from rollbook.audit.detectors.credit import take_misfits
from rollbook.audit.elements import due_elements
from rollbook.audit.module_steps import ModuleSteps, preference_loss, reward_loss, value_loss
from rollbook.audit.token_advantages import token_credit
from rollbook.objectives.credit import Measured, assign_credit
from rollbook.objectives.credit.rules import Gae, LengthAdaptiveGae
from rollbook.objectives.preference import Responses
from rollbook.objectives.settings import to_settings
from rollbook.objectives.value import clipped_value_loss, squared_value_loss
from rollbook.orchestration.stages.elements import order
from rollbook.records import Candidate, ModuleUpdate, Ranking
from rollbook.records import recipe as r
from rollbook.training.preference import pair_loss, pair_of
from rollbook.training.reward_model import ranking_loss, usable

ADAM = r.OptimizerSettings(learning_rate=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0, warmup_steps=0,
                           schedule="constant", max_grad_norm=1.0)
STAGE = r.RewardModel(policy="start", data={"labels": 1.0}, loss="ranked", head_layers=1, steps=4, batch=1, optimizer=ADAM,
                      max_batch_tokens=100)
ANSWERS = tuple(Candidate(trace=f"Trace:{place}", token_ids=(5, 6), score=score, truth=None, correct=score > 0.5)
                for place, score in enumerate((0.1, 0.9, 0.4)))
RANKING = Ranking(task="Task:a", prompt_ids=(1,), labeler="oracle:x", tokenizer="t", template="t", heldout=False,
                  candidates=ANSWERS)


@pytest.mark.parametrize("rule", [
    Gae(gamma=0.9, lam_policy=0.8, lam_critic=1.0, kl_beta=0.1),
    LengthAdaptiveGae(gamma=1.0, alpha=1.5, floor=None, counts="all_tokens", lam_critic=1.0),
    LengthAdaptiveGae(gamma=0.95, alpha=0.05, floor=0.0, counts="action_tokens", lam_critic=0.9)])
def test_credit_per_token_is_computed_a_second_time_and_comes_out_the_same(rule):
    generator = torch.Generator().manual_seed(2)
    length_S, prompt_S = torch.tensor([3, 1, 7]), torch.tensor([4, 2, 5])
    seq_T = torch.repeat_interleave(torch.arange(3), length_S)
    reward_S = torch.randn(3, generator=generator, dtype=torch.float64)
    value_T, anchor_T, reference_T = (torch.randn(11, generator=generator) for _ in range(3))
    total_S = length_S + prompt_S + torch.tensor([0, 9, 2])                # of a prompt, actions and observations
    counted = total_S if getattr(rule, "counts", "") == "all_tokens" else length_S
    credit = assign_credit(rule, Measured(reward_S=reward_S, group_S=torch.arange(3), seq_T=seq_T, value_T=value_T,
                                          kl_T=anchor_T - reference_T, length_S=counted))
    stored = {name: value.numpy() for name, value in
              {"seq": seq_T, "length": length_S, "value": value_T, "anchor": anchor_T, "reference": reference_T}.items()}
    found = token_credit(to_settings(rule), reward_S.numpy(), stored, total_S.numpy())
    assert np.allclose(found["advantage"], credit.advantage_T.numpy(), atol=1e-5)
    assert np.allclose(found["return"], credit.return_T.numpy(), atol=1e-5)


def test_the_penalty_for_a_call_that_could_not_be_made_is_taken_off_its_own_tokens_of_either_kind_of_credit():
    traces = [SimpleNamespace(misfit_tokens=lambda at=at: at) for at in ((), (0, 2))]
    for dtype in (np.float32, np.float64):
        advantage_T = np.ones(5, dtype=dtype)
        take_misfits(advantage_T, SimpleNamespace(misfit_penalty=0.25), np.array([2, 3]), traces)
        assert advantage_T.tolist() == [1, 1, 0.75, 1, 0.75]


@pytest.mark.parametrize("loss", ["ranked", "margin", "listwise", "soft_label"])
def test_a_reward_models_loss_by_hand_is_the_trained_one(loss):
    stage = dataclasses.replace(STAGE, loss=loss, margins=(1.0, 0.5, 0.0) if loss == "margin" else ())
    score_K = torch.tensor([0.3, -0.2, 0.9])
    assert reward_loss([RANKING], score_K.double().numpy(), stage) == pytest.approx(float(ranking_loss(RANKING, score_K, stage)),
                                                                                  abs=1e-5)


def found(**changes):
    """What is said of a second step that differs from an honest one in these fields."""
    scores = np.array([0.1, 0.2, 0.0], dtype=np.float32)
    honest = ModuleUpdate(stage="rm", module="reward_model", family="reward_model", step=1, elements=("Ranking:1",), tensors="x",
                          loss={"ranked": reward_loss([RANKING], scores.astype(float), STAGE)}, tokens=6, grad_norm=0.5,
                          grad_clipped=False, learning_rate=1e-3, weights_before="a", weights_after="b")
    settings = SimpleNamespace(stages={"rm": STAGE}, run=SimpleNamespace(seed=1))
    run = SimpleNamespace(recipe=SimpleNamespace(settings=settings), tokenizer=None,
                          ledger=SimpleNamespace(get=lambda name: save({"score": scores})))
    steps, said = ModuleSteps(), []
    steps.rankings["Ranking:1"], steps.of_table["labels"] = RANKING, ["Ranking:1"]
    second = dataclasses.replace(honest, step=2, weights_before="b", weights_after="c")
    for update in (honest, dataclasses.replace(second, **changes)):
        steps.take(run, "ModuleUpdate:1", update, lambda record, evidence, remedy: said.append(evidence))
    return said


def test_an_honest_module_step_is_not_complained_of():
    assert found() == []


@pytest.mark.parametrize(("change", "says"), [
    ({"step": 3}, "number 2 is due"), ({"weights_before": "z"}, "the step before ended with b"),
    ({"weights_after": "b"}, "left the weights as they were"), ({"learning_rate": 2e-3}, "the recipe's schedule gives 0.001"),
    ({"grad_norm": float("inf"), "grad_clipped": True}, "gradient norm of"), ({"grad_clipped": True}, "is not the recipe's"),
    ({"loss": {"ranked": 0.1}}, "computed 0."), ({"elements": ("Ranking:2",)}, "not on record"),
    ({"elements": ("Ranking:1", "Ranking:1")}, "not the 1 that are due")])
def test_a_module_step_that_is_not_what_it_says_is_found(change, says):
    assert any(says in evidence for evidence in found(**change))


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 5), min_size=1),
       st.dictionaries(st.sampled_from(["a", "b", "c"]), st.floats(0.1, 9.0), min_size=3, max_size=3), st.integers(1, 4),
       st.integers(1, 3), st.integers(0, 4))
def test_the_elements_that_are_due_are_those_that_the_stage_shows(sizes, weights, steps, batch, seed):
    pools = {name: [(f"Ranking:{name}{place}", RANKING) for place in range(size)] for name, size in sizes.items()}
    data = {name: weights[name] for name in sizes}
    stage = dataclasses.replace(STAGE, data=data, steps=steps, batch=batch)
    shown = order({name: [one for one, _ in held] for name, held in pools.items()}, data, steps * batch, seed)
    assert due_elements(stage, pools, seed) == shown


def test_only_rankings_that_a_loss_can_use_are_due():
    same = dataclasses.replace(RANKING, candidates=tuple(dataclasses.replace(one, score=0.5) for one in ANSWERS))
    right = dataclasses.replace(RANKING, candidates=tuple(dataclasses.replace(one, correct=True) for one in ANSWERS))
    held = {"labels": [("same", same), ("apart", dataclasses.replace(RANKING, heldout=True)), ("right", right), ("one", RANKING)]}
    for loss in ("ranked", "listwise"):
        kept = [name for name, one in held["labels"] if not one.heldout and usable(one, loss)]
        assert set(due_elements(dataclasses.replace(STAGE, loss=loss), held, 1)) == set(kept)
    for by in ("score", "correct"):
        stage = r.Preference(policy="start", data={"labels": 1.0}, loss=r.Dpo(beta=0.1), by=by, steps=4, batch=1, optimizer=ADAM,
                             max_batch_tokens=100)
        kept = [name for name, one in held["labels"] if not one.heldout and pair_of(one, by) is not None]
        assert set(due_elements(stage, held, 1)) == set(kept)


@pytest.mark.parametrize(("loss", "clip"), [("squared", None), ("clipped", 0.2)])
def test_a_critics_loss_and_gradient_by_hand_are_the_trained_ones(loss, clip):
    rule = r.Critic(start=None, head_layers=1, warmup=0, updates=1, loss=loss, factor=0.5, clip=clip, optimizer=ADAM)
    generator = torch.Generator().manual_seed(3)
    value_T, anchor_T, return_T = (torch.randn(50, generator=generator) for _ in range(3))
    value_T.requires_grad_()
    trained = (squared_value_loss(value_T, return_T, factor=0.5) if clip is None else
               clipped_value_loss(value_T, anchor_T, return_T, clip=clip, factor=0.5)).mean()
    trained.backward()
    by_hand, slope_T = value_loss(*(one.detach().double().numpy() for one in (value_T, anchor_T, return_T)), rule)
    assert by_hand == pytest.approx(trained.item(), rel=1e-5) and np.allclose(slope_T, value_T.grad.numpy(), atol=1e-6)


@pytest.mark.parametrize("loss", [
    r.Dpo(beta=0.3), r.Dpo(beta=0.3, normalize=True),
    *(r.Llama3Dpo(beta=0.3, nll_coefficient=0.2, nll_reduction=how, nll_on=on) for how in ("sum", "mean")
      for on in ("all", "unmasked"))])
def test_a_loss_of_pairs_by_hand_is_the_trained_one(loss):
    answers = tuple(Candidate(trace=f"Trace:{place}", token_ids=ids, score=float(place), truth=None, correct=place == 1)
                    for place, ids in enumerate([(5, 6, 9), (7, 9)]))
    one = dataclasses.replace(RANKING, candidates=answers)
    stage = r.Preference(policy="start", data={"labels": 1.0}, loss=loss, by="score", steps=1, batch=1, optimizer=ADAM,
                         max_batch_tokens=100)
    generator = torch.Generator().manual_seed(4)
    logp_T, reference_T = (-torch.rand(5, generator=generator) for _ in range(2))
    ids = ((7, 9), (5, 6, 9))
    sides = [Responses(logp_T=logp, reference_T=reference, pair_T=torch.zeros(len(tokens), dtype=torch.long), pairs=1,
                       format_T=torch.tensor([token == 9 for token in tokens]))
             for logp, reference, tokens in zip(logp_T.split([2, 3]), reference_T.split([2, 3]), ids, strict=True)]
    stored = {"logp": logp_T.double().numpy(), "reference": reference_T.double().numpy()}
    assert preference_loss([one], stored, stage, frozenset({9})) == pytest.approx(float(pair_loss(*sides, loss)), rel=1e-5)
    assert preference_loss([one], {name: value[1:] for name, value in stored.items()}, stage, frozenset({9})) is None
