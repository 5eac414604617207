"""The denominator: each aggregate's weights, dropped and empty sequences, ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.objectives import ObjectiveError, Unstated, sequence_weight, token_weight

FEW = settings(max_examples=40, deadline=None)
AGGREGATES = ("token_mean", "sequence_mean", "group_token_mean", "sequence_sum", "fixed_length")
lengths = st.lists(st.integers(0, 6), min_size=1, max_size=8)


def reference(how: str, losses: list[list[float]], groups: list[int], max_length: int) -> float:
    """The aggregate as the papers print it, over per-sequence token losses; empty sequences are not counted."""
    full = [(loss, group) for loss, group in zip(losses, groups, strict=True) if loss]
    if not full:
        return 0.0
    count, tokens = len(full), sum(len(loss) for loss, _ in full)
    match how:
        case "token_mean":
            return sum(sum(loss) for loss, _ in full) / tokens
        case "sequence_mean":
            return sum(sum(loss) / len(loss) for loss, _ in full) / count
        case "sequence_sum":
            return sum(sum(loss) for loss, _ in full) / count
        case "fixed_length":
            return sum(sum(loss) for loss, _ in full) / (count * max_length)
        case _:
            present = sorted({group for _, group in full})
            members = [[loss for loss, group in full if group == g] for g in present]
            return sum(sum(map(sum, m)) / sum(map(len, m)) for m in members) / len(present)


@pytest.mark.parametrize("how", AGGREGATES)
@given(sizes=lengths, data=st.data())
@FEW
def test_weighted_sums_are_the_printed_aggregate(how: str, sizes: list[int], data: st.DataObject) -> None:
    groups = data.draw(st.lists(st.integers(-9, 9), min_size=len(sizes), max_size=len(sizes)))
    losses = [[data.draw(st.floats(-5, 5)) for _ in range(size)] for size in sizes]
    weight_S = sequence_weight(how, torch.tensor(sizes), torch.tensor(groups), max_length=6)
    total = sum(float(weight_S[s]) * sum(loss) for s, loss in enumerate(losses))
    assert total == pytest.approx(reference(how, losses, groups, 6), abs=1e-12)


@pytest.mark.parametrize("how", AGGREGATES)
@given(sizes=lengths)
@FEW
def test_an_empty_sequence_weighs_nothing_and_is_not_counted(how: str, sizes: list[int]) -> None:
    length_S = torch.tensor(sizes)
    group_S = torch.arange(len(sizes))
    weight_S = sequence_weight(how, length_S, group_S, max_length=6)
    assert bool((weight_S[length_S == 0] == 0).all()) and bool(weight_S.isfinite().all())
    full_S = length_S > 0
    without_S = sequence_weight(how, length_S[full_S], group_S[full_S], max_length=6)
    assert torch.equal(weight_S[full_S], without_S)


@pytest.mark.parametrize("how", AGGREGATES)
@given(sizes=lengths, data=st.data())
@FEW
def test_dropped_sequences_leave_the_denominator_only_when_told(how: str, sizes: list[int], data: st.DataObject) -> None:
    length_S, count = torch.tensor(sizes), len(sizes)
    group_S = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
    keep_S = torch.tensor(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    gone_S = sequence_weight(how, length_S, group_S, max_length=6, keep_S=keep_S, count_dropped=False)
    stay_S = sequence_weight(how, length_S, group_S, max_length=6, keep_S=keep_S, count_dropped=True)
    assert bool((gone_S[~keep_S] == 0).all()) and bool((stay_S[~keep_S] == 0).all())
    assert torch.equal(gone_S[keep_S], sequence_weight(how, length_S[keep_S], group_S[keep_S], max_length=6))
    everyone_S = sequence_weight(how, length_S, group_S, max_length=6, count_dropped=True)
    assert torch.equal(stay_S[keep_S], everyone_S[keep_S])


def test_the_mean_of_per_rank_token_means_is_another_estimator() -> None:
    """Two ranks of 1 and 3 tokens: weights come from the whole step, never from a rank's share."""
    whole_S = sequence_weight("token_mean", torch.tensor([1, 3]), None)
    per_rank = [sequence_weight("token_mean", torch.tensor([n]), None) / 2 for n in (1, 3)]
    assert whole_S.tolist() == [0.25, 0.25]
    assert [float(w) for w in per_rank] == [0.5, pytest.approx(1 / 6)]


def test_doubling_a_length_doubles_its_share_of_a_token_mean_and_not_of_a_sequence_mean() -> None:
    length_S = torch.tensor([2, 4])
    for how, share in (("token_mean", 2.0), ("fixed_length", 2.0), ("sequence_sum", 2.0), ("sequence_mean", 1.0)):
        total_S = sequence_weight(how, length_S, None, max_length=8) * length_S
        assert float(total_S[1] / total_S[0]) == pytest.approx(share)


def test_changing_the_constant_of_fixed_length_only_rescales() -> None:
    first = sequence_weight("fixed_length", torch.tensor([2, 4]), None, max_length=8)
    second = sequence_weight("fixed_length", torch.tensor([2, 4]), None, max_length=16)
    assert torch.equal(first, 2 * second)


def test_an_empty_step_weighs_nothing() -> None:
    for how in AGGREGATES:
        for length_S in (torch.zeros(0, dtype=torch.int64), torch.tensor([0, 0])):
            assert sequence_weight(how, length_S, torch.zeros_like(length_S), max_length=3).sum() == 0


def test_a_worked_example() -> None:
    weight_S = sequence_weight("group_token_mean", torch.tensor([1, 3, 2]), torch.tensor([7, 7, 9]))
    assert weight_S.tolist() == [1 / 8, 1 / 8, 1 / 4]
    assert token_weight(weight_S, torch.tensor([0, 2, 2])).tolist() == [1 / 8, 1 / 4, 1 / 4]


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("count_dropped", {"how": "token_mean", "keep_S": torch.tensor([True, False])}),
        ("keep_S", {"how": "token_mean", "keep_S": torch.tensor([1, 0]), "count_dropped": True}),
        ("max_length", {"how": "fixed_length"}),
        ("group id", {"how": "group_token_mean", "group_S": None}),
        ("aggregate must be one of", {"how": "mean"}),
        ("aggregate", {"how": Unstated(what="aggregate")}),
        ("length_S", {"how": "token_mean", "length_S": torch.tensor([1.0, 2.0])}),
        ("length_S", {"how": "token_mean", "length_S": torch.tensor([1, -2])}),
    ],
)
def test_what_has_no_denominator_is_refused(message: str, arguments: dict) -> None:
    defaults = {"length_S": torch.tensor([1, 2]), "group_S": torch.tensor([0, 0])}
    merged = {**defaults, **arguments}
    how, length_S, group_S = merged.pop("how"), merged.pop("length_S"), merged.pop("group_S")
    with pytest.raises(ObjectiveError, match=message) as refusal:
        sequence_weight(how, length_S, group_S, **merged)
    assert all((refusal.value.what, refusal.value.got, refusal.value.why, refusal.value.fix))
