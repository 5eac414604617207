"""One policy on the held-out side, and the paired comparison of two such reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rollbook.evaluation.statistics import BOOTSTRAP_SEED, mcnemar, paired_bootstrap, wilson
from rollbook.records import (
    Comparison,
    Dispatch,
    EvalReport,
    Judge,
    PolicyVersion,
    ProtocolBundle,
    RecordError,
    SamplingEnvelope,
    Scored,
    Task,
    TaskId,
    Trace,
    Verdict,
    content_id,
    digest,
)
from rollbook.records.codec import canonical
from rollbook.rollouts.solve import Rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A report and the trajectories it rests on."""

    report: EvalReport
    traces: tuple[Trace, ...]
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """A bundle and the parts it hashes. Attempts are named after the protocol alone: two policies face the same uniforms."""

    bundle: ProtocolBundle
    tasks: tuple[Task, ...]
    rollouts: Rollouts
    judge: Judge
    in_family: bool


def tasks_hash(tasks: Sequence[Task]) -> str:
    """Hash of an ordered task set."""
    return digest(canonical([task.id for task in tasks]))


def evaluate(protocol: Protocol, policy: PolicyVersion, *, stage: str) -> Evaluated:
    """The report of one policy under the protocol."""
    bundle = protocol.bundle
    envelope = protocol.rollouts.envelope(policy.weights)
    traces = protocol.rollouts.solve(protocol.tasks, bundle.trials, scope=_scope(bundle), envelope=envelope)
    verdicts = protocol.judge.judge(traces, {task.id: task for task in protocol.tasks})
    report = _report(protocol, policy, stage, (traces, verdicts))
    return Evaluated(report=report, traces=tuple(traces), verdicts=tuple(verdicts))


def dispatch(protocol: Protocol, envelope: SamplingEnvelope) -> Dispatch:
    """The attempts that `evaluate` will issue, to be recorded before it does."""
    return protocol.rollouts.dispatch(protocol.tasks, protocol.bundle.trials, scope=_scope(protocol.bundle), envelope=envelope)


def _scope(bundle: ProtocolBundle) -> str:
    return f"eval/{bundle.name}/{bundle.seed}"


def _report(protocol: Protocol, policy: PolicyVersion, stage: str, made: tuple[Sequence[Trace], Sequence[Verdict]]) -> EvalReport:
    traces, verdicts = made
    trials: dict[TaskId, list[float | None]] = {task.id: [] for task in protocol.tasks}
    gates: list[bool] = []
    for trace, verdict in zip(traces, verdicts, strict=True):
        scored = isinstance(verdict, Scored)
        trials[trace.task].append(verdict.vector.accuracy if isinstance(verdict, Scored) else None)
        if scored and isinstance(verdict, Scored):
            gates.append((verdict.vector.value("format") or 0.0) > 0.0)
    outcomes: dict[str, float | None] = {task: _mean([v for v in values if v is not None]) for task, values in trials.items()}
    known = {task: value for task, value in outcomes.items() if value is not None}
    families: dict[str, str] = {task.id: task.family for task in protocol.tasks}
    return EvalReport(
        protocol=content_id(protocol.bundle), stage=stage, policy=policy.id, weights=policy.weights,
        accuracy=wilson(sum(known.values()), len(known)), format_rate=_mean([float(g) for g in gates]),
        unscored=sum(1 for values in trials.values() for v in values if v is None), in_family=protocol.in_family,
        outcomes=outcomes, by_family=_by_family(known, families),
        mean_tokens=sum(trace.spent for trace in traces) / len(traces))


def compare(before: EvalReport, after: EvalReport, *, changed: str) -> Comparison:
    """The paired gain of `after` over `before`; refuses reports of different protocols."""
    if before.protocol != after.protocol:
        raise RecordError("two reports of different protocols cannot be compared", got=f"{before.protocol} and {after.protocol}",
                          why="the difference could come from the protocol", fix="evaluate both policies under one protocol")
    pairs = [(b, after.outcomes[task]) for task, b in before.outcomes.items()]
    both = [(b, a) for b, a in pairs if b is not None and a is not None]
    gain = paired_bootstrap([[a - b for b, a in both]], seed=BOOTSTRAP_SEED)
    binary = all(value in (0.0, 1.0) for pair in both for value in pair)
    p_value = mcnemar([b for b, _ in both], [a for _, a in both]) if binary else None
    claim: Literal["gain", "loss", "none"] = "gain" if gain.low > 0 else "loss" if gain.high < 0 else "none"
    return Comparison(before=content_id(before), after=content_id(after), gain=gain, changed=changed, claim=claim,
                      p_value=p_value)


def _by_family(known: Mapping[str, float], families: Mapping[str, str]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for task, value in known.items():
        values.setdefault(families[task], []).append(value)
    return {family: sum(held) / len(held) for family, held in sorted(values.items())}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
