"""Tables: traces, verdicts, outcomes and other records come back as they were, with the same ids."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_samples import LOGPS, TOKENS, any_rows, outcome, policy, rows, scored, trace

from rollbook.ledger import Ledger, TraceTable, columns, lineage
from rollbook.ledger.objects import file_digest
from rollbook.ledger.trace_ids import trace_ids
from rollbook.records import (
    Credit,
    Kept,
    LedgerError,
    NotExposed,
    Outcome,
    Part,
    PolicyVersion,
    RecordError,
    RollbookError,
    Scored,
    Segment,
    StepReport,
    Trace,
    Unscored,
    canonical,
    content_id,
    decode,
    digest,
    encode,
)


@pytest.fixture
def ledger(tmp_path: Path):
    with Ledger.create(tmp_path / "run", {}) as ledger:
        yield ledger


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(any_rows())
def test_trace_tables_come_back_exactly(case) -> None:
    traces, verdicts, outcomes = case
    with tempfile.TemporaryDirectory() as folder, Ledger.create(Path(folder) / "run", {}) as ledger:
        ledger.write_traces("t", traces, verdicts, outcomes)
        back = list(ledger.read_traces())
        assert [row[0] for row in back] == list(traces)
        assert [row[2] for row in back] == list(outcomes)
        assert [row[1] for row in back if row[1] is not None] == list(verdicts)
        for original, (again, verdict, _) in zip(traces, back, strict=True):
            assert content_id(again) == content_id(original)
            assert verdict is None or verdict.trace == content_id(original)
            assert all(type(token) is int for token in again.token_ids)
        assert [content_id(row[1]) for row in back if row[1]] == [content_id(verdict) for verdict in verdicts]


def test_tables_with_many_batches_and_row_groups_come_back_in_order(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbook.ledger.traces.BATCH_ROWS", 7)
    monkeypatch.setattr("rollbook.ledger.traces.GROUP_TOKENS", 60)
    traces, verdicts, outcomes = rows(50)
    ledger.write_traces("t", traces, verdicts, outcomes)
    assert pq.ParquetFile(next((ledger.root / "traces").iterdir())).num_row_groups > 3
    assert [row[0] for row in ledger.read_traces()] == traces
    assert list(ledger.records(Outcome)) == outcomes
    back = [*ledger.records(Scored), *ledger.records(Unscored)]
    assert back == sorted(verdicts, key=lambda verdict: isinstance(verdict, Unscored))


def test_records_come_from_the_log_from_tables_and_from_trace_rows_in_log_order(ledger: Ledger) -> None:
    ledger.append(outcome(90))
    ledger.write_table("ends", [outcome(91), outcome(92)])
    ledger.write_traces("t", *rows(2))
    ledger.append(outcome(93))
    assert list(ledger.records(Outcome)) == [outcome(90), outcome(91), outcome(92), *rows(2)[2], outcome(93)]
    assert list(ledger.records(Trace)) == rows(2)[0]
    assert list(ledger.records(PolicyVersion)) == []


def test_each_table_event_states_rows_and_the_root_of_the_ids(ledger: Ledger) -> None:
    identity = ledger.write_traces("rl/000001", *rows(3))
    event = next(ledger.events("TraceTable"))
    table = event.record()
    assert (event.id, table.rows, table.tokens) == (identity, 3, 18)
    assert table.observed["sha256"] == file_digest(ledger.root / "traces" / "rl-000001.parquet")
    other = [dataclasses.replace(trace, text="8") for trace in rows(3)[0]]
    second = ledger.write_traces("rl/000002", other, [], rows(3)[2])
    assert [event.record().root for event in ledger.events("TraceTable")][1] != table.root and second != identity


def test_the_parquet_columns_are_per_token_and_readable_without_rollbook(ledger: Ledger) -> None:
    ledger.write_traces("t", *rows(1))
    row = pq.read_table(ledger.root / "traces" / "t.parquet").to_pylist()[0]
    assert row["token_ids"] == [5, 6, 0, 17, 2, 9]
    assert [value is None for value in row["logps"]] == [True, True, True, False, False, False]
    assert [(span["owner"], span["length"], span["version"]) for span in row["spans"]] == [
        ("user", 3, None), ("policy", 2, 3), ("tool", 0, None), ("policy", 1, 4)]
    assert row["id"] == rows(1)[0][0].id and row["outcome"] == "accepted"
    assert [part["name"] for part in row["components"]] == ["correctness", "format"]


def test_arrow_batches_have_the_columns_that_were_asked_for(ledger: Ledger) -> None:
    ledger.write_traces("t", *rows(3))
    assert pa.Table.from_batches(ledger.traces(["id", "total"])).to_pydict() == {
        "id": [trace.id for trace in rows(3)[0]], "total": [0.0, None, None]}
    with pytest.raises(RecordError, match=r"(?s)totla.*total"):
        list(ledger.traces(["totla"]))


@pytest.mark.parametrize("value", [-0.1, 1e-50, 1e300])
def test_a_log_prob_that_is_no_float32_is_refused_with_its_attempt(ledger: Ledger, value: float) -> None:
    bad = trace(7, segments=(Segment(owner="policy", token_ids=(1, 2), logps=(-0.5, value), version=0),))
    with pytest.raises(RecordError, match=r"log-prob 1 of the trace of attempt rl/000001/0/Task:1f/7"):
        ledger.write_traces("t", [bad], [], [outcome(7)])
    assert list(ledger.events()) == [] and list((ledger.root / "traces").iterdir()) == []


def test_numbers_that_would_come_back_with_another_id_are_refused(ledger: Ledger) -> None:
    whole = trace(0, segments=(Segment(owner="policy", token_ids=(1,), logps=(-1,), version=0),))
    with pytest.raises(RecordError, match="not a float"):
        ledger.write_traces("t", [whole], [], [outcome(0)])
    with pytest.raises(RecordError, match=r"Scored\.vector holds a whole number where a float is declared"):
        ledger.write_traces("t", [trace(0)], [scored(trace(0), total=1)], [outcome(0)])
    with pytest.raises(RecordError, match="32-bit"):
        ledger.write_traces("t", [trace(0, segments=(Segment(owner="user", token_ids=(2**31,)),))], [], [outcome(0)])
    with pytest.raises(RecordError, match="Unicode"):
        ledger.write_traces("t", [trace(0, text="\ud800")], [], [outcome(0)])


def test_traces_verdicts_and_outcomes_are_joined_by_id_not_by_position(ledger: Ledger) -> None:
    traces, verdicts, outcomes = rows(6)
    ledger.write_traces("t", traces, verdicts[::-1], outcomes[::-1])
    for item, verdict, end in ledger.read_traces():
        assert end.attempt == item.attempt and (verdict is None or verdict.trace == item.id)


@pytest.mark.parametrize(("change", "message"), [
    (lambda t, v, o: (t, v, o[1:]), "has a trace but no outcome"),
    (lambda t, v, o: (t[1:], v[1:], o), "outcomes have no trace"),
    (lambda t, v, o: (t[1:], v, o[1:]), "verdicts have no trace"),
    (lambda t, v, o: (t, v, [*o, o[0]]), "more than one outcome"),
    (lambda t, v, o: (t, [*v, v[0]], o), "more than one verdict"),
    (lambda t, v, o: ([*t, t[0]], v, o), "more than one trace"),
])
def test_a_row_without_its_parts_is_refused(ledger: Ledger, change, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        ledger.write_traces("t", *change(*rows(3)))
    assert list(ledger.events()) == []


def test_asking_for_what_no_run_can_hold_is_an_error_not_nothing(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match=r"(?s)Outcom'.*nearest kinds: Outcome"):
        list(ledger.events("Outcom"))
    with pytest.raises(LedgerError, match="no record of the chain"):
        list(ledger.records(dict))
    with pytest.raises(LedgerError, match="no trace table of this name"):
        list(ledger.read_traces("rl/000009"))


def test_a_committed_table_never_changes(ledger: Ledger) -> None:
    ledger.write_traces("t", *rows(1))
    with pytest.raises(LedgerError, match="already in the log"):
        ledger.write_traces("t", *rows(2))
    assert len(list(ledger.read_traces())) == 1 and ledger.verify().holds


def test_a_table_holds_records_of_one_kind_and_has_a_plain_name(ledger: Ledger) -> None:
    with pytest.raises(RecordError, match="one kind"):
        ledger.write_table("t", [outcome(0), trace(0)])
    with pytest.raises(RecordError, match="one kind"):
        ledger.write_table("t", [])
    for name in ("../t", "", "/t", "a//b", ".hidden", "a b"):
        with pytest.raises(LedgerError, match="table name"):
            ledger.write_table(name, [outcome(0)])


def test_text_without_utf8_survives_in_a_record_table(ledger: Ledger) -> None:
    odd = dataclasses.replace(outcome(0), detail="a lone \ud800 surrogate")
    ledger.write_table("t", [odd])
    ledger.append(odd)
    assert list(ledger.records(Outcome)) == [odd, odd]


@pytest.mark.parametrize("change", [
    lambda table: table.append_column("mood", pa.array(["good"])),
    lambda table: table.drop_columns(["outcome"]),
    lambda table: table.replace_schema_metadata({"rollbook.versions": '{"Trace": 2}'}),
])
def test_a_trace_table_with_other_columns_or_versions_is_refused(ledger: Ledger, change) -> None:
    ledger.write_traces("t", *rows(1))
    path = ledger.root / "traces" / "u.parquet"
    pq.write_table(change(pq.read_table(ledger.root / "traces" / "t.parquet")), path)
    notes = {"path": "traces/u.parquet", "sha256": file_digest(path)}
    ledger.append(TraceTable(name="u", rows=1, tokens=6, root="", observed=notes))
    with pytest.raises(LedgerError, match=r"line 2 .*u\.parquet has other columns"):
        list(ledger.read_traces("u"))


@pytest.mark.parametrize("document", ["", "[1]", "{}", "nothing", '{"episode": null, "parts": 3}',
                                      '{"episode": null, "parts": [], "kept": {"kind": "Kept", "counts": [1.5]}}'])
def test_what_a_trajectory_keeps_comes_back_and_another_document_in_its_place_is_refused(ledger: Ledger, document: str) -> None:
    traces, verdicts, outcomes = rows(1)
    kept = dataclasses.replace(traces[0], kept=Kept(support="AwAAAA==", counts=(1,), routes="AAABAA=="))
    ledger.write_traces("t", [kept], [dataclasses.replace(verdicts[0], trace=kept.id)], outcomes)
    assert [found for found, _, _ in ledger.read_traces("t")] == [kept]
    table = pq.read_table(ledger.root / "traces" / "t.parquet")
    path, place = ledger.root / "traces" / "u.parquet", table.schema.get_field_index("episode")
    pq.write_table(table.set_column(place, table.schema.field(place), pa.array([document])), path)
    notes = {"path": "traces/u.parquet", "sha256": file_digest(path)}
    ledger.append(TraceTable(name="u", rows=1, tokens=6, root="", observed=notes))
    with pytest.raises(RollbookError, match=r"kept|parts|episode"):
        list(ledger.read_traces("u"))


def test_a_trace_table_of_the_version_before_hidden_log_probs_is_read_under_the_same_ids(ledger: Ledger, monkeypatch) -> None:
    traces, verdicts, outcomes = rows(4)
    monkeypatch.setattr(columns, "SCHEMA", columns.SCHEMA.with_metadata(columns.OLDER[0]))
    ledger.write_traces("t", traces, verdicts, outcomes)
    monkeypatch.undo()
    assert [found for found, _, _ in ledger.read_traces()] == traces


def test_a_logged_path_outside_the_table_folders_is_refused(ledger: Ledger) -> None:
    for path in ("../x.parquet", "/tmp/x.parquet", "manifest.json", "traces/../../x.parquet"):
        with tempfile.TemporaryDirectory() as folder, Ledger.create(Path(folder) / "run", {}) as other:
            other.append(TraceTable(name="u", rows=1, tokens=6, root="", observed={"path": path, "sha256": "00"}))
            with pytest.raises(LedgerError, match="names no table"):
                list(other.read_traces())
            assert "names no table" in str(other.verify().fault)


def test_lineage_is_the_edges_between_published_policies(ledger: Ledger) -> None:
    start = policy(0, None)
    first, second = policy(1, start.id), policy(2, policy(1, start.id).id)
    ledger.append_many([start, first, second])
    assert lineage(ledger) == [(start.id, first.id), (first.id, second.id)]
    ledger.append(policy(3, "PolicyVersion:unknown"))
    with pytest.raises(LedgerError, match="does not hold"):
        lineage(ledger)


def test_a_whole_number_where_a_float_is_declared_is_refused_because_its_id_would_not_survive(ledger: Ledger) -> None:
    report = StepReport(stage="rl", step=1, policy="p", published="q", census="c", batches=(), updates=(),
                        metrics={"reward/accuracy": 0.5},
                        observed={"seconds": 3})
    whole = dataclasses.replace(report, metrics={"reward/accuracy": 0.5, "admission/groups": 1})
    assert content_id(decode(StepReport, json.loads(canonical(encode(whole))))) != content_id(whole)
    for act in (lambda: ledger.append(whole), lambda: ledger.write_table("t", [report, whole])):
        with pytest.raises(RecordError, match=r"StepReport\.metrics holds a whole number"):
            act()
    credit = Credit(scope="s", rule={}, traces=("t",), group_of=("g",), reward=(1.0,), advantage=(0,), gamma=None, lam=None,
                    baseline="b", normalized_over="n")
    for bad in (credit, dataclasses.replace(credit, advantage=(0.0,), gamma=1)):
        with pytest.raises(RecordError, match=r"Credit\.(advantage|gamma) holds a whole number"):
            ledger.append(bad)
    identity = ledger.append(report)
    assert [content_id(record) for record in ledger.records(StepReport)] == [identity]


def test_a_content_id_is_the_hash_of_the_canonical_document_without_what_was_observed() -> None:
    traces, verdicts, outcomes = rows(3)
    for record in (*traces, *verdicts, *outcomes, policy(0, None)):
        document = {name: value for name, value in encode(record).items() if name != "observed"}
        assert content_id(record) == f"{type(record).__name__}:{digest(canonical(document))}"


@given(st.lists(st.tuples(st.lists(TOKENS, max_size=4), st.lists(st.one_of(LOGPS, st.sampled_from([
    0.0, -0.0, -1.0, -1e-5, -9.999999747378752e-05, -1e-4, -1e15, -1e16, -1e22, 5e-324])), max_size=4)), max_size=5))
def test_ids_of_many_trajectories_are_those_of_each(parts) -> None:
    made = [trace(place, segments=(Segment(owner="user", token_ids=tuple(shown)),
                                   Segment(owner="policy", token_ids=(1,) * len(logps), logps=tuple(logps), version=2)),
                  text='a "b"\n\ud800', envelope=None if place % 2 else "S") for place, (shown, logps) in enumerate(parts)]
    assert trace_ids(made) == [content_id(one) for one in made]


def test_ids_of_trajectories_that_are_not_plain_are_those_of_each_too() -> None:
    hidden = trace(1, segments=(Segment(owner="user", token_ids=(True, 2)),
                                Segment(owner="policy", token_ids=(1,), logps=NotExposed(), version=2)))
    more = trace(2, parts=(Part(kind="compacted", parent=None, segments=trace(3).segments, stop_reason="length"),))
    whole = trace(4, segments=(Segment(owner="policy", token_ids=(1,), logps=(-1,), version=2),))
    made = [trace(0), hidden, more, whole, trace(5), dataclasses.replace(trace(6), kept=Kept(counts=(1,), support="AwAAAA=="))]
    assert trace_ids(made) == [content_id(one) for one in made]
