"""census, lineage and query on the command line: readable, exact for machines, exit codes, nothing that acts on the terminal."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from inspected_run import ANSWER, begin, whole_run

from rollbook.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspect") / "run"
    whole_run(folder, lone=2)
    return folder


def told(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_census_prints_a_closed_table_and_says_so(run: Path) -> None:
    result = told("census", run)
    lines = [line.split() for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert ["rl", "sums", "16", "12", "-", "4", "-", "-", "16", "=", "16", "+", "0"] in lines
    assert result.stdout.splitlines()[-1] == "The census closes: 62 issued = 42 accepted + 20 rejected + 0 in flight."
    assert "rl: 12 of 32 attempts were trained on" in result.stdout and "2 attempts left no trajectory" in result.stdout
    assert ["products", "16", "50.0%", "0", "0.0%", "-50.0"] in lines


def test_census_for_machines_holds_the_same_numbers(run: Path) -> None:
    document = json.loads(told("census", run, "--json").stdout)
    assert document["closes"] and document["complete"] and document["problems"] == []
    outcomes = {"accepted": 12, "truncated": 4}
    assert {"stage": "rl", "family": "sums", "issued": 16, "outcomes": outcomes, "in_flight": 0} in document["rows"]
    assert document["shifts"][0]["lengths"][-1] == {"name": "4", "low": 4.0, "high": 4.0, "issued": 7, "trained": 0}


def test_a_census_that_does_not_close_exits_with_one(tmp_path: Path) -> None:
    writer = begin(tmp_path / "run")
    traces = writer.traces(writer.dispatch("rl/000001/0", writer.train[:2], 4))[:-1]
    ends = writer.outcomes(traces)
    writer.ledger.write_traces("rl/000001", traces, [], ends)
    assert told("census", tmp_path / "run").exit_code == 0              # the last attempt may still end
    writer.ledger.append_many(writer.outcomes(traces[:1]))
    writer.ledger.close()
    result = told("census", tmp_path / "run")
    assert result.exit_code == 1 and "! 1 attempts of rl/000001/0 ended more than once" in result.stdout
    assert "does NOT close" in result.stdout.splitlines()[-1]


def test_an_empty_run_has_a_census_in_words(tmp_path: Path) -> None:
    begin(tmp_path / "run").ledger.close()
    result = told("census", tmp_path / "run")
    assert result.exit_code == 0 and result.stdout.startswith("run: no attempt was issued")


def test_lineage_prints_a_tree_with_shortened_hashes(run: Path) -> None:
    result = told("lineage", run)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("run: magistral-small, scale tiny, seed 1 (completed)")
    policy = "└─ v2 to v3  weights 030303030303; 2 versions, 2 updates; checkpoints/rl  ["
    assert any(line.strip().startswith(policy) for line in lines)
    assert any("select  PassRate; on tasks/train" in line for line in lines)
    assert all(len(word) < 60 for word in result.stdout.split())
    assert "joined to nothing" not in result.stdout


def test_lineage_draws_an_svg_and_gives_json(run: Path, tmp_path: Path) -> None:
    result = told("lineage", run, "--svg", tmp_path / "x.svg", "--json")
    document = json.loads(result.stdout)
    assert {"source": "stage:rl", "target": "policy:rl"} in document["edges"]
    assert next(node["kind"] for node in document["nodes"] if node["key"] == "policy:rl") == "policy"
    assert (tmp_path / "x.svg").read_text(encoding="utf-8").startswith('<?xml version="1.0" encoding="UTF-8"?>\n<svg')


def test_an_svg_that_cannot_be_written_is_refused(run: Path, tmp_path: Path) -> None:
    result = told("lineage", run, "--svg", tmp_path / "no" / "x.svg")
    assert result.exit_code == 2 and "could not be written" in result.stderr


def test_query_answers_as_table_json_and_csv(run: Path) -> None:
    sql = ("SELECT family, count(*) AS n, list(DISTINCT outcome ORDER BY outcome) AS codes FROM traces WHERE stage = 'rl' "
           "GROUP BY 1 ORDER BY 1")
    assert [line.split() for line in told("query", run, sql).stdout.splitlines()] == [
        ["family", "n", "codes"], ["products", "14", '["uniform"]'], ["sums", "16", '["accepted",', '"truncated"]']]
    assert json.loads(told("query", run, sql, "--format", "json").stdout) == [
        {"family": "products", "n": 14, "codes": ["uniform"]}, {"family": "sums", "n": 16, "codes": ["accepted", "truncated"]}]
    assert list(csv.reader(io.StringIO(told("query", run, sql, "--format", "csv").stdout))) == [
        ["family", "n", "codes"], ["products", "14", '["uniform"]'], ["sums", "16", '["accepted", "truncated"]']]


def test_numbers_that_json_has_not_are_strings_and_null_stays_null(run: Path) -> None:
    sql = ("SELECT 'nan'::DOUBLE AS a, 'inf'::DOUBLE AS b, NULL AS c, 1.5::DECIMAL(4, 2) AS d, DATE '2026-11-29' AS e, "
           "{'x': [1, NULL]} AS f")
    assert json.loads(told("query", run, sql, "--format", "json").stdout) == [
        {"a": "nan", "b": "inf", "c": None, "d": "1.50", "e": "2026-11-29", "f": {"x": [1, None]}}]
    assert told("query", run, sql).stdout.splitlines()[1].split()[:3] == ["nan", "inf", "null"]


def test_a_long_answer_is_cut_with_a_note_beside_it(run: Path) -> None:
    result = told("query", run, "SELECT * FROM range(5000)", "--format", "csv")
    assert len(result.stdout.splitlines()) == 1001 and result.stderr.startswith("only the first 1000 rows; there are more")
    assert told("query", run, "SELECT * FROM range(5000)", "--format", "csv", "--limit", 5000).stderr == ""
    assert told("query", run, "SELECT 1", "--limit", 0).exit_code == 2


def test_what_a_policy_wrote_cannot_act_on_the_terminal(run: Path) -> None:
    assert "\x1b" in ANSWER
    result = told("query", run, "SELECT text, text AS \"\x1b[2J\" FROM traces LIMIT 1")
    assert "\x1b" not in result.stdout and "7⟨U+001B⟩[31m⏎" in result.stdout and len(result.stdout.splitlines()) == 2
    full = json.loads(told("query", run, "SELECT text FROM traces LIMIT 1", "--format", "json").stdout)
    assert full == [{"text": ANSWER}]


def test_a_long_cell_is_shortened_in_a_table_only(run: Path) -> None:
    sql = "SELECT repeat('x', 5000) AS a"
    assert told("query", run, sql).stdout.splitlines()[1] == "x" * 59 + "…"
    assert json.loads(told("query", run, sql, "--format", "json").stdout) == [{"a": "x" * 5000}]


def test_query_without_sql_lists_the_views(run: Path) -> None:
    listed = told("query", run).stdout.splitlines()
    assert any(line.startswith("stages: seq BIGINT, stage VARCHAR, kind VARCHAR") for line in listed)


@pytest.mark.parametrize("sql", ["COPY traces TO 'x.csv'", "PRAGMA version", "SELECT * FROM read_text('/etc/passwd')",
                                 "SELECT * FROM nothing"])
def test_sql_that_is_refused_leaves_with_two_and_says_how_to_mend_it(run: Path, sql: str) -> None:
    result = told("query", run, sql)
    assert result.exit_code == 2 and result.stdout == "" and "fix:" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("words", [("census",), ("lineage",), ("query", "SELECT 1")])
def test_what_is_no_run_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "file").write_text("no run")
    (tmp_path / "empty").mkdir()
    for name in ("file", "empty", "missing"):
        result = told(words[0], tmp_path / name, *words[1:])
        assert result.exit_code == 2 and "not a run folder" in result.stderr, result.output


@pytest.mark.parametrize("words", [("census",), ("lineage",), ("query", "SELECT count(*) FROM traces")])
def test_a_damaged_log_is_refused_with_the_position(tmp_path: Path, words: tuple[str, ...]) -> None:
    whole_run(tmp_path / "run")
    log = tmp_path / "run" / "events" / "000001.jsonl"
    data = bytearray(log.read_bytes())
    data[2000] ^= 1
    log.write_bytes(data)
    result = told(words[0], tmp_path / "run", *words[1:])
    assert result.exit_code == 2 and "the log is broken at events/000001.jsonl line" in result.stderr


def test_the_commands_need_no_torch(run: Path) -> None:
    program = ("import sys\nfrom click.testing import CliRunner\nfrom rollbook.cli import main\n"
               f"for words in (['census'], ['lineage'], ['query', 'SELECT 1']):\n"
               f"    assert CliRunner().invoke(main, [words[0], {str(run)!r}, *words[1:]]).exit_code == 0, words\n"
               "assert 'torch' not in sys.modules and 'transformers' not in sys.modules")
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ)


def test_reading_changes_nothing_in_the_run(run: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    for words in (("census",), ("lineage",), ("query", "SELECT count(*) FROM traces")):
        assert told(words[0], run, *words[1:]).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
