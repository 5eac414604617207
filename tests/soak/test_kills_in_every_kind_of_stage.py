"""kill -9 in the middle of every kind of stage: resumed, the pipeline ends like an undisturbed one. `make soak`."""

import dataclasses
import json
import os
import signal

import pytest
from small_runs import Quiet
from small_stages import ADAM, LABELS, SAMPLED, SFT, outcome, pipeline
from test_kills import WRITES, in_child, resumed

from rollbook.orchestration.run import run_recipe
from rollbook.records import recipe as r

pytestmark = pytest.mark.soak
WORDS = {"right": r.Principle(critique="Is it right?", revision="Say it right.", choice="Which is right?")}
MODULE = {"steps": 3, "batch": 3, "max_batch_tokens": 1024, "optimizer": ADAM}
RL = r.PolicyGradient(
    policy="sft", tasks="chosen", steps=3, prompts=4, per_task=2, groups=4, max_waves=1, minibatches=2, max_policy_age=0,
    sampling=SAMPLED, optimizer=dataclasses.replace(ADAM, lora=r.Lora(rank=2, alpha=4.0, targets=("*_proj.weight",), seed=1)),
    max_batch_tokens=256, probe=0, probe_every=0, checkpoint_every=1, filter="none",
    critic=r.Critic(start="rm", head_layers=1, warmup=1, updates=1, loss="squared", factor=0.5, clip=None, optimizer=ADAM),
    objective={"kind": "Ppo", "low": 0.2, "high": 0.2, "aggregate": "token_mean", "credit": {
        "kind": "Gae", "gamma": 1.0, "lam_policy": 0.95, "lam_critic": 0.95, "kl_beta": 0.01}})
STAGES = {
    "cpt": dataclasses.replace(SFT, form="text", fim=0.5, steps=4),
    "sft": dataclasses.replace(SFT, policy="cpt", steps=40),
    "chosen": r.PassRate(policy="sft", candidates=16, samples=2, low=0, high=2, sampling=SAMPLED),
    "lessons": r.Lessons(policy="sft", tasks="train", prompts=6, principles=WORDS, style="direct", sampling=SAMPLED),
    "taught": dataclasses.replace(SFT, policy="sft", traces={"direct": 1.0}, data={"lessons": 1.0}, steps=6, batch=8),
    "kept": r.RejectionSampling(policy="sft", tasks="train", prompts=6, samples=2, keep="all", per_task=2, sampling=SAMPLED),
    "revised": r.Revise(policy="taught", tasks="train", prompts=4, rounds=1, principles=WORDS, sampling=SAMPLED, max_tokens=12),
    "labels": LABELS,
    "rm": r.RewardModel(policy="sft", data={"labels": 1.0}, loss="ranked", head_layers=1, **MODULE),
    "dpo": r.Preference(policy="sft", data={"labels": 1.0}, loss=r.Dpo(beta=0.1), by="score", **MODULE),
    "rl": RL,
    "soup": r.Merge(policies={"sft": 0.5, "dpo": 0.5}, method="average"),
    "small": r.Prune(policy="rl", layers=(0,), intermediate=24),
    "student": r.Distill(policy="small", tasks="train", teachers={"*": "rl"}, direction="reverse", steps=3, prompts=3, per_task=2,
                         sampling=SAMPLED, optimizer=ADAM, max_batch_tokens=512, checkpoint_every=1,
                         hard=r.HardTargets(data={"kept": 1.0}, batch=2, first=0.8, last=0.2)),
    "heldout": r.Evaluate(policy="student", sampling=SAMPLED, trials=1, seed=3)}


def recipe():
    made = pipeline(**STAGES)
    model = dataclasses.replace(made.settings.model, context=384, layers=2)
    return dataclasses.replace(made, settings=dataclasses.replace(made.settings, model=model))


class Watching(Quiet):
    """Counts the writing calls of every stage, and kills the process before one of them."""

    def __init__(self, *, kill=None, told=None):
        super().__init__()
        self.now, self.counts, self.kill, self.told = "", {}, kill, told
        for name in WRITES:
            setattr(os, name, self.counted(getattr(os, name)))

    def stage(self, name, index, total, steps):
        super().stage(name, index, total, steps)
        self.now = name

    def counted(self, inner):
        def call(*arguments, **options):
            self.counts[self.now] = self.counts.get(self.now, 0) + 1
            if (self.now, self.counts[self.now]) == self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            return inner(*arguments, **options)
        return call


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """How an undisturbed run ends, and how many writes each of its stages makes."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    count = folder.parent / "count"

    def act():
        watching = Watching()
        run_recipe(recipe(), folder, watching)
        count.write_text(json.dumps(watching.counts))
    assert in_child(act) == 0
    return outcome(folder), json.loads(count.read_text())


@pytest.mark.parametrize("stage", sorted(STAGES))
def test_a_pipeline_killed_in_the_middle_of_a_stage_ends_like_an_undisturbed_one(undisturbed, stage, tmp_path):
    whole, writes = undisturbed
    folder, middle = tmp_path / "run", (writes[stage] + 1) // 2
    assert in_child(lambda: run_recipe(recipe(), folder, Watching(kill=(stage, middle)))) == -signal.SIGKILL
    assert resumed(recipe(), folder) == 0
    assert outcome(folder) == whole
