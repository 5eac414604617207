"""Written traces: every equation true, the reference boxed, the format of the gate, styles in their shares."""

import random
import re
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_problems_and_splits import problem

from rollbook.records import TaskId
from rollbook.rewards import format_gate
from rollbook.tasks import GENERAL_PROMPTS, STYLES, TaskError, applicable, demonstrations, select, write_trace
from rollbook.tasks.expressions import parse
from rollbook.tasks.styles import PRODUCT_STYLES, SUM_STYLES, chain

EQUATION = re.compile(r"([-+*/\d]+)=(-?\d+)")


def equations_of(text: str) -> list[tuple[str, str]]:
    body = text.split("</think>")[0].removeprefix("<think>\n")
    found = [EQUATION.match(part) for part in re.split(r"\n|, |; ", body.strip())]
    assert all(found), text
    return [(match[1], match[2]) for match in found]


def assert_true(task, text: str) -> None:
    for left, right in equations_of(text):
        assert parse(left.replace("--", "- -")).value == Fraction(right), text
    gate = format_gate(text)
    assert gate.passed and gate.answer == task.reference, text


@given(first=st.integers(0, 999), rest=st.lists(st.integers(-999, 999), min_size=1, max_size=2), seed=st.integers(0, 9))
def test_every_equation_of_every_sum_style_is_true(first, rest, seed):
    task = problem(chain([first, *rest]).replace("+", " + ").replace("-", " - "))
    assert "direct" in applicable(task) and "check" in applicable(task)
    for style in applicable(task):
        assert_true(task, write_trace(task, style, random.Random(seed)))


@given(factors=st.lists(st.integers(0, 99), min_size=2, max_size=3), seed=st.integers(0, 9))
def test_every_equation_of_every_product_style_is_true(factors, seed):
    task = problem(" * ".join(map(str, factors)))
    for style in applicable(task):
        assert_true(task, write_trace(task, style, random.Random(seed)))


@given(first=st.integers(0, 99), second=st.integers(-99, 99))
def test_the_last_result_of_every_stepwise_style_is_the_reference(first, second):
    task = problem(chain([first, second]).replace("+", " + ").replace("-", " - "))
    for style in set(applicable(task)) & {"direct", "steps", "tens_ones", "round"}:
        assert equations_of(write_trace(task, style, random.Random(0)))[-1][1] == task.reference


@given(first=st.integers(0, 99), second=st.integers(0, 99))
def test_the_columns_of_a_sum_spell_its_digits(first, second):
    task = problem(f"{first} + {second}")
    if "columns" not in applicable(task):
        return
    results = [right for _, right in equations_of(write_trace(task, "columns", random.Random(0)))]
    assert "".join([results[-1], *(digit[-1] for digit in results[-2::-1])]).lstrip("0") == task.reference


@given(first=st.integers(0, 999), second=st.integers(0, 999))
def test_the_columns_of_a_difference_are_digits_that_spell_its_size(first, second):
    task = problem(f"{first} - {second}")
    if "columns" not in applicable(task) or second == 0:
        return
    results = [right for _, right in equations_of(write_trace(task, "columns", random.Random(0)))]
    digits = results[:-1] if first < second else results
    assert all(0 <= int(digit) <= 9 for digit in digits)
    assert int("".join(reversed(digits))) == abs(first - second)


@pytest.mark.parametrize(("text", "style", "lines"), [
    ("23 + 38", "direct", ["23+38=61"]), ("23 + 38", "steps", ["23+30=53", "53+8=61"]),
    ("23 + 38", "columns", ["3+8=11 carry 1", "2+3+1=6"]), ("61 - 38", "columns", ["11-8=3 borrow 1", "6-3-1=2"]),
    ("38 - 61", "columns", ["11-8=3 borrow 1", "6-3-1=2", "38-61=-23"]), ("23 + 38", "check", ["23+38=61", "61-38=23"]),
    ("23 + 38", "round", ["23+40=63", "63-2=61"]), ("62 + 53", "columns", ["2+3=5", "6+5=11"]),
    ("7 * 8", "check", ["7*8=56", "56/8=7"]),
    ("4 * 7", "steps", ["7+7=14", "14+7=21", "21+7=28"]), ("17 * 8", "tens_ones", ["10*8=80", "7*8=56", "80+56=136"]),
    ("8 * 19", "round", ["8*20=160", "160-8=152"]),
])
def test_a_style_worked_by_hand(text, style, lines):
    read = parse(text)
    rule, numbers = (SUM_STYLES, read.terms) if read.factors is None else (PRODUCT_STYLES, read.factors)
    assert rule[style](numbers, random.Random(0)) == lines


