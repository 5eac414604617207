"""Ablation grids: every combination of policy, harness, tool, judge and budget as an evaluation of its own.

A grid is a file; its cells are protocols that differ in what the file says and in nothing else, all under the name of the frozen
one, so that every cell faces the same random numbers. What cannot be evaluated is named before the first cell is begun.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rollbook.evaluation import protocols
from rollbook.evaluation.protocols import Bundle
from rollbook.ledger import environment_manifest
from rollbook.orchestration.answering import Remote, check_fits
from rollbook.orchestration.apart import compared
from rollbook.orchestration.evaluating import evaluate_into
from rollbook.orchestration.given_answers import same_answers
from rollbook.orchestration.session import Progress
from rollbook.orchestration.subjects import Subject
from rollbook.orchestration.varying import vary
from rollbook.records import LedgerError, RollbookError, canonical, digest
from rollbook.records.codec import nearest
from rollbook.rollouts.endpoint import Endpoint

FILE, CELLS, PROTOCOLS = "grid.json", "cells", "protocols"
POLICY = "policy"
KEYS = ("protocol", "policies", "factors", "except")
ENDPOINT = ("url", "model", "key_variable")
MANY = 512          # cells of a grid
SHOWN = 12
Levels = Mapping[str, str]


class GridRefused(RollbookError):
    """A grid that cannot be made, or whose cells cannot all be evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A grid as its file says it. `factors` maps a factor to its levels, a level to the values that it changes (none: as frozen).

    `policies` maps a name to what `rollbook eval --policy` takes, or to an endpoint's url, model and key_variable. `excepted` are
    combinations that are left out on purpose.

    Example: Grid(protocol=Path("p.json"), policies={"before": "RUN:cold_start", "after": "RUN"},
        factors={"budget": {"whole": {}, "half": {"max_tokens": 32}}}, excepted=())
    """

    protocol: Path
    policies: Mapping[str, Any]
    factors: Mapping[str, Mapping[str, Mapping[str, Any]]]
    excepted: tuple[Levels, ...]

    @property
    def levels(self) -> dict[str, tuple[str, ...]]:
        """The levels of every factor in order, the policy first."""
        return {POLICY: tuple(self.policies), **{name: tuple(levels) for name, levels in self.factors.items()}}

    def combinations(self) -> list[dict[str, str]]:
        """Every combination that is not left out."""
        names = list(self.levels)
        found = [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*self.levels.values())]
        return [one for one in found if not any(_within(left, one) for left in self.excepted)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A grid whose protocols are made: `bundles` by the levels of all factors but the policy; `impossible` says by combination
    why it cannot be evaluated."""

    grid: Grid
    base: Bundle
    bundles: Mapping[str, Bundle]
    impossible: Mapping[str, str]


def read(path: Path) -> Grid:
    """The grid of a YAML file; strict: an unknown key, factor or level is an error with its place."""
    try:
        body = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise _refused(path, "is no grid", got=" ".join(str(error).split())[:160]) from error
    if not isinstance(body, dict):
        raise _refused(path, "is no grid", got=type(body).__name__)
    for key in body:
        if key not in KEYS:
            raise _refused(path, f"has a key that no grid has: {key}", got=str(body[key])[:60],
                           fix=f"nearest: {nearest(str(key), list(KEYS))}")
    for key in ("protocol", "policies"):
        if not body.get(key):
            raise _refused(path, f"lacks {key}", got="nothing", fix="see docs/evaluation.md")
    factors = _factors(path, body.get("factors") or {})
    policies = _named(path, "policies", body["policies"])
    for name, value in policies.items():
        if not isinstance(value, str) and not (isinstance(value, dict) and "url" in value and set(value) <= set(ENDPOINT)):
            raise _refused(path, f"policies.{name} is no policy", got=str(value)[:80],
                           fix=f"RUN[:STAGE[:STEP]], a folder, a name, a URL, or a mapping of {', '.join(ENDPOINT)}")
    made = Grid(protocol=path.parent / str(body["protocol"]), policies=policies, factors=factors,
                excepted=_excepted(path, body.get("except") or [], {POLICY: policies, **factors}))
    if len(made.combinations()) < 2 or len(made.combinations()) > MANY:
        raise _refused(path, f"has {len(made.combinations())} cells", got="a grid has at least 2 and at most 512",
                       why="of one there is nothing to compare")
    return made


