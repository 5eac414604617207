"""How a row is put to a policy or a grader, and what its answers are held against: the same in a curation and in a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollbook.records import Message, canonical
from rollbook.tasks.curation.rows import Candidate


def shown(row: Candidate) -> str:
    """The problem, and its lettered options where it has any.

    Example: shown(Candidate(number=1, problem="2 + 2 is", reference="B", kind="choice", more={"options": ["3", "4"]})) ends with
        "A. 3\\nB. 4"
    """
    if row.kind != "choice":
        return row.problem
    return row.problem + "\n\n" + "\n".join(f"{_letter(place)}. {option}" for place, option in enumerate(_options(row)))


def asked(row: Candidate, system_prompt: str) -> tuple[Message, ...]:
    """The messages in which a row is asked; what comes from the row is from the raw task."""
    user = Message(role="user", content=shown(row), origin="raw")
    return (Message(role="system", content=system_prompt, origin="recipe"), user) if system_prompt else (user,)


def reference_of(row: Candidate) -> str | None:
    """What a verifier is handed: tests as JSON for code, a letter for a choice; None where nothing could be decided by it."""
    if row.kind == "code":
        tests = [test for test in row.more.get("tests") or () if isinstance(test, Mapping)]
        if not tests or any(not {"input", "output"} <= set(test) for test in tests):
            return None
        document: dict[str, Any] = {"tests": [{"input": test["input"], "output": test["output"]} for test in tests],
                                    "language": row.more.get("language") or "python"}
        return canonical(document | ({"function": row.more["function"]} if row.more.get("function") else {})).decode()
    given = (row.reference or "").strip()
    if row.kind == "choice":
        letter = given.strip("().").upper()
        return letter if letter in [_letter(place) for place in range(len(_options(row)))] else None
    return given if given or row.kind == "general" else None


def _options(row: Candidate) -> Sequence[Any]:
    options = row.more.get("options")
    return options if isinstance(options, list) else ()


def _letter(place: int) -> str:
    return chr(ord("A") + place)
