"""Faults of stages 10 to 14 by somebody who read the specification of the chain and not the code. Run by `make faults`."""

import dataclasses

import attacked
import numpy as np
import pytest
import torch
from attacked import assert_caught
from light import attack

from rollbook.evaluation import heldout
from rollbook.experience import batches
from rollbook.experience.batches import with_scores
from rollbook.ledger import Ledger
from rollbook.ledger import ledger as logging
from rollbook.ledger import traces as tables
from rollbook.orchestration import publish
from rollbook.orchestration import run as producer
from rollbook.orchestration import step as stepping
from rollbook.orchestration.publish import Publisher
from rollbook.orchestration.session import Session
from rollbook.orchestration.stages import evaluation, policy_gradient
from rollbook.records import Comparison, HostRun, Probe, ResolvedRecipe, content_id
from rollbook.rollouts.engines.embedded import EmbeddedEngine
from rollbook.training.policy import PolicyLearner

pytestmark = pytest.mark.soak
CREDITED, UPDATE, LOAD, PROBE, PROTOCOL, APPEND = (batches.credited, PolicyLearner.update, EmbeddedEngine.load,
                                                   Publisher._probe, evaluation.protocol_of, Ledger.append)
BRIEF = ("stages.rl.steps=1", "stages.rl.probe=0", "stages.rl.probe_every=0")
NORMALIZED = {"kind": "GroupNormalized", "eps": 1e-6, "ddof": 1}
GRPO = {"kind": "Grpo", "low": 0.2, "high": 0.2, "beta": 0.1, "credit": NORMALIZED}
RECIPE = attacked.small_recipe


def named(objective):
    """The small recipe with this objective."""
    def recipe(*overrides):
        made = RECIPE(*overrides)
        stage = dataclasses.replace(made.settings.stages["rl"], objective=objective)
        return dataclasses.replace(made, settings=dataclasses.replace(made.settings, stages={**made.settings.stages,
                                                                                             "rl": stage}))
    return (attacked, "small_recipe", recipe)


def edited(recipe, stage, **changes):
    """A recipe with other values in one stage."""
    held = dataclasses.replace(recipe.settings.stages[stage], **changes)
    settings = dataclasses.replace(recipe.settings, stages={**recipe.settings.stages, stage: held})
    return dataclasses.replace(recipe, settings=settings)


# stage 10 -----------------------------------------------------------------------------------------------------------------------

def credit_by(change):
    """Credit whose advantages are changed before batch and record are made of them: change(credit) -> advantages."""
    def call(parts, objective, scope, **more):
        return tuple(dataclasses.replace(one, advantage=tuple(float(x) for x in change(one)))
                     for one in CREDITED(parts, objective, scope, **more))
    return (stepping, "credited", call)


@pytest.mark.parametrize("change", [
    pytest.param(lambda one: [max(x, 0.0) for x in one.advantage], id="positives only",
                 marks=pytest.mark.fault(stage=10, injection="S: negative advantages are set to zero")),
    pytest.param(lambda one: np.clip(one.advantage, -0.5, 0.5), id="clipped",
                 marks=pytest.mark.fault(stage=10, injection="S: advantages are clipped at half a standard deviation")),
    pytest.param(lambda one: np.sign(one.advantage), id="signs",
                 marks=pytest.mark.fault(stage=10, injection="S: only the sign of an advantage is kept")),
    pytest.param(lambda one: [*one.advantage[1:], one.advantage[0]], id="shifted",
                 marks=pytest.mark.fault(stage=10, injection="S: every sequence gets the advantage of its neighbour")),
    pytest.param(lambda one: np.array(one.advantage) + 0.05, id="raised",
                 marks=pytest.mark.fault(stage=10, injection="S: a constant is added to every advantage")),
    pytest.param(lambda one: [x * (1 + 0.5 * (r > 0)) for x, r in zip(one.advantage, one.reward, strict=True)], id="doubled",
                 marks=pytest.mark.fault(stage=10, injection="S: rewarded sequences count half as much again")),
])
def test_advantages_that_do_not_follow(monkeypatch, warm, tmp_path, change):
    run = attack(monkeypatch, warm, tmp_path / "run", credit_by(change))
    assert_caught(run, 10, record="Credit", evidence="do not follow from the verdicts")


