"""The result of an evaluation outside a run, again from its trajectories, its protocol and its tasks."""

from __future__ import annotations

from collections.abc import Iterator

from rollbook.audit.detector import Row
from rollbook.audit.index import RunIndex
from rollbook.evaluation.heldout import tasks_hash
from rollbook.evaluation.results import Origin, Tally
from rollbook.records import EvaluationProtocol, EvaluationResult, RecordError, RollbookError, Scored, Task

CLOSE = 1e-9
PARTS = ("estimate", "low", "high", "count", "level")


class Outside:
    """Takes in the attempts under one protocol and says how a result differs from what they amount to."""

    def __init__(self, protocol: EvaluationProtocol):
        self.protocol = protocol
        self.tally: Tally | None = None
        self.judges: set[str] = set()
        self.weights: set[str | None] = set()
        self.strange = 0

    def row(self, run: RunIndex, row: Row) -> None:
        """One attempt; one at a task that the protocol does not have is counted."""
        if self.tally is None:
            self.tally = Tally(self.protocol, self._tasks(run))
        if row.trace.task not in self.tally.attempts:
            self.strange += 1
            return
        self.tally.add(row.trace, row.verdict)
        if isinstance(row.verdict, Scored):
            self.judges.add(row.verdict.vector.composition_digest)
        envelope = run.envelopes.get(row.trace.envelope or "")
        self.weights.add(envelope.policy if envelope is not None else "unknown")

    def problems(self, run: RunIndex, result: EvaluationResult) -> Iterator[str]:
        """What of the result its record does not bear out."""
        protocol, tasks = self.protocol, self._tasks(run)
        if result.protocol != protocol.id:
            yield "it names a protocol that is not the one on record"
        if tasks_hash(tasks) != protocol.tasks or len(tasks) != protocol.task_count:
            yield f"the {len(tasks)} tasks on record are not the {protocol.task_count} of its protocol"
        if self.tally is None:
            yield "it rests on no trajectories"
            return
        if self.strange:
            yield f"{self.strange} attempts are at tasks that its protocol does not have"
        tried = {len(held) for held in self.tally.attempts.values()}
        if tried != {protocol.trials}:
            yield f"tasks were tried {', '.join(map(str, sorted(tried)))} times, the protocol has {protocol.trials} trials"
        if not self.judges <= {protocol.verifier}:
            yield f"verdicts are by {', '.join(sorted(one[:12] for one in self.judges))}, the protocol's judge is " \
                  f"{protocol.verifier[:12]}"
        if self.weights != {result.weights}:
            yield f"weights {', '.join(sorted(str(one)[:12] for one in self.weights))} answered, it is about " \
                  f"{str(result.weights)[:12]}"
        try:
            yield from differing(self.tally.result(Origin(policy=result.policy, weights=result.weights)), result)
        except (RecordError, RollbookError) as error:
            yield f"its trajectories amount to no result: {error.what}"

    def _tasks(self, run: RunIndex) -> tuple[Task, ...]:
        return tuple(run.tasks[name] for name in run.heldout)


def differing(due: EvaluationResult, stated: EvaluationResult) -> Iterator[str]:
    """Where a stated result is not the due one."""
    for part in PARTS:
        if _apart(float(getattr(due.value, part)), float(getattr(stated.value, part))):
            yield f"{part} is {getattr(stated.value, part)}, its trajectories give {getattr(due.value, part)}"
    for name in ("unscored_tasks", "unscored_attempts", "spend"):
        if getattr(due, name) != getattr(stated, name):
            yield f"{name} is {getattr(stated, name)}, its trajectories give {getattr(due, name)}"
    for name in ("outcomes", "by_family"):
        mine, theirs = getattr(due, name), getattr(stated, name)
        wrong = [key for key in {*mine, *theirs} if key not in mine or key not in theirs or _apart(mine[key], theirs[key])]
        if wrong:
            yield f"{len(wrong)} of its {name.replace('_', ' ')} are not what its trajectories give, first {min(wrong)[:30]}"


def _apart(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is not other
    return abs(one - other) > CLOSE
