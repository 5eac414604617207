"""Faults of the stages beside plain policy training: labels, reward models, kept answers, pairs, merges, distillation, critics,
sampling while training. Run by `make faults`."""

import dataclasses

import pytest
import torch
from attacked import assert_caught, assert_found
from small_runs import Quiet
from small_stages import ADAM, LABELS, SAMPLED, SFT, pipeline

from rollbook.audit.passage import audit_run
from rollbook.ledger import Ledger
from rollbook.orchestration import step as stepping
from rollbook.orchestration.asynchronous import gathering
from rollbook.orchestration.asynchronous.flow import Flow
from rollbook.orchestration.run import run_recipe
from rollbook.orchestration.stages import comparisons, distill, merge, preference, rejection_sampling, reward_model
from rollbook.records import Curation
from rollbook.records import recipe as r
from rollbook.records.asynchrony import AReaLCode, Asynchrony
from rollbook.records.recipe import Pretrained
from rollbook.training.value import CriticLearner

pytestmark = pytest.mark.soak
LABELLED = dataclasses.replace(LABELS, policy="start")
SFT_ON = dataclasses.replace(SFT, traces={}, data={"kept": 1.0}, steps=2, batch=4)
KEPT = r.RejectionSampling(policy="start", tasks="train", prompts=6, samples=4, keep="all", per_task=1, sampling=SAMPLED)
RM = r.RewardModel(policy="start", data={"labels": 1.0}, loss="ranked", head_layers=1, steps=3, batch=4, max_batch_tokens=512,
                   optimizer=ADAM)
DPO = r.Preference(policy="start", data={"labels": 1.0}, loss=r.Dpo(beta=0.1), by="score", steps=3, batch=4, optimizer=ADAM,
                   max_batch_tokens=512)
LLAMA = dataclasses.replace(DPO, loss=r.Llama3Dpo(beta=0.1, nll_coefficient=0.2, nll_reduction="mean", nll_on="unmasked"))
TEACHER = dataclasses.replace(SFT, steps=4)
FULL = r.Distill(policy="start", tasks="train", teachers={"*": "sft"}, direction="reverse", steps=2, prompts=3, per_task=2,
                 sampling=SAMPLED, optimizer=ADAM, max_batch_tokens=256, checkpoint_every=2)
PPO = r.PolicyGradient(
    policy="start", tasks="train", steps=2, prompts=4, per_task=2, groups=4, max_waves=1, minibatches=2, max_policy_age=0,
    sampling=SAMPLED, optimizer=dataclasses.replace(ADAM, learning_rate=1e-3), max_batch_tokens=512, probe=0, probe_every=0,
    checkpoint_every=2, filter="none",
    critic=r.Critic(start=None, head_layers=1, warmup=0, updates=1, loss="clipped", factor=0.5, clip=0.2, optimizer=ADAM),
    objective={"kind": "Ppo", "aggregate": "token_mean",
               "credit": {"kind": "Gae", "gamma": 1.0, "lam_policy": 0.95, "lam_critic": 1.0, "kl_beta": None}})
FLOW = dataclasses.replace(
    PPO, critic=None, steps=3, minibatches=1, max_waves=40, max_policy_age=2,
    objective={"kind": "DrGrpo", "low": 0.2, "high": 0.2, "credit": {"kind": "GroupCentered"}},
    asynchrony=Asynchrony(throttle=AReaLCode(eta=2), concurrency=8, on_update="keep", late="wait", queue=8, stall_s=60.0))


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A model of one layer that has learned the format and some sums."""
    out = tmp_path_factory.mktemp("taught") / "run"
    assert run_recipe(pipeline(sft=SFT), out, Quiet()) == 0
    return out / "checkpoints" / "sft"


@pytest.fixture
def made(taught, tmp_path, monkeypatch):
    """Runs some stages from that model under patches; the run's folder."""
    def run(*patches, **stages):
        recipe = pipeline(**stages)
        model = Pretrained(path=str(taught), context=recipe.settings.model.context)
        recipe = dataclasses.replace(recipe, settings=dataclasses.replace(recipe.settings, model=model))
        with monkeypatch.context() as m:
            for owner, name, replacement in patches:
                m.setattr(owner, name, replacement)
            assert run_recipe(recipe, tmp_path / "run", Quiet()) == 0
        return tmp_path / "run"
    return run


