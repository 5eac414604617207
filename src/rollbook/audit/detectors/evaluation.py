"""Stage 13: is a gain the policy's, or that of a router, a tool, a judge or a larger budget?

Reports are recomputed from the verdicts of their trajectories, comparisons from the reports. A claimed gain names one changed
thing: protocol, judge and environment are the same on both sides, and the paired interval lies above zero.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from rollbook.audit.detector import Detector, Row
from rollbook.audit.index import RunIndex
from rollbook.evaluation.heldout import BOOTSTRAP_SEED
from rollbook.evaluation.statistics import paired_bootstrap, wilson
from rollbook.ledger import TraceTable
from rollbook.records import Comparison, Dispatch, EvalReport, Interval, ProtocolBundle, Scored
from rollbook.tasks import ids_hash

CLOSE = 1e-9
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


class EvaluationDetector(Detector):
    """Recomputes every evaluation report and every comparison."""

    stage, name = 13, "evaluation"
    absent = "nothing was evaluated"

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Seen] = {}
        self.asked: dict[str, Dispatch] = {}
        self.families: dict[str, str] = {}

    def record(self, run: RunIndex, identity: str, record: object) -> None:
        match record:
            case Dispatch() if record.scope.startswith("eval/"):
                self.asked[record.scope] = record
            case TraceTable() if record.name.startswith("eval/"):
                self.seen[record.name.removeprefix("eval/")] = Seen()
            case EvalReport():
                self.checked()
                self._report(run, identity, record)
            case Comparison():
                self.checked()
                self._comparison(run, identity, record)
            case _:
                pass

    def row(self, run: RunIndex, row: Row) -> None:
        seen = self.seen.get((run.table or "").removeprefix("eval/")) if (run.table or "").startswith("eval/") else None
        if seen is None:
            return
        verdict = row.verdict
        self.families[row.trace.task] = row.outcome.family
        seen.accuracies[row.trace.task].append(verdict.vector.accuracy if isinstance(verdict, Scored) else None)
        if isinstance(verdict, Scored):
            seen.judges.add(verdict.vector.composition_digest)
            seen.gates.append(float((verdict.vector.value("format") or 0.0) > 0.0))
        envelope = run.envelopes.get(row.trace.envelope)
        seen.weights.add(envelope.policy if envelope is not None else "unknown")
        seen.tokens += row.trace.action_count
        seen.attempts += 1

    def _report(self, run: RunIndex, identity: str, report: EvalReport) -> None:
        protocol, seen = run.protocols.get(report.protocol), self.seen.pop(report.stage, None)
        if protocol is None:
            return self.fail(identity, f"the report of {report.stage} names a protocol that is not on record", AGAIN)
        if seen is None:
            return self.fail(identity, f"the report of {report.stage} rests on no trajectories", AGAIN)
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
            again = wilson(sum(known.values()), len(known), level=report.accuracy.level)
            found |= _interval("accuracy", again, report.accuracy)
        for name, (recomputed, recorded) in found.items():
            if _apart(recomputed, recorded):
                self.fail(identity, f"{report.stage}: {name} is {recorded}, its trajectories give {recomputed}", AGAIN)
        if differing:
            self.fail(identity, f"{report.stage}: {len(differing)} outcomes are not those that their trajectories give, first "
                                f"{differing[0]}", AGAIN)

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
        gain = paired_bootstrap([pairs], seed=BOOTSTRAP_SEED, level=comparison.gain.level)
        for name, (recomputed, recorded) in _interval("gain", gain, comparison.gain).items():
            if _apart(recomputed, recorded):
                self.fail(identity, f"{named}: {name} is {recorded}, the paired outcomes give {recomputed}", AGAIN)
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
            for part in ("estimate", "low", "high", "count")}


def _apart(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is not other
    return abs(one - other) > CLOSE


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _short(hashes: set[str]) -> str:
    return ", ".join(sorted(name[:12] for name in hashes)) or "none"
