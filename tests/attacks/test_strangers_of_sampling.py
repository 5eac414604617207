"""Faults of stages 6 to 9 by somebody who read the specification of the chain and not the code. Run by `make faults`."""

import dataclasses

import pytest
from attacked import assert_caught
from light import attack

from rollbook.experience import admission
from rollbook.ledger import Ledger
from rollbook.orchestration import session
from rollbook.orchestration import step as stepping
from rollbook.orchestration.stages import pass_rate, policy_gradient
from rollbook.records import Scored, Unscored
from rollbook.rewards import MagistralJudge
from rollbook.rewards import judge as judging
from rollbook.rollouts.engines import rows, sampling
from rollbook.rollouts.engines import stream as streaming
from rollbook.rollouts.solve import Rollouts

pytestmark = pytest.mark.soak
SOLVE, TRACE, DRAW, JUDGE, PACK, NEXT = (Rollouts.solve, Rollouts.trace, sampling.draw, MagistralJudge.judge, stepping.pack,
                                         session.TaskStream.__next__)
SELECT, HASHED, REQUEST, ROLLOUTS = pass_rate.select, rows.sampled_hash, Rollouts.request, session.Session.rollouts
BRIEF = ("stages.rl.steps=1", "stages.rl.probe=0", "stages.rl.probe_every=0")


# stage 6 ------------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=6, injection="S: answers end at a string that no recipe names, in every evaluation alike")
def test_a_stop_string_nobody_asked_for(monkeypatch, warm, tmp_path):
    def stopped(self, scale):
        return dataclasses.replace(ROLLOUTS(self, scale), stop=("}",))
    run = attack(monkeypatch, warm, tmp_path / "run", (session.Session, "rollouts", stopped), overrides=BRIEF)
    assert_caught(run, 6, record="SamplingEnvelope", evidence="stop")


@pytest.mark.fault(stage=6, injection="S: policy steps sample under another seed than the recipe's, and say so in the envelope")
def test_another_seed_in_training(monkeypatch, warm, tmp_path):
    def other(self, scale):
        return dataclasses.replace(ROLLOUTS(self, scale), seed=self.settings.run.seed + 1)
    run = attack(monkeypatch, warm, tmp_path / "run", (session.Session, "rollouts", other), overrides=BRIEF)
    assert_caught(run, 6, record="SamplingEnvelope", evidence="seed")


@pytest.mark.fault(stage=6, injection="S: the trained policy may answer at twice the length that its rival may")
def test_a_longer_budget_for_one_side(monkeypatch, warm, tmp_path):
    def longer(self, scale):
        made = ROLLOUTS(self, scale)
        return dataclasses.replace(made, max_tokens=made.max_tokens * 2) if "rl" in self.versions else made
    run = attack(monkeypatch, warm, tmp_path / "run", (session.Session, "rollouts", longer),
                 overrides=(*BRIEF, "tasks.max_tokens=24", "reward.length_max=24"))
    assert_caught(run, 6, record="SamplingEnvelope", evidence="max_tokens")


# stage 7 ------------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=7, injection="S: the first sampled token of each sequence is dropped from the batch")
def test_a_batch_without_first_tokens(monkeypatch, warm, tmp_path):
    def shorter(groups, credit, objective, **sizes):
        def cut(member):
            prompt, first, *rest = member.trace.segments
            less = dataclasses.replace(first, token_ids=first.token_ids[1:], logps=first.logps[1:])
            return dataclasses.replace(member, trace=dataclasses.replace(member.trace, segments=(prompt, less, *rest)))
        made = PACK([dataclasses.replace(one, members=tuple(map(cut, one.members))) for one in groups],
                    dataclasses.replace(credit), objective, **sizes)
        return dataclasses.replace(made, credit=credit)
    run = attack(monkeypatch, warm, tmp_path / "run", (stepping, "pack", shorter), overrides=BRIEF)
    assert_caught(run, 7, record="Batch", evidence="tokens of the policy")


