"""Counts that are easily confused are never added, and each says what it counts over."""

from __future__ import annotations

import pytest

from rollbook.evidence.accounting import Quantity, Unit, cost, of_claim, ratio, total
from rollbook.evidence.errors import EvidenceError
from rollbook.evidence.registry import builtin


def quantity(amount: float, unit: Unit, of: str = "pretraining") -> Quantity:
    return Quantity(amount=amount, unit=unit, of=of)


@pytest.mark.parametrize(("one", "other", "words"), [
    (quantity(1, "tokens processed"), quantity(1, "unique tokens"), ["tokens processed and unique tokens are not added",
                                                                     "repetition counted, the other tokens of different text"]),
    (quantity(1, "total parameters"), quantity(1, "active parameters"), ["are not added", "work on one token"]),
    (quantity(1, "GPU-hours"), quantity(1, "FLOP"), ["GPU-hours and FLOP are not added"]),
    (quantity(1, "GPU-hours", "H800"), quantity(1, "GPU-hours", "H100"), ["GPU-hours of different things are not added",
                                                                        "1 GPU-hours (H800) and 1 GPU-hours (H100)"]),
    (quantity(1, "unique tokens"), quantity(1, "unique tokens"), ["do not add up by themselves", "may share documents"]),
    (quantity(1, "tokens processed"), quantity(1, "tokens processed"), ["only where a report says so", "total("]),
])
def test_unlike_counts_are_not_added(one: Quantity, other: Quantity, words: list[str]) -> None:
    for first, second in ((one, other), (other, one)):
        with pytest.raises(EvidenceError) as caught:
            first + second
        assert words[0].split(" are ")[-1].split(" do ")[-1] in str(caught.value)
    with pytest.raises(EvidenceError) as caught:
        one + other
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_number_without_a_unit_is_not_added() -> None:
    with pytest.raises(EvidenceError, match="something without a unit"):
        quantity(1, "GPU-hours") + 3  # type: ignore[operator]


def test_hours_of_one_accelerator_add_up() -> None:
    assert quantity(2, "GPU-hours", "H800") + quantity(3, "GPU-hours", "H800") == quantity(5, "GPU-hours", "H800")


def test_llama_2s_hours_by_size_are_the_total_that_the_report_prints() -> None:
    sizes = [of_claim(builtin().claim(f"meta.llama-2.gpu_hours_{size}"), "GPU-hours") for size in ("7b", "13b", "34b", "70b")]
    with pytest.raises(EvidenceError, match="of different things"):
        sizes[0] + sizes[1]
    found = total(sizes, of="A100, pretraining of all sizes", because="the report lists one run a size")
    assert found.amount == builtin().claim("meta.llama-2.gpu_hours").value == 3_311_616
    assert str(found) == "3,311,616 GPU-hours (A100, pretraining of all sizes)"


def test_a_total_needs_a_reason_and_something_to_add() -> None:
    with pytest.raises(EvidenceError, match="has no reason"):
        total([quantity(1, "tokens processed")], of="all stages", because=" ")
    with pytest.raises(EvidenceError, match="which is not zero"):
        total([], of="all stages", because="the report adds them")
    with pytest.raises(EvidenceError, match="are not added"):
        total([quantity(1, "tokens processed"), quantity(1, "unique tokens")], of="all", because="both are tokens")


def test_a_cost_is_hours_at_a_price_and_keeps_whose_price_it_is() -> None:
    found = cost(quantity(2_788_000, "GPU-hours", "H800"), 2.0, of="rental equivalent of the listed runs")
    assert found.amount == builtin().claim("deepseek.v3.training_cost").value
    assert str(found) == "5,576,000 dollars (rental equivalent of the listed runs)"
    with pytest.raises(EvidenceError, match="only GPU-hours have a price"):
        cost(quantity(671e9, "total parameters"), 2.0, of="a guess")


@pytest.mark.parametrize("of", ["", "  "])
def test_a_count_without_a_denominator_is_refused(of: str) -> None:
    with pytest.raises(EvidenceError, match="have no denominator"):
        quantity(1, "tokens processed", of)


def test_a_count_of_less_than_nothing_or_of_an_unknown_unit_is_refused() -> None:
    for amount in (-1.0, float("nan")):
        with pytest.raises(EvidenceError, match="fewer than none"):
            quantity(amount, "FLOP")
    with pytest.raises(EvidenceError, match="unknown unit"):
        quantity(1, "tokens")  # type: ignore[arg-type]


def test_a_ratio_keeps_both_denominators_and_refuses_pairs_that_mean_nothing() -> None:
    passes = ratio(quantity(400, "tokens processed", "four epochs"), quantity(100, "unique tokens", "traces"))
    assert passes.value == 4
    assert str(passes) == "4 (400 tokens processed (four epochs), over 100 unique tokens (traces))"
    with pytest.raises(EvidenceError, match="dollars per FLOP means nothing"):
        ratio(quantity(1, "dollars"), quantity(1, "FLOP"))
    with pytest.raises(EvidenceError, match="over zero"):
        ratio(quantity(1, "tokens processed"), quantity(0, "unique tokens"))


def test_a_claim_is_read_only_as_what_it_counts() -> None:
    flop = of_claim(builtin().claim("meta.llama-3.1-405b.compute"), "FLOP")
    assert (flop.amount, str(flop)) == (3.8e25, "3.8e+25 FLOP (llama-3.1-405b, systems)")
    assert of_claim(builtin().claim("mistral.mixtral-8x7b.parameters_active"), "active parameters").rounded
    for name, unit in (("mistral.mixtral-8x7b.parameters_active", "total parameters"), ("meta.llama-2.gpu_hours", "FLOP"),
                       ("mistral.magistral.objective", "FLOP")):
        with pytest.raises(EvidenceError):
            of_claim(builtin().claim(name), unit)  # type: ignore[arg-type]
