"""`rollbook env check`: an environment that leaks, drifts or cannot tell right from wrong is caught and told what for."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import pytest
from click.testing import CliRunner

from rollbook.cli import main
from rollbook.environments.calculator import Calculator, CalculatorEpisode
from rollbook.environments.mutable import suspects
from rollbook.environments.naming import spec_named
from rollbook.orchestration.environment_check import check
from rollbook.records import (
    Action,
    EnvironmentFault,
    FinalState,
    Grade,
    Observation,
    Reply,
    Services,
    Solutions,
    Task,
    TaskSet,
    ToolCall,
)

HERE = "test_environment_check"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptsAll(Calculator):
    def image(self):
        return Calculator.image(self)

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        return Calculator.tasks(self, count=count, seed=seed)

    def build(self, *, services: Services, seed: int) -> CalculatorEpisode:
        return Calculator.build(self, services=services, seed=seed)

    def solutions(self, task: Task) -> Solutions:
        return Calculator.solutions(self, task)

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade:
        return Grade(accuracy=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusesAll(AcceptsAll):
    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade:
        return Grade(accuracy=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drifts(AcceptsAll):
    """Its tasks are drawn by chance."""

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        return Calculator.tasks(self, count=count, seed=random.randrange(10**9))


class ShowsTheTime(CalculatorEpisode):
    async def reset(self, task: Task) -> Observation:
        return Observation(replies=(Reply(owner="environment", content=str(time.time_ns())),))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadsTheClock(AcceptsAll):
    def build(self, *, services: Services, seed: int) -> CalculatorEpisode:
        return ShowsTheTime()


class Breaks(CalculatorEpisode):
    async def reset(self, task: Task) -> Observation:
        raise OSError("no disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class CannotReset(AcceptsAll):
    def build(self, *, services: Services, seed: int) -> CalculatorEpisode:
        return Breaks()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsNothing(AcceptsAll):
    """Its gold solution calls a tool that is not there."""

    verify = Calculator.verify

    def solutions(self, task: Task) -> Solutions:
        call = Action(calls=(ToolCall(id="a", name="abacus", arguments={"expression": "1"}),))
        return Solutions(gold=((call, Action(text=task.reference)),), wrong=((Action(text="?"),),))


@pytest.mark.parametrize(("name", "where", "words"), [
    ("AcceptsAll", "verifier", "does not refuse a wrong"), ("RefusesAll", "verifier", "does not accept the gold"),
    ("Drifts", "tasks", "the same seed gave others"), ("ReadsTheClock", "reset", "two resets"),
    ("CannotReset", "reset", "no disk"), ("CallsNothing", "calls", "no such tool")])
def test_an_environment_that_breaks_a_promise_fails_for_that_reason(name: str, where: str, words: str) -> None:
    found = {one.name: one.detail for one in check(spec_named(f"{HERE}:{name}", {}), count=2, deep=False) if one.result == "fail"}
    assert words in found[where]


def test_places_that_read_something_mutable_are_named_with_their_line() -> None:
    found = {(one.depends_on, one.what) for one in suspects(ReadsTheClock())}
    assert ("the clock", "time.time_ns") in found


def test_the_command_passes_a_good_environment_and_fails_a_bad_one() -> None:
    good = CliRunner().invoke(main, ["env", "check", "calculator", "--quick", "--tasks", "2"])
    bad = CliRunner().invoke(main, ["env", "check", f"{HERE}:AcceptsAll", "--quick", "--tasks", "1"])
    none = CliRunner().invoke(main, ["env", "check", "calculatr"])
    assert (good.exit_code, bad.exit_code, none.exit_code) == (0, 1, 2) and "verifier" in bad.output
    assert "calculator" in CliRunner().invoke(main, ["env", "list"]).output
    assert CliRunner().invoke(main, ["env", "check", "calculator", "--quick", "--set", "terms"]).exit_code == 2


def test_parameters_of_the_command_are_json_or_text() -> None:
    words = ["env", "check", "calculator", "--quick", "--tasks", "1"]
    done = CliRunner().invoke(main, [*words, "--set", "terms=3", "--set", "tool=calc"])
    assert done.exit_code == 0, done.output
    assert CliRunner().invoke(main, ["env", "check", "calculator", "--quick", "--set", "terms=x"]).exit_code == 1


def test_the_doctor_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import rollbook.environments.sandbox as sandbox
    from rollbook.environments.sandbox import Missing

    lacking = (Missing(tool="bwrap", needed_for="the isolated sandbox", fix="apt-get install bubblewrap"),)
    monkeypatch.setattr(sandbox, "missing_tools", lambda: lacking)
    done = CliRunner().invoke(main, ["doctor"])
    assert done.exit_code == 1 and "bwrap" in done.output and "apt-get install bubblewrap" in done.output
    monkeypatch.setattr(sandbox, "missing_tools", lambda: ())
    assert CliRunner().invoke(main, ["doctor"]).exit_code == 0


def test_a_fault_carries_its_way_out() -> None:
    with pytest.raises(EnvironmentFault) as caught:
        spec_named("nothing", {})
    assert caught.value.fix and "env list" in caught.value.fix
