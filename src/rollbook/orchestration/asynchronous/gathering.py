"""The learner's side of an asynchronous stage: which judged groups make the next batch, and what becomes of the others.

The same arrow as `step.gather`, from a queue instead of waves; everything after it is the synchronous step.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from rollbook.experience.admission import Admission, AdmissionRule, AdmittedGroup, Group, admit, group, set_aside
from rollbook.orchestration.asynchronous.flow import Flow, Judged
from rollbook.orchestration.asynchronous.freshness import age
from rollbook.orchestration.asynchronous.issuing import Issuer
from rollbook.orchestration.step import Gathered, PolicyRun
from rollbook.records import Outcome, PolicyVersion, RecipeError, Task, TaskId

LEARNER = "learner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a batch is made of: `groups` informative ones, or fewer once `decisions` groups came out since the last batch."""

    groups: int
    decisions: int
    max_policy_age: int
    rule: AdmissionRule


@dataclass(slots=True)
class _Batch:
    """Groups that were decided for this batch, with their outcomes."""

    decided: list[Judged] = field(default_factory=list)
    admitted: list[AdmittedGroup] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def take(self, one: Judged, members: Sequence[AdmittedGroup], outcomes: Sequence[Outcome]) -> None:
        self.decided.append(one)
        self.admitted += members
        self.outcomes += outcomes


class Gathering:
    """Takes batches out of a flow at one version after the other."""

    def __init__(self, flow: Flow, wanted: Wanted, tasks: Mapping[TaskId, Task], issuer: Issuer):
        self.flow, self.wanted, self.tasks, self.issuer = flow, wanted, tasks, issuer
        self._since = time.monotonic()
        self._known: dict[str, tuple[Group, Admission]] = {}       # what the rule says of a group that waits: it does not change

    def gather(self, run: PolicyRun, policy: PolicyVersion, scope: str) -> Gathered:
        """The step's arrow from tasks to admitted groups. The envelope of this policy is what new groups are issued under."""
        self.issuer.use(run.rollouts.envelope(policy.weights))
        return self.batch(policy.index)

    def still(self) -> AbstractContextManager[None]:
        return self.flow.still()

    def batch(self, version: int) -> Gathered:
        """The groups to train at `version`, oldest first, and all that were decided on the way.

        consumes: judged groups · produces: a batch · waits for: enough informative groups, and, where late attempts are waited
        for, every group that could not be trained one version later · unblocked by: generators and verifiers
        """
        flow, wanted = self.flow, self.wanted
        flow.published(version)
        flow.board.moved(LEARNER)           # a step, however long it took while all others waited for it, is no stall
        batch = _Batch()
        if flow.settings.late != "wait":
            flow.withdraw(flow.unjudged_before(version - wanted.max_policy_age))
        while True:
            flow.board.check()
            useful = self._sort_out(batch, version)
            late = flow.unjudged_before(version - wanted.max_policy_age + 1) if flow.settings.late == "wait" else []
            enough = len(useful) >= wanted.groups or len(batch.decided) + len(useful) >= wanted.decisions
            if (enough and not late) or self._nothing_more(batch, useful):
                break
            flow.board.waits(LEARNER, f"{len(late)} groups that would be too old one version later, first {late[0].scope}"
                             if enough else f"{wanted.groups - len(useful)} more informative groups (a verifier hands them over)")
            flow.wait()
        self._fill(batch, useful, version)
        flow.board.moved(LEARNER)
        return self._gathered(batch)

    def _nothing_more(self, batch: _Batch, useful: Sequence[object]) -> bool:
        """Whether the batch has to be taken as it is: a throttle that counts the rejected gives no more before a publication."""
        if not self.flow.exhausted or len(self.flow.ready()) > len(useful):
            return False
        if useful:
            return True
        raise RecipeError(f"the throttle {type(self.flow.settings.throttle).__name__} is shut and no informative group is left",
                          got=f"{len(batch.decided)} groups without a signal since the last batch",
                          why="it counts rejected attempts, so only a publication opens it, and there is nothing to train on",
                          fix="asynchrony.throttle AReaLCode gives the place of a rejected attempt back; or choose other tasks")

    def rest(self) -> Gathered:
        """Everything that is left when the stage is over: finished attempts as surplus, cancelled ones as such."""
        self.flow.board.moved(LEARNER)
        batch = _Batch()
        while self.flow.open_groups:
            self.flow.board.check()
            for one in self.flow.ready():
                self._aside(batch, one, ("surplus", "the stage ended"))
            self.flow.board.waits(LEARNER, "the last groups to be cancelled and judged")
            self.flow.wait()
        return self._gathered(batch)

    def _sort_out(self, batch: _Batch, version: int) -> list[tuple[Judged, Group, Admission]]:
        """Decides what is too old or carries no signal; what is left could be trained, oldest first."""
        useful = []
        for one in self.flow.ready():
            held, found = self._admission(one)
            years = age(one.traces, version)
            cut = any(trace.stop_reason == "cancelled" for trace in one.traces)
            if cut or years > self.wanted.max_policy_age:
                self._aside(batch, one, ("stale", f"age {years} of at most {self.wanted.max_policy_age}"))
                if self.flow.settings.late == "redispatch":
                    self.flow.again(one.order.task)
                continue
            if found.groups:
                useful.append((one, held, found))
            else:
                self._decide(batch, one, (), found.outcomes)
        return useful

    def _admission(self, one: Judged) -> tuple[Group, Admission]:
        if one.order.scope not in self._known:
            (held,) = group(one.traces, one.verdicts, self.tasks)
            self._known[one.order.scope] = held, admit([held], self.wanted.rule)
        return self._known[one.order.scope]

    def _decide(self, batch: _Batch, one: Judged, members: Sequence[AdmittedGroup], outcomes: Sequence[Outcome]) -> None:
        self.flow.decided(one, accepted=sum(len(part.members) for part in members))
        self._known.pop(one.order.scope, None)
        batch.take(one, members, outcomes)

    def _fill(self, batch: _Batch, useful: Sequence[tuple[Judged, Group, Admission]], version: int) -> None:
        """Takes the oldest `groups`, and every further one that could not be trained one version later."""
        for place, (one, _, found) in enumerate(useful):
            if place < self.wanted.groups or age(one.traces, version + 1) > self.wanted.max_policy_age:
                self._decide(batch, one, found.groups, found.outcomes)

    def _aside(self, batch: _Batch, one: Judged, code: tuple[str, str]) -> None:
        self._decide(batch, one, (), set_aside(self._admission(one)[0], *code))

    def _gathered(self, batch: _Batch) -> Gathered:
        now = time.monotonic()
        spent, self._since = now - self._since, now
        return Gathered(traces=tuple(trace for one in batch.decided for trace in one.traces),
                        verdicts=tuple(verdict for one in batch.decided for verdict in one.verdicts),
                        admission=Admission(groups=tuple(batch.admitted), outcomes=tuple(batch.outcomes)),
                        issued=tuple(one.order.dispatch for one in batch.decided), rollout_s=spent)
