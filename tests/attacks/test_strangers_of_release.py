"""Faults of stage 14 by somebody who read the specification of the chain and not the code. Run by `make faults`."""

import dataclasses
from datetime import timedelta

import pytest
from attacked import assert_caught, rows
from gate_runs import NOW, WISH, lax, redrafted, scripted, wish
from light import attack

from rollbook.ledger import Ledger
from rollbook.orchestration import permission, stages
from rollbook.orchestration.permission import decide
from rollbook.records import GateDecision, Unscored, VerifierStamp

LATER = NOW + timedelta(hours=1)
BY = VerifierStamp(name="math", version="1", digest="0")
TOLD = {"what": "answers in the wrong language", "severity": "major", "reporter": "maria", "action": "rollback"}


@pytest.mark.fault(stage=14, injection="S: the way back leads to a policy that was itself refused")
def test_a_way_back_to_a_refused_policy(copy, key, monkeypatch):
    decide(copy, wish(stage="cold_start", decision="refuse", rollback=None), private_key=key, now=NOW)
    with monkeypatch.context() as m:
        lax(m)
        decide(copy, WISH, private_key=key, now=LATER)
    assert_caught(copy, 14, record="GateDecision", evidence="itself refused")


@pytest.mark.fault(stage=14, injection="S: an incident takes the permission back, and the refusal that follows is not recorded")
def test_an_incident_without_its_refusal(copy, key, monkeypatch):
    decide(copy, WISH, private_key=key, now=NOW)
    append = Ledger.append_many
    with monkeypatch.context() as m:
        m.setattr(Ledger, "append_many", lambda self, records: append(self, [one for one in records
                                                                             if not isinstance(one, GateDecision)]))
        permission.report_incident(copy, None, TOLD, now=LATER, private_key=key)
    assert_caught(copy, 14, record="Incident", evidence="took the permission")


@pytest.mark.fault(stage=14, injection="S: an incident is filed under weights that nobody published")
def test_an_incident_under_other_weights(copy, key, monkeypatch):
    decide(copy, WISH, private_key=key, now=NOW)
    real = permission.decode
    with monkeypatch.context() as m:
        m.setattr(permission, "decode", lambda kind, document, path: real(kind, {**document, "weights": "ab" * 32}, path))
        permission.report_incident(copy, None, {**TOLD, "action": "none"}, now=LATER, private_key=None)
    assert_caught(copy, 14, record="Incident", evidence="did not publish")


@pytest.mark.fault(stage=14, injection="S: the threshold is met because wrong answers were left unscored")
def test_a_threshold_that_unscored_answers_meet(monkeypatch, warm, tmp_path, key):
    def kind(verdict, right):
        if right:
            return dataclasses.replace(verdict, vector=dataclasses.replace(verdict.vector, accuracy=1.0))
        return Unscored(trace=verdict.trace, code="timeout", detail="", verifier=BY)
    run = attack(monkeypatch, warm, tmp_path / "run", (stages.evaluation, "evaluate", scripted(kind)),
                 overrides=("stages.rl.probe_every=0",))
    with monkeypatch.context() as m:
        lax(m)
        decide(run, wish(thresholds={"heldout": 0.9}), private_key=key, now=NOW)
    assert_caught(run, 14, record="GateDecision", evidence="left unscored")


@pytest.mark.fault(stage=14, injection="S: the decision rests on the evaluation of a better policy than its own")
def test_a_permission_that_names_reports_of_another_policy(copy, key, monkeypatch):
    with monkeypatch.context() as m:
        lax(m)
        with Ledger.open(copy, write=False) as ledger:
            held = permission.finished(ledger)
        before = permission.evaluations(held.version("start").id, held.version("start").weights, held.ground.reports)
        redrafted(m, lambda decision: dataclasses.replace(decision, reports=tuple(before), thresholds={"heldout": 0.75}))
        decide(copy, WISH, private_key=key, now=NOW)
    assert_caught(copy, 14, record="GateDecision", evidence="rests on 1 reports; the run holds 1 of this policy, 0 of them")


def test_an_incident_that_rolled_back_as_it_should_passes_and_is_shown(copy, key):
    decide(copy, WISH, private_key=key, now=NOW)
    permission.report_incident(copy, None, TOLD, now=LATER, private_key=key)
    row = rows(copy)[14]
    assert row.result == "pass" and "wrong language" in row.evidence, row
