"""Invented worlds are consistent, of the size that was asked for, and their questions have one answer, which SQL finds."""

from __future__ import annotations

import sqlite3

import pytest

from rollbook.environments.builtin.fiction import ALL_THEMES, LARGEST, SMALLEST, World, build_world, pages_of, questions_of
from rollbook.environments.builtin.index import excerpt
from rollbook.environments.builtin.search import SearchQuestions, index_of
from rollbook.records import EnvironmentFault


@pytest.mark.parametrize("theme", ALL_THEMES)
def test_a_world_has_300_to_500_rows_and_breaks_no_rule(theme: str) -> None:
    for seed in range(10):
        world = build_world(theme, seed)
        assert SMALLEST <= world.size <= LARGEST
        assert world.broken_rules() == []


@pytest.mark.parametrize("theme", ALL_THEMES)
def test_every_rule_can_be_broken_and_is_then_found(theme: str) -> None:
    world = build_world(theme, 3)
    for table in world.tables:
        for place, column in enumerate(table.columns):
            if column.refers:
                rows = ((*table.rows[0][:place], 10_000, *table.rows[0][place + 1:]), *table.rows[1:])
                assert f"{table.name}.{column.name} names no row" in " ".join(changed(world, table.name, rows).broken_rules())
    broken = set()
    for table in world.tables:
        for place, column in enumerate(table.columns):
            if column.kind == "integer" and place:
                for value in (0, 10**6):
                    rows = tuple((*row[:place], value, *row[place + 1:]) for row in table.rows)
                    broken |= set(changed(world, table.name, rows).broken_rules())
    kept = {"no club plays against itself", "a voyage goes somewhere else"}         # needs two equal keys
    assert {rule.says for rule in world.theme.rules} - kept <= broken


def changed(world: World, name: str, rows: tuple[tuple[object, ...], ...]) -> World:
    tables = tuple(type(table)(name=table.name, columns=table.columns, rows=rows) if table.name == name else table
                   for table in world.tables)
    return World(name=world.name, theme=world.theme, tables=tables)


@pytest.mark.parametrize("theme", ALL_THEMES)
def test_the_answer_of_a_question_is_what_its_query_finds(theme: str) -> None:
    world = build_world(theme, 4)
    connection = world.connect()
    questions = questions_of(world, count=40, seed=0)
    assert len({(question.template, question.text) for question in questions}) == 40
    for question in questions:
        rows = connection.execute(question.sql, question.filled).fetchall()
        assert {str(row[0]) for row in (rows[:1] if question.kind == "best" else rows)} == set(question.answers)
        assert question.kind != "best" or len(rows) == 1 or rows[0][1] != rows[1][1]
    connection.close()


def test_a_world_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    assert build_world("trade", 7).digest == build_world("trade", 7).digest
    assert build_world("trade", 7).digest != build_world("trade", 8).digest
    with pytest.raises(EnvironmentFault, match="themes"):
        build_world("space", 1)


def test_a_world_that_has_too_few_questions_says_so() -> None:
    with pytest.raises(EnvironmentFault, match="too few questions"):
        questions_of(build_world("trade", 1), count=100_000, seed=0)


def test_a_database_of_a_world_cannot_be_written() -> None:
    with pytest.raises(sqlite3.OperationalError, match=r"readonly|read-only"):
        build_world("league", 1).connect().execute("DELETE FROM clubs")


@pytest.mark.parametrize("theme", ALL_THEMES)
def test_every_named_thing_has_a_page_and_every_number_stands_on_one(theme: str) -> None:
    world = build_world(theme, 2)
    pages = pages_of(world)
    names = {row[1] for table in world.tables for row in table.rows if table.columns[1].name in ("name", "title")}
    assert {page.name for page in pages} == names
    prose = " ".join(page.text for page in pages)
    assert all(str(row[place]) in prose for table in world.tables for row in table.rows[:20]
               for place, column in enumerate(table.columns) if place and column.refers is None and row[place] is not None)


def test_one_search_of_the_register_shows_the_answer_and_no_message_tells_how() -> None:
    definition = SearchQuestions(themes=("register",), results=1, least_hops=1, per_world=8, instructed=False)
    for task in definition.tasks(count=16, seed=5).tasks:
        (question,) = task.prompt
        (page,) = index_of(task, "").search(question.content, 1)
        assert question.role == "user" and task.reference in excerpt(page, question.content)
    assert len(SearchQuestions(themes=("register",), least_hops=1).tasks(count=1, seed=5).tasks[0].prompt) == 2
