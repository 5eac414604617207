"""Pipelines of any kinds of stage on a model that trains in seconds."""

import dataclasses

from small_runs import Quiet, small_recipe

from rollbook.ledger import Ledger
from rollbook.orchestration.run import resume_run, run_recipe
from rollbook.records import PolicyVersion, StageEnd, Stopped
from rollbook.records import recipe as r

ADAM = r.OptimizerSettings(learning_rate=2e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0, warmup_steps=1,
                           schedule="constant", max_grad_norm=1.0)
SAMPLED = r.SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0)
SFT = r.Sft(policy="start", traces={"direct": 1.0}, steps=60, batch=16, general_share=0.0, max_batch_tokens=4096,
            optimizer=dataclasses.replace(ADAM, learning_rate=1e-2, warmup_steps=4))     # keeps the format, seldom right
LABELS = r.Comparisons(policy="sft", tasks="train", prompts=12, per_task=4, sampling=SAMPLED, apart=0.25, labeler=r.Oracle(
    rule={"accuracy": 0.5, "format": 0.5, "tokens": -0.3}, noise=0.1, seed=3))


def pipeline(*overrides, **stages):
    """A recipe of these stages."""
    recipe = small_recipe("model.layers=1", "model.hidden=32", "model.intermediate=64", "model.heads=2", "model.kv_heads=1",
                          "run.dtype=float32", *overrides)
    return dataclasses.replace(recipe, settings=dataclasses.replace(recipe.settings, stages=stages))


def run(recipe, out):
    """The run's folder once it has ended."""
    assert run_recipe(recipe, out, Quiet()) == 0
    return out


def run_in_pieces(recipe, out, stop_in, after, monkeypatch):
    """The same, stopped after so many steps of one stage and continued in a new session."""
    from rollbook.orchestration import run as producer

    held = {}

    class Stopping(Quiet):
        def stage(self, name, index, total, steps):
            held["stage"] = name

        def step(self, step, metrics):
            if held["stage"] == stop_in and step == after:
                held["session"].stop = True
    inner = producer.run_stage

    def watched(session, name, stage, state):
        held["session"] = session
        return inner(session, name, stage, state)
    with monkeypatch.context() as m:
        m.setattr(producer, "run_stage", watched)
        try:
            run_recipe(recipe, out, Stopping())
        except Stopped:
            held["stopped"] = True
    assert held.pop("stopped"), f"{stop_in} was over before step {after}"
    assert resume_run(out, Quiet()) == 0
    return out


def outcome(out):
    """What must be equal of two runs: every standing record by meaning, the weights each stage ended with."""
    with Ledger.open(out, write=False) as ledger:
        versions = {one.id: one.weights for one in ledger.records(PolicyVersion)}
        return ledger.semantic_hash(), {end.stage: versions[end.ended] for end in ledger.records(StageEnd)}