@pytest.mark.fault(stage=7, injection="S: a trajectory is filed under the text of a better attempt")
def test_the_text_of_another_attempt(monkeypatch, warm, tmp_path):
    def swapped(self, tasks, per_task, *, scope, envelope):
        found = SOLVE(self, tasks, per_task, scope=scope, envelope=envelope)
        return [dataclasses.replace(one, text=found[0].text) for one in found] if scope.startswith("rl/") else found
    run = attack(monkeypatch, warm, tmp_path / "run", (Rollouts, "solve", swapped), overrides=BRIEF)
    assert_caught(run, 7, record="Trace", evidence="its text is not what its ids spell")


@pytest.mark.fault(stage=12, injection="S: log-probs below -1 nat are reported as -1, before the engine hashes them")
def test_log_probs_that_hide_their_tail(monkeypatch, warm, tmp_path):
    def mild(logits_BV, uniform_B, request):
        made = DRAW(logits_BV, uniform_B, request)
        return dataclasses.replace(made, logp_B=made.logp_B.clamp(min=-1.0))
    run = attack(monkeypatch, warm, tmp_path / "run", (streaming, "draw", mild))
    assert_caught(run, 12, record="Batch", evidence="differ from the trainer's")


@pytest.mark.fault(stage=7, injection="S: the prompt that was sampled from has its first token twice")
def test_a_doubled_first_token(monkeypatch, warm, tmp_path):
    def doubled(self, key, prompt):
        return REQUEST(self, key, (prompt[0], *prompt))
    run = attack(monkeypatch, warm, tmp_path / "run", (Rollouts, "request", doubled), overrides=BRIEF)
    assert_caught(run, 7, record="Trace", evidence="is not the rendered prompt")


@pytest.mark.fault(stage=6, injection="S: the end of the turn is cut off trajectories, and the hash is made again")
def test_turns_without_their_end(monkeypatch, warm, tmp_path):
    def cut(self, task, group, answered, envelope):
        request, done = answered
        if done.stop_reason == "end_of_turn" and len(done.token_ids) > 1:
            done = dataclasses.replace(done, token_ids=done.token_ids[:-1], logps=done.logps[:-1], versions=done.versions[:-1])
            done = dataclasses.replace(done, sampled=HASHED(done.token_ids, done.logps, done.versions))
        return TRACE(self, task, group, (request, done), envelope)
    run = attack(monkeypatch, warm, tmp_path / "run", (Rollouts, "trace", cut), overrides=BRIEF)
    assert_caught(run, 6, record="Trace", evidence="its last token ends none")


# stage 8 ------------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=8, injection="S: the verdict of the first attempt at a task is used for all of them")
def test_verdicts_that_are_used_again(monkeypatch, warm, tmp_path):
    def cached(self, traces, tasks):
        first = {}
        return [dataclasses.replace(first.setdefault(trace.task, verdict), trace=trace.id)
                for trace, verdict in zip(traces, JUDGE(self, traces, tasks), strict=True)]
    run = attack(monkeypatch, warm, tmp_path / "run", (MagistralJudge, "judge", cached), overrides=BRIEF)
    assert_caught(run, 8, record="Trace", evidence="the text and the reference give")


@pytest.mark.fault(stage=8, injection="S: a jitter below a thousandth breaks ties, so that no group is uniform")
def test_rewards_with_a_jitter(monkeypatch, warm, tmp_path):
    def shaken(self, traces, tasks):
        found = []
        for place, verdict in enumerate(JUDGE(self, traces, tasks)):
            if isinstance(verdict, Scored):
                first, *rest = verdict.vector.components
                parts = (dataclasses.replace(first, value=first.value + 1e-4 * (place % 3)), *rest)
                verdict = dataclasses.replace(verdict, vector=dataclasses.replace(
                    verdict.vector, components=parts, total=verdict.vector.total + 1e-4 * (place % 3)))
            found.append(verdict)
        return found
    run = attack(monkeypatch, warm, tmp_path / "run", (MagistralJudge, "judge", shaken), overrides=BRIEF)
    assert_caught(run, 8, record="Trace")


