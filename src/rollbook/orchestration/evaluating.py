"""An evaluation outside a run: a folder of its own with every trajectory, resumable, with its cost.

Tasks are asked in parts; a part commits whole, an unfinished one is asked again under the same names.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rollbook.evaluation.heldout import tasks_hash
from rollbook.evaluation.protocols import Bundle, ProtocolRefused, check_name, reward_name, system_prompt
from rollbook.evaluation.results import Origin, Tally
from rollbook.experience.admission import outcome
from rollbook.ledger import Ledger, close_census, environment_manifest
from rollbook.models.runtime import prepare
from rollbook.orchestration.answering import Answerer, Asks, Embedded, Remote
from rollbook.orchestration.apart import compared, in_words
from rollbook.orchestration.environment_proof import prove_environment
from rollbook.orchestration.given_answers import GivenAnswers
from rollbook.orchestration.judges import Judging, default_judging, measured_by
from rollbook.orchestration.proof import prove
from rollbook.orchestration.session import Progress
from rollbook.orchestration.step import families
from rollbook.orchestration.subjects import Subject
from rollbook.orchestration.surroundings import Surroundings, surroundings
from rollbook.records import (
    Aggregation,
    Census,
    EnvironmentProof,
    EvalReport,
    EvaluationProtocol,
    EvaluationResult,
    LedgerError,
    ModelError,
    RawTask,
    ResolvedRecipe,
    RunEnd,
    SplitManifest,
    Task,
    canonical,
    content_id,
    encode,
)
from rollbook.records.recipe import (
    EnvironmentReward,
    EnvironmentSettings,
    Evaluate,
    JudgeSettings,
    Reward,
    RewardSettings,
    RunSettings,
)
from rollbook.rewards.composed.judge import checked
from rollbook.rollouts.endpoint import Endpoint
from rollbook.rollouts.environment import scaffold
from rollbook.rollouts.solve import SCAFFOLD

ATTEMPTS = 256      # of a part; fixed, because attempts are named by their part


def freeze(run: Path, stage: str | None, *, name: str, trials: int | None, aggregation: Aggregation) -> Bundle:
    """The protocol of an evaluation stage of a run, with its held-out tasks."""
    ledger = Ledger.open(run, write=False)
    recipe = next(iter(ledger.records(ResolvedRecipe)), None)
    stages = {} if recipe is None else {key: one for key, one in recipe.settings.stages.items() if isinstance(one, Evaluate)}
    chosen = stage if stage is not None else next(reversed(stages), None)
    if recipe is None or chosen not in stages:
        raise LedgerError("no evaluation stage of this run has this name", got=repr(stage),
                          fix=f"one of {', '.join(stages) or 'none: this run evaluates nothing'}")
    settings, told = recipe.settings, stages[chosen]
    reward = settings.reward if told.reward is None else settings.rewards[told.reward]
    judges = judges_named(reward, settings.judges)
    if aggregation.rule == "majority" and not isinstance(reward, RewardSettings):
        raise ProtocolRefused("a majority needs answers that can be compared as text",
                              got=f"{aggregation} of {reward_name(reward)}",
                              why="only the reward `magistral` says how an answer is read out of a response",
                              fix="choose mean, pass@k or best@k:SELECTOR")
    tasks = _heldout(ledger, next((r for r in ledger.records(EvalReport) if r.stage == chosen), None))
    raw_of = {content_id(raw): raw for raw in ledger.records(RawTask)}
    world, context = settings.environment, settings.model.context
    found = measured(reward, judges, world, settings.tasks.max_tokens)
    protocol = EvaluationProtocol(
        name=name, tasks=tasks_hash(tasks), task_count=len(tasks), environment=found.environment,
        verifier=found.verifier, reward=reward, scaffold=found.scaffold, template=str(ledger.manifest.get("template")),
        system_prompt=system_prompt(tasks),
        tools=tuple(sorted({tool for task in tasks for tool in task.tools})), sampling=told.sampling,
        seed=settings.run.seed, trials=told.trials if trials is None else trials, aggregation=aggregation,
        extraction=reward_name(reward), in_family=all(split.in_family for split in ledger.records(SplitManifest)),
        max_tokens=settings.tasks.max_tokens, max_turns=1 if world is None else world.max_turns,
        max_seconds=None if world is None else world.max_seconds, world=world, context=None if world is None else context,
        judges=judges or None)
    return Bundle(protocol=protocol, tasks=tasks, raws=tuple(raw_of[raw] for raw in dict.fromkeys(task.raw for task in tasks)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What follows from a reward and an environment: the image's id, the judge's digest, the harness."""

    environment: str
    verifier: str
    scaffold: str


