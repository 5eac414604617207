"""The trajectory browser: lists with filters, one trajectory token by token, a group side by side, a task before and after."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rollbook.records import RollbookError
from rollbook.report.text import clip, number
from rollbook.view.held import HeldRun
from rollbook.view.rows import FACETS, PAGE, SORTS, Filters
from rollbook.view.tokens import contexts, hidden, trained

SNIPPET = 200       # characters of a response in a list
AROUND = 60         # characters before a match
BESIDE = 64         # attempts shown beside each other
DOCUMENT = 60_000   # characters of a record
HIDDEN = "the endpoint did not show its tokens, only how many they were"


class NotFound(RollbookError):
    """An address of something that no run holds."""


def filters(asked: Mapping[str, str]) -> tuple[Filters, list[str]]:
    """The filters of an address, and in words what of it could not be read."""
    ignored = []

    def whole(name: str) -> int | None:
        value = asked.get(name, "")
        if value and not value.lstrip("-").isdigit():
            ignored.append(f"{name} must be a whole number, got {clip(value, 40)!r}")
            return None
        return int(value) if value and len(value) < 12 else None

    def real(name: str) -> float | None:
        value = asked.get(name, "")
        try:
            found = float(value) if value else None
        except ValueError:
            found = math.nan
        if found is not None and not math.isfinite(found):
            ignored.append(f"{name} must be a number, got {clip(value, 40)!r}")
            return None
        return found

    sort = asked.get("sort", "newest")
    if sort not in SORTS:
        ignored.append(f"sort must be one of {', '.join(SORTS)}, got {clip(sort, 40)!r}")
    made = Filters(facets={name: asked[name] for name in FACETS if asked.get(name)}, task=asked.get("task") or None,
                   version=whole("version"), component=asked.get("component") or None, least=real("least"), most=real("most"),
                   text=asked.get("text", ""), sort=sort, page=whole("page") or 1)
    return made, ignored


def rows_context(run: HeldRun, asked: Mapping[str, str]) -> dict[str, Any]:
    """A page of the list with its filters."""
    wanted, ignored = filters(asked)
    rows = run.rows
    found = rows.find(wanted)
    shown = [dict(row) | {"snippet": snippet(row["text"], wanted.text), "parts": _parts(row)} for row in found.rows]
    return {"wanted": wanted, "ignored": ignored, "found": found, "shown": shown, "facets": rows.facets(), "sorts": list(SORTS),
            "components": list(rows.components), "versions": rows.versions(), "size": PAGE, "asked": dict(asked),
            "faults": rows.faults}


def _parts(row: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The reward components that ran, with their values."""
    return [(str(one["name"]), float(one["value"])) for one in row["components"] or () if one["value"] is not None]


def snippet(text: str | None, sought: str) -> str:
    """The beginning of a response, or what stands around the text that was sought."""
    whole = text or ""
    at = whole.casefold().find(sought.casefold()) if sought else 0
    begin = max(0, at - AROUND)
    cut = " ".join(whole[begin:begin + SNIPPET].split())
    return ("… " if begin else "") + cut + (" …" if len(whole) > begin + SNIPPET else "")


def trajectory_context(run: HeldRun, identity: str) -> dict[str, Any]:
    """One trajectory: its turns, its reward vector, what was learned from it, and its neighbours."""
    rows = run.rows
    place = rows.place_of(identity)
    if place is None:
        raise NotFound(f"no trajectory of {run.key} has the id {clip(identity, 80)!r}")
    try:
        row = rows.whole(place)
    except (OSError, IndexError, ValueError) as error:
        raise NotFound(f"the table of trajectory {clip(identity, 40)} cannot be read: {type(error).__name__}") from error
    learned = trained(run, identity)
    group = rows.where("group", str(row["group"]))
    names = [one["id"] for one in group]
    at = names.index(identity) if identity in names else 0
    return {"row": row, "contexts": contexts(row, run.texts, learned),
            "learned": [(one, _numbers(one.values)) for one in learned],
            "token_note": HIDDEN if hidden(row) else run.texts.absent,
            "task": run.task(str(row["task"])), "vector": vector(row), "group": group, "at": at,
            "before": names[at - 1] if at else None, "after": names[at + 1] if at + 1 < len(names) else None}


