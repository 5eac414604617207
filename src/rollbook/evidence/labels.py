"""What each label obliges a claim to bring, and what a number must be to have its unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from rollbook.evidence.claims import Code, Config
from rollbook.evidence.vocabulary import CONFIG_QUANTITIES, LABELS, UNITS
from rollbook.records.codec import nearest

_MEASURES = ("value", "bound", "unit", "denominator")


class Refuse(Protocol):
    """Says what is wrong with a field of the claim at hand."""

    def __call__(self, key: str, what: str, **parts: str) -> None: ...


def check_label(fields: Mapping[str, Any], refuse: Refuse) -> None:
    """Refuses a claim whose label does not fit what it brings."""
    label = fields["label"]
    if label == "U" and (extra := [key for key in _MEASURES if key in fields]):
        refuse(extra[0], f"has label U and a {extra[0]}", got=repr(fields[extra[0]]), why="what is unknown has no value",
               fix="remove it, or use D for what is stated, I for what follows from it")
    for owner, key, why in (
        ("I", "assumes", "an inference stands on its assumptions"),
        ("R", "run", "what was reproduced here has a run in the ledger that shows it"),
    ):
        if label == owner and not fields.get(key):
            refuse("label", f"has label {label} but no {key}", why=why, fix=f"add `{key}:`, or use another label")
        elif label != owner and key in fields:
            refuse(key, f"has label {label} and `{key}`", why=f"only {owner} ({LABELS[owner]}) has it",
                   fix="remove it, or change the label")
    if label == "C" and not ("artifact" in fields and "check" in fields):
        refuse("label", "has label C but no artifact with a check",
               why="a confirmed artifact is one that anybody can look at again",
               fix="add `artifact:` and `check:`, or use D for what a source merely states")
    if label in ("U", "I", "R") and ("artifact" in fields or "check" in fields):
        refuse("artifact", f"has label {label} and an artifact", why="only C and D are checked against one", fix="remove it")
    for key in ("contradicts", "supersedes"):
        if key in fields and "note" not in fields:
            refuse(key, f"{key} another claim without a note", why="whoever reads both must know how they stand to each other",
                   fix="add `note:`")


def check_value(fields: Mapping[str, Any], refuse: Refuse) -> None:
    """Refuses a value that is none, a number without its unit, and a unit that its number cannot have."""
    value, unit = fields.get("value"), fields.get("unit")
    if "value" not in fields:
        for key in _MEASURES[1:]:
            if key in fields and fields["label"] != "U":
                refuse(key, f"has a {key} but no value", fix="add `value:` or remove it")
        return
    items = value if isinstance(value, list) else [value]
    if not items or not all(isinstance(item, str | bool | int | float) for item in items):
        refuse("value", "must have a number, a text, true, false, or a list of these", got=repr(value))
        return
    numbers = [item for item in items if isinstance(item, int | float) and not isinstance(item, bool)]
    if numbers and len(numbers) != len(items):
        refuse("value", "mixes numbers with other values", got=repr(value), fix="one claim for each")
    elif numbers:
        _check_numbers(numbers, fields, refuse)
    elif unit is not None:
        refuse("unit", "has a unit but no number", got=repr(unit), fix="remove `unit:`")
    if fields.get("bound", "exact") not in ("exact", "about") and not numbers:
        refuse("bound", "has a bound but no number", got=repr(fields["bound"]), fix="remove `bound:`")
    if (fields.get("bound") == "range") and not (len(numbers) == 2 and isinstance(value, list) and numbers[0] <= numbers[1]):
        refuse("value", "has bound range but not two rising numbers", got=repr(value), fix="write `value: [low, high]`")
    if isinstance(value, list) and fields.get("bound", "exact") not in ("exact", "about", "range"):
        refuse("bound", "bounds a list", got=repr(fields["bound"]), fix="one claim for each number")


def _check_numbers(numbers: list[int | float], fields: Mapping[str, Any], refuse: Refuse) -> None:
    name = fields.get("unit")
    if name is None:
        refuse("value", "has a number but no unit", got=repr(fields["value"]),
               why="tasks, trajectories, environments and sequences do not compare",
               fix="add `unit:`; a coefficient or a rate has unit `number`")
        return
    unit = UNITS.get(name)
    if unit is None:
        refuse("unit", "has an unknown unit", got=repr(name), fix=f"nearest units: {nearest(name, list(UNITS))}")
        return
    for number in numbers:
        if not unit.admits(number):
            refuse("value", f"has a number that is no {name}", got=repr(number),
                   why=f"{name}: {unit.words}", fix="correct the number or the unit")
    if unit.shares and "denominator" not in fields:
        refuse("unit", f"has unit {name} but no denominator", why="a share says nothing without what it is a share of",
               fix="add `denominator:`")


def artifact(fields: Mapping[str, Any], refuse: Refuse) -> Config | Code | None:
    """The artifact of the claim with its check, or None."""
    where, check = fields.get("artifact"), fields.get("check")
    if where is None and check is None:
        return None
    if where is None or check is None:
        refuse("check" if where is None else "artifact", "has only one of `artifact` and `check`", fix="write both")
    elif set(where) == {"config"} and isinstance(where["config"], str):
        if check not in CONFIG_QUANTITIES:
            refuse("check", "checks what no configuration shows", got=repr(check),
                   fix=f"nearest: {nearest(str(check), list(CONFIG_QUANTITIES))}")
        elif "model" not in fields:
            refuse("check", "is checked against a configuration but names no model", fix="add `model:`, one of the release's")
        elif "value" not in fields:
            refuse("check", "has a check but no value to compare", fix="add `value:`")
        else:
            return Config(repository=where["config"], quantity=check)
    elif set(where) == {"repository", "commit", "file"} and isinstance(check, Mapping) and set(check) == {"contains"}:
        texts = [where["repository"], where["commit"], where["file"], check["contains"]]
        if all(isinstance(text, str) and text.strip() for text in texts):
            return Code(repository=texts[0], commit=texts[1], file=texts[2], contains=texts[3])
        refuse("artifact", "has an artifact that is not all texts", got=repr(texts), fix="quote a commit that reads as a number")
    else:
        refuse("artifact", "has an artifact of neither form", got=repr(where),
               fix="{config: owner/name} with a quantity, or {repository, commit, file} with check {contains: text}")
    return None
