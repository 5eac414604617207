"""What the contracts do not show of the verifiers of text, JSON and SQL."""

import sqlite3

import pytest

from rollbook.rewards import RewardError
from rollbook.rewards.verifiers.extraction import answer_in
from rollbook.rewards.verifiers.schema import NoDocument, parsed
from rollbook.rewards.verifiers.sql import TooMuch, is_ordered, run, same_rows
from rollbook.rewards.verifiers.text import chosen_letter

TABLE = "CREATE TABLE t(a INTEGER, b TEXT); INSERT INTO t VALUES (1,'x'),(2,'y'),(2,'y');"


@pytest.mark.parametrize(("how", "response", "answer"), [
    ("whole", " a b ", "a b"), ("whole", "<think>x</think> b", "b"), ("boxed", r"<think>\boxed{1}</think>2", None),
    ("boxed", r"\boxed{7}", "7"), ("boxed_or_whole", "7", "7"), ("boxed_or_whole", r"\boxed{7", None),
    ("last_line", "a\n\n b \n", "b"),
    ("last_line", "", None), ("fenced", "x\n```\na\nb\n```\ny", "a\nb"), ("fenced", "```\na\n```\n```\nb\n```", "b"),
    ("fenced", "a", None),
    ("fenced:sql", "```python\na\n```\n```SQL\nb\n```", "b"), ("fenced:sql", "```python\na\n```", None),
    ("fenced", "```\nopen", None),
    ("fenced", "~~~~\n```\n~~~~", "```"), ("tag:answer", "<answer> 7 </answer>", "7"), ("tag:answer", "<answer>7", None),
    ("tag:answer", "<answer>1</answer> <answer>2</answer>", "2"), ("tag:answer", "7", None)])
def test_the_answer_is_found_where_it_is_said_to_be(how, response, answer):
    assert answer_in(response, how) == answer


def test_an_unknown_place_for_an_answer_is_an_error():
    with pytest.raises(RewardError, match="no such way"):
        answer_in("x", "somewhere")


@pytest.mark.parametrize(("response", "letter"), [
    ("The answer is (C).", "C"), ("Answer: B", "B"), ("I think A is wrong, so the answer is D", "D"), ("B) 42", "B"),
    ("A and B", None),
    ("answer: (A) because B is wrong", "A"), ("Both are fine", None), ("A cat sat", None), ("(A) (B)", None), ("A. B", None),
    ("A/B", None), ("C. A cat sat", "C"), ("**A** or **B**", None), ("C. Paris", "C"),
    ("The correct option is E", "E"), ("the answer is a", None), (r"\boxed{\textbf{(D)}\ 12}", "D"), (r"\boxed{12}", None)])
def test_the_chosen_letter_is_the_one_that_the_response_settles_on(response, letter):
    assert chosen_letter(response, "ABCDE") == letter


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", '{"a": 1, "a": 2}', "NaN", "-Infinity", '{"a": 1}{}', "[1,]", "01",
                                  '"\n"', "[" * 101 + "]" * 101])
def test_what_is_no_json_or_means_two_things_is_no_document(text):
    with pytest.raises(NoDocument):
        parsed(text)


def test_brackets_inside_texts_nest_nothing():
    assert parsed('["' + "[" * 500 + '\\"]"]') == ["[" * 500 + '"]']


@pytest.mark.parametrize(("query", "ordered"), [
    ("SELECT a FROM t ORDER BY a", True), ("select a from t order\n by a", True),
    ("SELECT a FROM (SELECT a FROM t ORDER BY a)", False),
    ("SELECT 'order by' FROM t", False), ("SELECT a FROM t -- order by a", False), ('SELECT "order by" FROM t', False),
    ("SELECT max(a) OVER (ORDER BY b) FROM t", False)])
def test_an_order_is_asked_for_only_at_the_top_of_a_query(query, ordered):
    assert is_ordered(query) is ordered


def test_rows_count_as_often_as_they_come_and_reals_to_twelve_digits():
    assert same_rows([(1,), (2,)], [(2,), (1,)], ordered=False)
    assert not same_rows([(1,), (2,)], [(2,), (1,)], ordered=True)
    assert not same_rows([(1,)], [(1,), (1,)], ordered=False)
    assert same_rows([(1.0, 0.1 + 0.2)], [(1, 0.3)], ordered=True)
    assert not same_rows([(0.3001,)], [(0.3,)], ordered=True)
    assert not same_rows([("1",)], [(1,)], ordered=True)
    assert not same_rows([(None,)], [("",)], ordered=True)


@pytest.mark.parametrize("query", ["DELETE FROM t", "CREATE TABLE u(a)", "PRAGMA table_info(t)", "ATTACH ':memory:' AS x",
                                   "SELECT random()",
                                   "VACUUM", "BEGIN", "INSERT INTO t VALUES (3,'z')", "SELECT 1; SELECT 2",
                                   "EXPLAIN DELETE FROM t"])
def test_only_one_reading_statement_is_run(query):
    with pytest.raises((sqlite3.Error, sqlite3.Warning, TooMuch)):
        run(TABLE, query, 10 ** 6)
    assert run(TABLE, "SELECT count(*) FROM t", 10 ** 6) == [(3,)]


def test_a_query_without_end_is_stopped_by_its_steps():
    with pytest.raises(TooMuch, match="steps"):
        run(TABLE, "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n) SELECT count(*) FROM n", 10 ** 5)
    with pytest.raises(TooMuch, match="rows"):
        run(TABLE, "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n) SELECT x FROM n", 10 ** 9)
