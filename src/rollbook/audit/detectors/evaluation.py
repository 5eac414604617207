"""Stage 13: is a gain the policy's, or that of a router, a tool, a judge or a larger budget?

Reports are recomputed from the verdicts of their trajectories, comparisons from the reports. A claimed gain names one changed
thing: protocol, judge and environment are the same on both sides, and the paired interval lies above zero.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from rollbook.audit.along import Along
from rollbook.audit.detector import Detector, Row
from rollbook.audit.index import RunIndex
from rollbook.audit.outside import Outside
from rollbook.audit.starts import Starts
from rollbook.evaluation.attempts import Attempt
from rollbook.evaluation.best_of import picked
from rollbook.evaluation.statistics import BOOTSTRAP_SEED, mcnemar, paired_bootstrap, wilson
from rollbook.ledger import TraceTable
from rollbook.records import (
    AbilityReport,
    BestOf,
    Comparison,
    Dispatch,
    EvalReport,
    EvaluationProtocol,
    EvaluationResult,
    Interval,
    ProtocolBundle,
    RecordError,
    Scored,
    SftReport,
    StageEnd,
    StepReport,
)
from rollbook.records.recipe import Evaluate, PolicyGradient
from rollbook.tasks import ids_hash

CLOSE = 1e-9
LEVEL = 0.95        # the coverage every interval of a report has: a narrower one would claim more
PLANNED = "evaluate what the recipe says, on the whole held-out side, and compare with what it names"
AGAIN = "evaluate the policies again with this version, under one protocol, and compare those reports"


@dataclass(slots=True)
class Seen:
    """What the trajectories of one evaluation say: accuracies by task (None unscored), judges, tokens, policies."""

    accuracies: dict[str, list[float | None]] = field(default_factory=lambda: defaultdict(list))
    gates: list[float] = field(default_factory=list)
    judges: set[str] = field(default_factory=set)
    weights: set[str] = field(default_factory=set)
    tokens: int = 0
    attempts: int = 0
    by_trace: dict[str, tuple[str, float | None]] = field(default_factory=dict)


class EvaluationDetector(Detector):
    """Recomputes every evaluation report and every comparison."""

    stage, name = 13, "evaluation"
    absent = "nothing was evaluated"

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Seen] = {}
        self.asked: dict[str, Dispatch] = {}
        self.families: dict[str, str] = {}
        self.starts = Starts()
        self.reported: dict[str, str] = {}                  # evaluation stage -> its report
        self.compared: dict[str, set[str]] = defaultdict(set)       # report -> the reports it was compared with
        self.rated: dict[str, dict[str, tuple[str, float | None]]] = {}     # of the evaluation last reported
        self.outside: Outside | None = None                 # an evaluation that is no stage of a run
        self.beside: set[str] = set()                       # reports of evaluations that the recipe does not name
        self.steps: dict[str, int] = {}                     # policy stage -> its last step
        self.probes: dict[str, list[int]] = defaultdict(list)       # policy stage -> the steps after which it was probed
        self.along = Along()

    def record(self, run: RunIndex, identity: str, record: object) -> None:
        match record:
            case Dispatch() if record.scope.startswith("eval/"):
                self.asked[record.scope] = record
            case TraceTable() if record.name.startswith("eval/"):
                self.seen[record.name.removeprefix("eval/")] = Seen()
            case EvaluationProtocol():
                self.outside = Outside(record)
            case EvaluationResult():
                self.checked()
                none = ("it is under no protocol on record",)
                for problem in none if self.outside is None else self.outside.problems(run, record):
                    self.fail(identity, f"{record.policy}: {problem}", AGAIN)
            case EvalReport():
                self.checked()
                self._report(run, identity, record)
                self._planned(run, identity, record)
            case BestOf():
                self.checked()
                self._best_of(run, identity, record)
            case Comparison():
                self.checked()
                self.compared[record.after].add(record.before)
                self._comparison(run, identity, record)
            case StepReport() | SftReport():
                self.along.step(record)
                if isinstance(record, StepReport):
                    self.steps[record.stage] = record.step
            case AbilityReport():
                self.checked()
                for problem in self.along.report(run, record):
                    self.fail(identity, problem, AGAIN)
            case StageEnd():
                for problem in self.along.ended(run, record):
                    self.fail(identity, problem, PLANNED)
                self._over(run, identity, record)
                self._probed(run, identity, record)
                self.starts.take(record)
            case _:
                pass

    def row(self, run: RunIndex, row: Row) -> None:
        if self.outside is not None and run.recipe is None:
            self.outside.row(run, row)
            return
        seen = self.seen.get((run.table or "").removeprefix("eval/")) if (run.table or "").startswith("eval/") else None
        if seen is None:
            return
        verdict = row.verdict
        self.families[row.trace.task] = row.outcome.family
        accuracy = verdict.vector.accuracy if isinstance(verdict, Scored) else None
        seen.accuracies[row.trace.task].append(accuracy)
        seen.by_trace[row.id] = (row.trace.task, accuracy)
        if isinstance(verdict, Scored):
            seen.judges.add(verdict.vector.composition_digest)
            seen.gates.append(float((verdict.vector.value("format") or 0.0) > 0.0))
        envelope = run.envelopes.get(row.trace.envelope)
        seen.weights.add(envelope.policy if envelope is not None else "unknown")
        seen.tokens += row.trace.spent
        seen.attempts += 1

    def _report(self, run: RunIndex, identity: str, report: EvalReport) -> None:
        protocol, seen = run.protocols.get(report.protocol), self.seen.pop(report.stage, None)
        if protocol is None:
            return self.fail(identity, f"the report of {report.stage} names a protocol that is not on record", AGAIN)
        if seen is None:
            return self.fail(identity, f"the report of {report.stage} rests on no trajectories", AGAIN)
        self.rated = {report.stage: seen.by_trace}
        self._protocol(run, identity, (report, protocol, seen))
        self._numbers(identity, report, seen)
        return None

    def _protocol(self, run: RunIndex, identity: str, about: tuple[EvalReport, ProtocolBundle, Seen]) -> None:
        """What was run is what the bundle says, with the weights that the report names."""
        report, protocol, seen = about
        asked = self.asked.get(f"eval/{protocol.name}/{protocol.seed}")
        tasks = asked.tasks if asked is not None else ()
        version = run.versions.get(run.version_ids.get(report.policy, -1))
        wrong = [
            (version is None or version.weights != report.weights, "the report's weights are not those of the policy it names"),
            (seen.weights != {report.weights}, f"trajectories were sampled from weights {_short(seen.weights)}, the report names "
                                               f"{report.weights[:12]}"),
            (ids_hash(tasks) != protocol.tasks or len(tasks) != protocol.task_count,
             f"{len(tasks)} tasks were issued that are not the {protocol.task_count} of the protocol"),
            (set(report.outcomes) != set(tasks), f"{len(report.outcomes)} outcomes for {len(tasks)} tasks"),
            (any(len(values) != protocol.trials for values in seen.accuracies.values()),
             f"a task was tried another number of times than the protocol's {protocol.trials}"),
            (not seen.judges <= {protocol.verifier}, f"verdicts by {_short(seen.judges)}, the protocol's judge is "
                                                     f"{protocol.verifier[:12]}"),
            (protocol.environment not in run.images, "the protocol's environment is not on record"),
            (run.split is not None and report.in_family != run.split.in_family,
             f"the report says in_family={report.in_family}, the split says otherwise"),
        ]
        for is_wrong, evidence in wrong:
            if is_wrong:
                self.fail(identity, f"{report.stage}: {evidence}", AGAIN)

    def finish(self, run: RunIndex) -> None:
        for name, stage in run.recipe.settings.stages.items() if run.recipe is not None and run.complete else ():
            if isinstance(stage, Evaluate) and name not in self.reported:
                self.fail(f"stage {name}", "the run is complete, and this evaluation of its recipe was never reported", PLANNED)
        if self.along.unseen:
            self.note(f"{len(self.along.unseen)} suites whose answers are not here: {', '.join(self.along.unseen)[:80]}")
        if self.beside:
            self.note(f"{len(self.beside)} evaluations that the recipe does not name: {', '.join(sorted(self.beside))[:80]}")

    def _planned(self, run: RunIndex, identity: str, report: EvalReport) -> None:
        """Tasks, trials, seed, sampling and policy are those of the recipe: nobody looks for an evaluation that flatters."""
        if run.recipe is None or (bundle := run.protocols.get(report.protocol)) is None:
            return
        stages = run.recipe.settings.stages
        stage, (owner, _, rest) = stages.get(report.stage), report.stage.partition("/probe/")
        trainer, heldout = stages.get(owner), run.heldout
        if isinstance(stage, Evaluate):
            held = self.starts.of(run, report.stage)
            wanted = {"trials": stage.trials, "seed": stage.seed}
            if report.stage in self.reported:
                self.fail(identity, f"{report.stage} is reported a second time", "evaluate once, and report that")
            if held is not None and run.version_ids.get(report.policy) != held.index:
                self.fail(identity, f"{report.stage} evaluates version {run.version_ids.get(report.policy)}, the stage "
                          f"{stage.policy} ended with version {held.index}", PLANNED)
            self.reported[report.stage] = identity
        elif isinstance(trainer, PolicyGradient) and rest:
            self._probe(run, identity, report, owner)
            stage, heldout = trainer, heldout[:trainer.probe]
            wanted = {"trials": 1, "seed": run.recipe.settings.run.seed}
        else:
            self.beside.add(report.stage)
            return
        wanted |= {"temperature": stage.sampling.temperature, "top_p": stage.sampling.top_p, "tasks": ids_hash(heldout),
                   "max_tokens": run.recipe.settings.tasks.max_tokens}
        for name, value in wanted.items():
            if getattr(bundle, name) != value:
                shown = (f"{bundle.task_count} tasks that are not the {len(heldout)} of the recipe's held-out side"
                         if name == "tasks" else f"{name} {getattr(bundle, name)}, the recipe says {value}")
                self.fail(identity, f"{report.stage} was evaluated with {shown}", PLANNED)

    def _probe(self, run: RunIndex, identity: str, report: EvalReport, stage: str) -> None:
        """A probe is of the policy that its step published."""
        step = self.steps.get(stage, 0)
        if report.stage != f"{stage}/probe/{step:06d}":
            self.fail(identity, f"{report.stage} is reported after step {step} of {stage}", PLANNED)
        elif run.version_ids.get(report.policy) != max(run.versions, default=None):
            self.fail(identity, f"{report.stage} evaluates version {run.version_ids.get(report.policy)}, its step published "
                      f"version {max(run.versions, default=None)}", PLANNED)
        self.probes[stage].append(step)

    def _probed(self, run: RunIndex, identity: str, end: StageEnd) -> None:
        """The curve of a stage has every point that the recipe asks for, once, whatever came out."""
        stage = run.recipe.settings.stages.get(end.stage) if run.recipe is not None else None
        if not isinstance(stage, PolicyGradient):
            return
        due = list(range(stage.probe_every, stage.steps, stage.probe_every)) if stage.probe_every else []
        if self.probes[end.stage] != due:
            lost = sorted(set(due) - set(self.probes[end.stage]))
            self.fail(identity, f"{end.stage} was probed after {len(self.probes[end.stage])} steps, the recipe says {len(due)}"
                      + (f"; after step {lost[0]} no probe is on record" if lost else ""), PLANNED)

    def _over(self, run: RunIndex, identity: str, end: StageEnd) -> None:
        """An evaluation stage ends with its report, and with the comparison that the recipe asks for, whatever came out."""
        stage = run.recipe.settings.stages.get(end.stage) if run.recipe is not None else None
        if not isinstance(stage, Evaluate):
            return
        report = self.reported.get(end.stage)
        if report is None:
            self.fail(identity, f"the evaluation {end.stage} ended without a report", PLANNED)
        elif stage.compare_to is not None and self.compared[report] != {self.reported.get(stage.compare_to, "")}:
            names = sorted(run.reports[one].stage for one in self.compared[report] if one in run.reports)
            self.fail(identity, f"{end.stage} was compared with {', '.join(names) or 'nothing'}, the recipe compares it with "
                      f"{stage.compare_to}", PLANNED)

    def _numbers(self, identity: str, report: EvalReport, seen: Seen) -> None:
        """Outcomes, accuracy, interval, families, format rate and length again from the verdicts."""
        outcomes = {task: _mean([v for v in values if v is not None]) for task, values in seen.accuracies.items()}
        known = {task: value for task, value in outcomes.items() if value is not None}
        by_family: dict[str, list[float]] = defaultdict(list)
        for task, value in known.items():
            by_family[self.families[task]].append(value)
        unscored = sum(value is None for values in seen.accuracies.values() for value in values)
        differing = [task for task in outcomes if _apart(outcomes[task], report.outcomes.get(task, -1.0))]
        found = {"unscored": (float(unscored), float(report.unscored)),
                 "mean_tokens": (seen.tokens / max(seen.attempts, 1), report.mean_tokens),
                 "format_rate": (_mean(seen.gates), report.format_rate),
                 **{f"by_family.{name}": (_mean(values), report.by_family.get(name)) for name, values in by_family.items()}}
        if known:
            found |= _interval("accuracy", wilson(sum(known.values()), len(known), level=LEVEL), report.accuracy)
        for name, (recomputed, recorded) in found.items():
            if _apart(recomputed, recorded):
                self.fail(identity, f"{report.stage}: {name} is {recorded}, its trajectories give {recomputed}", AGAIN)
        if differing:
            self.fail(identity, f"{report.stage}: {len(differing)} outcomes are not those that their trajectories give, first "
                                f"{differing[0]}", AGAIN)

    def _best_of(self, run: RunIndex, identity: str, best: BestOf) -> None:
        """What the reward model's picks are worth, again from its ratings and the verdicts."""
        stage = run.recipe.settings.stages.get(best.stage) if run.recipe is not None else None
        known = self.rated.get(best.stage)
        if known is None or not isinstance(stage, Evaluate) or stage.scorer is None:
            return self.fail(identity, f"a pick is reported for {best.stage}, which is no evaluation with a scorer", PLANNED)
        tasks: dict[str, list[Attempt]] = defaultdict(list)
        for trace, (task, accuracy) in known.items():
            if trace in best.ratings and accuracy is not None:
                tasks[task].append(Attempt(accuracy=accuracy, selector=best.ratings[trace]))
        if strange := best.ratings.keys() - known.keys():
            self.fail(identity, f"{best.stage}: {len(strange)} ratings are of answers to nothing that was asked",
                      AGAIN)
        try:
            due = picked(tasks, stage.trials)
        except RecordError as error:
            return self.fail(identity, f"{best.stage}: {error.what}", AGAIN)
        for name, mine, stated in (("picked", due.picked, best.picked), ("possible", due.possible, best.possible)):
            if mine.keys() != stated.keys() or any(_apart(mine[n], stated[n]) for n in mine):
                self.fail(identity, f"{best.stage}: {name} is {dict(stated)}, ratings and verdicts give {dict(mine)}", AGAIN)
        for name, (recomputed, recorded) in _interval("gain", due.gain, best.gain).items():
            if _apart(recomputed, recorded):
                self.fail(identity, f"{best.stage}: {name} of the pick is {recorded}, recomputed {recomputed}", AGAIN)
        return None

    def _comparison(self, run: RunIndex, identity: str, comparison: Comparison) -> None:
        before, after = run.reports.get(comparison.before), run.reports.get(comparison.after)
        if before is None or after is None:
            return self.fail(identity, "a comparison names a report that is not on record", AGAIN)
        named = f"{after.stage} against {before.stage}"
        differing = self._differing(run, before, after)
        if differing != {comparison.changed} and not (differing == set() and comparison.claim == "none"):
            self.fail(identity, f"{named} says that {comparison.changed} changed; what differs is "
                                f"{', '.join(sorted(differing)) or 'nothing'}", AGAIN)
        shared = [(b, after.outcomes.get(task)) for task, b in before.outcomes.items()]
        pairs = [a - b for b, a in shared if a is not None and b is not None]
        if not pairs:
            return self.fail(identity, f"{named} rests on no task that both scored", AGAIN)
        gain = paired_bootstrap([pairs], seed=BOOTSTRAP_SEED, level=LEVEL)
        for name, (recomputed, recorded) in _interval("gain", gain, comparison.gain).items():
            if _apart(recomputed, recorded):
                self.fail(identity, f"{named}: {name} is {recorded}, the paired outcomes give {recomputed}", AGAIN)
        p_value = (mcnemar([b for b, a in shared if a is not None and b is not None], [a for b, a in shared if a is not None
                                                                                       and b is not None])
                   if all(value in (0.0, 1.0, None) for pair in shared for value in pair) else None)
        if _apart(p_value, comparison.p_value):
            self.fail(identity, f"{named}: the p-value is {comparison.p_value}, the paired outcomes give {p_value}", AGAIN)
        claim = "gain" if gain.low > 0 else "loss" if gain.high < 0 else "none"
        if comparison.claim != claim:
            self.fail(identity, f"{named} claims {comparison.claim}; the interval {gain.low:+.3f} to {gain.high:+.3f} allows "
                                f"{claim}", "claim a gain only where the paired interval lies above zero")
        family = ", in-family" if after.in_family else ""
        self.note(f"{named}: {100 * gain.estimate:+.1f} points ({100 * gain.low:+.1f} to {100 * gain.high:+.1f}, "
                  f"{gain.count} tasks{family})")
        return None

    def _differing(self, run: RunIndex, before: EvalReport, after: EvalReport) -> set[str]:
        """The names of what is not equal on both sides: the policy, or fields of the protocol bundle."""
        names = {"policy"} if before.weights != after.weights else set()
        if before.protocol != after.protocol:
            one, other = run.protocols.get(before.protocol), run.protocols.get(after.protocol)
            if one is None or other is None:
                return names | {"protocol"}
            names |= {name for name in ProtocolBundle.__slots__ if getattr(one, name) != getattr(other, name)}
        return names


def _interval(name: str, recomputed: Interval, recorded: Interval) -> dict[str, tuple[float | None, float | None]]:
    return {f"{name}.{part}": (float(getattr(recomputed, part)), float(getattr(recorded, part)))
            for part in ("estimate", "low", "high", "count", "level")}


def _apart(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is not other
    return abs(one - other) > CLOSE


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _short(hashes: set[str]) -> str:
    return ", ".join(sorted(name[:12] for name in hashes)) or "none"
