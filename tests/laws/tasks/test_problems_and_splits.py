"""Acquisition, canonical problems and the two sides of a split."""

import functools
import random
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.records import Budget, Message, RawTask, Task, content_id
from rollbook.records.recipe import Family, TaskSettings
from rollbook.tasks import TaskError, acquire, check_leaks, leaks, shares, split
from rollbook.tasks.expressions import parse
from rollbook.tasks.generators import _refused
from rollbook.tasks.splits import apportion, units_digest

TWO = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2, "max_operand": 30}
DATE = "2026-11-29"


def mixture(train=60, heldout=20, seed=1, families=None, system="") -> TaskSettings:
    three = {**TWO, "min_terms": 3, "max_terms": 3}
    families = families or {"two": Family(generator="chain_sum", weight=3.0, parameters=TWO),
                            "three": Family(generator="chain_sum", weight=1.0, parameters=three)}
    return TaskSettings(families=families, train=train, heldout=heldout, seed=seed, system_prompt=system, max_tokens=64)


def problem(text: str, family: str = "two") -> Task:
    read = parse(text)
    return Task(raw=f"RawTask:{family}", family=family, prompt=(Message(role="user", content=f"{text} ="),),
                reference=str(read.value), canonical=read.canonical, predicate="math.equivalent", initial_state="prompt",
                tools=(), budget=Budget(max_tokens=64), termination=("end_of_turn",))


@given(terms=st.lists(st.integers(0, 99), min_size=2, max_size=4), signs=st.lists(st.sampled_from("+-"), min_size=3, max_size=3),
       seed=st.integers(0, 99))
def test_commuted_sums_are_one_canonical_problem(terms, signs, seed):
    signed = list(zip(["+", *signs], terms, strict=False))
    written = "".join(f" {sign} {term}" for sign, term in signed).strip(" +")
    moved = [signed[0], *random.Random(seed).sample(signed[1:], len(signed) - 1)]
    commuted = "".join(f" {sign} {term}" for sign, term in moved).strip(" +")
    assert parse(written).canonical == parse(commuted).canonical
    assert parse(written).value == parse(commuted).value == sum(int(sign + str(term)) for sign, term in signed)


@pytest.mark.parametrize(("one", "other"), [
    ("3 + 5", "5 + 3"), ("3 * 5", "5 * 3"), ("5 - 0", "5 + 0"), ("( 56 + -33 )", "56 - 33"), ("-( 3 - 8 )", "8 - 3"),
    ("2 * 3 + 4", "4 + 3 * 2"),
    ("-2 * 3", "2 * -3"), ("6 / 2 * 5", "5 * 6 / 2"), ("(1 + 2) * 3", "3 * (2 + 1)"),
])
def test_forms_of_one_problem_share_their_canonical_text(one, other):
    assert parse(one).canonical == parse(other).canonical


@pytest.mark.parametrize(("one", "other"), [("3 - 5", "5 - 3"), ("3 + 5", "3 * 5"), ("3 + 5", "2 + 6"), ("13 + 5", "1 + 35"),
                                            ("6 / 2", "2 / 6"), ("(1 + 2) * 3", "1 + 2 * 3"), ("12 * 3", "1 * 23")])
def test_other_problems_differ(one, other):
    assert parse(one).canonical != parse(other).canonical


@pytest.mark.parametrize("text", ["", "2**3", "5 // 2", "x + 1", "1/0", "3 +", "__import__('os')", "1" * 500, "07 + 1", "3 3"])
def test_what_is_not_integer_arithmetic_is_refused(text):
    with pytest.raises(TaskError):
        parse(text)


def test_equal_settings_give_equal_tasks_and_another_seed_others():
    one, again, other = (acquire(mixture(seed=seed), acquired_at=DATE) for seed in (1, 1, 2))
    assert one == again
    assert {task.prompt for task in one.tasks} != {task.prompt for task in other.tasks}


def test_every_task_asks_the_question_of_its_raw_task():
    made = acquire(mixture(system="Think, then box."), acquired_at=DATE)
    assert len({task.prompt[-1].content for task in made.tasks}) == len(made.tasks)
    for task, raw in zip(made.tasks, made.raw, strict=True):
        assert task.raw == content_id(raw) and raw.acquired_at == DATE
        assert [message.role for message in task.prompt] == ["system", "user"]
        assert parse(task.prompt[-1].content).text in raw.content
        assert Fraction(task.reference) == parse(task.prompt[-1].content).value
        assert max(parse(task.prompt[-1].content).operands) <= 30
    check_leaks(zip(made.tasks, made.raw, strict=True))


