"""Stage 13: a gain that is not the policy's."""

import dataclasses

import pytest
from attacked import assert_caught, assert_found, attacked, rows

from rollbook.evaluation import heldout
from rollbook.orchestration import stages
from rollbook.records import Scored


@pytest.fixture(scope="module")
def clean(warm, tmp_path_factory):
    return attacked(warm, tmp_path_factory.mktemp("clean") / "run")


def test_an_honest_evaluation_passes_and_shows_its_gain(clean):
    row = rows(clean)[13]
    assert row.result == "pass", row
    assert "points" in row.evidence and "in-family" in row.evidence


@pytest.mark.fault(stage=13, injection="the later evaluation runs at another temperature, under its own protocol")
def test_a_gain_of_another_temperature_is_caught(warm, tmp_path, monkeypatch):
    real, compare = stages.evaluation.protocol_of, heldout.compare

    def cooler(session, sampling, tasks, named, **more):
        late = len(session.versions) > 3
        return real(session, dataclasses.replace(sampling, temperature=0.2) if late else sampling, tasks, named, **more)

    def lax(before, after, *, changed):
        comparison = compare(dataclasses.replace(before, protocol=after.protocol), after, changed=changed)
        return dataclasses.replace(comparison, before=heldout.content_id(before))

    with monkeypatch.context() as m:
        m.setattr(stages.evaluation, "protocol_of", cooler)
        m.setattr(stages.evaluation, "compare", lax)
        run = attacked(warm, tmp_path / "run")
    assert_caught(run, 13, record="EvalReport", evidence="was evaluated with temperature 0.2")
    assert_found(run, 13, record="Comparison", evidence="temperature")


@pytest.mark.fault(stage=13, injection="best of two attempts is reported as one attempt")
def test_a_report_that_keeps_the_better_of_two_judgements_is_caught(warm, tmp_path, monkeypatch):
    real = heldout._report

    def flattered(protocol, policy, stage, made):
        report = real(protocol, policy, stage, made)
        if stage != "final_eval":
            return report
        outcomes = dict.fromkeys(report.outcomes, 1.0)
        return dataclasses.replace(report, outcomes=outcomes, accuracy=heldout.wilson(float(len(outcomes)), len(outcomes)))

    with monkeypatch.context() as m:
        m.setattr(heldout, "_report", flattered)
        run = attacked(warm, tmp_path / "run")
    assert_caught(run, 13, record="EvalReport", evidence="trajectories give")


@pytest.mark.fault(stage=13, injection="a gain is claimed though the paired interval includes zero")
def test_a_claim_without_an_interval_above_zero_is_caught(warm, tmp_path, monkeypatch):
    real = heldout.compare
    with monkeypatch.context() as m:
        m.setattr(stages.evaluation, "compare",
                  lambda b, a, *, changed: dataclasses.replace(real(b, a, changed=changed), claim="gain"))
        run = attacked(warm, tmp_path / "run")
    assert_caught(run, 13, record="Comparison", evidence="allows none")


@pytest.mark.fault(stage=13, injection="the later evaluation is judged by a more lenient judge under the same name")
def test_a_gain_of_a_kinder_judge_is_caught(warm, tmp_path, monkeypatch):
    real = heldout.evaluate

    class Kinder:
        def __init__(self, judge):
            self.judged = judge

        def judge(self, traces, tasks):
            return [dataclasses.replace(v, vector=dataclasses.replace(v.vector, accuracy=1.0, composition_digest="kinder"))
                    if isinstance(v, Scored) else v for v in self.judged.judge(traces, tasks)]

    def evaluated(protocol, policy, *, stage):
        return real(dataclasses.replace(protocol, judge=Kinder(protocol.judge)) if stage == "final_eval" else protocol, policy,
                    stage=stage)

    with monkeypatch.context() as m:
        m.setattr(stages.evaluation, "evaluate", evaluated)
        run = attacked(warm, tmp_path / "run")
    assert_caught(run, 13, record="EvalReport", evidence="the protocol's judge")


@pytest.mark.fault(stage=13, injection="evaluations leave out items of their protocol")
def test_an_evaluation_that_leaves_out_tasks_is_caught(warm, tmp_path, monkeypatch):
    real = stages.evaluation.protocol_of

    def fewer(session, sampling, tasks, named, **more):
        made = real(session, sampling, tasks, named, **more)
        return dataclasses.replace(made, tasks=made.tasks[:-4]) if named[0] == "heldout" else made

    with monkeypatch.context() as m:
        m.setattr(stages.evaluation, "protocol_of", fewer)
        run = attacked(warm, tmp_path / "run")
    assert_caught(run, 13, record="EvalReport", evidence="not the 16 of the protocol")


@pytest.mark.fault(stage=13, injection="the evaluated weights are not those the report names")
def test_a_report_of_other_weights_is_caught(warm, tmp_path, monkeypatch):
    real = heldout.evaluate

    def evaluated(protocol, policy, *, stage):
        done = real(protocol, policy, stage=stage)
        report = dataclasses.replace(done.report, weights="0" * 64) if stage == "final_eval" else done.report
        return dataclasses.replace(done, report=report)

    with monkeypatch.context() as m:
        m.setattr(stages.evaluation, "evaluate", evaluated)
        run = attacked(warm, tmp_path / "run")
    assert_caught(run, 13, record="EvalReport", evidence="weights")
