"""The mutants of `make mutants`: one for each hazard of these parts, each still applying, each naming tests that exist."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
ELSEWHERE = {15: "staleness counters: tests of the queues", 19: "optimizer resets and step counters: tests of resume"}
DEFAULT = {"package": "src/rollbook/objectives", "tests": "tests/laws/objectives"}


def mutants(stem: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The tree and record of each mutant of a file."""
    document = tomllib.loads((ROOT / f"tests/mutants/{stem}.toml").read_text(encoding="utf-8"))
    return [(document.get("tree", DEFAULT), record) for record in document["mutant"]]


@pytest.mark.parametrize("stem", ["objectives", "neighbours"])
def test_every_mutant_still_applies_and_names_tests_that_exist(stem: str) -> None:
    for tree, mutant in mutants(stem):
        text = (ROOT / tree["package"] / mutant["file"]).read_text(encoding="utf-8")
        assert text.count(mutant["old"]) == mutant.get("count", 1), f"{mutant['id']}: the text it replaces has changed"
        assert mutant["old"] != mutant["new"]
        assert mutant["tests"] and all((ROOT / tree["tests"] / test).is_file() for test in mutant["tests"]), mutant["id"]


def test_every_hazard_has_a_mutant_or_belongs_elsewhere() -> None:
    covered = {mutant["hazard"] for stem in ("objectives", "neighbours") for _, mutant in mutants(stem)}
    assert covered - {0} == set(range(1, 20)) - set(ELSEWHERE)


def test_mutants_have_names_of_their_own() -> None:
    names = [mutant["id"] for stem in ("objectives", "neighbours", "evidence") for _, mutant in mutants(stem)]
    assert len(names) == len(set(names))
