"""A finished grid read back: each step of a factor moved what the factor is of, and nothing else; what every factor does."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollbook.evaluation.differences import ComparisonRefused, differences
from rollbook.evaluation.grid import Cell, Dependence, Effect, dependences, effects, steps
from rollbook.ledger import Ledger
from rollbook.orchestration.grids import CELLS, POLICY, SHOWN, Levels, allowed, cell_name, document_of, said
from rollbook.orchestration.sides import Evaluation, evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class GridResult:
    """What a grid shows. `changes` says what each factor moved, as comparisons name it."""

    levels: Mapping[str, Sequence[str]]
    changes: Mapping[str, Sequence[str]]
    cells: tuple[tuple[Levels, Evaluation], ...]
    effects: tuple[Effect, ...]
    dependences: tuple[Dependence, ...]
    steps: tuple[Effect, ...]
    notes: tuple[str, ...]


def grid_result(out: Path) -> GridResult:
    """The result of a grid whose cells are all finished; refuses one in which anything but the factors differs."""
    document = document_of(out)
    planned = [dict(levels) for levels in document["cells"]]
    unfinished = [levels for levels in planned if not _finished(out / CELLS / cell_name(levels))]
    if unfinished:
        raise ComparisonRefused(f"{len(unfinished)} of {len(planned)} cells of the grid are not finished",
                                got="; ".join(map(said, unfinished[:SHOWN])), why="a part of a grid is another grid",
                                fix="give the command that began it again")
    cells = tuple((levels, evaluation(out / CELLS / cell_name(levels))) for levels in planned)
    for levels, held in cells:
        _check_cell(levels, held, document["bundles"])
    changes = _moved(cells, document["levels"], {name: allowed(document, name) for name in document["levels"]})
    made = [Cell(levels=levels, values=held.side.values) for levels, held in cells]
    families = cells[0][1].side.families
    unscored = sum(held.side.result.unscored_attempts for _, held in cells)
    notes = (*((f"unscored attempts, counted and in no mean: {unscored}",) if unscored else ()),
             *((f"left out on purpose: {'; '.join(said(one) for one in document['except'])}",) if document["except"] else ()))
    levels = document["levels"]
    return GridResult(levels=levels, changes=changes, cells=cells, effects=effects(made, levels, families),
                      dependences=dependences(made, levels, families), steps=steps(made, levels, families), notes=notes)


def _finished(folder: Path) -> bool:
    if not (folder / "manifest.json").is_file():
        return False
    return next(Ledger.open(folder, write=False).events("EvaluationResult"), None) is not None


def _check_cell(levels: Levels, held: Evaluation, bundles: Mapping[str, str]) -> None:
    wanted = bundles[said({name: level for name, level in levels.items() if name != POLICY})]
    found = Ledger.open(held.folder, write=False).manifest.get("bundle")
    if found != wanted:
        raise ComparisonRefused(f"the folder of {said(levels)} holds another evaluation", got=f"protocol {str(found)[:12]}",
                                why=f"the grid has {wanted[:12]} there", fix="evaluate the grid again in another folder")


def _moved(cells: Sequence[tuple[Levels, Evaluation]], levels: Mapping[str, Sequence[str]],
           permitted: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """What differs between cells that are one step apart, by factor; refuses what a factor does not say that it changes."""
    found: dict[str, dict[str, None]] = {name: {} for name in levels}
    for (one, before), (other, after) in itertools.combinations(cells, 2):
        factors = [name for name in levels if one[name] != other[name]]
        if len(factors) != 1:
            continue
        factor = factors[0]
        names = [one.name for one in differences(before.setting, after.setting, policy_as_one=True)]
        strange = [name for name in names if not (name == POLICY if factor == POLICY else _covered(name, permitted[factor]))]
        if strange or not names:
            raise ComparisonRefused(f"cells that are one step of {factor} apart differ in "
                                    + (", ".join(strange) if strange else "nothing"), got=f"{said(one)}; {said(other)}",
                                    why="the gain could not be called the factor's",
                                    fix="evaluate the whole grid with one version of the program, on one machine"
                                    if strange else "take one of the two levels out of the grid")
        found[factor] |= dict.fromkeys(names)
    return {name: list(held) for name, held in found.items()}


def _covered(name: str, keys: Sequence[str]) -> bool:
    """Whether a difference is what one of the changed values is a part of, or a part of it."""
    return any(name == key or name.startswith(f"{key}.") or key.startswith(f"{name}.") for key in keys)