def _factors(path: Path, body: Any) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    owner: dict[str, str] = {}
    for name, levels in _named(path, "factors", body).items():
        if name == POLICY:
            raise _refused(path, "has a factor called policy", got=name, why="the policies are that factor", fix="rename it")
        found[name] = {}
        for level, changes in _named(path, f"factors.{name}", levels).items():
            if not isinstance(changes, dict) and changes is not None:
                raise _refused(path, f"factors.{name}.{level} says nothing that could be changed", got=str(changes)[:60],
                               fix="a mapping of values, e.g. {max_tokens: 32}, or {} for what is frozen")
            found[name][level] = {str(key): value for key, value in (changes or {}).items()}
            for key in found[name][level]:
                other = next((held for held, by in owner.items() if by != name and (held == key or held.startswith(f"{key}.")
                                                                                    or key.startswith(f"{held}."))), None)
                if other is not None:
                    raise _refused(path, f"factors {owner[other]} and {name} change the same value", got=key,
                                   why="whose effect it is could not be said", fix="make them one factor")
                owner[key] = name
    return found


def _named(path: Path, where: str, body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise _refused(path, f"{where} is no mapping of names", got=str(body)[:80])
    for name in body:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", str(name)):
            raise _refused(path, f"{where} has a name that folders cannot have", got=repr(name)[:60],
                           fix="letters, digits, _ and -, at most 40")
    return {str(name): value for name, value in body.items()}


def _excepted(path: Path, body: Any, known: Mapping[str, Mapping[str, Any]]) -> tuple[Levels, ...]:
    if not isinstance(body, list) or not all(isinstance(one, dict) and one for one in body):
        raise _refused(path, "except is no list of combinations", got=str(body)[:80], fix="- {harness: plain, tool: none}")
    for one in body:
        for factor, level in one.items():
            if factor not in known or str(level) not in known[factor]:
                raise _refused(path, f"except names {factor}: {level}, which the grid does not have", got=str(one)[:80],
                               fix=f"one of {', '.join(known.get(factor, known))}")
    return tuple({str(factor): str(level) for factor, level in one.items()} for one in body)


def _within(part: Levels, whole: Levels) -> bool:
    return all(whole[name] == level for name, level in part.items())


def _refused(path: Path, what: str, *, got: str, why: str | None = None, fix: str | None = None) -> GridRefused:
    return GridRefused(f"{path.name} {what}", got=got, why=why, fix=fix)


def cell_name(levels: Levels) -> str:
    """The folder of a cell."""
    return ".".join(levels.values())


def said(levels: Levels) -> str:
    """A combination in words."""
    return ", ".join(f"{name} {level}" for name, level in levels.items())


Resolve = Callable[[Any, Bundle], Subject]


def plan(grid: Grid, resolve: Resolve) -> Planned:
    """The protocols of all cells, and which of them cannot be evaluated. `resolve` loads a policy."""
    base = protocols.load(grid.protocol)
    bundles: dict[str, Bundle] = {}
    impossible: dict[str, str] = {}
    for levels in grid.combinations():
        others = {name: level for name, level in levels.items() if name != POLICY}
        changes = {key: value for name, level in others.items() for key, value in grid.factors[name][level].items()}
        if said(others) not in bundles and said(others) not in impossible:
            try:
                bundles[said(others)] = vary(base, changes, name=base.protocol.name)
            except RollbookError as error:
                impossible[said(others)] = _reason(error)
    _check_apart(grid, bundles)
    for name, told in grid.policies.items():
        impossible |= _misfits(grid, name, resolve(told, base), bundles)
    return Planned(grid=grid, base=base, bundles=bundles, impossible=impossible)


def _check_apart(grid: Grid, bundles: Mapping[str, Bundle]) -> None:
    """Refuses two levels that are the same protocol."""
    seen: dict[str, str] = {}
    for name, bundle in bundles.items():
        same = seen.setdefault(bundle.id, name)
        if same != name:
            raise GridRefused("two combinations of the grid are one and the same protocol", got=f"{same}; {name}",
                              why="nothing could come from what does not differ", fix="correct the levels")


def _misfits(grid: Grid, name: str, subject: Subject, bundles: Mapping[str, Bundle]) -> dict[str, str]:
    """Why this policy cannot be asked some of the protocols."""
    found = {}
    trained: dict[str, RollbookError | None] = {}
    for levels in grid.combinations():
        others = said({key: level for key, level in levels.items() if key != POLICY})
        if levels[POLICY] != name or others not in bundles:
            continue
        bundle = bundles[others]
        try:
            if subject.folder is not None and bundle.protocol.tasks not in trained:
                trained[bundle.protocol.tasks] = None
                compared(bundle, subject.folder)
            if isinstance(subject.policy, Endpoint):
                Remote(subject.policy, bundle)
            else:
                check_fits(bundle, subject.policy)
        except RollbookError as error:
            found[said(levels)] = _reason(error)
    return found


def _reason(error: RollbookError) -> str:
    return f"{error.what}, got {error.got}" if error.got else error.what


def check_possible(planned: Planned) -> None:
    """Refuses a grid with cells that cannot be evaluated, every one by name."""
    if planned.impossible:
        listed = [f"{name}: {why}" for name, why in planned.impossible.items()]
        more = [f"and {len(listed) - SHOWN} more"] if len(listed) > SHOWN else []
        raise GridRefused(f"{len(listed)} combinations of the grid cannot be evaluated", got="; ".join([*listed[:SHOWN], *more]),
                          why="a grid with holes that nobody chose cannot be read",
                          fix="correct the levels, or leave the combinations out under `except`")


def run(planned: Planned, out: Path, resolve: Resolve, progress: Progress, *, dtype: str) -> None:
    """Evaluates every cell into OUT/cells, a policy at a time; what is finished is not asked again. Where only the judge or
    the aggregation is another, the answers of an earlier cell are judged again."""
    check_possible(planned)
    _open(planned, out)
    cells = planned.grid.combinations()
    for policy, told in planned.grid.policies.items():
        mine = [levels for levels in cells if levels[POLICY] == policy]
        if not mine:
            continue
        subject = resolve(told, planned.base)
        for place, levels in enumerate(mine):
            progress.note(f"cell {cells.index(levels) + 1} of {len(cells)}: {said(levels)}")
            asked = next((one for one in mine[:place] if same_answers(_bundle(planned, one).protocol,
                                                                      _bundle(planned, levels).protocol)), None)
            evaluate_into(out / CELLS / cell_name(levels), _bundle(planned, levels), subject, progress, dtype=dtype,
                          answers=None if asked is None else out / CELLS / cell_name(asked))


def _bundle(planned: Planned, levels: Levels) -> Bundle:
    return planned.bundles[said({name: level for name, level in levels.items() if name != POLICY})]


def _open(planned: Planned, out: Path) -> None:
    """Writes what the grid is, or refuses the folder of another one, or of another version of the program."""
    document, path = _document(planned), out / FILE
    if path.is_file():
        held = document_of(out)
        if apart := sorted(key for key in document if canonical(held.get(key)) != canonical(document[key])):
            raise LedgerError("this folder holds another grid", got=f"{', '.join(apart)} differ",
                              why="cells of two grids cannot be compared", fix="choose another folder with --out")
        return
    if out.exists() and any(out.iterdir()):
        raise LedgerError("the folder of a grid must be new", got=f"{out} holds something else", fix="choose another with --out")
    out.mkdir(parents=True, exist_ok=True)
    for bundle in planned.bundles.values():
        protocols.write(bundle, out / PROTOCOLS / f"{bundle.id[:16]}{protocols.SUFFIX}")
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document, indent=1, ensure_ascii=False), encoding="utf-8")
    part.replace(path)


