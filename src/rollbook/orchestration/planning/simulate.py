"""The asynchronous loop as discrete events: the same throttles and the same age bound as the real one, in simulated time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field, replace

import numpy as np
import simpy

from rollbook.orchestration.asynchronous.throttle import Counts, capacity
from rollbook.orchestration.planning.decoding import Decoder
from rollbook.orchestration.planning.inputs import Load, Machines, Rules
from rollbook.records import RecipeError

TRIED = 12          # splits that are looked at first


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a simulation found over its later three quarters; rates a second, shares of the time or of the attempts.

    `age` maps the age of trained attempts (versions) to their share; `concurrency` is the mean number of attempts that decode,
    `rows` the bound that memory sets on it over all generators, `queue` the mean number of groups judged and not trained yet.
    """

    steps: int
    seconds: float
    trained_per_s: float
    tokens_per_s: float
    generators_busy: float
    verifiers_busy: float
    trainers_busy: float
    broadcasting: float
    wasted: float
    age: dict[int, float]
    queue: float
    concurrency: float
    rows: int


@dataclass(slots=True, eq=False)
class _Group:
    number: int
    version: int
    left: int
    informative: bool
    tokens: float = 0.0
    oldest: int = 0


@dataclass(slots=True)
class _Tally:
    """What happened since the warm-up."""

    trained: int = 0
    tokens: float = 0.0
    wasted: int = 0
    ended: int = 0
    ages: Counter[int] = field(default_factory=Counter)
    training_s: float = 0.0
    broadcast_s: float = 0.0
    verifying_s: float = 0.0
    queue_s: float = 0.0


class Simulation:
    """One run of the loop; `forecast` takes it through so many steps."""

    def __init__(self, load: Load, machines: Machines, rules: Rules, *, seed: int):
        self.load, self.machines, self.rules = load, machines, rules
        self.env = simpy.Environment()
        self.random = np.random.default_rng(seed)
        self.rows = machines.rows(load)
        self.decoders = [Decoder(self.env, machines, self.rows) for _ in range(machines.generators)]
        self.verifiers = simpy.Resource(self.env, machines.verifiers)
        self.version = self.number = self.running = self.accepted = self.rejected = 0
        self.open: dict[int, _Group] = {}           # in the order of their issue, so the first is the oldest
        self.fresh: Counter[int] = Counter()        # attempts that are not decided, by the version they were issued under
        self.ready: list[_Group] = []
        self.tally = _Tally()
        self._changed = self.env.event()
        self._queue_since = 0.0

    def forecast(self, steps: int) -> Forecast:
        """The loop over `steps` publications, of which the first quarter is not counted."""
        done = self.env.process(self._train(steps))
        self.env.process(self._issue())
        try:
            self.env.run(until=done)
        except RuntimeError:                # simpy's word for a schedule that ran empty before the event it waits for
            raise RecipeError("the simulated loop stands still", got=f"after {self.version} of {steps} versions",
                              why="the throttle is shut, nothing is under way, and no batch can come together",
                              fix="a throttle that gives the place of rejected attempts back, or smaller batches") from None
        seconds = self.env.now - self._began
        machines, tally = self.machines, self.tally
        busy = sum(one.busy_s for one in self.decoders) - self._busy_before
        rows = sum(one.row_seconds for one in self.decoders) - self._rows_before
        ages = sum(tally.ages.values())
        return Forecast(
            steps=steps, seconds=seconds, trained_per_s=tally.trained / seconds, tokens_per_s=tally.tokens / seconds,
            generators_busy=busy / seconds / machines.generators, verifiers_busy=tally.verifying_s / seconds / machines.verifiers,
            trainers_busy=tally.training_s / seconds, broadcasting=tally.broadcast_s / seconds,
            wasted=tally.wasted / max(1, tally.ended), age={age: tally.ages[age] / ages for age in sorted(tally.ages)},
            queue=tally.queue_s / seconds, concurrency=rows / seconds, rows=self.rows * machines.generators)

    def _issue(self) -> Generator[simpy.Event, object, None]:
        """consumes: room under the throttle · produces: groups · waits for: a change of counts"""
        rules = self.rules
        while True:
            batch = rules.groups * rules.per_task
            while capacity(rules.asynchrony.throttle, self._counts(), batch=batch,
                           concurrency=rules.asynchrony.concurrency) >= rules.per_task:
                group = _Group(number=self.number, version=self.version, left=rules.per_task, oldest=self.version,
                               informative=bool(self.random.random() < self.load.informative))
                self.number += 1
                self.open[group.number] = group
                self.fresh[group.version] += rules.per_task
                self.running += rules.per_task
                for place in range(rules.per_task):
                    self.env.process(self._attempt(group, place))
            yield self._changed

    def _attempt(self, group: _Group, place: int) -> Generator[simpy.Event, object, None]:
        """consumes: an order · produces: a verified attempt · waits for: a row, the environment, a verifier"""
        load = self.load
        decoder = self.decoders[(group.number * self.rules.per_task + place) % len(self.decoders)]
        prompt = load.prompt_tokens if place == 0 else 0.0              # read once for the group
        for turn in range(load.turns):
            tokens = max(1.0, round(load.answer_tokens.draw(self.random)))
            yield decoder.decode(tokens, prompt if turn == 0 else 0.0)
            group.tokens += tokens
            wait = load.wait_s.draw(self.random)
            if wait:
                yield self.env.timeout(wait)
        self.running -= 1
        seconds = load.verify_s.draw(self.random)
        if seconds:
            with self.verifiers.request() as mine:
                yield mine
                yield self.env.timeout(seconds)
                self.tally.verifying_s += seconds
        group.left -= 1
        if group.left == 0:
            del self.open[group.number]
            self._note_queue()
            if group.informative:
                self.ready.append(group)
            else:
                self._end(group, trained=False)
        self._wake()

    def _train(self, steps: int) -> Generator[simpy.Event, object, None]:
        """consumes: informative groups · produces: versions · waits for: enough of them, and late ones where that is the rule"""
        self._start_counting()
        for step in range(steps):
            if step == steps // 4:
                self._start_counting()
            while (batch := self._batch()) is None:
                yield self._changed
            self._note_queue()
            for group in batch:
                self.ready.remove(group)
                self._end(group, trained=True)
                self.tally.ages[self.version - group.oldest] += self.rules.per_task
            tokens = sum(one.tokens for one in batch)
            seconds = self.machines.update_s + self.machines.update_token_s * tokens / self.machines.trainers
            yield self.env.timeout(seconds)
            self.tally.training_s += seconds
            for decoder in self.decoders:
                decoder.stand()
            yield self.env.timeout(self.machines.publish_s)
            self.tally.broadcast_s += self.machines.publish_s
            for decoder in self.decoders:
                decoder.go()
            self.version += 1
            self._wake()

    def _batch(self) -> list[_Group] | None:
        """The groups of the next step by the real rule: oldest first, none too old, late ones waited for or dropped."""
        rules, version = self.rules, self.version
        for group in [one for one in self.ready if version - one.oldest > rules.max_policy_age]:
            self.ready.remove(group)
            self._end(group, trained=False)
        oldest = next(iter(self.open.values()), None)
        if rules.asynchrony.late == "wait" and oldest is not None and version - oldest.oldest >= rules.max_policy_age:
            return None
        if len(self.ready) < rules.groups:
            return None
        ordered = sorted(self.ready, key=lambda one: one.number)
        last = [one for one in ordered[rules.groups:] if version + 1 - one.oldest > rules.max_policy_age]
        return ordered[:rules.groups] + last

    def _counts(self) -> Counts:
        per_task = self.rules.per_task
        started = self.number * per_task
        waiting = started - self.running - self.accepted - self.rejected
        return Counts(version=self.version, running=self.running, waiting=waiting, accepted=self.accepted,
                      rejected=self.rejected, fresh=self.fresh[self.version])

    def _end(self, group: _Group, *, trained: bool) -> None:
        size = self.rules.per_task
        self.fresh[group.version] -= size
        self.tally.ended += size
        if trained:
            self.accepted += size
            self.tally.trained += size
            self.tally.tokens += group.tokens
        else:
            self.rejected += size
            self.tally.wasted += size

    def _note_queue(self) -> None:
        self.tally.queue_s += len(self.ready) * (self.env.now - self._queue_since)
        self._queue_since = self.env.now

    def _start_counting(self) -> None:
        self.tally = _Tally()
        self._began = self._queue_since = self.env.now
        self._busy_before = sum(one.busy_s for one in self.decoders)
        self._rows_before = sum(one.row_seconds for one in self.decoders)

    def _wake(self) -> None:
        changed, self._changed = self._changed, self.env.event()
        changed.succeed()