def measured(reward: Reward, judges: Mapping[str, JudgeSettings], world: EnvironmentSettings | None, max_tokens: int) -> Measured:
    """As this version of the program, its packages and these judges have it; refuses a reward that episodes are not graded by."""
    if (world is not None) != isinstance(reward, EnvironmentReward):
        raise ProtocolRefused("episodes are graded by their environment, and single turns are not", got=reward_name(reward),
                              why="a final state is graded by its own verifier, a single answer by its text",
                              fix="EnvironmentReward exactly where there is an environment")
    with surroundings(world, max_tokens) as around, _judging(reward, judges, around) as used:
        return Measured(environment=content_id(used.image), verifier=used.judge.digest,
                        scaffold=SCAFFOLD if around is None else scaffold(around.spec, around.rules))


def judges_named(reward: Reward, judges: Mapping[str, JudgeSettings]) -> dict[str, JudgeSettings]:
    """Those of the judges that a reward names; refuses one that a run's own reward model measures, and a judge that is none."""
    if isinstance(reward, RewardSettings | EnvironmentReward):
        return {}
    if models := measured_by(reward):
        raise ProtocolRefused("a reward model of a run cannot be frozen into a protocol", got=", ".join(models),
                              why="a protocol is evaluated without the run that trained the model",
                              fix="freeze an evaluation stage whose reward is measured by verifiers or judges")
    measures = [part.measure for part in checked(reward).parts.values()]
    named = {one.removeprefix("judge:") for one in measures if one.startswith("judge:")}
    if strange := sorted(named - {*judges}):
        raise ProtocolRefused(f"the reward is measured by judge:{strange[0]}, which is not given",
                              got=", ".join(judges) or "no judges", fix="give its settings under judges")
    return {name: judge for name, judge in judges.items() if name in named}


@contextlib.contextmanager
def _judging(reward: Reward, judges: Mapping[str, JudgeSettings], around: Surroundings | None) -> Iterator[Judging]:
    used = default_judging(reward, judges, around)
    try:
        yield used
    finally:
        used.judge.close()


def _heldout(ledger: Ledger, report: EvalReport | None) -> tuple[Task, ...]:
    rows = [event for event in ledger.events("RecordTable") if event.body["name"] == "tasks/heldout"]
    if not rows:
        raise LedgerError("this run keeps no held-out tasks", got=ledger.root.name, why="a protocol needs tasks to ask",
                          fix="give a run whose first stage has begun")
    tasks = tuple(ledger.table_records(rows[-1]))
    asked = tasks if report is None else tuple(task for task in tasks if task.id in report.outcomes)
    return tuple(one for one in asked if isinstance(one, Task))


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """An evaluation in progress."""

    bundle: Bundle
    subject: Subject
    ledger: Ledger
    answerer: Answerer
    asks: Asks
    used: Judging
    around: Surroundings | None
    proven: dict[str, EnvironmentProof]


