"""All that is wrong with a recipe, said once."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rollbook.records.errors import RecipeError, RollbookError


class RecipeProblems(RecipeError):
    """Several refusals in one; `problems` holds each."""

    def __init__(self, subject: str, problems: tuple[RollbookError, ...]):
        super().__init__(f"{subject} has {len(problems)} problems")
        self.problems = problems

    def __str__(self) -> str:
        items = [f"{index}. " + textwrap.indent(str(problem), "   ").lstrip() for index, problem in enumerate(self.problems, 1)]
        return "\n".join([f"{self.what}:", *items])


@dataclass(slots=True)
class Problems:
    """Collects refusals until it is asked to raise."""

    found: list[RollbookError] = field(default_factory=list)

    def add(self, error: RollbookError) -> None:
        self.found.append(error)

    def attempt(self, check: Callable[..., object], *given: Any) -> bool:
        """Whether a check passes; what it refuses is added."""
        try:
            check(*given)
        except RollbookError as error:
            self.add(error)
            return False
        return True

    def raise_any(self, subject: str) -> None:
        """Raises nothing, the one problem, or all of them together."""
        if len(self.found) == 1:
            problem = self.found[0]
            raise problem if isinstance(problem, RecipeError) else RecipeError(
                problem.what, got=problem.got, why=problem.why, fix=problem.fix)
        if self.found:
            raise RecipeProblems(subject, tuple(self.found))
