"""An experiment states hypothesis, levels, budget, metric and rule before anything is run."""

from __future__ import annotations

import pytest
from small_experiment import TEXT, definition

from rollbook.evidence.errors import EvidenceError
from rollbook.evidence.registry import builtin
from rollbook.experiments import queue
from rollbook.experiments.definition import load, names, read
from rollbook.records import content_id

SIX = {"minibatches", "zero-variance", "interpreter-mask", "policy-age", "moe-sequence-ratio", "clip-higher"}


def test_the_six_named_experiments_are_defined_and_each_tries_a_claim_that_exists() -> None:
    assert set(names()) == SIX
    for name in names():
        found = load(name)
        assert found.name == name and found.claim in builtin().ids
        assert load(found.claim) == found
        assert len(found.seeds) >= 5


@pytest.mark.parametrize("name", sorted(SIX))
def test_every_run_of_an_experiment_resolves_or_says_what_is_missing(name: str) -> None:
    found = load(name)
    if found.needs:
        with pytest.raises(EvidenceError, match="cannot be run yet"):
            queue.plan(found)
    else:
        recipes = {content_id(queue.recipe(found, level, found.seeds[0])) for level, seed in found.runs if seed == found.seeds[0]}
        assert len(recipes) == len(found.levels) - len(found.absent)


@pytest.mark.parametrize(("old", "new", "words"), [
    ("rollbook.experiment/1", "rollbook.experiment/2", "must begin with `schema: rollbook.experiment/1`"),
    ("seeds: [1, 2, 3, 4, 5]", "seeds: [1, 2, 3, 4]", "at least 5 different seeds"),
    ("seeds: [1, 2, 3, 4, 5]", "seeds: [1, 2, 3, 4, 4]", "at least 5 different seeds"),
    ("treatment: two", "treatment: three", "treatment names no level"),
    ("treatment: two", "treatment: one", "baseline and treatment are one level"),
    ("expects: lower", "expects: less", "must be one of 'lower', 'higher', 'same'"),
    ("margin: 0.1", "margin: 0", "must be above 0"),
    ("hypothesis: Two steps a batch end lower than one\n", "", "missing key hypothesis"),
    ("quantity: attempts", "quantity: hours", "must be one of"),
    ("{set: {stages.rl.minibatches: 2}}", "{sets: {}}", "unknown key levels.two.sets"),
    ("levels:\n", "levels: {}\nother:\n", "unknown key other"),
])
def test_an_experiment_that_could_not_decide_is_refused(old: str, new: str, words: str) -> None:
    assert old in TEXT
    with pytest.raises(EvidenceError) as caught:
        read(TEXT.replace(old, new), "small.yaml")
    assert words in str(caught.value)


def test_a_level_that_does_not_decide_may_be_missing_and_one_that_decides_may_not() -> None:
    found = definition()
    assert found.absent == ("more: a larger batch",) and not found.needs
    assert {level for level, _ in found.runs} == {"one", "two"}
    assert definition("treatment: two", "treatment: more").needs == ("more: a larger batch",)


def test_an_unknown_experiment_names_the_nearest() -> None:
    with pytest.raises(EvidenceError, match="nearest names: minibatches"):
        load("minibatch")
