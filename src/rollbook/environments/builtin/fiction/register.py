"""A world of people, their houses and their teachers, told in short sentences: for a small policy that has to read."""

from __future__ import annotations

import random

from rollbook.environments.builtin.fiction.tables import Column, Names, Rule, Sentence, Table, Template, Theme

HOUSES, TEACHERS = 40, 40


def rows(drawn: random.Random, size: int) -> tuple[Table, ...]:
    """Tables with `size` rows in all. People have two names, so that hardly two worlds ask about the same one."""
    names = Names(drawn)
    houses = [(index, names.word(1), drawn.randint(700, 800)) for index in range(1, HOUSES + 1)]
    teachers = [(index, names.word(1), drawn.choice(houses)[0]) for index in range(1, TEACHERS + 1)]
    people = [(index, f"{names.word(1)} {names.word(1)}", drawn.choice(houses)[0], drawn.choice(teachers)[0])
              for index in range(1, size - HOUSES - TEACHERS + 1)]
    key, name, house = Column(name="id"), Column(name="name", kind="text"), Column(name="house_id", refers="houses.id")
    columns = {"houses": (key, name, Column(name="built")), "teachers": (key, name, house),
               "people": (key, name, house, Column(name="teacher_id", refers="teachers.id"))}
    return tuple(Table(name=table, columns=columns[table], rows=tuple(part))
                 for table, part in zip(columns, (houses, teachers, people), strict=True))


RULES = (Rule(says="every house is older than the register", sql="SELECT id FROM houses WHERE built > 800"),)
TEMPLATES = (
    Template(name="house of a person", text="Where is {person}?", choose="SELECT name AS person FROM people",
             sql="SELECT h.name FROM people p JOIN houses h ON h.id = p.house_id WHERE p.name = :person", kind="text", hops=1),
    Template(name="teacher of a person", text="Who taught {person}?", choose="SELECT name AS person FROM people",
             sql="SELECT t.name FROM people p JOIN teachers t ON t.id = p.teacher_id WHERE p.name = :person", kind="text",
             hops=1),
)
SENTENCES = (
    Sentence(sql="SELECT p.name AS title, h.name AS house FROM people p JOIN houses h ON h.id = p.house_id",
             text="{title} is in {house}."),
    Sentence(sql="SELECT p.name AS title, t.name AS teacher FROM people p JOIN teachers t ON t.id = p.teacher_id",
             text="{title} was taught by {teacher}."),
    Sentence(sql="SELECT name AS title, built FROM houses", text="{title} is a house built in {built}."),
    Sentence(sql="SELECT t.name AS title, h.name AS house FROM teachers t JOIN houses h ON h.id = t.house_id",
             text="{title} teaches in {house}."),
)
REGISTER = Theme(name="register", rules=RULES, templates=TEMPLATES, sentences=SENTENCES)