def test_bounds_on_operands_and_results_hold_and_every_rejection_is_counted():
    family = Family(generator="chain_sum", weight=1.0, parameters={**TWO, "min_operand": 3, "min_result": 0, "max_result": 40})
    made = acquire(mixture(families={"two": family}), acquired_at=DATE)
    for task in made.tasks:
        assert min(parse(task.prompt[-1].content).operands) >= 3 and 0 <= int(task.reference) <= 40
    assert sum(made.rejected.values()) + len(made.tasks) == sum(made.draws.values())
    assert made.rejected["two/operand_out_of_range"] and made.rejected["two/result_out_of_range"]


@pytest.mark.parametrize("answer", ["62", "sixty-one", "", "1/0"])
def test_a_reference_that_disagrees_with_its_expression_is_rejected(answer):
    assert _refused(parse("23 + 38"), answer, {}) == "reference_disagrees"
    assert _refused(parse("23 + 38"), "61", {}) is None


@pytest.mark.parametrize(("generator", "parameters"), [
    ("products", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}),
    ("basic_arithmetic", {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2}),
])
def test_the_other_generators_give_checked_tasks(generator, parameters):
    family = Family(generator=generator, weight=1.0, parameters=parameters)
    made = acquire(mixture(20, 10, families={"f": family}), acquired_at=DATE)
    assert len(made.tasks) >= 30
    assert set(check_leaks(zip(made.tasks, made.raw, strict=True))) <= {"reference_shown_by_raw_task"}


@pytest.mark.parametrize(("family", "message"), [
    (Family(generator="sudoku", weight=1.0, parameters={}), "no known canonical problem"),
    (Family(generator="chain_sum", weight=1.0, parameters={**TWO, "max_oprand": 3}), "max_operand"),
    (Family(generator="chain_sum", weight=1.0, parameters={**TWO, "max_operand": 2.5}), "must be an integer"),
    (Family(generator="chain_sum", weight=1.0, parameters={"min_terms": 5, "max_terms": 2}), "refused by chain_sum"),
    (Family(generator="chain_sum", weight=0.0, parameters=TWO), "weight"),
])
def test_an_impossible_family_is_refused_with_its_path(family, message):
    with pytest.raises(TaskError, match=r"tasks\.families\.bad") as caught:
        acquire(mixture(families={"bad": family}), acquired_at=DATE)
    assert message in str(caught.value)


OVERLAPPING = {"two": Family(generator="chain_sum", weight=1.0, parameters=TWO),
               "mixed": Family(generator="chain_sum", weight=1.0, parameters={**TWO, "max_terms": 3})}


@functools.cache
def overlapping(train: int, heldout: int, seed: int):
    return acquire(mixture(train, heldout, seed, OVERLAPPING), acquired_at=DATE)


@pytest.mark.parametrize(("train", "heldout", "seed"), [(71, 25, 0), (40, 40, 1), (0, 30, 2), (30, 0, 3)])
def test_what_was_acquired_for_settings_is_enough_for_their_split(train, heldout, seed):
    sides = split(overlapping(train, heldout, seed).tasks, train=train, heldout=heldout, seed=seed,
                  weights=shares(mixture(families=OVERLAPPING)))
    assert (len(sides.train), len(sides.heldout)) == (train, heldout)


@settings(max_examples=60, deadline=None)
@given(train=st.integers(0, 80), heldout=st.integers(0, 40), pool=st.integers(0, 2), seed=st.integers(0, 10**6),
       weight=st.floats(0.2, 5))
def test_no_canonical_problem_stands_on_both_sides_of_any_split(train, heldout, pool, seed, weight):
    made = overlapping(160, 80, pool)
    sides = split(made.tasks, train=train, heldout=heldout, seed=seed, weights={"two": weight, "mixed": 1.0})
    units = [{task.canonical for task in side} for side in (sides.train, sides.heldout)]
    assert not units[0] & units[1]
    assert (len(sides.train), len(sides.heldout), len(units[1])) == (train, heldout, heldout)
    assert len({task.id for task in sides.train}) == train
    assert sides.manifest.counts == {"train": (train, len(units[0])), "heldout": (heldout, heldout)}
    assert sides.manifest.units == {"train": units_digest(units[0]), "heldout": units_digest(units[1])}
    assert sides.manifest.overlap == 0 and sides.manifest.in_family


