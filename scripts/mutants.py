"""Introduce each hazard of the specification into a copy and see at least one test fail: `make mutants`.

Reads tests/mutants/*.toml. Each mutant replaces text in one file of a copy of the package and runs the tests it names, without
touching the working tree. A mutant is killed by a test that fails; one that does not load, hangs, or does not apply in exactly
`count` places (1 unless it says so) is broken. Prints a table; exits 1 unless all are killed and the untouched copy passes.

A file's `[tree]` table says what its mutants need: `package` and `tests` are the folders that `file` and `tests` are relative to,
`copied` the folders of the copy, `bare` the packages whose __init__.py is left empty there so that nothing else of theirs loads.
Without the table they are the objectives.

With --record FILE every mutant that is killed is written there as it dies, under a hash of all that its death depends on (the
copied package, its own tests and their helpers, the mutant, this script, Python and torch), and is not tried again while that
hash is the same: the table can be made in pieces, in any order, by several at a time, and is still one table.

    python scripts/mutants.py [--only TEXT] [--file STEM] [--part K/N] [--jobs N] [--record FILE] [--table]
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from dataclasses import asdict, dataclass
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
    recorded: bool = False


CLEAN = "the untouched copy"    # what stands for a mutant's id in the hash and in the record of a copy that passed


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The deaths that a file holds, one JSON object a line: `key`, `id`, `by`, `seconds`. Without a path nothing is kept."""

    path: Path | None

    def deaths(self) -> dict[str, dict[str, Any]]:
        """By hash; a line that was cut off by a kill is left out."""
        found: dict[str, dict[str, Any]] = {}
        if self.path is None or not self.path.exists():
            return found
        for line in self.path.read_text().splitlines():
            try:
                one = json.loads(line)
                found[one["key"]] = one
            except (ValueError, KeyError, TypeError):
                continue
        return found

    def add(self, key: str, name: str, by: str, seconds: float) -> None:
        if self.path is not None:
            line = json.dumps({"key": key, "id": name, "by": by, "seconds": round(seconds, 1)}) + "\n"
            with self.path.open("ab", buffering=0) as out:      # one write of one line: several processes may append
                out.write(line.encode())


def key_of(tree: Tree, tests: list[str], what: str) -> str:
    """The hash of everything that the tests' result depends on."""
    held = hashlib.sha256(f"{sys.version}\0{torch.__version__}\0{tree}\0{what}\0".encode())
    for name, content in contents(tree).items():
        path = Path(name)
        if not path.name.startswith("test_") or str(path.relative_to(ROOT)) in tests:
            held.update(f"{path.relative_to(ROOT)}\0{content}\0".encode())
    return held.hexdigest()


@functools.cache
def contents(tree: Tree) -> dict[str, str]:
    """The hash of every file that a copy is made of, and of this script."""
    files = [path for folder in tree.copied for path in sorted((ROOT / folder).rglob("*"))]
    files += [ROOT / "docs/papers.md", Path(__file__).resolve()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
            if path.is_file() and "__pycache__" not in path.parts}


def mutant_key(mutant: Mutant) -> str:
    change = {name: value for name, value in asdict(mutant).items() if name != "tree"}
    return key_of(mutant.tree, tests_of([mutant]), json.dumps(change, sort_keys=True))


def tests_of(mutants: list[Mutant]) -> list[str]:
    return sorted({os.path.normpath(mutant.tree.tests / test) for mutant in mutants for test in mutant.tests})


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
        status, first = run_tests(target, tests_of([mutant]))
    failed = status == pytest.ExitCode.TESTS_FAILED and first.startswith("test_") and not first.endswith(".py")
    by = first if failed else "SURVIVED" if status == pytest.ExitCode.OK else f"BROKEN MUTANT: {first}"
    return Outcome(mutant=mutant, killed=failed, by=by, seconds=time.monotonic() - began)


def clean_copy_passes(mutants: list[Mutant], record: Record) -> bool:
    """Whether each tree's copy works at all before anything is broken in it, and is what gets imported."""
    return all(_clean_copy_passes(tree, tests_of([mutant for mutant in mutants if mutant.tree == tree]), record)
               for tree in dict.fromkeys(mutant.tree for mutant in mutants))