@pytest.mark.fault(stage=8, injection="S: wrong answers of the policy in training time out")
def test_wrong_answers_that_time_out(monkeypatch, warm, tmp_path):
    def slow(self, traces, tasks):
        return [Unscored(trace=verdict.trace, code="timeout", detail="", verifier=self.stamp)
                if isinstance(verdict, Scored) and not verdict.vector.accuracy and trace.attempt.startswith("rl/") else verdict
                for trace, verdict in zip(traces, JUDGE(self, traces, tasks), strict=True)]
    run = attack(monkeypatch, warm, tmp_path / "run", (MagistralJudge, "judge", slow), overrides=BRIEF)
    assert_caught(run, 8, record="Trace", evidence="left unscored")


@pytest.mark.fault(stage=8, injection="S: the length penalty begins later than the recipe says")
def test_a_milder_length_penalty(monkeypatch, warm, tmp_path):
    real = judging.graded_vector

    def mild(*, length, **given):
        return real(length=min(length, 4), **given)
    run = attack(monkeypatch, warm, tmp_path / "run", (judging, "graded_vector", mild),
                 overrides=(*BRIEF, "reward.length_max=12", "reward.length_cache=11"))
    assert_caught(run, 8, record="Trace", evidence="component length")


@pytest.mark.fault(stage=8, injection="S: an answer counts as right when it is off by one")
def test_an_answer_that_is_nearly_right(monkeypatch, warm, tmp_path):
    def near(self, traces, tasks):
        found = []
        for verdict in JUDGE(self, traces, tasks):
            if isinstance(verdict, Scored) and verdict.vector.accuracy == 0.0 and verdict.vector.value("correctness") is not None:
                parts = tuple(dataclasses.replace(one, value=0.9) if one.name == "correctness" else one
                              for one in verdict.vector.components)
                verdict = dataclasses.replace(verdict, vector=dataclasses.replace(
                    verdict.vector, components=parts, total=verdict.vector.total + 0.9, accuracy=1.0))
            found.append(verdict)
        return found
    run = attack(monkeypatch, warm, tmp_path / "run", (MagistralJudge, "judge", near), overrides=BRIEF)
    assert_caught(run, 8, record="Trace", evidence="the text and the reference give")


# stage 9 ------------------------------------------------------------------------------------------------------------------------

def easy(task):
    return abs(int(task.reference)), task.id


@pytest.mark.fault(stage=9, injection="S: tasks are issued from easy to hard instead of in the seeded order")
def test_tasks_in_an_order_of_its_own(monkeypatch, warm, tmp_path):
    def sorted_next(self):
        self.cursor += 1
        return sorted(self.tasks, key=easy)[(self.cursor - 1) % len(self.tasks)]
    run = attack(monkeypatch, warm, tmp_path / "run", (session.TaskStream, "__next__", sorted_next), overrides=BRIEF)
    assert_caught(run, 9, record="Dispatch", evidence="issued 16 tasks")


@pytest.mark.fault(stage=9, injection="S: hard tasks are passed over when the stream comes to them")
def test_hard_tasks_that_are_never_issued(monkeypatch, warm, tmp_path):
    def skipping(self):
        task = NEXT(self)
        return task if easy(task)[0] < 50 else NEXT(self)
    run = attack(monkeypatch, warm, tmp_path / "run", (session.TaskStream, "__next__", skipping),
                 overrides=(*BRIEF, "stages.rl.tasks=train"))
    assert_caught(run, 9, record="Dispatch", evidence="left out")


@pytest.mark.fault(stage=9, injection="S: one more wave than needed is issued, in the hope of better groups")
def test_a_wave_too_many(monkeypatch, warm, tmp_path):
    real = policy_gradient._policy_run

    def hopeful(*given, **how):
        run = real(*given, **how)
        return dataclasses.replace(run, settings=dataclasses.replace(run.settings, groups=99))
    run = attack(monkeypatch, warm, tmp_path / "run", (policy_gradient, "_policy_run", hopeful),
                 (admission, "_group_code", everything), overrides=(*BRIEF, "stages.rl.groups=1", "stages.rl.minibatches=1"))
    assert_caught(run, 9, record="Census", evidence="was issued although")


def everything(one, rule):
    return ("accepted", "") if len(one.scored) >= rule.least else ("group_incomplete", "")


