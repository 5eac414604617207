"""Tests of a solution: each in a fresh sandbox of its own, forked from the warm interpreter; inputs go in, answers come out.

Expected outputs have no way in: they are compared by who asked, outside, with an answer that is text or plain data.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, assert_never

from rollbook.environments.sandbox import cpp
from rollbook.environments.sandbox.bubblewrap import BubblewrapSandbox
from rollbook.records.sandbox import (
    Answer,
    Attempted,
    Captured,
    Exceeded,
    Execution,
    Exited,
    Language,
    Limits,
    NoAnswer,
    Program,
    Sandbox,
    SandboxError,
    Signalled,
    Solution,
)

# Magistral (2506.10910) gives a test 4 s and 300 MB and a compilation 10 s; it does not give the other limits.
TEST = Limits(wall_s=4.0, cpu_s=4.0, memory_bytes=300_000_000, processes=32, file_bytes=16 * 2**20, disk_bytes=64 * 2**20,
              output_bytes=4 * 2**20)
COMPILATION = Limits(wall_s=10.0, cpu_s=10.0, memory_bytes=1_500_000_000, processes=32, file_bytes=64 * 2**20,
                     disk_bytes=256 * 2**20, output_bytes=32 * 2**20)
DRIVER = Path(__file__).parent / "guest" / "function.py"


def isolated_runner(languages: Sequence[Language] = ("python",), *, parallel: int | None = None) -> CodeRunner:
    """A runner in the isolated sandbox; MissingTool where a language's compiler or bubblewrap is not installed."""
    readonly = {cpp.INCLUDE: cpp.compiled_header()} if "cpp" in languages else {}
    sandbox = BubblewrapSandbox(parallel=parallel, readonly=readonly)
    return CodeRunner(sandbox, languages=languages, parallel=sandbox.parallel)


class CodeRunner:
    """Runs solutions on the inputs of their tests, up to `parallel` tests at a time; from any thread."""

    def __init__(self, sandbox: Sandbox, *, languages: Sequence[Language], parallel: int = 1, test: Limits = TEST,
                 compilation: Limits = COMPILATION):
        self.sandbox, self.languages, self.parallel = sandbox, tuple(languages), parallel
        self.test, self.compilation = test, compilation
        self._driver = DRIVER.read_bytes()

    def attempt(self, solution: Solution, inputs: Sequence[bytes] | Sequence[Sequence[Any]]) -> tuple[Attempted, ...]:
        """One `Attempted` per input, in order; all the same where the solution does not compile."""
        if solution.language not in self.languages:
            raise SandboxError(f"the runner was not made for {solution.language}", got=", ".join(self.languages),
                               fix="name the language when the runner is made")
        if solution.language == "cpp":
            compiled = self.sandbox.run(cpp.compilation(solution.source, self.compilation))
            if compiled.ending != Exited(status=0):
                refused = NoAnswer(code="not_compiled", detail=_told(compiled))
                return tuple(Attempted(answer=refused, execution=compiled) for _ in inputs)
            run = partial(self._binary, compiled.stdout.data)
        elif solution.function is not None:
            run = partial(self._call, solution)
        else:
            run = partial(self._script, solution)
        if self.parallel == 1 or len(inputs) < 2:
            return tuple(map(run, inputs))
        with ThreadPoolExecutor(max_workers=min(self.parallel, len(inputs))) as threads:
            return tuple(threads.map(run, inputs))

    def close(self) -> None:
        self.sandbox.close()

    def _script(self, solution: Solution, given: bytes) -> Attempted:
        return printed(self.sandbox.run(Program(source=_bytes(solution.source), stdin=given, limits=self.test)))

    def _binary(self, binary: bytes, given: bytes) -> Attempted:
        return printed(self.sandbox.run(Program(argv=(f"./{cpp.BINARY}",), files={cpp.BINARY: binary}, stdin=given,
                                                limits=self.test)))

    def _call(self, solution: Solution, arguments: Sequence[Any]) -> Attempted:
        call = json.dumps({"function": solution.function, "arguments": list(arguments)}, allow_nan=False).encode()
        return returned(self.sandbox.run(Program(source=self._driver, files={"solution.py": _bytes(solution.source)}, stdin=call,
                                                 limits=self.test)))


def printed(execution: Execution) -> Attempted:
    """The text that a program printed, if it ended well."""
    return Attempted(answer=_failure(execution) or _text(execution.stdout), execution=execution)


def returned(execution: Execution) -> Attempted:
    """The plain data that a function returned, if its program ended well."""
    return Attempted(answer=_failure(execution) or _decoded(execution.stdout), execution=execution)


def _failure(execution: Execution) -> NoAnswer | None:
    match execution.ending:
        case Exited(status=0):
            return None
        case Exited():
            return NoAnswer(code="exit_status", detail=_told(execution))
        case Signalled():
            return NoAnswer(code="signal", detail=_told(execution))
        case Exceeded(limit=limit):
            return NoAnswer(code="limit", detail=limit)
        case _:
            assert_never(execution.ending)


def _text(printed: Captured) -> Answer | NoAnswer:
    text = printed.text()
    return Answer(value=text) if text is not None else NoAnswer(code="not_text", detail=printed.shown(80))


def _decoded(printed: Captured) -> Answer | NoAnswer:
    """Exactly one JSON document with a value; anything else is no result, for it is not what the driver writes."""
    if not printed.data:
        return NoAnswer(code="no_result", detail="the program ended before the function returned")
    try:
        document = json.loads(printed.data, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return NoAnswer(code="no_result", detail=f"{type(error).__name__}: {error}"[:200])
    if isinstance(document, dict) and set(document) == {"value"}:
        return Answer(value=document["value"])
    if isinstance(document, dict) and set(document) == {"refused"}:
        return NoAnswer(code="not_plain_data", detail=str(document["refused"])[:200])
    return NoAnswer(code="no_result", detail="the program wrote to the place of the result itself")


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not plain data")


def _told(execution: Execution) -> str:
    """How it ended and the end of its error output, safe to print."""
    match execution.ending:
        case Exited(status=status):
            how = f"exit status {status}"
        case Signalled(signal=number):
            how = signal.Signals(number).name if number in {each.value for each in signal.Signals} else f"signal {number}"
        case Exceeded(limit=limit):
            how = f"limit of {limit}"
        case _:
            assert_never(execution.ending)
    said = Captured(data=execution.stderr.data[-400:].strip()).shown()
    return f"{how}: {said}" if said else how


def _bytes(source: str) -> bytes:
    """A source as it goes into a file: lone surrogates stay, and are then the program's own error."""
    return source.encode("utf-8", "surrogatepass")
