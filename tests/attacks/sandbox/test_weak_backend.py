"""The attacks can succeed: the same programs reach what they are after where nothing isolates, or where the judge is careless."""

from __future__ import annotations

import os
import signal
import textwrap
import time

import cases_forging
import cases_reach
import cases_resources
import pytest
from sandbox_cases import PATIENT, Attack, end

from rollbook.environments.sandbox import CodeRunner, SubprocessSandbox
from rollbook.records.sandbox import Exited, Program

ALL = {case.name: case for case in (*cases_reach.NETWORK, *cases_reach.FILES, *cases_reach.PROCESSES, *cases_resources.PROCESSES,
                                    *cases_forging.COMPARISON, *cases_forging.RESULTS, *cases_forging.DISCOVERY,
                                    *cases_forging.PRINTED)}
HARMLESS = ("tcp-loopback", "host-unix-socket", "host-abstract-socket", "host-secret", "other-processes", "counted-forks")


@pytest.fixture(scope="module")
def weak() -> CodeRunner:
    return CodeRunner(SubprocessSandbox(accept_weak=True), languages=("python",), test=PATIENT)


@pytest.mark.parametrize("name", HARMLESS)
def test_an_attack_escapes_where_nothing_isolates(name: str, weak, facts) -> None:
    case = ALL[name]
    [attempted] = weak.attempt(case.solution(facts), case.inputs()[:1])
    assert end(attempted) == "answered" and attempted.answer.value.startswith("ESCAPED"), attempted.answer


def test_a_child_in_a_session_of_its_own_survives_the_weak_backend(weak) -> None:
    source = b"import os, time\nif os.fork() == 0:\n    os.setsid()\n    print(os.getpid(), flush=True)\n" \
             b"    os.closerange(0, 3)\n    time.sleep(60)\ntime.sleep(0.3)"
    done = weak.sandbox.run(Program(source=source, limits=PATIENT))
    survivor = int(done.stdout.data)
    os.kill(survivor, 0)
    os.kill(survivor, signal.SIGKILL)
    time.sleep(0.05)


def test_what_a_program_leaves_outside_its_folder_stays_in_the_weak_backend(weak, facts) -> None:
    path = os.path.join(facts["folder"], "left")
    for _ in range(2):
        source = f"import os\nprint(os.path.exists({path!r}))\nopen({path!r}, 'w').close()"
        done = weak.sandbox.run(Program(source=source.encode(), limits=PATIENT))
    assert done.stdout.data == b"True\n"


@pytest.mark.parametrize("name", ["equals-everything", "within-any-tolerance", "int-in-name-only", "str-in-name-only",
                                  "list-in-name-only", "lies-about-its-class", "true-for-one"])
def test_an_object_of_the_solution_passes_a_comparison_in_its_own_process(name: str) -> None:
    names: dict[str, object] = {}
    exec(textwrap.dedent(ALL[name].source), names)
    value = names["solve"](3, 4)                                     # type: ignore[operator]
    wanted = 1 if name == "true-for-one" else 7
    assert value == wanted


@pytest.mark.parametrize("name", ["leaves-at-import", "leaves-in-the-call", "becomes-another-program", "result-files",
                                  "test-framework", "hidden-by-escapes", "prints-a-report"])
def test_an_attack_passes_a_judge_that_goes_by_the_exit_code(name: str, weak, facts) -> None:
    case: Attack = {**ALL, **{case.name: case for case in cases_reach.FILES}}[name]
    [attempted] = weak.attempt(case.solution(facts), case.inputs()[:1])
    assert attempted.execution.ending == Exited(status=0)
