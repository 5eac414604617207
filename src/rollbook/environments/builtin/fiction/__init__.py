"""Invented worlds: self-consistent relational databases of 300 to 500 rows, questions answered by SQL, and pages of prose."""

from rollbook.environments.builtin.fiction.pages import Page, pages_of
from rollbook.environments.builtin.fiction.questions import Question, questions_of
from rollbook.environments.builtin.fiction.worlds import ALL_THEMES, LARGEST, SMALLEST, THEMES, World, build_world

__all__ = ["ALL_THEMES", "LARGEST", "SMALLEST", "THEMES", "Page", "Question", "World", "build_world", "pages_of", "questions_of"]
