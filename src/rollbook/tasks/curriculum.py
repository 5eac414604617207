"""The pools of a curriculum: what is known of each task, which task comes next, what moved. Deterministic in seed and history."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np

from rollbook.records import Task, TaskId
from rollbook.records.curriculum import Curriculum, CurriculumReport, Pool
from rollbook.tasks.errors import TaskError

POOLS: tuple[Pool, ...] = get_args(Pool)


def pass_at(k: int, samples: int, passed: int) -> float:
    """The unbiased estimate of pass@k from `passed` of `samples`: 1 - C(n - c, k) / C(n, k); k beyond n is n.

    Example: pass_at(2, 4, 1) == 0.5
    """
    k = min(k, samples)
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


class PoolStream(Iterator[Task]):
    """An endless stream of tasks by pool. `observe` is told how attempts ended; `step` is the training step that is being made.

    Draws depend on the seed, the number of the draw and what was observed before it; `state` holds all of that.
    """

    def __init__(self, tasks: Sequence[Task], rule: Curriculum, *, seed: int):
        if not tasks:
            raise TaskError("a curriculum needs tasks", got="none")
        self.tasks, self.rule, self.seed = tuple(tasks), rule, seed
        self.names = [task.id for task in self.tasks]
        self.place = {name: place for place, name in enumerate(self.names)}
        self.cursor = self.step = 0
        self.measured: dict[TaskId, tuple[int, int, int]] = {}       # samples, passes, step
        self.drawn: dict[TaskId, int] = {}                           # the last draw that gave the task
        self.since: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __next__(self) -> Task:
        with self._lock:
            rng = np.random.default_rng([self.seed, self.cursor])
            pools: dict[Pool, list[int]] = {name: [] for name in POOLS}
            for place, name in enumerate(self.names):
                pools[self.pool(name)].append(place)
            chosen = self._choose(pools, rng)
            self.drawn[self.names[chosen]] = self.cursor
            self.cursor += 1
            return self.tasks[chosen]

    def pool(self, task: TaskId) -> Pool:
        """Where a task is now. A measurement older than `renew` steps is of another policy and counts no more."""
        known = self.measured.get(task)
        if known is None or self.step - known[2] >= self.rule.renew:
            return "unmeasured"
        rate = pass_at(self.rule.pass_at, known[0], known[1])
        return "too_hard" if rate < self.rule.low else "too_easy" if rate > self.rule.high else "learnable"

    def observe(self, ended: Mapping[TaskId, Sequence[float | None]]) -> None:
        """How the attempts at some tasks ended: 1.0 passed, 0.0 not, None without a verdict. One call is one measurement of each.

        A task none of whose attempts has a verdict keeps what was known of it.
        """
        with self._lock:
            for task, accuracies in ended.items():
                known = [value for value in accuracies if value is not None]
                self.since["attempts"] += len(accuracies)
                if not known or task not in self.place:
                    continue
                passed = sum(value == 1.0 for value in known)
                before = self.pool(task)
                self.measured[task] = (len(known), passed, self.step)
                self.since["measured"] += 1
                self.since["informative"] += 0 < passed < len(known)
                if (after := self.pool(task)) != before:
                    self.since[f"{before} > {after}"] += 1

    def report(self, stage: str) -> CurriculumReport:
        """What happened since the last report, which this one ends."""
        with self._lock:
            counts = Counter(self.pool(name) for name in self.names)
            since, self.since = self.since, Counter()
        return CurriculumReport(stage=stage, step=self.step, pools={name: counts[name] for name in POOLS},
                                measured=since["measured"],
                                moved={key: count for key, count in sorted(since.items()) if " > " in key},
                                attempts=since["attempts"], informative=since["informative"])

    def state(self) -> dict[str, Any]:
        """Everything that the next draws and reports depend on, as JSON has it."""
        with self._lock:
            return {"cursor": self.cursor, "step": self.step,
                    "measured": {name: list(known) for name, known in self.measured.items()},
                    "drawn": dict(self.drawn), "since": dict(self.since)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a state; TaskError where it is of other tasks."""
        strangers = [name for name in (*state["measured"], *state["drawn"]) if name not in self.place]
        if strangers:
            raise TaskError("the curriculum's state is of other tasks", got=strangers[0],
                            why="its pass rates say nothing of these")
        self.cursor, self.step = int(state["cursor"]), int(state["step"])
        self.measured = {TaskId(name): (known[0], known[1], known[2]) for name, known in state["measured"].items()}
        self.drawn = {TaskId(name): int(cursor) for name, cursor in state["drawn"].items()}
        self.since = Counter(state["since"])

    def _choose(self, pools: Mapping[Pool, Sequence[int]], rng: np.random.Generator) -> int:
        rule = self.rule
        wanted: dict[Pool, float] = {"unmeasured": rule.explore, "too_easy": rule.easy, "too_hard": rule.hard}
        wanted["learnable"] = max(0.0, 1.0 - sum(wanted.values()))
        shares = {name: share for name, share in wanted.items() if share > 0 and pools[name]}
        if not shares:                       # what should be drawn from is empty: first what is not known, then what is hard
            order: tuple[Pool, ...] = ("unmeasured", "too_hard", "learnable", "too_easy")
            shares = {next(name for name in order if pools[name]): 1.0}
        names = sorted(shares)
        weights = np.array([shares[name] for name in names])
        pool = names[int(rng.choice(len(names), p=weights / weights.sum()))]
        places = pools[pool]
        if rule.prioritised and pool == "learnable":
            hard = np.array([1.0 - self._rate(place) for place in places])
            if hard.sum() > 0:
                return places[int(rng.choice(len(places), p=hard / hard.sum()))]
        last = np.array([self.drawn.get(self.names[place], -1) for place in places])
        oldest = np.flatnonzero(last == last.min())
        return places[int(rng.choice(oldest))]

    def _rate(self, place: int) -> float:
        samples, passed, _ = self.measured[self.names[place]]
        return passed / samples