def _numbers(values: Mapping[str, Any]) -> dict[str, str]:
    """What an update saw of a trajectory, in a line: the mean of each quantity."""
    return {name: number(float(held.mean()), 4) for name, held in values.items() if len(held)}


def vector(row: Mapping[str, Any]) -> dict[str, Any]:
    """The reward vector with the verifier's own words, or why there is none."""
    parts = [(str(one["name"]), number(float(one["value"])), one["detail"] or "", one["confidence"])
             for one in row["components"] or ()]
    absent = [(str(one["name"]), str(one["reason"])) for one in row.get("absent") or ()]
    return {"parts": parts, "absent": absent, "total": row["total"], "accuracy": row["accuracy"], "verdict": row["verdict"],
            "failure": row["failure_code"], "detail": row.get("failure_detail"), "composition": row.get("composition")}


def _beside(run: HeldRun, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Attempts to be read beside each other: text, reward, outcome."""
    found = []
    for row in rows[:BESIDE]:
        parts = [(name, number(value)) for name, value in _parts(row)]
        advantage = [one.values["advantage"].mean() for one in trained(run, str(row["id"])) if "advantage" in one.values]
        found.append(dict(row) | {"parts": parts, "advantage": float(advantage[0]) if advantage else None})
    return found


def group_context(run: HeldRun, name: str) -> dict[str, Any]:
    """The attempts that share a baseline."""
    rows = run.rows.where("group", name)
    if not rows:
        raise NotFound(f"no group of {run.key} has the name {clip(name, 120)!r}")
    totals = [row["total"] for row in rows if row["total"] is not None]
    return {"name": name, "beside": _beside(run, rows), "count": len(rows), "first": rows[0],
            "task": run.task(str(rows[0]["task"])), "scored": len(totals),
            "mean": math.fsum(totals) / len(totals) if totals else None}


def task_context(run: HeldRun, identity: str, runs: Sequence[HeldRun]) -> dict[str, Any]:
    """All attempts at one task, by the policy version that made them, in this run and then in the others: before beside after."""
    found = [one for held in (run, *(other for other in runs if other is not run)) for one in _attempts_at(held, identity)]
    if not found or found[0]["run"] is not run:
        raise NotFound(f"no trajectory of {run.key} is of the task {clip(identity, 80)!r}")
    return {"identity": identity, "task": run.task(identity), "stages": found,
            "several": len({one["run"].key for one in found}) > 1}


def _attempts_at(run: HeldRun, identity: str) -> list[dict[str, Any]]:
    """The attempts of one run at a task, by stage and version; none of a run that cannot be read."""
    try:
        rows = run.refresh().rows.where("task", identity, limit=5000)
    except RollbookError:
        return []
    stages: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        stages.setdefault((str(row["stage"]), -1 if row["version"] is None else int(row["version"])), []).append(row)
    found = []
    for (stage, version), held in stages.items():
        known = [row["accuracy"] for row in held if row["accuracy"] is not None]
        found.append({"run": run, "stage": stage, "version": None if version < 0 else version, "count": len(held),
                      "scored": len(known), "accuracy": math.fsum(known) / len(known) if known else None,
                      "first": _beside(run, held[:1])[0]})
    return found


def record_context(run: HeldRun, identity: str) -> dict[str, Any]:
    """A record as it stands in the log, or the trajectory of that id."""
    if identity.startswith("Trace:") and run.rows.place_of(identity) is not None:
        return {"identity": identity, "event": None, "document": None, "trajectory": identity, "task": None}
    task = run.task(identity)
    event = run.record(identity)
    if event is None and task is None:
        raise NotFound(f"no record of {run.key} has the id {clip(identity, 80)!r}")
    document = None if event is None else clip(json.dumps(event.body, ensure_ascii=False, indent=1, sort_keys=True), DOCUMENT)
    return {"identity": identity, "event": event, "document": document, "trajectory": None, "task": task}