def test_a_split_does_not_depend_on_the_order_of_the_tasks():
    made = acquire(mixture(), acquired_at=DATE)
    one = split(made.tasks, train=60, heldout=20, seed=3)
    assert one == split(made.tasks[::-1], train=60, heldout=20, seed=3)
    assert one != split(made.tasks, train=60, heldout=20, seed=4)


def test_all_forms_of_a_held_out_problem_stay_out_of_training():
    tasks = [problem(f"{a} + {b}") for a in range(5) for b in range(5)]
    sides = split(tasks, train=8, heldout=5, seed=0)
    held = {task.canonical for task in sides.heldout}
    assert len(held) == 5 and all(task.canonical not in held for task in sides.train)


def test_a_problem_that_two_families_share_stands_on_one_side():
    tasks = [problem(f"{a} + {b}", family) for a in range(4) for b in range(a, 4) for family in ("two", "other")]
    sides = split(tasks, train=8, heldout=4, seed=0)
    assert not {task.canonical for task in sides.train} & {task.canonical for task in sides.heldout}


def test_a_family_that_is_too_small_is_refused_with_what_exists():
    tasks = [problem(f"{a} + {b}") for a in range(4) for b in range(4)]
    with pytest.raises(TaskError, match=r"needs 11, got 10 \(10 canonical problems in 16 tasks"):
        split(tasks, train=0, heldout=11, seed=0)
    with pytest.raises(TaskError, match="train side"):
        split(tasks, train=16, heldout=1, seed=0)


def test_families_keep_their_shares_on_both_sides():
    made = acquire(mixture(80, 40), acquired_at=DATE)
    sides = split(made.tasks, train=80, heldout=40, seed=0, weights=shares(mixture()))
    assert Counter(task.family for task in sides.train) == {"two": 60, "three": 20}
    assert Counter(task.family for task in sides.heldout) == {"two": 30, "three": 10}


@given(total=st.integers(0, 1000), weights=st.dictionaries(st.text(max_size=3), st.floats(0.01, 100), min_size=1, max_size=6))
def test_apportioned_parts_sum_to_the_whole(total, weights):
    parts = apportion(total, weights)
    assert sum(parts.values()) == total
    assert all(abs(parts[name] - total * weights[name] / sum(weights.values())) < 1 for name in weights)


def raw(content: str) -> RawTask:
    return RawTask(source="s", licence="l", acquired_at=DATE, content=content, language="en", domain="arithmetic", sensitive=(),
                   lineage={})


def leak_kinds(prompt: str, content: str, reference: str, system: str = "") -> list[str]:
    source = raw(content)
    messages = (*([Message(role="system", content=system)] if system else []), Message(role="user", content=prompt))
    task = Task(raw=content_id(source), family="f", prompt=messages, reference=reference, canonical="c", predicate="p",
                initial_state="prompt", tools=(), budget=Budget(max_tokens=1), termination=())
    return [leak.kind for leak in leaks(task, source)]


def test_a_prompt_that_shows_the_answer_or_changes_a_number_is_found():
    assert leak_kinds("23 + 38 =", "Calculate 23 + 38.", "61") == []
    assert leak_kinds("23 + 38 = 61", "Calculate 23 + 38.", "61") == ["reference_shown", "numbers_added"]
    assert leak_kinds("23 + 39 =", "Calculate 23 + 38.", "61") == ["numbers_lost", "numbers_added"]
    assert leak_kinds("23 + =", "Calculate 23 + 38.", "61") == ["numbers_lost"]
    assert leak_kinds("5 - 0 =", "Calculate 5 - 0.", "5") == ["reference_shown_by_raw_task"]
    assert leak_kinds("2 + 5 =", "Calculate 2 + 5.", "7", system="e.g. 7") == ["reference_in_system_prompt"]
    assert leak_kinds("16 + 45 =", "Calculate 16 + 45.", "6") == []
    assert leak_kinds("the colour of grass (green)", "the colour of grass", "green") == ["reference_shown"]


def test_the_order_in_which_a_recipe_writes_its_families_changes_no_task_and_no_side():
    one = mixture()
    other = mixture(families=dict(reversed(one.families.items())))
    first, second = (acquire(each, acquired_at=DATE) for each in (one, other))
    assert list(one.families) != list(other.families) and first == second
    assert split(first.tasks, train=60, heldout=20, seed=1, weights=shares(one)) == split(
        second.tasks, train=60, heldout=20, seed=1, weights=shares(other))
