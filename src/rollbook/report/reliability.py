"""The calibration of a scorer as one self-contained SVG: reliability curve with intervals, accuracy per source, length bias."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from rollbook.report.svg import Frame, axes, element
from rollbook.report.text import clip, visible
from rollbook.rewards.calibration import Bin, Calibration

WIDTH, CURVE, HEAD, ROW, NAMES = 720, 380, 64, 20, 190
SOURCES = 30            # more are counted in one line
STYLE = """
svg { --bg:#ffffff; --ink:#1b1f24; --soft:#57606a; --rule:#d5dae0; --mark:#0072b2; --band:#a83c00;
 font:12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
@media (prefers-color-scheme: dark) { svg { --bg:#14171b; --ink:#e8ebee; --soft:#a3adb8; --rule:#343b44; --mark:#56b4e9;
 --band:#f2a06a; } }
.bg { fill:var(--bg); } .title { font-size:17px; font-weight:600; fill:var(--ink); } .about, .tick { fill:var(--soft); }
.grid { stroke:var(--rule); } .axis { stroke:var(--soft); } .end { text-anchor:end; } .mid { text-anchor:middle; }
.ideal { stroke:var(--soft); stroke-dasharray:5 4; } .bar { stroke:var(--mark); stroke-width:1.6; } .dot { fill:var(--mark); }
.line { fill:none; stroke:var(--mark); stroke-width:1.6; } .half { stroke:var(--band); stroke-dasharray:2 3; }
"""


def reliability_svg(found: Calibration, title: str) -> str:
    """The drawing as an SVG document. A band's place is its mean confidence; bars are 95% intervals; the dashed line is what a
    scorer that is right as often as it says would follow."""
    shown = tuple(found.by_source.items())[:SOURCES]
    hidden = len(found.by_source) - len(shown)
    height = CURVE + HEAD + (len(shown) + (hidden > 0) + 2) * ROW + 12
    frame = Frame(width=WIDTH, height=CURVE, x_low=0.48, x_high=1.02, y_low=0.0, y_high=1.05, share=True)
    marks = [(0.5 + 0.1 * place, f"{50 + 10 * place}%") for place in range(6)]
    ideal = element("line", x1=frame.x(0.5), y1=frame.y(0.5), x2=frame.x(1.0), y2=frame.y(1.0), class_="ideal")
    path = element("polyline", points=" ".join(f"{frame.x(one.confidence):g},{frame.y(one.right):g}" for one in found.curve),
                   class_="line")
    curve = element("g", axes(frame, "how sure the scorer is; up: share of these pairs in which it is right", marks), ideal, path,
                    *(_band(frame, one) for one in found.curve), transform=f"translate(0 {HEAD})")
    parts = [element("style", Markup(STYLE)), element("title", f"Calibration of {title}"),
             element("rect", x=0, y=0, width=WIDTH, height=height, class_="bg"),
             element("text", visible(clip(title, 80)), x=16, y=26, class_="title"),
             element("text", f"{found.pairs} pairs, accuracy {found.accuracy:.1%}, calibration error {found.error:.3f}, Brier "
                             f"{found.brier:.3f}; {_length(found)}", x=16, y=48, class_="about"),
             curve, *_sources(shown, hidden, HEAD + CURVE + ROW)]
    drawn = element("svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {height}", width=WIDTH,
                    height=height, role="img")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{drawn}\n'


def _length(found: Calibration) -> str:
    return ("length bias unknown: no pair differs in length" if found.length_bias is None else
            f"length bias {100 * found.length_bias:+.1f} points")


def _band(frame: Frame, one: Bin) -> Markup:
    at = frame.x(one.confidence)
    said = f"says {one.confidence:.1%}, is {one.right:.1%} ({one.low:.1%} to {one.high:.1%}), {one.count} pairs"
    return element("g", element("title", said),
                   element("line", x1=at, x2=at, y1=frame.y(one.low), y2=frame.y(one.high), class_="bar"),
                   element("circle", cx=at, cy=frame.y(one.right), r=4.5, class_="dot"))


def _sources(shown: Sequence[tuple[str, tuple[int, float, float, float]]], hidden: int, top: int) -> list[Markup]:
    """A row per source: its accuracy with the interval between nothing and everything, a coin's half marked."""
    left, right = NAMES, WIDTH - 150

    def x(share: float) -> str:
        return f"{left + share * (right - left):g}"
    half = element("line", x1=x(0.5), x2=x(0.5), y1=top + 8, y2=top + 8 + ROW * len(shown), class_="half")
    parts = [element("text", "accuracy per source, of 0 to 100%; dotted: a coin", x=16, y=top, class_="about"), half]
    for number, (name, (count, share, low, high)) in enumerate(shown):
        at = top + ROW * number + 18
        parts += [element("text", visible(clip(name or "no source", 26)), x=left - 10, y=at + 4, class_="tick end"),
                  element("line", x1=x(0.0), x2=x(1.0), y1=at, y2=at, class_="grid"),
                  element("line", x1=x(low), x2=x(high), y1=at, y2=at, class_="bar"),
                  element("circle", cx=x(share), cy=at, r=4.5, class_="dot"),
                  element("text", f"{share:.1%} of {count}", x=right + 12, y=at + 4, class_="tick")]
    if hidden:
        parts.append(element("text", f"and {hidden} sources more", x=left, y=top + ROW * len(shown) + 22, class_="tick"))
    return parts
