"""Attempts that the engine cannot finish: the run goes on, the census counts them as failed, the audit finds nothing."""

from collections import Counter

import pytest
from attacked import quick_recipe, rows
from small_runs import Quiet

from rollbook.ledger import Ledger
from rollbook.orchestration.run import run_recipe
from rollbook.records import Census
from rollbook.rollouts.engines.stream import Stream


@pytest.fixture
def damaged(monkeypatch):
    """Logits that are not finite, for some attempts of every stage: of some at once, of others after two tokens."""
    real, hit = Stream._take, []

    def take(self, some, logits):
        logits = logits.clone()
        for index, row in enumerate(some):
            scope, *_, place, _, sample = row.request.key.split("/")
            bad = {"eval": int(place) % 4 == 1, "select": int(place) % 4 == 1, "rl": sample in ("1", "2")}.get(scope, False)
            if bad and len(row.tokens) == (2 if sample == "2" else 0):
                logits[index] = float("nan")
                hit.append(row.request.key)
        return real(self, some, logits)
    monkeypatch.setattr(Stream, "_take", take)
    return hit


def test_a_run_with_failed_attempts_goes_on_counts_them_and_passes_its_audit(small_run, damaged, tmp_path):
    run = tmp_path / "run"
    assert run_recipe(quick_recipe(small_run.parent / "warm" / "checkpoints" / "cold_start"), run, Quiet()) == 0
    with Ledger.open(run) as ledger:
        counted = Counter()
        for census in ledger.records(Census):
            counted[census.scope.split("/")[0]] += census.count("failed")
    assert counted == Counter(key.split("/")[0] for key in damaged)
    assert {"eval", "select", "rl"} <= set(counted)
    found = rows(run)
    assert [row for row in found.values() if row.result == "fail"] == []
