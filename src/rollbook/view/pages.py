"""Every page as a template and what it is given, from runs that are held; no server in here."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rollbook.ledger.lineage import run_lineage
from rollbook.records import AuditReport, GateDecision, HostRun, ResolvedRecipe, RollbookError, StageEnd, StepReport
from rollbook.records.graph import order
from rollbook.report import curves, heldout, tables, text
from rollbook.report.lineage_svg import lineage_svg
from rollbook.report.page import drawn, headline
from rollbook.report.tables import LABELS, leaves
from rollbook.view.address import Address
from rollbook.view.browse import NotFound, group_context, record_context, rows_context, task_context, trajectory_context
from rollbook.view.comparing import LISTED, pairs
from rollbook.view.drawing import flows, overlays
from rollbook.view.grids import brief, grid_context
from rollbook.view.held import HeldRun
from rollbook.view.shown import Shown

TEMPLATES = Path(__file__).parent / "templates"
REPORT = Path(__file__).parents[1] / "report" / "templates"
STATIC = Path(__file__).parent / "static"
DIFFERENCES = 400

Link = Callable[[Address], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The runs and grids that are shown and how a page refers to another; `served` says that a server stands behind the pages."""

    runs: Shown
    link: Link
    asset: Callable[[str], str]
    served: bool


def environment(site: Site) -> Environment:
    """Templates whose every string is escaped, clipped and made visible on its way out."""
    made = Environment(loader=FileSystemLoader([TEMPLATES, REPORT]), autoescape=True, undefined=StrictUndefined, finalize=_shown,
                       trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"percent": text.percent, "points": text.points, "p_value": text.p_value, "short": text.short,
                     "duration": text.duration, "number": text.number, "whole": _whole}

    def to(page: Any, run: str | None = None, name: str | None = None, /, **asked: Any) -> str:
        told = {key: str(value) for key, value in asked.items() if value not in (None, "")}
        return site.link(Address(page=page, run=run, name=name, asked=told))

    made.globals |= {"interval_text": heldout.interval_text, "to": to, "static": site.asset, "served": site.served,
                     "runs": site.runs, "grids": site.runs.grids}
    return made


def _shown(value: Any) -> Any:
    if value is None:
        return text.ABSENT
    if isinstance(value, str) and not isinstance(value, Markup):
        return text.visible(text.clip(value))
    return value


def _whole(value: str) -> Markup:
    """A long text that is shown as it is, escaped."""
    return Markup("{}").format(text.visible(value))


def page(site: Site, made: Environment, address: Address) -> str:
    """The document of an address; NotFound for what no run holds."""
    template, context = _content(site, address)
    run = site.runs.get(address.run) if address.run else None
    return made.get_template(template).render(address=address, run=run, page=address.page, **context)


def _content(site: Site, address: Address) -> tuple[str, dict[str, Any]]:
    if address.page == "runs":
        grids = [(key, _grid_brief(site, key)) for key in site.runs.grids]
        held = [(key, run, _brief(run)) for key, run in site.runs.items()]
        return "runs.html", {"title": "Runs", "held": held, "briefs": grids}
    if address.page == "grid":
        grid = site.runs.refresh(address.name or "")
        if grid is None:
            raise NotFound(f"no grid is shown under the name {address.name!r}")
        return "grid.html", {"title": f"Grid {grid.key}", **grid_context(grid)}
    if address.page == "compare":
        return "compare.html", {"title": "Compare", **compare(_chosen(site, address))}
    run = site.runs.get(address.run or "")
    if run is None:
        raise NotFound(f"no run is shown under the name {address.run!r}")
    run.refresh()
    return _of_run(site, run, address)


def _grid_brief(site: Site, key: str) -> dict[str, Any]:
    """A grid in one line; one that cannot be read says why."""
    try:
        return brief(site.runs.refresh(key) or site.runs.grids[key])
    except RollbookError as error:
        return {"fault": str(error)}


def _of_run(site: Site, run: HeldRun, address: Address) -> tuple[str, dict[str, Any]]:
    name = address.name or ""
    match address.page:
        case "overview":
            return "overview.html", {"title": "Overview", **overview(run)}
        case "trajectories":
            return "trajectories.html", {"title": "Trajectories", **rows_context(run, address.asked)}
        case "trajectory":
            return "trajectory.html", {"title": "Trajectory", **trajectory_context(run, name)}
        case "group":
            return "group.html", {"title": "Group", **group_context(run, name)}
        case "task":
            return "task.html", {"title": "Task", **task_context(run, name, tuple(site.runs.values()))}
        case "lineage":
            return "lineage.html", {"title": "Lineage", **lineage(run)}
        case "evidence":
            return "evidence.html", {"title": "Evidence", **evidence(run)}
        case "audit":
            audit, gates = run.facts.last(AuditReport), run.facts.entries(GateDecision)
            return "audit.html", {"title": "Audit", "audit": audit, "gates": gates}
        case "record":
            return "record.html", {"title": "Record", **record_context(run, name)}
        case "runs" | "compare" | "grid":
            raise NotFound(address.page)
        case _:
            assert_never(address.page)


