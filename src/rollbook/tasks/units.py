"""The split unit of a raw task, found from its own text: what makes two tasks one problem."""

from __future__ import annotations

import re

from rollbook.records import RawTask
from rollbook.tasks.errors import TaskError
from rollbook.tasks.expressions import Expression, parse
from rollbook.tasks.generators import GENERATORS

RUN = re.compile(r"[-+\s(]*\d[\d\s()+*/-]*")


def expression_of(text: str) -> Expression | None:
    """The one arithmetic expression of a text; None where there is none, or more than one.

    Example: expression_of("Calculate 5 - 3.") == parse("5 - 3")
    """
    runs = RUN.findall(text)
    if len(runs) != 1:
        return None
    try:
        return parse(runs[0])
    except TaskError:
        return None


def split_unit(raw: RawTask) -> str | None:
    """The canonical problem of a procedural source, the repository of a task that comes from one, None where only likeness can
    tell.

    Example: split_unit(RawTask(content="Calculate 5 - 3.", lineage={"generator": "chain_sum", ...}, ...)) == "sum:-3+5"
    """
    if raw.lineage.get("generator") in GENERATORS:
        found = expression_of(raw.content)
        return None if found is None else found.canonical
    repository = raw.lineage.get("repository")
    return None if repository is None else f"repository:{repository}"


def procedural(raw: RawTask) -> bool:
    """Whether a generator's lineage is complete and agrees with the source and the text: only then is likeness no evidence."""
    generator = raw.lineage.get("generator")
    return (generator in GENERATORS and {"seed", "index"} <= set(raw.lineage) and raw.source.endswith(f" {generator}")
            and expression_of(raw.content) is not None)
