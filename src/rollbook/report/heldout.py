"""The held-out evaluations: where each stands on the axis of RL steps, their curve, and the recorded gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from rollbook.records import Comparison, EvalReport, PolicyVersion, ResolvedRecipe, StepReport
from rollbook.records.graph import START
from rollbook.records.recipe import Evaluate
from rollbook.report.facts import Facts
from rollbook.report.svg import Frame, axes, drawing, element, ticks
from rollbook.report.text import clip, percent

PROBE = "/probe/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One evaluation. `step` counts RL steps up to its policy; `slot` places those before RL left of step 0, newest at 0."""

    report: EvalReport
    step: int
    slot: int

    @property
    def probe(self) -> bool:
        return PROBE in self.report.stage

    @property
    def name(self) -> str:
        return self.report.stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """A recorded comparison with the two reports it is between; None for a report that the run does not hold."""

    comparison: Comparison
    before: EvalReport | None
    after: EvalReport | None


def eval_points(facts: Facts) -> tuple[Point, ...]:
    """All evaluations in log order."""
    index = {entry.id: entry.record.index for entry in facts.entries(PolicyVersion)}
    steps = [(entry.seq, index.get(entry.record.published)) for entry in facts.entries(StepReport)]
    placed: list[tuple[EvalReport, int]] = []
    for entry in facts.entries(EvalReport):
        version = index.get(entry.record.policy)
        before = [published for seq, published in steps if seq < entry.seq]
        placed.append((entry.record, sum(version is None or published is None or published <= version for published in before)))
    early = [report for report, step in placed if step == 0]
    slots = {id(report): place - len(early) + 1 for place, report in enumerate(early)}
    return tuple(Point(report=report, step=step, slot=slots.get(id(report), 0)) for report, step in placed)


def gains(facts: Facts) -> tuple[Gain, ...]:
    """The recorded comparisons in log order."""
    reports = {entry.id: entry.record for entry in facts.entries(EvalReport)}
    return tuple(Gain(comparison=c, before=reports.get(c.before), after=reports.get(c.after)) for c in facts.all(Comparison))


def interval_text(report: EvalReport) -> str:
    a = report.accuracy
    return f"{100 * a.level:g}% interval {percent(a.low)} to {percent(a.high)}, n = {a.count}"


def spoken(stage: str, recipe: ResolvedRecipe | None) -> str:
    """Whose policy an evaluation stage measured: `start`, `after cold_start`, or the stage's own name."""
    setting = recipe.settings.stages.get(stage) if recipe else None
    if not isinstance(setting, Evaluate):
        return stage
    return setting.policy if setting.policy == START else f"after {setting.policy}"


def heldout_curve(points: Sequence[Point], *, width: int, css: str) -> Markup:
    """Accuracy with its interval over RL steps; probes are hollow and joined by dots, full evaluations filled."""
    last = max(point.step for point in points)
    least = min(point.slot for point in points)
    gap = (0.30 if width < 500 else 0.14) * max(last, 1) if last else 1.0
    where = {id(point): point.step + gap * point.slot for point in points}
    low, high = min(where.values()), max(where.values())
    pad = (high - low) * (0.11 if width < 500 else 0.06) or 0.5
    frame = Frame(width=width, height=280, x_low=low - pad, x_high=high + pad, y_low=0.0, y_high=_top(points), share=True)
    marks = [(value, f"{value:g}") for value in ticks(0, last, 5) if value == int(value)] if last else []
    label = "RL step (before step 0: earlier stages)" if least < 0 else "RL step"
    body = [axes(frame, label if last else "evaluations before any RL step, in order", marks)]
    probes = [p for p in points if p.probe]
    full = [p for p in points if not p.probe]
    for held, style in ((full, "line s0"), (probes, "line s1 dotted")):
        if len(held) > 1:
            body.append(element("polyline", points=" ".join(f"{frame.x(where[id(p)]):g},{frame.y(p.report.accuracy.estimate):g}"
                                                            for p in held), class_=style))
    body += [_mark(frame, p, where[id(p)]) for p in (*probes, *full)]
    body += _names(frame, full, where)
    return drawing(frame, "Held-out accuracy over RL steps", *body, css=css)


def _top(points: Sequence[Point]) -> float:
    """Upper end of the axis: room for value and name above the highest interval."""
    return max(0.1, 1.22 * max(p.report.accuracy.high for p in points))


def _mark(frame: Frame, point: Point, at: float) -> Markup:
    a = point.report.accuracy
    x, y, low, high = frame.x(at), frame.y(a.estimate), frame.y(a.low), frame.y(a.high)
    slot = "s1" if point.probe else "s0"
    shape = (element("path", d=f"M{x:g} {y - 5:g}l5 5l-5 5l-5 -5z", class_=f"hollow {slot}") if point.probe
             else element("circle", cx=x, cy=y, r=4.5, class_=f"dot {slot}"))
    bars = [element("line", x1=x, x2=x, y1=low, y2=high, class_=f"bar {slot}"),
            *(element("line", x1=x - 4, x2=x + 4, y1=end, y2=end, class_=f"bar {slot}") for end in (low, high))]
    title = element("title", f"{point.name}, RL step {point.step}: {percent(a.estimate)}, {interval_text(point.report)}, "
                             f"{a.method}")
    hit = element("rect", x=x - 8, y=min(high, y - 8), width=16, height=max(low - high, 16), class_="hit")
    return element("g", title, *bars, shape, hit)


def _names(frame: Frame, full: Sequence[Point], where: dict[int, float]) -> list[Markup]:
    """Value above each full evaluation, and above it the name where there are few."""
    parts = []
    for point in full:
        x = frame.x(where[id(point)])
        anchor = "end" if x > frame.width - 60 else "mid"
        at = frame.y(point.report.accuracy.high) - 6
        parts.append(element("text", percent(point.report.accuracy.estimate), x=x + (14 if anchor == "end" else 0), y=at,
                             class_=f"value {anchor}"))
        if len(full) <= 6:
            name = clip(point.name, 14).split(" …")[0]
            parts.append(element("text", name, x=x + (14 if anchor == "end" else 0), y=at - 14,
                                 class_=f"tick {anchor}"))
    return parts
