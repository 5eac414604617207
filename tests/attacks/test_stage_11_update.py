"""Faults of the producer in stage 11: another estimator than the one that is named."""

import dataclasses

import attacked
import pytest
import torch
from attacked import assert_caught
from light import attack, clean_rows

from rollbook.experience import batches
from rollbook.experience.batches import Packed
from rollbook.objectives import kl, sequence_weight, total_loss
from rollbook.objectives.terms import AdaptiveEntropy
from rollbook.orchestration import exploring, recording, stages
from rollbook.orchestration import step as stepping
from rollbook.orchestration.publish import Publisher
from rollbook.training import optimizer
from rollbook.training import policy as training
from rollbook.training.policy import PolicyLearner

UPDATE, SCORE, EVALUATE, RATE = PolicyLearner.update, PolicyLearner.score, training.evaluate, optimizer.rate
RECORD, TOKENS, FROM, BLOB, CUT = (stepping.update_record, Packed.tokens, stages.policy_gradient.from_settings, recording.blob,
                                   stepping.minibatches)

NORMALIZED = {"kind": "GroupNormalized", "eps": 1e-6, "ddof": 1}
RECIPE = attacked.small_recipe


def with_objective(**other):
    """Score and update with another objective than the batch names."""
    def score(self, packed, objective, **how):
        return SCORE(self, packed, dataclasses.replace(objective, **other), **how)

    def update(self, packed, objective, *, where):
        return UPDATE(self, packed, dataclasses.replace(objective, **other), where=where)
    return (PolicyLearner, "score", score), (PolicyLearner, "update", update)


def test_a_clean_run_uses_the_estimator_it_names(warm):
    row = clean_rows(warm)[11]
    assert row.result == "pass" and int(row.evidence.split()[0]) >= 2


def trained_by(monkeypatch, warm, out, objective, *patches):
    """A run whose recipe names this objective; its folder."""
    def named(*overrides):
        recipe = RECIPE(*overrides)
        stage = dataclasses.replace(recipe.settings.stages["rl"], objective=objective)
        settings = dataclasses.replace(recipe.settings, stages={**recipe.settings.stages, "rl": stage})
        return dataclasses.replace(recipe, settings=settings)
    return attack(monkeypatch, warm, out, (attacked, "small_recipe", named), *patches)


@pytest.mark.parametrize("objective", [
    {"kind": "Grpo", "low": 0.2, "high": 0.2, "beta": 0.04, "credit": NORMALIZED},
    {"kind": "Dapo", "overlong_filter": True, "credit": NORMALIZED},
    {"kind": "KimiK2", "tau": 0.5, "scale": "squared"},
    {"kind": "ControlledEntropy", "start": 0.01, "step": 0.02, "maximum": None, "target": 0.0, "entropy_aggregate": "token_mean",
     "objective": {"kind": "Dapo", "overlong_filter": False, "credit": NORMALIZED}}])
def test_a_clean_run_of_another_objective_passes_too(monkeypatch, warm, tmp_path, objective):
    found = attacked.rows(trained_by(monkeypatch, warm, tmp_path / "run", objective))
    assert [found[stage].result for stage in (9, 10, 11, 12)] == ["pass"] * 4, found


@pytest.mark.fault(stage=11, injection="the KL term uses another estimator than its name")
def test_another_kl_estimator_than_named(monkeypatch, warm, tmp_path):
    objective = {"kind": "Grpo", "low": 0.2, "high": 0.2, "beta": 0.5, "credit": NORMALIZED}
    run = trained_by(monkeypatch, warm, tmp_path / "run", objective, (kl, "k3", kl.k2))
    assert_caught(run, 11, record="Update", evidence="of rl/000001/0")


CONTROLLED = {"kind": "ControlledEntropy", "start": 0.01, "step": 0.02, "maximum": 0.04, "target": 100.0,
              "entropy_aggregate": "token_mean", "objective": {"kind": "Dapo", "overlong_filter": False, "credit": NORMALIZED}}


