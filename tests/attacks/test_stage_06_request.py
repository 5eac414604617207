"""Stage 6: a policy that may spend more is not a better policy."""

import dataclasses

import attacked as attacks
import pytest
from attacked import assert_caught, rows
from faulty import clean_run, faulty

from rollbook.evaluation import heldout
from rollbook.orchestration import stages
from rollbook.orchestration.session import Session
from rollbook.records import Scored, content_id
from rollbook.rollouts.solve import Rollouts

TIGHT = ("tasks.max_tokens=8", "reward.length_max=8", "reward.length_cache=4")


@pytest.fixture(scope="module")
def clean(warm, tmp_path_factory):
    return clean_run(warm, tmp_path_factory)


def test_equal_budgets_pass_and_what_was_spent_is_shown(clean):
    row = rows(clean)[6]
    assert row.result == "pass", row
    assert "cold_eval and final_eval spent" in row.evidence


@pytest.mark.fault(stage=6, injection="the engine is asked for more tokens than the envelope allows")
def test_tokens_beyond_the_envelope_are_caught(warm, tmp_path, monkeypatch):
    real = Rollouts.solve

    def generous(self, tasks, per_task, *, scope, envelope):
        return real(dataclasses.replace(self, max_tokens=24), tasks, per_task, scope=scope, envelope=envelope)

    run = faulty(monkeypatch, warm, tmp_path / "run", (Rollouts, "solve", generous), overrides=TIGHT)
    assert_caught(run, 6, record="Trace", evidence="its envelope allows 8")


@pytest.mark.fault(stage=6, injection="two evaluations at different temperatures are compared as if only the policy changed")
def test_a_comparison_of_different_budgets_is_caught(warm, tmp_path, monkeypatch):
    real = attacks.quick_recipe

    def colder(warm, *overrides):
        recipe = real(warm, *overrides)
        last = recipe.settings.stages["final_eval"]
        last = dataclasses.replace(last, sampling=dataclasses.replace(last.sampling, temperature=0.25))
        changed = dataclasses.replace(recipe.settings, stages={**recipe.settings.stages, "final_eval": last})
        return dataclasses.replace(recipe, settings=changed)

    def lax(before, after, *, changed):
        comparison = heldout.compare(dataclasses.replace(before, protocol=after.protocol), after, changed=changed)
        return dataclasses.replace(comparison, before=content_id(before))

    run = faulty(monkeypatch, warm, tmp_path / "run", (stages.evaluation, "compare", lax), (attacks, "quick_recipe", colder))
    assert_caught(run, 6, record="Comparison", evidence="temperature (")


@pytest.mark.fault(stage=6, injection="the later evaluation samples with another top_k than the recipe; no protocol says so")
def test_an_envelope_that_leaves_the_recipe_is_caught(warm, tmp_path, monkeypatch):
    real = stages.evaluation.protocol_of

    def narrow(session, sampling, tasks, named, **more):
        late = "rl" in session.versions
        return real(session, dataclasses.replace(sampling, top_k=1) if late else sampling, tasks, named, **more)

    run = faulty(monkeypatch, warm, tmp_path / "run", (stages.evaluation, "protocol_of", narrow))
    assert_caught(run, 6, record="SamplingEnvelope", evidence="top_k 1, the recipe says 0")


def best_of(protocol, policy, stage, trials):
    """The report over the best of several attempts at each task, as if there had been one."""
    more = dataclasses.replace(protocol, bundle=dataclasses.replace(protocol.bundle, trials=trials))
    done = heldout.evaluate(more, policy, stage=stage)
    best = {}
    for trace, verdict in zip(done.traces, done.verdicts, strict=True):
        held = best.get(trace.task)
        if held is None or (isinstance(verdict, Scored) and verdict.vector.total > held[1].vector.total):
            best[trace.task] = (trace, verdict)
    traces, verdicts = zip(*best.values(), strict=True)
    report = heldout._report(protocol, policy, stage, (traces, verdicts))
    return heldout.Evaluated(report=report, traces=traces, verdicts=verdicts)


@pytest.mark.fault(stage=6, injection="the best of six attempts is recorded, one was issued, and the census counts what was kept")
def test_the_best_of_several_attempts_is_caught(warm, tmp_path, monkeypatch):
    real = stages.evaluation.close_census

    def kept(scope, issued, outcomes):
        return real(scope, {one.attempt: one.family for one in outcomes}, outcomes)

    run = faulty(monkeypatch, warm, tmp_path / "run", (stages.evaluation, "close_census", kept),
                 (stages.evaluation, "evaluate", lambda protocol, policy, stage: best_of(protocol, policy, stage, 6)),
                 overrides=("stages.rl.steps=1",))
    assert_caught(run, 6, record="Trace", evidence="only 1 attempts at the task were issued")


@pytest.mark.fault(stage=6, injection="every held-out task is issued three times under a protocol of one trial")
def test_more_trials_than_the_protocol_has_are_caught(warm, tmp_path, monkeypatch):
    real, issue = heldout.evaluate, stages.evaluation.dispatch

    def thrice(protocol):
        return dataclasses.replace(protocol, bundle=dataclasses.replace(protocol.bundle, trials=3))

    def evaluated(protocol, policy, *, stage):
        done = real(thrice(protocol), policy, stage=stage)
        return dataclasses.replace(done, report=dataclasses.replace(done.report, protocol=content_id(protocol.bundle)))

    run = faulty(monkeypatch, warm, tmp_path / "run", (stages.evaluation, "evaluate", evaluated),
                 (stages.evaluation, "dispatch", lambda protocol, envelope: issue(thrice(protocol), envelope)),
                 overrides=("stages.rl.steps=1",))
    assert_caught(run, 6, record="EvalReport", evidence="3 attempts at each task were issued, the protocol has 1 trials")


@pytest.mark.fault(stage=6, injection="an evaluation names the trained policy and is answered by the one before")
def test_another_policy_than_the_envelope_names_is_caught(warm, tmp_path, monkeypatch):
    real = Session.take

    def stale(self, stage):
        version = real(self, stage)
        if stage == "rl":
            self.engine.load(self.policy.decoder, version.index - 1)
        return version

    run = faulty(monkeypatch, warm, tmp_path / "run", (Session, "take", stale))
    assert_caught(run, 6, record="Trace", evidence="its envelope asks for")


@pytest.mark.fault(stage=6, injection="attempts that were cut are recorded as having ended by themselves")
def test_a_stop_reason_that_hides_the_cut_is_caught(warm, tmp_path, monkeypatch):
    real = Rollouts.trace
    run = faulty(monkeypatch, warm, tmp_path / "run",
                 (Rollouts, "trace", lambda *given: dataclasses.replace(real(*given), stop_reason="end_of_turn")),
                 overrides=TIGHT)
    assert_caught(run, 6, record="Trace", evidence="its last token ends none")


@pytest.mark.fault(stage=6, injection="the last evaluation draws luckier uniforms than its protocol's seed gives")
def test_another_seed_than_the_protocols_is_caught(warm, tmp_path, monkeypatch):
    real = heldout.Rollouts.dispatch, heldout.Rollouts.solve

    def lucky(index):
        def call(self, tasks, samples, *, scope, envelope):
            return real[index](self, tasks, samples, scope=scope.replace("eval/heldout/", "eval/heldout/9"), envelope=envelope)
        return call

    run = faulty(monkeypatch, warm, tmp_path / "run", (Rollouts, "dispatch", lucky(0)), (Rollouts, "solve", lucky(1)),
                 overrides=("stages.rl.steps=1",))
    assert_caught(run, 6, record="EvalReport", evidence="the protocol's seed gives")