# stage 11 -----------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=11, injection="S: the reference follows the policy, so that the KL is silently zero")
def test_a_reference_that_follows_the_policy(monkeypatch, warm, tmp_path):
    def own(self, packed, objective, *, where):
        with torch.no_grad():
            own_T = self._frozen(self.decoder, packed)
        packed = with_scores(packed, anchor_T=packed.anchor_T, reference_T=own_T)
        kept.append(own_T)
        return UPDATE(self, packed, objective, where=where)
    kept = []
    blob = stepping.batch_record

    def recorded(ledger, packed, objective, **how):
        return blob(ledger, with_scores(packed, anchor_T=packed.anchor_T, reference_T=kept[-1]), objective, **how)
    run = attack(monkeypatch, warm, tmp_path / "run", named(GRPO), (PolicyLearner, "update", own),
                 (stepping, "batch_record", recorded), overrides=("stages.rl.optimizer.learning_rate=1e-3",))
    assert_caught(run, 11, record="Batch", evidence="the reference of")


@pytest.mark.fault(stage=11, injection="S: the anchor is taken again before every minibatch, so that nothing is ever clipped")
def test_an_anchor_that_follows_the_policy(monkeypatch, warm, tmp_path):
    update = stepping._update

    def recorded(run, packed, policy, where):
        with torch.no_grad():
            own_T = run.learner._frozen(run.learner.decoder, packed)
        return update(run, with_scores(packed, anchor_T=own_T, reference_T=packed.reference_T), policy, where)
    run = attack(monkeypatch, warm, tmp_path / "run", named(GRPO), (stepping, "_update", recorded))
    assert_caught(run, 11, record="Batch", evidence="the anchor of")


@pytest.mark.fault(stage=11, injection="S: training stops a step early, where the curve looked best")
def test_a_stage_that_stops_early(monkeypatch, warm, tmp_path):
    stage = policy_gradient.run

    def early(session, name, settings, state):
        return stage(session, name, dataclasses.replace(settings, steps=settings.steps - 1), state)
    run = attack(monkeypatch, warm, tmp_path / "run", (policy_gradient, "run", early))
    assert_caught(run, 11, record="StageEnd", evidence="the recipe says")


@pytest.mark.fault(stage=11, injection="S: a second recipe is put on record that fits what was done")
def test_a_recipe_that_is_replaced(monkeypatch, warm, tmp_path):
    def append(self, record, **noted):
        made = APPEND(self, record, **noted)
        if isinstance(record, ResolvedRecipe):
            APPEND(self, edited(record, "rl", per_task=2))
        return made
    run = attack(monkeypatch, warm, tmp_path / "run", (Ledger, "append", append), overrides=BRIEF)
    assert_caught(run, 11, record="ResolvedRecipe", evidence="second recipe")


@pytest.mark.fault(stage=11, injection="S: the run says that it is another program's, which shows nothing of its updates")
def test_a_run_that_hides_behind_a_host(monkeypatch, warm, tmp_path):
    def append(self, record, **noted):
        made = APPEND(self, record, **noted)
        if isinstance(record, ResolvedRecipe):
            APPEND(self, HostRun(host="trl", version="1", adapter="none/1", unseen={"credit": "not shown"}, partly={},
                                 settings={}))
        return made
    run = attack(monkeypatch, warm, tmp_path / "run", (Ledger, "append", append), overrides=BRIEF)
    assert_caught(run, 11, record="HostRun", evidence="a recipe is on record")


@pytest.mark.fault(stage=11, injection="S: another recipe is recorded than the one that the manifest names and the run follows")
def test_a_recipe_that_the_manifest_does_not_name(monkeypatch, warm, tmp_path):
    def append(self, record, **noted):
        return APPEND(self, dataclasses.replace(record, title="another") if isinstance(record, ResolvedRecipe) else record,
                      **noted)
    run = attack(monkeypatch, warm, tmp_path / "run", (Ledger, "append", append), overrides=BRIEF)
    assert_caught(run, 11, record="ResolvedRecipe", evidence="manifest names")


@pytest.mark.fault(stage=11, injection="S: another recipe is recorded under the id of the one that the manifest names")
def test_a_recipe_under_another_ones_id(monkeypatch, warm, tmp_path):
    real = logging.entry

    def forged(record, observed=None):
        if not isinstance(record, ResolvedRecipe):
            return real(record, observed)
        return real(dataclasses.replace(record, title="another"), observed)._replace(id=content_id(record))
    run = attack(monkeypatch, warm, tmp_path / "run", (logging, "entry", forged), overrides=BRIEF)
    assert_caught(run, 11, record="ResolvedRecipe", evidence="not the hash of its content")


