"""census, lineage and query over runs that were really made, honest and with an attempt that the producer makes vanish."""

import re
from pathlib import Path

import pytest
from attacked import attacked

from rollbook.ledger.lineage import run_lineage
from rollbook.ledger.query import query
from rollbook.ledger.run_census import run_census
from rollbook.orchestration import step
from rollbook.report.lineage_svg import lineage_svg
from rollbook.rollouts.solve import Rollouts

PAGE = Path(__file__).parents[2] / "docs" / "query.md"


@pytest.fixture(scope="module")
def honest(warm, tmp_path_factory):
    return attacked(warm, tmp_path_factory.mktemp("inspected") / "run")


def test_the_census_of_an_honest_run_closes(honest):
    found = run_census(honest)
    assert found.closes and found.complete and found.problems == ()
    assert {row.stage for row in found.rows} >= {"start_eval", "select", "rl", "rl/probe", "final_eval"}
    shift, = found.shifts
    assert shift.stage == "rl" and 0 < shift.trained <= shift.issued == sum(row.issued for row in found.rows if row.stage == "rl")


def test_the_lineage_of_an_honest_run_leaves_nothing_open(honest):
    graph = run_lineage(honest)
    assert graph.problems == () and graph.state == "completed"
    assert {edge.source for edge in graph.edges} | {edge.target for edge in graph.edges} == {node.key for node in graph.nodes}
    assert "checkpoints/rl" in lineage_svg(graph)


def test_queries_agree_with_the_census(honest):
    found = run_census(honest)
    rows = query(honest, "SELECT stage, family, count(*) FROM outcomes GROUP BY ALL", limit=1000).rows
    assert {(stage, family): count for stage, family, count in rows} == {(row.stage, row.family): row.ended for row in found.rows}
    trained, = query(honest, "SELECT count(DISTINCT trace) FROM credits", limit=1).rows
    assert trained[0] == found.shifts[0].trained
    for sql in re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S):
        query(honest, sql, limit=10)


def test_an_attempt_that_vanishes_between_sampling_and_the_census_is_named(warm, tmp_path, monkeypatch):
    solve, families = Rollouts.solve, step.families

    def forgetful(self, tasks, per_task, *, scope, envelope):
        traces = solve(self, tasks, per_task, scope=scope, envelope=envelope)
        return traces[1:] if scope == "rl/000001/0" else traces

    def agreeing(issued, tasks):
        return {attempt: family for attempt, family in families(issued, tasks).items()
                if not (attempt.startswith("rl/000001/0/0/") and attempt.endswith("/0"))}

    with monkeypatch.context() as m:
        m.setattr(Rollouts, "solve", forgetful)
        m.setattr(step, "families", agreeing)
        run = attacked(warm, tmp_path / "run")
    found = run_census(run)
    assert not found.closes
    assert any("1 attempts of rl/000001/0 have no outcome: rl/000001/0/0/Task:" in problem for problem in found.problems)
    assert any(problem.startswith("the census of rl/000001 states issued") for problem in found.problems)
