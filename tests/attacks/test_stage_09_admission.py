"""Faults of the producer in stage 9: attempts that are lost, hidden, called by a false name, or trained against their outcome."""

import dataclasses

import pytest
from attacked import assert_caught, assert_found
from light import attack, clean_rows

from rollbook.experience import admission
from rollbook.experience.admission import AdmissionRule, AdmittedGroup
from rollbook.orchestration import stages
from rollbook.orchestration import step as stepping
from rollbook.rollouts.solve import Rollouts

SOLVE, CLOSE, ADMIT, CUT = (Rollouts.solve, stepping.close_census, stepping.admit,
                                      stepping.minibatches)


def without_the_last(self, tasks, per_task, *, scope, envelope):
    """Solves, and in policy steps forgets the last attempt of every group."""
    traces = SOLVE(self, tasks, per_task, scope=scope, envelope=envelope)
    return [one for one in traces if not (scope.startswith("rl/") and one.attempt.endswith(f"/{per_task - 1}"))]




def test_a_clean_run_has_every_attempt_counted_once(warm):
    row = clean_rows(warm)[9]
    assert row.result == "pass" and "trained" in row.evidence and int(row.evidence.split()[0]) > 100


@pytest.mark.fault(stage=9, injection="attempts are thrown away before admission and the census is counted without them")
def test_attempts_that_vanish_from_outcomes_and_census(monkeypatch, warm, tmp_path):
    def close(scope, issued, outcomes):
        ended = {one.attempt for one in outcomes}
        return CLOSE(scope, {name: family for name, family in issued.items() if name in ended}, outcomes)
    run = attack(monkeypatch, warm, tmp_path / "run", (Rollouts, "solve", without_the_last), (stepping, "close_census", close))
    assert_caught(run, 9, record="Census", evidence="issued")


@pytest.mark.fault(stage=9, injection="attempts that were thrown away are reported as still in flight")
def test_attempts_that_are_in_flight_for_ever(monkeypatch, warm, tmp_path):
    def close(scope, issued, outcomes):
        return CLOSE(scope, issued, outcomes, set(issued) - {one.attempt for one in outcomes})
    run = attack(monkeypatch, warm, tmp_path / "run", (Rollouts, "solve", without_the_last), (stepping, "close_census", close))
    assert_caught(run, 9, record="Dispatch", evidence="have no outcome")


@pytest.mark.fault(stage=9, injection="more attempts are sampled than were issued on record")
def test_attempts_that_were_never_issued(monkeypatch, warm, tmp_path):
    def one_more(self, tasks, per_task, *, scope, envelope):
        return SOLVE(self, tasks, per_task + scope.startswith("rl/"), scope=scope, envelope=envelope)

    def all_of_them(issued, tasks):
        whole = [dataclasses.replace(one, samples=one.samples + 1) for one in issued]
        return {attempt: tasks[task].family for one in whole for attempt, task in one.attempts()}
    run = attack(monkeypatch, warm, tmp_path / "run", (Rollouts, "solve", one_more), (stepping, "families", all_of_them))
    assert_caught(run, 9, record="Trace", evidence="never issued")


@pytest.mark.fault(stage=9, injection="a group with different rewards is dropped as uniform")
def test_an_informative_group_that_is_called_uniform(monkeypatch, warm, tmp_path):
    honest = admission._group_code

    def hides(one, rule):
        code, detail = honest(one, rule)
        return ("uniform", "all rewards are equal") if code == "accepted" and "/0/" in one.id else (code, detail)
    run = attack(monkeypatch, warm, tmp_path / "run", (admission, "_group_code", hides))
    assert_caught(run, 9, record="Trace", evidence="called uniform")


@pytest.mark.fault(stage=9, injection="groups without signal are accepted")
def test_uniform_groups_that_are_accepted(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run",
                 (stages.policy_gradient, "AdmissionRule",
                  lambda **rule: AdmissionRule(**{**rule, "drop_uniform": False})))
    assert_caught(run, 9, record="Trace", evidence="was accepted although")


@pytest.mark.fault(stage=9, injection="the longest accepted attempt of each group never reaches a batch")
def test_accepted_attempts_that_are_not_trained(monkeypatch, warm, tmp_path):
    def shorter(groups, count):
        kept = [AdmittedGroup(id=one.id, members=tuple(sorted(one.members, key=lambda m: m.trace.action_count)[:-1]))
                for one in groups]
        return CUT(kept, count)
    run = attack(monkeypatch, warm, tmp_path / "run", (stepping, "minibatches", shorter))
    assert_caught(run, 9, record="StepReport", evidence="accepted and not trained")


@pytest.mark.fault(stage=9, injection="a group is trained in two minibatches of one step")
def test_a_group_that_is_trained_twice(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", (stepping, "minibatches", lambda groups,
                                                       _: (tuple(groups), tuple(groups[:1]))))
    assert_caught(run, 9, record="Batch", evidence="trained twice")


@pytest.mark.fault(stage=9, injection="groups that are trained are reported as surplus")
def test_rejected_attempts_that_are_trained(monkeypatch, warm, tmp_path):
    def hides(groups, rule):
        found = ADMIT(groups, rule)
        return dataclasses.replace(found, outcomes=tuple(
            dataclasses.replace(one, code="surplus") if one.code == "accepted" else one for one in found.outcomes))
    run = attack(monkeypatch, warm, tmp_path / "run", (stepping, "admit", hides))
    assert_found(run, 9, record="Trace", evidence="called surplus")


@pytest.mark.fault(stage=9, injection="hard tasks are counted in another family, in outcomes and census alike")
def test_attempts_that_are_counted_in_another_family(monkeypatch, warm, tmp_path):
    def hard(groups, rule):
        return ADMIT([dataclasses.replace(one, family="hard" if not any(m.verdict.vector.accuracy for m in one.scored)
                                           else one.family) for one in groups], rule)

    def close(scope, issued, outcomes):
        return CLOSE(scope, {one.attempt: one.family for one in outcomes}, outcomes)
    run = attack(monkeypatch, warm, tmp_path / "run", (stepping, "admit", hard), (stepping, "close_census", close))
    assert_caught(run, 9, record="Trace", evidence="is counted in family")