def evaluate_into(out: Path, bundle: Bundle, subject: Subject, progress: Progress, *, dtype: str | torch.dtype,
                  answers: Path | None = None, proven: dict[str, EnvironmentProof] | None = None) -> EvaluationResult:
    """Evaluates into a new folder, or goes on with the one that is there; the result is the same either way.

    `answers` is the folder of a finished evaluation whose answers are judged instead of asking again. A name of a precision sets
    the process up; a `torch.dtype` is that of a process that is set up already. `proven` holds what this process has proved of
    protocols that it asks again and again, by their ids, and is added to.
    """
    check_name(bundle.protocol.name)
    compute = dtype if isinstance(dtype, torch.dtype) else prepare(
        RunSettings(seed=bundle.protocol.seed, device="cpu", threads=0, dtype=_dtype(dtype)))
    answerer: Answerer = (Remote(subject.policy, bundle) if isinstance(subject.policy, Endpoint)
                          else Embedded(subject.policy, bundle, compute, subject.weights))
    manifest, protocol = _manifest(bundle, subject, answerer), bundle.protocol
    given = None if answers is None else GivenAnswers(answers, bundle, manifest)
    if given is not None:
        manifest["answers"] = given.source
    if (out / "manifest.json").is_file():
        if (done := _done(out, manifest)) is not None:
            progress.note("the evaluation is complete; nothing to do")
            return done
    elif subject.folder is not None:
        manifest["apart"] = compared(bundle, subject.folder)
    with (surroundings(protocol.world, protocol.max_tokens) as around,
          _judging(protocol.reward, protocol.judges or {}, around) as used):
        check_same_judge(protocol, used.judge.digest)
        with _opened(out, manifest) as ledger:
            asks = answerer.asks(protocol, around)
            running = Running(bundle=bundle, subject=subject, ledger=ledger, used=used, around=around, answerer=answerer,
                              asks=asks if given is None else given.behind(asks), proven={} if proven is None else proven)
            _begin(running)
            return _finish(running, _all_parts(running, progress), progress)


def check_first(bundle: Bundle, run: Path) -> None:
    """What an evaluation of a policy of this run would be refused for, before its weights are computed again."""
    protocol = bundle.protocol
    compared(bundle, run)
    with (surroundings(protocol.world, protocol.max_tokens) as around,
          _judging(protocol.reward, protocol.judges or {}, around) as used):
        check_same_judge(protocol, used.judge.digest)


def _done(out: Path, manifest: Mapping[str, Any]) -> EvaluationResult | None:
    with _opened(out, manifest) as ledger:
        return next(iter(ledger.records(EvaluationResult)), None)


def _dtype(name: str) -> Any:
    if name not in ("auto", "float32", "bfloat16"):
        raise ModelError("no precision has this name", got=repr(name), fix="one of auto, float32, bfloat16")
    return name


def check_same_judge(protocol: EvaluationProtocol, digest: str) -> None:
    """Refuses where this program judges otherwise than the one that froze the protocol."""
    if digest != protocol.verifier:
        raise ProtocolRefused("this version judges differently than the one that froze the protocol",
                              got=f"verifier {digest[:12]} for {protocol.verifier[:12]}",
                              why="its code or its packages changed", fix="evaluate with that version, or freeze a new protocol")


def _manifest(bundle: Bundle, subject: Subject, answerer: Answerer) -> dict[str, Any]:
    origin = {"name": subject.name, "run": subject.run, "stage": subject.stage, "version": subject.version,
              "weights": answerer.weights}
    spent = None if subject.training is None else encode(subject.training)
    return {**environment_manifest(), "evaluation": bundle.protocol.id, "bundle": bundle.id, "name": bundle.protocol.name,
            "seed": bundle.protocol.seed, "policy": origin, "training": spent, "recipe_values": subject.recipe,
            **answerer.facts()}


def _opened(out: Path, manifest: Mapping[str, Any]) -> Ledger:
    if not (out / "manifest.json").is_file():
        return Ledger.create(out, manifest)
    ledger = Ledger.open(out)
    apart = [name for name in ("evaluation", "bundle", "policy", "dtype", "engine", "endpoint", "code", "packages", "answers")
             if canonical(ledger.manifest.get(name)) != canonical(manifest.get(name))]
    if apart:
        ledger.close()
        raise LedgerError("this folder holds another evaluation", got=f"{', '.join(apart)} differ",
                          why="one result is of one policy under one protocol", fix="choose another folder with --out")
    return ledger