@pytest.mark.fault(stage=11, injection="S: trajectories keep the ids that they had before their texts were mended")
def test_trajectories_under_their_former_ids(monkeypatch, warm, tmp_path):
    real, named = tables.write_rows, []

    def mended(root, path, name, rows):
        if name.startswith("rl/"):
            rows = [(identity, (dataclasses.replace(trace, text=trace.text + " "), *rest)) for identity, (trace, *rest) in rows]
            named.append(name)
        return real(root, path, name, rows)
    run = attack(monkeypatch, warm, tmp_path / "run", (tables, "write_rows", mended), overrides=BRIEF)
    assert named
    assert_caught(run, 11, record="Trace", evidence="not the hash of its content")


# stage 12 -----------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=12, injection="S: the engine samples from weights with a little noise and acknowledges them without")
def test_an_engine_with_noise_in_its_weights(monkeypatch, warm, tmp_path):
    def noisy(self, decoder, version):
        taken = LOAD(self, decoder, version)
        torch.manual_seed(version)
        for _, value in self.weights.named():
            value.mul_(1 + 0.3 * torch.randn_like(value.float()).to(value.dtype))
        return taken
    run = attack(monkeypatch, warm, tmp_path / "run", (EmbeddedEngine, "load", noisy))
    assert_caught(run, 12, record="")


@pytest.mark.fault(stage=12, injection="S: versions after the first are published without a probe")
def test_a_version_without_a_probe(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run",
                 (Publisher, "_probe", lambda self: PROBE(self) if self.next_index == 0 else None), overrides=BRIEF)
    assert_caught(run, 12, record="PolicyVersion", evidence="without a probe")


@pytest.mark.fault(stage=12, injection="S: the probe is of tokens that nothing has to be known for, other ones each time")
def test_a_probe_of_other_tokens(monkeypatch, warm, tmp_path):
    def moving(self):
        made = PROBE(self)
        return Probe(token_ids=(*made.token_ids[:-1], self.next_index + 5), given=made.given, consumer=made.consumer,
                     trainer=made.trainer, dtype=made.dtype)
    run = attack(monkeypatch, warm, tmp_path / "run", (Publisher, "_probe", moving), overrides=BRIEF)
    assert_caught(run, 12, record="PolicyVersion", evidence="probe")


@pytest.mark.fault(stage=12, injection="S: no consumer acknowledges the last version, and it is evaluated all the same")
def test_a_version_nobody_acknowledged(monkeypatch, warm, tmp_path):
    real = publish.PolicyVersion

    def version(**given):
        return real(**{**given, "acknowledged": () if given["stage"] == "rl" else given["acknowledged"]})
    run = attack(monkeypatch, warm, tmp_path / "run", (publish, "PolicyVersion", version), overrides=BRIEF)
    assert_caught(run, 12, record="Trace", evidence="was not acknowledged")


@pytest.mark.fault(stage=12, injection="S: the stage hands on an earlier version than its last")
def test_the_best_checkpoint_instead_of_the_last(monkeypatch, warm, tmp_path):
    finish, held = Session.finish, []

    def best(self, stage, kind, started, ended):
        return finish(self, stage, kind, started, held[0] if stage == "rl" and held else ended)
    step = policy_gradient.step

    def stepped(run, source, policy, number):
        version, report = step(run, source, policy, number)
        held.append(version)
        return version, report
    run = attack(monkeypatch, warm, tmp_path / "run", (Session, "finish", best), (policy_gradient, "step", stepped))
    assert_caught(run, 12, record="", evidence="")


# stage 13 -----------------------------------------------------------------------------------------------------------------------

def protocols(change):
    """Protocols that are changed in every evaluation alike: change(session, sampling, tasks, named) -> the same."""
    return (evaluation, "protocol_of", lambda *given, **more: PROTOCOL(given[0], *change(*given), **more))


