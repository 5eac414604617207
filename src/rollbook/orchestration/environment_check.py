"""`rollbook env check`: an environment proves itself with its own solutions before anything is trained in it."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rollbook.environments import load_definition, open_services
from rollbook.environments.guard.checking import blind_quality, false_alarms
from rollbook.environments.mutable import depends, suspects
from rollbook.environments.replaying import Played, play
from rollbook.orchestration.environment_proof import FAR, elsewhere
from rollbook.records import (
    Action,
    EnvironmentDefinition,
    EnvironmentSpec,
    Grade,
    RollbookError,
    Services,
    Snapshots,
    Task,
    TaskSet,
    content_id,
)
from rollbook.records.recipe import EnvironmentReward
from rollbook.rewards.conditions import DESCRIPTIONS
from rollbook.rollouts.arguments import misfit

REWARD = EnvironmentReward(format_reward=0.0, correct_reward=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was tried: `pass`, `fail`, or a `note` of what nothing was wrong with and a person should know."""

    result: Literal["pass", "fail", "note"]
    name: str
    detail: str


def _pass(name: str, detail: str) -> Finding:
    return Finding(result="pass", name=name, detail=detail)


def _fail(name: str, detail: str) -> Finding:
    return Finding(result="fail", name=name, detail=detail[:400])


