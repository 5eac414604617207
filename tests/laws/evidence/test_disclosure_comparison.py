"""Laboratories side by side: what the evidence matrix's own table says comes out of the claims."""

from __future__ import annotations

import pytest

from rollbook.evidence.agreement import shown
from rollbook.evidence.disclosure import ITEMS, comparison
from rollbook.evidence.errors import EvidenceError
from rollbook.evidence.registry import builtin

THREE = ("deepseek", "zhipu", "moonshot")


@pytest.mark.parametrize(("item", "said"), [
    ("Open weights", ["extensive", "extensive for recent open series", "K3 pending"]),
    ("Pretraining tokens", ["often disclosed", "disclosed for major reports", "disclosed for Moonlight"]),
    ("Source mixture", ["unknown", "unknown", "unknown"]),
    ("Agent tasks and environments", ["1800", "10,000", "3000"]),
    ("RL hyper-parameters", ["partial", "reasoning RL detailed, agent RL partial", "objective detailed"]),
    ("Hardware and cost", ["unusually detailed", "detailed", "topology"]),
    ("Complete code and data", ["no", "no", "no"]),
    ("Production orchestration", ["partially described"] * 3),
])
def test_the_comparison_says_what_the_matrix_says(item: str, said: list[str]) -> None:
    row = comparison(builtin(), THREE)[item]
    for name, words in zip(THREE, said, strict=True):
        assert words in shown(row[name].claims[0]), name


def test_a_laboratory_of_which_no_claim_speaks_has_an_empty_answer_and_not_an_unknown_one() -> None:
    row = comparison(builtin(), ("qwen",))["Complete code and data"]
    assert row["qwen"].claims == () and row["qwen"].count == 0


@pytest.mark.parametrize(("item", "laboratory", "claim"), [
    ("Architecture", "meta", "meta.llama-3.1-8b.width"), ("Architecture", "qwen", "qwen.qwen3-8b.layers"),
    ("Source mixture", "meta", "meta.llama-3.1.code_share"), ("Optimizer and schedule", "meta", "meta.llama-2.beta1"),
    ("RL hyper-parameters", "meta", "meta.llama-2.ppo_clip"), ("Hardware and cost", "mistral", "mistral.mistral-large-3.gpus"),
    ("RL hyper-parameters", "mistral", "mistral.magistral-small.epsilon_high"),
])
def test_a_number_that_a_laboratory_printed_is_an_answer(item: str, laboratory: str, claim: str) -> None:
    (covers,) = [one.covers for one in ITEMS if one.title == item]
    assert covers(builtin().claim(claim)) and comparison(builtin(), (laboratory,))[item][laboratory].count > 1


def test_what_is_known_stands_before_what_is_withheld_and_the_rest_is_counted() -> None:
    for row in comparison(builtin(), ("meta", "qwen", "mistral")).values():
        for answer in row.values():
            labels = [claim.label == "U" for claim in answer.claims]
            assert labels == sorted(labels) and answer.count >= len(answer.claims)
    assert len(ITEMS) == 10


def test_an_unknown_laboratory_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(EvidenceError, match="nearest names: moonshot"):
        comparison(builtin(), ("moonshoot",))