def _begin(running: Running) -> None:
    """Whoever answers is ready; what the evaluation rests on is on record before the first token."""
    ledger, bundle, answerer = running.ledger, running.bundle, running.answerer
    keep = max((event.seq for event in ledger.events() if event.kind in (answerer.mark, "Census")), default=0)
    if ledger.last_seq > keep:
        ledger.rollback(after=keep, reason="resume")
    begun = next(ledger.events(answerer.mark), None) is not None
    if not begun:
        answerer.first(ledger)
        ledger.append(bundle.protocol)
        ledger.append(running.used.image)
        if running.around is not None:
            ledger.append(running.around.spec)
        ledger.write_table("tasks/raw", bundle.raws)
        ledger.write_table("tasks/heldout", bundle.tasks)
        ledger.append(running.used.judge.composition)
        if bundle.protocol.id not in running.proven:
            running.proven[bundle.protocol.id] = _proof(running)
        ledger.append(running.proven[bundle.protocol.id])
    answerer.begin(ledger, begun)


def _proof(running: Running) -> EnvironmentProof:
    reward, tasks = running.bundle.protocol.reward, running.bundle.tasks
    return (prove(running.used.image, running.used.judge, reward, tasks) if running.around is None
            else prove_environment(running.around, reward, tasks))


def _all_parts(running: Running, progress: Progress) -> float:
    """Asks every part that is not on record; seconds spent now."""
    began = time.monotonic()
    done = {census.scope for census in running.ledger.records(Census)}
    parts = list(_parts(running.bundle))
    progress.stage(running.bundle.protocol.name, 1, 1, len(parts))
    for number, (scope, tasks) in enumerate(parts, start=1):
        if scope not in done:
            part_began = time.monotonic()
            _part(running, scope, tasks, part_began)
        asked = min(number * _per_part(running.bundle.protocol), len(running.bundle.tasks)) * running.bundle.protocol.trials
        progress.step(number, {"eval/done": float(asked)})
    return time.monotonic() - began


def _per_part(protocol: EvaluationProtocol) -> int:
    return max(1, ATTEMPTS // protocol.trials)


def _parts(bundle: Bundle) -> Iterator[tuple[str, Sequence[Task]]]:
    size, protocol = _per_part(bundle.protocol), bundle.protocol
    for number, at in enumerate(range(0, len(bundle.tasks), size)):
        yield f"eval/{protocol.name}/{number:06d}", bundle.tasks[at:at + size]


def _part(running: Running, scope: str, tasks: Sequence[Task], began: float) -> None:
    ledger, by_id = running.ledger, {task.id: task for task in tasks}
    envelope = running.asks.envelope(running.answerer.weights)
    issued = running.asks.dispatch(tasks, running.bundle.protocol.trials, scope=scope, envelope=envelope)
    ledger.append_many([envelope, issued])
    traces = running.asks.solve(tasks, running.bundle.protocol.trials, scope=scope, envelope=envelope)
    verdicts = running.used.judge.judge(traces, by_id)
    outcomes = [outcome(t, v, by_id[t.task].family) for t, v in zip(traces, verdicts, strict=True)]
    ledger.write_traces(scope, traces, verdicts, outcomes)
    ledger.append(close_census(scope, families([issued], by_id), outcomes), observed={"seconds": time.monotonic() - began})


def _finish(running: Running, seconds: float, progress: Progress) -> EvaluationResult:
    ledger, protocol = running.ledger, running.bundle.protocol
    tally = Tally(protocol, running.bundle.tasks)
    for trace, verdict, _ in ledger.read_traces():
        tally.add(trace, verdict)
    made = tally.result(Origin(policy=running.subject.name, weights=running.answerer.weights))
    if made.spend.attempts != protocol.task_count * protocol.trials:
        raise LedgerError("the evaluation is not whole",
                          got=f"{made.spend.attempts} of {protocol.task_count * protocol.trials} attempts",
                          why="a result over a part of the tasks is another result", fix="go on with the same command")
    taken = [event.observed or {} for event in ledger.events("Census")]
    whole = math.fsum(float(one.get("seconds", 0.0)) for one in taken) or seconds
    result = replace(made, observed={"seconds": whole})
    ledger.append_many([result, *running.answerer.ended(ledger, protocol),
                        RunEnd(status="completed", detail="", observed={"wall_s": whole})])
    taken = ["the answers are another evaluation's, judged again: nothing was sampled"] if "answers" in ledger.manifest else []
    for note in (*(taken or running.answerer.notes()), in_words(ledger.manifest)):
        progress.note(note)
    return result
