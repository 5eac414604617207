"""Puts every fault into the producer and prints what caught it: stage x injection x caught. Exits 1 when one was not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


class Faults:
    """Collects the tests marked as faults and how each ended."""

    def __init__(self) -> None:
        self.marks: dict[str, tuple[int, str]] = {}
        self.caught: dict[str, bool] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        marked = [(item, item.get_closest_marker("fault")) for item in items]
        self.marks = {item.nodeid: (mark.kwargs["stage"], mark.kwargs["injection"]) for item, mark in marked if mark is not None}
        items[:] = [item for item, mark in marked if mark is not None]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            self.caught[report.nodeid] = self.caught.get(report.nodeid, True) and report.passed


def main() -> int:
    faults = Faults()
    pytest.main(["-q", "-m", "fault", "-p", "no:cacheprovider", str(Path(__file__).parents[1] / "tests" / "attacks")], plugins=[faults])
    print("\nstage  caught  injection")
    for node, (stage, injection) in sorted(faults.marks.items(), key=lambda item: item[1]):
        print(f"{stage:5}  {'yes' if faults.caught.get(node) else 'NO ':6}  {injection}")
    stages = {stage for stage, _ in faults.marks.values()}
    thin = [stage for stage in range(1, 15) if sum(s == stage for s, _ in faults.marks.values()) < 3]
    missed = sum(not faults.caught.get(node) for node in faults.marks)
    print(f"\n{len(faults.marks)} faults in {len(stages)} stages, {missed} not caught; "
          f"stages with fewer than three: {thin or 'none'}")
    return 1 if missed or thin else 0


if __name__ == "__main__":
    sys.exit(main())