@pytest.mark.fault(stage=13, injection="S: both policies are evaluated on the easy half of the held-out side")
def test_an_evaluation_on_a_subset(monkeypatch, warm, tmp_path):
    def half(session, sampling, tasks, named):
        return sampling, sorted(tasks, key=lambda task: abs(int(task.reference)))[:len(tasks) // 2], named
    run = attack(monkeypatch, warm, tmp_path / "run", protocols(half), overrides=BRIEF)
    assert_caught(run, 13, record="EvalReport", evidence="held-out side")


@pytest.mark.fault(stage=13, injection="S: the protocol's seed is one that flatters")
def test_a_lucky_evaluation_seed(monkeypatch, warm, tmp_path):
    def lucky(session, sampling, tasks, named):
        return sampling, tasks, (named[0], named[1], named[2] + 1)
    run = attack(monkeypatch, warm, tmp_path / "run", protocols(lucky), overrides=BRIEF)
    assert_caught(run, 13, record="EvalReport", evidence="seed 12, the recipe says 11")


@pytest.mark.fault(stage=13, injection="S: every evaluation takes the mean of four trials, the recipe says one")
def test_more_trials_on_both_sides(monkeypatch, warm, tmp_path):
    def four(session, sampling, tasks, named):
        return sampling, tasks, (named[0], 4, named[2])
    run = attack(monkeypatch, warm, tmp_path / "run", protocols(four), overrides=BRIEF)
    assert_caught(run, 13, record="EvalReport", evidence="trials 4")


@pytest.mark.fault(stage=13, injection="S: the trained policy is compared with the start instead of the cold start")
def test_a_comparison_with_a_weaker_rival(monkeypatch, warm, tmp_path):
    real = evaluation.run

    def weaker(session, name, stage):
        return real(session, name, dataclasses.replace(stage, compare_to="start_eval") if name == "final_eval" else stage)
    run = attack(monkeypatch, warm, tmp_path / "run", (evaluation, "run", weaker), overrides=BRIEF)
    assert_caught(run, 13, record="StageEnd", evidence="the recipe compares it with cold_eval")


@pytest.mark.fault(stage=13, injection="S: a comparison that shows no gain is not recorded")
def test_a_comparison_that_is_kept_back(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run",
                 (Ledger, "append", lambda self, record, **noted: "" if isinstance(record, Comparison) else
                  APPEND(self, record, **noted)), overrides=BRIEF)
    assert_caught(run, 13, record="StageEnd", evidence="compared with nothing")


@pytest.mark.fault(stage=13, injection="S: the final evaluation is of an earlier policy of the stage, and says so")
def test_an_evaluation_of_another_policy(monkeypatch, warm, tmp_path):
    real = evaluation.run

    def other(session, name, stage):
        return real(session, name, dataclasses.replace(stage, policy="cold_start") if name == "final_eval" else stage)
    run = attack(monkeypatch, warm, tmp_path / "run", (evaluation, "run", other), overrides=BRIEF)
    assert_caught(run, 13, record="EvalReport", evidence="ended with version")


@pytest.mark.fault(stage=13, injection="S: a gain is claimed from an interval that covers half")
def test_a_claim_from_a_narrow_interval(monkeypatch, warm, tmp_path):
    bootstrap = heldout.paired_bootstrap
    run = attack(monkeypatch, warm, tmp_path / "run",
                 (heldout, "paired_bootstrap", lambda pairs, **given: bootstrap(pairs, **{**given, "level": 0.5})),
                 overrides=BRIEF)
    assert_caught(run, 13, record="Comparison", evidence="level")


@pytest.mark.fault(stage=13, injection="S: the p-value of a comparison is a smaller one")
def test_a_p_value_that_is_made_up(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", (heldout, "mcnemar", lambda before, after: 0.001), overrides=BRIEF)
    assert_caught(run, 13, record="Comparison", evidence="p-value")


@pytest.mark.fault(stage=13, injection="S: the evaluation between is left out")
def test_an_evaluation_that_never_happened(monkeypatch, warm, tmp_path):
    real = producer.run_stage

    def skipped(session, name, stage, state):
        if name == "start_eval":
            return session.finish(name, "Evaluate", session.versions["start"], session.versions["start"])
        if name == "cold_eval":
            stage = dataclasses.replace(stage, compare_to=None)
        return real(session, name, stage, state)
    run = attack(monkeypatch, warm, tmp_path / "run", (producer, "run_stage", skipped), overrides=BRIEF)
    assert_caught(run, 13, record="StageEnd", evidence="without a report")
