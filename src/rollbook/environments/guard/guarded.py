"""Any environment under the guard: findings in its final state, calls blocked, grades taken away, by the measure of each rule."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollbook.environments.guard.events import Deed, Setting
from rollbook.environments.guard.rules import VERSION
from rollbook.environments.guard.watching import Finding, Guard, chosen_rules
from rollbook.environments.wrapping import Inner, WrappedEpisode, wrapped_image
from rollbook.records import (
    Action,
    EnvironmentImage,
    FinalState,
    Grade,
    Observation,
    Reply,
    Services,
    Solutions,
    Task,
    TaskSet,
    Ungraded,
    digest,
)

EXAMPLE = re.compile(r"Example input:\n(.*?)Example output:\n(.*?)(?=\n*Example input:|\n\n|\n[A-Z]|\Z)", re.DOTALL)
HIDDEN_RULES = frozenset({"protected", "secret"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """An environment whose policy is watched. `measures` replaces the measures of rules by id (`flag`, `block`, `zero`, `reject`,
    `off`); `protected` are places out of bounds; `limit_s` is the time that sleeping is measured against.

    A blocked call is answered with a refusal and not made. An episode with a `zero` finding, or whose final text is to be
    blocked, is graded 0; one with a `reject` finding is ungraded. The fact `guard` holds the version, the findings and the
    counts.
    """

    inner: Inner
    protected: tuple[str, ...] = ()
    measures: Mapping[str, str] = field(default_factory=dict)
    limit_s: float | None = None

    def image(self) -> EnvironmentImage:
        code = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
        return wrapped_image(self, self.inner.load(), f"{VERSION}/{digest(code)}")

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        return self.inner.load().tasks(count=count, seed=seed)

    def build(self, *, services: Services, seed: int) -> GuardedEpisode:
        rules = chosen_rules(self.measures)
        return GuardedEpisode(inner=self.inner.load().build(services=services, seed=seed), guard=Guard(Setting(), rules),
                              definition=self)

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade | Ungraded:
        report = state.facts["guard"]
        by = ", ".join(f"{rule} {count}" for rule, count in report["counts"].items())
        if report["verdict"] == "reject":
            return Ungraded(code="undecided", detail=f"guard/{report['version']}: {by}")
        facts = {name: value for name, value in state.facts.items() if name != "guard"}
        found = self.inner.load().verify(task, dataclasses.replace(state, facts=facts), services=services)
        if isinstance(found, Ungraded):
            return found
        reached = bool(HIDDEN_RULES & set(report["counts"]))
        parts = {**found.parts, "guard_findings": float(sum(report["counts"].values()))}
        if report["verdict"] == "zero" or report["answer_blocked"]:
            return Grade(accuracy=0.0, parts=parts, detail=f"guard/{report['version']}: {by}", hidden_test_access=reached)
        return dataclasses.replace(found, parts=parts, hidden_test_access=found.hidden_test_access or reached)

    def solutions(self, task: Task) -> Solutions:
        return self.inner.load().solutions(task)


@dataclass(slots=True)
class GuardedEpisode(WrappedEpisode):
    """One episode under the guard."""

    guard: Guard
    definition: Guarded
    answer_blocked: bool = False

    async def reset(self, task: Task) -> Observation:
        text = "\n".join(message.content for message in task.prompt if message.role == "user")
        self.guard.setting = Setting(where=task.family, task=text, protected=self.definition.protected,
                                     examples=shown_examples(text),
                                     limit_s=self.definition.limit_s)
        return await self.inner.reset(task)

    async def act(self, action: Action) -> Observation:
        if not action.calls:
            self.answer_blocked |= _blocks(self.guard.look_at_action(action))
            return await self.inner.act(action)
        replies: list[Reply] = []
        ended = None
        for call in action.calls:
            found = self.guard.look_at_call(call)
            if _blocks(found):
                rules = ", ".join(finding.rule for finding in found if finding.measure == "block")
                replies.append(Reply(owner="environment", content=f"this call is not allowed ({rules})", call=call.id,
                                     error="refused"))
                continue
            reply, seen = await self.one(call)
            replies.append(reply)
            ended = ended or seen.ended
        return Observation(replies=tuple(replies), ended=ended)

    def facts(self) -> dict[str, Any]:
        return {"guard": {**self.guard.report(), "answer_blocked": self.answer_blocked}}

    def saved(self) -> dict[str, Any]:
        return {"done": [dataclasses.asdict(deed) for deed in self.guard.done], "answer_blocked": self.answer_blocked,
                "findings": [dataclasses.asdict(finding) for finding in self.guard.findings]}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.guard.done = [Deed(**deed) for deed in saved["done"]]
        self.guard.findings = [Finding(**finding) for finding in saved["findings"]]
        self.answer_blocked = saved["answer_blocked"]


def shown_examples(text: str) -> tuple[tuple[str, str], ...]:
    """The (input, output) tests that a task's text shows."""
    return tuple((given, wanted) for given, wanted in EXAMPLE.findall(text))


def _blocks(found: tuple[Finding, ...]) -> bool:
    return any(finding.measure == "block" for finding in found)
