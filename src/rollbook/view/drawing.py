"""Drawings of the viewer: curves of several runs with intervals over seeds, and the flow of attempts into outcomes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from rollbook.records import Census
from rollbook.records.metrics import CATALOGUE
from rollbook.report.curves import CHARTS
from rollbook.report.facts import Facts
from rollbook.report.svg import DASHES, Frame, Series, axes, drawing, element, line_chart, span, ticks
from rollbook.report.text import number, percent

LINES = 8           # runs drawn in one chart
COLOURS = 4
FLOW_ROWS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line of a comparison: a run, or several seeds of one recipe. `values` holds one list of (step, value) a seed."""

    name: str
    values: tuple[tuple[tuple[float, float], ...], ...]

    @property
    def seeds(self) -> int:
        return len(self.values)

    def band(self) -> tuple[tuple[float, float, float, float], ...]:
        """(step, mean, low, high) with a 95% t-interval over seeds at each step that all of them measured."""
        held: dict[float, list[float]] = {}
        for seed in self.values:
            for x, y in seed:
                held.setdefault(x, []).append(y)
        found = []
        for x, ys in sorted(held.items()):
            if len(ys) == self.seeds:
                mean = math.fsum(ys) / len(ys)
                half = 0.0
                if len(ys) > 1:
                    from scipy.special import stdtrit  # here, because it takes a quarter of a second to import
                    deviation = math.sqrt(math.fsum((y - mean) ** 2 for y in ys) / (len(ys) - 1))
                    half = float(stdtrit(len(ys) - 1, 0.975)) * deviation / math.sqrt(len(ys))
                found.append((x, mean, mean - half, mean + half))
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """A chart of several runs: title, unit, what it is divided by, the drawing, and a note for each line."""

    title: str
    unit: str
    denominator: str
    drawn: Markup
    lines: tuple[tuple[str, str], ...]


def overlays(groups: Mapping[str, Sequence[Sequence[Mapping[str, float]]]]) -> tuple[Overlay, ...]:
    """One chart a metric over all groups; a group is a recipe, its members the steps of each seed."""
    found = []
    for title, names in CHARTS:
        for name in names:
            curves = [Curve(name=key, values=tuple(_points(steps, name) for steps in seeds)) for key, seeds in groups.items()]
            curves = [curve for curve in curves if any(curve.values)][:LINES]
            if curves:
                found.append(_overlay(title if len(names) == 1 else f"{title}: {name.rpartition('/')[2]}", name, curves))
    return tuple(found)


def _points(steps: Sequence[Mapping[str, float]], name: str) -> tuple[tuple[float, float], ...]:
    return tuple((float(x), row[name]) for x, row in enumerate(steps, start=1) if name in row)


def _overlay(title: str, name: str, curves: Sequence[Curve]) -> Overlay:
    spec = CATALOGUE[name]
    share = spec.unit == "share"
    drawn = (_bands(curves, f"{title}, {spec.unit} per step", share) if any(curve.seeds > 1 for curve in curves)
             else line_chart([Series(name=curve.name, points=curve.values[0]) for curve in curves], share=share, unit=spec.unit,
                             label=f"{title}, {spec.unit} per step", x_label="step"))
    lines = tuple((curve.name, _told(curve, share)) for curve in curves)
    return Overlay(title=title, unit="percent" if share else spec.unit, denominator=spec.denominator, drawn=drawn, lines=lines)


def _told(curve: Curve, share: bool) -> str:
    held = curve.band()
    if not held:
        return "no step that all seeds measured"
    _, mean, low, high = held[-1]
    say = percent if share else number
    about = f" ({say(low)} to {say(high)}, 95% t-interval over {curve.seeds} seeds)" if curve.seeds > 1 else ""
    return f"last {say(mean)}{about}"


def _bands(curves: Sequence[Curve], label: str, share: bool) -> Markup:
    held = [(curve, curve.band()) for curve in curves]
    held = [(curve, band) for curve, band in held if band]
    if not held:
        return Markup("")
    xs = [x for _, band in held for x, *_ in band]
    low, high = span([value for _, band in held for _, _, *ends in band for value in ends], share=share)
    frame = Frame(width=360, height=190, x_low=min(xs), x_high=max(max(xs), min(xs) + 1), y_low=low, y_high=high, share=share)
    body = [axes(frame, "step", [(value, f"{value:g}") for value in ticks(frame.x_low, frame.x_high, 5) if value == int(value)])]
    for at, (curve, band) in enumerate(held):
        colour, dash = at % COLOURS, DASHES[at % len(DASHES)] or "none"       # as the legend has it
        around = [(x, top) for x, _, _, top in band] + [(x, bottom) for x, _, bottom, _ in reversed(band)]
        body.append(element("polygon", points=" ".join(f"{frame.x(x):g},{_inside(frame, y):g}" for x, y in around),
                            class_=f"band b{colour}"))
        body.append(element("polyline", element("title", curve.name), class_=f"line s{colour}", stroke_dasharray=dash,
                            points=" ".join(f"{frame.x(x):g},{frame.y(mean):g}" for x, mean, _, _ in band)))
    return drawing(frame, label, *body)


def _inside(frame: Frame, value: float) -> float:
    return frame.y(min(max(value, frame.y_low), frame.y_high))


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What became of the attempts of a stage: (outcome, count, share) in order, and how many are still out."""

    stage: str
    issued: int
    parts: tuple[tuple[str, int, float], ...]
    flying: int


def flows(facts: Facts) -> tuple[Flow, ...]:
    """The census by stage, accepted first."""
    issued: Counter[str] = Counter()
    flying: Counter[str] = Counter()
    codes: dict[str, Counter[str]] = {}
    for census in facts.all(Census):
        stage = census.scope.partition("/")[0] if not census.scope.startswith("eval/") else "evaluations"
        issued[stage] += census.total
        flying[stage] += sum(census.in_flight.values())
        for held in census.outcomes.values():
            codes.setdefault(stage, Counter()).update(held)
    found = []
    for stage, counted in codes.items():
        parts = sorted(counted.items(), key=lambda item: (item[0] != "accepted", -item[1]))
        found.append(Flow(stage=stage, issued=issued[stage], flying=flying[stage],
                          parts=tuple((code, count, count / max(issued[stage], 1)) for code, count in parts)))
    return tuple(found[:FLOW_ROWS])
