"""The order in which tasks are issued, found again without the code that issues."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from rollbook.audit.plan import Order
from rollbook.ledger.sameness import elsewhere
from rollbook.orchestration.session import TaskStream


@given(st.integers(1, 12), st.integers(0, 3), st.lists(st.integers(0, 9), max_size=6))
def test_the_order_is_that_of_the_producer_however_it_is_taken(size, seed, parts):
    pool = tuple(f"Task:{index}" for index in range(size))
    stream = TaskStream([SimpleNamespace(id=name) for name in pool], seed=seed, cursor=0)
    order, place = Order(pool, seed), 0
    for count in parts:
        assert order.take(place, count) == [next(stream).id for _ in range(count)]
        place += count


def test_an_empty_pool_has_no_next_task():
    assert Order((), 1).take(0, 3) == []


def test_a_rollback_excuses_other_samples_only_where_another_machine_is_noted():
    manifest = {"machine": {"system": "Linux", "cpu": "a", "cores": 2, "usable_cores": 2, "architecture": "x", "memory_bytes": 1}}
    assert not elsewhere(None, manifest) and not elsewhere({}, manifest)
    assert not elsewhere({"machine": {**manifest["machine"], "memory_bytes": 2}}, manifest)
    assert elsewhere({"machine": {**manifest["machine"], "cpu": "b"}}, manifest)
