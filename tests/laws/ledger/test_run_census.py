"""The census of a run, made again from dispatches and trajectories: it closes on an honest run and names what does not add up."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspected_run import Writer, begin, scored, whole_run

from rollbook.ledger import Ledger
from rollbook.ledger.distribution import fifths
from rollbook.ledger.run_census import RunCensus, run_census
from rollbook.ledger.scopes import place_of, stage_of
from rollbook.records import Census, LedgerError, RunEnd


def by_stage(found: RunCensus) -> dict[tuple[str, str], tuple[int, dict[str, int], int]]:
    return {(row.stage, row.family): (row.issued, dict(row.outcomes), row.in_flight) for row in found.rows}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> RunCensus:
    folder = tmp_path_factory.mktemp("census") / "run"
    whole_run(folder, lone=2)
    return run_census(folder)


def test_an_honest_run_closes_per_stage_and_family(honest: RunCensus) -> None:
    found = by_stage(honest)
    assert honest.closes and honest.complete and honest.problems == ()
    assert found["rl", "sums"] == (16, {"accepted": 12, "truncated": 4}, 0)
    assert found["rl", "products"] == (16, {"timed_out": 2, "uniform": 14}, 0)
    assert found["start_eval", "sums"] == found["final_eval", "products"] == (2, {"accepted": 2}, 0)
    assert found["rl/probe", "sums"] == (1, {"accepted": 1}, 0)
    assert found["select", "products"] == (8, {"accepted": 8}, 0)


def test_trained_is_set_against_issued_by_family_length_and_latency(honest: RunCensus) -> None:
    shift, = honest.shifts
    assert (shift.stage, shift.issued, shift.trajectories, shift.trained, shift.no_latency) == ("rl", 32, 30, 12, 8)
    assert {one.name: (one.issued, one.trained) for one in shift.families} == {"products": (16, 0), "sums": (16, 12)}
    assert [(one.name, one.issued, one.trained) for one in shift.lengths] == [("1", 8, 4), ("2", 8, 4), ("3", 7, 4), ("4", 7, 0)]
    assert [(one.low, one.issued, one.trained) for one in shift.latencies] == [(1.0, 8, 4), (2.0, 7, 4), (3.0, 7, 0)]


def test_a_run_in_progress_shows_what_is_in_flight_and_closes(tmp_path: Path) -> None:
    writer = begin(tmp_path / "run")
    writer.dispatch("rl/000001/0", writer.train[:2], 4)
    found = run_census(tmp_path / "run")
    assert by_stage(found) == {("rl", "products"): (4, {}, 4), ("rl", "sums"): (4, {}, 4)}
    assert found.closes and not found.complete
    writer.ledger.close()


def test_attempts_without_an_end_are_lost_once_the_run_is_complete(tmp_path: Path) -> None:
    writer = begin(tmp_path / "run")
    writer.dispatch("rl/000001/0", writer.train[:1], 2)
    writer.ledger.append(RunEnd(status="completed", detail=""))
    writer.ledger.close()
    found = run_census(tmp_path / "run")
    assert not found.closes and "2 attempts of rl/000001/0 have no outcome: rl/000001/0/0/Task:" in found.problems[0]


def spoilt(writer: Writer, change: str) -> list[str]:
    """One step with a fault; what the census then says."""
    issued = writer.dispatch("rl/000001/0", writer.train[:2], 4)
    traces = writer.traces(issued)
    if change == "lost":
        traces = traces[:-1]
    if change == "invented":
        traces[0] = dataclasses.replace(traces[0], attempt="rl/000001/9/0/Task:1f/0")
    ends = writer.outcomes(traces)
    if change == "other family":
        ends[0] = dataclasses.replace(ends[0], family="roots")
    writer.ledger.write_traces("rl/000001", traces, [scored(one) for one in traces], ends)
    if change == "twice":
        writer.ledger.append(ends[3])
    stated = {"products": {"uniform": 4}, "sums": {"accepted": 4} if change == "misstated" else {"accepted": 3, "truncated": 1}}
    writer.ledger.append(Census(scope="rl/000001", issued={"products": 4, "sums": 4}, outcomes=stated, in_flight={}))
    if change == "strangers":
        writer.learn("rl/000001/0", [dataclasses.replace(traces[0], text="another")], 1)
    writer.ledger.close()
    found = run_census(writer.ledger.root)
    assert not found.closes
    return list(found.problems)


@pytest.mark.parametrize(("change", "words"), [
    ("lost", "1 attempts of rl/000001/0 have no outcome"), ("twice", "1 attempts of rl/000001/0 ended more than once"),
    ("invented", "1 attempts in rl/000001 ended without having been issued: rl/000001/9/0/Task:1f/0"),
    ("other family", "1 attempts of rl/000001/0 ended in another family than they were issued in"),
    ("misstated", "the census of rl/000001 states products: uniform 4; sums: accepted 4; the trajectories say"),
    ("strangers", "1 trajectories were trained on that stand in no trace table"),
])
def test_what_does_not_add_up_is_named(tmp_path: Path, change: str, words: str) -> None:
    assert any(words in problem for problem in spoilt(begin(tmp_path / "run"), change))


def test_what_a_rollback_took_back_is_not_counted(tmp_path: Path) -> None:
    writer = begin(tmp_path / "run")
    kept = writer.ledger.last_seq
    writer.dispatch("rl/000001/0", writer.train[:2], 4)
    writer.ledger.rollback(after=kept, reason="resume")
    writer.step(1)
    writer.ledger.close()
    found = run_census(tmp_path / "run")
    assert found.closes and sum(row.issued for row in found.rows) == 16


def test_the_same_protocol_evaluated_twice_is_counted_twice(tmp_path: Path) -> None:
    writer = begin(tmp_path / "run")
    writer.evaluate("start_eval")
    writer.evaluate("final_eval")
    writer.ledger.close()
    found = run_census(tmp_path / "run")
    assert found.closes and sum(row.issued for row in found.rows) == 8


def test_a_dispatch_of_unknown_tasks_is_named(tmp_path: Path) -> None:
    writer = begin(tmp_path / "run")
    stranger = dataclasses.replace(writer.train[0], reference="secret")
    writer.dispatch("rl/000001/0", [stranger], 2)
    writer.ledger.close()
    assert "issues attempts at 1 tasks that the run does not hold" in run_census(tmp_path / "run").problems[0]


def test_a_broken_table_is_refused_with_its_position(tmp_path: Path) -> None:
    whole_run(tmp_path / "run")
    file = tmp_path / "run" / "traces" / "rl-000001.parquet"
    file.write_bytes(file.read_bytes()[:-9] + b"123456789")
    with pytest.raises(LedgerError, match="rl-000001"):
        run_census(tmp_path / "run")


def test_a_table_with_another_hash_is_refused_even_if_it_reads_well(tmp_path: Path) -> None:
    whole_run(tmp_path / "run")
    file = tmp_path / "run" / "traces" / "rl-000001.parquet"
    pq.write_table(pq.read_table(file), file)
    with pytest.raises(LedgerError, match="damaged"):
        run_census(tmp_path / "run")


def test_an_empty_run_has_an_empty_census_that_closes(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "run", {"name": "nothing"}).close()
    found = run_census(tmp_path / "run")
    assert found.closes and found.rows == () and found.shifts == ()


@given(st.lists(st.floats(0, 100, width=32, allow_subnormal=False), max_size=60), st.integers(0, 2**32))
def test_fifths_hold_every_value_once_and_are_at_most_five(values: list[float], seed: int) -> None:
    used = np.random.default_rng(seed).random(len(values)) < 0.5
    slices = list(fifths(np.array(values, np.float32), used))
    assert sum(one.issued for one in slices) == len(values) and sum(one.trained for one in slices) == int(used.sum())
    assert len(slices) <= 5
    assert all(a.high is not None and b.low is not None and a.high < b.low for a, b in itertools.pairwise(slices))


def test_scopes_say_stage_step_and_minibatch() -> None:
    assert [stage_of(name) for name in ("rl/000001", "eval/start_eval", "eval/rl/probe/000010", "select")] == [
        "rl", "start_eval", "rl/probe", "select"]
    assert place_of("rl/000003/1") == ("rl", 3, 1) and place_of("rl/000003") == ("rl", 3, None)
    assert place_of("select") == ("select", None, None)


