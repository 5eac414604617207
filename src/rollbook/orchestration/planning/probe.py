"""What every stage of a recipe will take on this machine: the recipe itself, a few steps and attempts of each stage, timed.

    steps      seconds = what comes before them + steps x seconds of a step of the probe (the first one left out)
    sampling   seconds = what is around it + attempts x seconds of an attempt of the probe

What only a trained policy shows is not invented: how many waves a policy stage needs is told as a range, and answers are taken to
be as long as the probe's, whose policies have hardly learnt: a model from scratch fills its whole budget.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from rollbook.ledger import Ledger
from rollbook.orchestration.run import run_recipe
from rollbook.orchestration.session import Progress
from rollbook.records import ModuleUpdate, ResolvedRecipe, RollbookError, SftReport, StageEnd, StepReport
from rollbook.records.demonstrating import TAUGHT
from rollbook.records.graph import order
from rollbook.records.recipe import (
    Comparisons,
    Distill,
    Evaluate,
    Lessons,
    Oracle,
    PassRate,
    PolicyGradient,
    Preference,
    RejectionSampling,
    Revise,
    RewardModel,
    Settings,
    Sft,
    Stage,
)

STEPS = 3           # of a stage that trains: the first warms up, the others are timed
ATTEMPTS = 64       # of a stage that samples, as far as its own settings have so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One stage: seconds at least and at most, bytes of the whole process while it ran; None where the probe did not reach it.

    `tokens` is how long prompt and answer were in the probe, None where nothing was sampled. `why` says what stopped the probe.
    """

    stage: str
    seconds: float | None
    at_most: float | None
    bytes: int | None
    tokens: float | None = None
    why: str = ""


@dataclass(slots=True)
class _Watch:
    """A run's progress that nobody reads: what the process held in memory during every stage."""

    peak: dict[str, int] = field(default_factory=dict)
    now: str = ""
    over: threading.Event = field(default_factory=threading.Event)

    def stage(self, name: str, index: int, total: int, steps: int) -> None:
        self.now = name

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def watch(self) -> None:
        process = psutil.Process()
        while not self.over.wait(0.05):
            self.peak[self.now] = max(self.peak.get(self.now, 0), process.memory_info().rss)


@dataclass(slots=True)
class _Seen:
    """What the log of a probe says of one stage: its seconds, those of its steps and of its sampling, and attempts."""

    whole: float = 0.0
    steps: list[float] = field(default_factory=list)
    rollouts: list[float] = field(default_factory=list)
    sampling: float = 0.0
    attempts: int = 0
    tokens: int = 0


def estimates(recipe: ResolvedRecipe, progress: Progress) -> tuple[Estimate, ...]:
    """An estimate for every stage in the order in which they run; a probe that cannot go on says so of what it did not reach."""
    small = replace(recipe, settings=shrunk(recipe.settings))
    watch, why = _Watch(), ""
    thread = threading.Thread(target=watch.watch, daemon=True)
    progress.note("probing: a few steps and attempts of every stage, in a folder that is thrown away")
    with tempfile.TemporaryDirectory() as folder:
        thread.start()
        try:
            run_recipe(small, Path(folder) / "probe", watch)
        except RollbookError as error:
            why = str(error).split("\n")[0]
        finally:
            watch.over.set()
            thread.join()
        seen = _read(Path(folder) / "probe")
    names = order(recipe.settings.stages, recipe.settings.rewards)
    return tuple(_estimate(recipe.settings, small.settings, name, (seen, watch.peak, why)) for name in names)


def shrunk(settings: Settings) -> Settings:
    """The recipe with few steps and attempts; the sizes of model, batches and answers, which decide rates and memory, are its
    own.

    Nothing here may end for want of luck: all candidates are kept, all groups trained, all answers demonstrated.
    """
    heldout = min(settings.tasks.heldout, ATTEMPTS)
    most = max((getattr(stage, "prompts", 0) for stage in settings.stages.values()), default=0)      # that one step asks
    made = {name: _small(stage, min(most, settings.tasks.train)) for name, stage in settings.stages.items()}
    return replace(settings, stages=made, tasks=replace(settings.tasks, heldout=heldout))


