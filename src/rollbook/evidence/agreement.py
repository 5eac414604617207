"""Whether a recipe's value is what a claim says, and which other claim says otherwise."""

from __future__ import annotations

from typing import Any

from rollbook.evidence.claims import Claim, interval

UNSTATED: Any = object()  # no value was given to compare; None is a value


def agrees(claim: Claim, value: Any) -> bool:
    """Whether the value is the claim's. A number needs a number; texts are not compared: a recipe names its own files.

    Example: a claim with `value: 2, bound: at_most` agrees with 1.5 and not with 3, and neither with "two" nor with true.
    """
    said = claim.value
    if isinstance(said, bool):
        return _switched(said, value)
    numbers = _numbers(said)
    if not numbers:
        return not _numbers(value)
    if isinstance(value, list | tuple):
        return tuple(value) == numbers
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    span = interval(claim)
    if span is None:
        return value in numbers          # one step of a printed schedule
    if (claim.bound == "more_than" and value == span[0]) or (claim.bound == "less_than" and value == span[1]):
        return False
    return span[0] <= value <= span[1]


def _switched(said: bool, value: Any) -> bool:
    """A claim of presence or absence: nothing and a coefficient of zero are absence, a name is presence."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return not said and not value
    return value == said if isinstance(value, bool) else True


def _numbers(value: Any) -> tuple[int | float, ...]:
    items = value if isinstance(value, list | tuple) else (value,)
    numbers = tuple(item for item in items if isinstance(item, int | float) and not isinstance(item, bool))
    return numbers if len(numbers) == len(items) else ()


def shown(claim: Claim) -> str:
    """The claim's value with bound, unit and denominator: `at most 2 minibatches per batch`; `unknown` for U."""
    if claim.label == "U":
        return "unknown"
    if claim.value is None:
        return "named, without a value"
    value = claim.value
    words = ", ".join(map(_plain, value)) if isinstance(value, tuple) else _plain(value)
    if claim.bound == "range" and isinstance(value, tuple):
        words = f"{_plain(value[0])} to {_plain(value[1])}"
    elif claim.bound != "exact":
        words = f"{claim.bound.replace('_', ' ')} {words}"
    unit = claim.unit if claim.unit not in (None, "number") else ""
    return " ".join(part for part in (words, (unit or "").replace("_", " "), claim.denominator) if part)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}"
    return f"{value:.12g}" if isinstance(value, float) else str(value)
