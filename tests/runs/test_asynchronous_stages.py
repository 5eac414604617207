"""Policy stages that sample while they train, end to end on a tiny model."""

import signal
import threading

import pytest
from small_runs import Quiet, small_recipe

from rollbook.audit.passage import audit_run
from rollbook.audit.replay import replay_run
from rollbook.ledger import Ledger
from rollbook.orchestration.run import resume_run, run_recipe
from rollbook.records import Batch, Dispatch, Outcome, RecipeError, RunEnd, Stopped

SHORT = ("stages.cold_start.steps=45", "tasks.heldout=8", "stages.select.candidates=8", "stages.rl.steps=3",
         "stages.rl.max_waves=40", "stages.rl.max_policy_age=2", "stages.rl.probe_every=0", "stages.rl.checkpoint_every=1")


def asynchronous(*overrides, late="wait", throttle="{kind: AReaLCode, eta: 2}", on_update="keep"):
    how = f"{{throttle: {throttle}, concurrency: 16, on_update: {on_update}, late: {late}, queue: 8, stall_s: 60}}"
    return small_recipe(*SHORT, f"stages.rl.asynchrony={how}", *overrides)


def faults(root):
    return [(row.stage, row.evidence) for row in audit_run(root).rows if row.result == "fail"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("asynchronous") / "run"
    assert run_recipe(asynchronous(), root, Quiet()) == 0
    return root


def test_a_run_that_samples_while_it_trains_audits_clean(finished):
    assert faults(finished) == []


def test_its_updates_are_replayed_bit_for_bit(finished):
    assert replay_run(finished).mismatches == ()


def test_tokens_of_older_versions_are_trained_on_and_none_beyond_the_bound(finished):
    with Ledger.open(finished, write=False) as ledger:
        ages = [batch.max_age for batch in ledger.records(Batch)]
    assert 0 < max(ages) <= 2


def test_every_group_has_a_dispatch_of_its_own_and_every_attempt_one_end(finished):
    with Ledger.open(finished, write=False) as ledger:
        issued = [attempt for one in ledger.records(Dispatch) if one.scope.startswith("rl/g/") for attempt, _ in one.attempts()]
        ended = [outcome.attempt for outcome in ledger.records(Outcome) if outcome.attempt.startswith("rl/g/")]
    assert sorted(issued) == sorted(ended)
    assert len(set(ended)) == len(ended)


class StopsAfter(Quiet):
    """Asks for a stop once a stage has taken so many steps."""

    def __init__(self, stage, steps):
        super().__init__()
        self.at = (stage, steps)

    def step(self, step, metrics):
        super().step(step, metrics)
        if self.steps[-1] == self.at:
            signal.raise_signal(signal.SIGINT)


def test_a_stopped_run_is_continued_and_what_was_in_flight_is_in_the_census(tmp_path):
    root = tmp_path / "run"
    with pytest.raises(Stopped):
        run_recipe(asynchronous(late="redispatch", on_update="recompute"), root, StopsAfter("rl", 2))
    assert resume_run(root, Quiet()) == 0
    assert faults(root) == []
    with Ledger.open(root, write=False) as ledger:
        assert [end.status for end in ledger.records(RunEnd)] == ["completed"]
        lost = [outcome for outcome in ledger.records(Outcome) if outcome.detail == "the process ended"]
    assert all(outcome.code == "cancelled" for outcome in lost)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rollbook-")]


def test_age_without_asynchrony_and_asynchrony_without_age_are_refused(tmp_path):
    how = "stages.rl.asynchrony={throttle: {kind: PrimeRl}, concurrency: 16, on_update: keep, late: drop, queue: 8, stall_s: 60}"
    for overrides in (("stages.rl.max_policy_age=2",), (how,)):
        with pytest.raises(RecipeError, match="come together"):
            run_recipe(small_recipe(*overrides), tmp_path / "run", Quiet())
