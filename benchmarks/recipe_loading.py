"""What loading a recipe takes, its citations checked against the claims: prints CPU milliseconds, each in a fresh process.

    python benchmarks/recipe_loading.py [NAME | --all]

`import` is `rollbook.recipes` after the record types and PyYAML, which every command loads anyway; `first` reads the claims too.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

ROUNDS = 5
PROGRAM = """
import json, sys, time
clock = time.process_time
start = clock()
import rollbook.records, yaml
known = clock()
from rollbook.recipes import load, resolve
imported = clock()
document = load({name!r})
first = clock()
load({name!r})
again = clock()
from rollbook.recipes import unknowns
scale = next((one for one in document.scales if not unknowns(document, one)), None)
if scale:
    resolve(document, scale)
resolved = clock()
print(json.dumps({{"records and yaml": known - start, "import": imported - known, "first load": first - imported,
                   "second load": again - first, "resolve": resolved - again, "torch": "torch" in sys.modules}}))
"""


def every() -> None:
    """The first load of each built-in recipe, each in a fresh process, slowest first; and `recipes check --all`."""
    from rollbook.recipes import builtin_names

    first = {name: json.loads(subprocess.run([sys.executable, "-c", PROGRAM.format(name=name)], capture_output=True, text=True,
                                             check=True).stdout)["first load"] for name in builtin_names()}
    for name in sorted(first, key=lambda one: -first[one]):
        print(f"{1000 * first[name]:7.1f} ms  {name}")
    check = ("import resource, sys; sys.argv = ['rollbook', 'recipes', 'check', '--all']\nfrom rollbook.cli import main\n"
             "try: main()\nexcept SystemExit: pass\n"
             "print(resource.getrusage(resource.RUSAGE_SELF).ru_utime)")
    seconds = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    print(f"recipes check --all: {float(seconds):.2f} s of CPU, {len(first)} recipes")


def main() -> None:
    if "--all" in sys.argv:
        every()
        return
    name = sys.argv[1] if len(sys.argv) > 1 else "magistral-small"
    rounds = [json.loads(subprocess.run([sys.executable, "-c", PROGRAM.format(name=name)], capture_output=True, text=True,
                                        check=True).stdout) for _ in range(ROUNDS)]
    for part in rounds[0]:
        if part != "torch":
            print(f"{part:<17} {1000 * statistics.median(one[part] for one in rounds):7.1f} ms")
    print(f"torch was loaded: {any(one['torch'] for one in rounds)}")


if __name__ == "__main__":
    main()
