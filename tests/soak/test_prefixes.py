"""A run that stops after any event raises nothing, in any of the fourteen stages. `make soak`."""

import copy

import pytest
from light import clean_run

from rollbook.audit.detector import Detector
from rollbook.audit.detectors import DETECTORS
from rollbook.audit.passage import read
from rollbook.ledger import Ledger

pytestmark = pytest.mark.soak
SHARED = ("judge", "renderer")      # what a copy of a detector keeps with the original: templates and judges hold no state of it


class Witness(Detector):
    """Remembers the index that the passage fills."""

    def record(self, run, identity, record):
        self.run = run


def test_no_detector_raises_anything_wherever_a_clean_run_stops(warm):
    witness, ours, seen = Witness(), [cls() for cls in DETECTORS], []

    def told(seq):
        seen.append(seq)
        witness.run.__dict__.pop("generated", None)         # computed when asked for: not before every raw task was read
        for one in ours:
            kept = [getattr(one, name, None) for name in SHARED]
            now = copy.deepcopy(one, {id(held): held for held in kept if held is not None})
            now.finish(witness.run)
            assert not now.failures, f"{one.name} after event {seq}: {now.failures[0]}"
    read(Ledger.open(clean_run(warm), write=False), [witness, *ours], told)
    assert len(seen) > 60