def easy(tasks):
    return sorted(tasks, key=lambda task: (abs(int(task.reference)), task.id))


def test_the_stages_without_a_fault_raise_nothing(made):
    run = made(labels=LABELLED, rm=RM, kept=KEPT, dpo=DPO, llama=dataclasses.replace(LLAMA, policy="dpo"),
               soup=r.Merge(policies={"start": 1.0, "dpo": 2.0}, method="average"), sft=TEACHER, full=FULL, ppo=PPO, flow=FLOW,
               again=dataclasses.replace(SFT_ON, policy="flow"))
    assert not [(row.name, row.record, row.evidence) for row in audit_run(run).rows if row.result == "fail"]


# labels -------------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=9, injection="S: the labeller prefers what its rule dislikes")
def test_labels_the_wrong_way_round(made):
    real = comparisons.truth_of
    run = made((comparisons, "truth_of", lambda rule, measured: -real(rule, measured)), labels=LABELLED)
    assert_caught(run, 9, record="Ranking", evidence="the recipe's rule gives")


@pytest.mark.fault(stage=9, injection="S: labels come without the noise that the recipe gives its labeller")
def test_labels_without_their_noise(made):
    run = made((comparisons, "noise", lambda oracle, trace: 0.0), labels=LABELLED)
    assert_caught(run, 9, record="Ranking", evidence="rule, noise and grades give")


@pytest.mark.fault(stage=9, injection="S: the middling answers to every prompt are left out of its ranking")
def test_rankings_of_best_and_worst_alone(made):
    real = comparisons.labelled

    def extremes(session, oracle, pairs):
        found = sorted(real(session, oracle, pairs), key=lambda one: one.score)
        return [found[-1], found[0]] if len(found) > 2 else found
    assert_caught(made((comparisons, "labelled", extremes), labels=LABELLED), 9, record="Ranking", evidence="not all")


@pytest.mark.fault(stage=9, injection="S: what is kept apart for measuring a reward model is less than the recipe says")
def test_a_smaller_part_kept_apart(made):
    real = comparisons.run
    run = made((comparisons, "run", lambda session, name, stage: real(session, name, dataclasses.replace(stage, apart=0.1))),
               labels=LABELLED)
    assert_caught(run, 9, record="StageEnd", evidence="kept apart")


# reward models, pairs -----------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=11, injection="S: a reward model is shown the first rankings again and again")
def test_a_reward_model_that_sees_few_rankings(made):
    def first(pools, weights, count, seed):
        return [next(iter(pools.values()))[at % 4] for at in range(count)]
    run = made((reward_model, "order", first), labels=LABELLED, rm=RM)
    assert_caught(run, 11, record="ModuleUpdate", evidence="are not the 4 that are due")


@pytest.mark.fault(stage=11, injection="S: the reward model learns from pairs with a margin, the recipe says without")
def test_a_reward_model_with_another_loss(made):
    real = reward_model.reward_model_update

    def other(model, optimizer, batch, stage, **how):
        done = real(model, optimizer, batch, dataclasses.replace(stage, loss="margin", margins=(3.0, 2.0, 1.0)), **how)
        return dataclasses.replace(done, loss={stage.loss: sum(done.loss.values())})
    run = made((reward_model, "reward_model_update", other), labels=LABELLED, rm=RM)
    assert_caught(run, 11, record="ModuleUpdate", evidence="the loss of")


@pytest.mark.fault(stage=11, injection="S: the rejected answer of every pair is what the policy learns to prefer")
def test_pairs_the_wrong_way_round(made):
    real = preference.pair_of

    def swapped(ranking, by):
        pair = real(ranking, by)
        return pair and dataclasses.replace(pair, chosen=pair.rejected, rejected=pair.chosen)
    assert_caught(made((preference, "pair_of", swapped), labels=LABELLED, dpo=DPO), 11, record="ModuleUpdate")


@pytest.mark.parametrize("stage", [
    pytest.param(DPO, id="dpo", marks=pytest.mark.fault(
        stage=11, injection="S: pairs are learnt at five times the recipe's beta")),
    pytest.param(LLAMA, id="llama", marks=pytest.mark.fault(
        stage=11, injection="S: Llama 3's pairs are learnt at five times the recipe's beta"))])