def test_demonstrations_are_deterministic_varied_and_in_the_shares_of_the_mixture():
    tasks = [problem(f"{a} {sign} {b}") for a in range(21, 60, 4) for b in range(23, 60, 4) for sign in "+-"]
    mixture = {"direct": 1.0, "steps": 2.0, "check": 1.0}
    made = demonstrations(tasks, count=200, seed=5, mixture=mixture)
    assert made == demonstrations(tasks, count=200, seed=5, mixture=mixture)
    assert made != demonstrations(tasks, count=200, seed=6, mixture=mixture)
    assert Counter(one.author for one in made) == {"program:direct/1": 50, "program:steps/1": 100, "program:check/1": 50}
    assert len({one.task.id for one in made}) == len(tasks) == 200
    for task, text, author in made:
        assert_true(task, text)
        assert author.split(":")[1].split("/")[0] in applicable(task)


def test_tasks_are_used_again_only_after_all_were_used():
    tasks = [problem(f"{a} + 1") for a in range(5)]
    counts = Counter(one.task.id for one in demonstrations(tasks, count=13, seed=0, mixture={"direct": 1.0}))
    assert sorted(counts.values()) == [2, 2, 3, 3, 3]


@pytest.mark.parametrize("arguments", [{"mixture": {"magic": 1.0}}, {"mixture": {}}, {"mixture": {"direct": -1.0, "check": 1.0}},
                                       {"mixture": {"columns": 1.0}}, {"count": -1}, {"tasks": []}])
def test_an_impossible_demonstration_is_refused(arguments):
    with pytest.raises(TaskError):
        demonstrations(arguments.get("tasks", [problem("2 + 3")]), count=arguments.get("count", 1), seed=0,
                       mixture=arguments.get("mixture", {"direct": 1.0}))


def test_a_style_that_does_not_apply_is_refused_by_name():
    with pytest.raises(TaskError, match="columns"):
        write_trace(problem("2 + 3"), "columns", random.Random(0))
    with pytest.raises(TaskError, match="sums, differences and products"):
        write_trace(problem("(2 + 3) * 4"), "direct", random.Random(0))
    assert set(STYLES) - {"silent"} == set(SUM_STYLES) and set(PRODUCT_STYLES) <= set(STYLES)


def test_general_prompts_are_distinct_and_short():
    assert len(set(GENERAL_PROMPTS)) == len(GENERAL_PROMPTS) >= 60
    assert all(0 < len(prompt) < 100 for prompt in GENERAL_PROMPTS)


def test_pass_rate_selection_keeps_both_bounds_and_names_every_other_reason():
    tasks = [problem(f"{a} + 7") for a in range(6)]
    results = [(0.0,) * 8, (1.0, 1.0, *(0.0,) * 6), (*(1.0,) * 6, 0.0, 0.0), (1.0,) * 8, (1.0,) * 4 + (None,) * 4, ()]
    made = select(tasks, {task.id: result for task, result in zip(tasks, results, strict=True)}, 2, 6)
    assert made.kept == (tasks[1], tasks[2])
    assert made.rejected == {"too_easy": 1, "too_hard": 1, "unscored": 2}
    assert [made.pass_counts.get(task.id) for task in tasks] == [0, 2, 6, 8, None, None]
    assert len(made.kept) + sum(made.rejected.values()) == len(tasks)


def test_selection_without_samples_or_with_crossed_bounds_is_refused():
    task = problem("1 + 1")
    with pytest.raises(TaskError, match="samples of every task"):
        select([task], {TaskId("Task:other"): (1.0,)}, 2, 6)
    with pytest.raises(TaskError, match="low <= high"):
        select([task], {task.id: (1.0,)}, 6, 2)
