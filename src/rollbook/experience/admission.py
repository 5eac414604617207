"""Which groups reach the learner; every attempt that does not gets a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rollbook.records import FAULT_NOTE, Experience, Outcome, RecordError, Scored, Task, TaskId, Trace, Unscored, Verdict
from rollbook.records.experience import OutcomeCode

SAME = 1e-9      # rewards closer than this are one reward: float noise is not a learning signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All attempts of one task that share a baseline."""

    id: str
    family: str
    traces: tuple[Trace, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def scored(self) -> tuple[Experience, ...]:
        pairs = zip(self.traces, self.verdicts, strict=True)
        return tuple(Experience(trace=trace, verdict=verdict) for trace, verdict in pairs if isinstance(verdict, Scored))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRule:
    """`least` scored attempts make a group usable; `drop_uniform` drops groups whose rewards, or whose accuracies where `by` says
    so, are all equal. A group without any accuracy is judged by its rewards.
    """

    least: int
    drop_uniform: bool
    by: Literal["reward", "accuracy"] = "reward"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedGroup:
    """A group as it is trained on."""

    id: str
    members: tuple[Experience, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The admitted groups, and one outcome for every attempt in the order given."""

    groups: tuple[AdmittedGroup, ...]
    outcomes: tuple[Outcome, ...]


def group(traces: Sequence[Trace], verdicts: Sequence[Verdict], tasks: Mapping[TaskId, Task]) -> tuple[Group, ...]:
    """Traces and their verdicts by group id, in order of first appearance."""
    members: dict[str, list[tuple[Trace, Verdict]]] = {}
    for trace, verdict in zip(traces, verdicts, strict=True):
        if verdict.trace != trace.id:
            raise RecordError("a verdict belongs to another trace", got=f"{verdict.trace} for {trace.id}",
                              why="rewards would be given to the wrong actions")
        members.setdefault(trace.group, []).append((trace, verdict))
    return tuple(Group(id=name, family=tasks[pairs[0][0].task].family, traces=tuple(t for t, _ in pairs),
                       verdicts=tuple(v for _, v in pairs)) for name, pairs in members.items())


def admit(groups: Sequence[Group], rule: AdmissionRule) -> Admission:
    """Applies the rule; the outcomes say for each attempt whether it trains and if not, why."""
    admitted: list[AdmittedGroup] = []
    outcomes: list[Outcome] = []
    for one in groups:
        code, detail = _group_code(one, rule)
        if code == "accepted":
            admitted.append(AdmittedGroup(id=one.id, members=one.scored))
        pairs = zip(one.traces, one.verdicts, strict=True)
        outcomes += [_outcome(one, trace, verdict, (code, detail)) for trace, verdict in pairs]
    return Admission(groups=tuple(admitted), outcomes=tuple(outcomes))


def set_aside(one: Group, code: OutcomeCode, detail: str) -> tuple[Outcome, ...]:
    """The outcomes of a group that is not trained for a reason that its rewards do not show: it is late, or not needed.

    What was cancelled of a group that is not late is called so.
    """
    def of(trace: Trace) -> OutcomeCode:
        return "cancelled" if trace.stop_reason == "cancelled" and code != "stale" else code
    return tuple(Outcome(attempt=trace.attempt, family=one.family, code=of(trace), detail=detail) for trace in one.traces)


def _group_code(one: Group, rule: AdmissionRule) -> tuple[str, str]:
    rewards = [member.verdict.vector.total for member in one.scored]
    if len(rewards) < rule.least:
        return "group_incomplete", f"{len(rewards)} of {rule.least} attempts have a verdict"
    accuracies = [member.verdict.vector.accuracy for member in one.scored] if rule.by == "accuracy" else []
    known = [value for value in accuracies if value is not None]
    if rule.drop_uniform and len(known) == len(rewards) and max(known) - min(known) <= SAME:
        return "uniform", f"all accuracies are {known[0]:g}"
    if rule.drop_uniform and max(rewards) - min(rewards) <= SAME:
        return "uniform", f"all rewards are {rewards[0]:g}"
    return "accepted", ""


def outcome(trace: Trace, verdict: Verdict, family: str) -> Outcome:
    """How an attempt ended that stands for itself: failed where the engine could not finish it, else by its verdict."""
    code, detail = ("accepted", "") if isinstance(verdict, Scored) else _unjudged(trace, verdict)
    return Outcome(attempt=trace.attempt, family=family, code=code, detail=detail)  # type: ignore[arg-type]


def _outcome(one: Group, trace: Trace, verdict: Verdict, of_group: tuple[str, str]) -> Outcome:
    code, detail = of_group if isinstance(verdict, Scored) else _unjudged(trace, verdict)
    return Outcome(attempt=trace.attempt, family=one.family, code=code, detail=detail)  # type: ignore[arg-type]


def _unjudged(trace: Trace, verdict: Unscored) -> tuple[str, str]:
    """Code and reason of an attempt without a reward."""
    if trace.stop_reason != "failed":
        return "unscored", f"{verdict.code}: {verdict.detail}"
    kinds = [note.removeprefix(FAULT_NOTE) for note in trace.observed if note.startswith(FAULT_NOTE)]
    return "failed", ", ".join(kinds) or verdict.detail