def test_pairs_at_another_beta(made, stage):
    real = preference.preference_update

    def steeper(learner, batch, given, *, where):
        return real(learner, batch, dataclasses.replace(given, loss=dataclasses.replace(given.loss, beta=0.5)), where=where)
    run = made((preference, "preference_update", steeper), labels=LABELLED, dpo=stage)
    assert_caught(run, 11, record="ModuleUpdate", evidence="the loss of")


# kept answers -------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=9, injection="S: other answers are demonstrated than those that were kept")
def test_demonstrations_of_other_answers(made):
    real, held = rejection_sampling.sampled_demonstration, []

    def other(session, one, policy):
        held.append(one)
        return real(session, held[0], policy)
    run = made((rejection_sampling, "sampled_demonstration", other), kept=KEPT, sft=SFT_ON)
    assert_caught(run, 9, record="Demonstration", evidence="is not the answer that was kept in its place")


@pytest.mark.fault(stage=9, injection="S: half of what was kept is never demonstrated")
def test_kept_answers_that_are_not_shown(made):
    real = Ledger.write_table

    def half(self, name, records):
        return real(self, name, records[:len(records) // 2] if name == "kept/demonstrations" else records)
    run = made((Ledger, "write_table", half), kept=KEPT, sft=SFT_ON)
    assert_caught(run, 9, record="StageEnd", evidence="demonstrations")


@pytest.mark.fault(stage=9, injection="S: every answer is kept where the recipe keeps one, and the rejections fit")
def test_answers_that_are_kept_against_the_rule(made):
    real = rejection_sampling.chosen
    run = made((rejection_sampling, "chosen", lambda made, stage, ratings: real(made, dataclasses.replace(stage, keep="all"),
                                                                                ratings)),
               kept=dataclasses.replace(KEPT, keep="correct"))
    assert_caught(run, 9, record=Curation.__name__, evidence="kept against it")


# merges, distillation -----------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=11, injection="S: policies are merged with other weights than the recipe's, and the record says so")
def test_a_merge_with_other_weights(made):
    real = merge.run
    run = made((merge, "run", lambda session, name, stage: real(session, name, dataclasses.replace(
        stage, policies={**stage.policies, "dpo": 9.0}))), labels=LABELLED, dpo=DPO,
        soup=r.Merge(policies={"start": 1.0, "dpo": 1.0}, method="average"))
    assert_caught(run, 11, record="Merged", evidence="otherwise than the recipe says")


@pytest.mark.fault(stage=9, injection="S: a distillation asks easy tasks, in an order of its own")
def test_a_distillation_on_easy_tasks(made):
    real = distill.TaskStream
    run = made((distill, "TaskStream", lambda tasks, **how: real(tuple(easy(tasks)[:8]), **how)), sft=TEACHER, full=FULL)
    assert_caught(run, 9, record="Dispatch", evidence="of the seeded order")


@pytest.mark.fault(stage=11, injection="S: a distillation learns from the first half of its answers")
def test_a_distillation_from_half_of_its_answers(made):
    real = distill._step
    run = made((distill, "_step", lambda session, at, learner, batch, version: real(
        session, at, learner, dataclasses.replace(batch, traces=batch.traces[:len(batch.traces) // 2]), version)), sft=TEACHER,
        full=FULL)
    assert_caught(run, 11, record="ModuleUpdate", evidence="tokens")


@pytest.mark.fault(stage=9, injection="S: a distillation ends a step early")
def test_a_distillation_that_ends_early(made):
    real = distill.run
    run = made((distill, "run", lambda session, name, stage, state: real(
        session, name, dataclasses.replace(stage, steps=1), state)), sft=TEACHER, full=FULL)
    assert_caught(run, 9, record="StageEnd", evidence="ended after 1 steps")


# critics ------------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=11, injection="S: the critic's loss is not clipped, the recipe says that it is")
def test_a_critic_that_is_not_clipped(made):
    def plain(self, own_T, anchor_T, return_T):
        return self.settings.factor * (own_T - return_T).square()
    tight = dataclasses.replace(PPO, critic=dataclasses.replace(PPO.critic, clip=1e-3, updates=2))
    assert_caught(made((CriticLearner, "_loss", plain), ppo=tight), 11, record="ModuleUpdate", evidence="the clipped loss")


@pytest.mark.fault(stage=11, injection="S: the critic learns twice as fast as its factor says")
def test_a_critic_at_another_factor(made):
    real = CriticLearner._loss
    run = made((CriticLearner, "_loss", lambda self, *given: 2 * real(self, *given)), ppo=PPO)
    assert_caught(run, 11, record="ModuleUpdate", evidence="the gradient of")


@pytest.mark.fault(stage=11, injection="S: the critic leaves out every second minibatch")
def test_a_critic_that_leaves_batches_out(made):
    real, seen = stepping.critic_steps, []

    def lazy(*given):
        seen.append(given)
        return real(*given) if len(seen) % 2 else []
    assert_caught(made((stepping, "critic_steps", lazy), ppo=PPO), 11, record="StepReport", evidence="the critic took 0")


@pytest.mark.fault(stage=11, injection="S: the curve shows the critic's best loss of a step instead of the mean")
def test_a_critic_that_is_reported_at_its_best(made):
    real = stepping.critic_metrics
    run = made((stepping, "critic_metrics", lambda scored, losses: real(scored, [min(losses)])), ppo=PPO)
    assert_caught(run, 11, record="StepReport", evidence="value/loss of step")


@pytest.mark.fault(stage=11, injection="S: values are said to explain the returns better than they do")
def test_values_that_are_said_to_explain_more(made):
    real = stepping.critic_metrics
    run = made((stepping, "critic_metrics", lambda *given: real(*given) | {"value/explained_variance": 0.9}), ppo=PPO)
    assert_caught(run, 11, record="StepReport", evidence="value/explained_variance")


@pytest.mark.fault(stage=10, injection="S: credit is given from values that are raised, the batch stores them as they were")
def test_credit_from_other_values(made):
    values, record = CriticLearner.values, stepping.batch_record

    def stored(ledger, packed, objective, **how):
        return record(ledger, dataclasses.replace(packed, value_T=packed.value_T - 0.1), objective, **how)
    run = made((CriticLearner, "values", lambda self, packed: values(self, packed) + 0.1), (stepping, "batch_record", stored),
               ppo=PPO)
    assert_caught(run, 10, record="Batch", evidence="do not follow by Gae")


# sampling while training --------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=9, injection="S: while it trains, a stage is fed easy tasks only")
def test_easy_tasks_while_training(made):
    real = Flow.__init__

    def fed(self, *given, tasks, **how):
        few = {task.id for task in easy(tasks.tasks)[:6]}
        real(self, *given, tasks=(task for task in tasks if task.id in few), **how)
    assert_caught(made((Flow, "__init__", fed), flow=FLOW), 9, record="Dispatch", evidence="of the seeded order")


@pytest.mark.fault(stage=12, injection="S: batches of older tokens are recorded as fresh")
def test_old_tokens_that_are_called_fresh(made):
    real = stepping.batch_record
    run = made((stepping, "batch_record", lambda *given, **how: dataclasses.replace(real(*given, **how), max_age=0)), flow=FLOW)
    assert_caught(run, 12, record="Batch", evidence="max_age 0 is stated")


@pytest.mark.fault(stage=12, injection="S: every token of a batch is stamped with the version that is trained")
def test_tokens_that_are_all_stamped_with_the_newest_version(made):
    real = stepping.batch_record

    def stamped(ledger, packed, objective, *, policy, dtype):
        newest_T = torch.full_like(packed.version_T, policy.index)
        return real(ledger, dataclasses.replace(packed, version_T=newest_T), objective, policy=policy, dtype=dtype)
    run = made((stepping, "batch_record", stamped), flow=FLOW)
    assert_caught(run, 12, record="Batch")
    assert_found(run, 12, record="Batch", evidence="are not those of the trajectories")


@pytest.mark.fault(stage=12, injection="S: a stage trains on older tokens than the recipe's bound allows")
def test_tokens_beyond_the_bound(made):
    real = gathering.Gathering.__init__

    def lax(self, flow, wanted, *rest):
        real(self, flow, dataclasses.replace(wanted, max_policy_age=9), *rest)
    strict = dataclasses.replace(FLOW, max_policy_age=1, steps=4, asynchrony=dataclasses.replace(
        FLOW.asynchrony, throttle=AReaLCode(eta=3)))
    run = made((gathering.Gathering, "__init__", lax), flow=strict)
    assert_caught(run, 12, record="StepReport", evidence="max_policy_age is 1")