def _brief(run: HeldRun) -> dict[str, Any]:
    """A run in one line; one that cannot be read says why."""
    try:
        run.refresh()
        facts = run.facts
        recipe = facts.last(ResolvedRecipe)
        full = [point for point in heldout.eval_points(facts) if not point.probe]
        last = [("", full[-1].report.accuracy)] if full else [(str(protocol.aggregation), result.value)
                                                              for protocol, result in run.evaluations()[-1:]]
        return {"head": headline(facts, recipe), "rows": run.trajectories, "steps": len(facts.all(StepReport)),
                "alerts": len(run.alerts), "last": last[-1] if last else None, "fault": None}
    except RollbookError as error:
        return {"head": None, "rows": 0, "steps": 0, "alerts": 0, "last": None, "fault": str(error)}


def overview(run: HeldRun) -> dict[str, Any]:
    """What the first page of a run shows."""
    facts = run.facts
    return drawn(facts) | {
        "faults": (*facts.faults, *run.unread), "alerts": run.alerts, "flows": flows(facts),
        "stages": stages(run, facts.last(ResolvedRecipe)), "evaluations": run.evaluations(), "protocol": run.protocol,
        "asked": run.trajectories, "host": facts.last(HostRun), "apart": facts.manifest.get("apart")}


def stages(run: HeldRun, recipe: ResolvedRecipe | None) -> list[tuple[str, str, str]]:
    """(name, kind, state) of every stage in graph order; of what was recorded where no recipe says more."""
    ended = {end.stage: end.kind for end in run.facts.all(StageEnd)}
    if recipe is None:
        return [(name, kind, "complete") for name, kind in ended.items()]
    found, waiting = [], True
    for name in order(recipe.settings.stages):
        state = "complete" if name in ended else "in progress" if waiting and run.live else "not begun"
        waiting = waiting and name in ended
        found.append((name, type(recipe.settings.stages[name]).__name__, state))
    return found


def lineage(run: HeldRun) -> dict[str, Any]:
    """The lineage as a drawing; its fault where it cannot be drawn."""
    try:
        document = lineage_svg(run_lineage(run.root))
    except RollbookError as error:
        return {"drawn": None, "fault": str(error)}
    return {"drawn": Markup(document.partition("\n")[2]), "fault": None}       # made by `element`, which escapes


def evidence(run: HeldRun) -> dict[str, Any]:
    """The recipe's values with what is known about each."""
    recipe = run.facts.last(ResolvedRecipe)
    return {"recipe": recipe, "values": tables.recipe_tables(recipe) if recipe else None, "labels": LABELS,
            "manifest": tables.flat({key: value for key, value in run.facts.manifest.items() if key != "recipe_values"})}


def _chosen(site: Site, address: Address) -> list[HeldRun]:
    names = [name for name in address.asked.get("runs", "").split(",") if name]
    missing = [name for name in names if name not in site.runs]
    if missing:
        raise NotFound(f"no run is shown under the name {missing[0]!r}")
    return [site.runs[name].refresh() for name in (names or list(site.runs))]


def compare(chosen: Sequence[HeldRun]) -> dict[str, Any]:
    """Several runs side by side: curves with intervals over seeds, evaluations, and the recipe values that differ."""
    recipes = {run.key: run.facts.last(ResolvedRecipe) for run in chosen}
    groups: dict[str, list[HeldRun]] = {}
    for run in chosen:
        groups.setdefault(_without_seed(recipes[run.key]) or run.key, []).append(run)
    named = {_group_name(members): [curves.step_values(member.facts.all(StepReport)) for member in members]
             for members in groups.values()}
    every = {key: {path: text.setting(value) for path, value in leaves(recipe.settings)}
             for key, recipe in recipes.items() if recipe}
    paths = dict.fromkeys(path for values in every.values() for path in values)
    differing = [(path, [values.get(path, "absent") for values in every.values()]) for path in paths
                 if len({values.get(path, "absent") for values in every.values()}) > 1]
    full = [(run, [point for point in heldout.eval_points(run.facts) if not point.probe]) for run in chosen]
    return {"chosen": chosen, "overlays": overlays(named), "differing": differing[:DIFFERENCES], "full": full,
            "with_recipe": list(every), "seeds": [(name, len(members)) for name, members in named.items()],
            "briefs": [_brief(run) for run in chosen],
            "evaluations": [(run, protocol, result) for run in chosen for protocol, result in run.evaluations()],
            "pairs": pairs(chosen), "listed": LISTED}


def _without_seed(recipe: ResolvedRecipe | None) -> str | None:
    """What the seeds of one recipe share; None without a recipe."""
    if recipe is None:
        return None
    values = {path: text.setting(value) for path, value in leaves(recipe.settings) if path not in ("run.seed", "run.threads")}
    return json.dumps([recipe.name, recipe.scale, values], sort_keys=True)


def _group_name(members: Sequence[HeldRun]) -> str:
    return members[0].key if len(members) == 1 else f"{', '.join(member.key for member in members)} ({len(members)} seeds)"


