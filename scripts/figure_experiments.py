"""Write docs/experiments.md and its pictures from the kept results of `rollbook evidence rerun NAME --record`.

    python scripts/figure_experiments.py        (pictures need the `report` extra)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollbook.experiments.record import results, run_id

DOCS = Path(__file__).resolve().parents[1] / "docs"
INK, FAINT, LEVEL = "#1f2933", "#9aa5b1", "#1b6ca8"
Result = Mapping[str, Any]
HEAD = """# Claims tried again here

Each experiment's hypothesis, levels, seeds, metric and decision rule were written down before its first run (`plan`), and its verdict follows
from that rule (docs/evidence.md). The models are tiny and the tasks are sums: a verdict is about this scale. Spent quantities are means
per run. Written by `scripts/figure_experiments.py` from `src/rollbook/experiments/results`; each can be made again by
`rollbook evidence rerun NAME`.
"""


def page(kept: Sequence[Result]) -> str:
    """The document: a table of the verdicts, then each experiment with its picture and its levels."""
    rows = [f"| [{one['name']}](#{one['name']}) | {one['hypothesis']} | {effect_text(one)} | **{one['verdict']['word']}** |"
            for one in kept]
    table = ["| experiment | hypothesis | effect, points (95% interval) | verdict |", "|---|---|---|---|", *rows]
    return "\n".join([HEAD, *table, "", *("\n".join(section(one)) for one in kept)]).rstrip() + "\n"


def section(one: Result) -> list[str]:
    """One experiment: what was asked, the picture, the levels, the rule's words."""
    seeds = sorted({run["seed"] for run in one["runs"]})
    lines = [f"## {one['name']}", "",
             f"Claim `{one['claim']}`. Factor: {one['factor']}. Metric: `{one['metric']}`, share of held-out tasks.",
             f"Effect: {one['treatment']} less {one['baseline']}. {len(one['runs'])} runs, seeds {', '.join(map(str, seeds))}; plan "
             f"`{one['plan'][:16]}`, result `{run_id(one).rpartition(':')[2][:16]}`.", "",
             f"![{one['name']}: held-out score by level]({picture(one).relative_to(DOCS).as_posix()})", ""]
    quantities = list(next(iter(one["verdict"]["levels"].values()))["spent"])
    lines += [f"| level | interquartile mean (95% interval) | each seed | diverged | {' | '.join(quantities)} |",
              "|---|---|---|---|" + "---|" * len(quantities)]
    for name, level in one["verdict"]["levels"].items():
        iqm = level["iqm"]
        shown = "no score" if iqm is None else f"{points(iqm['estimate'])} ({points(iqm['low'])} to {points(iqm['high'])})"
        each = ", ".join(points(score) for _, score in sorted(level["scores"].items(), key=lambda item: int(item[0])))
        spent = " | ".join(f"{level['spent'][what]:,.0f}" for what in quantities)
        lines.append(f"| {name} | {shown} | {each} | {len(level['diverged'])} | {spent} |")
    return [*lines, "", f"**{one['verdict']['word']}**: {one['verdict']['why']}.", ""]


def effect_text(one: Result) -> str:
    """`-9.1 (-12.0 to -6.2)`, in points; a dash where there is none."""
    effect = one["verdict"]["effect"]
    if effect is None:
        return "none"
    return f"{100 * effect['estimate']:+.1f} ({100 * effect['low']:+.1f} to {100 * effect['high']:+.1f})"


def points(share: float) -> str:
    return f"{100 * share:.1f}%"


def picture(one: Result) -> Path:
    """Where its picture lies."""
    return DOCS / "img" / f"experiment-{one['name']}.svg"


def draw(one: Result) -> None:
    """A row per level: each seed a dot, the interquartile mean with its interval."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams.update({"svg.hashsalt": "rollbook", "font.size": 9, "axes.edgecolor": FAINT, "text.color": INK})
    levels = one["verdict"]["levels"]
    figure, axis = plt.subplots(figsize=(7, 0.9 + 0.55 * len(levels)))
    for row, (name, level) in enumerate(levels.items()):
        scores = [100 * score for score in level["scores"].values()]
        axis.plot(scores, [row] * len(scores), "o", color="white", markeredgecolor=LEVEL, markersize=5, zorder=3)
        if level["iqm"] is not None:
            low, mid, high = (100 * level["iqm"][key] for key in ("low", "estimate", "high"))
            axis.plot([low, high], [row - 0.22] * 2, color=LEVEL, lw=2, zorder=2)
            axis.plot([mid], [row - 0.22], "D", color=LEVEL, markersize=5, zorder=4)
        if level["diverged"]:
            axis.text(axis.get_xlim()[0], row + 0.2, f"{len(level['diverged'])} diverged", fontsize=7, color="#c2512f")
    axis.set_yticks(range(len(levels)), list(levels))
    axis.set_ylim(len(levels) - 0.4, -0.6)
    axis.set_xlabel(f"{one['metric']}: % of held-out tasks; dots: seeds, diamond: interquartile mean, line: its 95% interval")
    axis.grid(axis="x", color=FAINT, lw=0.4)
    figure.tight_layout()
    picture(one).parent.mkdir(exist_ok=True)
    figure.savefig(picture(one), metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    kept = results()
    for one in kept:
        draw(one)
    (DOCS / "experiments.md").write_text(page(kept), encoding="utf-8")


if __name__ == "__main__":
    main()