def _clean_copy_passes(tree: Tree, tests: list[str], record: Record) -> bool:
    """Every test file on its own, as the mutants meet them; what has passed as it is now is not run again."""
    failed = [test for test in tests if key_of(tree, [test], CLEAN) not in record.deaths()    # which others may append to
              and not _clean_test_passes(tree, test, record)]
    return not failed


def _clean_test_passes(tree: Tree, test: str, record: Record) -> bool:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        target = Path(name)
        copy_tree(target, tree)
        origin = "import rollbook as r\n\n\ndef test_origin():\n    assert r.__file__.startswith({0!r})\n"
        (target / "test_origin.py").write_text(origin.format(str(target)))
        status, first = run_tests(target, ["test_origin.py", test])
        if status != pytest.ExitCode.OK:
            print(f"the untouched copy fails: {first}")
            return False
    record.add(key_of(tree, [test], CLEAN), CLEAN, test, time.monotonic() - began)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run the mutants whose id contains this text")
    parser.add_argument("--file", default="*", help="run the mutants of tests/mutants/FILE.toml")
    parser.add_argument("--jobs", type=int, default=1, help="try so many mutants at a time")
    parser.add_argument("--part", default="1/1", help="run the K-th of N parts, to spread them over machines or calls")
    parser.add_argument("--record", type=Path, help="keep what died in this file, and do not try it again while nothing changed")
    parser.add_argument("--table", action="store_true", help="run nothing: the table of what the record holds")
    arguments = parser.parse_args()
    part, parts = map(int, arguments.part.split("/"))
    record = Record(path=arguments.record)
    chosen = [mutant for mutant in load(ROOT / "tests/mutants", arguments.file) if arguments.only in mutant.id]
    mutants = chosen[part - 1 :: parts]
    known = record.deaths()
    due = [mutant for mutant in mutants if mutant_key(mutant) not in known]
    if not mutants or (due and not arguments.table and not clean_copy_passes(due, record)):
        return 1
    print(f"{'hazard':>6}  {'mutant':<52} {'s':>5}  killed by", flush=True)
    for outcome in (remembered(mutant, known) for mutant in mutants if mutant not in due):
        show(outcome)
    for mutant in due if arguments.table else ():
        print(f"not in the record: {mutant.id}")
    shares = [] if arguments.table else [due[job :: arguments.jobs] for job in range(arguments.jobs)]
    alive = len(due) if arguments.table else sum(in_parallel(shares, record))
    own = set(map(mutant_key, mutants))
    seconds = sum(one["seconds"] for key, one in record.deaths().items() if key in own)
    spent = f" in {seconds:.0f} s, {len(mutants) - len(due)} of them before" if record.path is not None else ""
    print(f"{len(mutants) - alive} of {len(mutants)} mutants killed{spent}")
    return 1 if alive else 0


def remembered(mutant: Mutant, known: dict[str, dict[str, Any]]) -> Outcome:
    one = known[mutant_key(mutant)]
    return Outcome(mutant=mutant, killed=True, by=one["by"], seconds=one["seconds"], recorded=True)


def in_parallel(shares: list[list[Mutant]], record: Record) -> list[int]:
    """How many mutants of each share survive; a forked child tries each share."""
    children = []
    for share in shares:
        child = os.fork()
        if child == 0:
            os._exit(min(survivors_of(share, record), 255))
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def survivors_of(mutants: list[Mutant], record: Record) -> int:
    """Try the mutants one after the other, show each and keep the killed ones; how many are not killed."""
    survivors = 0
    for mutant in mutants:
        key, outcome = fresh_key(mutant), try_mutant(mutant)
        survivors += not outcome.killed
        if outcome.killed and fresh_key(mutant) == key:         # nothing was edited meanwhile
            record.add(key, mutant.id, outcome.by, outcome.seconds)
        show(outcome)
    return survivors


def fresh_key(mutant: Mutant) -> str:
    contents.cache_clear()
    return mutant_key(mutant)


def show(outcome: Outcome) -> None:
    hazard, when = str(outcome.mutant.hazard or "-"), " (recorded)" if outcome.recorded else ""
    print(f"{hazard:>6}  {outcome.mutant.id:<52} {outcome.seconds:>5.1f}  {outcome.by}{when}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
