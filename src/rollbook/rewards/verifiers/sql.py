"""SQL by what it returns: the same rows as the gold query, on every database that the task gives."""

from __future__ import annotations

import math
import re
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rollbook.rewards.verifiers.base import BadReference, VerifierSpec, verdict
from rollbook.rewards.verifiers.extraction import answer_in

MAX_QUERY = 20_000
MAX_ROWS = 50_000
MAX_RESULT_BYTES = 50_000_000
MAX_VALUE_BYTES = 10_000_000
MAX_PAGES = 50_000                      # of 4 KiB, for each database
STEPS_PER_CALL = 10_000
DIGITS = 12                             # of a real number that count
READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
UNSTEADY = frozenset({"random", "randomblob", "load_extension", "last_insert_rowid", "changes", "total_changes", "sqlite_version",
                      "sqlite_source_id", "readfile", "writefile", "edit", "fts3_tokenizer"})
NOW = re.compile(r"'\s*now\s*'|\bcurrent_(?:time|date|timestamp)\b|\b(?:date|time|datetime|julianday|unixepoch)\s*\(\s*\)",
                 re.IGNORECASE)
COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
STRING = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]")
Rows = list[tuple[Any, ...]]


class TooMuch(Exception):
    """A query that takes more steps, rows or memory than are allowed."""


def sql_result(response: str, reference: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The query of the response returns what the gold query returns, in its order where the gold query asks for one.

    The reference is {"query": gold, "databases": [script, ..]} or {"query": gold, "schema": script}. Only one reading statement
    is run, on a database in memory that cannot be written. The same columns in the same order are wanted, whatever their names.
    """
    gold, scripts = _reference(reference)
    query = answer_in(response, settings["extract"])
    if query is None and settings["extract"].startswith("fenced"):
        query = answer_in(response, "whole")
    query = (query or "").strip().rstrip(";").strip()
    problem = _problem(query)
    if problem:
        return verdict(False, problem)
    for number, script in enumerate(scripts, 1):
        with_gold = _gold_rows(script, gold, settings["max_steps"])
        try:
            rows = run(script, query, settings["max_steps"])
        except (sqlite3.Error, sqlite3.Warning, TooMuch, ValueError) as error:
            return verdict(False, f"{type(error).__name__}: {error}")
        if not same_rows(rows, with_gold, ordered=is_ordered(gold)):
            return verdict(False, f"database {number}: {len(rows)} rows, wanted {len(with_gold)}"
                           if len(rows) != len(with_gold) else f"database {number}: other rows")
    return verdict(True, f"the same rows on {len(scripts)} database{'s' * (len(scripts) > 1)}")


def _reference(reference: Any) -> tuple[str, Sequence[str]]:
    if not isinstance(reference, Mapping) or not isinstance(reference.get("query"), str):
        raise BadReference('the reference is {"query": .., "databases": [..]}')
    scripts = reference.get("databases", [reference.get("schema", "")])
    unknown = sorted(set(reference) - {"query", "databases", "schema"})
    if unknown or not isinstance(scripts, list) or not scripts or not all(isinstance(script, str) for script in scripts):
        raise BadReference(f"databases are a list of SQL scripts; unknown: {', '.join(unknown) or 'nothing'}")
    gold = reference["query"].strip().rstrip(";").strip()
    if _problem(gold):
        raise BadReference(f"the gold query: {_problem(gold)}")
    return gold, scripts


def _problem(query: str) -> str | None:
    """What is wrong with a query before it is run."""
    if not query:
        return "no query"
    if len(query) > MAX_QUERY:
        return f"a query of {len(query)} characters"
    if "\0" in query:
        return "a null character"
    if NOW.search(COMMENT.sub(" ", query)):
        return "a result that depends on the clock"
    return None


def _gold_rows(script: str, gold: str, max_steps: int) -> Rows:
    try:
        return run(script, gold, max_steps)
    except (sqlite3.Error, sqlite3.Warning, TooMuch, ValueError) as error:
        raise BadReference(f"the gold query fails: {error}"[:200]) from None


def run(script: str, query: str, max_steps: int) -> Rows:
    """The rows of a query on a fresh database made by a script. Raises sqlite3.Error, or TooMuch beyond the limits."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.execute(f"PRAGMA max_page_count = {MAX_PAGES}")
        connection.executescript(script)
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
        left = [max(1, max_steps // STEPS_PER_CALL)]

        def over() -> int:
            left[0] -= 1
            return int(left[0] < 0)

        connection.set_progress_handler(over, STEPS_PER_CALL)
        connection.set_authorizer(_allowed)
        try:
            rows, size = [], 0
            for row in connection.execute(query):
                rows.append(row)
                size += sum(len(value) for value in row if isinstance(value, str | bytes))
                if len(rows) > MAX_ROWS or size > MAX_RESULT_BYTES:
                    raise TooMuch(f"more than {MAX_ROWS} rows or {MAX_RESULT_BYTES} bytes")
            return rows
        except sqlite3.OperationalError as error:
            if left[0] < 0:
                raise TooMuch(f"more than {max_steps} steps") from None
            raise error
    finally:
        connection.close()


def _allowed(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Reading tables and calling functions whose result depends on their arguments alone; nothing else."""
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in UNSTEADY:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY


def is_ordered(query: str) -> bool:
    """Whether a query asks for an order of its rows: an ORDER BY outside all brackets."""
    text = STRING.sub(" ", COMMENT.sub(" ", query)).lower()
    depth, kept = 0, []
    for character in text:
        depth += (character == "(") - (character == ")")
        kept.append(character if depth == 0 else " ")
    return re.search(r"\border\s+by\b", "".join(kept)) is not None


def same_rows(found: Rows, wanted: Rows, *, ordered: bool) -> bool:
    """Whether two results hold the same rows, each as often; in the same order where one was asked for."""
    one, other = ([tuple(map(_value, row)) for row in rows] for rows in (found, wanted))
    return one == other if ordered else Counter(one) == Counter(other)


def _value(value: Any) -> Any:
    """A value as it is compared: whole reals as integers, other reals to twelve digits, everything with its type."""
    if isinstance(value, float):
        if math.isfinite(value) and value == int(value) and abs(value) < 2 ** 53:
            return ("number", int(value))
        return ("number", f"{value:.{DIGITS}g}")
    if isinstance(value, int):
        return ("number", value)
    return (type(value).__name__, value)


SQL = VerifierSpec(name="sql", version="1", work=f"{__name__}:sql_result",
                   sources=("boxes.py", "verifiers/extraction.py", "verifiers/sql.py"),
                   settings={"extract": "fenced:sql", "max_steps": 5_000_000}, memory_bytes=1024 ** 3)
