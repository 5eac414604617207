"""Solutions on the inputs of their tests: answers in order, compiled once, and nothing of the expected outputs inside."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest
from patience import PATIENT

from rollbook.environments.sandbox import CodeRunner, SubprocessSandbox, cpp, isolated_runner
from rollbook.records.sandbox import (
    Answer,
    Attempted,
    Captured,
    Execution,
    Exited,
    MissingTool,
    NoAnswer,
    Program,
    Sandbox,
    SandboxError,
    SandboxStamp,
    Solution,
    SolutionRunner,
)

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed: "
                                      "apt-get install bubblewrap")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: apt-get install g++")
SUM = "a, b = map(int, input().split())\nprint(a + b)"
CPP_SUM = "#include <bits/stdc++.h>\nint main() { long a, b; std::cin >> a >> b; std::cout << a + b << '\\n'; }"


class Recording:
    """A sandbox that runs nothing and keeps what it was asked."""

    stamp = SandboxStamp(name="recording", strength="isolated", digest="d", unenforced=())

    def __init__(self, stdout: bytes = b""):
        self.asked: list[Program] = []
        self.stdout = stdout

    def run(self, program: Program) -> Execution:
        self.asked.append(program)
        return Execution(ending=Exited(status=0), stdout=Captured(data=self.stdout), stderr=Captured(data=b""), wall_s=0.0,
                         cpu_s=0.0, peak_bytes=1, sandbox=self.stamp)

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def runner() -> Iterator[CodeRunner]:
    languages = ("python", "cpp") if shutil.which("g++") else ("python",)
    runner = isolated_runner(languages, parallel=2)
    runner.test, runner.compilation = PATIENT, replace(runner.compilation, wall_s=900.0)
    yield runner
    runner.close()


def values(attempts: tuple[Attempted, ...]) -> list[object]:
    return [attempt.answer.value if isinstance(attempt.answer, Answer) else attempt.answer.code for attempt in attempts]


@needs_bubblewrap
def test_answers_come_in_the_order_of_the_inputs(runner) -> None:
    inputs = [f"{number} 1\n".encode() for number in range(20)]
    assert values(runner.attempt(Solution(language="python", source=SUM), inputs)) == [f"{n + 1}\n" for n in range(20)]


@needs_bubblewrap
@needs_compiler
def test_a_cpp_solution_is_compiled_and_answers(runner) -> None:
    assert values(runner.attempt(Solution(language="cpp", source=CPP_SUM), [b"1 2", b"3 4", b"x"])) == ["3\n", "7\n", "0\n"]


def test_a_cpp_solution_is_compiled_once_for_all_its_tests() -> None:
    sandbox = Recording(b"binary")
    CodeRunner(sandbox, languages=("cpp",)).attempt(Solution(language="cpp", source=CPP_SUM), [b"1"] * 20)
    assert [program.argv[0] for program in sandbox.asked] == ["/bin/sh", *["./program"] * 20]
    assert all(program.files == {"program": b"binary"} for program in sandbox.asked[1:])


@needs_bubblewrap
@needs_compiler
def test_the_standard_header_is_taken_from_the_compiled_one(runner) -> None:
    command = "g++ -std=c++20 -O2 -I/sandbox/include -H -fsyntax-only solution.cpp"
    done = runner.sandbox.run(Program(argv=("/bin/sh", "-c", command), files={"solution.cpp": CPP_SUM.encode()},
                                      limits=runner.compilation))
    assert b"! /sandbox/include/bits/stdc++.h.gch" in done.stderr.data, done.stderr.data


@needs_bubblewrap
@needs_compiler
def test_what_does_not_compile_has_no_answer_for_any_test(runner) -> None:
    attempts = runner.attempt(Solution(language="cpp", source="int main() { return undeclared; }"), [b"", b""])
    assert values(attempts) == ["not_compiled"] * 2 and "undeclared" in attempts[0].answer.detail


@needs_bubblewrap
@pytest.mark.parametrize(("source", "answer"), [
    ("def solve(a): return [a, (1.5, None), {'k': True}, 'x']", [3, [1.5, None], {"k": True}, "x"]),
    ("def solve(a):\n    print('beside')\n    return a", 3),
    ("import sys\ndef solve(a): return sys.stdin.read()", ""),
    ("def solve(a): return 10 ** 4000", 10 ** 4000),
    ("def solve(a): return 'ü\\ud800\\0'", "ü\ud800\0"),
    ("def solve(a): return {1: 2}", "not_plain_data"),
    ("def solve(a): return {a}", "not_plain_data"),
    ("def solve(a): return 10 ** 5000", "not_plain_data"),
    ("def solve(a): return -float('inf')", "not_plain_data"),
    ("def solve(a, b): return a", "exit_status"),
    ("def other(a): return a", "exit_status"),
    ("raise SystemExit", "no_result"),
], ids=lambda value: str(value)[:40])
def test_a_function_gives_plain_data_or_a_reason(runner, source: str, answer: object) -> None:
    [attempt] = runner.attempt(Solution(language="python", source=source, function="solve"), [(3,)])
    assert values((attempt,)) == [answer]
    assert not isinstance(attempt.answer, Answer) or type(attempt.answer.value) is type(answer)


@pytest.mark.parametrize("printed", [b'{"value": 1}{"value": 2}', b'{"value": NaN}', b'{"value": 1, "passed": true}', b"[1]",
                                     b"7", b'{"passed": true}', b"\xff", b"[" * 100_000, b'{"value": ' + b"9" * 5000 + b"}", b""])
def test_anything_but_one_document_with_a_value_is_no_result(printed: bytes) -> None:
    runner = CodeRunner(Recording(printed), languages=("python",))
    [attempt] = runner.attempt(Solution(language="python", source="", function="solve"), [(3,)])
    assert isinstance(attempt.answer, NoAnswer) and attempt.answer.code == "no_result"


def test_expected_outputs_have_no_way_in() -> None:
    """All that reaches the sandbox is the solution, the inputs and the code of the driver."""
    sandbox = Recording(b'{"value": 7}')
    runner = CodeRunner(sandbox, languages=("python",))
    assert list(inspect.signature(SolutionRunner.attempt).parameters) == ["self", "solution", "inputs"]
    assert list(inspect.signature(runner.attempt).parameters) == ["solution", "inputs"]
    runner.attempt(Solution(language="python", source=SUM), [b"3 4"])
    runner.attempt(Solution(language="python", source="def solve(a, b): ...", function="solve"), [(3, 4)])
    script, call = sandbox.asked
    assert (script.source, script.stdin, dict(script.files), dict(script.environment)) == (SUM.encode(), b"3 4", {}, {})
    assert call.stdin == b'{"function": "solve", "arguments": [3, 4]}' and list(call.files) == ["solution.py"]


def test_a_language_that_the_runner_was_not_made_for_is_refused() -> None:
    with pytest.raises(SandboxError, match="not made for cpp"):
        CodeRunner(Recording(), languages=("python",)).attempt(Solution(language="cpp", source=""), [b""])


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(cpp, "BASE_ENVIRONMENT", {"PATH": str(tmp_path)})
    with pytest.raises(MissingTool, match=r"apt-get install g\+\+") as missing:
        isolated_runner(("python", "cpp"))
    assert missing.value.tool == "g++"


@needs_compiler
def test_the_standard_header_is_compiled_once(tmp_path, monkeypatch) -> None:
    made = []
    monkeypatch.setattr(cpp, "_compile_header", lambda compiler, target: made.append(target.write_bytes(b"x")))
    first = cpp.compiled_header(tmp_path)
    assert cpp.compiled_header(tmp_path) == first and len(made) == 1
    assert [path.name for path in tmp_path.iterdir()] == [first.name] and (first / "bits" / "stdc++.h.gch").is_file()


@pytest.mark.parametrize("backend", [Recording, CodeRunner])
def test_the_backends_fit_their_protocols(backend) -> None:
    sandbox: Sandbox = Recording()
    weak: Sandbox = SubprocessSandbox(accept_weak=True)
    runner: SolutionRunner = CodeRunner(weak, languages=("python",), test=PATIENT)
    assert sandbox.stamp.strength == "isolated" and weak.stamp.strength == "weak"
    assert values(runner.attempt(Solution(language="python", source=SUM), [b"3 4"])) == ["7\n"]
