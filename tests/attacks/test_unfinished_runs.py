"""A run that stopped after any event is open, not wrong; one that went on without a record of it is wrong."""

import pytest
from short_runs import clean_run

from rollbook.audit.detectors.acquisition import AcquisitionDetector
from rollbook.audit.detectors.environment import EnvironmentDetector
from rollbook.audit.detectors.normalisation import NormalisationDetector
from rollbook.audit.detectors.splits import SplitsDetector
from rollbook.audit.passage import read
from rollbook.ledger import Ledger

FIRST_FOUR = (AcquisitionDetector, NormalisationDetector, SplitsDetector, EnvironmentDetector)


class Partly:
    """A ledger of which only some events are read: (place, event) -> whether it is."""

    def __init__(self, ledger, kept):
        self.ledger, self.kept = ledger, kept

    def events(self):
        return (event for place, event in enumerate(self.ledger.events(), start=1) if self.kept(place, event))

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
        run = read(Partly(ledger, lambda place, _, count=count: place <= count), detectors)
        for detector in detectors:
            detector.finish(run)
            assert detector.failures == [], (count, detector.failures)
            results.add((detector.stage, detector.result().result))
    assert results == {(stage, result) for stage in (1, 2, 3, 4) for result in ("pass", "not_applicable")}


@pytest.mark.parametrize(("missing", "stages"), [
    ({"tasks/raw"}, {1, 2}), ({"tasks/train"}, {1, 2, 3}), ({"tasks/heldout"}, {1, 2, 3}),
    ({"tasks/raw", "tasks/train", "tasks/heldout"}, {1, 2, 3}), ({"Decontamination"}, {1}), ({"TokenizerFile"}, {2}),
    ({"SplitManifest"}, {3}), ({"EnvironmentImage"}, {4}), ({"EnvironmentProof"}, {4}),
])
def test_a_record_that_was_never_made_fails_its_stage(ledger, missing, stages):
    detectors = [cls() for cls in FIRST_FOUR]
    run = read(Partly(ledger, lambda _, event: event.kind not in missing and event.body.get("name") not in missing), detectors)
    for detector in detectors:
        detector.finish(run)
    assert {detector.stage for detector in detectors if detector.failures} >= stages
