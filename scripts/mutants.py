"""Introduce each hazard of the specification into a copy and see at least one test fail: `make mutants`.

Reads tests/mutants/*.toml. Each mutant replaces text in one file of a copy of the package and runs the tests it names, without
touching the working tree. A mutant is killed by a test that fails; one that does not load, hangs, or does not apply in exactly
`count` places (1 unless it says so) is broken. Prints a table; exits 1 unless all are killed and the untouched copy passes.

A file's `[tree]` table says what its mutants need: `package` and `tests` are the folders that `file` and `tests` are relative to,
`copied` the folders of the copy, `bare` the packages whose __init__.py is left empty there so that nothing else of theirs loads.
Without the table they are the objectives.

    python scripts/mutants.py [--only TEXT] [--file STEM] [--part K/N] [--jobs N]
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 180  # of processor time, so that a busy machine does not make a mutant look hung
WAIT_S = 3600
LOADED = (hypothesis, torch)  # before the fork, so that no child has to
CONFTEST = """from hypothesis import Phase, settings

settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate], database=None)
settings.load_profile("mutants")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """What the copy for some mutants holds."""

    package: Path
    tests: Path
    copied: tuple[Path, ...]
    bare: tuple[Path, ...]


OBJECTIVES = Tree(
    package=Path("src/rollbook/objectives"),
    tests=Path("tests/laws/objectives"),
    copied=(Path("src/rollbook/objectives"), Path("tests/laws/objectives"), Path("tests/golden/objectives")),
    bare=(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One replacement in one file, and the tests that must notice.

    Example: Mutant(id="k3-reads-d-backwards", hazard=0, file="kl.py", old="x", new="-x", tests=("test_kl.py",), tree=objectives)
    """

    id: str
    hazard: int
    file: str
    old: str
    new: str
    count: int = 1
    tests: tuple[str, ...]
    tree: Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    mutant: Mutant
    killed: bool
    by: str
    seconds: float


def load(folder: Path, stem: str = "*") -> list[Mutant]:
    """The mutants of the folder's files of that name; ids are unique."""
    mutants = [mutant for path in sorted(folder.glob(f"{stem}.toml")) for mutant in load_file(tomllib.loads(path.read_text()))]
    if len({mutant.id for mutant in mutants}) != len(mutants):
        raise SystemExit("mutant ids must be unique")
    return mutants


def load_file(document: dict[str, Any]) -> list[Mutant]:
    """The mutants of one file."""
    tree = _tree(document["tree"]) if "tree" in document else OBJECTIVES
    return [
        Mutant(
            id=record["id"],
            hazard=record["hazard"],
            file=record["file"],
            old=record["old"],
            new=record["new"],
            count=record.get("count", 1),
            tests=tuple(record["tests"]),
            tree=tree,
        )
        for record in document["mutant"]
    ]


def _tree(table: dict[str, Any]) -> Tree:
    return Tree(
        package=Path(table["package"]),
        tests=Path(table["tests"]),
        copied=tuple(map(Path, table["copied"])),
        bare=tuple(map(Path, table["bare"])),
    )


def copy_tree(target: Path, tree: Tree) -> None:
    """What the tests need: the package, its tests, the papers page; hypothesis does not shrink what it finds."""
    for path in tree.copied:
        shutil.copytree(ROOT / path, target / path, ignore=shutil.ignore_patterns("__pycache__"))
    (target / "src/rollbook/__init__.py").write_text('"""Copy for mutation."""\n')
    for path in tree.bare:
        (target / path / "__init__.py").write_text('"""Copy for mutation."""\n')
    (target / "docs").mkdir()
    shutil.copy(ROOT / "docs/papers.md", target / "docs/papers.md")
    (target / "pytest.ini").write_text("[pytest]\n")
    (target / "conftest.py").write_text(CONFTEST)


def run_tests(target: Path, tests: list[str], *, limit_s: int = LIMIT_S) -> tuple[int, str]:
    """pytest's status of the tests in the copy, and the first failure. A forked child runs them: torch is loaded already."""
    report = target / "report.txt"
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        _run_in_child(target, report, tests)
    deadline = time.monotonic() + WAIT_S
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -signal.SIGKILL, "hangs"
        time.sleep(0.02)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return code, f"stopped by signal {-code}: a crash, or more than {limit_s} s of processor time"
    text = report.read_text()
    failures = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
    first = failures[0].split(" - ")[0].split("::")[-1].removeprefix("ERROR ") if failures else text[-300:]
    return code, first


def _run_in_child(target: Path, report: Path, tests: list[str]) -> NoReturn:
    """In the child: only the copy's package is importable as rollbook; leaves with pytest's status."""
    code = 3
    try:
        with report.open("w") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            os.chdir(target)
            sys.path.insert(0, str(target / "src"))
            os.environ["PYTHONPATH"] = str(target / "src")
            sys.dont_write_bytecode = True
            options = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
            code = int(pytest.main([*options, *tests]))
            sys.stdout.flush()
    finally:
        os._exit(code)


def try_mutant(mutant: Mutant) -> Outcome:
    """Apply one mutant to a fresh copy and run its tests."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        target = Path(name)
        copy_tree(target, mutant.tree)
        path = target / mutant.tree.package / mutant.file
        text = path.read_text()
        places = text.count(mutant.old)
        if places != mutant.count:
            by = f"DOES NOT APPLY: the replaced text stands in {places} places, not {mutant.count}"
            return Outcome(mutant=mutant, killed=False, by=by, seconds=0.0)
        path.write_text(text.replace(mutant.old, mutant.new))
        status, first = run_tests(target, [str(mutant.tree.tests / test) for test in mutant.tests])
    failed = status == pytest.ExitCode.TESTS_FAILED and first.startswith("test_") and not first.endswith(".py")
    by = first if failed else "SURVIVED" if status == pytest.ExitCode.OK else f"BROKEN MUTANT: {first}"
    return Outcome(mutant=mutant, killed=failed, by=by, seconds=time.monotonic() - began)


def clean_copy_passes(mutants: list[Mutant]) -> bool:
    """Whether each tree's copy works at all before anything is broken in it, and is what gets imported."""
    return all(_clean_copy_passes(tree, [mutant for mutant in mutants if mutant.tree == tree])
               for tree in dict.fromkeys(mutant.tree for mutant in mutants))


def _clean_copy_passes(tree: Tree, mutants: list[Mutant]) -> bool:
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        target = Path(name)
        copy_tree(target, tree)
        origin = "import rollbook as r\n\n\ndef test_origin():\n    assert r.__file__.startswith({0!r})\n"
        (target / "test_origin.py").write_text(origin.format(str(target)))
        tests = sorted({str(tree.tests / test) for mutant in mutants for test in mutant.tests})
        status, first = run_tests(target, ["test_origin.py", *tests], limit_s=LIMIT_S * len(tests))
        if status != pytest.ExitCode.OK:
            print(f"the untouched copy fails: {first}")
        return status == pytest.ExitCode.OK


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run the mutants whose id contains this text")
    parser.add_argument("--file", default="*", help="run the mutants of tests/mutants/FILE.toml")
    parser.add_argument("--jobs", type=int, default=1, help="try so many mutants at a time")
    parser.add_argument("--part", default="1/1", help="run the K-th of N parts, to spread them over machines or calls")
    arguments = parser.parse_args()
    part, parts = map(int, arguments.part.split("/"))
    chosen = [mutant for mutant in load(ROOT / "tests/mutants", arguments.file) if arguments.only in mutant.id]
    mutants = chosen[part - 1 :: parts]
    if not mutants or not clean_copy_passes(mutants):
        return 1
    print(f"{'hazard':>6}  {'mutant':<52} {'s':>5}  killed by", flush=True)
    survivors = sum(in_parallel([mutants[job :: arguments.jobs] for job in range(arguments.jobs)]))
    print(f"{len(mutants) - survivors} of {len(mutants)} mutants killed")
    return 1 if survivors else 0


def in_parallel(shares: list[list[Mutant]]) -> list[int]:
    """How many mutants of each share survive; a forked child tries each share."""
    children = []
    for share in shares:
        child = os.fork()
        if child == 0:
            os._exit(min(survivors_of(share), 255))
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def survivors_of(mutants: list[Mutant]) -> int:
    """Try the mutants one after the other, print a line for each, and count those that are not killed."""
    survivors = 0
    for outcome in map(try_mutant, mutants):
        survivors += not outcome.killed
        hazard = str(outcome.mutant.hazard or "-")
        print(f"{hazard:>6}  {outcome.mutant.id:<52} {outcome.seconds:>5.1f}  {outcome.by}", flush=True)
    return survivors


if __name__ == "__main__":
    sys.exit(main())
