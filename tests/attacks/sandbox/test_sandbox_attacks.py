"""Every attack ends in one of the ways it may end, is not rewarded, leaves no process, and does no harm to the next program."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace

import cases_cpp
import cases_forging
import cases_late
import cases_reach
import cases_resources
import pytest
from sandbox_cases import MARKER, PATIENT, SECRET, Attack, end, rewarded
from sandbox_processes import programs

from rollbook.environments.sandbox import COMPILATION, BubblewrapSandbox, CodeRunner
from rollbook.records.sandbox import Exited, Program

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt-get install bubblewrap")
PYTHON = (*cases_reach.NETWORK, *cases_reach.FILES, *cases_reach.PROCESSES, *cases_reach.RIGHTS, *cases_resources.PROCESSES,
          *cases_resources.MEMORY, *cases_resources.DISK, *cases_resources.OUTPUT, *cases_resources.TIME_CASES,
          *cases_resources.CRASHES, *cases_forging.COMPARISON, *cases_forging.RESULTS, *cases_forging.DISCOVERY,
          *cases_forging.PRINTED, *cases_late.CALLS, *cases_late.VALUES, *cases_forging.HONEST)
CPP = (*cases_cpp.COMPILER, *cases_cpp.PROGRAMS, *cases_cpp.HONEST)
HONEST = cases_forging.HONEST[0]


def inside(runner: CodeRunner) -> list[int]:
    """Processes of programs in the sandbox."""
    assert isinstance(runner.sandbox, BubblewrapSandbox)
    return [process for zygote in runner.sandbox._zygotes for process in programs(zygote.process.pid)]


def empties(runner: CodeRunner, seconds: float = 1.0) -> bool:
    until = time.monotonic() + seconds
    while inside(runner) and time.monotonic() < until:
        time.sleep(0.01)
    return not inside(runner)


def try_out(case: Attack, runner: CodeRunner, facts: dict[str, str]) -> None:
    compilation = replace(COMPILATION, wall_s=900.0, cpu_s=5.0)
    limited = CodeRunner(runner.sandbox, languages=runner.languages, parallel=2, test=case.limits, compilation=compilation)
    attempts = limited.attempt(case.solution(facts), case.inputs())
    seen = [(end(attempt), attempt.answer) for attempt in attempts]
    assert all(found in case.ends for found, _ in seen), seen
    assert rewarded(attempts) == case.honest, seen
    assert empties(runner), "a process is left"
    printed = b"".join(attempt.execution.stdout.data + attempt.execution.stderr.data for attempt in attempts if attempt.execution)
    assert SECRET.encode() not in printed, "a secret of the host was found"
    assert rewarded(runner.attempt(HONEST.solution(facts), HONEST.inputs())), "an honest program fails right afterwards"


@pytest.mark.parametrize("case", PYTHON, ids=lambda case: case.name)
def test_a_python_attack_ends_as_it_may_and_is_not_rewarded(case, python, facts) -> None:
    try_out(case, python, facts)


@pytest.mark.parametrize("case", CPP, ids=lambda case: case.name)
def test_a_cpp_attack_ends_as_it_may_and_is_not_rewarded(case, cpp, facts) -> None:
    try_out(case, cpp, facts)


def test_there_are_enough_attacks_and_each_has_its_name() -> None:
    names = [case.name for case in (*PYTHON, *CPP)]
    assert len(set(names)) == len(names)
    assert sum(not case.honest for case in (*PYTHON, *CPP)) >= 120


def test_a_search_of_memory_finds_what_is_there(python, facts) -> None:
    """The control of `marker-in-memory`: the same program finds the marker when its input holds it."""
    [case] = [case for case in cases_reach.FILES if case.name == "marker-in-memory"]
    source = case.solution(facts).source.replace("sys.stdin.read()", "kept = sys.stdin.read()").encode()
    found = python.sandbox.run(Program(source=source, stdin=MARKER.encode(), limits=PATIENT))
    assert found.ending == Exited(status=0) and found.stdout.data.startswith(b"ESCAPED")


def test_a_large_input_that_nobody_reads_holds_nothing_up(python) -> None:
    unread = python.sandbox.run(Program(source=b"print(1)", stdin=bytes(8 << 20), limits=PATIENT))
    assert unread.ending == Exited(status=0)
    count = b"import sys\nprint(len(sys.stdin.buffer.read()))"
    assert python.sandbox.run(Program(source=count, stdin=bytes(8 << 20), limits=PATIENT)).stdout.data == b"8388608\n"


def test_a_program_that_changes_its_own_text_runs_unchanged_in_the_next_test(python, facts) -> None:
    [case] = [case for case in cases_reach.FILES if case.name == "own-source"]
    assert [attempt.answer.value for attempt in python.attempt(case.solution(facts), case.inputs())] == ["first\n", "first\n"]


def test_no_output_of_a_survivor_is_used(python, facts) -> None:
    [case] = [case for case in cases_resources.PROCESSES if case.name == "own-session-survivor"]
    assert [attempt.answer.value for attempt in python.attempt(case.solution(facts), case.inputs())] == ["early\n", "early\n"]


def test_the_verdict_on_a_flood_of_errors_is_the_same_every_time(python, facts) -> None:
    [case] = [case for case in cases_resources.OUTPUT if case.name == "flood-of-errors"]
    ends = {end(attempt) for _ in range(5) for attempt in python.attempt(case.solution(facts), case.inputs())}
    assert ends == {"limit output"}
