"""The descent of a run: what came from what, as far as the run has come, and what the records leave without an origin."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from inspected_run import begin, whole_run

from rollbook.ledger import Ledger
from rollbook.ledger.lineage import Lineage, run_lineage
from rollbook.records import EvalReport, LedgerError, PolicyVersion, Task


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    folder = tmp_path_factory.mktemp("lineage") / "run"
    whole_run(folder)
    return run_lineage(folder)


def edges(graph: Lineage) -> set[tuple[str, str]]:
    return {(edge.source, edge.target) for edge in graph.edges}


def test_data_descends_from_data(graph: Lineage) -> None:
    assert {("table:tasks/raw", "table:tasks/train"), ("table:tasks/raw", "table:tasks/heldout"),
            ("table:tasks/train", "table:cold_start/demonstrations")} <= edges(graph)


def test_stages_take_a_policy_and_data_and_make_a_policy(graph: Lineage) -> None:
    assert {("policy:start", "stage:cold_start"), ("table:cold_start/demonstrations", "stage:cold_start"),
            ("stage:cold_start", "policy:cold_start"), ("policy:cold_start", "stage:select"),
            ("table:tasks/train", "stage:select"),
            ("stage:select", "selection:select"), ("selection:select", "stage:rl"), ("policy:cold_start", "stage:rl"),
            ("stage:rl", "policy:rl")} <= edges(graph)
    assert ("table:tasks/train", "stage:rl") not in edges(graph)
    assert graph.node("policy:rl").name == "v2 to v3" and "2 versions, 2 updates" in graph.node("policy:rl").lines


def test_an_evaluation_hangs_on_the_task_set_its_protocol_names_by_hash(graph: Lineage) -> None:
    assert {("table:tasks/heldout", "stage:final_eval"), ("stage:final_eval", "evaluation:final_eval"),
            ("policy:rl", "evaluation:rl/probe"), ("table:tasks/heldout", "evaluation:rl/probe"),
            ("evaluation:cold_eval", "comparison:1"), ("evaluation:final_eval", "comparison:1")} <= edges(graph)


def test_an_honest_run_leaves_nothing_without_an_origin(graph: Lineage) -> None:
    assert graph.problems == () and graph.state == "completed" and graph.stages[0] == "start_eval"
    ends = {edge.source for edge in graph.edges} | {edge.target for edge in graph.edges}
    assert ends == {node.key for node in graph.nodes}


def test_a_run_in_progress_shows_stages_that_have_not_begun(tmp_path: Path) -> None:
    writer = begin(tmp_path / "run")
    writer.evaluate("start_eval")
    writer.dispatch("rl/000001/0", writer.train[:1], 2)
    writer.ledger.close()
    graph = run_lineage(tmp_path / "run")
    assert graph.state == "in progress" and graph.node("stage:cold_start").lines[-1] == "not begun"
    assert graph.node("stage:rl").lines[-1] == "begun" and graph.problems == ()


def test_a_policy_from_nowhere_is_named(tmp_path: Path) -> None:
    writer = begin(tmp_path / "run")
    writer.ledger.append(dataclasses.replace(writer.policy, index=1, stage="rl", parent="PolicyVersion:lost"))
    writer.ledger.close()
    assert "version 1 (PolicyVersion:" in run_lineage(tmp_path / "run").problems[0]


def test_an_evaluation_of_a_policy_that_was_never_published_is_named(tmp_path: Path) -> None:
    writer = begin(tmp_path / "run")
    writer.evaluate("start_eval")
    report = next(iter(writer.ledger.records(EvalReport)))
    writer.ledger.append(dataclasses.replace(report, stage="rl/probe/000001", policy="PolicyVersion:lost"))
    writer.ledger.close()
    assert "evaluation rl/probe/000001 is of a policy that the run does not hold" in run_lineage(tmp_path / "run").problems[0]


def test_training_on_tasks_outside_the_selection_is_named(tmp_path: Path) -> None:
    writer = begin(tmp_path / "run")
    writer.select()
    writer.dispatch("rl/000001/0", writer.train[3:6], 2)
    writer.ledger.close()
    assert "stage rl issued 2 tasks that selection select had not kept" in run_lineage(tmp_path / "run").problems


def test_tasks_made_of_no_raw_task_of_the_run_are_named(tmp_path: Path) -> None:
    writer = begin(tmp_path / "run")
    task = next(iter(writer.ledger.records(Task)))
    writer.ledger.write_table("tasks/more", [dataclasses.replace(task, raw="RawTask:lost")])
    writer.ledger.close()
    assert "1 rows of tasks/more name a raw task that the run does not hold" in run_lineage(tmp_path / "run").problems


def test_a_run_without_a_recipe_is_drawn_from_its_records(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "run", {"name": "plain"})
    version = PolicyVersion(index=0, stage="start", weights="00" * 32, published="00" * 32, parent=None, updates=0,
                            optimizer=None, window=(), healthy=True, acknowledged=(), probe=None)
    ledger.append_many([version, dataclasses.replace(version, index=1, stage="loop", parent=version.id, updates=3)])
    ledger.close()
    graph = run_lineage(tmp_path / "run")
    assert graph.stages == ("loop",) and ("stage:loop", "policy:loop") in edges(graph) and graph.title == "plain"


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="not a run folder"):
        run_lineage(tmp_path)