def _document(planned: Planned) -> dict[str, Any]:
    grid, around = planned.grid, environment_manifest()
    changes = {name: {level: sorted(made) for level, made in levels.items()} for name, levels in grid.factors.items()}
    return {"protocol": planned.base.id, "name": planned.base.protocol.name, "changes": changes,
            "levels": {name: list(levels) for name, levels in grid.levels.items()},
            "policies": {name: digest(canonical(told)) for name, told in grid.policies.items()},
            "cells": [dict(levels) for levels in grid.combinations()], "except": [dict(one) for one in grid.excepted],
            "bundles": {name: bundle.id for name, bundle in planned.bundles.items()},
            "code": around.get("code"), "packages": around.get("packages")}


def document_of(out: Path) -> dict[str, Any]:
    """What OUT/grid.json says."""
    try:
        held = json.loads((out / FILE).read_text(encoding="utf-8"))
        assert isinstance(held, dict) and isinstance(held["levels"], dict) and isinstance(held["cells"], list)
        return held
    except (OSError, ValueError, KeyError, AssertionError) as error:
        raise LedgerError(f"{out} holds no grid that can be read", got=f"{type(error).__name__}: {error}"[:120],
                          fix="give the folder that `rollbook grid` wrote") from error


def allowed(document: Mapping[str, Any], factor: str) -> Sequence[str]:
    """The values that a factor's levels change."""
    return sorted({key for keys in (document["changes"].get(factor) or {}).values() for key in keys})

