"""A curriculum's pools are of the run: an interrupted one goes on with the same pools, draws and weights, and audits clean."""

import dataclasses

import pytest
from click.testing import CliRunner
from small_runs import Quiet, small_recipe

from rollbook.audit.curricula import Curricula
from rollbook.audit.detector import Row
from rollbook.audit.index import RunIndex
from rollbook.cli import main
from rollbook.ledger import Ledger
from rollbook.ledger.query import query
from rollbook.orchestration.run import resume_run, run_recipe
from rollbook.orchestration.stages import policy_gradient
from rollbook.records import CurriculumReport, Dispatch, PolicyVersion, SamplingEnvelope, StepReport, content_id
from rollbook.records.curriculum import Curriculum
from rollbook.report.page import write_report

RULE = Curriculum(low=0.01, high=0.9, renew=3, explore=0.5, easy=0.0, hard=0.25, report=1)


def recipe():
    made = small_recipe("stages.cold_start.steps=30", "stages.rl.steps=4", "stages.rl.probe=0", "stages.rl.probe_every=0",
                        "stages.select.candidates=4")
    rl = dataclasses.replace(made.settings.stages["rl"], curriculum=RULE, tasks="train", max_tokens=24)
    return dataclasses.replace(made, settings=dataclasses.replace(made.settings, stages={**made.settings.stages, "rl": rl}))


def ended(folder):
    with Ledger.open(folder, write=False) as ledger:
        return list(ledger.records(PolicyVersion))[-1].weights, list(ledger.records(CurriculumReport)), ledger.semantic_hash()


@pytest.mark.soak
def test_a_killed_run_with_a_curriculum_ends_as_if_it_had_not_been_killed(tmp_path, monkeypatch):
    assert run_recipe(recipe(), tmp_path / "whole", Quiet()) == 0
    real = policy_gradient.step

    def killed(run, source, version, number):
        if number == 4:
            raise KeyboardInterrupt
        return real(run, source, version, number)
    with monkeypatch.context() as m:
        m.setattr(policy_gradient, "step", killed)
        with pytest.raises(KeyboardInterrupt):
            run_recipe(recipe(), tmp_path / "killed", Quiet())
    assert resume_run(tmp_path / "killed", Quiet()) == 0
    whole, again = ended(tmp_path / "whole"), ended(tmp_path / "killed")
    assert whole == again
    reports = whole[1]
    assert [report.step for report in reports] == [1, 2, 3, 4] and all(sum(r.pools.values()) == 64 for r in reports)
    assert reports[0].measured > 0 and any(" > " in key for report in reports for key in report.moved)
    with Ledger.open(tmp_path / "whole", write=False) as ledger:
        assert {one.max_tokens for one in ledger.records(SamplingEnvelope)} == {24, 32}
    assert CliRunner().invoke(main, ["audit", str(tmp_path / "whole")]).exit_code == 0
    sql = "SELECT sum(unmeasured + too_easy + learnable + too_hard), sum(attempts) FROM curriculum_reports"
    assert list(query(tmp_path / "whole", sql, limit=9).rows) == [(4 * 64, sum(report.attempts for report in reports))]
    assert "Pools of the curriculum" in write_report(tmp_path / "whole").read_text()
    _draws_and_pools_of_its_own_are_found(tmp_path / "whole")


def _draws_and_pools_of_its_own_are_found(run):
    """The audit draws again what the pools gave; a step, a task or a pool that is otherwise is found."""
    with Ledger.open(run, write=False) as ledger:
        found = faults(ledger, lambda record: record)
        assert found == []
        assert "are not those that its curriculum draws" in faults(ledger, other_task)[0]
        assert "reports at step 2 pools" in faults(ledger, other_pool)[0]


def other_task(record):
    if isinstance(record, Dispatch) and record.scope == "rl/000003/0":
        return dataclasses.replace(record, tasks=(record.tasks[-1], *record.tasks[1:-1], record.tasks[0]))
    return record


def other_pool(record):
    if isinstance(record, CurriculumReport) and record.step == 2:
        return dataclasses.replace(record, pools={**record.pools, "too_hard": record.pools["too_hard"] + 1})
    return record


def faults(ledger, changed):
    """What the curricula of a run are blamed for where its records are changed."""
    run, curricula, said = RunIndex(ledger), Curricula(), []
    for event in ledger.events():
        if event.kind == "RecordTable":
            run.table = event.body["name"]
            for record in ledger.table_records(event):
                run.take(content_id(record), record)
        elif event.kind == "TraceTable":
            run.table = event.body["name"]
            for identity, (trace, verdict, outcome) in ledger.rows(event):
                curricula.row(run, Row(id=identity, trace=trace, verdict=verdict, outcome=outcome))
        else:
            record = changed(event.record())
            run.take(event.id, record)
            if isinstance(record, Dispatch):
                curricula.dispatched(run, event.id, record)
            said += [*curricula.stepped(run, record)] if isinstance(record, StepReport) else []
            said += [*curricula.reported(event.id, record)] if isinstance(record, CurriculumReport) else []
    return [evidence for _, evidence, _ in said]
