"""Attempts of one place in a host's loop, from the moment they are issued until the table and the census that close them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from rollbook.adapters.samples import RewardParts, Sampled
from rollbook.ledger import close_census
from rollbook.records import (
    AttemptId,
    Credit,
    Dispatch,
    HostTask,
    Outcome,
    RecordError,
    RollbookError,
    SamplingEnvelope,
    Scored,
    TaskId,
    Trace,
    Verdict,
    group_name,
)
from rollbook.records.experience import OutcomeCode
from rollbook.records.recipe import Plain

if TYPE_CHECKING:
    from rollbook.adapters.recorder import Recorder

Given = float | Mapping[str, float | None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Issued:
    task: TaskId
    family: str
    group: str
    envelope: str | None


class Rollouts:
    """Use as a context manager: its end commits the trajectories with verdicts and outcomes, their credit and the census.

    Every attempt that was sampled and not dropped counts as accepted: the host trains it. After an exception all of them end as
    failed. When the process is killed they stay issued, and the next opening of the run declares them void.
    """

    def __init__(self, recorder: Recorder, scope: str, reward: RewardParts | None):
        self.recorder, self.scope, self.reward = recorder, scope, reward
        self.committed = False
        self._issued: dict[AttemptId, _Issued] = {}
        self._waves = 0
        self._traces: dict[AttemptId, Trace] = {}
        self._rewards: dict[AttemptId, Given] = {}
        self._dropped: dict[AttemptId, Outcome] = {}
        self._credit: tuple[Mapping[str, Plain], Mapping[AttemptId, float], str, str] | None = None

    def issue(self, tasks: Sequence[HostTask], samples: int, envelope: SamplingEnvelope | None) -> list[AttemptId]:
        """Names the attempts, `samples` at each task in order, and logs them; to be called before the first token.

        `envelope` is how the host samples, None where it does not show that.
        """
        if not tasks or samples < 1:
            raise RecordError("nothing is issued", got=f"{len(tasks)} tasks, {samples} samples")
        sampling = None if envelope is None else self.recorder.once(envelope)
        ids = tuple(self.recorder.once(task) for task in tasks)
        dispatch = Dispatch(scope=f"{self.scope}/{self._waves}", tasks=ids, samples=samples, envelope=sampling)
        self.recorder.ledger.append(dispatch)
        self._waves += 1
        names = []
        for at, (attempt, task) in enumerate(dispatch.attempts()):
            place = at // samples
            self._issued[attempt] = _Issued(task=TaskId(task), family=tasks[place].family, envelope=sampling,
                                            group=group_name(dispatch.scope, place, task))
            names.append(attempt)
        return names

    def sampled(self, completions: Iterable[Sampled]) -> None:
        """Takes completions as they were sampled."""
        for one in completions:
            issued = self._known(one.attempt)
            if one.attempt in self._traces:
                raise RecordError(f"attempt {one.attempt} was sampled twice", why="an attempt is one trajectory")
            self._traces[one.attempt] = one.trace(issued.task, issued.group, issued.envelope)

    def rewarded(self, rewards: Mapping[AttemptId, Given]) -> None:
        """Takes rewards: a number per part, or one number where the reward has one part; None where the host gave none."""
        if self.reward is None:
            raise RecordError("this loop's reward was not described", fix="give `reward=RewardParts(...)` to rollouts()")
        for attempt, given in rewards.items():
            self._known(attempt)
            self._rewards[attempt] = given

    def dropped(self, attempts: Iterable[AttemptId], code: OutcomeCode, detail: str = "") -> None:
        """These attempts do not reach the learner, for this reason."""
        if code == "accepted":
            raise RecordError("a dropped attempt cannot be accepted", fix="say why it was dropped")
        for attempt in attempts:
            self._dropped[attempt] = Outcome(attempt=attempt, family=self._known(attempt).family, code=code, detail=detail)

    def credited(self, rule: Mapping[str, Plain], advantages: Mapping[AttemptId, float], *, baseline: str,
                 normalized_over: str) -> None:
        """The advantage of each trained attempt by a rule that is named in `objectives.credit`, so that it can be recomputed."""
        for attempt in advantages:
            self._known(attempt)
        self._credit = (rule, advantages, baseline, normalized_over)

    def commit(self) -> None:
        """Commits everything; refuses attempts of which the host did not say what became."""
        open_ = [attempt for attempt in self._issued if attempt not in self._traces and attempt not in self._dropped]
        if open_:
            raise RecordError(f"{len(open_)} attempts of {self.scope} were issued and have no end", got=", ".join(open_[:3]),
                              why="every attempt ends with exactly one outcome", fix="call sampled() or dropped() for each")
        ledger = self.recorder.ledger
        outcomes = {attempt: self._dropped.get(attempt) or Outcome(attempt=attempt, family=issued.family, code="accepted")
                    for attempt, issued in self._issued.items()}
        ids = {attempt: trace.id for attempt, trace in self._traces.items()}
        verdicts = {attempt: self.reward.verdict(ids[attempt], given) for attempt, given in self._rewards.items()
                    if self.reward is not None and given is not None and attempt in ids}
        if verdicts and self.reward is not None:
            self.recorder.once(self.reward.composition)
        if self._traces:
            ledger.write_traces(self.scope, list(self._traces.values()), list(verdicts.values()),
                                [outcomes[attempt] for attempt in self._traces])
        loose = [outcome for attempt, outcome in outcomes.items() if attempt not in self._traces]
        families = {attempt: issued.family for attempt, issued in self._issued.items()}
        census = close_census(self.scope, families, list(outcomes.values()))
        ledger.append_many([*loose, *self._credits(ids, verdicts), census])
        self.recorder.keep(self._traces, ids, {a for a, o in outcomes.items() if o.code == "accepted"})
        self.committed = True

    def _credits(self, ids: Mapping[AttemptId, Any], verdicts: Mapping[AttemptId, Verdict]) -> list[Credit]:
        """The credit record, where every credited attempt has a reward that the rule can be applied to."""
        if self._credit is None:
            return []
        rule, advantages, baseline, normalized_over = self._credit
        scored = {attempt: verdict.vector.total for attempt in advantages if isinstance(verdict := verdicts.get(attempt), Scored)}
        if set(scored) != set(advantages):
            return []
        return [Credit(scope=f"{self.scope}/0", rule=rule, traces=tuple(str(ids[attempt]) for attempt in advantages),
                       group_of=tuple(self._issued[attempt].group for attempt in advantages), reward=tuple(scored.values()),
                       advantage=tuple(map(float, advantages.values())), gamma=None, lam=None, baseline=baseline,
                       normalized_over=normalized_over)]

    def _known(self, attempt: AttemptId) -> _Issued:
        if attempt not in self._issued:
            raise RecordError(f"attempt {attempt} was not issued in {self.scope}", fix="use the names that issue() returned")
        return self._issued[attempt]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.committed:
            return
        if kind is None:
            self.commit()
        elif self._issued:
            self._rewards.clear()
            self._credit = None
            self.dropped(self._issued, "failed", f"the host raised {kind.__name__}")
            with contextlib.suppress(RollbookError, OSError):      # the host's own error is the one to be seen
                self.commit()
