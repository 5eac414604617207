"""What running untrusted programs costs: prints a table and JSON.

    python benchmarks/sandbox.py [--executions 300] [--episodes 0] [--environments 500]

One after another: the median and the slowest tenth of a small Python program, from the call to its outcome. At once: how many in
a second on this machine. Cold: a fresh interpreter in a fresh bubblewrap, which the warm one saves. Eight solutions of
twenty tests each, as rewards ask for them. With --episodes, that many executions by --environments at once, and what is left
afterwards: processes, descriptors, files.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import shutil
import statistics
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from rollbook.environments.sandbox import TEST, BubblewrapSandbox, CodeRunner, cpp, isolated_runner, launch
from rollbook.environments.sandbox.usage import tree
from rollbook.records.sandbox import Answer, Exited, Program, Solution

PATIENT = replace(TEST, wall_s=900.0)        # a benchmark measures time, it does not judge by it
SMALL = Program(source=b"print(sum(map(int, input().split())))", stdin=b"3 4\n", limits=PATIENT)
PYTHON = "import sys\nn, *rest = map(int, sys.stdin.read().split())\nprint(sum(sorted(rest)[:n]))"
CPP = "#include <bits/stdc++.h>\nint main() { long a, s = 0; while (std::cin >> a) s += a; std::cout << s << std::endl; }"
INPUTS = [f"{n} {' '.join(map(str, range(500)))}\n".encode() for n in range(20)]


def one_by_one(sandbox: BubblewrapSandbox, executions: int) -> dict[str, float]:
    """Milliseconds of single executions, the interpreter warm."""
    def spent() -> float:
        began = time.perf_counter()
        assert sandbox.run(SMALL).stdout.data == b"7\n"
        return 1e3 * (time.perf_counter() - began)
    spent()
    times = sorted(spent() for _ in range(executions))
    return {"execution, median ms": statistics.median(times), "execution, slowest tenth ms": times[int(0.9 * len(times))]}


def at_once(sandbox: BubblewrapSandbox, executions: int) -> dict[str, float]:
    """Executions per second with as many threads as programs may run at a time."""
    began = time.perf_counter()
    with ThreadPoolExecutor(sandbox.parallel) as threads:
        assert all(done.ending == Exited(status=0) for done in threads.map(sandbox.run, [SMALL] * executions))
    return {f"executions per second, {sandbox.parallel} at a time": executions / (time.perf_counter() - began)}


def cold(executions: int = 10) -> dict[str, float]:
    """Milliseconds of a fresh interpreter in a fresh bubblewrap, without limits and without watching."""
    interpreter = launch.find_interpreter(None)
    words = [*launch.command(launch.find_bubblewrap(), interpreter, {}), "--", interpreter.path, "-c", "print(sum((3, 4)))"]
    times = []
    for _ in range(executions):
        began = time.perf_counter()
        subprocess.run(words, check=True, capture_output=True, **launch.as_sandbox_user())  # type: ignore[call-overload]
        times.append(1e3 * (time.perf_counter() - began))
    return {"cold interpreter, median ms": statistics.median(times)}


def solutions(runner: CodeRunner, solution: Solution, count: int = 8) -> float:
    """Seconds for `count` solutions on twenty tests each, all at once."""
    began = time.perf_counter()
    with ThreadPoolExecutor(count) as threads:
        for attempts in threads.map(lambda _: runner.attempt(solution, INPUTS), range(count)):
            assert all(isinstance(attempt.answer, Answer) for attempt in attempts)
    return time.perf_counter() - began


def compilation(runner: CodeRunner) -> float:
    """Seconds to compile one C++ solution with the standard header already compiled."""
    began = time.perf_counter()
    runner.attempt(Solution(language="cpp", source=CPP), INPUTS[:1])
    return time.perf_counter() - began


def episodes(sandbox: BubblewrapSandbox, count: int, environments: int) -> dict[str, float]:
    """Executions by many environments at once, some of them hostile; what is there afterwards beyond what was there before."""
    kinds = (b"print(1)", b"import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(60)", b"import os; os.abort()",
             b"open('/tmp/f', 'wb').write(bytes(10 ** 6))", b"while True: print('x' * 9999)")

    def left() -> dict[str, int]:
        return {"processes": len(list(tree(os.getpid()))), "descriptors": len(os.listdir("/proc/self/fd")),
                "files": len(glob.glob("/tmp/rollbook*")), "threads": threading.active_count()}
    sandbox.run(SMALL)
    before, began = left(), time.perf_counter()
    with ThreadPoolExecutor(environments) as threads:
        list(threads.map(lambda n: sandbox.run(replace(SMALL, source=kinds[n % len(kinds)])), range(count)))
    spent = time.perf_counter() - began
    time.sleep(1.0)
    after = left()
    return {"episodes": float(count), "episodes per second": count / spent,
            **{f"left: {name}": float(after[name] - before[name]) for name in after}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--executions", type=int, default=300)
    parser.add_argument("--episodes", type=int, default=0)
    parser.add_argument("--environments", type=int, default=500)
    arguments = parser.parse_args()
    sandbox = BubblewrapSandbox()
    runner = CodeRunner(sandbox, languages=("python",), parallel=sandbox.parallel, test=PATIENT)
    found = {"load before": os.getloadavg()[0], **one_by_one(sandbox, arguments.executions),
             **at_once(sandbox, arguments.executions), **cold(),
             "8 Python solutions x 20 tests, s": solutions(runner, Solution(language="python", source=PYTHON))}
    if arguments.episodes:
        found |= episodes(sandbox, arguments.episodes, arguments.environments)
    sandbox.close()
    if shutil.which("g++"):
        began = time.perf_counter()
        header = cpp.compiled_header()
        found["standard header, s (once for a machine)"] = time.perf_counter() - began
        found["standard header, MB"] = sum(file.stat().st_size for file in Path(header).rglob("*") if file.is_file()) / 1e6
        with_compiler = isolated_runner(("cpp",))
        with_compiler.test = PATIENT
        compilation(with_compiler)
        found["C++ compilation with one test, s"] = compilation(with_compiler)
        found["8 C++ solutions x 20 tests with compilation, s"] = solutions(with_compiler, Solution(language="cpp", source=CPP))
        with_compiler.close()
    for name, value in found.items():
        print(f"{name:50} {value:10.2f}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