@pytest.mark.fault(stage=9, injection="S: a step ends after its first wave though no group carried a signal")
def test_a_wave_too_few(monkeypatch, warm, tmp_path):
    real = policy_gradient._policy_run

    def hasty(*given, **how):
        run = real(*given, **how)
        return dataclasses.replace(run, settings=dataclasses.replace(run.settings, max_waves=1))
    run = attack(monkeypatch, warm, tmp_path / "run", (policy_gradient, "_policy_run", hasty),
                 overrides=(*BRIEF, "stages.rl.groups=4", "stages.rl.max_waves=3"))
    assert_caught(run, 9, record="Census", evidence="the recipe goes on")


@pytest.mark.fault(stage=9, injection="S: fewer and larger groups than the recipe's")
def test_other_sizes_than_the_recipes(monkeypatch, warm, tmp_path):
    real = policy_gradient._policy_run

    def larger(*given, **how):
        run = real(*given, **how)
        return dataclasses.replace(run, settings=dataclasses.replace(run.settings, prompts=2, per_task=8))
    run = attack(monkeypatch, warm, tmp_path / "run", (policy_gradient, "_policy_run", larger), overrides=BRIEF)
    assert_caught(run, 9, record="Dispatch", evidence="the recipe says 4 at each of 4")


@pytest.mark.fault(stage=9, injection="S: the selection keeps easy tasks beyond the recipe's bounds")
def test_a_selection_outside_its_bounds(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run",
                 (pass_rate, "select", lambda tasks, accuracies, low, high: SELECT(tasks, accuracies, 0, 4)),
                 overrides=(*BRIEF, "stages.select.low=0", "stages.select.high=1"))
    assert_caught(run, 9, record="Selection")


@pytest.mark.fault(stage=9, injection="S: groups that did badly are called invalid")
def test_bad_groups_that_are_invalid(monkeypatch, warm, tmp_path):
    honest = admission._group_code

    def hides(one, rule):
        code, detail = honest(one, rule)
        bad = code == "accepted" and sum(member.verdict.vector.accuracy or 0.0 for member in one.scored) <= 1
        return ("invalid", "malformed") if bad else (code, detail)
    run = attack(monkeypatch, warm, tmp_path / "run", (admission, "_group_code", hides))
    assert_caught(run, 9, record="Trace", evidence="nothing on record says why")


@pytest.mark.fault(stage=9, injection="S: groups are called surplus before there are enough")
def test_a_surplus_that_is_none(monkeypatch, warm, tmp_path):
    honest = admission._group_code

    def surplus(one, rule):
        code, detail = honest(one, rule)
        return ("surplus", "enough groups") if code == "accepted" else (code, detail)
    run = attack(monkeypatch, warm, tmp_path / "run", (admission, "_group_code", surplus))
    assert_caught(run, 9, record="Trace", evidence="called surplus")


@pytest.mark.fault(stage=9, injection="S: fresh attempts are called stale to be rid of them")
def test_fresh_attempts_that_are_stale(monkeypatch, warm, tmp_path):
    honest = admission._group_code

    def stale(one, rule):
        code, detail = honest(one, rule)
        return ("stale", "too old") if code == "accepted" else (code, detail)
    run = attack(monkeypatch, warm, tmp_path / "run", (admission, "_group_code", stale))
    assert_caught(run, 9, record="Trace", evidence="called stale")


@pytest.mark.fault(stage=9, injection="S: a step is sampled, rolled back and sampled again under luckier uniforms")
def test_a_step_that_is_made_again_until_it_is_lucky(monkeypatch, warm, tmp_path):
    write, tried = Ledger.write_traces, []
    uniforms, gather = streaming.uniforms, stepping.gather

    def again(run, source, policy, scope):
        if tried:
            return gather(run, source, policy, scope)
        tried.append(scope)
        before, place = run.ledger.last_seq, source.cursor
        found = gather(run, source, policy, scope)
        write(run.ledger, scope, found.traces, found.verdicts, found.admission.outcomes)
        run.ledger.rollback(before, "resume")
        source.cursor = place
        monkeypatch.setattr(streaming, "uniforms", lambda seed, key, count: uniforms(seed + 1, key, count))
        return gather(run, source, policy, scope)
    run = attack(monkeypatch, warm, tmp_path / "run", (stepping, "gather", again), overrides=BRIEF)
    assert_caught(run, 9, record="", evidence="was taken back")