def _note(name: str, detail: str) -> Finding:
    return Finding(result="note", name=name, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a check works on."""

    spec: EnvironmentSpec
    definition: EnvironmentDefinition
    services: Services
    tasks: tuple[Task, ...]

    def play(self, task: Task, actions: Sequence[Action]) -> Played:
        return asyncio.run(play(self.definition, task, actions, services=self.services, seed=0))

    def accuracy(self, task: Task, actions: Sequence[Action]) -> float | str:
        """The accuracy, or why there is no grade."""
        found = self.definition.verify(task, self.play(task, actions).state, services=self.services)
        return found.accuracy if isinstance(found, Grade) else f"{found.code}: {found.detail}"


def check(spec: EnvironmentSpec, *, count: int = 4, seed: int = 0, deep: bool = True) -> Iterator[Finding]:
    """Every finding as it is made. `deep` plays the environment in fresh processes under changed conditions."""
    try:
        definition = load_definition(spec)
        pickle.loads(pickle.dumps(spec))
        made = definition.tasks(count=count, seed=seed)
    except RollbookError as error:
        yield _fail("built", str(error))
        return
    except Exception as error:
        yield _fail("built", f"its tasks raised {type(error).__name__}: {error}")
        return
    yield _pass("built", f"{spec.definition}, image {definition.image().digest[:12]}")
    with open_services() as services:
        checked = Checked(spec=spec, definition=definition, services=services, tasks=made.tasks)
        yield from _guarded("tasks", lambda: _tasks(checked, made, count, seed))
        if made.tasks:
            for name, part in (("reset", _resets), ("verifier", _verified), ("replay", _replayed), ("calls", _calls),
                               ("snapshot", _snapshots), ("guard", _watched)):
                yield from _guarded(name, lambda part=part: part(checked))      # type: ignore[misc]
        if deep and made.tasks:
            yield from _guarded("conditions", lambda: _conditions(checked))
    yield from (_note("depends on", told) for told in depends(definition.image()))
    yield from (_note("may depend on", f"{one.depends_on}: {one.what}, line {one.line}")
                for one in suspects(definition))


def _guarded(name: str, part: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """The part's findings; what it raises is a failure of the environment, with its fix."""
    try:
        yield from part()
    except RollbookError as error:
        yield _fail(name, str(error))
    except Exception as error:
        yield _fail(name, f"{type(error).__name__}: {error}")


def _tasks(checked: Checked, made: TaskSet, count: int, seed: int) -> Iterator[Finding]:
    again = checked.definition.tasks(count=count, seed=seed)
    raws = {content_id(raw) for raw in made.raw}
    problems = [
        (not made.tasks, "there are none"),
        ([task.id for task in made.tasks] != [task.id for task in again.tasks], "the same seed gave others"),
        (any(task.raw not in raws for task in made.tasks), "a task names a raw task that is not there"),
        (any(not task.canonical for task in made.tasks), "a task has no split unit"),
        (any(task.reference and task.reference in message.content and message.role == "system" for task in made.tasks
             for message in task.prompt), "a system message shows the reference")]
    for wrong, why in problems:
        if wrong:
            yield _fail("tasks", why)
            return
    yield _pass("tasks", f"{len(made.tasks)}, the same twice, {len({t.canonical for t in made.tasks})} "
                                                      "split units")


def _resets(checked: Checked) -> Iterator[Finding]:
    for task in checked.tasks:
        once, again = checked.play(task, ()), checked.play(task, ())
        if (once.opening, once.tools, once.state.id) != (again.opening, again.tools, again.state.id):
            yield _fail("reset", f"two resets of {task.id[:17]} differ: {once.opening} and "
                                                              f"{again.opening}"[:300])
            return
    yield _pass("reset", f"{len(checked.tasks)} tasks reset twice: equal observations, tools, states")


def _verified(checked: Checked) -> Iterator[Finding]:
    right = wrong = unknown = 0
    for task in checked.tasks:
        solutions = checked.definition.solutions(task)
        unknown += not solutions.gold
        if not solutions.wrong or unknown == len(checked.tasks):
            yield _fail("verifier", f"{task.id[:17]} has no wrong way" if not solutions.wrong else
                        f"of none of {unknown} tasks a solution is known: that it accepts one is not shown")
            return
        for actions in solutions.gold:
            if (got := checked.accuracy(task, actions)) != 1.0:
                yield _fail("verifier", f"it does not accept the gold solution of {task.id[:17]}: {got}")
                return
            right += 1
        for actions in (*solutions.wrong, ()):
            got = checked.accuracy(task, actions)
            if not isinstance(got, float) or got >= 1.0:
                what = "an empty" if not actions else "a wrong"
                yield _fail("verifier", f"it does not refuse {what} solution of {task.id[:17]}: {got}")
                return
            wrong += 1
    yield _pass("verifier", f"{right} gold solutions accepted, {wrong} wrong and empty ones refused")
    if unknown:
        yield _note("verifier", f"of {unknown} of {len(checked.tasks)} tasks no solution is known: not tried there")


def _replayed(checked: Checked) -> Iterator[Finding]:
    played = 0
    for task in checked.tasks:
        solutions = checked.definition.solutions(task)
        for actions in (*solutions.gold, *solutions.wrong):
            once, again = checked.play(task, actions), checked.play(task, actions)
            for number, (a, b) in enumerate(zip(once.observations, again.observations, strict=False), start=1):
                if a != b:
                    yield _fail("replay", f"action {number} of {task.id[:17]} showed {a} and {b}"[:400])
                    return
            if once.state.id != again.state.id:
                yield _fail("replay", f"{task.id[:17]} ended in two states after equal actions")
                return
            played += 1
    yield _pass("replay", f"{played} episodes played twice: equal observations and final states")


def _calls(checked: Checked) -> Iterator[Finding]:
    task, solved = _solved(checked)
    tools = {tool.name: tool for tool in checked.play(task, ()).tools}
    for actions in solved:
        for call in (call for action in actions for call in action.calls):
            tool = tools.get(call.name)
            wrong = "there is no such tool" if tool is None else misfit(dict(call.arguments), tool.parameters)
            if wrong:
                yield _fail("calls", f"the gold solution calls {call.name}: {wrong}")
                return
    yield _pass("calls", f"the calls of a gold solution fit the {len(tools)} tools")


def _solved(checked: Checked) -> tuple[Task, tuple[tuple[Action, ...], ...]]:
    """The first task of which a solution is known, with its solutions; else the first with its wrong ones."""
    found = ((task, checked.definition.solutions(task).gold) for task in checked.tasks)
    return next(((task, gold) for task, gold in found if gold),
                (checked.tasks[0], checked.definition.solutions(checked.tasks[0]).wrong))


def _snapshots(checked: Checked) -> Iterator[Finding]:
    task, solved = _solved(checked)
    actions = solved[0]

    async def halfway() -> bool | None:
        first = checked.definition.build(services=checked.services, seed=0)
        second = checked.definition.build(services=checked.services, seed=0)
        if not isinstance(first, Snapshots) or not isinstance(second, Snapshots):
            return None
        try:
            await first.reset(task)
            await second.reset(task)
            for action in actions[:-1]:
                await first.act(action)
            second.restore(first.snapshot())
            same = await first.act(actions[-1]) == await second.act(actions[-1])
            return same and first.state().id == second.state().id
        finally:
            await first.close()
            await second.close()

    found = asyncio.run(halfway())
    if found is None:
        yield _note("snapshot", "not offered")
    else:
        yield Finding(result="pass" if found else "fail", name="snapshot",
                      detail="a restored episode goes on " + ("as the saved one did" if found else "otherwise"))


def _watched(checked: Checked) -> Iterator[Finding]:
    found = false_alarms(checked.definition, checked.tasks)
    if found:
        task, one = found[0]
        yield _note("guard", f"the rule {one.rule} finds {one.matched!r} in the gold solution of {task.id[:17]}")
    else:
        yield _pass("guard", f"no rule finds anything in the gold solutions of {len(checked.tasks)} tasks")
    quality = blind_quality(checked.definition)
    yield _note("guard", f"rules version {quality.version} on {quality.honest + quality.cheating} transcripts written before "
                         f"them: "
                         f"precision {_share(quality.precision)}, recall {_share(quality.recall)}")


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def _conditions(checked: Checked) -> Iterator[Finding]:
    found = elsewhere(checked.spec, REWARD, checked.tasks)
    ordinary = found["ordinary"]
    if ordinary.played != ordinary.again:
        yield _fail("conditions", "a fresh process shows other things when it plays again")
    for condition, told in DESCRIPTIONS.items():
        if condition not in found:
            yield _note("conditions", f"{told}: not tried, {FAR}")
            continue
        same = found[condition].played == ordinary.played
        yield Finding(result="pass" if same else "fail", name="conditions",
                      detail=f"{told}: {'the same observations and grades' if same else 'other observations or grades'}")
