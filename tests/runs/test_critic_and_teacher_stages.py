"""Policy stages with a critic, a KL in the reward or a teacher: run, audit, replay, resume."""

import dataclasses

import pytest
from small_stages import ADAM, SAMPLED, SFT, outcome, pipeline, run, run_in_pieces

from rollbook.audit import stored
from rollbook.audit.module_steps import distill_loss
from rollbook.audit.passage import audit_run
from rollbook.audit.replay import replay_run
from rollbook.ledger import Ledger
from rollbook.models.weights import read_tensors
from rollbook.records import Batch, ModuleUpdate, ModuleVersion, StepReport, Update
from rollbook.records import recipe as r

CRITIC = r.Critic(start=None, head_layers=1, warmup=1, updates=1, loss="clipped", factor=0.5, clip=0.2, optimizer=ADAM)
PPO = r.PolicyGradient(
    policy="sft", tasks="train", steps=3, prompts=4, per_task=2, groups=4, max_waves=1, minibatches=2, max_policy_age=0,
    sampling=SAMPLED, optimizer=dataclasses.replace(ADAM, learning_rate=1e-3), max_batch_tokens=512, probe=0, probe_every=0,
    checkpoint_every=1, filter="none", critic=CRITIC, objective={
        "kind": "Ppo", "aggregate": "token_mean",
        "credit": {"kind": "Gae", "gamma": 1.0, "lam_policy": 0.95, "lam_critic": 1.0, "kl_beta": 0.02}})
SAO = dataclasses.replace(
    PPO, per_task=1, prompts=6, groups=6, minibatches=1, steps=2,
    critic=dataclasses.replace(CRITIC, warmup=0, updates=2, loss="squared", clip=None,
                               optimizer=dataclasses.replace(ADAM, frozen=("body.model.layers.*.self_attn.*",))),
    objective={"kind": "Sao", "low": 0.3, "high": 5.0, "aggregate": "token_mean", "credit": {
        "kind": "LengthAdaptiveGae", "gamma": 1.0, "alpha": 1.5, "floor": None, "counts": "action_tokens", "lam_critic": 1.0}})
TAUGHT = dataclasses.replace(PPO, steps=2, minibatches=1, critic=None, teachers={"*": "ppo"},
                             objective={"kind": "OnPolicyDistill", "aggregate": "token_mean"})
FULL = r.Distill(policy="sft", tasks="train", teachers={"*": "taught"}, direction="reverse", steps=2, prompts=3, per_task=2,
                 sampling=SAMPLED, optimizer=ADAM, max_batch_tokens=128, checkpoint_every=1)
MIXED = dataclasses.replace(FULL, hard=r.HardTargets(data={"sft": 1.0}, batch=3, first=0.75, last=0.25))
STAGES = {"sft": SFT, "ppo": PPO, "sao": SAO, "taught": TAUGHT, "whole": FULL, "xhard": MIXED}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(pipeline(**STAGES), tmp_path_factory.mktemp("critic") / "run")


def test_stages_with_a_critic_or_a_teacher_pass_their_audit(whole):
    rows = audit_run(whole).rows
    assert not [(row.name, row.record, row.evidence) for row in rows if row.result == "fail"]
    credit = next(row for row in rows if row.name == "credit")
    assert credit.result == "pass" and "not computed again" not in credit.evidence


def test_policy_and_critic_are_computed_again_bit_for_bit(whole):
    report = replay_run(whole)
    assert not report.mismatches and report.same_bits
    assert [one.stage for one in report.stages] == ["sft", "ppo", "sao", "taught", "whole", "xhard"]


def test_a_warm_up_step_trains_the_critic_and_leaves_the_policy_alone(whole):
    with Ledger.open(whole, write=False) as ledger:
        first = next(one for one in ledger.records(StepReport) if one.stage == "ppo")
        batches = {one.id for one in ledger.records(Batch)}
        valued = [one.elements[0] for one in ledger.records(ModuleUpdate) if one.stage == "ppo"]
        updated = {one.batch for one in ledger.records(Update)}
    assert first.policy == first.published and not first.updates and len(first.batches) == 2
    assert set(first.batches) <= batches - updated and list(first.batches) == valued[:2]


def test_the_critic_takes_its_own_number_of_steps_and_its_frozen_parts_stand_still(whole):
    with Ledger.open(whole, write=False) as ledger:
        steps = [one.step for one in ledger.records(ModuleUpdate) if one.stage == "sao"]
        version = next(one for one in ledger.records(ModuleVersion) if one.stage == "sao")
    assert steps == [1, 2, 3, 4] and version.frozen is not None and len(version.window) == 4
    policy, critic = read_tensors(whole / "checkpoints" / "sft"), read_tensors(whole / version.checkpoint)
    attention = [name for name in policy if "self_attn" in name]
    assert attention and all((critic[name] == policy[name]).all() for name in attention)
    assert not (critic["model.layers.0.mlp.up_proj.weight"] == policy["model.layers.0.mlp.up_proj.weight"]).all()


def test_hard_targets_have_the_share_of_the_loss_that_the_step_says(whole):
    with Ledger.open(whole, write=False) as ledger:
        updates = [one for one in ledger.records(ModuleUpdate) if one.stage == "xhard"]
        for one, share in zip(updates, (0.75, 0.25), strict=True):
            given = stored.tensors(ledger, one.tensors)
            assert one.loss["hard"] == pytest.approx(-share * float(given["hard_logp"].mean()), rel=1e-5)
            assert one.loss["reverse_kl"] == pytest.approx((1 - share) * float(given["kl"].mean()), rel=1e-5)
            assert len([name for name in one.elements if name.startswith("Demonstration:")]) == 3
    wrong = dataclasses.replace(MIXED, hard=dataclasses.replace(MIXED.hard, first=0.5))
    assert distill_loss(given, MIXED, 2) == pytest.approx(sum(updates[1].loss.values()), rel=1e-5)
    assert distill_loss(given, wrong, 1) != pytest.approx(distill_loss(given, MIXED, 1), rel=1e-3)


@pytest.mark.parametrize(("stage", "after"), [
    ("ppo", 1), ("sao", 1), *(pytest.param(*one, marks=pytest.mark.soak) for one in (("ppo", 2), ("whole", 1), ("xhard", 1)))])
def test_a_run_stopped_between_steps_with_a_critic_ends_with_the_same_records(whole, tmp_path, monkeypatch, stage, after):
    assert outcome(run_in_pieces(pipeline(**STAGES), tmp_path / "run", stage, after, monkeypatch)) == outcome(whole)
