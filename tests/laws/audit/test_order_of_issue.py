"""The order in which tasks are issued, found again without the code that issues."""

from collections import Counter
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from rollbook.audit.index import RunIndex
from rollbook.audit.plan import Order
from rollbook.audit.schedule import drawn
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


@given(st.lists(st.integers(1, 4), min_size=1, max_size=9), st.integers(0, 3), st.integers(0, 40))
def test_a_pass_draws_every_task_as_often_as_its_row_weighs_wherever_the_stream_goes_on(weights, seed, start):
    given_weights = {f"Task:{index}": weight for index, weight in enumerate(weights)}
    tasks = [SimpleNamespace(id=name) for name in given_weights]
    whole = sum(weights)
    stream = TaskStream(tasks, seed=seed, cursor=start, weights={name: w for name, w in given_weights.items() if w > 1})
    run = SimpleNamespace(train=tuple(given_weights), weights=given_weights)
    shown = [next(stream).id for _ in range(2 * whole)]
    assert shown == Order(drawn(run, "train"), seed).take(start, 2 * whole) and stream.cursor == start + 2 * whole
    first = Order(drawn(run, "train"), seed).take(whole, whole)
    assert Counter(first) == Counter(given_weights)


def test_the_audit_reads_weights_from_the_rows_alone_and_a_row_without_one_weighs_one():
    data = b"".join(b'{"problem":"%d + 1","reference":"7"%s}\n' % (n, b',"weight":3' if n == 1 else b"") for n in range(3))
    index = RunIndex(SimpleNamespace(get=lambda name: data, manifest={}))
    index.curated = SimpleNamespace(tasks="9c")
    for name, row in (("a", "1"), ("b", "2"), ("c", "3"), ("d", None)):
        index.raws[name] = SimpleNamespace(lineage={"row": row} if row else {})
        index.tasks[f"Task:{name}"] = SimpleNamespace(raw=name)
        index.sides[f"Task:{name}"] = "train"
    assert index.weights == {"Task:b": 3}


def test_an_empty_pool_has_no_next_task():
    assert Order((), 1).take(0, 3) == []


def test_a_rollback_excuses_other_samples_only_where_another_machine_is_noted():
    manifest = {"machine": {"system": "Linux", "cpu": "a", "cores": 2, "usable_cores": 2, "architecture": "x", "memory_bytes": 1}}
    assert not elsewhere(None, manifest) and not elsewhere({}, manifest)
    assert not elsewhere({"machine": {**manifest["machine"], "memory_bytes": 2}}, manifest)
    assert elsewhere({"machine": {**manifest["machine"], "cpu": "b"}}, manifest)
