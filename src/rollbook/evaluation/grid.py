"""Where a gain comes from: the effect of every factor of a grid of evaluations, and whether it depends on another factor.

A cell is one evaluation, its levels say which. All cells ask the same problems; a problem's value under a level is its mean over
the contexts (the other factors' levels), so that a factor's effect is no effect of the company it was seen in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rollbook.evaluation.comparison import Gain, adjusted, gain_of, paired

Levels = Mapping[str, str]
Values = Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One evaluation of a grid: its level of every factor, and the value of each problem (None: not scored).

    Example: Cell(levels={"policy": "after", "budget": "half"}, values={"RawTask:1": 1.0})
    """

    levels: Levels
    values: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one step of a factor does, from its first level to another, in one context or over several of them.

    `context` is None for the mean over all `contexts` of them, else the other factors' levels.
    """

    factor: str
    before: str
    after: str
    context: Levels | None
    contexts: int
    gain: Gain

    @property
    def step(self) -> str:
        return f"{self.factor}: {self.before} to {self.after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependence:
    """Whether the effect of one factor's step is another one under another factor's level: `gain` is the difference."""

    effect: str
    factor: str
    before: str
    after: str
    gain: Gain


def steps(cells: Sequence[Cell], factors: Mapping[str, Sequence[str]], families: Mapping[str, str]) -> tuple[Effect, ...]:
    """The gain of every step from a factor's first level in every context, p-values corrected (Holm) among them."""
    found = [Effect(factor=factor, before=first, after=level, context=_context(one.levels, factor), contexts=1,
                    gain=gain_of(_said(_context(one.levels, factor)), paired(one.values, other.values), families))
             for factor, first, level, pairs in _steps(cells, factors) for one, other in pairs]
    return _corrected(found)


def effects(cells: Sequence[Cell], factors: Mapping[str, Sequence[str]], families: Mapping[str, str]) -> tuple[Effect, ...]:
    """The gain of every step from a factor's first level, over all contexts that have both sides; corrected among them."""
    found = []
    for factor, first, level, pairs in _steps(cells, factors):
        if pairs:
            found.append(Effect(factor=factor, before=first, after=level, context=None, contexts=len(pairs),
                                gain=gain_of(f"{factor}: {first} to {level}", _means(pairs), families)))
    return _corrected(found)


def dependences(cells: Sequence[Cell], factors: Mapping[str, Sequence[str]],
                families: Mapping[str, str]) -> tuple[Dependence, ...]:
    """For every step of one factor and every step of a later one: the first's effect under the second's two levels, paired by
    problem. Where it does not depend on the other, the difference is 0."""
    found: list[Dependence] = []
    names = list(factors)
    for at, factor in enumerate(names):
        for other in names[at + 1:]:
            for _, first, level, pairs in _steps(cells, {factor: factors[factor]}):
                for alternative in factors[other][1:]:
                    gains = _gains_by(pairs, other, (factors[other][0], alternative))
                    if gains is not None:
                        said = f"{factor}: {first} to {level}"
                        found.append(Dependence(effect=said, factor=other, before=factors[other][0], after=alternative,
                                                gain=gain_of(f"{said}, {other} {factors[other][0]} to {alternative}", gains,
                                                             families)))
    corrected = adjusted([one.gain for one in found])
    return tuple(replace(one, gain=gain) for one, gain in zip(found, corrected, strict=True))


Pairs = list[tuple[Cell, Cell]]


def _steps(cells: Sequence[Cell], factors: Mapping[str, Sequence[str]]) -> list[tuple[str, str, str, Pairs]]:
    """(factor, first level, other level, pairs of cells that differ in just this) for each of these factors."""
    names = list(cells[0].levels)
    held = {tuple(cell.levels[name] for name in names): cell for cell in cells}
    found = []
    for factor, (first, *others) in ((name, list(levels)) for name, levels in factors.items()):
        for level in others:
            pairs: Pairs = []
            for cell in cells:
                after = held.get(tuple(level if name == factor else cell.levels[name] for name in names))
                if cell.levels[factor] == first and after is not None:
                    pairs.append((cell, after))
            found.append((factor, first, level, pairs))
    return found


def _means(pairs: Pairs) -> dict[str, tuple[float, float]]:
    """Each problem's mean on both sides, over the contexts in which both were scored."""
    held: dict[str, list[tuple[float, float]]] = {}
    for before, after in pairs:
        for name, pair in paired(before.values, after.values).items():
            held.setdefault(name, []).append(pair)
    return {name: (_mean([b for b, _ in values]), _mean([a for _, a in values])) for name, values in held.items()}


def _gains_by(pairs: Pairs, other: str, levels: tuple[str, str]) -> dict[str, tuple[float, float]] | None:
    """Each problem's gain under both levels of another factor, over the contexts that have both; None where none has."""
    rest = {level: {_key(one.levels, other): (one, two) for one, two in pairs if one.levels[other] == level} for level in levels}
    shared = [key for key in rest[levels[0]] if key in rest[levels[1]]]
    if not shared:
        return None
    sides = [_means([rest[level][key] for key in shared]) for level in levels]
    return {name: (a - b, sides[1][name][1] - sides[1][name][0]) for name, (b, a) in sides[0].items() if name in sides[1]}


def _key(levels: Levels, without: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, level) for name, level in levels.items() if name != without))


def _context(levels: Levels, factor: str) -> Levels:
    return {name: level for name, level in levels.items() if name != factor}


def _said(levels: Levels) -> str:
    return ", ".join(f"{name} {level}" for name, level in levels.items()) or "alone"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _corrected(found: Sequence[Effect]) -> tuple[Effect, ...]:
    gains = adjusted([one.gain for one in found])
    return tuple(replace(one, gain=gain) for one, gain in zip(found, gains, strict=True))
