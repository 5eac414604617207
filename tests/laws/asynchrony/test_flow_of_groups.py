"""Groups on their way through an asynchronous stage: none is lost, none ends twice, none is trained too old."""

import itertools
import random
import threading
import time
import zlib

import pytest

from rollbook.experience.admission import AdmissionRule
from rollbook.ledger import close_census
from rollbook.orchestration.asynchronous.board import Board, Stalled
from rollbook.orchestration.asynchronous.flight import Flight, Order
from rollbook.orchestration.asynchronous.flow import Flow, Sizes
from rollbook.orchestration.asynchronous.freshness import age
from rollbook.orchestration.asynchronous.gathering import Gathering, Wanted
from rollbook.orchestration.asynchronous.loops import running
from rollbook.records import Budget, Dispatch, Message, RecordError, RewardVector, Scored, Segment, Task, Trace
from rollbook.records.asynchrony import AReaL, Asynchrony, PrimeRl

TASK = Task(raw="r", family="sums", prompt=(Message(role="user", content="1 + 1 ="),), reference="2", canonical="sum:1+1",
            predicate="p", initial_state="prompt", tools=(), budget=Budget(max_tokens=8), termination=("length",))
TASKS = {TASK.id: TASK}


def settings(**changes):
    known = {"throttle": AReaL(eta=2), "concurrency": 24, "on_update": "keep", "late": "wait", "queue": 64, "stall_s": 20.0}
    return Asynchrony(**(known | changes))


def order(number=0, version=0, samples=2):
    dispatch = Dispatch(scope=f"rl/g/{number:06d}", tasks=(TASK.id,), samples=samples, envelope="e")
    return Order(dispatch=dispatch, task=TASK, version=version)


def trajectory(attempt, group, versions=(0,), stop="end_of_turn"):
    parts = tuple(Segment(owner="policy", token_ids=(7,), logps=(-0.5,), version=version) for version in versions)
    return Trace(attempt=attempt, task=TASK.id, group=group, envelope="e", stop_reason=stop, text="",
                 segments=(Segment(owner="user", token_ids=(1, 2)), *parts))


class WaitingAttempts:
    """Attempts that take a while, some much longer than others; each token carries the version that was current."""

    def __init__(self, version, seed=0, tail=0.02):
        self.version, self.random, self.tail = version, random.Random(seed), tail
        self.open = {}
        self.closed = False

    @property
    def busy(self):
        return bool(self.open)

    def start(self, dispatch, task, attempts):
        for attempt in attempts:
            tokens = 40 if self.random.random() < self.tail else self.random.randint(1, 4)
            self.open[attempt] = [dispatch.scope, tokens, []]

    def advance(self):
        time.sleep(0.0005)
        done = []
        for attempt, held in list(self.open.items()):
            held[2].append(self.version())
            if len(held[2]) >= held[1]:
                del self.open[attempt]
                done.append((held[0], trajectory(attempt, held[0], held[2])))
        return done

    def cancel(self, scope):
        mine = [attempt for attempt, held in self.open.items() if held[0] == scope]
        return [(scope, trajectory(attempt, scope, self.open.pop(attempt)[2], "cancelled")) for attempt in mine]

    def close(self):
        self.closed = True


class CoinJudge:
    """Rewards that differ within most groups."""

    def judge(self, traces, tasks):
        return [Scored(trace=one.id, vector=RewardVector(components=(), absent=(), composition="c", composition_digest="d",
                                                         total=float(zlib.crc32(one.attempt.encode()) % 3 == 0), accuracy=None))
                for one in traces]


class Stage:
    """A flow with its loops, a learner that publishes after each batch, and the record of all that was issued."""

    def __init__(self, how, *, groups=3, max_policy_age=2, tail=0.05, start=5):
        self.issued, self.version = [], start
        self.board = Board(how.stall_s)
        number = itertools.count()

        def issue(task, samples):
            self.issued.append(Dispatch(scope=f"rl/g/{next(number):06d}", tasks=(task.id,), samples=samples, envelope="e"))
            return self.issued[-1]

        self.flow = Flow(how, Sizes(batch=groups * 4, per_task=4), self.board, tasks=itertools.repeat(TASK), issue=issue,
                         first=start)
        self.attempts = WaitingAttempts(lambda: self.version, tail=tail)
        self.gathering = Gathering(self.flow, Wanted(groups=groups, decisions=10**6, max_policy_age=max_policy_age,
                                                     rule=AdmissionRule(least=2, drop_uniform=True)), TASKS, None)

    def train(self, steps):
        """Every batch with the version it was trained at, and what was left at the end."""
        batches = []
        with running(self.flow, self.attempts, CoinJudge(), TASKS):
            for _ in range(steps):
                batches.append((self.version, self.gathering.batch(self.version)))
                time.sleep(0.002)           # the update
                self.version += 1
            self.flow.close()
            return batches, self.gathering.rest()


