"""A run that stopped after any event is open, not wrong."""

import pytest
from short_runs import clean_run

from rollbook.audit.detectors.acquisition import AcquisitionDetector
from rollbook.audit.detectors.environment import EnvironmentDetector
from rollbook.audit.detectors.normalisation import NormalisationDetector
from rollbook.audit.detectors.splits import SplitsDetector
from rollbook.audit.passage import read
from rollbook.ledger import Ledger

FIRST_FOUR = (AcquisitionDetector, NormalisationDetector, SplitsDetector, EnvironmentDetector)


class Stopped:
    """A ledger that ends after so many events."""

    def __init__(self, ledger, count):
        self.ledger, self.count = ledger, count

    def events(self):
        return (event for _, event in zip(range(self.count), self.ledger.events(), strict=False))

    def __getattr__(self, name):
        return getattr(self.ledger, name)


def ends(ledger):
    """The place after the first event of every kind and table."""
    seen = {}
    for count, event in enumerate(ledger.events(), start=1):
        seen.setdefault((event.kind, event.body.get("name")), count)
    return sorted(seen.values())


@pytest.fixture(scope="module")
def ledger(warm):
    return Ledger.open(clean_run(warm), write=False)


def test_the_first_four_stages_find_nothing_wrong_in_a_run_that_stopped_after_any_event(ledger):
    results = set()
    for count in ends(ledger):
        detectors = [cls() for cls in FIRST_FOUR]
        run = read(Stopped(ledger, count), detectors)
        for detector in detectors:
            detector.finish(run)
            assert detector.failures == [], (count, detector.failures)
            results.add((detector.stage, detector.result().result))
    assert results == {(stage, result) for stage in (1, 2, 3, 4) for result in ("pass", "not_applicable")}
