"""Line charts as inline SVG: pure functions from numbers to markup, colours by CSS variable, values on hover."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from rollbook.report.text import visible

LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 34
HOVER_POINTS = 150
DRAWN_POINTS = 1000
DASHES = ("", "7 3", "2 3", "8 3 2 3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line: y per x, None where nothing was observed (the line has a gap there)."""

    name: str
    points: tuple[tuple[float, float | None], ...]

    @property
    def seen(self) -> tuple[tuple[float, float], ...]:
        return tuple((x, y) for x, y in self.points if y is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The drawing area: sizes in user units, data ranges, and how a y value is written."""

    width: int
    height: int
    x_low: float
    x_high: float
    y_low: float
    y_high: float
    share: bool = False

    def x(self, value: float) -> float:
        return round(LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (self.width - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        return round(self.height - BOTTOM - (value - self.y_low) / (self.y_high - self.y_low) * (self.height - TOP - BOTTOM), 1)


def element(name: str, *children: str, **attributes: object) -> Markup:
    """One SVG element; attribute values and plain children are escaped, `_` in a name is `-`, a final `_` is dropped."""
    pairs = Markup("").join(Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), visible(str(value)))
                            for key, value in attributes.items())
    inner = Markup("").join(child if isinstance(child, Markup) else escape(visible(child)) for child in children)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), pairs, inner)


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` round numbers inside [low, high]."""
    raw = (high - low) / count
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(m * scale for m in (1, 2, 2.5, 5, 10) if m * scale >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def span(values: Sequence[float], *, share: bool = False) -> tuple[float, float]:
    """The y range of a chart: shares from zero to one or to above the highest; else from zero when zero is near, or padded."""
    low, high = min(values), max(values)
    if low == high == 0.0:
        return 0.0, 1.0
    if share:
        return 0.0, 1.0 if high > 0.5 else 1.15 * high
    if low >= 0 and low <= 0.6 * high:
        low = 0.0
    if high <= 0 and high >= 0.6 * low:
        high = 0.0
    pad = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return (low if low == 0.0 and high > 0 else low - pad), (high if high == 0.0 and low < 0 else high + pad)


def tick_text(value: float, share: bool) -> str:
    if share:
        return f"{100 * value:g}%".replace("-", "−")
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k".replace("-", "−")
    return f"{value:g}".replace("-", "−")


def axes(frame: Frame, x_label: str, x_ticks: Sequence[tuple[float, str]]) -> Markup:
    """Grid, tick labels and the name of the x axis."""
    parts = []
    for value in ticks(frame.y_low, frame.y_high):
        at = frame.y(value)
        parts += [element("line", x1=LEFT, x2=frame.width - RIGHT, y1=at, y2=at, class_="grid"),
                  element("text", tick_text(value, frame.share), x=LEFT - 5, y=at + 3.5, class_="tick end")]
    base = frame.height - BOTTOM
    parts.append(element("line", x1=LEFT, x2=frame.width - RIGHT, y1=base, y2=base, class_="axis"))
    for value, text in x_ticks:
        at = frame.x(value)
        parts += [element("line", x1=at, x2=at, y1=base, y2=base + 4, class_="axis"),
                  element("text", text, x=at, y=base + 15, class_="tick mid")]
    parts.append(element("text", x_label, x=(LEFT + frame.width - RIGHT) / 2, y=frame.height - 4, class_="tick mid"))
    return Markup("").join(parts)


def drawing(frame: Frame, label: str, *parts: str, css: str = "chart") -> Markup:
    """The svg element, its accessible name first."""
    return element("svg", element("title", label), *parts, viewBox=f"0 0 {frame.width} {frame.height}", role="img", class_=css,
                   xmlns="http://www.w3.org/2000/svg")


def line_chart(series: Sequence[Series], *, label: str, x_label: str, share: bool = False, factor: float = 1.0,
               unit: str = "") -> Markup:
    """A line for each series over one x axis; drawn values are multiplied by `factor`, titles show them as recorded."""
    seen = [point for one in series for point in one.seen]
    x_low, x_high = min(x for x, _ in seen), max(x for x, _ in seen)
    if x_low == x_high:
        x_low, x_high = x_low - 1, x_high + 1
    y_low, y_high = span([y * factor for _, y in seen], share=share)
    frame = Frame(width=360, height=190, x_low=x_low, x_high=x_high, y_low=y_low, y_high=y_high, share=share)
    whole = [value for value in ticks(x_low, x_high, 5) if value == int(value)]
    body = [axes(frame, x_label, [(value, f"{value:g}") for value in whole])]
    for index, one in enumerate(series):
        body += _line(frame, one, index, factor)
    for one in series:
        body += _targets(frame, one, factor, x_label, unit)
    return drawing(frame, label, *body)


def _line(frame: Frame, one: Series, index: int, factor: float) -> list[Markup]:
    """Polylines between the gaps; a lone point is a dot."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in one.points[::max(1, math.ceil(len(one.points) / DRAWN_POINTS))]:
        if y is None:
            runs.append([])
        else:
            runs[-1].append((frame.x(x), frame.y(y * factor)))
    drawn = []
    for run in filter(None, runs):
        if len(run) == 1:
            drawn.append(element("circle", cx=run[0][0], cy=run[0][1], r=2.5, class_=f"dot s{index}"))
        else:
            drawn.append(element("polyline", points=" ".join(f"{x:g},{y:g}" for x, y in run), class_=f"line s{index}",
                                 stroke_dasharray=DASHES[index % len(DASHES)] or "none"))
    return drawn


def _targets(frame: Frame, one: Series, factor: float, x_label: str, unit: str) -> list[Markup]:
    """Unseen circles that show the recorded value on hover."""
    chosen = one.seen[::max(1, math.ceil(len(one.seen) / HOVER_POINTS))]
    what = "%" if frame.share else f" {unit}"
    return [element("circle", element("title", f"{one.name}, {x_label} {x:g}: {100 * y if frame.share else y:.6g}{what}"),
                    cx=frame.x(x), cy=frame.y(y * factor), r=6, class_="hit") for x, y in chosen]
