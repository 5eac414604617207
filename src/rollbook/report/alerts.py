"""The flight recorder: what went wrong in training, each alert with its step, the rule it broke and the numbers behind it.

The rules compare a stage with its own beginning, so that they hold for a tiny model and a large one; each names what it needs and
stays silent without it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rollbook.records import EvalReport, PolicyVersion, StepReport
from rollbook.report.facts import Facts
from rollbook.report.text import number, percent

FIRST = 5               # steps that stand for a stage's beginning
LASTING = 3             # steps in a row that a rate must stay bad
ENTROPY_SHARE, ENTROPY_NATS = 0.2, 0.02
KL_TIMES, KL_NATS = 10.0, 0.5
LENGTH_TIMES = 2.0
MISMATCH_TIMES, MISMATCH_NATS = 10.0, 1e-3
INFORMATIVE = 0.1
REWARD_GAIN, GOLD_LOSS = 0.02, 0.02

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One thing that went wrong. `record` is the id of the step's report.

    Example: Alert(kind="entropy collapse", stage="rl", step=31, record="StepReport:9c..", rule="entropy below 20% of …",
        evidence="0.04 nats; the first 5 steps had 0.61")
    """

    kind: str
    stage: str
    step: int
    record: str
    rule: str
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step with what was measured at it."""

    record: str
    report: StepReport

    @property
    def values(self) -> Values:
        return self.report.metrics


Rule = Callable[[Sequence[Step]], Iterator[Alert]]


def alerts(facts: Facts) -> tuple[Alert, ...]:
    """Every alert of a run in the order of steps; one a kind and stage, at the step where it began."""
    stages: dict[str, list[Step]] = {}
    for entry in facts.entries(StepReport):
        stages.setdefault(entry.record.stage, []).append(Step(record=entry.id, report=entry.record))
    found = [alert for steps in stages.values() for rule in RULES for alert in rule(steps)]
    found += [alert for stage, steps in stages.items() for alert in _gold(facts, stage, steps)]
    return tuple(sorted(found, key=lambda alert: (alert.stage, alert.step, alert.kind)))


def _alert(kind: str, step: Step, rule: str, evidence: str) -> Alert:
    return Alert(kind=kind, stage=step.report.stage, step=step.report.step, record=step.record, rule=rule, evidence=evidence)


def _start(steps: Sequence[Step], name: str) -> float | None:
    """The middle value of the first steps that measured it; None where fewer did."""
    held = [step.values[name] for step in steps if name in step.values][:FIRST]
    return median(held) if len(held) == FIRST else None


def _later(steps: Sequence[Step], name: str) -> Iterator[tuple[Step, float]]:
    held = [(step, step.values[name]) for step in steps if name in step.values]
    yield from held[FIRST:]


def _entropy(steps: Sequence[Step]) -> Iterator[Alert]:
    name = "policy/entropy_nats"
    start = _start(steps, name)
    for step, value in _later(steps, name):
        if start and (value < ENTROPY_SHARE * start or (value < ENTROPY_NATS <= start)):
            yield _alert("entropy collapse", step, f"{name} below {percent(ENTROPY_SHARE, 0)} of the stage's first {FIRST} steps",
                         f"{number(value, 3)} nats; the beginning had {number(start, 3)}")
            return


def _kl(steps: Sequence[Step]) -> Iterator[Alert]:
    name = "update/kl_to_start_nats"
    before: list[float] = []
    for step in steps:
        value = step.values.get(name)
        if value is None:
            continue
        if not math.isfinite(value) or (value > KL_NATS and len(before) >= FIRST
                                        and value > KL_TIMES * max(median(before), 1e-9)):
            yield _alert("KL explosion", step, f"{name} above {KL_NATS:g} nats and {KL_TIMES:g} times the earlier steps' middle",
                         f"{number(value, 3)} nats; earlier steps had {number(median(before), 3) if before else 'none'}")
            return
        before.append(value)


def _length(steps: Sequence[Step]) -> Iterator[Alert]:
    name = "rollout/length_mean"
    start = _start(steps, name)
    for step, value in _later(steps, name):
        if start and not start / LENGTH_TIMES <= value <= start * LENGTH_TIMES:
            cut = step.values.get("rollout/truncated_rate")
            more = f"; {percent(cut)} were cut by length" if cut is not None else ""
            yield _alert("length drift", step, f"{name} beyond {LENGTH_TIMES:g} times, or below 1/{LENGTH_TIMES:g} of, the first "
                         f"{FIRST} steps", f"{number(value, 3)} tokens; the beginning had {number(start, 3)}{more}")
            return


def _mismatch(steps: Sequence[Step]) -> Iterator[Alert]:
    name = "policy/mismatch_k3_nats"
    start = _start(steps, name)
    for step, value in _later(steps, name):
        if start is not None and value > MISMATCH_NATS and value > MISMATCH_TIMES * start:
            yield _alert("engine mismatch growth", step, f"{name} above {MISMATCH_NATS:g} nats and {MISMATCH_TIMES:g} times the "
                         f"first {FIRST} steps", f"{number(value, 3)} nats; the beginning had {number(start, 3)}")
            return


def _uniform(steps: Sequence[Step]) -> Iterator[Alert]:
    name, row = "admission/informative_rate", 0
    for step in steps:
        value = step.values.get(name)
        row = row + 1 if value is not None and value < INFORMATIVE else 0
        if row == LASTING:
            yield _alert("uniform groups", step, f"{name} below {percent(INFORMATIVE, 0)} for {LASTING} steps in a row",
                         f"{percent(value)} of the groups had a signal at this step")
            return


RULES: tuple[Rule, ...] = (_entropy, _kl, _length, _mismatch, _uniform)


def _gold(facts: Facts, stage: str, steps: Sequence[Step]) -> Iterator[Alert]:
    """The reward of training rises while held-out accuracy falls between two evaluations within the stage."""
    index = {entry.id: entry.record.index for entry in facts.entries(PolicyVersion)}
    held = [(index[report.policy], report) for report in facts.all(EvalReport)
            if report.policy in index and report.stage.partition("/")[0] == stage]
    for (low, before), (high, after) in itertools.pairwise(held):
        inside = [step for step in steps if low < index.get(step.report.published, -1) <= high]
        rewards = [step.values["reward/total_mean"] for step in inside if "reward/total_mean" in step.values]
        if len(rewards) < 2 or before.protocol != after.protocol:
            continue
        half = len(rewards) // 2
        gain = sum(rewards[-half:]) / half - sum(rewards[:half]) / half
        loss = before.accuracy.estimate - after.accuracy.estimate
        if gain > REWARD_GAIN and loss > GOLD_LOSS and after.accuracy.high < before.accuracy.estimate:
            yield _alert("reward-gold divergence", inside[-1], "reward rises while held-out accuracy falls beyond its interval",
                         f"reward {number(gain, 2)} up; held-out {percent(before.accuracy.estimate)} to "
                         f"{percent(after.accuracy.estimate)} (at most {percent(after.accuracy.high)})")
            return
