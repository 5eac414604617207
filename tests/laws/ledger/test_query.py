"""SQL over a run: the documented views are the real ones, the answers are right, and nothing but a SELECT gets through."""

from __future__ import annotations

import builtins
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from inspected_run import Writer, begin, whole_run

from rollbook.ledger import Ledger
from rollbook.ledger.query import SETTINGS, QueryError, described, query
from rollbook.records import CodecError, Dispatch, Kept, LedgerError, RollbookError, Trace

PAGE = Path(__file__).parents[3] / "docs" / "query.md"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("query") / "run"
    whole_run(folder, lone=2)
    return folder


def rows(run: Path, sql: str, limit: int = 1000) -> list[tuple[Any, ...]]:
    return list(query(run, sql, limit=limit).rows)


def documented() -> dict[str, tuple[tuple[str, str], ...]]:
    sections = re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]
    row = re.compile(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", re.M)
    return {section.split("\n")[0]: tuple(row.findall(section)[1:]) for section in sections}


def test_the_documented_columns_are_the_real_ones() -> None:
    assert documented() == described()


def test_every_view_of_a_whole_run_answers_with_its_columns(run: Path) -> None:
    for name, columns in described().items():
        answer = query(run, f"SELECT * FROM {name}", limit=5)
        assert tuple(zip(answer.columns, answer.types, strict=True)) == columns, name
        assert answer.rows or name.startswith(("host_", "curriculum_")), name


def test_the_examples_of_the_page_answer(run: Path) -> None:
    examples = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    assert len(examples) == 3
    reward, shift, forgotten = (rows(run, sql) for sql in examples)
    assert reward[0] == (1, "correctness", 0.5, 13) and len(reward) == 4
    assert shift[0][:3] == ("products", 14, 0) and shift[0][4] is None and shift[1] == ("sums", 16, 12, 2.5, 2.0)
    assert forgotten == []


def test_counts_agree_with_what_was_written(run: Path) -> None:
    assert rows(run, "SELECT code, count(*) FROM outcomes WHERE stage = 'rl' GROUP BY ALL ORDER BY ALL") == [
        ("accepted", 12), ("timed_out", 2), ("truncated", 4), ("uniform", 14)]
    assert rows(run, "SELECT count(*) FROM outcomes WHERE trace IS NULL") == [(2,)]
    assert rows(run, "SELECT sum(attempts) FROM dispatches") == [(62,)]
    assert rows(run, "SELECT stage, step, minibatch, term, value FROM loss_terms ORDER BY ALL LIMIT 2") == [
        ("rl", 1, 0, "kl", 0.125), ("rl", 1, 0, "policy", -0.25)]
    assert rows(run, "SELECT name, value, unit, observed FROM metrics WHERE step = 2 ORDER BY name") == [
        ("reward/total_mean", 0.5, "reward", False), ("time/step_s", 2.0, "s", True)]
    assert rows(run, "SELECT before_stage, after_stage, gain FROM comparisons ORDER BY seq") == [
        ("start_eval", "cold_eval", 0.125), ("cold_eval", "final_eval", 0.125)]
    assert rows(run, "SELECT version, parent_version FROM policy_versions ORDER BY version") == [
        (0, None), (1, 0), (2, 1), (3, 2)]
    assert rows(run, "SELECT record_table, count(*) FROM tasks GROUP BY ALL ORDER BY ALL") == [
        ("tasks/heldout", 4), ("tasks/train", 8)]


def test_trajectories_of_tables_that_hold_more_are_answered_like_the_others(run: Path, tmp_path: Path,
                                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Writer.traces

    def keeping(self: Writer, issued: Dispatch) -> list[Trace]:
        return [dataclasses.replace(one, kept=Kept(routes="AAA=")) if one.attempt.startswith("rl/") else one
                for one in plain(self, issued)]

    monkeypatch.setattr(Writer, "traces", keeping)
    whole_run(tmp_path / "run", lone=2)
    sql = "SELECT scope, attempt, stop_reason, token_ids FROM traces ORDER BY ALL"
    assert rows(tmp_path / "run", sql) == rows(run, sql) != []


def test_absent_stays_null(run: Path) -> None:
    counted = "SELECT count(*), count(total), count(latency_s), min(policy_tokens) FROM traces WHERE scope = 'rl/000001'"
    assert rows(run, counted) == [(14, 13, 10, 1)]
    assert rows(run, "SELECT failure_code, failure_verifier.name FROM traces WHERE verdict = 'Unscored' LIMIT 1") == [
        ("timeout", "math")]
    assert rows(run, "SELECT DISTINCT component, reason FROM verdict_absent") == [("language", "not configured")]


def test_list_columns_are_per_token(run: Path) -> None:
    sql = "SELECT token_ids, logps, spans[2].owner, version FROM traces WHERE stage = 'select' AND policy_tokens = 2 LIMIT 1"
    assert rows(run, sql) == [([1, 2, 3, 7, 7], [None, None, None, -0.5, -0.5], "policy", 1)]


@pytest.mark.parametrize("sql", [
    "COPY (SELECT 1) TO '{out}'", "COPY traces TO '{out}'", "ATTACH '{out}' AS x", "ATTACH ':memory:' AS x", "INSTALL httpfs",
    "LOAD json", "PRAGMA version", "PRAGMA table_info('traces')", "SET threads = 1", "RESET threads",
    "CREATE TABLE x AS SELECT 1", "CREATE TEMP VIEW x AS SELECT 1", "DROP VIEW traces",
    "INSERT INTO traces SELECT * FROM traces", "DELETE FROM events", "UPDATE events SET seq = 1", "EXPORT DATABASE '{out}'",
    "CALL enable_logging()", "CHECKPOINT", "EXPLAIN ANALYZE SELECT 1", "VACUUM", "SELECT 1; SELECT 2",
    "SELECT 1; COPY (SELECT 1) TO '{out}'", "SHOW TABLES", "PIVOT traces ON stage USING count(*)", "USE memory",
    "SELECT * FROM read_csv('/etc/passwd')", "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')", "SELECT * FROM '/etc/passwd'", "SELECT * FROM \"/etc/passwd.csv\"",
    "SELECT * FROM glob('/*')", "SELECT * FROM query('SELECT 1')", "SELECT * FROM query_table('traces')",
    "SELECT * FROM duckdb_settings()", "SELECT * FROM enable_profiling(save_location = '{out}')",
    "SELECT * FROM arrow_scan(1, 2, 3)", "SELECT * FROM parquet_scan('{out}')", "SELECT * FROM sniff_csv('/etc/passwd')",
    "WITH x AS (SELECT * FROM read_text('/etc/passwd')) SELECT * FROM x",
    "SELECT (SELECT content FROM read_text('/etc/passwd'))",
    "SELECT * FROM traces WHERE id IN (SELECT content FROM read_text('/etc/passwd'))", "SELECT getenv('HOME')",
    "SELECT * FROM trace_rows", "SELECT * FROM duckdb_secrets", "SELECT", "", ";", "\0", "SELECT nothing FROM traces",
    "SELECT 'a' + 1 FROM traces", "DESCRIBE SELECT * FROM read_csv('/etc/passwd')", "SELECT unnest(1)", "TABLE passwd",
    "SELECT * FROM pg_catalog.pg_tables", "SELECT * FROM system.main.duckdb_settings()", "BEGIN", "PREPARE x AS SELECT 1",
    "EXECUTE x",
])
def test_hostile_or_broken_sql_is_refused_and_leaves_nothing(run: Path, tmp_path: Path, sql: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with pytest.raises(QueryError) as refused:
        query(run, sql.format(out=tmp_path / "out"), limit=10)
    assert "root:" not in str(refused.value) and len(str(refused.value)) < 1000
    assert list(tmp_path.iterdir()) == [] and {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.parametrize("sql", [
    "FROM stages", "WITH x AS (SELECT 1 AS a) SELECT * FROM x", "VALUES (1)", "DESCRIBE traces", "SUMMARIZE stages",
    "TABLE stages", "SELECT unnest([1, 2])", "SELECT * FROM range(3)", "SELECT * FROM STAGES -- all of them",
    "WITH traces AS (SELECT 1 AS a) SELECT a FROM traces", "/* COPY */ SELECT 'PRAGMA'",
    "SELECT column_name FROM information_schema.columns WHERE table_name = 'traces'", "SELECT body->>'$.kind' FROM events",
])
def test_every_form_of_select_is_answered(run: Path, sql: str) -> None:
    assert rows(run, sql)


def test_a_view_that_does_not_exist_names_the_nearest(run: Path) -> None:
    with pytest.raises(QueryError, match="nearest views: traces"):
        query(run, "SELECT * FROM trace", limit=1)


def test_a_long_answer_is_cut_and_says_so(run: Path) -> None:
    answer = query(run, "SELECT * FROM range(100000000000)", limit=3)
    assert answer.cut and answer.rows == ((0,), (1,), (2,))
    assert not query(run, "SELECT * FROM range(3)", limit=3).cut


def test_the_order_of_the_statement_survives_the_limit(run: Path) -> None:
    last, before = rows(run, "SELECT seq FROM events ORDER BY seq DESC", limit=2)
    assert last > before and last == rows(run, "SELECT max(seq) FROM events")[0]


def test_a_query_that_needs_too_much_memory_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, "memory_limit", "100MB")
    with pytest.raises(QueryError, match="more memory"):
        query(run, "SELECT list(a) FROM range(1000000000) t(a)", limit=1)


def test_what_a_rollback_took_back_is_in_no_view(tmp_path: Path) -> None:
    writer = begin(tmp_path / "run")
    kept = writer.ledger.last_seq
    writer.step(1)
    writer.ledger.rollback(after=kept, reason="resume")
    for name in ("traces", "dispatches", "outcomes", "batches", "updates", "credits", "metrics"):
        assert rows(tmp_path / "run", f"SELECT * FROM {name}") == [], name
    assert rows(tmp_path / "run", "SELECT DISTINCT kind FROM events WHERE seq > " + str(kept)) == [("Rollback",)]
    writer.ledger.close()


def test_a_run_in_progress_is_read_beside_its_writer(tmp_path: Path) -> None:
    writer = begin(tmp_path / "run")
    writer.dispatch("rl/000001/0", writer.train[:2], 4)
    assert rows(tmp_path / "run", "SELECT scope, attempts FROM dispatches") == [("rl/000001/0", 8)]
    assert rows(tmp_path / "run", "SELECT count(*) FROM traces") == [(0,)]
    writer.step(2)
    assert rows(tmp_path / "run", "SELECT count(*) FROM traces") == [(16,)]
    writer.ledger.close()


def test_an_empty_run_has_every_view_without_rows(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "run", {"name": "nothing"}).close()
    assert all(rows(tmp_path / "run", f"SELECT * FROM {name}") == [] for name in described())


def test_broken_runs_are_refused_with_the_position(tmp_path: Path) -> None:
    whole_run(tmp_path / "run")
    table = tmp_path / "run" / "traces" / "rl-000001.parquet"
    whole = table.read_bytes()
    table.write_bytes(whole[:-1] + b"X")
    with pytest.raises(LedgerError, match=r"rl-000001\.parquet is damaged"):
        query(tmp_path / "run", "SELECT count(*) FROM traces", limit=1)
    assert query(tmp_path / "run", "SELECT count(*) FROM updates", limit=1).rows == ((2,),)
    table.unlink()
    with pytest.raises(LedgerError, match="is missing"):
        query(tmp_path / "run", "SELECT count(*) FROM outcomes", limit=1)
    with pytest.raises(LedgerError, match="not a run folder"):
        query(tmp_path, "SELECT 1", limit=1)


def test_a_missing_duckdb_is_said_with_the_fix(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "duckdb":
            raise ModuleNotFoundError("No module named 'duckdb'")
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(QueryError, match="DuckDB") as refused:
        query(run, "SELECT 1", limit=1)
    assert refused.value.fix == "pip install 'rollbook[query]'"
    assert isinstance(refused.value, RollbookError) and not isinstance(refused.value, CodecError)


def test_a_moved_run_is_read_the_same(run: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(run, tmp_path / "a 'copy' elsewhere; DROP")
    sql = "SELECT id, total FROM traces ORDER BY id"
    assert rows(tmp_path / "a 'copy' elsewhere; DROP", sql) == rows(run, sql)


def test_events_hold_the_record_as_json(run: Path) -> None:
    body, = rows(run, "SELECT body FROM events WHERE kind = 'RunEnd'")[0]
    assert json.loads(body)["status"] == "completed" and dataclasses.is_dataclass(query(run, "SELECT 1", limit=1))
