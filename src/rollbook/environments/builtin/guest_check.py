"""Runs in the sandbox: a HumanEval check on its own solution; prints the plain (arguments, value) pairs of the calls it made."""

from __future__ import annotations

import copy
import json
import random
import sys


def main() -> None:
    name = sys.stdin.read()
    space: dict = {}                                             # type: ignore[type-arg]
    for file in ("gold.py", "check.py"):
        with open(file, encoding="utf-8") as text:
            exec(compile(text.read(), file, "exec"), space)
    found: list = []                                             # type: ignore[type-arg]
    solution = space[name]

    def candidate(*arguments: object) -> object:
        given = copy.deepcopy(arguments)
        value = solution(*arguments)
        try:
            case = json.loads(json.dumps([list(given), value], allow_nan=False))
        except (TypeError, ValueError):
            return value
        if case not in found:
            found.append(case)
        return value

    random.seed(0)
    space["check"](candidate)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
