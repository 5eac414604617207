"""The arguments of an instruction, read strictly: a missing, unknown or mistyped one is the task's fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from rollbook.rewards.verifiers.base import BadReference

RELATIONS = ("less than", "at least")


class Arguments:
    """Reads the arguments of one instruction and remembers which were read. `family` is named in what is refused."""

    def __init__(self, family: str, given: Mapping[str, Any]):
        self.family = family
        self.given = {name: value for name, value in given.items() if value is not None}

    def bad(self, why: str) -> NoReturn:
        raise BadReference(f"{self.family}: {why}"[:200])

    def text(self, name: str) -> str:
        value = self.given.get(name)
        if not isinstance(value, str) or not value.strip():
            self.bad(f"{name} is a text, got {value!r}")
        return value

    def texts(self, name: str) -> list[str]:
        value = self.given.get(name)
        if not isinstance(value, list) or not value or not all(isinstance(one, str) and one.strip() for one in value):
            self.bad(f"{name} is a list of texts, got {value!r}")
        return value

    def count(self, name: str) -> int:
        value = self.given.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self.bad(f"{name} is a count, got {value!r}")
        return value

    def compared(self, found: int, name: str, relation_name: str) -> bool:
        """Whether a count stands in the asked relation to the asked number: `less than`, or `at least`."""
        relation = self.given.get(relation_name)
        if relation not in RELATIONS:
            self.bad(f"{relation_name} is one of {', '.join(RELATIONS)}, got {relation!r}")
        wanted = self.count(name)
        return found < wanted if relation == "less than" else found >= wanted

    def only(self, allowed: frozenset[str]) -> None:
        """Refuses arguments that the family does not have."""
        unknown = sorted(set(self.given) - allowed)
        if unknown:
            self.bad(f"no such argument: {', '.join(unknown)}; it has {', '.join(sorted(allowed)) or 'none'}")