@pytest.mark.parametrize(("where", "name", "other", "words"), [
    pytest.param(AdaptiveEntropy, "advance", lambda self, alpha, entropy: alpha, "the controller has come to",
                 marks=pytest.mark.fault(stage=11, injection="the coefficient of a controlled entropy bonus stands still")),
    pytest.param(AdaptiveEntropy, "coefficient", lambda self, alpha, entropy: alpha / 2, "is due at an entropy",
                 marks=pytest.mark.fault(stage=11, injection="a controlled entropy bonus is half of what its controller says")),
    pytest.param(PolicyLearner, "entropy", lambda self, packed: 0.1, "was told an entropy",
                 marks=pytest.mark.fault(stage=11, injection="an entropy controller is told another entropy than the batch has")),
    pytest.param(exploring, "with_control", lambda packed, control: packed, "nothing of its controller",
                 marks=pytest.mark.fault(stage=11, injection="a controller moves the bonus and the batch says nothing of it"))])
def test_a_controller_of_entropy_that_is_not_the_recipes(monkeypatch, warm, tmp_path, where, name, other, words):
    run = trained_by(monkeypatch, warm, tmp_path / "run", CONTROLLED, (where, name, other))
    assert_caught(run, 11, record="Batch", evidence=words)


@pytest.mark.fault(stage=11, injection="another clip bound is used than the batch names")
def test_another_clip_bound_than_named(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", *with_objective(low=0.001, high=0.001))
    assert_caught(run, 11, record="Update", evidence="gradient")


@pytest.mark.fault(stage=11, injection="the ratio is taken to the anchor, the objective says behavior")
def test_a_ratio_to_the_anchor_instead_of_the_behavior(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", *with_objective(ratio_to="anchor"))
    assert_caught(run, 11, record="Update", evidence="gradient")


@pytest.mark.fault(stage=11, injection="tokens are weighed per sequence under the name of a token mean")
def test_sequence_weights_under_the_name_of_a_token_mean(monkeypatch, warm, tmp_path):
    def per_sequence(_, length_S, group_S, **rest):
        return sequence_weight("sequence_mean", length_S, group_S, **rest)
    run = attack(monkeypatch, warm, tmp_path / "run", (batches, "sequence_weight", per_sequence))
    assert_caught(run, 11, record="Batch", evidence="group_token_mean gives")


@pytest.mark.fault(stage=11, injection="a KL penalty is added to the policy loss and to the recorded loss")
def test_an_extra_kl_term_inside_the_policy_loss(monkeypatch, warm, tmp_path):
    def penalised(objective, packed, index_T, logp_T, *more, **how):
        (first, *rest), clipped = EVALUATE(objective, packed, index_T, logp_T, *more, **how)
        gap_T = logp_T - packed.behavior_T[index_T]
        return [dataclasses.replace(first, loss_T=first.loss_T + 0.05 * gap_T.square()), *rest], clipped
    run = attack(monkeypatch, warm, tmp_path / "run", (training, "evaluate", penalised))
    assert_caught(run, 11, record="Update", evidence="gradient")


@pytest.mark.fault(stage=11, injection="the learner flips the advantage of the longest sequence, batch and credit do not")
def test_an_advantage_that_is_flipped_inside_the_learner(monkeypatch, warm, tmp_path):
    def flipped(self, index_T, *scores, **how):
        tokens, long_T = TOKENS(self, index_T, *scores, **how), self.seq_T[index_T] == int(self.length_S.argmax())
        return dataclasses.replace(tokens, advantage_T=torch.where(long_T, -tokens.advantage_T, tokens.advantage_T))
    run = attack(monkeypatch, warm, tmp_path / "run", (Packed, "tokens", flipped))
    assert_caught(run, 11, record="Update", evidence="gradient")


@pytest.mark.fault(stage=11, injection="the loss that is backpropagated is twice the recorded one")
def test_a_loss_that_is_scaled_by_two(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run",
                 (training, "total_loss", lambda terms, weights: 2 * total_loss(terms, weights)))
    assert_caught(run, 11, record="Update", evidence="best multiple 2")


@pytest.mark.fault(stage=11, injection="the gradient is that of another objective, the loss is the named one's")
def test_the_gradient_of_another_objective_beside_the_loss_of_the_named_one(monkeypatch, warm, tmp_path):
    kept = []

    def remembers(objective, packed, index_T, logp_T, *more, **how):
        kept[:] = [packed.advantage_T[index_T], logp_T]
        return EVALUATE(objective, packed, index_T, logp_T, *more, **how)

    def reinforce(terms, weights):
        advantage_T, logp_T = kept
        return -(weights[0] * advantage_T * logp_T).sum()
    run = attack(monkeypatch, warm, tmp_path / "run", (training, "evaluate", remembers), (training, "total_loss", reinforce))
    assert_caught(run, 11, record="Update", evidence="gradient")


@pytest.mark.fault(stage=11, injection="the last micro-batch of a step is left out of the gradient")
def test_a_micro_batch_that_is_dropped(monkeypatch, warm, tmp_path):
    left = []

    def update(self, packed, objective, *, where):
        left[:] = [len(packed.plan)]
        return UPDATE(self, packed, objective, where=where)

    def all_but_the_last(terms, weights):
        left[0] -= 1
        return total_loss(terms, weights) * (0.0 if left[0] == 0 else 1.0)
    run = attack(monkeypatch, warm, tmp_path / "run", (PolicyLearner, "update", update),
                 (training, "total_loss", all_but_the_last),
                 overrides=("stages.rl.minibatches=1", "stages.rl.max_batch_tokens=80"))
    assert_caught(run, 11, record="Update", evidence="gradient")


@pytest.mark.fault(stage=11, injection="the objective is widened between recipe and learner; batch and update agree with each "
                   "other")
def test_another_objective_than_the_recipe_names(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", (stages.policy_gradient, "from_settings",
                                                          lambda given: FROM({**given, "high": 0.9})))
    assert_caught(run, 11, record="Batch", evidence="high 0.9 for 0.3")


@pytest.mark.fault(stage=11, injection="the learning rate ignores the warm-up")
def test_a_learning_rate_without_warm_up(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", (optimizer, "rate", lambda settings, step, total: settings.learning_rate),
                 overrides=("stages.rl.optimizer.warmup_steps=3",))
    assert_caught(run, 11, record="Update", evidence="learning rate")


@pytest.mark.fault(stage=11, injection="weights are pulled towards zero between two updates, hashed again and not recorded")
def test_weights_that_move_between_updates(monkeypatch, warm, tmp_path):
    owners = []
    init = Publisher.__init__

    def built(self, *given, **named):
        owners[:] = [self]
        init(self, *given, **named)

    def update(self, packed, objective, *, where):
        measured = UPDATE(self, packed, objective, where=where)
        owners[0].rehash()
        return measured

    def record(ledger, packed, measured, batch, moved):
        made = RECORD(ledger, packed, measured, batch, moved)
        with torch.no_grad():
            for parameter in owners[0].decoder.parameters():
                parameter.mul_(0.9999)
        owners[0].rehash()
        return made
    run = attack(monkeypatch, warm, tmp_path / "run", (Publisher, "__init__", built), (PolicyLearner, "update", update),
                 (stepping, "update_record", record))
    assert_caught(run, 11, record="", evidence="ended with")


@pytest.mark.fault(stage=11, injection="the recorded ratio extremes and clip fraction are those of a quieter update")
def test_summary_numbers_that_the_tensors_do_not_give(monkeypatch, warm, tmp_path):
    def quiet(*given):
        return dataclasses.replace(RECORD(*given), ratio_min=0.99, ratio_max=1.01)
    run = attack(monkeypatch, warm, tmp_path / "run", (stepping, "update_record", quiet))
    assert_caught(run, 11, record="Update", evidence="ratio_m")


@pytest.mark.fault(stage=11, injection="a gradient that is not a number is stored and stepped over")
def test_a_value_that_is_not_finite(monkeypatch, warm, tmp_path):
    def broken(tensors):
        if "gradient" in tensors:
            tensors = {**tensors, "gradient": tensors["gradient"].clone().index_fill_(0, torch.tensor([3]), float("nan"))}
        return BLOB(tensors)
    run = attack(monkeypatch, warm, tmp_path / "run", (recording, "blob", broken))
    assert_caught(run, 11, record="Update", evidence="not finite")


@pytest.mark.fault(stage=11, injection="two minibatches are trained as one")
def test_fewer_optimizer_steps_than_the_recipe_says(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", (stepping, "minibatches", lambda groups, _: CUT(groups, 1)))
    assert_caught(run, 11, record="StepReport", evidence="the recipe says 2 minibatches")
