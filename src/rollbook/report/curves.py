"""The training curves: which metrics stand in which chart, and what was not observed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from rollbook.records import SftReport, StepReport
from rollbook.records.metrics import CATALOGUE
from rollbook.report.facts import Facts
from rollbook.report.svg import Series, line_chart
from rollbook.report.text import number, power

NUMBERED_ROWS = 200
CHARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Reward", ("reward/total_mean",)),
    ("Accuracy and format rate", ("reward/accuracy", "reward/format_rate")),
    ("Reward components", ("reward/format_mean", "reward/correctness_mean", "reward/length_mean")),
    ("Response length", ("rollout/length_mean",)),
    ("Cut by length, groups with a signal", ("rollout/truncated_rate", "admission/informative_rate")),
    ("Groups admitted", ("admission/groups",)),
    ("Entropy", ("policy/entropy_nats",)),
    ("KL to the stage's start", ("update/kl_to_start_nats",)),
    ("Clip fraction", ("update/clip_fraction",)),
    ("Gradient norm", ("update/grad_norm",)),
    ("Engine against trainer, |difference|", ("policy/mismatch_abs_nats",)),
    ("Engine against trainer, k3", ("policy/mismatch_k3_nats",)),
    ("Sampling speed", ("rollout/tokens_per_s",)),
    ("Staleness", ("policy/age_max",)),
    ("Time of a step", ("time/rollout_s", "time/update_s")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One entry of a chart's legend."""

    name: str
    meaning: str
    denominator: str
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawn chart with its unit and, for each line, what it is divided by."""

    title: str
    unit: str
    drawn: Markup
    lines: tuple[Line, ...]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The same numbers as a table; `every` says that only each so many steps are listed."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    every: int


def step_values(steps: Sequence[StepReport]) -> list[Mapping[str, float]]:
    """Metrics of each step, those of the clock included."""
    return [{**step.observed, **step.metrics} for step in steps]


def training_charts(facts: Facts) -> tuple[tuple[Chart, ...], tuple[str, ...]]:
    """The charts that have observations, and the names of the metrics that have none."""
    steps = facts.all(StepReport)
    values = step_values(steps)
    charts, absent = [], []
    for title, names in CHARTS:
        held = [name for name in names if any(name in row for row in values)]
        absent += [name for name in names if name not in held]
        if held:
            charts.append(_chart(title, held, values))
    supervised = facts.all(SftReport)
    if supervised:
        charts.append(_sft_chart(supervised))
    else:
        absent.append("sft/loss_nats")
    return tuple(charts), tuple(absent)


def _chart(title: str, names: Sequence[str], values: Sequence[Mapping[str, float]]) -> Chart:
    steps = list(enumerate(values, start=1))
    series = [Series(name=name, points=tuple((float(x), row.get(name)) for x, row in steps)) for name in names]
    missing = {name: sum(name not in row for row in values) for name in names}
    note = "; ".join(f"{name} absent in {count} of {len(values)} steps" for name, count in missing.items() if count)
    return _drawn(title, series, "step", note)


def _sft_chart(reports: Sequence[SftReport]) -> Chart:
    points = tuple((float(x), report.loss_nats) for x, report in enumerate(reports, start=1))
    return _drawn("Supervised loss", [Series(name="sft/loss_nats", points=points)], "supervised step", "")


def _drawn(title: str, series: Sequence[Series], x_label: str, note: str) -> Chart:
    spec = CATALOGUE[series[0].name]
    share = spec.unit == "share"
    largest = max(abs(y) for one in series for _, y in one.seen)
    exponent = 0 if share or largest == 0 or 1e-2 <= largest else 3 * math.floor(math.log10(largest) / 3)
    unit = f"{power(exponent)} {spec.unit}" if exponent else spec.unit
    drawn = line_chart(series, label=f"{title}, {unit} per {x_label}", x_label=x_label, share=share, factor=10.0 ** -exponent,
                       unit=spec.unit)
    lines = tuple(Line(name=one.name, meaning=CATALOGUE[one.name].meaning, denominator=CATALOGUE[one.name].denominator,
                       last=f"{100 * one.seen[-1][1]:.1f}%" if share else number(one.seen[-1][1])) for one in series)
    return Chart(title=title, unit="percent" if share else unit, drawn=drawn, lines=lines, note=note)


def numbers(facts: Facts) -> Numbers | None:
    """Every metric of every step (or of each n-th) as text; None without steps."""
    steps = facts.all(StepReport)
    if not steps:
        return None
    values = step_values(steps)
    columns = tuple(name for name in CATALOGUE if any(name in row for row in values))
    every = math.ceil(len(steps) / NUMBERED_ROWS)
    rows = [(f"{step.stage}/{step.step}", *(number(row[name], 6) if name in row else "—" for name in columns))
            for step, row in zip(steps, values, strict=True)]
    return Numbers(columns=("step", *columns), rows=tuple(rows[::every]), every=every)
