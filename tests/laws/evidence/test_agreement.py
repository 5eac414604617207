"""A value agrees with a claim only where the claim says that very thing."""

from __future__ import annotations

from typing import Any

import pytest

from rollbook.evidence.agreement import agrees, shown
from rollbook.evidence.claims import Claim, Source


def claim(value: Any, **more: Any) -> Claim:
    return Claim(id="test.a.b", label=more.pop("label", "D"), stage="rl", quantity="b", says="It is so.", release="a", model=None,
                 scope=("a",), source=Source(document="case-study", section="6.9"), at="test.yaml:1", value=value, **more)


@pytest.mark.parametrize(("said", "bound", "yes", "no"), [
    (0.3, "exact", [0.3], [0.28, "0.3", True, None, [0.3, 0.3]]),
    (1, "exact", [1, 1.0], [True, "1"]),
    (2, "at_most", [0, 2], [2.5, "2"]),
    (2, "less_than", [1.9], [2]),
    (2, "at_least", [2, 9], [1]),
    (2, "more_than", [2.1], [2]),
    ((2, 5), "range", [2, 3, 5, [2, 5]], [1, 6]),
    ((64, 128), "exact", [64, 128, [64, 128]], [96, [128, 64], [64]]),
    ("GRPO", "exact", ["anything", None, True, ["a"]], [0.3, [1, 2]]),
    (None, "exact", ["a name"], [3]),
    (False, "exact", [False, None, 0, 0.0, "off"], [True, 0.1]),
    (True, "exact", [True, "Ppo"], [False, None, 0, 1]),
])
def test_a_number_needs_a_number_and_a_bound_admits_what_is_within_it(said: Any, bound: Any, yes: list[Any],
                                                                           no: list[Any]) -> None:
    for value in yes:
        assert agrees(claim(said, bound=bound), value), value
    for value in no:
        assert not agrees(claim(said, bound=bound), value), value


@pytest.mark.parametrize(("made", "words"), [
    (claim(2, bound="at_most", unit="minibatches", denominator="per batch"), "at most 2 minibatches per batch"),
    (claim(73000, bound="about", unit="prompts"), "about 73,000 prompts"),
    (claim((0.26, 0.28), bound="range", unit="number"), "0.26 to 0.28"),
    (claim((8192, 4096), unit="sequences"), "8192, 4096 sequences"),
    (claim(("SFT", "DPO")), "SFT, DPO"),
    (claim(False), "no"),
    (claim(None), "named, without a value"),
    (claim(None, label="U"), "unknown"),
    (claim(1e-6, unit="number"), "1e-06"),
])
def test_a_value_is_shown_with_its_bound_unit_and_denominator(made: Claim, words: str) -> None:
    assert shown(made) == words