def simulate(load: Load, machines: Machines, rules: Rules, *, steps: int = 40, seed: int = 0) -> Forecast:
    """What the loop does with these machines over `steps` publications."""
    if steps < 4:
        raise RecipeError("a simulation needs at least 4 steps", got=str(steps), why="its first quarter is warm-up, not counted")
    return Simulation(load, machines, rules, seed=seed).forecast(steps)


def best_split(load: Load, machines: Machines, rules: Rules, *, total: int, steps: int = 24,
               seed: int = 0) -> list[tuple[int, Forecast]]:
    """Ways to divide `total` machines between generators and trainers, by trained attempts a second, best first.

    All of them where they are no more than `TRIED`; otherwise as many at even distances, then those between the best and its
    neighbours, closer and closer: the rate rises to one summit, where generators and trainers keep up with each other.
    """
    if total < 2:
        raise RecipeError("a split needs at least two machines", got=str(total), why="one samples, one trains")
    found: dict[int, Forecast] = {}
    wanted = sorted({1 + round(place * (total - 2) / max(1, TRIED - 1)) for place in range(TRIED)})
    while wanted:
        for count in wanted:
            divided = replace(machines, generators=count, trainers=total - count)
            found[count] = simulate(load, divided, rules, steps=steps, seed=seed)
        best, known = max(found, key=lambda count: found[count].trained_per_s), sorted(found)
        place = known.index(best)
        beside = known[max(0, place - 1):place + 2]
        wanted = sorted({(best + one) // 2 for one in beside} - found.keys())
    return sorted(found.items(), key=lambda one: -one[1].trained_per_s)
