"""Puts every fault into the producer and prints what caught it: stage x injection x caught. Exits 1 when one was not.

    python scripts/fault_table.py                                   all of them, then the table
    python scripts/fault_table.py --results F --shard 1/4           one part of them; what came out is added to F
    python scripts/fault_table.py --results F --again               those of F that were not caught, and those that F lacks
    python scripts/fault_table.py --results F --table               the table of F; a fault that was not run counts as not caught
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ATTACKS = Path(__file__).parents[1] / "tests" / "attacks"
LEAST = 3           # faults that a stage must have


@dataclass(eq=False)
class Faults:
    """Collects the tests marked as faults, runs those that are wanted, and notes how each ended."""

    only: str = ""                                                          # a part of the test's name
    shard: tuple[int, int] = (1, 1)
    known: dict[str, bool] = field(default_factory=dict)                    # from earlier shards
    again: bool = False
    run: bool = True
    marks: dict[str, tuple[int, str]] = field(default_factory=dict)
    caught: dict[str, bool] = field(default_factory=dict)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        marked = [(item, mark) for item in items if (mark := item.get_closest_marker("fault")) is not None]
        self.marks = {item.nodeid: (mark.kwargs["stage"], mark.kwargs["injection"]) for item, mark in marked}
        items[:] = self._part([item for item, _ in marked]) if self.run else []

    def _part(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """A contiguous part, so that tests of one file share what they have in common."""
        wanted = [item for item in items if self.only in item.nodeid and not (self.again and self.known.get(item.nodeid))]
        number, of = self.shard
        return [item for at, item in enumerate(wanted) if at * of // len(wanted) == number - 1]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            self.caught[report.nodeid] = self.caught.get(report.nodeid, True) and report.passed


def table(marks: dict[str, tuple[int, str]], caught: dict[str, bool]) -> int:
    """Prints the table; how many faults were not caught, or stages have too few."""
    print("\nstage  caught  injection")
    for node, (stage, injection) in sorted(marks.items(), key=lambda item: item[1]):
        said = {True: "yes", False: "NO", None: "not run"}[caught.get(node)]
        print(f"{stage:5}  {said:7} {injection}")
    stages = {stage for stage, _ in marks.values()}
    thin = [stage for stage in range(1, 15) if sum(s == stage for s, _ in marks.values()) < LEAST]
    missed = sum(caught.get(node) is False for node in marks)
    unrun = sum(node not in caught for node in marks)
    print(f"\n{len(marks)} faults in {len(stages)} stages, {missed} not caught, {unrun} not run; "
          f"stages with fewer than {LEAST}: {thin or 'none'}")
    return missed + unrun + len(thin)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, default=[ATTACKS], help="test files; all of tests/attacks")
    parser.add_argument("--results", type=Path, help="a JSON file of test: caught, read and added to")
    parser.add_argument("--shard", default="1/1", help="NUMBER/OF")
    parser.add_argument("--only", default="", help="a part of the tests' names")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    number, _, of = given.shard.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        parser.error(f"--shard is NUMBER/OF with NUMBER from 1 to OF, got {given.shard}")
    known = json.loads(given.results.read_text()) if given.results and given.results.exists() else {}
    faults = Faults(only=given.only, shard=(int(number), int(of)), known=known, again=given.again, run=not given.table)
    files = [str(path) for path in given.files]
    ended = pytest.main(["-q", "-m", "fault", "-p", "no:cacheprovider", "--durations=10", *files], plugins=[faults])
    if ended not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        return int(ended)               # an error while collecting, or a stop: the rest says nothing
    if given.results:
        held = json.loads(given.results.read_text()) if given.results.exists() else {}      # another shard may have ended since
        given.results.write_text(json.dumps({**held, **faults.caught}, indent=1, sort_keys=True) + "\n")
    caught = {node: one for node, one in {**known, **faults.caught}.items() if node in faults.marks}
    return 1 if table(faults.marks, caught) and (given.table or given.results is None) else int(not all(faults.caught.values()))


if __name__ == "__main__":
    sys.exit(main())
