"""Two recipes side by side: where their values or the labels of these differ."""

from __future__ import annotations

from dataclasses import dataclass

from rollbook.recipes.document import Document
from rollbook.recipes.overlay import scaled
from rollbook.recipes.values import Entry, entries
from rollbook.records.problems import Problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One path that the two recipes answer differently; None where a recipe has no such value.

    Example: Difference(path="stages.rl.objective.high", first=Entry(value=0.3, label="D"), second=Entry(value=0.28, label="D"))
    """

    path: str
    first: Entry | None
    second: Entry | None


def differences(first: Document, second: Document, scale: str) -> tuple[Difference, ...]:
    """Every value or fact of either recipe whose value or label is not the other's, in the order of the first recipe."""
    one, two = _values(first, scale), _values(second, scale)
    found = (Difference(path=path, first=one.get(path), second=two.get(path)) for path in dict.fromkeys((*one, *two)))
    return tuple(item for item in found if _told(item.first) != _told(item.second))


def _values(document: Document, scale: str) -> dict[str, Entry]:
    problems = Problems()
    settings = scaled(document, scale, problems)
    problems.raise_any(f"recipe {document.name} at scale {scale}")
    return {**dict(entries(settings)), **{f"facts.{name}": entry for name, entry in document.facts.items()}}


def _told(entry: Entry | None) -> tuple[object, ...] | None:
    """What is compared: 1 and 1.0 are one value, 1 and true are not."""
    return None if entry is None else (entry.value, isinstance(entry.value, bool), entry.label)
