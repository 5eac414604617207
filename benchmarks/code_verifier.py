"""How long the code verifier takes: 8 Python solutions on 20 tests each, all judged to the end. Prints one line per measurement.

    python benchmarks/code_verifier.py [--solutions 8] [--tests 20] [--rounds 5]

The warm interpreter is started before the clock; every test then runs in a sandbox of its own, forked from it.
"""

from __future__ import annotations

import argparse
import statistics
import time

from rollbook.environments.sandbox import isolated_runner
from rollbook.rewards.verifiers.code import CodeVerifier

SOURCE = """```python
import sys

def solve(numbers):
    best = current = 0
    for number in numbers:
        current = max(0, current + number)
        best = max(best, current)
    return best

count, *numbers = map(int, sys.stdin.read().split())
print(solve(numbers))
```"""
TARGET_S = 3.0


def reference(tests: int) -> dict[str, object]:
    """The largest sum of neighbours, for sequences that grow by one."""
    made = []
    for number in range(tests):
        values = [(7 * place * place + number) % 23 - 11 for place in range(50)]
        best = current = 0
        for value in values:
            current = max(0, current + value)
            best = max(best, current)
        made.append({"input": f"{len(values)}\n{' '.join(map(str, values))}\n", "output": f"{best}\n"})
    return {"tests": made}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solutions", type=int, default=8)
    parser.add_argument("--tests", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    runner = isolated_runner()
    wanted = reference(asked.tests)
    verifier = CodeVerifier(runner, tests=asked.tests)
    verifier.judge([(SOURCE, reference(1))])
    seconds = []
    for _ in range(asked.rounds):
        began = time.perf_counter()
        found = verifier.judge([(f"{SOURCE}\n# {place}", wanted) for place in range(asked.solutions)])
        seconds.append(time.perf_counter() - began)
        assert all(getattr(one, "passed", False) for one in found), found
    runner.close()
    print(f"{asked.solutions} solutions x {asked.tests} tests: median {statistics.median(seconds):.2f} s, longest {max(seconds):.2f} s "
          f"of {asked.rounds} rounds (target {TARGET_S} s)")


if __name__ == "__main__":
    main()