@pytest.mark.parametrize("late", ["wait", "redispatch", "drop"])
@pytest.mark.parametrize("throttle", [AReaL(eta=2), PrimeRl()])
@pytest.mark.parametrize("max_policy_age", [1, 3])
def test_no_token_older_than_the_bound_is_ever_trained_on(late, throttle, max_policy_age):
    batches, _ = Stage(settings(late=late, throttle=throttle), max_policy_age=max_policy_age).train(12)
    for version, gathered in batches:
        trained = [member.trace for one in gathered.admission.groups for member in one.members]
        assert trained
        assert age(trained, version) <= max_policy_age


@pytest.mark.parametrize("late", ["wait", "redispatch", "drop"])
def test_every_attempt_that_was_issued_has_exactly_one_outcome_when_the_stage_is_over(late):
    stage = Stage(settings(late=late, throttle=PrimeRl()), max_policy_age=1, tail=0.1)
    batches, rest = stage.train(10)
    gathered = [held for _, held in batches] + [rest]
    outcomes = [outcome for one in gathered for outcome in one.admission.outcomes]
    close_census("rl", {attempt: "sums" for one in stage.issued for attempt, _ in one.attempts()}, outcomes)
    assert {dispatch.scope for one in gathered for dispatch in one.issued} == {dispatch.scope for dispatch in stage.issued}
    trained = [member.trace.attempt for one in gathered for part in one.admission.groups for member in part.members]
    assert len(trained) == len(set(trained))


def test_where_late_attempts_are_waited_for_none_is_stale():
    batches, rest = Stage(settings(late="wait"), tail=0.2).train(12)
    codes = {outcome.code for _, held in batches for outcome in held.admission.outcomes}
    assert codes <= {"accepted", "uniform"}
    assert {outcome.code for outcome in rest.admission.outcomes} <= {"surplus", "cancelled"}


def test_where_late_attempts_are_dropped_they_are_in_the_census_as_stale():
    batches, _ = Stage(settings(late="drop", throttle=PrimeRl()), max_policy_age=1, tail=0.3).train(25)
    assert any(outcome.code == "stale" for _, held in batches for outcome in held.admission.outcomes)


def test_the_loops_end_with_the_stage_and_give_back_what_they_hold():
    before = threading.active_count()
    stage = Stage(settings())
    stage.train(2)
    assert stage.attempts.closed
    assert threading.active_count() == before


def test_a_stall_says_what_waits_for_what():
    how = settings(stall_s=0.2)
    stage = Stage(how)
    stage.attempts.advance = lambda: time.sleep(0.01) or []
    with pytest.raises(Stalled, match=r"learner waits for 3 more informative groups .*verifier waits for a finished group"):
        with running(stage.flow, stage.attempts, CoinJudge(), TASKS):
            stage.gathering.batch(stage.version)


def test_a_loop_that_dies_ends_the_stage_with_its_error():
    stage = Stage(settings())

    def broken():
        raise ZeroDivisionError("the sampler broke")

    stage.attempts.advance = broken
    with pytest.raises(ZeroDivisionError, match="the sampler broke"), running(stage.flow, stage.attempts, CoinJudge(), TASKS):
        stage.gathering.batch(stage.version)


def test_a_group_ends_once_whatever_is_told_again():
    flight, one = Flight(), order()
    flight.start(one)
    first, second = (trajectory(attempt, one.scope) for attempt in one.attempts)
    assert flight.end(one.scope, first) is None
    assert flight.end(one.scope, first) is None
    assert flight.end(one.scope, second) == (first, second)
    assert flight.end(one.scope, second) is None
    flight.settle(one.scope, accepted=2)
    assert flight.end(one.scope, second) is None
    with pytest.raises(RecordError, match="settled that does not wait"):
        flight.settle(one.scope, accepted=2)
    with pytest.raises(RecordError, match="issued twice"):
        flight.start(one)


def test_a_trajectory_nobody_asked_for_is_refused():
    flight = Flight()
    with pytest.raises(RecordError, match="nobody asked for"):
        flight.end("rl/g/000009", trajectory("rl/g/000009/0/x/0", "rl/g/000009"))
    flight.start(order())
    with pytest.raises(RecordError, match="another group"):
        flight.end("rl/g/000000", trajectory("rl/g/000001/0/x/0", "rl/g/000000"))


def test_a_token_from_a_version_that_is_not_published_is_refused():
    with pytest.raises(RecordError, match="does not exist yet"):
        age([trajectory("a", "g", (3, 4))], 3)


def test_a_step_longer_than_the_stall_deadline_is_no_stall():
    stage, past = Stage(settings(throttle=AReaL(eta=0)), tail=0.0), [0.0]
    stage.board = stage.flow.board = Board(20.0, lambda: time.monotonic() + past[0])
    with running(stage.flow, stage.attempts, CoinJudge(), TASKS):
        stage.gathering.batch(stage.version)
        past[0] += 1000.0                       # the learner trained, and the throttle was shut all the while
        stage.version += 1
        assert stage.gathering.batch(stage.version).issued
        past[0] += 1000.0
        stage.flow.close()
        stage.gathering.rest()
