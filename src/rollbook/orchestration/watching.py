"""Gold against proxy of a policy stage: what its steps recorded, its probes, or its answers judged again by the own reward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rollbook.ledger import Ledger
from rollbook.orchestration.judges import default_judging
from rollbook.records import EvalReport, ResolvedRecipe, RollbookError, Scored, StepReport, Task, TaskId
from rollbook.records.recipe import EnvironmentReward
from rollbook.rewards.calibration import Moment

KL, PROXY = "update/kl_to_start_nats", "reward/total_mean"
RECORDED, PROBE, AGAIN = "reward/accuracy", "eval/probe_accuracy", "own-reward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The moments of a stage that have KL, reward and gold; `gold` says what gold is."""

    stage: str
    gold: str
    moments: tuple[Moment, ...]


def watched(folder: Path, stage: str | None, gold: str | None) -> Watched:
    """The moments of a run's policy stage (None: the last). `gold` names a metric of its steps, `eval/probe_accuracy`, or
    `own-reward`: the share of its answers that the run's own reward calls right, judged now. None is the accuracy that was
    recorded, and where the stage's reward has none, `own-reward`.

    RollbookError where fewer than two steps have all three.
    """
    with Ledger.open(folder, write=False) as ledger:
        reports = list(ledger.records(StepReport))
        name = stage if stage is not None else reports[-1].stage if reports else ""
        steps = {one.step: {**one.metrics, **one.observed} for one in reports if one.stage == name}
        known = {step: found for step, found in steps.items() if {KL, PROXY} <= found.keys()}
        if gold is None:
            gold = RECORDED if any(RECORDED in found for found in steps.values()) else AGAIN
        golds = _golds(ledger, name, gold, known)
    moments = tuple(Moment(step=step, kl_nats=found[KL], proxy=found[PROXY], gold=golds[step])
                    for step, found in sorted(known.items()) if step in golds)
    if len(moments) < 2:
        stages = ", ".join(dict.fromkeys(one.stage for one in reports)) or "no stage has steps"
        raise RollbookError(f"too few steps of {name or 'the run'} with KL, reward and gold to watch",
                            got=f"{len(steps)} steps, {len(known)} of them with KL and reward, {len(moments)} with {gold} too",
                            fix=f"--stage of {stages}; --gold {RECORDED}, {PROBE} (with probe_every) or {AGAIN}")
    return Watched(stage=name, gold=gold, moments=moments)


def _golds(ledger: Ledger, name: str, gold: str, known: Mapping[int, Mapping[str, float]]) -> dict[int, float]:
    """Gold by step."""
    if gold == AGAIN:
        return dict(_judged_again(ledger, name, sorted(known)))
    if gold == PROBE:
        before = f"{name}/probe/"
        return {int(one.stage.removeprefix(before)): one.accuracy.estimate for one in ledger.records(EvalReport)
                if one.stage.startswith(before) and one.stage.removeprefix(before).isdigit()}
    return {step: found[gold] for step, found in known.items() if gold in found}


def _judged_again(ledger: Ledger, name: str, steps: Sequence[int]) -> Iterator[tuple[int, float]]:
    """The share of right answers among those of a step that the run's own reward decides; steps without one are left out."""
    recipe = next(iter(ledger.records(ResolvedRecipe)), None)
    if recipe is None or isinstance(recipe.settings.reward, EnvironmentReward):
        return
    tasks: dict[TaskId, Task] = {task.id: task for task in ledger.records(Task)}
    tables = {str(event.body["name"]) for event in ledger.events("TraceTable")}
    with closing(default_judging(recipe.settings.reward, recipe.settings.judges, None).judge) as judge:
        for step in steps:
            scope = f"{name}/{step:06d}"
            traces = [trace for trace, _, _ in ledger.read_traces(scope)] if scope in tables else []
            verdicts = judge.judge(traces, tasks) if traces else []
            right = [one.vector.accuracy for one in verdicts if isinstance(one, Scored) and one.vector.accuracy is not None]
            if right:
                yield step, sum(right) / len(right)
