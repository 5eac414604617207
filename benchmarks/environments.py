"""Many environments at once: what is left of them, and how fast they go. Prints a table and JSON; exits 1 where something is
left.

    python benchmarks/environments.py [--episodes 10000] [--concurrent 500] [--kinds world,search,...]

Episodes of all kinds in turn, on one event loop and one sandbox: gold, wrong and hostile ones, some abandoned half way as a
budget does it. `left` counts what is there at the end beyond what was there after a first small round: processes below this one,
open descriptors, temporary files, threads, sandbox sessions. Memory is that of this process alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rollbook.environments import open_services
from rollbook.environments.builtin.browser import Browsing
from rollbook.environments.builtin.code import Programming
from rollbook.environments.builtin.common import call
from rollbook.environments.builtin.games import Survival
from rollbook.environments.builtin.interpreter import Interpreter
from rollbook.environments.builtin.math import Mathematics
from rollbook.environments.builtin.search import SearchQuestions
from rollbook.environments.builtin.simulated import Customer
from rollbook.environments.builtin.swe import Repository
from rollbook.environments.builtin.world import WorldQuestions
from rollbook.environments.faults import Faulty, Rates
from rollbook.environments.guard.guarded import Guarded
from rollbook.environments.sandbox.usage import tree
from rollbook.environments.waiting import THREADS, in_thread
from rollbook.environments.wrapping import Inner
from rollbook.records import Action, EnvironmentDefinition, EnvironmentFault, Services, Task

WORLD = Inner(definition="rollbook.environments.builtin.world:WorldQuestions")
KINDS: dict[str, tuple[EnvironmentDefinition, int]] = {          # with the number of different tasks
    "world": (WorldQuestions(), 16), "search": (SearchQuestions(), 16), "browser": (Browsing(), 16), "math": (Mathematics(), 16),
    "games": (Survival(decisions=25), 4), "customer": (Customer(), 16), "code": (Programming(run=True), 4),
                                                       "interpreter": (Interpreter(), 8),
    "swe": (Repository(shell_seconds=60.0), 1), "faulty": (Faulty(inner=WORLD,
                                                                  rates={"*": Rates(error=0.3, page=0.5, partial=0.3)}), 8),
    "guarded": (Guarded(inner=WORLD), 8)}
HOSTILE: dict[str, tuple[Action, ...]] = {
    "interpreter": (call("python", code="import subprocess, os\nsubprocess.Popen(['sleep', '900'], "
                                        "start_new_session=True)\nopen('/dev/null')"),
                    call("python", code="import os\nos.kill(-1, 9)"), call("python", code="1")),
    "swe": (call("shell", command="(setsid sleep 900 &); mkfifo p; exec 9<>p; kill -9 -1"), call("shell", command="ls")),
    "code": (call("run", code="import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(900)"),),
    "world": (call("query", sql="WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"),),
}


def measured(services: Services) -> dict[str, int]:
    """What there is now that a leak would add to."""
    sandbox = services.sandbox()
    return {"processes": len(list(tree(os.getpid()))), "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")), "files": len(list(Path(tempfile.gettempdir()).rglob("*"))),
            "sessions": len(sandbox._sessions)}                               # type: ignore[attr-defined]


def memory_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def actions_of(kind: str, definition: EnvironmentDefinition, task: Task, number: int) -> tuple[Action, ...]:
    """The actions of one episode: gold, wrong, or hostile ones."""
    solutions = definition.solutions(task)
    if number % 3 == 2 and kind in HOSTILE:
        return HOSTILE[kind]
    return solutions.gold[0] if number % 3 == 0 else solutions.wrong[number // 3 % len(solutions.wrong)]


async def episode(kind: str, number: int, tasks: dict[str, tuple[Task, ...]], services: Services) -> str:
    """One episode; what came of it."""
    definition = KINDS[kind][0]
    task = tasks[kind][number % len(tasks[kind])]
    actions = actions_of(kind, definition, task, number)
    if number % 10 == 9:
        actions = actions[:len(actions) // 2]                # a budget ended it
    environment = definition.build(services=services, seed=number)
    try:
        seen = await environment.reset(task)
        for action in actions:
            seen = await environment.act(action)
            if seen.ended is not None:
                break
        environment.state()
        return f"{kind}: {seen.ended or 'cut off'}"
    except EnvironmentFault as fault:
        return f"{kind}: fault {fault.code}"
    finally:
        await environment.close()


async def soak(episodes: int, concurrent: int, kinds: list[str], tasks: dict[str, tuple[Task, ...]],
               services: Services) -> Counter[str]:
    """All episodes, `concurrent` of them alive at any time."""
    numbers, outcomes = iter(range(episodes)), Counter[str]()

    async def worker() -> None:
        for number in numbers:
            outcomes[await episode(kinds[number % len(kinds)], number // len(kinds), tasks, services)] += 1

    await asyncio.gather(*(worker() for _ in range(min(concurrent, episodes))))
    return outcomes


async def _all_threads() -> None:
    """Starts all threads that blocking work shares, so that they do not count as left."""
    await asyncio.gather(*(in_thread(time.sleep, 0.2) for _ in range(2 * THREADS)))


def run(episodes: int, concurrent: int, kinds: list[str]) -> dict[str, float]:
    """The table: episodes, seconds, what is left."""
    tasks = {kind: KINDS[kind][0].tasks(count=KINDS[kind][1], seed=0).tasks for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="rollbook-soak-") as folder, open_services() as services:
        held, tempfile.tempdir = tempfile.tempdir, folder            # other programs' files do not count
        asyncio.run(_all_threads())
        asyncio.run(soak(4 * len(kinds), len(kinds), kinds, tasks, services))
        before, memory, began = measured(services), memory_mb(), time.perf_counter()
        outcomes = asyncio.run(soak(episodes, concurrent, kinds, tasks, services))
        spent = time.perf_counter() - began
        time.sleep(2.0)
        after = measured(services)
        found = {"load before": os.getloadavg()[0], "episodes": float(episodes), "concurrent": float(concurrent),
                 "seconds": spent,
                 "episodes per second": episodes / spent, "memory grown, MB": memory_mb() - memory,
                 **{f"left: {name}": float(after[name] - before[name]) for name in after},
                 **{f"outcome: {name}": float(count) for name, count in sorted(outcomes.items())}}
        tempfile.tempdir = held
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--concurrent", type=int, default=500)
    parser.add_argument("--kinds", default=",".join(KINDS))
    arguments = parser.parse_args()
    found = run(arguments.episodes, arguments.concurrent, arguments.kinds.split(","))
    for name, value in found.items():
        print(f"{name:40} {value:12.2f}")
    print(json.dumps(found))
    return int(any(value > 0 for name, value in found.items() if name.startswith("left: ")))


if __name__ == "__main__":
    sys.exit(main())