def _small(stage: Stage, most: int) -> Stage:
    match stage:
        case Sft() | Distill():
            return replace(stage, steps=min(stage.steps, STEPS), optimizer=_brief(stage.optimizer, STEPS))
        case RewardModel():
            loss: Any = "ranked" if stage.loss == "listwise" else stage.loss
            return replace(stage, steps=min(stage.steps, STEPS), loss=loss, optimizer=_brief(stage.optimizer, STEPS))
        case Preference():
            return replace(stage, steps=min(stage.steps, STEPS), by="score", optimizer=_brief(stage.optimizer, STEPS))
        case PolicyGradient():
            steps = min(stage.steps, STEPS)
            critic = stage.critic
            if critic is not None:
                critic = replace(critic, warmup=min(critic.warmup, steps - 1), optimizer=_brief(critic.optimizer, 1))
            return replace(stage, steps=steps, filter="none", probe=0, probe_every=0, curriculum=None, critic=critic,
                           optimizer=_brief(stage.optimizer, steps * stage.minibatches))
        case PassRate():
            return replace(stage, low=0, high=stage.samples, candidates=max(most, _few(stage.candidates, stage.samples)))
        case RejectionSampling():
            return replace(stage, prompts=_few(stage.prompts, stage.samples), keep="all", scorer=None)
        case Comparisons():
            labeler = stage.labeler
            if isinstance(labeler, Oracle):
                labeler = replace(labeler, noise=max(labeler.noise, 0.1))
            return replace(stage, prompts=_few(stage.prompts, stage.per_task), labeler=labeler)
        case Revise():
            return replace(stage, prompts=_few(stage.prompts, 2))
        case Lessons():                 # so few answers may hold no two of different worth: what else is taught is always there
            return replace(stage, prompts=_few(stage.prompts, stage.answers), teach=TAUGHT)
        case _:
            return stage


def _few(prompts: int, samples: int) -> int:
    return min(prompts, max(2, ATTEMPTS // samples))


def _brief(optimizer: Any, steps: int) -> Any:
    return replace(optimizer, warmup_steps=min(optimizer.warmup_steps, steps))


def _read(folder: Path) -> dict[str, _Seen]:
    """What the log of a probe says of the stages that it came through."""
    seen: dict[str, _Seen] = {}
    if not (folder / "manifest.json").is_file():
        return seen
    ledger = Ledger.open(folder, write=False)
    began = issued = 0.0
    now = _Seen()
    for event in ledger.events():
        began = began or (event.time if event.kind == "PolicyVersion" else 0.0)
        match event.kind:
            case "Dispatch" | "SamplingEnvelope":
                issued = event.time
            case "TraceTable":
                now.attempts, now.tokens = now.attempts + int(event.body["rows"]), now.tokens + int(event.body["tokens"])
                now.sampling, issued = now.sampling + event.time - issued, 0.0
            case "RecordTable" if issued:               # of the general answers of a supervised stage
                now.sampling, issued = now.sampling + event.time - issued, 0.0
            case "StageEnd":
                end: StageEnd = event.record()
                now.whole, began = event.time - began, event.time
                seen[end.stage], now = now, _Seen()
            case "SftReport" | "StepReport" | "ModuleUpdate":
                report: SftReport | StepReport | ModuleUpdate = event.record()
                if isinstance(report, ModuleUpdate) and report.module == "critic":
                    continue
                now.steps.append(report.observed["time/step_s"])
                now.rollouts.append(report.observed.get("time/rollout_s", 0.0))
    return seen


def _estimate(settings: Settings, small: Settings, name: str,
              probed: tuple[Mapping[str, _Seen], Mapping[str, int], str]) -> Estimate:
    seen, peak, why = probed
    stage, held, now = settings.stages[name], small.stages[name], seen.get(name)
    if now is None:
        return Estimate(stage=name, seconds=None, at_most=None, bytes=None, why=why or "the probe did not come to it")
    step, rollout = (_mean(values) for values in (now.steps, now.rollouts))
    own = 0.0 if isinstance(stage, PolicyGradient | Distill) else now.sampling          # theirs is a part of their steps
    fixed = max(0.0, now.whole - sum(now.steps) - own)
    if isinstance(stage, PolicyGradient):
        least = -(-stage.groups // stage.prompts)
        rest, wave = step - rollout, rollout / least
        extra = stage.probe * ((stage.steps - 1) // stage.probe_every) if stage.probe_every else 0
        probes = extra * rollout / (least * stage.prompts * stage.per_task)
        low, high = (fixed + probes + stage.steps * (rest + wave * waves) for waves in (least, stage.max_waves))
    elif now.steps:
        steps: int = getattr(stage, "steps", len(now.steps))
        low = high = fixed + own * steps / len(now.steps) + steps * step
    else:
        low = high = fixed + own * _attempts(settings, stage) / max(_attempts(small, held), 1)
    return Estimate(stage=name, seconds=low, at_most=high, bytes=peak.get(name),
                    tokens=now.tokens / now.attempts if now.attempts else None)


def _mean(values: list[float]) -> float:
    timed = values[1:] or values
    return sum(timed) / len(timed) if timed else 0.0


def _attempts(settings: Settings, stage: Stage) -> int:
    match stage:
        case Evaluate():
            return settings.tasks.heldout * stage.trials
        case PassRate():
            return stage.candidates * stage.samples
        case RejectionSampling():
            return stage.prompts * stage.samples
        case Comparisons():
            return stage.prompts * stage.per_task
        case Revise():
            return stage.prompts * (1 + 2 * stage.rounds)
        case Lessons():
            return stage.prompts * stage.answers
        case _:
            return 1
