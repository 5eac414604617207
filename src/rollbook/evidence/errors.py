"""The refusals of this package."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rollbook.records.errors import RollbookError


class EvidenceError(RollbookError):
    """A claim that cannot be believed as written, or that is used for a release it does not speak of."""


class EvidenceProblems(EvidenceError):
    """Several refusals in one; `problems` holds each."""

    def __init__(self, problems: Sequence[EvidenceError]):
        super().__init__(f"the claims have {len(problems)} problems")
        self.problems = tuple(problems)

    def __str__(self) -> str:
        items = [f"{index}. " + textwrap.indent(str(problem), "   ").lstrip() for index, problem in enumerate(self.problems, 1)]
        return "\n".join([f"{self.what}:", *items])


def raise_any(problems: Sequence[EvidenceError]) -> None:
    """Raises nothing, the one problem, or all of them together."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise EvidenceProblems(problems)
