"""Stage 4 for environments: built twice, reset twice, played and graded under another clock, without network, without packages.

Run as `python -m rollbook.orchestration.environment_proof`: one JSON request in, one JSON answer out, a fork for each condition.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from rollbook.environments import load_definition, open_services
from rollbook.environments.elsewhere import end_with
from rollbook.environments.replaying import Played, play
from rollbook.records import (
    Action,
    EnvironmentDefinition,
    EnvironmentFault,
    EnvironmentProof,
    EnvironmentSpec,
    Grade,
    RollbookError,
    Services,
    Task,
    Trial,
    canonical,
    content_id,
    decode,
    digest,
    encode,
)
from rollbook.records.recipe import EnvironmentReward, Reward
from rollbook.rewards import EnvironmentJudge
from rollbook.rewards.conditions import CONDITIONS, DESCRIPTIONS, Changed, Condition, apply
from rollbook.rewards.rescore import prompts_hash

if TYPE_CHECKING:
    from rollbook.orchestration.surroundings import Surroundings

PROVED = 8          # tasks, each with a solution, a wrong one, and nothing done
TOGETHER = 8        # episodes that are played at a time
SECONDS = 300.0
FAR = "the environment is reached over the network: nothing of it is left where every connection is refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What came out: hashes of observations and grades, of the same again, of the prompts, the judge's; counts of grades."""

    played: str
    again: str
    prompts: str
    judge: str
    counts: Mapping[str, int]


def prove_environment(around: Surroundings, reward: Reward, asked: Sequence[Task]) -> EnvironmentProof:
    """The proof for an environment: what it shows and how it grades depend on nothing but its records."""
    began = time.monotonic()
    assert isinstance(reward, EnvironmentReward)
    tasks = tuple(asked[:PROVED])
    mine = fingerprint(around.definition, reward, tasks, around.services)
    found = elsewhere(around.spec, reward, tasks)
    ordinary, count = found["ordinary"], 3 * len(tasks)
    trials = [Trial(kind="build", changed="another build", first=around.image.digest,
                    second=load_definition(around.spec).image().digest, items=1),
              Trial(kind="build", changed="the judge in a fresh process", first=mine.judge, second=ordinary.judge, items=1),
              Trial(kind="reset", changed="a fresh process", first=mine.prompts, second=ordinary.prompts, items=count),
              Trial(kind="reset", changed="played in a fresh process", first=mine.played, second=ordinary.played, items=count),
              Trial(kind="reset", changed="played again in this process", first=mine.played, second=mine.again, items=count)]
    trials += [Trial(kind=name, changed=DESCRIPTIONS[name], first=mine.played, second=found[name].played, items=count)
               for name in get_args(Changed) if name in found]
    return EnvironmentProof(environment=content_id(around.image), judge=mine.judge, trials=tuple(trials), verdicts=mine.counts,
                            unproved={name: FAR for name in get_args(Changed) if name not in found},
                            observed={"seconds": time.monotonic() - began})


def fingerprint(definition: EnvironmentDefinition, reward: EnvironmentReward, tasks: Sequence[Task],
                services: Services) -> Fingerprint:
    """The hashes for this definition in this process."""
    items = [(task, actions) for task in tasks for actions in _three(definition, task)]
    once = asyncio.run(_outcomes(definition, items, services))
    again = asyncio.run(_outcomes(definition, items[::-1], services))[::-1]
    judge = EnvironmentJudge(reward, definition, definition.image(), services)
    kinds = Counter("unscored" if one["grade"].get("kind") != "Grade" else "right" if one["grade"]["accuracy"] == 1.0 else "wrong"
                    for one in once)
    return Fingerprint(played=digest(canonical(once)), again=digest(canonical(again)), judge=judge.digest, counts=dict(kinds),
                       prompts=prompts_hash([task for task, _ in items]))


def _three(definition: EnvironmentDefinition, task: Task) -> tuple[tuple[Action, ...], ...]:
    """A solution, a wrong one, and nothing done; nothing too where no solution is known."""
    solutions = definition.solutions(task)
    return next(iter(solutions.gold), ()), solutions.wrong[0], ()


async def _outcomes(definition: EnvironmentDefinition, items: Sequence[tuple[Task, tuple[Action, ...]]],
                    services: Services) -> list[dict[str, Any]]:
    """What each episode shows and is graded; begun in order, `TOGETHER` at a time, since environments may take their time."""
    room = asyncio.Semaphore(TOGETHER)

    async def one(task: Task, actions: tuple[Action, ...]) -> dict[str, Any]:
        async with room:
            return _outcome(definition, task, await play(definition, task, actions, services=services, seed=0), services)
    return await asyncio.gather(*(one(task, actions) for task, actions in items))


def _outcome(definition: EnvironmentDefinition, task: Task, played: Played, services: Services) -> dict[str, Any]:
    """Everything that an episode showed and is graded, as a document."""
    grade = definition.verify(task, played.state, services=services)
    told = encode(grade) if isinstance(grade, Grade) else {"kind": "Ungraded", "code": grade.code}
    return {"played": encode(played), "grade": told}


def elsewhere(spec: EnvironmentSpec, reward: EnvironmentReward, tasks: Sequence[Task]) -> dict[Condition, Fingerprint]:
    """The hashes by a fresh interpreter, under every condition that leaves the environment reachable."""
    request = {"spec": encode(spec), "reward": encode(reward), "tasks": [encode(task) for task in tasks], "paths": sys.path,
               "parent": os.getpid()}
    command = [sys.executable, "-m", "rollbook.orchestration.environment_proof"]
    variables = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(command, capture_output=True, check=False, input=json.dumps(request).encode(), timeout=SECONDS,
                              env=variables)
    except subprocess.TimeoutExpired:
        raise EnvironmentFault(f"proving {spec.name} did not end", code="timeout",
                               got=f"nothing within {SECONDS:.0f} s") from None
    if done.returncode:
        raise EnvironmentFault(f"{spec.name} cannot be played in a fresh process", code="build",
                               got=done.stderr.decode(errors="replace")[-400:],
                               fix="run `rollbook env check` on it: it says what the environment depends on")
    return {condition: Fingerprint(**found) for condition, found in json.loads(done.stdout).items()}


def main() -> None:
    """Answers the request on standard input."""
    request = json.load(sys.stdin)
    end_with(request["parent"])
    sys.path[:] = request["paths"]
    spec = decode(EnvironmentSpec, request["spec"])
    image = load_definition(spec).image()                       # slow imports, once, before the forks
    tried = [condition for condition in CONDITIONS if condition != "network" or image.network == "none"]
    print(json.dumps({condition: _forked(condition, spec, request) for condition in tried}))


def _forked(condition: Condition, spec: EnvironmentSpec, request: Mapping[str, Any]) -> dict[str, Any]:
    reader, writer = os.pipe()
    here = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            end_with(here)
            apply(condition)
            tasks = [decode(Task, task) for task in request["tasks"]]
            with open_services() as services:
                found = fingerprint(load_definition(spec), decode(EnvironmentReward, request["reward"]), tasks, services)
            os.write(writer, json.dumps(dataclasses.asdict(found)).encode())
            os._exit(0)
        except BaseException as error:
            told = str(error) if isinstance(error, RollbookError) else f"{type(error).__name__}: {error}"
            os.write(2, f"{condition}: {told}\n".encode())
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    if os.waitpid(child, 0)[1]:
        sys.exit(f"the environment could not be played under the condition {condition}")
    return json.loads(answer)  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
